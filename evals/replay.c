#include "evals/replay.h"

#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/json.h"
#include "engine/tokenizer.h"
#include "evals/ask.h"
#include "evals/pyrandom.h"
#include "evals/run.h"
#include "evals/server.h"

#define MAX_TEXT ((size_t)15 << 20)
#define FIRST_KILL_MS 300.0 /* before any turn was timed */

struct replay {
    const struct replay_options *o;
    struct server s;
    struct tokenizer *tokenizer;
    struct pyrandom random;
    struct replay_result r;
    double *ttft;
    uint64_t n_ttft, n_total;
    uint32_t first_id, n_ids; /* ordinary ids of the vocabulary */
    char id[27], parking[27], run[16];
    json_t *turns; /* acknowledged in this session */
    double turn_ms;
};

static void replay_fini(struct replay *p)
{
    server_fini(&p->s);
    tokenizer_free(p->tokenizer);
    json_decref(p->turns);
    free(p->ttft);
}

static double now_ms(void)
{
    return (double)clock_mono_ns(clock_real()) / 1e6;
}

static uint64_t figure(const json_t *o, const char *field)
{
    return (uint64_t)json_integer_value(json_object_get(o, field));
}

double replay_hit_rate(const struct replay_result *r)
{
    return r->n_later ? (double)r->n_hits / (double)r->n_later : 1;
}

double replay_amplification(const struct replay_result *r)
{
    return r->prefilled
               ? (double)(r->prefilled + r->recomputed + r->relost) / (double)r->prefilled
               : 1;
}

/* ---- filler ----------------------------------------------------------------------------- */

/* The longest run of ids that are ordinary and text of their own: letters, after a space or
 * not, so that they mostly stay the same tokens when they are read again. */
static void find_ordinary(struct replay *p)
{
    const uint32_t n = tokenizer_size(p->tokenizer);
    uint32_t start = 0;
    for (uint32_t i = 0; i <= n; i++) {
        size_t len = 0;
        const uint8_t *text = i < n ? tokenizer_bytes(p->tokenizer, i, &len) : NULL;
        if (text && len && text[len - 1] < 0x80 && !tokenizer_is_added(p->tokenizer, i))
            continue;
        if (i - start > p->n_ids) {
            p->first_id = start;
            p->n_ids = i - start;
        }
        start = i + 1;
    }
}

static uint32_t scaled(const struct replay *p, uint32_t n)
{
    const double v = (double)n / p->o->scale;
    return v < 1 ? 1 : (uint32_t)v;
}

static enum err filler(const struct replay *p, uint64_t stream, uint32_t n, struct buf *text,
                       json_t *ids, struct error *e)
{
    AUTO_FREE uint32_t *v = calloc(n + 1, sizeof *v);
    if (!v)
        return err_set(e, ERR_NOMEM, "no memory for %u tokens", n);
    trace_filler(stream, 0, p->first_id, p->n_ids, v, n);
    for (uint32_t i = 0; i < n && ids; i++)
        if (json_array_append_new(ids, json_integer(v[i])))
            return err_set(e, ERR_NOMEM, "no memory for %u tokens", n);
    return text ? tokenizer_decode(p->tokenizer, v, n, text, e) : OK;
}

/* ---- one turn --------------------------------------------------------------------------- */

struct turn {
    char message[48];
    struct buf text;
    json_t *forced;
};

static enum err start_prompt(struct replay *p, const struct turn *t, uint64_t *call,
                             struct error *e)
{
    return client_start(p->s.c, "session/prompt",
                        json_pack("{s:s, s:s, s:[{s:s, s:s%}], s:[{s:O}]}", "id", p->id,
                                  "clientMessageId", t->message, "content", "type", "text",
                                  "text", buf_str(&t->text), t->text.len, "forced", "ids",
                                  t->forced),
                        call, e);
}

/* Sends the turn and waits for its end, or until the deadline (negative: none): then
 * ERR_TIMEOUT. receipt stays NULL when it was not acknowledged by then. */
