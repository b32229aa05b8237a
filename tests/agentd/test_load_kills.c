/* A daemon under load from several clients at once, killed again and again: prompts with tool
 * calls, forks, exports, deletions and gc, under a quota that evicts all the time. One store
 * lives through all of it. After each kill the next daemon is held to what was acknowledged
 * before: every event that any client saw is there with the same seq and content, every receipt
 * is given again, sessions that were deleted stay away, exported files are as they were. At
 * last every session is computed again and compared (session/verify).
 *
 * 10 kills in make check, 1,000 with AGENTD_SLOW=1. */
#include "tests/support/test.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "base/hash.h"
#include "sessions/store.h"
#include "tests/support/daemon.h"

#define N_WORKERS 3
#define N_SESSIONS 4  /* of one worker */
#define MAX_PROMPTS 6 /* of one session, before it is deleted */
#define QUOTA "2M"    /* a fifth of what the sessions have */
#define PATIENCE_MS 20000

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\",\"token_ms\":0}\n"
#define CALL(command)                                                                          \
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke name=\\\"run\\\">\\n" \
    "<｜DSML｜ parameter name=\\\"command\\\" string=\\\"true\\\">" command                    \
    "</｜DSML｜ parameter>\\n</｜DSML｜ invoke>\\n</｜DSML｜ calls>" EOS                       \
    "\",\"prefill_ms\":3}\n"
#define LONG                                                                                   \
    "and so on, at some length, because the state of a session that says nothing takes no "    \
    "room, and room is what this is about: so it says it all once more, and then again"
/* One prompt: a call, then an answer. */
static const char round_of_script[] = CALL("echo x") SAY(LONG " " LONG);

/* What one client knows of a session. */
struct known {
    char name[24], id[27]; /* "": asked for, no answer yet */
    json_t *events;        /* event with seq n at n - 1 */
    json_int_t n_seen;     /* in this life of the daemon */
    json_t *receipts;      /* by message id */
    char message[16];      /* sent last; no receipt: sent again */
    int n_prompts;
    json_int_t fork_seq; /* of a tool result */
    bool deleting;       /* asked for, no answer yet */
};

enum op { OP_NEW, OP_PROMPT, OP_WAIT, OP_FORK, OP_EXPORT, OP_DELETE, OP_GC, OP_CHECK, N_OPS };
static const char *const op_names[N_OPS] = {"new",    "prompt", "wait", "fork",
                                            "export", "delete", "gc",   "check"};

struct worker {
    const struct daemon_fixture *d;
    int number;
    uint64_t seed;
    unsigned n_names, n_messages;
    struct known *s[N_SESSIONS]; /* NULL: free */
    char bundle[128];
    bool has_bundle, bundle_pending;
    uint8_t bundle_hash[HASH_BYTES];
    struct client *c;
    enum op op; /* the last one begun */
    uint64_t n_done[N_OPS], n_cut[N_OPS], n_relost;
    bool stop; /* set from outside; guarded by lock */
    pthread_mutex_t lock;
    char wrong[300]; /* "": nothing */
};

/* SplitMix64. */
static uint64_t draw(uint64_t *seed, uint64_t below)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static void found_wrong(struct worker *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void found_wrong(struct worker *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!w->wrong[0])
        vsnprintf(w->wrong, sizeof w->wrong, fmt, ap);
    va_end(ap);
}

/* ---- calls ------------------------------------------------------------------------------- */

static void keep_event(void *user, const char *method, const json_t *params)
{
    struct worker *w = user;
    if (strcmp(method, "session/event") != 0)
        return;
    for (size_t i = 0; i < N_SESSIONS; i++) {
        struct known *k = w->s[i];
        if (!k || strcmp(k->id, text_of(params, "sessionId")) != 0)
            continue;
        json_int_t seq = int_of(params, "seq");
        const json_t *item = json_object_get(params, "item");
        if (seq != k->n_seen + 1)
            found_wrong(w, "%s: event %lld behind %lld", k->name, (long long)seq,
                        (long long)k->n_seen);
        k->n_seen = seq;
        if ((size_t)seq > json_array_size(k->events))
            json_array_append_new(k->events, json_deep_copy(params));
        else if (!json_equal(json_array_get(k->events, (size_t)seq - 1), params))
            found_wrong(w, "%s: event %lld has changed", k->name, (long long)seq);
        if (strcmp(text_of(item, "kind"), "tool_result") == 0)
            k->fork_seq = seq;
    }
}

/* False: the daemon is gone (or, noted as wrong, it refuses). Takes params. A session whose
 * state is just being saved is busy: asked again. */
