/* bench_sample -m DIR: what a token costs beside the model: sampling alone, and held to the
 * syntax and the declared types of tool calls. DIR has a tokenizer.json of the size that
 * counts. One JSON line a place in the output: microseconds, median of --reps. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/auto.h"
#include "base/options.h"
#include "engine/constrain.h"
#include "engine/ids.h"
#include "engine/sample.h"
#include "engine/tokenizer.h"
#include "kernels/philox.h"

#define MAX_REPS 1001

struct options_of_bench {
    const char *model;
    int64_t reps;
};

#define AT(member) offsetof(struct options_of_bench, member)
static const struct option table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "folder with tokenizer.json",
     .required = true},
    {"reps", 0, OPTION_INT, AT(reps), "N", 1, MAX_REPS, .help = "of each figure (default 51)"},
};
static const struct command command = {"bench_sample",
                                       "",
                                       "what a token costs beside the model",
                                       OPTION_TABLE(table),
                                       OPTION_TABLE_EMPTY,
                                       0,
                                       0};

static const char TOOLS[] =
    "[{\"name\":\"t\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"any\":{},\"list\":{\"type\":\"array\"},\"n\":{\"type\":\"integer\"},"
    "\"s\":{\"type\":\"string\"},\"way\":{\"enum\":[\"north\",\"south\",\"nowhere\"]}}}}]";

#define MARK "｜DSML｜"
#define CALL "<" MARK " calls>\n<" MARK " invoke name=\"t\">\n<" MARK " parameter name=\""

static const struct {
    const char *name, *text;
} PLACES[] = {
    {"free text", "Hello"},
    {"syntax", CALL},
    {"string", CALL "s\" string=\"true\">ab"},
    {"one of three", CALL "way\" string=\"true\">no"},
    {"integer", CALL "n\" string=\"false\">1"},
    {"array", CALL "list\" string=\"false\">[1, "},
    {"string in an array", CALL "list\" string=\"false\">[\"a"},
};

struct bench {
    struct tokenizer *tokenizer;
    struct call_rules *rules;
    uint32_t n;
    float *logits;
    struct k_sample_entry *scratch;
    size_t n_reps;
};

static enum err find_place(const struct bench *b, const char *text, struct constrain_state *s,
                           struct error *e)
{
    AUTO(ids) struct ids ids = IDS_INIT(1 << 12);
    enum err rc = tokenizer_encode_special(b->tokenizer, text, strlen(text), &ids, e);
    *s = (struct constrain_state){0};
    for (size_t i = 0; i < ids.n && !rc; i++)
        constrain_feed(b->rules, s, ids.v[i]);
    return rc;
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Microseconds of one token; rules NULL: not held to anything. */
static enum err measure(const struct bench *b, const struct constrain_state *calls,
                        const struct call_rules *rules, const struct sampling *how, double *us,
                        struct error *e)
{
    struct sampling s = *how;
    s.rules = rules;
    double all[MAX_REPS];
    for (size_t i = 0; i < b->n_reps; i++) {
        clock_t t0 = clock(); /* of the CPU: the machine may be busy */
        uint32_t id = 0;
        enum err rc = sample_token(&s, calls, b->logits, b->n, i, b->scratch, &id, e);
        if (rc)
            return rc;
        all[i] = (double)(clock() - t0) * 1e6 / CLOCKS_PER_SEC;
    }
    qsort(all, b->n_reps, sizeof *all, by_size);
    *us = all[b->n_reps / 2];
    return OK;
}

static enum err report(const struct bench *b, size_t place, struct error *e)
{
    struct constrain_state s;
    static const struct sampling HOW[] = {
        {.seed = 7, .top_p = 1},
        {.seed = 7, .temperature = 1, .top_p = 1},
        {.seed = 7, .temperature = 1, .top_p = 1, .min_p = 0.05f},
        {.seed = 7, .temperature = 1, .top_p = 0.95f}};
    double free_us[4], held_us[4];
    enum err rc = find_place(b, PLACES[place].text, &s, e);
    for (int i = 0; i < 4 && !rc; i++)
        if (!(rc = measure(b, &s, NULL, &HOW[i], &free_us[i], e)))
            rc = measure(b, &s, b->rules, &HOW[i], &held_us[i], e);
    if (!rc)
        printf("{\"place\": \"%s\", \"vocabulary\": %u, \"greedy_us\": [%.0f, %.0f], "
               "\"temperature_1_us\": [%.0f, %.0f], \"min_p_us\": [%.0f, %.0f], "
               "\"top_p_us\": [%.0f, %.0f]}\n",
               PLACES[place].name, b->n, free_us[0], held_us[0], free_us[1], held_us[1],
               free_us[2], held_us[2], free_us[3], held_us[3]);
    return rc;
}

static enum err open_all(struct bench *b, const char *model, struct error *e)
{
    json_t *tools = json_loads(TOOLS, 0, NULL);
    enum err rc = tokenizer_open(&b->tokenizer, model, e);
    if (!rc)
        rc = call_rules_new(&b->rules, tools, b->tokenizer, e);
    json_decref(tools);
    if (rc)
        return rc;
    b->n = tokenizer_size(b->tokenizer);
    b->logits = malloc(b->n * sizeof *b->logits);
    b->scratch = malloc(2 * b->n * sizeof *b->scratch);
    if (!b->logits || !b->scratch)
        return err_set(e, ERR_NOMEM, "%u logits", b->n);
    for (uint32_t i = 0; i < b->n; i++)
        b->logits[i] = (float)(8 * k_philox_uniform(1, i, 0));
    return OK;
}

int main(int argc, char **argv)
{
    struct options_of_bench o = {.reps = 51};
    struct options parsed;
    struct bench b = {0};
    struct error e = {0};
    enum err rc = options_parse(&command, argc, (const char *const *)argv, &o, &parsed, &e);
    if (!rc && parsed.help) {
        options_usage(&command, "build/tests", stdout);
        return 0;
    }
    b.n_reps = (size_t)o.reps;
    if (!rc)
        rc = open_all(&b, o.model, &e);
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES && !rc; i++)
        rc = report(&b, i, &e);
    if (rc)
        fprintf(stderr, "bench_sample: %s\n", e.msg);
    free(b.logits);
    free(b.scratch);
    call_rules_free(b.rules);
    tokenizer_free(b.tokenizer);
    return rc != OK;
}
