/* 32 clients that all read 50 sessions, while turns run in all of them and sessions are deleted
 * and made anew: every durable event reaches every reader in order and without gaps; memory and
 * descriptors of the daemon stay flat. AGENTD_SLOW: ten minutes, and 2,000 readers that come
 * and go; otherwise some seconds, and 300. */
#include "tests/support/test.h"

#include <dirent.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"a thought</think>" text EOS "\"}\n"
#define N_CLIENTS 32
#define N_SESSIONS 50
#define N_TURNS 12 /* of a session, then it is deleted */
#define IDLE_MS 60000

static uint64_t now_ms(void)
{
    return clock_mono_ns(clock_real()) / 1000000;
}

static bool is_slow(void)
{
    return getenv("AGENTD_SLOW") != NULL;
}

/* ---- the daemon from outside ------------------------------------------------------ */

static long rss_kb(const struct daemon_fixture *d)
{
    char path[64], line[128];
    long kb = -1;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)d->pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (strncmp(line, "VmRSS:", 6) == 0)
            kb = strtol(line + 6, NULL, 10);
    fclose(f);
    assert_true(kb > 0);
    return kb;
}

static int n_descriptors(const struct daemon_fixture *d)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)d->pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* ---- the crowd -------------------------------------------------------------------- */

struct crowd;

struct reader {
    struct crowd *crowd;
    struct client *client;
    json_int_t seen[N_SESSIONS]; /* newest event */
    uint64_t n_events, n_gaps;   /* gaps: dropped deltas, which a slow reader may have */
};

struct slot {
    char id[27];
    int owner; /* the client that prompts */
    int n_turns;
    bool busy;
    uint64_t call; /* of its prompt */
};

struct crowd {
    struct daemon_fixture d;
    struct reader readers[N_CLIENTS];
    struct slot slots[N_SESSIONS];
    uint64_t n_turns, n_deleted;
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct reader *r = user;
    const char *id = text_of(params, "sessionId");

    r->n_gaps += !strcmp(method, "gap");
    if (strcmp(method, "session/event") != 0)
        return;
    for (int i = 0; i < N_SESSIONS; i++) {
        struct slot *s = &r->crowd->slots[i];
        if (strcmp(s->id, id) != 0)
            continue;
        json_int_t seq = json_integer_value(json_object_get(params, "seq"));
        if (seq != r->seen[i] + 1)
            fail_msg("client %d: event %lld of session %s comes behind %lld",
                     (int)(r - r->crowd->readers), (long long)seq, id, (long long)r->seen[i]);
        r->seen[i] = seq;
        r->n_events++;
        if (r == &r->crowd->readers[s->owner] && !strcmp(text_of(params, "state"), "idle")) {
            assert_string_equal(text_of(params, "reason"), "end");
            s->busy = false;
        }
        return;
    }
    fail_msg("an event of session %s, which is deleted", id);
}

static json_t *id_params(const char *id)
{
    return json_pack("{s:s}", "id", id);
}

static void open_slot(struct crowd *w, int i)
{
    struct slot *s = &w->slots[i];
    struct client *owner = w->readers[s->owner].client;

    json_t *made =
        daemon_call(owner, "session/new", json_pack("{s:s, s:[]}", "cwd", w->d.work, "tools"));
    snprintf(s->id, sizeof(s->id), "%s", text_of(made, "id"));
    json_decref(made);
    s->n_turns = 0;
    for (int k = 0; k < N_CLIENTS; k++) {
        w->readers[k].seen[i] = 0;
        json_decref(daemon_call(w->readers[k].client, "session/attach",
                                json_pack("{s:s, s:i}", "id", s->id, "fromSeq", 0)));
    }
}

static void begin_turn(struct crowd *w, struct slot *s)
{
    struct error e;

    s->busy = true;
    s->n_turns++;
    w->n_turns++;
    assert_ok(client_start(w->readers[s->owner].client, "session/prompt",
                           json_pack("{s:s, s:[{s:s, s:s}]}", "id", s->id, "content", "type",
                                     "text", "text", "what is new?"),
                           &s->call, &e),
              &e);
}

static void poll_all(struct crowd *w)
{
    for (int k = 0; k < N_CLIENTS; k++) {
        struct error e;
        enum err rc;
        do
            rc = client_poll(w->readers[k].client, 0, &e);
        while (rc == OK);
        if (rc != ERR_TIMEOUT)
            fail_msg("client %d: %s", k, e.msg);
    }
}

/* Whether all have seen what the owner has. */
static bool all_have_seen(const struct crowd *w, int i)
{
    for (int k = 0; k < N_CLIENTS; k++)
        if (w->readers[k].seen[i] != w->readers[w->slots[i].owner].seen[i])
            return false;
    return true;
}

static void wait_until_seen(struct crowd *w, int i)
{
    uint64_t from = now_ms();
    while (!all_have_seen(w, i)) {
        poll_all(w);
        if (now_ms() - from > IDLE_MS)
            fail_msg("events of session %s do not reach everybody", w->slots[i].id);
    }
}

static void replace_slot(struct crowd *w, int i)
{
    struct slot *s = &w->slots[i];

    wait_until_seen(w, i);
    for (int k = 0; k < N_CLIENTS; k++)
        json_decref(daemon_call(w->readers[k].client, "session/detach", id_params(s->id)));
    json_decref(daemon_call(w->readers[s->owner].client, "session/delete",
                            json_pack("{s:s, s:b}", "id", s->id, "purge", 1)));
    w->n_deleted++;
    open_slot(w, i);
}

