/* The daemon is killed from outside, at random moments of a tool loop with a fork and of
 * prefill and generation. What the store holds at that moment says what the restart may cost
 * and what it must keep: see check_cost and check_calls. */
#include "tests/support/test.h"

#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "sessions/session.h"
#include "sessions/store.h"
#include "sessions/tape.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\",\"token_ms\":1}\n"
#define RUN(command)                                                                           \
    "<｜DSML｜ invoke name=\\\"run\\\">\\n<｜DSML｜ parameter name=\\\"command\\\" "       \
    "string=\\\"true\\\">" command "</｜DSML｜ parameter>\\n</｜DSML｜ invoke>\\n"
#define CALL(invokes)                                                                          \
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n" invokes "</｜DSML｜ calls>" EOS          \
    "\",\"prefill_ms\":15}\n"
#define A_TINY "tests/golden/a_tiny/model"

/* Three steps, four calls; each body leaves one line in its file. */
static const char script[] = CALL(RUN("echo x >> a") RUN("echo x >> b"))
    CALL(RUN("echo x >> c; sleep 0.05")) CALL(RUN("echo x >> d")) SAY("done") SAY("more");
#define N_FILES 4
#define MANY 100 /* kills */

static int n_kills(int fast, int slow)
{
    return getenv("AGENTD_SLOW") ? slow : fast;
}

static uint64_t now_ms(void)
{
    return clock_mono_ns(clock_real()) / 1000000;
}

/* SplitMix64: moments that look random and are the same in every run of the test. */
static uint64_t draw(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A child that sends SIGKILL to the daemon after `us` microseconds. */
static pid_t kill_later(pid_t victim, uint64_t us)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
        nanosleep(&t, NULL);
        kill(victim, SIGKILL);
        _exit(0);
    }
    assert_true(pid > 0);
    return pid;
}

/* ---- the store of a dead daemon --------------------------------------------------- */

/* A session at the moment of the kill. */
struct left {
    char id[27]; /* "": it was not there yet */
    uint64_t tokens, saved;
    bool unfinished; /* its turn goes on by itself */
};

static bool is_there(void *user, const char *session, const struct tape_turn *t)
{
    (void)session;
    (void)t;
    *(bool *)user = true;
    return true;
}

/* The state is never older than the end of the step before the last one on the tape. */
static void check_age(const struct tape *t, uint64_t forked_at, uint64_t saved)
{
    uint64_t ends[2] = {0, 0}; /* of the session's own steps: the last, the one before */
    for (size_t i = 0; i < t->view.n_segments; i++) {
        const struct tape_segment *s = &t->tape_segments[i];
        if (s->seg.kind != SEGMENT_GENERATED || s->open || s->seg.start < forked_at)
            continue;
        ends[1] = ends[0];
        ends[0] = s->seg.start + s->seg.len;
    }
    if (saved < ends[1])
        fail_msg("state of %llu tokens; the last two steps end at %llu and %llu",
                 (unsigned long long)saved, (unsigned long long)ends[1],
                 (unsigned long long)ends[0]);
}

static void look(struct store *st, const char *name, const char *known_id, struct left *out)
{
    struct error e;
    AUTO(session_info) struct session_info s = {0};
    AUTO(tape) struct tape t = {0};
    *out = (struct left){.id = ""};
    enum err rc = session_find(st, name, &s, &e);
    if (rc == ERR_NOTFOUND && !known_id[0])
        return;
    assert_ok(rc, &e); /* acknowledged, so it is there */
    assert_ok(tape_load(st, s.id, &t, &e), &e);
    assert_false(t.damaged);
    snprintf(out->id, sizeof out->id, "%s", s.id);
    out->tokens = t.view.n_ids;
    out->saved = s.state_position;
    assert_int_equal(s.n_tokens, t.view.n_ids);
    assert_true(out->saved <= out->tokens);
    assert_ok(tape_unfinished(st, s.id, is_there, &out->unfinished, &e), &e);
    check_age(&t, s.forked_at, out->saved);
}

/* ---- a client that goes as far as the daemon lives -------------------------------- */

