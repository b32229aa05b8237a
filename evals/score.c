#include "evals/score.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/encode.h"
#include "base/fs.h"
#include "base/hash.h"
#include "engine/pyjson.h"
#include "evals/journal.h"
#include "evals/metric.h"
#include "evals/stats.h"
#include "evals/suite.h"

#define MAX_FILE_BYTES ((size_t)4 << 30)

enum status { S_OK, S_EMPTY, S_UNPARSABLE, S_ERROR, S_TIMEOUT, S_MISSING, N_STATUS };
static const char *const status_names[N_STATUS] = {"ok",    "empty",   "unparsable",
                                                   "error", "timeout", "missing"};

/* One cell while it is being filled. */
struct cell {
    char *name; /* SUITE/TASK/LENGTH */
    uint64_t counts[N_STATUS];
    double *scores;
    uint8_t *answered;
    uint32_t *contexts; /* ordinal of each score's context within the cell */
    json_t *context_ids;
    size_t n, cap;
};

struct scoring {
    json_t *answers; /* id -> {status, text}; those used are removed */
    json_t *model;   /* who gave them; NULL: not known */
    struct cell *cells;
    size_t n_cells, cap;
    struct buf lines; /* scores.jsonl */
    struct score_counts counts;
};

static void scoring_fini(struct scoring *s)
{
    for (size_t i = 0; i < s->n_cells; i++) {
        free(s->cells[i].name);
        free(s->cells[i].scores);
        free(s->cells[i].answered);
        free(s->cells[i].contexts);
        json_decref(s->cells[i].context_ids);
    }
    free(s->cells);
    json_decref(s->answers);
    json_decref(s->model);
    buf_fini(&s->lines);
}

/* ---- answers ---------------------------------------------------------------------------- */

static enum err keep_answer(void *user, json_t *line, struct error *e)
{
    struct scoring *s = user;
    const char *id, *status = "ok", *text = NULL;
    size_t n;
    enum err rc = json_need_str(line, "id", &id, NULL, e);
    if (!rc)
        rc = json_opt_str(line, "status", &status, NULL, e);
    if (!rc)
        rc = json_opt_str(line, "text", &text, &n, e);
    if (rc)
        return rc;
    const bool ok = !strcmp(status, "ok");
    if (!ok && strcmp(status, "error") && strcmp(status, "timeout"))
        return err_set(e, ERR_FORMAT, "\"status\": want ok, error or timeout, is \"%.40s\"",
                       status);
    if (ok && !text)
        return err_set(e, ERR_FORMAT, "\"text\": missing in the answer to %.100s", id);
    if (json_object_get(s->answers, id))
        return err_set(e, ERR_FORMAT, "a second answer to %.100s", id);
    return json_object_set(s->answers, id, line)
               ? err_set(e, ERR_NOMEM, "no memory for an answer")
               : OK;
}

/* ---- cells ------------------------------------------------------------------------------ */

/* The cell of a sample, made when it is the first one. Samples of a cell mostly stand together.
 */
static enum err find_cell(struct scoring *s, const char *id, struct cell **out, struct error *e)
{
    const char *slash = strrchr(id, '/');
    if (!slash)
        return err_set(e, ERR_FORMAT, "\"id\": want SUITE/TASK/LENGTH/ORDINAL, is \"%.100s\"",
                       id);
    const size_t n = (size_t)(slash - id);
    for (size_t i = s->n_cells; i-- > 0;)
        if (strlen(s->cells[i].name) == n && !memcmp(s->cells[i].name, id, n)) {
            *out = &s->cells[i];
            return OK;
        }
    if (s->n_cells == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 8;
        struct cell *cells = realloc(s->cells, cap * sizeof *cells);
        if (!cells)
            return err_set(e, ERR_NOMEM, "no memory for %zu cells", cap);
        s->cells = cells;
        s->cap = cap;
    }
    struct cell c = {.name = strndup(id, n), .context_ids = json_object()};
    s->cells[s->n_cells++] = c;
    *out = &s->cells[s->n_cells - 1];
    return c.name && c.context_ids ? OK : err_set(e, ERR_NOMEM, "no memory for a cell");
}

