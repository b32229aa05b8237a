/* Golden case f_segments: ten segments, input in mode ced (form B) and forced runs in turn. */
#include <jansson.h>

#include "tests/support/drive.h"
#include "tests/support/golden_windows.h"
#include "tests/support/test.h"

#define CASE GOLDEN "f_segments/"
#define N_SEGMENTS 10
#define N_LAYERS 8
#define VOCAB 512
#define TOP_K 24

struct tolerance {
    double logits_same, logits_share, logits_max;
    double rows_same, rows_share, rows_max; /* planes and rings */
    double selections;
};

static const struct tolerance MATH = {1e-4, 0, 1e-4, 2e-5, 0, 2e-5, 0};
static const struct tolerance FP32KVQ = {1e-5, 0, 1e-5, 1e-6, 0, 1e-6, 0};

static void read_segments(struct segment *out)
{
    json_auto_t *j = json_load_file(CASE "inputs.json", 0, NULL);
    const json_t *list = json_object_get(j, "segments");
    assert_int_equal(json_array_size(list), N_SEGMENTS);
    for (size_t i = 0; i < N_SEGMENTS; i++) {
        const json_t *s = json_array_get(list, i);
        bool input = !strcmp(json_string_value(json_object_get(s, "kind")), "input");
        out[i] =
            (struct segment){.start = (uint64_t)json_integer_value(json_object_get(s, "start")),
                             .len = (uint64_t)json_integer_value(json_object_get(s, "len")),
                             .kind = input ? SEGMENT_INPUT : SEGMENT_GENERATED,
                             .mode = PREFILL_CED};
    }
}

/* Lowest readable position of every layer's window after a segment. */
static void check_lo(struct golden *g, const struct seq *s, size_t k)
{
    const int64_t *lo = golden_i64(g, "window_lo", NULL), *dec = golden_i64(g, "dec_lo", NULL);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        assert_int_equal(engine_window_lo(s, l), lo[k * N_LAYERS + l]);
    assert_int_equal(engine_window_lo(s, N_LAYERS - 1), dec[k]);
}

static void check_logits(struct golden *g, const struct record *r,
                         const struct segment *segments, const struct tolerance *t)
{
    const float *input = golden_f32(g, "input_logits", NULL);
    const float *generated = golden_f32(g, "generated_logits", NULL);
    for (size_t k = 0; k < N_SEGMENTS; k++) {
        const struct segment *s = &segments[k];
        bool is_input = s->kind == SEGMENT_INPUT;
        uint64_t first = is_input ? s->start + s->len - 1 : s->start;
        size_t n = is_input ? 1 : s->len;
        float *got = gather_logits(r, first, n);
        assert_mostly(is_input ? "input_logits" : "generated_logits", got,
                      is_input ? input : generated, n, VOCAB, t->logits_same, t->logits_share,
                      t->logits_max);
        *(is_input ? &input : &generated) += n * VOCAB;
        free(got);
    }
}

static void check_selections(struct golden *g, const struct record *r,
                             const struct segment *segments, double allowed)
{
    size_t differing = 0, total = 0;
    for (uint32_t l = 2; l <= 6; l += 2) {
        char name[64];
        snprintf(name, sizeof(name), "generated.L%u.topk_rows", l);
        const int64_t *want = golden_i64(g, name, NULL);
        for (size_t k = 1; k < N_SEGMENTS; k += 2) {
            size_t n = segments[k].len;
            int32_t *got = gather(r, "topk_rows", l, segments[k].start, n);
            differing += count_selections(got, TOP_K, want, TOP_K, n);
            total += n;
            want += n * TOP_K;
            free(got);
        }
    }
    assert_int_equal(total, 3 * 78);
    if ((double)differing > allowed * (double)total)
        fail_msg("%zu of %zu selections differ", differing, total);
}

static void check_planes(struct golden *g, const struct engine *m, const struct seq *s,
                         const struct tolerance *t)
{
    static const char *const NAMES[] = {"final.L2.compress_kv32", "final.L2.index_k32",
                                        "final.L4.compress_kv32", "final.L4.index_k32"};
    for (uint32_t i = 0; i < 4; i++) {
        size_t n = 0;
        float *got = read_plane(m, s, i, &n);
        assert_int_equal(n, golden_shape(g, NAMES[i]).dim[0]);
        assert_mostly(NAMES[i], got, golden_f32(g, NAMES[i], NULL), n, engine_plane_width(m, i),
                      t->rows_same, t->rows_share, t->rows_max);
        free(got);
    }
}

static void run(const char *backend, enum precision precision, uint32_t chunk)
{
    bool math = precision == PRECISION_MATH;
    const struct tolerance *t = math ? &MATH : &FP32KVQ;
    struct golden_run how = {backend, precision, chunk, true};
    struct segment segments[N_SEGMENTS];
    size_t n_ids = 0;
    uint32_t *ids = golden_ids(CASE "inputs.json", &n_ids);
    struct golden *g = golden_open(math ? CASE "expected_math.safetensors"
                                        : CASE "expected_fp32kvq.safetensors");
    struct engine *m = golden_model(GOLDEN "c_replay/model", &how);
    struct seq *s = drive_seq(m);
    struct record r;
    read_segments(segments);
    record_init(&r, m, true);
    for (size_t k = 0; k < N_SEGMENTS; k++) {
        const uint32_t *first = ids + segments[k].start;
        if (segments[k].kind == SEGMENT_INPUT)
            drive_input(m, s, first, segments[k].len, PREFILL_CED);
        else
            drive_forced(m, s, first, segments[k].len);
        char prefix[16];
        snprintf(prefix, sizeof(prefix), "seg%zu", k);
        golden_windows(g, prefix, m, s, t->rows_same, t->rows_share, t->rows_max);
        check_lo(g, s, k);
    }
    assert_int_equal(seq_position(s), n_ids);
    check_logits(g, &r, segments, t);
    check_selections(g, &r, segments, t->selections);
    check_planes(g, m, s, t);
    record_fini(&r);
    golden_close(g);
    engine_free(m);
    free(ids);
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
    run("cpu", PRECISION_MATH, 1);
    run("cpu", PRECISION_MATH, 7);
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
    run("cpu", PRECISION_FP32KVQ, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_ref),
        cmocka_unit_test(test_math_cpu),
        cmocka_unit_test(test_fp32kvq_ref),
        cmocka_unit_test(test_fp32kvq_cpu),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
