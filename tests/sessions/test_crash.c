/* A child process commits and saves, acknowledging each step on a pipe, and is killed: at a
 * fault point of its own, or from outside at some moment. Whatever was acknowledged is there
 * afterwards, and the store goes on. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "tests/support/state_fixture.h"
#include "tests/support/test.h"

#define STEPS 14
#define STEP_TOKENS 13

enum ack_kind { ACK_TAPE = 1, ACK_STATE, ACK_FORK };

struct ack {
    enum ack_kind kind;
    uint32_t step;
    uint64_t a, b; /* tape: length, last seq; state: position */
};

struct crash_test {
    struct store_fixture f;
    struct state_layout l;
    char id[SESSION_ID_CAP];
};

static int setup(void **state)
{
    static struct crash_test t;
    state_layout_make(&t.l, LAYOUT_ODD);
    *state = &t;
    return 0;
}

static uint32_t id_at(uint64_t position)
{
    return (uint32_t)(position * 7919 + 13);
}

static bool send_ack(int fd, struct ack ack)
{
    return write(fd, &ack, sizeof ack) == (ssize_t)sizeof ack;
}

/* One step of the script: tokens, an event, a call that starts and ends. */
static enum err commit_step(struct store *st, const char *id, uint32_t step,
                            struct tape_receipt *r, struct error *e)
{
    uint32_t ids[STEP_TOKENS];
    char call_id[24];
    uint64_t at = (uint64_t)step * STEP_TOKENS;
    for (uint32_t i = 0; i < STEP_TOKENS; i++)
        ids[i] = id_at(at + i);
    snprintf(call_id, sizeof call_id, "call-%u", step);
    struct tape_segment seg = {.seg = {at, STEP_TOKENS, SEGMENT_INPUT, PREFILL_CED}};
    struct tape_event ev = {.type = "item", .item = call_id, .position = TAPE_END};
    struct tape_call call = {.id = call_id,
                             .turn = "turn",
                             .name = "run",
                             .arguments = "{}",
                             .status = CALL_STARTED};
    struct tape_commit c = {.session = id,
                            .position = at,
                            .ids = ids,
                            .n_ids = STEP_TOKENS,
                            .segments = &seg,
                            .n_segments = 1,
                            .events = &ev,
                            .n_events = 1,
                            .calls = &call,
                            .n_calls = 1};
    enum err rc = tape_commit(st, &c, r, e);
    if (rc)
        return rc;
    call = (struct tape_call){.id = call_id, .status = CALL_DONE, .result = "r", .n_result = 1};
    struct tape_commit done = {.session = id, .calls = &call, .n_calls = 1};
    return tape_commit(st, &done, NULL, e);
}

/* Runs the rest of the script in the child; every acknowledgement goes out before the next
 * step. */
static int run_script(struct crash_test *t, int fd)
{
    struct error e;
    if (store_fixture_open(&t->f, &e))
        return 1;
    for (uint32_t step = 0; step < STEPS; step++) {
        struct tape_receipt r;
        if (commit_step(t->f.st, t->id, step, &r, &e) ||
            !send_ack(fd, (struct ack){ACK_TAPE, step, r.length, r.last_seq}))
            return 2;
        uint64_t from = (uint64_t)step * STEP_TOKENS;
        if (state_save(t->f.st, t->id, &t->l, from, from + STEP_TOKENS, true, NULL, &e) ||
            !send_ack(fd, (struct ack){ACK_STATE, step, from + STEP_TOKENS, 0}))
            return 3;
        char name[24];
        snprintf(name, sizeof name, "fork-%u", step);
        struct session_fork k = {.parent = t->id, .name = name};
        if (step % 4 == 1 && (session_fork(t->f.st, &k, NULL, &e) ||
                              !send_ack(fd, (struct ack){ACK_FORK, step, 0, 0})))
            return 4;
    }
    return 0;
}

/* ---- afterwards -------------------------------------------------------------------------- */

static bool count_call(void *user, const struct tape_call *c)
{
    (void)c;
    ++*(size_t *)user;
    return true;
}

static bool count_event(void *user, const struct tape_event *ev)
{
    (void)ev;
    ++*(size_t *)user;
    return true;
}