static enum err grow_cell(struct cell *c, struct error *e)
{
    if (c->n < c->cap)
        return OK;
    size_t cap = c->cap ? 2 * c->cap : 64;
    double *scores = realloc(c->scores, cap * sizeof *scores);
    c->scores = scores ? scores : c->scores;
    uint8_t *answered = realloc(c->answered, cap * sizeof *answered);
    c->answered = answered ? answered : c->answered;
    uint32_t *contexts = realloc(c->contexts, cap * sizeof *contexts);
    c->contexts = contexts ? contexts : c->contexts;
    if (!scores || !answered || !contexts)
        return err_set(e, ERR_NOMEM, "no memory for %zu scores", cap);
    c->cap = cap;
    return OK;
}

static enum err context_ordinal(struct cell *c, const char *context, uint32_t *out,
                                struct error *e)
{
    json_t *known = json_object_get(c->context_ids, context);
    *out = (uint32_t)(known ? (size_t)json_integer_value(known)
                            : json_object_size(c->context_ids));
    if (!known && json_object_set_new(c->context_ids, context, json_integer(*out)))
        return err_set(e, ERR_NOMEM, "no memory for a context");
    return OK;
}

/* ---- samples ---------------------------------------------------------------------------- */

static enum err read_answers(const json_t *list, struct wordlist *out, struct error *e)
{
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) {
        if (!json_is_string(v))
            return err_set(e, ERR_FORMAT, "\"answers\"[%zu]: want a text", i);
        enum err rc = wordlist_add(out, json_string_value(v), json_string_length(v), e);
        if (rc)
            return rc;
    }
    return OK;
}

enum err score_text(const json_t *sample, const char *text, size_t n, struct metric_result *out,
                    struct error *e)
{
    const char *metric;
    json_t *list;
    AUTO(wordlist) struct wordlist answers = WORDLIST_INIT;
    enum err rc = json_need_str(sample, "metric", &metric, NULL, e);
    if (!rc)
        rc = json_need_arr(sample, "answers", &list, e);
    if (!rc)
        rc = read_answers(list, &answers, e);
    if (!rc && metric_of(metric) == SUITE_N_METRICS)
        rc = err_set(e, ERR_FORMAT, "\"metric\": unknown: \"%.40s\"", metric);
    return rc ? rc : metric_score(metric_of(metric), text, n, &answers, out, e);
}

/* What one answer is worth, and how it is counted. */
static enum err judge(const json_t *sample, const json_t *answer, enum status *status,
                      double *score, struct error *e)
{
    const char *text, *given = "ok";
    size_t n;
    struct metric_result result;
    *score = 0;
    *status = S_MISSING;
    if (!answer) /* the sample has to be one all the same */
        return score_text(sample, "", 0, &result, e);
    enum err rc = json_opt_str(answer, "status", &given, NULL, e);
    if (rc)
        return rc;
    if (strcmp(given, "ok") != 0) {
        *status = strcmp(given, "error") ? S_TIMEOUT : S_ERROR;
        return score_text(sample, "", 0, &result, e);
    }
    if ((rc = json_need_str(answer, "text", &text, &n, e)))
        return rc;
    if ((rc = score_text(sample, text, n, &result, e)))
        return rc;
    *status = result.is_empty ? S_EMPTY : result.is_unparsable ? S_UNPARSABLE : S_OK;
    *score = result.score;
    return OK;
}

static enum err add_line(struct scoring *s, const char *id, enum status status, double score,
                         struct error *e)
{
    json_auto_t *line =
        json_pack("{s:s, s:s, s:f}", "id", id, "status", status_names[status], "score", score);
    if (!line)
        return err_set(e, ERR_NOMEM, "no memory for a score");
    enum err rc = pyjson_dump(line, &s->lines, e);
    return rc ? rc : buf_add_byte(&s->lines, '\n', e);
}

static enum err score_sample(void *user, json_t *sample, struct error *e)
{
    struct scoring *s = user;
    const char *id, *context;
    enum status status = S_MISSING;
    double score = 0;
    struct cell *c = NULL;
    uint32_t ordinal = 0;
    enum err rc = json_need_str(sample, "id", &id, NULL, e);
    if (!rc)
        rc = json_need_str(sample, "context", &context, NULL, e);
    if (!rc)
        rc = judge(sample, json_object_get(s->answers, id), &status, &score, e);
    if (!rc)
        rc = find_cell(s, id, &c, e);
    if (!rc)
        rc = grow_cell(c, e);
    if (!rc)
        rc = context_ordinal(c, context, &ordinal, e);
    if (!rc)
        rc = add_line(s, id, status, score, e);
    if (rc)
        return rc;
    c->counts[status]++;
    c->scores[c->n] = score;
    c->answered[c->n] = status <= S_UNPARSABLE;
    c->contexts[c->n++] = ordinal;
    s->counts.n++;
    s->counts.n_missing += status == S_MISSING;
    json_object_del(s->answers, id);
    return OK;
}