struct told {
    char id[27], fork_id[27]; /* "" before the answer */
    json_t *receipt, *fork_receipt;
    json_t *events; /* of the first session, as they came */
    json_int_t fork_seq;
    bool done; /* both waits were answered */
};

static void keep_events(void *user, const char *method, const json_t *params)
{
    struct told *t = user;
    const json_t *item = json_object_get(params, "item");
    if (strcmp(method, "session/event") != 0 || strcmp(text_of(params, "sessionId"), t->id))
        return;
    json_array_append_new(t->events, json_deep_copy(params));
    if (!t->fork_seq && !strcmp(text_of(item, "kind"), "tool_result"))
        t->fork_seq = int_of(params, "seq");
}

/* What was made by this call, or by one whose answer was lost. */
static bool make(struct client *c, const char *method, json_t *params, const char *name,
                 char id[27])
{
    json_auto_t *r = NULL, *again = NULL;
    if (client_call(c, method, params, &r, NULL) != OK &&
        (client_failure(c)->code == 0 ||
         client_call(c, "session/get", json_pack("{s:s}", "id", name), &again, NULL) != OK))
        return false;
    snprintf(id, 27, "%s", text_of(r ? r : again, "id"));
    return true;
}

static bool prompt(struct client *c, const char *id, const char *message, json_t **receipt)
{
    json_auto_t *r = NULL;
    if (client_call(c, "session/prompt",
                    json_pack("{s:s, s:s, s:[{s:s, s:s}]}", "id", id, "clientMessageId",
                              message, "content", "type", "text", "text", "go"),
                    &r, NULL) != OK)
        return false;
    if (*receipt && !json_equal(*receipt, r))
        fail_msg("another receipt for %s: %s", message, json_dumps(r, 0));
    json_decref(*receipt);
    *receipt = json_incref(r);
    return true;
}

static bool waited(struct client *c, const char *id)
{
    return client_call(c, "session/wait", json_pack("{s:s}", "id", id), NULL, NULL) == OK;
}

static void drive(const struct daemon_fixture *d, struct told *t)
{
    const struct client_options o = {
        .socket_path = d->socket, .notify = keep_events, .user = t, .timeout_ms = 20000};
    struct client *c = NULL;
    if (client_open(&c, &o, NULL) != OK)
        return;
    json_array_clear(t->events);
    bool up = t->id[0] || make(c, "session/new",
                               json_pack("{s:s, s:s, s:s, s:[s]}", "cwd", d->work, "name",
                                         "victim", "approve", "auto", "tools", "run"),
                               "victim", t->id);
    up = up && prompt(c, t->id, "m1", &t->receipt) &&
         client_call(c, "session/attach", json_pack("{s:s, s:i}", "id", t->id, "fromSeq", 0),
                     NULL, NULL) == OK;
    while (up && !t->fork_seq) {
        enum err rc = client_poll(c, 20000, NULL);
        up = rc == OK;
        assert_int_not_equal(rc, ERR_TIMEOUT);
    }
    up = up && (t->fork_id[0] || make(c, "session/fork",
                                      json_pack("{s:s, s:I, s:s}", "id", t->id, "atSeq",
                                                t->fork_seq, "name", "branch"),
                                      "branch", t->fork_id));
    t->done = up && prompt(c, t->fork_id, "b1", &t->fork_receipt) && waited(c, t->id) &&
              waited(c, t->fork_id);
    client_free(c);
}

/* ---- what must hold afterwards ---------------------------------------------------- */

struct calls {
    int done[N_FILES], interrupted[N_FILES];
};