static bool call(struct worker *w, enum op op, const char *method, json_t *params,
                 json_t **result)
{
    const struct timespec pause = {0, 2000000};
    json_auto_t *kept = params;
    struct error e;
    w->op = op;
    for (int i = 0; i < 2000; i++) {
        if (client_call(w->c, method, json_incref(params), result, &e) == OK) {
            w->n_done[op]++;
            return true;
        }
        if (e.code != ERR_BUSY)
            break;
        nanosleep(&pause, NULL);
    }
    if (e.code != ERR_CLOSED && e.code != ERR_IO)
        found_wrong(w, "%s: %s", method, e.msg);
    else
        w->n_cut[op]++;
    return false;
}

static void forget(struct worker *w, size_t i)
{
    json_decref(w->s[i]->events);
    json_decref(w->s[i]->receipts);
    free(w->s[i]);
    w->s[i] = NULL;
}

static struct known *add(struct worker *w, size_t i)
{
    struct known *k = calloc(1, sizeof *k);
    if (!k)
        abort();
    snprintf(k->name, sizeof k->name, "w%d-%06u", w->number, w->n_names++);
    k->events = json_array();
    k->receipts = json_object();
    w->s[i] = k;
    return k;
}

static bool attach(struct worker *w, enum op op, struct known *k)
{
    k->n_seen = 0;
    return call(w, op, "session/attach", json_pack("{s:s, s:i}", "id", k->id, "fromSeq", 0),
                NULL);
}

/* Sends the message that has no receipt yet, or one again that has. */
static bool send_message(struct worker *w, struct known *k)
{
    json_auto_t *r = NULL;
    if (!call(w, OP_PROMPT, "session/prompt",
              json_pack("{s:s, s:s, s:[{s:s, s:s}]}", "id", k->id, "clientMessageId",
                        k->message, "content", "type", "text", "text", "please go on"),
              &r))
        return false;
    const json_t *before = json_object_get(k->receipts, k->message);
    /* How long the queue was is said the first time only. */
    if (before && (strcmp(text_of(before, "turnId"), text_of(r, "turnId")) != 0 ||
                   int_of(before, "seq") != int_of(r, "seq")))
        found_wrong(w, "%s: another receipt for %s", k->name, k->message);
    json_object_set(k->receipts, k->message, r);
    return true;
}

static bool wait_idle(struct worker *w, struct known *k)
{
    json_auto_t *a = NULL;
    if (!call(w, OP_WAIT, "session/wait",
              json_pack("{s:s, s:i}", "id", k->id, "timeoutMs", PATIENCE_MS - 2000), &a))
        return false;
    if (strcmp(text_of(a, "state"), "idle") != 0)
        found_wrong(w, "%s: state %s after a wait", k->name, text_of(a, "state"));
    w->n_relost += int_of(json_object_get(a, "ledger"), "relost") > 0;
    return true;
}

/* ---- after a kill ------------------------------------------------------------------------ */

/* The session that a call without an answer may have made or removed. */
static bool settle(struct worker *w, size_t i)
{
    struct known *k = w->s[i];
    json_auto_t *info = NULL;
    struct error e;
    enum err rc = client_call(w->c, "session/get",
                              json_pack("{s:s}", "id", k->id[0] ? k->id : k->name), &info, &e);
    if (rc && client_failure(w->c)->code == 0)
        return false;
    if (rc && k->id[0] && !k->deleting)
        found_wrong(w, "%s was acknowledged and is gone: %s", k->name, e.msg);
    if (rc) {
        forget(w, i);
        return true;
    }
    if (json_is_true(json_object_get(info, "damaged")))
        found_wrong(w, "%s is damaged", k->name);
    snprintf(k->id, sizeof k->id, "%s", text_of(info, "id"));
    k->deleting = false;
    return true;
}

static bool hash_file(const char *path, uint8_t out[HASH_BYTES])
{
    AUTO(buf) struct buf b = BUF_INIT(1 << 26);
    if (fs_read_file(path, &b, NULL))
        return false;
    hash_bytes(NULL, b.data, b.len, out);
    return true;
}

static bool check_all(struct worker *w)
{
    uint8_t hash[HASH_BYTES];
    if (w->has_bundle && !w->bundle_pending &&
        (!hash_file(w->bundle, hash) || memcmp(hash, w->bundle_hash, sizeof hash) != 0))
        found_wrong(w, "%s is not as it was exported", w->bundle);
    for (size_t i = 0; i < N_SESSIONS; i++) {
        if (w->s[i] && !settle(w, i))
            return false;
        struct known *k = w->s[i];
        if (!k)
            continue;
        json_int_t want = (json_int_t)json_array_size(k->events);
        if (!attach(w, OP_CHECK, k))
            return false;
        while (k->n_seen < want) {
            struct error e;
            enum err rc = client_poll(w->c, PATIENCE_MS, &e);
            if (rc == ERR_TIMEOUT)
                found_wrong(w, "%s: %lld events, %lld were seen", k->name, (long long)k->n_seen,
                            (long long)want);
            if (rc)
                return false;
        }
        if (k->message[0] && !send_message(w, k))
            return false;
    }
    return true;
}