/* ---- results ---------------------------------------------------------------------------- */

/* Copies the scores that count; contexts are numbered anew. Returns how many there are. */
static size_t pick(const struct cell *c, bool answered_only, double *v, uint32_t *contexts,
                   uint32_t *number, uint32_t *n_contexts)
{
    size_t n = 0;
    *n_contexts = 0;
    memset(number, 0xff, c->n * sizeof *number);
    for (size_t i = 0; i < c->n; i++) {
        if (answered_only && !c->answered[i])
            continue;
        uint32_t *k = &number[c->contexts[i]];
        if (*k == UINT32_MAX)
            *k = (*n_contexts)++;
        v[n] = c->scores[i];
        contexts[n++] = *k;
    }
    return n;
}

static bool is_share(const double *v, size_t n, uint64_t *n_ones)
{
    *n_ones = 0;
    for (size_t i = 0; i < n; i++) {
        if (v[i] > 0 && v[i] < 1)
            return false;
        *n_ones += v[i] >= 1;
    }
    return true;
}

static enum err interval(const double *v, const uint32_t *contexts, size_t n,
                         uint32_t n_contexts, struct stats_interval *out, const char **kind,
                         struct error *e)
{
    uint64_t n_ones;
    if (n_contexts < 2) {
        *kind = "none";
        out->mean = 0;
        for (size_t i = 0; i < n; i++)
            out->mean += v[i] / (double)n;
        return OK;
    }
    if (n_contexts < n) {
        *kind = "bootstrap";
        return stats_bootstrap(v, contexts, n, n_contexts, SCORE_RESAMPLES, SCORE_SEED,
                               SCORE_CONFIDENCE, out, e);
    }
    if (is_share(v, n, &n_ones)) {
        *kind = "wilson";
        return stats_wilson(n_ones, n, SCORE_CONFIDENCE, out, e);
    }
    *kind = "student";
    return stats_mean(v, n, SCORE_CONFIDENCE, out, e);
}

/* {"n", "mean", "low", "high", "interval"}; null without any score. */
static enum err mean_object(const struct cell *c, bool answered_only, json_t **out,
                            struct error *e)
{
    AUTO_FREE double *v = calloc(c->n + 1, sizeof *v);
    AUTO_FREE uint32_t *contexts = calloc(c->n + 1, sizeof *contexts);
    AUTO_FREE uint32_t *number = calloc(c->n + 1, sizeof *number);
    if (!v || !contexts || !number)
        return err_set(e, ERR_NOMEM, "no memory for %zu scores", c->n);
    uint32_t n_contexts;
    struct stats_interval i = {0, 0, 0};
    const char *kind = "none";
    const size_t n = pick(c, answered_only, v, contexts, number, &n_contexts);
    enum err rc = interval(v, contexts, n, n_contexts, &i, &kind, e);
    if (rc)
        return rc;
    const bool known = strcmp(kind, "none") != 0;
    *out = json_pack("{s:I, s:o, s:o, s:o, s:s}", "n", (json_int_t)n, "mean",
                     n ? json_real(i.mean) : json_null(), "low",
                     known ? json_real(i.low) : json_null(), "high",
                     known ? json_real(i.high) : json_null(), "interval", kind);
    return *out ? OK : err_set(e, ERR_NOMEM, "no memory for results");
}

static enum err cell_object(const struct cell *c, json_t **out, struct error *e)
{
    json_auto_t *cell = json_pack("{s:s, s:I, s:I}", "cell", c->name, "n", (json_int_t)c->n,
                                  "n_contexts", (json_int_t)json_object_size(c->context_ids));
    json_t *score = NULL, *answered = NULL;
    bool failed = !cell;
    for (enum status k = 0; k < N_STATUS && !failed; k++)
        failed =
            json_object_set_new(cell, status_names[k], json_integer((json_int_t)c->counts[k]));
    enum err rc = failed ? err_set(e, ERR_NOMEM, "no memory for results")
                         : mean_object(c, false, &score, e);
    if (!rc)
        rc = mean_object(c, true, &answered, e);
    if (json_object_set_new(cell, "score", score) +
            json_object_set_new(cell, "answered", answered) &&
        !rc)
        rc = err_set(e, ERR_NOMEM, "no memory for results");
    if (!rc)
        *out = json_incref(cell);
    return rc;
}