/* All events of a session, from the beginning: seq without gaps, one outcome per call. */
static void check_calls(const struct daemon_fixture *d, const char *id, bool is_fork,
                        struct calls *k)
{
    struct told t = {.events = json_array()};
    json_auto_t *seen = json_object(), *called = json_object();
    size_t i;
    json_t *ev;
    snprintf(t.id, sizeof t.id, "%s", id);
    struct client *c = daemon_connect(d, keep_events, &t);
    json_auto_t *info = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    json_int_t last = int_of(info, "lastSeq");
    json_decref(
        daemon_call(c, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
    while (json_array_size(t.events) < (size_t)last)
        (void)!client_poll(c, 100, NULL);
    client_free(c);
    json_array_foreach(t.events, i, ev) {
        const json_t *item = json_object_get(ev, "item");
        const char *call = text_of(item, "callId"), *status = text_of(item, "status");
        assert_int_equal(int_of(ev, "seq"), i + 1);
        if (!strcmp(text_of(item, "kind"), "tool_call"))
            json_object_set_new(called, text_of(item, "id"),
                                json_string(text_of(item, "arguments")));
        if (strcmp(text_of(item, "kind"), "tool_result") != 0)
            continue;
        assert_null(json_object_get(seen, call));
        json_object_set_new(seen, call, json_true());
        const char *arguments = json_string_value(json_object_get(called, call));
        const char *file = arguments ? strstr(arguments, ">> ") : NULL;
        assert_non_null(file);
        if (is_fork && int_of(ev, "seq") <= t.fork_seq)
            continue; /* its parent's */
        k->done[file[3] - 'a'] += !strcmp(status, "done");
        k->interrupted[file[3] - 'a'] += !strcmp(status, "interrupted");
        assert_true(!strcmp(status, "done") || !strcmp(status, "interrupted"));
    }
    /* A fork may leave between a call and its result: that is the only call without one. */
    assert_in_range(json_object_size(called) - json_object_size(seen), 0, is_fork ? 1 : 0);
    json_decref(t.events);
}

/* A body ran once for each "done", and at most once for each "interrupted". */
static void check_files(const struct daemon_fixture *d, const struct calls *k)
{
    for (int i = 0; i < N_FILES; i++) {
        char path[200], line[64];
        int n = 0;
        snprintf(path, sizeof path, "%s/%c", d->work, 'a' + i);
        FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f))
            n++;
        if (f)
            fclose(f);
        assert_in_range(n, k->done[i], k->done[i] + k->interrupted[i]);
    }
}

struct tally {
    int kills, struck; /* struck: before the client had both answers */
    int forks, behind; /* with a fork; where the tape was longer than the state */
    int more;          /* sessions with more state than the last commit */
};

/* The first answer that a session gives after the kill, with what that cost. */
static void check_cost(struct client *c, const struct left *l, const char *id, struct tally *n)
{
    json_t *receipt = NULL;
    if (!l->unfinished)
        assert_true(prompt(c, id, "after", &receipt));
    json_decref(receipt);
    json_auto_t *a = daemon_wait(c, id);
    const json_t *w = json_object_get(a, "ledger");
    if (strcmp(text_of(a, "reason"), "end") != 0)
        fail_msg("%s", json_dumps(a, 0));
    assert_string_equal(text_of(a, "text"), l->unfinished ? "done" : "more");
    assert_int_equal(int_of(w, "prompt_tokens"),
                     int_of(w, "resident") + int_of(w, "restored") + int_of(w, "recomputed") +
                         int_of(w, "relost") + int_of(w, "prefilled"));
    json_int_t restored = int_of(w, "restored"), recomputed = int_of(w, "recomputed");
    /* Extents of a state commit that was cut are whole or absent; whole blocks may serve. */
    bool more = restored > (json_int_t)l->saved;
    n->more += more;
    if (int_of(w, "relost") != 0 || restored < (json_int_t)l->saved ||
        recomputed != (json_int_t)l->tokens - (more ? restored : (json_int_t)l->saved))
        fail_msg("tape %llu, state %llu: %s", (unsigned long long)l->tokens,
                 (unsigned long long)l->saved, json_dumps(a, 0));
}

static void check_prefix(const json_t *before, const json_t *after)
{
    size_t i;
    json_t *ev;
    json_array_foreach(before, i, ev)
        if (!json_equal(ev, json_array_get(after, i)))
            fail_msg("event %zu was %s, is %s", i, json_dumps(ev, 0),
                     json_dumps(json_array_get(after, i), 0));
}

/* ---- a tool loop ------------------------------------------------------------------ */

