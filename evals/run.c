#include "evals/run.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/ulid.h"
#include "engine/pyjson.h"
#include "evals/ask.h"
#include "evals/journal.h"
#include "evals/score.h"
#include "evals/suite.h"

/* Counts changes of how a context and a question become prompts. */
#define TEMPLATE "agentd-chat/1"
#define SAMPLER "greedy"
/* What the model is made to answer to a context, before a fork asks. */
#define ACKNOWLEDGED "I have read it."
#define MAX_PROMPT_BYTES ((size_t)15 << 20) /* a line of the protocol has 16 MiB */
#define PROGRESS_NS UINT64_C(10000000000)

struct run {
    const struct run_options *o;
    struct client *c;
    struct journal journal;
    json_t *key;      /* of this call; NULL: not compared */
    json_t *answered; /* id -> {"id", "status", "text"} */
    json_t *samples;  /* context id -> [sample...], in the file's order */
    char id[ULID_CHARS + 1];
    int timings;
    struct run_counts counts;
    uint64_t t0_ns, shown_ns;
};

static void run_fini(struct run *r)
{
    client_free(r->c);
    journal_fini(&r->journal);
    json_decref(r->key);
    json_decref(r->answered);
    json_decref(r->samples);
    if (r->timings >= 0)
        close(r->timings);
}

#define RUN_INIT(options)                                                                      \
    {                                                                                          \
        .o = (options), .journal = JOURNAL_INIT, .timings = -1, .answered = json_object(),     \
        .samples = json_object()                                                               \
    }

static uint64_t now_ns(void)
{
    return clock_mono_ns(clock_real());
}

static const char *text_of(const json_t *o, const char *field)
{
    const char *text = json_string_value(json_object_get(o, field));
    return text ? text : "";
}

/* ---- what there is ---------------------------------------------------------------------- */

static enum err keep_sample(void *user, json_t *sample, struct error *e)
{
    struct run *r = user;
    const char *id, *context;
    int64_t max_tokens;
    enum err rc = json_need_str(sample, "id", &id, NULL, e);
    if (!rc)
        rc = json_need_str(sample, "context", &context, NULL, e);
    if (!rc)
        rc = json_need_int(sample, "max_tokens", 0, UINT32_MAX, &max_tokens, e);
    if (rc)
        return rc;
    json_t *list = json_object_get(r->samples, context);
    if (!list && json_object_set_new(r->samples, context, list = json_array()))
        return err_set(e, ERR_NOMEM, "no memory for samples");
    r->counts.n++;
    return json_array_append(list, sample) ? err_set(e, ERR_NOMEM, "no memory for samples")
                                           : OK;
}

static enum err keep_record(void *user, const json_t *record, struct error *e)
{
    struct run *r = user;
    const json_t *key = json_object_get(record, "key");
    const char *id = text_of(record, "id");
    if (key) {
        snprintf(r->id, sizeof r->id, "%s", text_of(record, "run"));
        const char *field;
        json_t *mine;
        json_object_foreach(r->key, field, mine)
            if (!json_equal(json_object_get(key, field), mine))
                return err_set(e, ERR_CONFLICT, "the run's \"%s\" was another", field);
        return OK;
    }
    if (!*id)
        return OK;
    if (json_object_get(r->answered, id))
        return err_set(e, ERR_CORRUPT, "%.100s was answered twice", id);
    r->counts.n_done++;
    json_t *copy = json_deep_copy(record);
    return json_object_set_new(r->answered, id, copy)
               ? err_set(e, ERR_NOMEM, "no memory for answers")
               : OK;
}

static enum err load_samples(struct run *r, const char *dir, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/samples.jsonl", dir);
    return rc ? rc : suite_read_lines(path, keep_sample, r, e);
}