static enum err make_results(const struct scoring *s, const json_t *suite, json_t **out,
                             struct error *e)
{
    static const char *const kept[] = {"format", "suite",     "version",
                                       "seed",   "tokenizer", "samples"};
    json_auto_t *results = json_object(), *cells = json_array();
    bool failed = !results || !cells;
    for (size_t i = 0; i < sizeof kept / sizeof *kept && !failed; i++)
        failed = json_object_set(results, kept[i], json_object_get(suite, kept[i]));
    for (size_t i = 0; i < s->n_cells && !failed; i++) {
        json_t *cell = NULL;
        enum err rc = cell_object(&s->cells[i], &cell, e);
        if (rc)
            return rc;
        failed = json_array_append_new(cells, cell);
    }
    if (s->model && !failed)
        failed = json_object_set(results, "model", s->model);
    if (failed || json_object_set(results, "cells", cells))
        return err_set(e, ERR_NOMEM, "no memory for results");
    *out = json_incref(results);
    return OK;
}

/* ---- files ------------------------------------------------------------------------------ */

static enum err write_file(const char *dir, const char *name, const struct buf *text,
                           struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/%s", dir, name);
    return rc ? rc : fs_write_atomic(path, text->data, text->len, 0644, e);
}

static enum err keep_model(void *user, const json_t *record, struct error *e)
{
    struct scoring *s = user;
    const json_t *key = json_object_get(record, "key");
    if (!key)
        return OK;
    json_decref(s->model);
    s->model = json_pack("{s:O, s:O}", "fingerprint", json_object_get(key, "fingerprint"),
                         "numerics", json_object_get(key, "numerics"));
    return s->model ? OK : err_set(e, ERR_FORMAT, "the run's key names no model");
}

/* The run's own answers, and who gave them where a daemon was asked. */
static enum err read_own_answers(struct scoring *s, const char *dir, struct error *e)
{
    char answers[FS_PATH_BYTES], journal[FS_PATH_BYTES];
    enum err rc = fs_path(answers, sizeof answers, e, "%s/answers.jsonl", dir);
    if (!rc)
        rc = fs_path(journal, sizeof journal, e, "%s/run.jsonl", dir);
    if (!rc)
        rc = suite_read_lines(answers, keep_answer, s, e);
    return rc || access(journal, F_OK) ? rc : journal_read(journal, keep_model, s, e);
}

enum err score_run(const char *dir, const char *answers, struct score_counts *counts,
                   json_t **results, struct error *e)
{
    char samples[FS_PATH_BYTES];
    AUTO(scoring)
    struct scoring s = {.answers = json_object(), .lines = BUF_INIT(MAX_FILE_BYTES)};
    AUTO(buf) struct buf text = BUF_INIT(MAX_FILE_BYTES);
    json_auto_t *suite = NULL, *made = NULL;
    enum err rc =
        s.answers ? suite_load(dir, &suite, e) : err_set(e, ERR_NOMEM, "no memory for answers");
    if (!rc)
        rc = fs_path(samples, sizeof samples, e, "%s/samples.jsonl", dir);
    if (!rc)
        rc = suite_check(dir, suite, e);
    if (!rc)
        rc = answers ? suite_read_lines(answers, keep_answer, &s, e)
                     : read_own_answers(&s, dir, e);
    if (!rc)
        rc = suite_read_lines(samples, score_sample, &s, e);
    if (!rc && json_object_size(s.answers))
        rc =
            err_set(e, ERR_CONFLICT, "%s: an answer to %.100s, which is no sample of the suite",
                    answers ? answers : dir, json_object_iter_key(json_object_iter(s.answers)));
    if (!rc)
        rc = make_results(&s, suite, &made, e);
    if (!rc)
        rc = pyjson_dump(made, &text, e);
    if (!rc)
        rc = buf_add_byte(&text, '\n', e);
    if (!rc)
        rc = write_file(dir, "scores.jsonl", &s.lines, e);
    if (!rc)
        rc = write_file(dir, "results.json", &text, e);
    if (rc)
        return rc;
    *counts = s.counts;
    *results = json_incref(made);
    return OK;
}