static enum err drive(struct replay *p, const struct turn *t, double deadline, json_t **receipt,
                      json_t **wait, struct error *e)
{
    uint64_t call;
    const char *turn;
    const double left = deadline - now_ms();
    enum err rc = start_prompt(p, t, &call, e);
    if (!rc)
        rc = client_await(p->s.c, call,
                          deadline < 0 ? -1
                          : left > 0   ? (int)left
                                       : 0,
                          receipt, e);
    if (!rc)
        rc = json_need_str(*receipt, "turnId", &turn, NULL, e);
    if (!rc)
        rc = client_start(p->s.c, "session/wait",
                          json_pack("{s:s, s:s}", "id", p->id, "turnId", turn), &call, e);
    const double rest = deadline - now_ms();
    if (!rc)
        rc = client_await(p->s.c, call, deadline < 0 ? -1 : rest > 0 ? (int)rest : 0, wait, e);
    return rc;
}

/* A turn that nothing interrupted has taken so long. */
static void note_length(struct replay *p, double ms)
{
    p->turn_ms = p->turn_ms > 0 ? 0.8 * p->turn_ms + 0.2 * ms : ms;
}

/* The daemon dies at a random moment of the turn and comes back. */
static enum err kill_once(struct replay *p, const struct turn *t, json_t **receipt,
                          struct error *e)
{
    json_auto_t *mine = NULL, *wait = NULL;
    const double typical = p->turn_ms > 0 ? p->turn_ms : FIRST_KILL_MS;
    const double delay = 0.9 * typical * pyrandom_real(&p->random), t0 = now_ms();
    enum err rc = drive(p, t, t0 + delay, &mine, &wait, e);
    if (rc && rc != ERR_TIMEOUT)
        return rc;
    if (!rc && !*receipt) /* it is over: the next ones are struck earlier */
        note_length(p, now_ms() - t0);
    p->r.n_kills++;
    p->r.n_struck += rc == ERR_TIMEOUT;
    if (mine && *receipt && !json_equal(mine, *receipt))
        return err_set(e, ERR_CORRUPT, "%s: another receipt", t->message);
    if (mine && !*receipt)
        *receipt = json_incref(mine);
    rc = server_kill(&p->s, e);
    return rc ? rc : server_start(&p->s, e);
}

static void add_ledger(struct replay *p, const json_t *l, bool later)
{
    const json_t *ms = json_object_get(l, "ms");
    static const char *const before_first[] = {"queue",  "store_read", "import",
                                               "replay", "prefill",    "first_decode"};
    double ttft = 0;
    p->r.prompt += figure(l, "prompt_tokens");
    p->r.resident += figure(l, "resident");
    p->r.restored += figure(l, "restored");
    p->r.recomputed += figure(l, "recomputed");
    p->r.relost += figure(l, "relost");
    p->r.prefilled += figure(l, "prefilled");
    p->r.decoded += figure(l, "decoded");
    p->r.replayed += figure(l, "replayed");
    p->r.bytes_read += figure(l, "bytes_read");
    p->r.n_rounds++;
    if (!later)
        return;
    for (size_t i = 0; i < sizeof before_first / sizeof *before_first; i++)
        ttft += json_number_value(json_object_get(ms, before_first[i]));
    p->ttft[p->n_ttft++] = ttft;
    p->r.n_later++;
    p->r.n_hits += figure(l, "recomputed") + figure(l, "relost") == 0;
}

static enum err run_turn(struct replay *p, const struct turn *t, uint32_t n_kills, bool later,
                         struct error *e)
{
    json_auto_t *receipt = NULL, *mine = NULL, *wait = NULL;
    enum err rc = OK;
    for (uint32_t i = 0; i < n_kills && !rc; i++)
        rc = kill_once(p, t, &receipt, e);
    const double t0 = now_ms();
    if (!rc)
        rc = drive(p, t, -1, &mine, &wait, e);
    if (!rc && receipt && !json_equal(receipt, mine))
        rc = err_set(e, ERR_CORRUPT, "an acknowledged turn has another receipt now");
    const json_t *ledger = json_object_get(wait, "ledger");
    if (!rc)
        rc = run_check_ledger(ledger, e);
    if (rc)
        return err_wrap(e, rc, "%s", t->message);
    if (!n_kills)
        note_length(p, now_ms() - t0);
    add_ledger(p, ledger, later);
    p->r.n_acknowledged++;
    return json_array_append(p->turns, json_object_get(mine, "turnId"))
               ? err_set(e, ERR_NOMEM, "no memory for turns")
               : OK;
}

/* ---- out of memory ---------------------------------------------------------------------- */

