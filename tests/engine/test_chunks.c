/* How a segment is cut into chunks and how many threads run changes no bit: planes, tips and
 * the logits of every computed row (their digests), on every instruction set of this machine.
 */
#include "tests/support/drive.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "c_replay/model"
#define N_SEGMENTS 7
#define MAX_TOKENS 2400

struct session {
    uint32_t ids[MAX_TOKENS];
    struct segment segments[N_SEGMENTS];
    struct tape_view tape;
};

/* All prefill modes; segments of one token, of the window, of one more, and of many chunks. */
static void make_session(struct session *x, uint64_t long_input)
{
    const struct segment list[N_SEGMENTS] = {
        {0, 45, SEGMENT_INPUT, PREFILL_CED},         {0, 7, SEGMENT_GENERATED, PREFILL_CED},
        {0, 32, SEGMENT_INPUT, PREFILL_CED},         {0, 1, SEGMENT_INPUT, PREFILL_FULL},
        {0, long_input, SEGMENT_INPUT, PREFILL_CED}, {0, 33, SEGMENT_INPUT, PREFILL_CED_REPORT},
        {0, 12, SEGMENT_GENERATED, PREFILL_CED},
    };
    uint64_t at = 0;
    for (size_t i = 0; i < N_SEGMENTS; i++) {
        x->segments[i] = list[i];
        x->segments[i].start = at;
        at += list[i].len;
    }
    assert_true(at <= MAX_TOKENS);
    drive_ids(x->ids, at, 11);
    x->tape = (struct tape_view){
        .ids = x->ids, .n_ids = at, .segments = x->segments, .n_segments = N_SEGMENTS};
}

struct outcome {
    struct drive_state state[N_SEGMENTS];
    struct seq_digest digests[N_SEGMENTS];
};

static void compute(const struct session *x, const struct engine_options *o,
                    struct outcome *out)
{
    struct engine *m = drive_open(MODEL, o);
    struct seq *s = drive_seq(m);
    for (size_t i = 0; i < N_SEGMENTS; i++) {
        uint64_t end = x->segments[i].start + x->segments[i].len;
        drive_tape(m, s, &x->tape, end, out->digests);
        drive_export(m, s, &out->state[i]);
    }
    engine_free(m);
}

static void outcome_free(struct outcome *x)
{
    for (size_t i = 0; i < N_SEGMENTS; i++)
        drive_state_free(&x->state[i]);
}

static void assert_equal(const struct outcome *a, const struct outcome *b)
{
    for (size_t i = 0; i < N_SEGMENTS; i++) {
        drive_assert_planes(&a->state[i], &b->state[i]);
        drive_assert_tip(&a->state[i], &b->state[i]);
        assert_true(a->digests[i].n_rows > 0);
        assert_int_equal(a->digests[i].n_rows, b->digests[i].n_rows);
        assert_memory_equal(a->digests[i].d, b->digests[i].d, sizeof(a->digests[i].d));
    }
}

static void check(const char *backend, const char *isa, enum precision precision,
                  uint64_t long_input, const uint32_t *chunks, size_t n_chunks)
{
    struct session *x = malloc(sizeof(*x));
    struct engine_options o = {.backend = backend,
                               .isa = isa,
                               .precision = precision,
                               .n_threads = 1,
                               .chunk_tokens = chunks[0],
                               .digests = true,
                               .no_weight_digest = true};
    struct outcome first = {0}, other = {0};
    assert_non_null(x);
    make_session(x, long_input);
    compute(x, &o, &first);
    for (size_t i = 1; i < n_chunks; i++) {
        o.chunk_tokens = chunks[i];
        o.n_threads = 1 + i % 2;
        compute(x, &o, &other);
        assert_equal(&first, &other);
        outcome_free(&other);
    }
    outcome_free(&first);
    free(x);
}

/* The last one is the whole segment at once. */
static const uint32_t CHUNKS[] = {64, 1, 7, 128, 2048};

static void test_cpu(void **state)
{
    (void)state;
    check("cpu", NULL, PRECISION_FAST, 260, CHUNKS, 5);
    check("cpu", NULL, PRECISION_MATH, 150, CHUNKS, 3);
    check("cpu", NULL, PRECISION_FP32KVQ, 150, CHUNKS, 3);
}

static void test_other_isas(void **state)
{
    static const char *const ISAS[] = {"avx512", "avx2", "portable"};
    size_t ran = 0;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct engine_options o = {.backend = "cpu", .isa = ISAS[i], .no_weight_digest = true};
        struct engine *m = NULL;
        struct error e = {0};
        enum err rc = engine_open_model(&m, MODEL, &o, &e);
        if (rc == ERR_UNSUPPORTED)
            continue; /* not on this machine */
        assert_ok(rc, &e);
        engine_free(m);
        check("cpu", ISAS[i], PRECISION_FAST, 100, CHUNKS, 3);
        ran++;
    }
    assert_true(ran > 0);
}

static void test_ref(void **state)
{
    (void)state;
    check("ref", NULL, PRECISION_FAST, 70, CHUNKS, 3);
}

/* Chunks larger than 2048 and a border inside the clipped tail. */
static void test_long(void **state)
{
    static const uint32_t LONG_CHUNKS[] = {256, 2048, 4096, 1, 7};
    (void)state;
    check("cpu", NULL, PRECISION_FAST, 2100, LONG_CHUNKS, getenv("AGENTD_SLOW") ? 5 : 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_other_isas),
        cmocka_unit_test(test_ref),
        cmocka_unit_test(test_long),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