/* One life that ends after `us` (0: by itself; *took_us is how long it was), and the next. */
static void tool_loop(uint64_t us, uint64_t *took_us, struct tally *n)
{
    struct daemon_fixture d;
    struct told t = {.events = json_array()};
    struct left first, fork;
    struct calls k = {0};
    daemon_make(&d, script);
    daemon_start(&d, NULL);
    uint64_t t0 = now_ms();
    pid_t killer = us ? kill_later(d.pid, us) : 0;
    drive(&d, &t);
    if (took_us)
        *took_us = (now_ms() - t0) * 1000;
    n->kills++;
    n->struck += !t.done;
    if (!killer)
        kill(d.pid, SIGKILL);
    assert_int_equal(daemon_wait_death(&d), SIGKILL);
    if (killer)
        waitpid(killer, NULL, 0);
    json_auto_t *before = json_copy(t.events);
    struct store *st = daemon_open_store(&d);
    look(st, "victim", t.id, &first);
    look(st, "branch", t.fork_id, &fork);
    store_close(st);
    n->forks += fork.id[0] != '\0';
    n->behind += first.tokens > first.saved || fork.tokens > fork.saved;
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    if (first.tokens)
        check_cost(c, &first, first.id, n);
    if (fork.id[0] && fork.tokens && (fork.unfinished || t.fork_receipt))
        check_cost(c, &fork, fork.id, n);
    drive(&d, &t);
    assert_true(t.done);
    check_prefix(before, t.events);
    check_calls(&d, t.id, false, &k);
    check_calls(&d, t.fork_id, true, &k);
    check_files(&d, &k);
    client_free(c);
    json_decref(t.receipt);
    json_decref(t.fork_receipt);
    json_decref(t.events);
    daemon_remove(&d);
}

static void test_sudocode_550_kimi_code_768_ds4_1053_tool_loop_with_a_fork(void **state)
{
    (void)state;
    const int n = n_kills(5, 200);
    uint64_t seed = 1, took_us = 0;
    struct tally k = {0};
    tool_loop(0, &took_us, &k);
    assert_int_equal(k.struck, 0);
    k = (struct tally){0};
    for (int i = 0; i < n; i++)
        tool_loop(1 + draw(&seed) % took_us, NULL, &k);
    fprintf(
        stderr,
        "tool loop: %d kills within %llu ms, %d before its end, %d with a fork, %d with more "
        "tape than state; %d sessions had more state than their last commit\n",
        k.kills, (unsigned long long)took_us / 1000, k.struck, k.forks, k.behind, k.more);
    /* A few moments may all be late ones; many must have met what they are for. */
    if (n >= MANY)
        assert_true(k.struck > n / 3 && k.forks > n / 3 && k.behind > n / 10 &&
                    k.more <= n / 10);
}

/* ---- prefill and generation ------------------------------------------------------- */

/* What one prompt on the a_tiny checkpoint leaves, at temperature 1. */
struct spoken {
    uint32_t *ids;
    uint64_t n, prompt; /* tokens of the tape, of its first segment */
    struct segment segments[8];
    size_t n_segments;
    char *text;
    json_int_t unproved; /* segments without a digest */
};

static void spoken_fini(struct spoken *s)
{
    free(s->ids);
    free(s->text);
}

static void read_tape(const struct daemon_fixture *d, struct spoken *out, uint64_t *at)
{
    struct store *st = daemon_open_store(d);
    struct error e;
    AUTO(tape) struct tape t = {0};
    AUTO(session_info) struct session_info s = {0};
    assert_ok(session_find(st, "speaker", &s, &e), &e);
    assert_ok(tape_load(st, s.id, &t, &e), &e);
    store_close(st);
    *at = t.view.n_ids;
    if (!out)
        return;
    out->n = t.view.n_ids;
    out->ids = malloc((size_t)out->n * sizeof *out->ids + 1);
    memcpy(out->ids, t.ids, (size_t)out->n * sizeof *out->ids);
    out->n_segments = t.view.n_segments;
    assert_in_range(out->n_segments, 1, 8);
    memcpy(out->segments, t.segments, out->n_segments * sizeof *t.segments);
    out->prompt = t.segments[0].len;
}