/* With one place in memory (serve --resident 1) a turn of another session takes it. */
static enum err suspend(struct replay *p, struct error *e)
{
    json_auto_t *wait = NULL;
    char message[48];
    p->r.n_suspended++;
    if (p->o->forgets)
        return ask_patiently(p->s.c, "kv/drop", p->id, e);
    char name[48];
    snprintf(name, sizeof name, "replay-%s-parking", p->run);
    const struct ask_session s = {.name = name, .max_tokens = 1};
    enum err rc = ask_open(p->s.c, &s, p->parking, e);
    snprintf(message, sizeof message, "%s-park%llu", p->run,
             (unsigned long long)p->r.n_suspended);
    return rc ? rc : ask_prompt(p->s.c, p->parking, message, "x", 1, "y", 0, &wait, e);
}

/* ---- one session ------------------------------------------------------------------------ */

/* Every acknowledged turn is in the session's list, with its ledger. */
static enum err count_lost(struct replay *p, struct error *e)
{
    json_auto_t *usage = NULL, *seen = json_object();
    size_t i;
    json_t *t;
    enum err rc =
        client_call(p->s.c, "session/usage", json_pack("{s:s}", "id", p->id), &usage, e);
    if (rc)
        return rc;
    json_array_foreach(json_object_get(usage, "turns"), i, t)
        json_object_set(seen, json_string_value(json_object_get(t, "turnId")),
                        json_object_get(t, "ledger"));
    json_array_foreach(p->turns, i, t)
        p->r.n_lost += !json_is_object(json_object_get(seen, json_string_value(t)));
    return OK;
}

static enum err end_session(struct replay *p, struct error *e)
{
    json_auto_t *v = NULL;
    enum err rc = count_lost(p, e);
    if (!rc && p->o->verifies) {
        rc = client_call(p->s.c, "session/verify", json_pack("{s:s}", "id", p->id), &v, e);
        p->r.n_verified += !rc;
        p->r.n_unequal += !rc && !json_is_true(json_object_get(v, "equal"));
    }
    return rc ? rc : ask_patiently(p->s.c, "session/delete", p->id, e);
}

static uint32_t rounds_of(const struct replay *p, const struct trace_session *s)
{
    return p->o->max_rounds && s->n_steps > p->o->max_rounds ? p->o->max_rounds : s->n_steps;
}

/* Kills are spread evenly: as many as are due when this round is done. */
static uint32_t kills_due(const struct replay *p)
{
    const uint64_t due = p->o->n_kills * (p->r.n_rounds + 1) / p->n_total;
    return due > p->r.n_kills ? (uint32_t)(due - p->r.n_kills) : 0;
}

static enum err run_round(struct replay *p, const struct trace_session *s, uint32_t k,
                          struct error *e)
{
    const struct trace_step *step = &p->o->trace->steps[s->step + k];
    /* What a session came with was never in the trace: it is part of the first input. */
    const uint32_t extra = k == 0 ? step->prefix_len : 0;
    struct turn t = {.text = BUF_INIT(MAX_TEXT), .forced = json_array()};
    snprintf(t.message, sizeof t.message, "%s-%llu-%u", p->run, (unsigned long long)s->id, k);
    enum err rc = filler(p, trace_round_stream(s->id, 2 * k),
                         scaled(p, step->input_len + extra), &t.text, NULL, e);
    if (!rc)
        rc = filler(p, trace_round_stream(s->id, 2 * k + 1), scaled(p, step->output_len), NULL,
                    t.forced, e);
    if (!rc)
        rc = run_turn(p, &t, kills_due(p), k > 0, e);
    buf_fini(&t.text);
    json_decref(t.forced);
    const bool last = k + 1 == rounds_of(p, s);
    if (!rc && !last && p->o->timeout_ms >= 0 && step->wait_ms > p->o->timeout_ms)
        rc = suspend(p, e);
    if (p->o->progress)
        p->o->progress(p->o->user, p->r.n_rounds, p->n_total);
    return rc;
}

static enum err run_session(struct replay *p, const struct trace_session *s, struct error *e)
{
    char name[64];
    snprintf(name, sizeof name, "replay-%s-%llu", p->run, (unsigned long long)s->id);
    const struct ask_session ask = {.name = name, .max_tokens = 1 << 20};
    json_array_clear(p->turns);
    enum err rc = ask_open(p->s.c, &ask, p->id, e);
    for (uint32_t k = 0; k < rounds_of(p, s) && !rc; k++)
        rc = run_round(p, s, k, e);
    return rc ? rc : end_session(p, e);
}

/* ---- all of it -------------------------------------------------------------------------- */

