/* verify-resume on a suite: its contexts read once, its samples asked in forks of the session
 * that never stopped (C) and of those that were resumed from its state (X, D, B). */
#include <stdlib.h>
#include <string.h>

#include "base/encode.h"
#include "base/fs.h"
#include "base/json.h"
#include "evals/dialogue.h"
#include "evals/fidelity.h"
#include "evals/metric.h"
#include "evals/score.h"
#include "evals/stats.h"
#include "evals/suite.h"

/* What the model is made to answer to a context, as in a run (evals/run.c). */
#define ACKNOWLEDGED "I have read it."
#define MAX_TEXT ((size_t)64 << 20)
#define ROOM_TOKENS 4096 /* for the format, a question and its answer */
#define N_WAYS 3

static const struct way {
    const char *name;
    enum resume_mode mode;
} ways[N_WAYS] = {{"X", RESUME_EXACT}, {"D", RESUME_DEEP}, {"B", RESUME_REPLAY}};

struct suite {
    const struct fidelity_options *o;
    json_t *out;     /* results, one a cell */
    json_t *samples; /* context id -> [sample...], in the file's order */
    uint64_t longest;
    struct dialogue d;
    struct dialogue_answer said;
    struct buf text;
    char cell[SUITE_ID_BYTES]; /* the results below are its; empty: none */
    json_t *probes;
    uint64_t n_contexts;
    bool equal;
};

static void suite_fini(struct suite *s)
{
    json_decref(s->samples);
    json_decref(s->probes);
    dialogue_fini(&s->d);
    dialogue_answer_fini(&s->said);
    buf_fini(&s->text);
}

/* ---- what there is ---------------------------------------------------------------------- */

static enum err keep_sample(void *user, json_t *sample, struct error *e)
{
    struct suite *s = user;
    const char *context;
    enum err rc = json_need_str(sample, "context", &context, NULL, e);
    if (rc)
        return rc;
    json_t *list = json_object_get(s->samples, context);
    if (!list && json_object_set_new(s->samples, context, list = json_array()))
        return err_set(e, ERR_NOMEM, "no memory for samples");
    return json_array_append(list, sample) ? err_set(e, ERR_NOMEM, "no memory for samples")
                                           : OK;
}

static enum err measure_context(void *user, json_t *context, struct error *e)
{
    struct suite *s = user;
    int64_t n;
    enum err rc = json_need_int(context, "n_tokens", 1, UINT32_MAX, &n, e);
    if (!rc && (uint64_t)n > s->longest)
        s->longest = (uint64_t)n;
    return rc;
}

/* Nothing of it was changed, and lengths and places are those of one vocabulary. */
static enum err check_suite(const struct suite *s, const char *dir, struct error *e)
{
    uint8_t digest[HASH_BYTES];
    char hex[HEX_CHARS(HASH_BYTES)];
    json_auto_t *suite = NULL;
    const char *of_suite;
    enum err rc = suite_load(dir, &suite, e);
    if (!rc)
        rc = suite_check(dir, suite, e);
    if (!rc)
        rc = json_need_str(suite, "tokenizer", &of_suite, NULL, e);
    if (!rc)
        rc = suite_tokenizer_digest(s->o->model, digest, e);
    if (rc)
        return rc;
    hex_encode(digest, sizeof digest, hex);
    return strcmp(hex, of_suite)
               ? err_set(e, ERR_CONFLICT, "%s: made for another tokenizer", dir)
               : OK;
}

static enum err each_line(struct suite *s, const char *dir, const char *file, suite_line_fn *fn,
                          struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/%s", dir, file);
    return rc ? rc : suite_read_lines(path, fn, s, e);
}

/* ---- a cell's result -------------------------------------------------------------------- */

static const json_t *answer_of(const json_t *probe, const char *arm)
{
    return *arm == 'C' ? probe : json_object_get(json_object_get(probe, "arms"), arm);
}

static enum err add_accuracy(const json_t *probes, const char *arm, json_t *out,
                             struct error *e)
{
    struct stats_interval w;
    uint64_t n = 0, right = 0;
    size_t i;
    json_t *p;
    json_array_foreach(probes, i, p) {
        const json_t *a = answer_of(p, arm);
        n += a != NULL;
        right += json_is_true(json_object_get(a, "right"));
    }
    if (!n)
        return OK;
    enum err rc = stats_wilson(right, n, SCORE_CONFIDENCE, &w, e);
    if (!rc && json_object_set_new(out, arm,
                                   json_pack("{s:I, s:I, s:f, s:f, s:f}", "n", (json_int_t)n,
                                             "right", (json_int_t)right, "mean", w.mean, "low",
                                             w.low, "high", w.high)))
        rc = err_set(e, ERR_NOMEM, "no memory for results");
    return rc;
}