static enum err make_key(struct run *r, const json_t *suite, struct error *e)
{
    static const char *const of_suite[] = {"suite",     "version",  "seed",
                                           "tokenizer", "contexts", "samples"};
    static const char *const of_model[] = {"fingerprint", "numerics"};
    const json_t *model = json_object_get(client_server(r->c), "model");
    r->key = json_pack("{s:s, s:s, s:b, s:s}", "template", TEMPLATE, "sampler", SAMPLER,
                       "thinking", r->o->thinking, "effort", r->o->effort ? r->o->effort : "");
    bool failed = !r->key;
    for (size_t i = 0; i < sizeof of_suite / sizeof *of_suite && !failed; i++)
        failed = json_object_set(r->key, of_suite[i], json_object_get(suite, of_suite[i]));
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model && !failed; i++)
        failed = json_object_set(r->key, of_model[i], json_object_get(model, of_model[i]));
    return failed ? err_set(e, ERR_FORMAT, "suite.json or the daemon's model lacks a field")
                  : OK;
}

static enum err open_journal(struct run *r, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/run.jsonl", r->o->dir);
    if (!rc)
        rc = journal_open(&r->journal, path, keep_record, r, e);
    if (rc || r->journal.n_records)
        return rc;
    struct ulid_source ids;
    ulid_init(&ids, clock_real());
    ulid_next(&ids, r->id);
    return journal_append(&r->journal, json_pack("{s:O, s:s}", "key", r->key, "run", r->id), e);
}

/* ---- progress --------------------------------------------------------------------------- */

static void show_progress(struct run *r, const char *id, bool last)
{
    const uint64_t now = now_ns();
    if (r->o->quiet || (!last && now - r->shown_ns < (r->o->is_tty ? 100000000 : PROGRESS_NS)))
        return;
    r->shown_ns = now;
    const double s = (double)(now - r->t0_ns) / 1e9, n = (double)r->counts.n_asked;
    const double left = (double)(r->counts.n - r->counts.n_done);
    fprintf(stderr, "%srun %llu/%llu", r->o->is_tty ? "\r\033[K" : "",
            (unsigned long long)r->counts.n_done, (unsigned long long)r->counts.n);
    if (n > 0 && left > 0)
        fprintf(stderr, ", %.2f s each, ETA %.0f s", s / n, s / n * left);
    fprintf(stderr, "  %s%s", id, r->o->is_tty && !last ? "" : "\n");
}

/* ---- one sample ------------------------------------------------------------------------- */

enum err run_check_ledger(const json_t *ledger, struct error *e)
{
    static const char *const parts[] = {"resident", "restored", "recomputed", "relost",
                                        "prefilled"};
    int64_t prompt, sum = 0;
    enum err rc = json_need_int(ledger, "prompt_tokens", 0, INT64_MAX, &prompt, e);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !rc; i++) {
        int64_t part = 0;
        rc = json_need_int(ledger, parts[i], 0, INT64_MAX / 8, &part, e);
        sum += part;
    }
    if (!rc && sum != prompt)
        rc = err_set(e, ERR_CORRUPT, "ledger: prompt_tokens %lld, its parts are %lld",
                     (long long)prompt, (long long)sum);
    return rc;
}

static enum err note_timing(struct run *r, const char *id, uint64_t ns, const json_t *ledger,
                            struct error *e)
{
    AUTO(buf) struct buf line = BUF_INIT(1 << 20);
    json_auto_t *t =
        json_pack("{s:s, s:f, s:O}", "id", id, "ms", (double)ns / 1e6, "ledger", ledger);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for a timing");
    enum err rc = json_write(t, JSON_COMPACT, &line, e);
    if (!rc)
        rc = buf_add_byte(&line, '\n', e);
    return rc ? rc : fs_write(r->timings, "timings.jsonl", line.data, line.len, e);
}