/* ---- the load ---------------------------------------------------------------------------- */

static bool op_new(struct worker *w, size_t i)
{
    json_auto_t *r = NULL;
    struct known *k = add(w, i);
    if (!call(w, OP_NEW, "session/new",
              json_pack("{s:s, s:s, s:s, s:[s]}", "cwd", w->d->work, "name", k->name, "approve",
                        "auto", "tools", "run"),
              &r))
        return false;
    snprintf(k->id, sizeof k->id, "%s", text_of(r, "id"));
    return attach(w, OP_NEW, k);
}

static bool op_prompt(struct worker *w, struct known *k, bool wait)
{
    /* One turn at a time: the one before has to end. */
    if (!wait_idle(w, k))
        return false;
    snprintf(k->message, sizeof k->message, "m%u", w->n_messages++);
    k->n_prompts++;
    return send_message(w, k) && (!wait || wait_idle(w, k));
}

static bool op_fork(struct worker *w, const struct known *parent, size_t i)
{
    json_auto_t *r = NULL;
    json_int_t seq = parent->fork_seq;
    struct known *k = add(w, i);
    if (!call(w, OP_FORK, "session/fork",
              json_pack("{s:s, s:I, s:s}", "id", parent->id, "atSeq", seq, "name", k->name),
              &r))
        return false;
    snprintf(k->id, sizeof k->id, "%s", text_of(r, "id"));
    k->n_prompts = parent->n_prompts;
    return attach(w, OP_FORK, k);
}

static bool op_export(struct worker *w, const struct known *k)
{
    w->bundle_pending = true;
    if (!call(w, OP_EXPORT, "session/export",
              json_pack("{s:s, s:s}", "id", k->id, "path", w->bundle), NULL))
        return false;
    w->has_bundle = hash_file(w->bundle, w->bundle_hash);
    w->bundle_pending = false;
    if (!w->has_bundle)
        found_wrong(w, "%s was exported and is not there", w->bundle);
    return true;
}

static bool op_delete(struct worker *w, size_t i)
{
    struct known *k = w->s[i];
    if (!wait_idle(w, k))
        return false;
    k->deleting = true;
    if (!call(w, OP_DELETE, "session/delete", json_pack("{s:s}", "id", k->id), NULL))
        return false;
    forget(w, i);
    return true;
}

static bool one_op(struct worker *w)
{
    size_t i = draw(&w->seed, N_SESSIONS), free_slot = 0;
    while (free_slot < N_SESSIONS && w->s[free_slot])
        free_slot++;
    struct known *k = w->s[i];
    if (!k)
        return op_new(w, i);
    if (k->n_prompts >= MAX_PROMPTS)
        return op_delete(w, i);
    switch (draw(&w->seed, 12)) {
    case 0:
    case 1:
        return op_export(w, k);
    case 2:
        return call(w, OP_GC, "kv/gc", json_object(), NULL);
    case 3:
    case 4:
    case 5:
        if (free_slot == N_SESSIONS)
            return op_delete(w, i);
        return k->fork_seq ? op_fork(w, k, free_slot) : op_prompt(w, k, true);
    case 6:
    case 7:
    case 8:
        return op_prompt(w, k, false);
    default:
        return op_prompt(w, k, true);
    }
}

static bool is_stopped(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    bool stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return stop;
}

/* As long as the daemon lives, or until it is stopped. */
static void *work(void *arg)
{
    struct worker *w = arg;
    const struct client_options o = {.socket_path = w->d->socket,
                                     .notify = keep_event,
                                     .user = w,
                                     .timeout_ms = PATIENCE_MS};
    w->op = OP_CHECK;
    if (client_open(&w->c, &o, NULL))
        return NULL;
    bool up = check_all(w);
    while (up && !w->wrong[0] && !is_stopped(w))
        up = one_op(w);
    client_free(w->c);
    w->c = NULL;
    return NULL;
}

/* ---- kills ------------------------------------------------------------------------------- */

/* The store of the dead daemon: nothing in it looks like damage. */
static void check_store(const struct daemon_fixture *d)
{
    char db[200], packs[200], state[200];
    struct store *st = NULL;
    struct error e;
    struct store_counters c;
    enum err rc = ERR_BUSY;
    snprintf(db, sizeof db, "%s/agentd.db", d->store);
    snprintf(packs, sizeof packs, "%s/packs", d->store);
    snprintf(state, sizeof state, "%s/state", d->store);
    const struct store_options o = {
        .db_path = db, .packs_dir = packs, .state_dir = state, .no_direct_io = true};
    /* A child of the dead daemon that is not at its exec yet holds the lock a moment longer. */
    for (int i = 0; i < 1000 && rc == ERR_BUSY; i++) {
        const struct timespec t = {0, 2000000};
        if (i)
            nanosleep(&t, NULL);
        rc = store_open(&st, &o, &e);
    }
    assert_ok(rc, &e);
    store_count(st, &c);
    store_close(st);
    assert_int_equal(c.sessions_damaged + c.rows_damaged + c.extents_damaged, 0);
    assert_int_equal(c.rows_dropped + c.commits_lost + c.tape_commits_lost + c.chunks_rebuilt,
                     0);
}

