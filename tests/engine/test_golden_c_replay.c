/* Golden case c_replay: prefill modes (exact, clipped in both forms, in pieces) and a replay
 * resume, 400 tokens of prompt, window 32, 64 decode steps. */
#include "tests/support/drive.h"
#include "tests/support/golden_model.h"
#include "tests/support/test.h"

#define CASE GOLDEN "c_replay/"
#define N_PROMPT 400
#define N_CACHED 320
#define N_DECODE 64
#define WINDOW 32
#define VOCAB 512
#define HEAD_DIM 64

struct fixture {
    struct engine *m;
    struct record r;
    struct golden *g;
    uint32_t *ids;
};

static void setup(struct fixture *f, const char *backend, uint32_t chunk)
{
    struct golden_run run = {backend, PRECISION_MATH, chunk, false};
    size_t n = 0;
    f->ids = golden_ids(CASE "inputs.json", &n);
    assert_true(n >= N_PROMPT + N_DECODE);
    f->m = golden_model(CASE "model", &run);
    f->g = golden_open(CASE "expected_math.safetensors");
    record_init(&f->r, f->m, false);
}

static void teardown(struct fixture *f)
{
    record_fini(&f->r);
    golden_close(f->g);
    engine_free(f->m);
    free(f->ids);
}

static const float *expected(struct fixture *f, const char *prefix, const char *name)
{
    char full[96];
    snprintf(full, sizeof(full), "%s.%s", prefix, name);
    return golden_f32(f->g, full, NULL);
}

static void check_prompt_logits(struct fixture *f, const char *prefix)
{
    float *got = gather_logits(&f->r, N_PROMPT - WINDOW, WINDOW);
    assert_close(prefix, got, expected(f, prefix, "prompt_logits_last_window"), WINDOW, VOCAB,
                 1e-4);
    free(got);
}

/* A layer's window after the prompt, by ascending position. */
static void check_window(struct fixture *f, struct seq *s, uint32_t layer, const char *prefix,
                         const char *name)
{
    int64_t positions[WINDOW];
    float keys[WINDOW * HEAD_DIM];
    const float *want = expected(f, prefix, name);
    engine_read_window(s, layer, positions, keys);
    for (int slot = 0; slot < WINDOW; slot++) {
        int64_t at = positions[slot] - (N_PROMPT - WINDOW);
        assert_in_range(at, 0, WINDOW - 1);
        assert_close(name, keys + slot * HEAD_DIM, want + at * HEAD_DIM, 1, HEAD_DIM, 2e-5);
    }
}

static void check_windows(struct fixture *f, struct seq *s, const char *prefix)
{
    check_window(f, s, 4, prefix, "first_decoder_window_kv32");
    check_window(f, s, 7, prefix, "last_layer_window_kv32");
}

static void decode(struct fixture *f, struct seq *s, const char *prefix)
{
    drive_forced(f->m, s, f->ids + N_PROMPT, N_DECODE);
    float *got = gather_logits(&f->r, N_PROMPT, N_DECODE);
    assert_close(prefix, got, expected(f, prefix, "decode_logits"), N_DECODE, VOCAB, 1e-4);
    free(got);
}

static void check_planes(struct fixture *f, struct seq *s, const char *prefix)
{
    static const char *const NAMES[] = {"L2.compress_kv32", "L2.index_k32", "L4.compress_kv32",
                                        "L4.index_k32"};
    for (uint32_t i = 0; i < 4; i++) {
        size_t n = 0;
        float *got = read_plane(f->m, s, i, &n);
        assert_int_equal(n, i < 2 ? 232 : 464);
        assert_close(NAMES[i], got, expected(f, prefix, NAMES[i]), n,
                     engine_plane_width(f->m, i), 2e-5);
        free(got);
    }
}

static void run_full(struct fixture *f)
{
    struct seq *s = drive_seq(f->m);
    drive_input(f->m, s, f->ids, N_PROMPT, PREFILL_FULL);
    check_prompt_logits(f, "full");
    check_windows(f, s, "full");
    decode(f, s, "full");
    check_planes(f, s, "full");
    seq_free(s);
}

/* Clipped: only the tail has logits; rows are those of the full computation. */
static void run_clipped(struct fixture *f, enum prefill_mode mode, const char *prefix)
{
    record_clear(&f->r);
    struct seq *s = drive_seq(f->m);
    drive_input(f->m, s, f->ids, N_PROMPT, mode);
    assert_int_equal(f->r.logits.n, WINDOW);
    check_prompt_logits(f, prefix);
    check_windows(f, s, prefix);
    decode(f, s, prefix);
    seq_free(s);
}

static void run_pieces(struct fixture *f)
{
    static const uint64_t BORDERS[] = {0, 37, 200, 400};
    record_clear(&f->r);
    struct seq *s = drive_seq(f->m);
    for (int i = 0; i < 3; i++)
        drive_input(f->m, s, f->ids + BORDERS[i], BORDERS[i + 1] - BORDERS[i], PREFILL_FULL);
    check_prompt_logits(f, "chunked");
    seq_free(s);
}

/* Only the rows of 320 tokens are left: the last 32 of them run again, then the rest of the
 * prompt in the report's form. */
static void run_replay(struct fixture *f)
{
    struct segment segment = {0, N_CACHED, SEGMENT_INPUT, PREFILL_FULL};
    struct tape_view tape = {
        .ids = f->ids, .n_ids = N_CACHED, .segments = &segment, .n_segments = 1};
    struct drive_state st;
    uint64_t n_replayed = 0;
    struct seq *s = drive_seq(f->m);
    drive_input(f->m, s, f->ids, N_CACHED, PREFILL_FULL);
    drive_export(f->m, s, &st);
    seq_free(s);

    record_clear(&f->r);
    s = drive_rebuild(f->m, &st, &tape, RESUME_REPLAY, &n_replayed);
    assert_int_equal(n_replayed, WINDOW);
    drive_input(f->m, s, f->ids + N_CACHED, N_PROMPT - N_CACHED, PREFILL_CED_REPORT);
    check_prompt_logits(f, "enc_dec");
    check_windows(f, s, "enc_dec");
    decode(f, s, "enc_dec");
    check_planes(f, s, "enc_dec");
    seq_free(s);
    drive_state_free(&st);
}

static void run_all(const char *backend, uint32_t chunk)
{
    struct fixture f;
    setup(&f, backend, chunk);
    run_full(&f);
    run_clipped(&f, PREFILL_CED_REPORT, "dec");
    run_clipped(&f, PREFILL_CED, "dec_alt");
    run_pieces(&f);
    run_replay(&f);
    teardown(&f);
}

static void test_ref(void **state)
{
    (void)state;
    run_all("ref", 0);
}

static void test_cpu(void **state)
{
    (void)state;
    run_all("cpu", 0);
}

/* Chunks whose borders fall anywhere, inside the tail, too. */
static void test_cpu_small_chunks(void **state)
{
    (void)state;
    run_all("cpu", 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_cpu_small_chunks),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