/* The turn of a slot is over: its receipt is taken, the next one begins. */
static void go_on(struct crowd *w, int i)
{
    struct slot *s = &w->slots[i];
    json_t *receipt = NULL;
    struct error e;

    if (s->call) {
        assert_ok(client_await(w->readers[s->owner].client, s->call, IDLE_MS, &receipt, &e),
                  &e);
        json_decref(receipt);
        s->call = 0;
    }
    if (s->n_turns == N_TURNS)
        replace_slot(w, i);
    begin_turn(w, s);
}

static void crowd_open(struct crowd *w)
{
    char script[4096] = "";

    for (int i = 0; i < N_TURNS; i++)
        strncat(script, SAY("and an answer of some words, which all of them read"),
                sizeof(script) - strlen(script) - 1);
    daemon_make(&w->d, script);
    daemon_start(&w->d, NULL);
    for (int k = 0; k < N_CLIENTS; k++) {
        w->readers[k].crowd = w;
        w->readers[k].client = daemon_connect(&w->d, on_notify, &w->readers[k]);
    }
    for (int i = 0; i < N_SESSIONS; i++) {
        w->slots[i].owner = i % N_CLIENTS;
        open_slot(w, i);
    }
}

static void crowd_close(struct crowd *w)
{
    for (int k = 0; k < N_CLIENTS; k++)
        client_free(w->readers[k].client);
    daemon_remove(&w->d);
}

/* ---- memory ----------------------------------------------------------------------- */

#define MAX_SAMPLES 4096

static long mean_of(const long *v, size_t n)
{
    long sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return n ? sum / (long)n : 0;
}

/* The first fifth is for caches to fill; of the rest, the last quarter against the first. */
static void check_memory(const long *rss, size_t n, bool strict)
{
    size_t warm = n / 5, quarter = (n - warm) / 4;
    long before = mean_of(rss + warm, quarter), after = mean_of(rss + n - quarter, quarter);

    fprintf(stderr, "  resident: %ld KiB, later %ld KiB\n", before, after);
    if (after > before + before / (strict ? 20 : 4) + 2048)
        fail_msg("memory grows: %ld KiB, then %ld KiB", before, after);
}

static void test_every_event_to_every_reader(void **state)
{
    (void)state;
    struct crowd *w = calloc(1, sizeof(*w));
    static long rss[MAX_SAMPLES];
    uint64_t length = is_slow() ? 600000 : 6000, every = length / 200, n = 0;

    assert_non_null(w);
    crowd_open(w);
    for (int i = 0; i < N_SESSIONS; i++)
        begin_turn(w, &w->slots[i]);
    int fds = n_descriptors(&w->d);
    for (uint64_t from = now_ms(), next = from; now_ms() - from < length;) {
        poll_all(w);
        for (int i = 0; i < N_SESSIONS; i++)
            if (!w->slots[i].busy)
                go_on(w, i);
        if (now_ms() >= next && n < MAX_SAMPLES) {
            rss[n++] = rss_kb(&w->d);
            next += every;
        }
    }
    uint64_t events = 0, gaps = 0;
    for (int i = 0; i < N_SESSIONS; i++) {
        for (uint64_t from = now_ms(); w->slots[i].busy;) {
            poll_all(w);
            if (now_ms() - from > IDLE_MS)
                fail_msg("session %s does not end", w->slots[i].id);
        }
        wait_until_seen(w, i);
        json_t *got =
            daemon_call(w->readers[0].client, "session/get", id_params(w->slots[i].id));
        assert_int_equal(json_integer_value(json_object_get(got, "lastSeq")),
                         w->readers[0].seen[i]);
        json_decref(got);
    }
    for (int k = 0; k < N_CLIENTS; k++) {
        events += w->readers[k].n_events;
        gaps += w->readers[k].n_gaps;
    }
    fprintf(stderr,
            "  %d clients, %d sessions, %llu s: %llu turns, %llu sessions deleted, %llu events "
            "read, %llu gaps in deltas\n",
            N_CLIENTS, N_SESSIONS, (unsigned long long)length / 1000,
            (unsigned long long)w->n_turns, (unsigned long long)w->n_deleted,
            (unsigned long long)events, (unsigned long long)gaps);
    assert_true(w->n_turns > N_SESSIONS);
    check_memory(rss, n, is_slow());
    assert_in_range(n_descriptors(&w->d), fds - 2, fds + 2);
    crowd_close(w);
    free(w);
}

/* Clients that come, attach, read, and go: some say so first, some just close. */
static void test_descriptors_over_attach_and_detach(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    int n = is_slow() ? 2000 : 300, before = 0;

    daemon_make(&d, SAY("hello"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    daemon_prompt(c, id, "go");
    json_decref(daemon_wait(c, id));
    for (int i = 0; i < n; i++) {
        struct client *r = daemon_connect(&d, NULL, NULL);
        json_decref(
            daemon_call(r, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
        if (i % 2)
            json_decref(daemon_call(r, "session/detach", id_params(id)));
        client_free(r);
        if (i == 20)
            before = n_descriptors(&d);
    }
    /* A close that the daemon has not read yet is a descriptor more. */
    for (int i = 0; i < 1000 && n_descriptors(&d) > before; i++)
        json_decref(daemon_call(c, "daemon/status", NULL));
    fprintf(stderr, "  %d cycles: %d descriptors, then %d\n", n, before, n_descriptors(&d));
    assert_true(n_descriptors(&d) <= before);
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_event_to_every_reader),
        cmocka_unit_test(test_descriptors_over_attach_and_detach),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
