/* agentd-evals gen SUITE: writes a suite's folder. */
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "evals/cli.h"
#include "evals/ruler_suite.h"
#include "evals/suite.h"

#define MAX_LENGTHS 32

struct gen_options {
    const char *model, *out, *lengths, *tasks, *words, *english_words;
    int64_t n_contexts, n_questions, n_samples, seed;
};

static const struct option gen_table[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct gen_options, model), "DIR",
     .help = "folder with the tokenizer.json that lengths are counted by", .required = true},
    {"out", 'o', OPTION_STRING, offsetof(struct gen_options, out), "DIR",
     .help = "folder to make", .required = true},
    {"lengths", 'l', OPTION_STRING, offsetof(struct gen_options, lengths), "N,N,...",
     .help = "tokens of prompt and answer together, such as 4096,32K (default: 4K)"},
    {"contexts", 0, OPTION_INT, offsetof(struct gen_options, n_contexts), "N", 1, 10000,
     .help = "contexts of each length (default: 1)"},
    {"questions", 0, OPTION_INT, offsetof(struct gen_options, n_questions), "N", 1, 10000,
     .help = "questions about each context (default: the suite's)"},
    {"seed", 0, OPTION_INT, offsetof(struct gen_options, seed), "N", 0, UINT32_MAX,
     .help = "of everything that is drawn (default: 42)"},
    {"tasks", 0, OPTION_STRING, offsetof(struct gen_options, tasks), "NAME,...",
     .help = "ruler: tasks (default: all six)"},
    {"samples", 'n', OPTION_INT, offsetof(struct gen_options, n_samples), "N", 1, 100000,
     .help = "ruler: samples of each task and length (default: 500)"},
    {"words", 0, OPTION_STRING, offsetof(struct gen_options, words), "DIR",
     .help = "ruler: folder of nounlist.txt, adjectivelist.txt and verblist.txt (the package "
             "wonderwords: assets/)"},
    {"english-words", 0, OPTION_STRING, offsetof(struct gen_options, english_words), "FILE",
     .help = "ruler, long cwe: the original's english_words.json"},
};

const struct command evals_gen_command = {
    "gen",
    "SUITE",
    "write the contexts and samples of a suite (agentd-evals list)",
    OPTION_TABLE(gen_table),
    OPTION_TABLE_EMPTY,
    1,
    1};

struct lengths {
    uint32_t v[MAX_LENGTHS];
    size_t n;
};

static enum err parse_lengths(const char *text, struct lengths *out, struct error *e)
{
    out->n = 0;
    while (*text) {
        char word[32];
        size_t n = strcspn(text, ",");
        uint64_t v = 0;
        if (n >= sizeof word || out->n == MAX_LENGTHS)
            return err_set(e, ERR_INVAL, "--lengths: want at most %d numbers", MAX_LENGTHS);
        memcpy(word, text, n);
        word[n] = 0;
        enum err rc = options_parse_bytes(word, &v, e);
        if (rc || v < 512 || v > 1u << 22)
            return err_set(e, ERR_INVAL, "--lengths: want 512..4M tokens, is %.60s", word);
        out->v[out->n++] = (uint32_t)v;
        text += n + (text[n] == ',');
    }
    return out->n ? OK : err_set(e, ERR_INVAL, "--lengths: empty");
}

static enum err parse_tasks(const char *text, struct ruler_suite *out, struct error *e)
{
    for (out->n_tasks = 0; *text; text += *text == ',') {
        char word[64];
        size_t n = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), text);
        enum ruler_task task = ruler_task_of(word);
        if (task == RULER_N_TASKS || out->n_tasks == RULER_N_TASKS)
            return err_set(e, ERR_INVAL, "--tasks: \"%s\" is none of RULER's core six", word);
        out->tasks[out->n_tasks++] = task;
        text += n;
    }
    return OK;
}

static enum err gen_ruler(const struct gen_options *g, const struct lengths *lengths,
                          const struct tokenizer *t, struct suite_writer *w, struct error *e)
{
    char paths[3][FS_PATH_BYTES];
    struct ruler_suite s = {.english_words = g->english_words,
                            .seed = (uint32_t)g->seed,
                            .n_samples = (uint32_t)g->n_samples,
                            .tokenizer = t};
    enum err rc = g->tasks ? parse_tasks(g->tasks, &s, e) : OK;
    if (!g->tasks)
        for (enum ruler_task task = 0; task < RULER_N_TASKS; task++)
            s.tasks[s.n_tasks++] = task;
    static const char *const names[] = {"nounlist", "adjectivelist", "verblist"};
    for (size_t i = 0; i < 3 && g->words && !rc; i++)
        rc = fs_path(paths[i], sizeof paths[i], e, "%s/%s.txt", g->words, names[i]);
    if (g->words) {
        s.nouns = paths[0];
        s.adjectives = paths[1];
        s.verbs = paths[2];
    }
    for (size_t i = 0; i < lengths->n && !rc; i++)
        rc = ruler_suite_add(&s, lengths->v[i], w, e);
    return rc;
}

static enum err gen(const struct gen_options *g, const char *suite, struct error *e)
{
    const bool is_ruler = !strcmp(suite, RULER_SUITE);
    const struct suite_kind *kind = suite_kind_of(suite);
    struct lengths lengths;
    if (!kind && !is_ruler)
        return err_set(e, ERR_NOTFOUND, "no suite \"%.60s\" (agentd-evals list)", suite);
    struct tokenizer *t = NULL;
    uint8_t digest[HASH_BYTES];
    enum err rc = parse_lengths(g->lengths, &lengths, e);
    if (!rc)
        rc = suite_tokenizer_digest(g->model, digest, e);
    if (!rc)
        rc = tokenizer_open(&t, g->model, e);
    if (rc)
        return rc;
    struct suite_writer w = {0};
    rc = suite_writer_open(&w, g->out, suite, is_ruler ? RULER_SUITE_VERSION : kind->version,
                           (uint64_t)g->seed, digest, e);
    if (!rc && is_ruler)
        rc = gen_ruler(g, &lengths, t, &w, e);
    for (size_t i = 0; i < lengths.n && !is_ruler && !rc; i++) {
        int64_t n = g->n_questions ? g->n_questions : kind->n_questions;
        struct suite_options o = {.tokenizer = t,
                                  .seed = (uint64_t)g->seed,
                                  .n_tokens = lengths.v[i],
                                  .n_questions = (uint32_t)n};
        for (uint32_t k = 0; k < g->n_contexts && !rc; k++)
            rc = kind->generate(&o, k, &w, e);
    }
    if (!rc)
        rc = suite_writer_finish(&w, e);
    if (!rc)
        printf("%s: %llu contexts, %llu samples\n", g->out, (unsigned long long)w.contexts.n,
               (unsigned long long)w.samples.n);
    suite_writer_fini(&w);
    tokenizer_free(t);
    return rc;
}

int evals_gen(int argc, char **argv)
{
    struct gen_options g = {.lengths = "4K", .n_contexts = 1, .n_samples = 500, .seed = 42};
    struct options o;
    struct error e = {0};
    int code = evals_parse(&evals_gen_command, argc, argv, &g, &o);
    if (code != EVALS_GO_ON)
        return code;
    enum err rc = gen(&g, o.args[0], &e);
    return rc ? evals_fail(&evals_gen_command, rc, &e) : EVALS_DONE;
}