#define SENTENCES 16
static const char sentence[] =
    "The quick brown fox jumps over the lazy dog, again and again, until "
    "the evening comes and the dog gets up and goes home. ";

/* Prompts, and is killed after us (0: not). *at_kill: tape length then. */
static void speak(uint64_t us, struct spoken *out, uint64_t *took_us, uint64_t *at_kill)
{
    struct daemon_fixture d;
    char id[27];
    uint64_t end;
    *out = (struct spoken){0};
    daemon_make(&d, SAY("x"));
    d.model = A_TINY;
    d.extra[0] = "--save-every";
    d.extra[1] = "64";
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c,
                   "{\"tools\":[],\"maxTokens\":150,\"seed\":11,\"temperature\":1,"
                   "\"name\":\"speaker\"}",
                   id);
    uint64_t t0 = now_ms();
    char prompt[SENTENCES * sizeof sentence];
    for (size_t i = 0, at = 0; i < SENTENCES; i++, at += sizeof sentence - 1)
        snprintf(prompt + at, sizeof prompt - at, "%s", sentence);
    daemon_prompt(c, id, prompt);
    if (us) {
        waitpid(kill_later(d.pid, us), NULL, 0);
        client_free(c);
        assert_int_equal(daemon_wait_death(&d), SIGKILL);
        read_tape(&d, NULL, at_kill);
        daemon_start(&d, NULL);
        c = daemon_connect(&d, NULL, NULL);
    }
    json_auto_t *a = daemon_wait(c, id);
    *took_us = (now_ms() - t0) * 1000;
    assert_string_equal(text_of(a, "state"), "idle");
    assert_int_equal(int_of(json_object_get(a, "ledger"), "relost"), 0);
    out->text = strdup(text_of(a, "text"));
    json_auto_t *v = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    if (!json_is_true(json_object_get(v, "equal")))
        fail_msg("verify: %s", json_dumps(v, 0));
    out->unproved = int_of(v, "segmentsWithoutDigest");
    client_free(c);
    daemon_kill(&d);
    read_tape(&d, out, &end);
    daemon_remove(&d);
}

static void test_opencode_37886_ds4_943_killed_runs_say_the_same(void **state)
{
    (void)state;
    const int n = n_kills(4, 100);
    uint64_t seed = 2, took_us = 0, took, at = 0;
    int in_prefill = 0, in_run = 0, unproved = 0;
    struct spoken whole, killed;
    speak(0, &whole, &took_us, &at);
    assert_int_equal(whole.unproved, 0);
    for (int i = 0; i < n; i++) {
        speak(1 + draw(&seed) % took_us, &killed, &took, &at);
        in_prefill += at == whole.prompt;
        in_run += at > whole.prompt && at < whole.n;
        assert_int_equal(killed.n, whole.n);
        assert_memory_equal(killed.ids, whole.ids, (size_t)whole.n * sizeof *whole.ids);
        assert_int_equal(killed.n_segments, whole.n_segments);
        assert_memory_equal(killed.segments, whole.segments,
                            whole.n_segments * sizeof *whole.segments);
        assert_string_equal(killed.text, whole.text);
        unproved += killed.unproved > 0;
        spoken_fini(&killed);
    }
    fprintf(
        stderr,
        "a_tiny: %d kills within %llu ms, %d with the prompt and no sampled id on the tape, "
        "%d in the run; %llu tokens each time; %d with a segment whose digest was lost\n",
        n, (unsigned long long)took_us / 1000, in_prefill, in_run, (unsigned long long)whole.n,
        unproved);
    /* Only where blocks of a state commit that was cut end inside a segment. */
    if (n >= MANY)
        assert_true(in_prefill > n / 10 && in_run > n / 10 && unproved <= n / 10);
    spoken_fini(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sudocode_550_kimi_code_768_ds4_1053_tool_loop_with_a_fork),
        cmocka_unit_test(test_opencode_37886_ds4_943_killed_runs_say_the_same),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