/* Asks, and writes down what came. timeout and a failed turn are answers, too. */
static enum err ask_sample(struct run *r, const char *session, const json_t *sample,
                           const struct buf *prompt, struct error *e)
{
    const char *id = text_of(sample, "id"), *status = "ok";
    json_auto_t *answer = NULL;
    const uint64_t t0 = now_ns();
    enum err rc = journal_append(&r->journal, json_pack("{s:s}", "begin", id), e);
    if (!rc)
        rc = ask_prompt(r->c, session, id, buf_str(prompt), prompt->len, NULL, r->o->timeout_ms,
                        &answer, e);
    if (rc == ERR_TIMEOUT)
        status = "timeout";
    else if (rc == ERR_LIMIT)
        status = "error"; /* the model's context is too short */
    else if (rc)
        return rc;
    const char *reason = text_of(answer, "reason");
    if (answer && strcmp(reason, "end") && strcmp(reason, "length"))
        status = "error";
    const json_t *ledger = json_object_get(answer, "ledger");
    rc = answer ? run_check_ledger(ledger, e) : OK;
    if (rc)
        return err_wrap(e, rc, "%s", id);
    r->counts.n_ledgers += answer != NULL;
    json_t *record = json_pack("{s:s, s:s, s:s}", "id", id, "status", status, "text",
                               text_of(answer, "text"));
    rc = journal_append(&r->journal, json_incref(record), e);
    if (json_object_set_new(r->answered, id, record) && !rc)
        rc = err_set(e, ERR_NOMEM, "no memory for answers");
    if (rc)
        return rc;
    r->counts.n_asked++;
    r->counts.n_done++;
    show_progress(r, id, r->counts.n_done == r->counts.n);
    return answer ? note_timing(r, id, now_ns() - t0, ledger, e) : OK;
}

static enum err add_text(struct buf *out, const json_t *o, const char *field, struct error *e)
{
    const json_t *text = json_object_get(o, field);
    return json_is_string(text)
               ? buf_add(out, json_string_value(text), json_string_length(text), e)
               : err_set(e, ERR_FORMAT, "\"%s\": want a string", field);
}

/* ---- one context ------------------------------------------------------------------------ */

struct context {
    const json_t *object, *samples;
    uint32_t max_tokens;
    bool is_shared;     /* several samples ask: it is ingested once */
    uint64_t n_missing; /* samples without an answer */
    char name[ASK_NAME_BYTES], id[27];
};

static void describe(struct run *r, const json_t *object, struct context *x)
{
    size_t i;
    json_t *sample;
    *x = (struct context){.object = object,
                          .samples = json_object_get(r->samples, text_of(object, "id"))};
    x->is_shared = json_array_size(x->samples) > 1;
    json_array_foreach(x->samples, i, sample) {
        json_int_t n = json_integer_value(json_object_get(sample, "max_tokens"));
        x->max_tokens = (json_int_t)x->max_tokens < n ? (uint32_t)n : x->max_tokens;
        x->n_missing += !json_object_get(r->answered, text_of(sample, "id"));
    }
}