static void check_tape(struct crash_test *t, const char *id, uint64_t least, uint64_t least_seq)
{
    struct error e;
    AUTO(tape) struct tape tape = {0};
    assert_ok(tape_load(t->f.st, id, &tape, &e), &e);
    assert_false(tape.damaged);
    assert_true(tape.view.n_ids >= least && tape.view.n_ids <= least + STEP_TOKENS);
    assert_int_equal(tape.view.n_ids % STEP_TOKENS, 0);
    for (uint64_t i = 0; i < tape.view.n_ids; i++)
        assert_int_equal(tape.ids[i], id_at(i));
    size_t n_calls = 0, n_events = 0;
    assert_ok(tape_events(t->f.st, id, 0, 0, count_event, &n_events, &e), &e);
    assert_true(n_events >= least_seq);
    assert_int_equal(n_events, tape.view.n_ids / STEP_TOKENS);
    assert_ok(tape_calls(t->f.st, id, NULL, false, count_call, &n_calls, &e), &e);
    assert_int_equal(n_calls, n_events);
}

static void check_store(struct crash_test *t, const struct ack *acks, size_t n)
{
    struct error e;
    uint64_t length = 0, seq = 0, saved = 0;
    assert_ok(store_fixture_open(&t->f, &e), &e);
    for (size_t i = 0; i < n; i++) {
        if (acks[i].kind == ACK_TAPE) {
            length = acks[i].a;
            seq = acks[i].b;
        } else if (acks[i].kind == ACK_STATE) {
            saved = acks[i].a;
        } else {
            char name[24];
            AUTO(session_info) struct session_info s = {0};
            snprintf(name, sizeof name, "fork-%u", acks[i].step);
            assert_ok(session_find(t->f.st, name, &s, &e), &e);
            assert_int_equal(s.n_tokens, (acks[i].step + 1) * STEP_TOKENS);
            struct head_restored r;
            assert_ok(state_restore(t->f.st, s.id, &t->l, TAPE_END, HEAD_TIP, NULL, &r, &e),
                      &e);
            assert_int_equal(r.n_tokens, s.n_tokens);
        }
    }
    check_tape(t, t->id, length, seq);
    struct head_restored r;
    assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
    assert_true(r.n_tokens >= saved && r.n_tokens <= fixture_length(t->f.st, t->id));
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.extents_damaged + c.packs_refused + c.rows_damaged + c.commits_lost, 0);
    /* It goes on. */
    uint64_t at = fixture_length(t->f.st, t->id);
    assert_ok(fixture_append(t->f.st, t->id, 1, 5, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(t->f.st, t->id, &t->l, r.n_tokens, at + 5, true, NULL, &e), &e);
    assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
    assert_int_equal(r.n_tokens, at + 5);
}

/* A store with one session, closed; then the script in a child that dies at hit n of any fault
 * point (n > 0), or after wait_ns. *exited: it came to the end of the script. */
static void run_and_kill(struct crash_test *t, uint64_t n, long wait_ns, bool *exited)
{
    struct error e;
    struct ack acks[STEPS * 3];
    int fds[2];
    store_fixture_init(&t->f, false);
    assert_ok(store_fixture_open(&t->f, &e), &e);
    fixture_session(&t->f, "s", t->id);
    store_close(t->f.st);
    t->f.st = NULL;
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        if (n)
            fault_arm(FAULT_CRASH, NULL, n);
        _exit(run_script(t, fds[1]));
    }
    close(fds[1]);
    if (!n) {
        struct timespec ts = {0, wait_ns};
        nanosleep(&ts, NULL);
        kill(pid, SIGKILL);
    }
    size_t n_bytes = 0;
    for (ssize_t got; (got = read(fds[0], (char *)acks + n_bytes, sizeof acks - n_bytes)) > 0;)
        n_bytes += (size_t)got;
    close(fds[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    *exited = WIFEXITED(status);
    if (*exited)
        assert_int_equal(WEXITSTATUS(status), 0);
    check_store(t, acks, n_bytes / sizeof acks[0]);
    store_fixture_fini(&t->f);
}

static void killed_at_every_fault_point(void **state)
{
    struct crash_test *t = *state;
    uint64_t stride = getenv("AGENTD_SLOW") ? 1 : 37, n;
    bool exited = false;
    for (n = 1; !exited; n += stride)
        run_and_kill(t, n, 0, &exited);
    assert_true(n > 1000);
}

static void codex_24425_mooncake_3220_killed_at_any_moment(void **state)
{
    struct crash_test *t = *state;
    int n = getenv("AGENTD_SLOW") ? 1000 : 10;
    for (int i = 0; i < n; i++) {
        bool exited;
        run_and_kill(t, 0, 500000L + (i * 7368787L) % 60000000L, &exited);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(killed_at_every_fault_point, setup),
        cmocka_unit_test_setup(codex_24425_mooncake_3220_killed_at_any_moment, setup),
    };
    return !!run_with_both_shapes(tests);
}
