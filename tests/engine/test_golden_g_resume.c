/* Golden case g_resume: only the planes of a prefix are left; deep and replay from them,
 * against what never stopped; then an input segment and decode steps. Start positions are
 * checked, too: values alone do not tell a replay of 160 tokens from one of 249. */
#include "tests/support/drive.h"
#include "tests/support/golden_windows.h"
#include "tests/support/test.h"

#define CASE GOLDEN "g_resume/"
#define N_DECODE 20
#define N_LAYERS 8
#define VOCAB 512
#define HEAD_DIM 64
#define TOP_K 24

struct tolerance {
    double logits_same, logits_share, logits_max;
    double rows_same;              /* planes */
    double rings_share, rings_max; /* rings that may differ, by one FP8 step */
    double selections;
};

static const struct tolerance MATH = {1e-4, 0, 1e-4, 2e-5, 0, 2e-5, 0};
static const struct tolerance FP32KVQ = {1e-3, 0, 1e-3, 1e-6, 0.02, 4e-3, 0};

struct fixture {
    struct engine *m;
    struct record r;
    struct golden *g;
    uint32_t *ids;
    const struct tolerance *t;
};

enum kind { NEVER, DEEP, REPLAY };
static const char *const KINDS[] = {"never", "deep", "replay"};

/* A sequence at P in the state this kind of resume leaves; st is that of the whole prefix. */
static struct seq *resume(struct fixture *f, const struct drive_state *st, enum kind kind)
{
    uint64_t p = st->n_tokens, n_replayed = p;
    struct segment segment = {0, p, SEGMENT_INPUT, PREFILL_FULL};
    struct tape_view tape = {.ids = f->ids, .n_ids = p, .segments = &segment, .n_segments = 1};
    struct drive_state after;
    char name[64];
    record_clear(&f->r);
    struct seq *s =
        kind == NEVER ? drive_import(f->m, st)
                      : drive_rebuild(f->m, st, &tape,
                                      kind == DEEP ? RESUME_DEEP : RESUME_REPLAY, &n_replayed);
    snprintf(name, sizeof(name), "P%llu.%s.start", (unsigned long long)p, KINDS[kind]);
    assert_int_equal(p - n_replayed, golden_i64(f->g, name, NULL)[0]);
    drive_export(f->m, s, &after);
    drive_assert_planes(st, &after); /* read, never written */
    drive_state_free(&after);
    return s;
}

static void check_prefix_planes(struct fixture *f, struct seq *s, uint64_t p)
{
    static const char *const NAMES[] = {"L2.compress_kv32", "L2.index_k32", "L4.compress_kv32",
                                        "L4.index_k32"};
    for (uint32_t i = 0; i < 4; i++) {
        char name[64];
        size_t n = 0;
        snprintf(name, sizeof(name), "P%llu.prefix.%s", (unsigned long long)p, NAMES[i]);
        float *got = read_plane(f->m, s, i, &n);
        assert_int_equal(n, golden_shape(f->g, name).dim[0]);
        assert_mostly(name, got, golden_f32(f->g, name, NULL), n, engine_plane_width(f->m, i),
                      f->t->rows_same, 0, f->t->rows_same);
        free(got);
    }
}

static void check_pending(struct fixture *f, struct seq *s, uint64_t p, const char *prefix)
{
    const float *pending = engine_read_pending(s, 0);
    char name[96];
    assert_true(!pending == !(p % 2));
    if (!pending)
        return;
    snprintf(name, sizeof(name), "%s.pending.L2.u32", prefix);
    assert_mostly(name, pending, golden_f32(f->g, name, NULL), 1, HEAD_DIM, 2e-5, 0, 2e-5);
    snprintf(name, sizeof(name), "%s.pending.L2.g32", prefix);
    assert_mostly(name, pending + HEAD_DIM, golden_f32(f->g, name, NULL), 1, HEAD_DIM, 2e-5, 0,
                  2e-5);
}

static void check_logits(struct fixture *f, const char *prefix, const char *what,
                         uint64_t position, size_t n)
{
    char name[96];
    snprintf(name, sizeof(name), "%s.%s", prefix, what);
    float *got = gather_logits(&f->r, position, n);
    assert_mostly(name, got, golden_f32(f->g, name, NULL), n, VOCAB, f->t->logits_same,
                  n > 1 ? f->t->logits_share : 1, f->t->logits_max);
    free(got);
}

static void check_windows(struct fixture *f, struct seq *s, const char *prefix,
                          const char *when)
{
    char name[96];
    snprintf(name, sizeof(name), "%s%s%s", prefix, *when ? "." : "", when);
    golden_windows(f->g, name, f->m, s, f->t->rows_same, f->t->rings_share, f->t->rings_max);
}

static void check_selections(struct fixture *f, const char *prefix, uint64_t position)
{
    size_t differing = 0;
    for (uint32_t l = 2; l <= 6; l += 2) {
        char name[96];
        snprintf(name, sizeof(name), "%s.decode.L%u.topk_rows", prefix, l);
        int32_t *got = gather(&f->r, "topk_rows", l, position, N_DECODE);
        differing +=
            count_selections(got, TOP_K, golden_i64(f->g, name, NULL), TOP_K, N_DECODE);
        free(got);
    }
    if ((double)differing > f->t->selections * 3 * N_DECODE)
        fail_msg("%s: %zu selections differ", prefix, differing);
}

