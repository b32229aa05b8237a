/* agentd verify-tape on tapes made here: as computed, changed, without digests, and of sessions
 * that were resumed by replay. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "agentd/tape_file.h"
#include "agentd/verbs.h"
#include "tests/support/drive.h"

#define MODEL "tests/golden/a_tiny/model"
#define WINDOW 32
#define N_SEGMENTS 5
#define N_IDS 460

struct made {
    struct engine *m;
    uint32_t ids[N_IDS];
    struct segment segments[N_SEGMENTS];
    struct tape_segment with_digest[N_SEGMENTS];
    struct replay_mark mark;
    struct tape t;
};

/* Segments of both kinds; the long input segments are clipped, but for the one in mode full. */
static void make(struct made *x)
{
    static const struct segment plan[N_SEGMENTS] = {{0, 150, SEGMENT_INPUT, PREFILL_CED},
                                                    {150, 90, SEGMENT_GENERATED, PREFILL_CED},
                                                    {240, 100, SEGMENT_INPUT, PREFILL_FULL},
                                                    {340, 100, SEGMENT_INPUT, PREFILL_CED},
                                                    {440, 20, SEGMENT_GENERATED, PREFILL_CED}};
    const struct engine_options o = {.digests = true, .no_weight_digest = true};
    *x = (struct made){.m = drive_open(MODEL, &o)};
    drive_ids(x->ids, N_IDS, 3);
    memcpy(x->segments, plan, sizeof plan);
    x->t = (struct tape){.ids = x->ids,
                         .segments = x->segments,
                         .tape_segments = x->with_digest,
                         .marks = &x->mark,
                         .view = {x->ids, N_IDS, x->segments, N_SEGMENTS, &x->mark, 0}};
}

static void keep_digests(struct made *x, const struct seq_digest *d)
{
    for (int i = 0; i < N_SEGMENTS; i++) {
        x->with_digest[i] = (struct tape_segment){
            .seg = x->segments[i], .has_digest = !d[i].is_partial, .n_rows = d[i].n_rows};
        memcpy(x->with_digest[i].digest, d[i].d, sizeof d[i].d);
    }
}

/* Computes the tape; at mark_at (0: never) all but planes and the last window is forgotten. */
static void compute(struct made *x, uint64_t mark_at)
{
    struct seq_digest digests[N_SEGMENTS];
    struct seq *s = drive_seq(x->m);
    if (mark_at) {
        struct drive_state planes;
        uint64_t n;
        drive_tape(x->m, s, &x->t.view, mark_at, digests);
        assert_int_equal(seq_position(s), mark_at);
        drive_export(x->m, s, &planes);
        seq_free(s);
        s = drive_rebuild(x->m, &planes, &x->t.view, RESUME_REPLAY, &n);
        drive_state_free(&planes);
        x->mark = (struct replay_mark){mark_at, mark_at - n};
    }
    drive_tape(x->m, s, &x->t.view, UINT64_MAX, digests);
    seq_free(s);
    keep_digests(x, digests);
}

/* Runs the verb on the tape; its answer, and its exit code. */
static json_t *verify(const struct made *x, int *code)
{
    const char *build = getenv("AGENTD_BUILD");
    char binary[256], out[4096] = "";
    struct error e;
    int tape = memfd_create("tape", MFD_CLOEXEC), fds[2];
    assert_true(tape >= 0);
    assert_ok(tape_file_write(tape, &x->t, &e), &e);
    assert_int_equal(lseek(tape, 0, SEEK_SET), 0);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    snprintf(binary, sizeof binary, "%s/agentd", build ? build : "build");
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], 1);
        int high = fcntl(tape, F_DUPFD, 10); /* it may be descriptor 3 itself, close-on-exec */
        dup2(high, 3);
        execl(binary, "agentd", "verify-tape", "-m", MODEL, NULL);
        _exit(127);
    }
    close(fds[1]);
    for (size_t n = 0;;) {
        ssize_t got = read(fds[0], out + n, sizeof out - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    *code = WEXITSTATUS(status);
    close(fds[0]);
    close(tape);
    return json_loads(out, 0, NULL);
}

static void check(const struct made *x, bool equal, json_int_t unproved)
{
    int code;
    json_auto_t *a = verify(x, &code);
    assert_non_null(a);
    if (json_is_true(json_object_get(a, "equal")) != equal ||
        json_integer_value(json_object_get(a, "segmentsWithoutDigest")) != unproved)
        fail_msg("%s", json_dumps(a, 0));
    assert_int_equal(code, equal ? EXIT_DONE : EXIT_CORRUPT);
    assert_int_equal(json_integer_value(json_object_get(a, "segments")), N_SEGMENTS);
}

static void test_as_it_went(void **state)
{
    (void)state;
    struct made x;
    make(&x);
    compute(&x, 0);
    check(&x, true, 0);
    x.with_digest[N_SEGMENTS - 1].open = true; /* its length is not on the tape then */
    x.with_digest[N_SEGMENTS - 1].seg.len = 0;
    check(&x, true, 0);
    engine_free(x.m);
}

/* One changed id, one changed digest, one row less: each is seen. */
static void test_changes_are_seen(void **state)
{
    (void)state;
    struct made x;
    make(&x);
    compute(&x, 0);
    x.ids[200]++;
    check(&x, false, 0);
    x.ids[200]--;
    for (int i = 0; i < N_SEGMENTS; i++) {
        x.with_digest[i].digest[5] ^= 1;
        check(&x, false, 0);
        x.with_digest[i].digest[5] ^= 1;
    }
    x.with_digest[2].n_rows--;
    check(&x, false, 0);
    x.with_digest[2].n_rows++;
    check(&x, true, 0);
    engine_free(x.m);
}

static void test_without_digests(void **state)
{
    (void)state;
    struct made x;
    make(&x);
    compute(&x, 0);
    for (int i = 0; i < N_SEGMENTS; i++) {
        check(&x, true, i);
        x.with_digest[i].has_digest = false;
    }
    check(&x, false, N_SEGMENTS);
    engine_free(x.m);
}

/* A session without a token has nothing that could be otherwise. */
static void test_no_token(void **state)
{
    (void)state;
    struct made x;
    int code;
    make(&x);
    x.t.view.n_ids = x.t.view.n_segments = 0;
    json_auto_t *a = verify(&x, &code);
    assert_int_equal(code, EXIT_DONE);
    assert_true(json_is_true(json_object_get(a, "equal")));
    assert_int_equal(json_integer_value(json_object_get(a, "tokens")), 0);
    assert_int_equal(json_integer_value(json_object_get(a, "segments")), 0);
    engine_free(x.m);
}

/* A session that was resumed by replay is computed as it went; without its mark, or with
 * another start, it is not the same. */
static void test_replays(void **state)
{
    (void)state;
    static const struct {
        uint64_t at;
        json_int_t unproved; /* inside an input segment, rows before the mark have no digest */
    } marks[] = {{201, 0}, {240, 0}, {300, 1}, {340, 0}, {390, 0}, {450, 0}};
    struct made x;
    make(&x);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        x.t.view.n_marks = 0;
        compute(&x, marks[i].at);
        assert_int_equal(x.mark.at - x.mark.from, WINDOW);
        check(&x, false, 0);
        x.t.view.n_marks = 1;
        check(&x, true, marks[i].unproved);
        x.mark.from -= 7;
        check(&x, false, marks[i].unproved);
    }
    engine_free(x.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_it_went),      cmocka_unit_test(test_changes_are_seen),
        cmocka_unit_test(test_without_digests), cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_replays),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