/* The cell as far as it was asked. */
static enum err pack_cell(const struct suite *s, bool *equal, json_t **out, struct error *e)
{
    json_auto_t *checks = json_array(), *accuracy = json_object();
    const char *length = strrchr(s->cell, '/');
    bool same = true;
    size_t i;
    json_t *c;
    enum err rc = checks && accuracy ? fidelity_answer_checks(s->probes, checks, e)
                                     : err_set(e, ERR_NOMEM, "no memory for results");
    for (const char *arm = "CXDB"; *arm && !rc; arm++)
        rc = add_accuracy(s->probes, (const char[]){*arm, 0}, accuracy, e);
    if (rc)
        return rc;
    json_array_foreach(checks, i, c)
        same = same && json_is_true(json_object_get(c, "equal"));
    *equal = same;
    *out =
        json_pack("{s:I, s:s, s:I, s:s, s:O, s:{}, s:[], s:[], s:O, s:O, s:b}", "length",
                  (json_int_t)strtoull(length ? length + 1 : "", NULL, 10), "cell", s->cell,
                  "n_contexts", (json_int_t)s->n_contexts, "numerics",
                  engine_describe(s->d.c.m)->layout->numerics, "checks", checks, "nll", "curve",
                  "cycles", "answers", s->probes, "accuracy", accuracy, "equal", same);
    return *out ? OK : err_set(e, ERR_NOMEM, "no memory for results");
}

static enum err end_cell(struct suite *s, struct error *e)
{
    json_t *result = NULL;
    bool equal = true;
    if (!*s->cell)
        return OK;
    enum err rc = pack_cell(s, &equal, &result, e);
    if (rc)
        return rc;
    s->equal = s->equal && equal;
    *s->cell = 0;
    return json_array_append_new(s->out, result)
               ? err_set(e, ERR_NOMEM, "no memory for results")
               : OK;
}

/* The results are those of the cell that the context belongs to. */
static enum err enter_cell(struct suite *s, const char *id, struct error *e)
{
    const char *slash = strrchr(id, '/');
    const size_t n = slash ? (size_t)(slash - id) : 0;
    if (!n || n >= sizeof s->cell)
        return err_set(e, ERR_FORMAT, "\"id\": want SUITE/TASK/LENGTH/cORDINAL, is \"%.100s\"",
                       id);
    if (strlen(s->cell) == n && !memcmp(s->cell, id, n))
        return OK;
    enum err rc = end_cell(s, e);
    json_decref(s->probes);
    s->probes = json_array();
    s->n_contexts = 0;
    memcpy(s->cell, id, n);
    s->cell[n] = 0;
    return rc || s->probes ? rc : err_set(e, ERR_NOMEM, "no memory for results");
}

static enum err so_far(struct suite *s, struct error *e)
{
    json_auto_t *result = NULL;
    bool equal;
    if (!s->o->so_far)
        return OK;
    enum err rc = pack_cell(s, &equal, &result, e);
    if (!rc && json_object_set_new(result, "unfinished", json_true()))
        rc = err_set(e, ERR_NOMEM, "no memory for results");
    return rc ? rc : s->o->so_far(s->o->user, result, e);
}

/* ---- questions -------------------------------------------------------------------------- */

static enum err add_text(struct buf *out, const json_t *o, const char *field, struct error *e)
{
    const char *text;
    size_t n;
    enum err rc = json_need_str(o, field, &text, &n, e);
    return rc ? rc : buf_add(out, text, n, e);
}

/* The sample's question in a fork of the arm. */
static enum err ask(struct suite *s, struct arm *a, const json_t *sample,
                    struct dialogue_answer *out, bool *right, struct error *e)
{
    int64_t max_tokens;
    struct metric_result worth;
    enum err rc = json_need_int(sample, "max_tokens", 1, ROOM_TOKENS / 2, &max_tokens, e);
    buf_clear(&s->text);
    if (!rc)
        rc = add_text(&s->text, sample, "question", e);
    if (!rc)
        rc = add_text(&s->text, sample, "answer_prefix", e);
    if (!rc)
        rc = dialogue_ask(&s->d, a, &s->text, (uint32_t)max_tokens, out, e);
    if (!rc)
        rc = score_text(sample, buf_str(&out->text), out->text.len, &worth, e);
    if (!rc)
        *right = worth.score >= 1;
    return rc;
}

static enum err new_probe(const struct suite *s, const json_t *sample, bool right,
                          const struct dialogue_answer *c, struct error *e)
{
    json_t *j = json_pack("{s:s, s:O, s:I, s:b, s:s, s:s, s:O, s:{}}", "kind", "sample", "id",
                          json_object_get(sample, "id"), "position",
                          (json_int_t)s->d.view.n_ids, "right", right, "tool", "", "arguments",
                          "", "expected", json_object_get(sample, "answers"), "arms");
    if (!j || json_array_append_new(s->probes, j))
        return err_set(e, ERR_NOMEM, "no memory for an answer");
    json_object_set_new(j, "text", json_stringn(buf_str(&c->text), c->text.len));
    if (json_is_number(json_object_get(sample, "depth")))
        json_object_set(j, "depth", json_object_get(sample, "depth"));
    return OK;
}