static void check_lo(struct fixture *f, struct seq *s, const char *prefix)
{
    char name[96];
    snprintf(name, sizeof(name), "%s.final.window_lo", prefix);
    const int64_t *lo = golden_i64(f->g, name, NULL);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        assert_int_equal(engine_window_lo(s, l), lo[l]);
    snprintf(name, sizeof(name), "%s.final.dec_lo", prefix);
    assert_int_equal(engine_window_lo(s, N_LAYERS - 1), golden_i64(f->g, name, NULL)[0]);
}

static void check_new_rows(struct fixture *f, struct seq *s, const char *prefix, uint64_t p)
{
    static const char *const NAMES[] = {"L2.compress_kv32", "L2.index_k32", "L4.compress_kv32",
                                        "L4.index_k32"};
    for (uint32_t i = 0; i < 4; i++) {
        char name[96];
        size_t n = 0, first = p / (i < 2 ? 2 : 1), width = engine_plane_width(f->m, i);
        snprintf(name, sizeof(name), "%s.new.%s", prefix, NAMES[i]);
        float *got = read_plane(f->m, s, i, &n);
        assert_int_equal(n - first, golden_shape(f->g, name).dim[0]);
        assert_mostly(name, got + first * width, golden_f32(f->g, name, NULL), n - first, width,
                      f->t->rows_same, 0, f->t->rows_same);
        free(got);
    }
}

/* At P; then S tokens of input in mode ced, then forced decode steps. */
static void run_case(struct fixture *f, const struct drive_state *st, enum kind kind,
                     uint64_t n_suffix)
{
    uint64_t p = st->n_tokens;
    char prefix[64];
    struct seq *s = resume(f, st, kind);
    snprintf(prefix, sizeof(prefix), "P%llu.%s", (unsigned long long)p, KINDS[kind]);
    if (kind == NEVER)
        check_prefix_planes(f, s, p);
    check_windows(f, s, prefix, "");
    check_pending(f, s, p, prefix);

    snprintf(prefix, sizeof(prefix), "P%llu.%s.S%llu", (unsigned long long)p, KINDS[kind],
             (unsigned long long)n_suffix);
    drive_input(f->m, s, f->ids + p, n_suffix, PREFILL_CED);
    check_logits(f, prefix, "input_logits", p + n_suffix - 1, 1);
    check_windows(f, s, prefix, "input");
    drive_forced(f->m, s, f->ids + p + n_suffix, N_DECODE);
    check_logits(f, prefix, "decode_logits", p + n_suffix, N_DECODE);
    check_selections(f, prefix, p + n_suffix);
    check_windows(f, s, prefix, "final");
    check_lo(f, s, prefix);
    check_new_rows(f, s, prefix, p);
    seq_free(s);
}

static void run(const char *backend, enum precision precision, uint32_t chunk)
{
    static const uint64_t PREFIXES[] = {320, 321, 50}, SUFFIXES[] = {5, 60};
    bool math = precision == PRECISION_MATH;
    struct golden_run how = {backend, precision, chunk, true};
    struct fixture f = {.t = math ? &MATH : &FP32KVQ};
    size_t n = 0;
    f.ids = golden_ids(CASE "inputs.json", &n);
    assert_true(n >= 321 + 60 + N_DECODE);
    f.g = golden_open(math ? CASE "expected_math.safetensors"
                           : CASE "expected_fp32kvq.safetensors");
    f.m = golden_model(GOLDEN "c_replay/model", &how);
    record_init(&f.r, f.m, true);
    for (int i = 0; i < 3; i++) {
        struct drive_state st;
        struct seq *s = drive_seq(f.m);
        drive_input(f.m, s, f.ids, PREFIXES[i], PREFILL_FULL);
        drive_export(f.m, s, &st);
        seq_free(s);
        for (int k = NEVER; k <= REPLAY; k++)
            for (int j = 0; j < 2; j++)
                run_case(&f, &st, (enum kind)k, SUFFIXES[j]);
        drive_state_free(&st);
    }
    record_fini(&f.r);
    golden_close(f.g);
    engine_free(f.m);
    free(f.ids);
}

static void test_math_ref(void **state)
{
    (void)state;
    run("ref", PRECISION_MATH, 0);
}

static void test_math_cpu(void **state)
{
    (void)state;
    run("cpu", PRECISION_MATH, 0);
}

static void test_fp32kvq_ref(void **state)
{
    (void)state;
    run("ref", PRECISION_FP32KVQ, 0);
}

static void test_fp32kvq_cpu(void **state)
{
    (void)state;
    run("cpu", PRECISION_FP32KVQ, 0);
    run("cpu", PRECISION_FP32KVQ, 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_cpu),
        cmocka_unit_test(test_fp32kvq_cpu),
        cmocka_unit_test(test_math_ref),
        cmocka_unit_test(test_fp32kvq_ref),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