static enum err begin(struct replay *p, struct error *e)
{
    enum err rc = tokenizer_open(&p->tokenizer, p->o->model, e);
    if (rc)
        return rc;
    find_ordinary(p);
    if (p->n_ids < 16)
        return err_set(e, ERR_UNSUPPORTED, "%s: too few ordinary tokens", p->o->model);
    if (p->o->socket) {
        p->s = (struct server)SERVER_INIT;
        snprintf(p->s.socket, sizeof p->s.socket, "%s", p->o->socket);
        p->s.wake_fd = p->o->wake_fd;
        return server_connect(&p->s, e);
    }
    rc = server_make(&p->s, p->o->work, e);
    p->s.model = p->o->model;
    p->s.wake_fd = p->o->wake_fd;
    p->s.extra[0] = "--resident";
    p->s.extra[1] = "1";
    return rc ? rc : server_start(&p->s, e);
}

static enum err note_model(struct replay *p, struct error *e)
{
    const char *fingerprint = NULL;
    json_t *model = NULL;
    enum err rc = json_need_obj(client_server(p->s.c), "model", &model, e);
    if (!rc)
        rc = json_need_str(model, "fingerprint", &fingerprint, NULL, e);
    if (!rc)
        snprintf(p->r.fingerprint, sizeof p->r.fingerprint, "%s", fingerprint);
    return rc;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum err replay_run(const struct replay_options *o, struct replay_result *out, struct error *e)
{
    AUTO(replay) struct replay p = {.o = o, .s = SERVER_INIT, .turns = json_array()};
    uint32_t n = o->trace->n_sessions;
    if (o->socket && o->n_kills)
        return err_set(e, ERR_INVAL, "only a daemon of our own is killed");
    if (o->max_sessions && o->max_sessions < n)
        n = o->max_sessions;
    for (uint32_t i = 0; i < n; i++)
        p.n_total += rounds_of(&p, &o->trace->sessions[i]);
    if (!p.n_total)
        return err_set(e, ERR_INVAL, "the trace has no rounds");
    p.ttft = calloc(p.n_total, sizeof *p.ttft);
    if (!p.ttft || !p.turns)
        return err_set(e, ERR_NOMEM, "no memory for a replay");
    pyrandom_init(&p.random, o->seed);
    snprintf(p.run, sizeof p.run, "%llx",
             (unsigned long long)clock_wall_ms(clock_real()) & 0xffffffffff);
    enum err rc = begin(&p, e);
    if (!rc)
        rc = note_model(&p, e);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = run_session(&p, &o->trace->sessions[i], e);
    if (!rc && p.parking[0])
        rc = ask_patiently(p.s.c, "session/delete", p.parking, e);
    if (rc)
        return rc;
    if (p.n_ttft) {
        qsort(p.ttft, p.n_ttft, sizeof *p.ttft, compare);
        p.r.ttft_p50_ms = p.ttft[(p.n_ttft - 1) / 2];
        p.r.ttft_p90_ms = p.ttft[(p.n_ttft - 1) * 9 / 10];
    }
    *out = p.r;
    return OK;
}

json_t *replay_json(const struct replay_result *r)
{
    json_t *j = json_pack("{s:f, s:f, s:f, s:f}", "hit_rate", replay_hit_rate(r),
                          "amplification", replay_amplification(r), "ttft_p50_ms",
                          r->ttft_p50_ms, "ttft_p90_ms", r->ttft_p90_ms);
    const struct {
        const char *name;
        uint64_t value;
    } figures[] = {{"rounds", r->n_rounds},       {"later", r->n_later},
                   {"suspended", r->n_suspended}, {"hits", r->n_hits},
                   {"prompt_tokens", r->prompt},  {"resident", r->resident},
                   {"restored", r->restored},     {"recomputed", r->recomputed},
                   {"relost", r->relost},         {"prefilled", r->prefilled},
                   {"decoded", r->decoded},       {"replayed", r->replayed},
                   {"bytes_read", r->bytes_read}, {"kills", r->n_kills},
                   {"struck", r->n_struck},       {"acknowledged", r->n_acknowledged},
                   {"lost", r->n_lost},           {"verified", r->n_verified},
                   {"unequal", r->n_unequal}};
    json_object_set_new(j, "fingerprint", json_string(r->fingerprint));
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(j, figures[i].name, json_integer((json_int_t)figures[i].value));
    return j;
}