static void one_life(struct daemon_fixture *d, struct worker *w, uint64_t us, bool kill_it)
{
    pthread_t threads[N_WORKERS];
    const struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    for (int i = 0; i < N_WORKERS; i++) {
        w[i].stop = false;
        assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
    }
    nanosleep(&t, NULL);
    if (kill_it)
        daemon_kill(d);
    for (int i = 0; i < N_WORKERS; i++) {
        pthread_mutex_lock(&w[i].lock);
        w[i].stop = true;
        pthread_mutex_unlock(&w[i].lock);
        pthread_join(threads[i], NULL);
        if (w[i].wrong[0]) {
            daemon_show_log(d);
            fail_msg("client %d, at %s: %s", i, op_names[w[i].op], w[i].wrong);
        }
    }
}

/* Every row of every session, computed again. */
static size_t verify_all(const struct daemon_fixture *d, struct worker *w)
{
    size_t n = 0;
    struct client *c = daemon_connect(d, NULL, NULL);
    for (int i = 0; i < N_WORKERS; i++)
        for (size_t k = 0; k < N_SESSIONS; k++) {
            if (!w[i].s[k] || !w[i].s[k]->id[0])
                continue;
            json_decref(daemon_wait(c, w[i].s[k]->id));
            json_auto_t *v =
                daemon_call(c, "session/verify", json_pack("{s:s}", "id", w[i].s[k]->id));
            /* A session without a prompt has nothing to compare. */
            bool empty = json_array_size(w[i].s[k]->events) == 0;
            if (!empty && !json_is_true(json_object_get(v, "equal")))
                fail_msg("%s: %s", w[i].s[k]->name, json_dumps(v, 0));
            n += !empty;
        }
    client_free(c);
    return n;
}

static void killed_under_load(void **state)
{
    (void)state;
    const int n_kills = getenv("AGENTD_SLOW") ? 1000 : 10;
    struct daemon_fixture d;
    static struct worker w[N_WORKERS];
    uint64_t seed = 1, n_done[N_OPS] = {0}, n_cut[N_OPS] = {0}, n_relost = 0;
    AUTO(buf) struct buf script = BUF_INIT(1 << 16);
    for (int i = 0; i < MAX_PROMPTS + 1; i++)
        assert_int_equal(buf_add_str(&script, round_of_script, NULL), OK);
    daemon_make(&d, buf_str(&script));
    d.extra[0] = "--kv-quota";
    d.extra[1] = QUOTA;
    for (int i = 0; i < N_WORKERS; i++) {
        w[i] = (struct worker){.d = &d, .number = i, .seed = (uint64_t)i};
        pthread_mutex_init(&w[i].lock, NULL);
        snprintf(w[i].bundle, sizeof w[i].bundle, "%s/w%d.bundle", d.dir, i);
    }
    for (int i = 0; i < n_kills; i++) {
        daemon_start(&d, NULL);
        one_life(&d, w, 1000 + draw(&seed, 300000), true);
        if (i % 5 == 0)
            check_store(&d);
    }
    daemon_start(&d, NULL);
    one_life(&d, w, 500000, false);
    size_t n_verified = verify_all(&d, w);
    assert_true(n_verified > 0);
    fprintf(stderr, "%d kills; calls answered (cut):", n_kills);
    for (int i = 0; i < N_WORKERS; i++) {
        for (int op = 0; op < N_OPS; op++) {
            n_done[op] += w[i].n_done[op];
            n_cut[op] += w[i].n_cut[op];
        }
        n_relost += w[i].n_relost;
        for (size_t k = 0; k < N_SESSIONS; k++)
            if (w[i].s[k])
                forget(&w[i], k);
    }
    for (int op = 0; op < N_OPS; op++)
        fprintf(stderr, " %s %llu (%llu)", op_names[op], (unsigned long long)n_done[op],
                (unsigned long long)n_cut[op]);
    fprintf(stderr, "; %llu turns on evicted state; %zu sessions verified\n",
            (unsigned long long)n_relost, n_verified);
    /* The kills met what they are for. */
    if (n_kills >= 1000) {
        for (int op = OP_NEW; op < OP_CHECK; op++)
            assert_true(n_cut[op] > 0);
        assert_true(n_relost > 20);
    }
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_under_load),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