/* "eval-" + the end of the run's id + a number that the id gives. */
static void name_session(const struct run *r, const char *id, char out[ASK_NAME_BYTES])
{
    uint8_t digest[HASH_BYTES];
    char hex[HEX_CHARS(HASH_BYTES)];
    hash_bytes(NULL, id, strlen(id), digest);
    hex_encode(digest, sizeof digest, hex);
    snprintf(out, ASK_NAME_BYTES, "eval-%s-%.16s", r->id + ULID_CHARS - 10, hex);
    for (char *p = out; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
}

static enum err open_session(struct run *r, const struct context *x, const char *id,
                             char name[ASK_NAME_BYTES], char session[27], struct error *e)
{
    name_session(r, id, name);
    const struct ask_session s = {.name = name,
                                  .effort = r->o->effort,
                                  .thinking = r->o->thinking,
                                  .max_tokens = x->max_tokens ? x->max_tokens : 1};
    return ask_open(r->c, &s, session, e);
}

static enum err ingest(struct run *r, struct context *x, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(MAX_PROMPT_BYTES);
    json_auto_t *answer = NULL;
    const char *id = text_of(x->object, "id");
    enum err rc = add_text(&text, x->object, "text", e);
    if (!rc)
        rc = open_session(r, x, id, x->name, x->id, e);
    if (!rc)
        rc = ask_prompt(r->c, x->id, id, buf_str(&text), text.len,
                        r->o->thinking ? "</think>" ACKNOWLEDGED : ACKNOWLEDGED, 0, &answer, e);
    if (!rc && strcmp(text_of(answer, "reason"), "end"))
        rc = err_set(e, ERR_UNSUPPORTED, "%s: reading it ended with \"%s\"", id,
                     text_of(answer, "reason"));
    return rc ? rc : run_check_ledger(json_object_get(answer, "ledger"), e);
}

static enum err do_sample(struct run *r, struct context *x, const json_t *sample,
                          struct error *e)
{
    AUTO(buf) struct buf prompt = BUF_INIT(MAX_PROMPT_BYTES);
    char name[ASK_NAME_BYTES], session[27];
    const char *id = text_of(sample, "id");
    enum err rc = x->is_shared ? OK : add_text(&prompt, x->object, "text", e);
    if (!rc)
        rc = add_text(&prompt, sample, "question", e);
    if (!rc)
        rc = add_text(&prompt, sample, "answer_prefix", e);
    if (rc)
        return err_wrap(e, rc, "%s", id);
    if (!x->is_shared) {
        rc = open_session(r, x, id, name, session, e);
    } else {
        name_session(r, id, name);
        rc = ask_fork(r->c, x->id, name, session, e);
    }
    if (!rc)
        rc = ask_sample(r, session, sample, &prompt, e);
    return rc ? err_wrap(e, rc, "%s", id) : ask_delete(r->c, session, e);
}

/* Sessions that were to be deleted when a process before this one was killed. */
static enum err sweep(struct run *r, const json_t *sample, struct error *e)
{
    char name[ASK_NAME_BYTES];
    name_session(r, text_of(sample, "id"), name);
    return ask_delete(r->c, name, e);
}

static enum err do_context(void *user, json_t *object, struct error *e)
{
    struct run *r = user;
    struct context x;
    size_t i;
    json_t *sample;
    describe(r, object, &x);
    if (!x.n_missing)
        return OK;
    enum err rc = x.is_shared ? ingest(r, &x, e) : OK;
    json_array_foreach(x.samples, i, sample) {
        if (rc)
            return rc;
        bool done = json_object_get(r->answered, text_of(sample, "id")) != NULL;
        rc = done ? sweep(r, sample, e) : do_sample(r, &x, sample, e);
    }
    return rc || !x.is_shared ? rc : ask_delete(r->c, x.id, e);
}

/* ---- all of it -------------------------------------------------------------------------- */

/* Answers in the order of samples.jsonl: the same bytes whatever happened on the way. */
struct answers {
    const struct run *r;
    struct buf text;
};

static enum err write_answer(void *user, json_t *sample, struct error *e)
{
    struct answers *a = user;
    const char *id = text_of(sample, "id");
    const json_t *answer = json_object_get(a->r->answered, id);
    if (!answer)
        return err_set(e, ERR_FORMAT, "%.100s: its context %.100s is not in contexts.jsonl", id,
                       text_of(sample, "context"));
    enum err rc = pyjson_dump(answer, &a->text, e);
    return rc ? rc : buf_add_byte(&a->text, '\n', e);
}

static enum err finish(struct run *r, struct error *e)
{
    char samples[FS_PATH_BYTES], answers[FS_PATH_BYTES];
    struct answers a = {r, BUF_INIT((size_t)4 << 30)};
    struct score_counts counts;
    json_auto_t *results = NULL;
    enum err rc = fs_path(samples, sizeof samples, e, "%s/samples.jsonl", r->o->dir);
    if (!rc)
        rc = fs_path(answers, sizeof answers, e, "%s/answers.jsonl", r->o->dir);
    if (!rc)
        rc = suite_read_lines(samples, write_answer, &a, e);
    if (!rc)
        rc = fs_write_atomic(answers, a.text.data, a.text.len, 0644, e);
    buf_fini(&a.text);
    return rc ? rc : score_run(r->o->dir, NULL, &counts, &results, e);
}

enum err run_suite(const struct run_options *o, struct run_counts *counts, struct error *e)
{
    AUTO(run) struct run r = RUN_INIT(o);
    char path[FS_PATH_BYTES];
    const struct client_options client = {
        .socket_path = o->socket, .name = "agentd-evals", .wake_fd = o->wake_fd};
    json_auto_t *suite = NULL;
    if (!r.answered || !r.samples)
        return err_set(e, ERR_NOMEM, "no memory for a run");
    enum err rc = suite_load(o->dir, &suite, e);
    if (!rc)
        rc = suite_check(o->dir, suite, e);
    if (!rc)
        rc = load_samples(&r, o->dir, e);
    if (!rc)
        rc = client_open(&r.c, &client, e);
    if (!rc)
        rc = make_key(&r, suite, e);
    if (!rc)
        rc = open_journal(&r, e);
    if (!rc)
        rc = fs_path(path, sizeof path, e, "%s/timings.jsonl", o->dir);
    if (!rc)
        rc = fs_open(path, O_WRONLY | O_CREAT | O_APPEND, 0644, &r.timings, e);
    if (!rc)
        rc = fs_path(path, sizeof path, e, "%s/contexts.jsonl", o->dir);
    r.t0_ns = r.shown_ns = now_ns();
    if (!rc)
        rc = suite_read_lines(path, do_context, &r, e);
    if (!rc)
        rc = finish(&r, e);
    *counts = r.counts;
    return rc;
}

/* ---- what it would do ------------------------------------------------------------------- */

struct dry {
    struct run run;
    struct run_plan plan;
    double ms;
    uint64_t n_ms;
};

static enum err plan_context(void *user, json_t *object, struct error *e)
{
    struct dry *d = user;
    struct context x;
    size_t i;
    json_t *sample;
    (void)e;
    describe(&d->run, object, &x);
    d->plan.n_contexts += x.n_missing > 0;
    if (x.n_missing)
        d->plan.prefill_tokens +=
            (uint64_t)json_integer_value(json_object_get(object, "n_tokens"));
    json_array_foreach(x.samples, i, sample)
        if (!json_object_get(d->run.answered, text_of(sample, "id")))
            d->plan.decode_tokens +=
                (uint64_t)json_integer_value(json_object_get(sample, "max_tokens"));
    return OK;
}

static enum err plan_timing(void *user, json_t *timing, struct error *e)
{
    struct dry *d = user;
    (void)e;
    d->ms += json_number_value(json_object_get(timing, "ms"));
    d->n_ms++;
    return OK;
}

enum err run_dry(const char *dir, struct run_plan *out, struct error *e)
{
    const struct run_options o = {.dir = dir};
    AUTO(run) struct run r = RUN_INIT(&o);
    struct dry d = {.plan = {.n_samples = 0}};
    char path[FS_PATH_BYTES];
    if (!r.answered || !r.samples)
        return err_set(e, ERR_NOMEM, "no memory for a run");
    enum err rc = load_samples(&r, dir, e);
    if (!rc)
        rc = fs_path(path, sizeof path, e, "%s/run.jsonl", dir);
    if (!rc && access(path, F_OK) == 0)
        rc = journal_read(path, keep_record, &r, e);
    d.run = r;
    if (!rc)
        rc = fs_path(path, sizeof path, e, "%s/contexts.jsonl", dir);
    if (!rc)
        rc = suite_read_lines(path, plan_context, &d, e);
    if (!rc)
        rc = fs_path(path, sizeof path, e, "%s/timings.jsonl", dir);
    if (!rc && access(path, F_OK) == 0)
        rc = suite_read_lines(path, plan_timing, &d, e);
    if (rc)
        return rc;
    d.plan.n_samples = r.counts.n;
    d.plan.n_done = r.counts.n_done;
    d.plan.ms_per_sample = d.n_ms ? d.ms / (double)d.n_ms : -1;
    *out = d.plan;
    return OK;
}