static enum err add_answer(json_t *probe, const char *arm, bool right, uint64_t n_replayed,
                           const struct dialogue_answer *a, const struct dialogue_answer *c,
                           struct error *e)
{
    const struct arm_difference rows = dialogue_compare(a, c);
    const bool same = dialogue_same_ids(a, c);
    json_t *j = json_pack(
        "{s:b, s:b, s:b, s:I, s:I, s:I}", "right", right, "same_ids", same, "same_action",
        dialogue_same_action(a, c), "rows", (json_int_t)rows.n_rows, "different",
        (json_int_t)(rows.n_different + rows.n_missing), "replayed", (json_int_t)n_replayed);
    if (j && !same)
        json_object_set_new(j, "text", json_stringn(buf_str(&a->text), a->text.len));
    return json_object_set_new(json_object_get(probe, "arms"), arm, j)
               ? err_set(e, ERR_NOMEM, "no memory for an answer")
               : OK;
}

/* All samples of a context, of the session that never stopped: answers [n], their probes. */
static enum err ask_never_stopped(struct suite *s, const json_t *samples,
                                  struct dialogue_answer *answers, struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < json_array_size(samples) && !rc; i++) {
        const json_t *sample = json_array_get(samples, i);
        bool right = false;
        rc = ask(s, &s->d.c, sample, &answers[i], &right, e);
        if (!rc)
            rc = new_probe(s, sample, right, &answers[i], e);
    }
    return rc;
}

static enum err ask_resumed(struct suite *s, const json_t *samples, const struct way *way,
                            const struct dialogue_answer *answers, struct error *e)
{
    const size_t n = json_array_size(samples), first = json_array_size(s->probes) - n;
    uint64_t n_replayed = 0;
    enum err rc = dialogue_resume(&s->d, way->mode, &n_replayed, e);
    for (size_t i = 0; i < n && !rc; i++) {
        bool right = false;
        rc = ask(s, &s->d.a, json_array_get(samples, i), &s->said, &right, e);
        if (!rc)
            rc = add_answer(json_array_get(s->probes, first + i), way->name, right,
                            i ? 0 : n_replayed, &s->said, &answers[i], e);
    }
    return rc ? err_wrap(e, rc, "%s", way->name) : OK;
}

/* ---- contexts --------------------------------------------------------------------------- */

static enum err ask_all(struct suite *s, const json_t *samples, struct error *e)
{
    const size_t n = json_array_size(samples);
    struct dialogue_answer *answers = calloc(n, sizeof *answers);
    if (!answers)
        return err_set(e, ERR_NOMEM, "no memory for %zu answers", n);
    for (size_t i = 0; i < n; i++)
        dialogue_answer_init(&answers[i]);
    enum err rc = ask_never_stopped(s, samples, answers, e);
    for (size_t w = 0; w < N_WAYS && !rc; w++)
        if (strchr(s->o->arms, *ways[w].name))
            rc = ask_resumed(s, samples, &ways[w], answers, e);
    for (size_t i = 0; i < n; i++)
        dialogue_answer_fini(&answers[i]);
    free(answers);
    return rc;
}

static enum err do_context(void *user, json_t *context, struct error *e)
{
    struct suite *s = user;
    const char *id;
    enum err rc = json_need_str(context, "id", &id, NULL, e);
    const json_t *samples = rc ? NULL : json_object_get(s->samples, id);
    if (!json_array_size(samples))
        return rc;
    if (s->o->progress)
        s->o->progress(s->o->user, id);
    rc = enter_cell(s, id, e);
    buf_clear(&s->text);
    if (!rc)
        rc = add_text(&s->text, context, "text", e);
    if (!rc)
        rc = dialogue_reset(&s->d, e);
    if (!rc)
        rc = dialogue_tell(&s->d, &s->text, ACKNOWLEDGED, e);
    if (!rc)
        rc = ask_all(s, samples, e);
    s->n_contexts++;
    return rc ? err_wrap(e, rc, "%s", id) : so_far(s, e);
}

enum err fidelity_suite(const struct fidelity_options *o, const char *dir, json_t *out,
                        bool *equal, struct error *e)
{
    AUTO(suite)
    struct suite s = {.o = o,
                      .out = out,
                      .samples = json_object(),
                      .text = BUF_INIT(MAX_TEXT),
                      .equal = true};
    dialogue_answer_init(&s.said);
    enum err rc = check_suite(&s, dir, e);
    if (!rc)
        rc = each_line(&s, dir, "samples.jsonl", keep_sample, e);
    if (!rc)
        rc = each_line(&s, dir, "contexts.jsonl", measure_context, e);
    const struct dialogue_options d = {
        .model = o->model, .engine = o->engine, .max_tokens = s.longest + ROOM_TOKENS};
    if (!rc)
        rc = dialogue_open(&s.d, &d, e);
    if (rc)
        return rc;
    s.d.c.wake_fd = s.d.a.wake_fd = o->wake_fd;
    rc = each_line(&s, dir, "contexts.jsonl", do_context, e);
    if (!rc)
        rc = end_cell(&s, e);
    *equal = s.equal;
    return rc;
}
