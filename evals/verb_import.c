/* agentd-evals import FORMAT FILE...: benchmarks that the user has become a suite's folder. */
#include <string.h>

#include "evals/cli.h"
#include "evals/import.h"

#define IMPORT_VERSION 1

struct verb_options {
    const char *model, *out;
};

static const struct option import_table[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct verb_options, model), "DIR",
     .help = "folder with the tokenizer.json that lengths are counted by", .required = true},
    {"out", 'o', OPTION_STRING, offsetof(struct verb_options, out), "DIR",
     .help = "folder to make", .required = true},
};

const struct command evals_import_command = {
    "import",
    "ruler|mrcr|graphwalks|longbench-v2|infinitebench FILE...",
    "a suite's folder from benchmark files of yours",
    OPTION_TABLE(import_table),
    OPTION_TABLE_EMPTY,
    2,
    OPTIONS_MAX_ARGS};

static enum err import(const struct verb_options *v, const struct options *o,
                       struct tokenizer *t, struct suite_writer *w, struct error *e)
{
    uint8_t digest[HASH_BYTES];
    enum err rc = suite_tokenizer_digest(v->model, digest, e);
    if (rc)
        return rc;
    rc = suite_writer_open(w, v->out, o->args[0], IMPORT_VERSION, 0, digest, e);
    for (size_t i = 1; i < o->n_args && !rc; i++)
        rc = import_file(o->args[0], o->args[i], t, w, e);
    return rc ? rc : suite_writer_finish(w, e);
}

int evals_import(int argc, char **argv)
{
    struct verb_options v = {NULL, NULL};
    struct options o;
    struct error e = {0};
    int code = evals_parse(&evals_import_command, argc, argv, &v, &o);
    if (code != EVALS_GO_ON)
        return code;
    size_t k = 0;
    while (import_formats[k] && strcmp(import_formats[k], o.args[0]))
        k++;
    struct suite_writer w = {0};
    struct tokenizer *t = NULL;
    enum err rc = import_formats[k]
                      ? tokenizer_open(&t, v.model, &e)
                      : err_set(&e, ERR_NOTFOUND, "no format \"%.40s\"", o.args[0]);
    if (!rc)
        rc = import(&v, &o, t, &w, &e);
    if (!rc)
        printf("%s: %llu samples\n", v.out, (unsigned long long)w.samples.n);
    suite_writer_fini(&w);
    tokenizer_free(t);
    return rc ? evals_fail(&evals_import_command, rc, &e) : EVALS_DONE;
}
