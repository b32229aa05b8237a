/* agentd-evals score RUN: answers against the samples, a line for each cell. */
#include <string.h>

#include "base/fs.h"
#include "engine/pyjson.h"
#include "evals/cli.h"
#include "evals/score.h"

struct score_options {
    const char *answers;
    bool json;
};

static const struct option score_table[] = {
    {"answers", 0, OPTION_STRING, offsetof(struct score_options, answers), "FILE",
     .help = "lines {\"id\", \"status\", \"text\"} (default: RUN/answers.jsonl)"},
    {"json", 0, OPTION_FLAG, offsetof(struct score_options, json), "",
     .help = "print results.json"},
};

const struct command evals_score_command = {
    "score",
    "RUN",
    "score the answers in a run's folder: scores.jsonl, results.json",
    OPTION_TABLE(score_table),
    OPTION_TABLE_EMPTY,
    1,
    1};

static void print_mean(const json_t *m)
{
    const json_t *mean = json_object_get(m, "mean"), *low = json_object_get(m, "low");
    if (json_is_null(mean))
        printf("  %-22s", "-");
    else if (json_is_null(low))
        printf("  %-22.4f", json_real_value(mean));
    else
        printf("  %.4f [%.4f, %.4f]", json_real_value(mean), json_real_value(low),
               json_real_value(json_object_get(m, "high")));
}

static void print_table(const json_t *results)
{
    static const char *const counts[] = {"n",     "empty",   "unparsable",
                                         "error", "timeout", "missing"};
    size_t i;
    json_t *cell;
    printf("%-36s  %-22s  %-22s", "cell", "score [95 %]", "errors left out");
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        printf("  %s", counts[k]);
    printf("\n");
    json_array_foreach(json_object_get(results, "cells"), i, cell) {
        printf("%-36s", json_string_value(json_object_get(cell, "cell")));
        print_mean(json_object_get(cell, "score"));
        print_mean(json_object_get(cell, "answered"));
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
            printf("  %*lld", (int)strlen(counts[k]),
                   (long long)json_integer_value(json_object_get(cell, counts[k])));
        printf("\n");
    }
}

static enum err print(const struct score_options *s, const json_t *results, struct error *e)
{
    if (!s->json) {
        print_table(results);
        return OK;
    }
    AUTO(buf) struct buf text = BUF_INIT((size_t)1 << 30);
    enum err rc = pyjson_dump(results, &text, e);
    if (!rc)
        printf("%s\n", buf_str(&text));
    return rc;
}

int evals_score(int argc, char **argv)
{
    struct score_options s = {.json = false};
    struct options o;
    struct error e = {0};
    int code = evals_parse(&evals_score_command, argc, argv, &s, &o);
    if (code != EVALS_GO_ON)
        return code;
    struct score_counts counts = {0, 0};
    json_auto_t *results = NULL;
    enum err rc = score_run(o.args[0], s.answers, &counts, &results, &e);
    if (!rc)
        rc = print(&s, results, &e);
    if (rc)
        return evals_fail_files(&evals_score_command, rc, &e);
    if (!counts.n_missing)
        return EVALS_DONE;
    fprintf(stderr, "agentd-evals score: %llu of %llu samples have no answer\n",
            (unsigned long long)counts.n_missing, (unsigned long long)counts.n);
    return EVALS_INCOMPLETE;
}
