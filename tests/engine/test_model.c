/* Opening a checkpoint: what does not fit is refused with both values; the fingerprint follows
 * what results depend on. And the ends of a sequence: a full context, an interrupted step. */
#include "base/fault.h"
#include "base/fs.h"
#include "tests/support/checkpoint.h"
#include "tests/support/drive.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#define SMALL GOLDEN "c_replay/model/config.json"

static char dir[TEMPDIR_BYTES];

static int setup(void **state)
{
    (void)state;
    tempdir_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tempdir_remove(dir);
    return 0;
}

/* Writes the small config with the first `from` replaced by `to`; its path. */
static const char *edited_config(const char *from, const char *to)
{
    static char path[128];
    AUTO(buf) struct buf text = BUF_INIT(1 << 20), out = BUF_INIT(1 << 20);
    struct error e = {0};
    assert_ok(fs_read_file(SMALL, &text, &e), &e);
    const char *at = strstr(buf_str(&text), from);
    assert_non_null(at);
    assert_ok(buf_add(&out, text.data, (size_t)(at - buf_str(&text)), &e), &e);
    assert_ok(buf_add_str(&out, to, &e), &e);
    assert_ok(buf_add_str(&out, at + strlen(from), &e), &e);
    snprintf(path, sizeof(path), "%s/edited.json", dir);
    assert_ok(fs_write_atomic(path, out.data, out.len, 0600, &e), &e);
    return path;
}

static void make(const char *config, const char *out, uint64_t seed, uint64_t shard_bytes)
{
    struct error e = {0};
    struct checkpoint_options o = {.config = config,
                                   .tokenizer = CHECKPOINT_TOKENIZER,
                                   .out = out,
                                   .seed = seed,
                                   .shard_bytes = shard_bytes};
    assert_ok(checkpoint_make(&o, &e), &e);
}

static void path_in(char *out, size_t cap, const char *name)
{
    snprintf(out, cap, "%s/%s", dir, name);
}

/* A checkpoint of the small config beside another config. */
static void expect_refusal(const char *from, const char *to, enum err code, const char *says)
{
    char model[160], config[192];
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    struct engine_options o = {.no_weight_digest = true, .n_threads = 1};
    struct engine *m = NULL;
    struct error e = {0};
    path_in(model, sizeof(model), "refused");
    make(SMALL, model, 1, 0);
    assert_ok(fs_read_file(edited_config(from, to), &text, &e), &e);
    snprintf(config, sizeof(config), "%s/config.json", model);
    assert_ok(fs_write_atomic(config, text.data, text.len, 0600, &e), &e);
    assert_int_equal(engine_open_model(&m, model, &o, &e), code);
    if (!strstr(e.msg, says))
        fail_msg("\"%s\", want \"%s\"", e.msg, says);
}

static void test_wrong_weights(void **state)
{
    (void)state;
    expect_refusal("\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 96", ERR_FORMAT,
                   "layers.0.ffn.experts.0.w1.weight: I8 [64, 64], want I8 [96, 64]");
    expect_refusal("\"vocab_size\": 512", "\"vocab_size\": 544", ERR_FORMAT,
                   "embed.weight: BF16 [512, 128], want BF16 [544, 128]");
    expect_refusal("\"n_routed_experts\": 8", "\"n_routed_experts\": 9", ERR_FORMAT,
                   "layers.0.ffn.gate.weight: BF16 [8, 128], want BF16 [9, 128]");
    expect_refusal("\"n_routed_experts\": 8", "\"n_routed_experts\": 7", ERR_FORMAT,
                   "[7, 128]");
    expect_refusal("\"engram_compressed_vocab_size\": 424",
                   "\"engram_compressed_vocab_size\": 425", ERR_FORMAT, "425");
}

static void test_options(void **state)
{
    static const struct {
        struct engine_options o;
        enum err code;
        const char *says;
    } CASES[] = {
        {{.backend = "cuda", .cuda_library = "/nonexistent.so"},
         ERR_UNSUPPORTED,
         "backend cuda: /nonexistent.so"},
        {{.backend = "gpu"}, ERR_INVAL, "backend gpu"},
        {{.isa = "mmx"}, ERR_INVAL, "mmx"},
        {{.chunk_tokens = 1 << 20}, ERR_LIMIT, "chunk of 1048576"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++) {
        struct engine *m = NULL;
        struct error e = {0};
        assert_int_equal(engine_open_model(&m, GOLDEN "c_replay/model", &CASES[i].o, &e),
                         CASES[i].code);
        if (!strstr(e.msg, CASES[i].says))
            fail_msg("\"%s\", want \"%s\"", e.msg, CASES[i].says);
        assert_null(m);
    }
}

static void fingerprint(const char *model, enum precision precision,
                        uint8_t out[STATE_KEY_BYTES])
{
    struct engine_options o = {.precision = precision, .n_threads = 2};
    struct engine *m = drive_open(model, &o);
    memcpy(out, engine_describe(m)->layout->fingerprint, STATE_KEY_BYTES);
    engine_free(m);
}

static void flip_last_byte(const char *path)
{
    AUTO(buf) struct buf bytes = BUF_INIT(64 << 20);
    struct error e = {0};
    assert_ok(fs_read_file(path, &bytes, &e), &e);
    bytes.data[bytes.len - 1] ^= 1;
    assert_ok(fs_write_atomic(path, bytes.data, bytes.len, 0600, &e), &e);
}

static void test_fingerprint(void **state)
{
    char one[160], many[160], other[160], file[224];
    uint8_t a[STATE_KEY_BYTES], b[STATE_KEY_BYTES];
    (void)state;
    path_in(one, sizeof(one), "one");
    path_in(many, sizeof(many), "many");
    path_in(other, sizeof(other), "other");
    make(SMALL, one, 1, 0);
    make(SMALL, many, 1, 1 << 20);
    make(SMALL, other, 2, 0);
    fingerprint(one, PRECISION_FAST, a);
    fingerprint(many, PRECISION_FAST, b); /* how it is cut into shards does not count */
    assert_memory_equal(a, b, sizeof(a));
    fingerprint(one, PRECISION_FP32KVQ, b);
    assert_memory_not_equal(a, b, sizeof(a));
    fingerprint(other, PRECISION_FAST, b);
    assert_memory_not_equal(a, b, sizeof(a));
    snprintf(file, sizeof(file), "%s/model-00001-of-00001.safetensors", one);
    flip_last_byte(file);
    fingerprint(one, PRECISION_FAST, b);
    assert_memory_not_equal(a, b, sizeof(a));
}

/* Copies the golden model, the header of its shard made longer by `more` spaces. */
static void shift_data(const char *model, size_t more)
{
    static const char *const NAMES[] = {"config.json", "tokenizer.json",
                                        "model.safetensors.index.json", "model.safetensors"};
    struct error e = {0};
    assert_ok(fs_mkdir_p(model, &e), &e);
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(*NAMES); i++) {
        AUTO(buf) struct buf in = BUF_INIT(64 << 20), out = BUF_INIT(64 << 20);
        char path[224];
        snprintf(path, sizeof(path), GOLDEN "c_replay/model/%s", NAMES[i]);
        assert_ok(fs_read_file(path, &in, &e), &e);
        size_t head = 0; /* bytes before the data */
        if (i == 3) {
            uint64_t n;
            memcpy(&n, in.data, sizeof(n));
            head = sizeof(n) + (size_t)n;
            n += more;
            memcpy(in.data, &n, sizeof(n));
        }
        assert_ok(buf_add(&out, in.data, head, &e), &e);
        for (size_t k = 0; head && k < more; k++)
            assert_ok(buf_add_byte(&out, ' ', &e), &e);
        assert_ok(buf_add(&out, in.data + head, in.len - head, &e), &e);
        snprintf(path, sizeof(path), "%s/%s", model, NAMES[i]);
        assert_ok(fs_write_atomic(path, out.data, out.len, 0600, &e), &e);
    }
}

/* A header of any length is well formed, and puts the data anywhere. */
static void test_data_anywhere(void **state)
{
    struct engine_options o = {.no_weight_digest = true, .digests = true, .n_threads = 1};
    struct seq_digest at[8];
    uint32_t ids[40];
    (void)state;
    drive_ids(ids, 40, 1);
    for (size_t more = 0; more < 8; more++) {
        char model[160];
        snprintf(model, sizeof(model), "%s/shifted-%zu", dir, more);
        shift_data(model, more);
        struct engine *m = drive_open(model, &o);
        struct seq *s = drive_seq(m);
        drive_input(m, s, ids, 40, PREFILL_FULL);
        at[more] = seq_digest(s);
        assert_int_equal(at[more].n_rows, 40);
        assert_memory_equal(at[more].d, at[0].d, sizeof(at[0].d));
        engine_free(m);
    }
}

/* A digest is of the segment that the position is in, of its rows alone. */
static void test_digest_of_a_segment(void **state)
{
    struct engine_options o = {.no_weight_digest = true, .digests = true, .chunk_tokens = 16};
    struct generate_options g = {.sampling = {.seed = 1, .temperature = 1, .top_p = 1},
                                 .max_tokens = 5};
    uint32_t ids[40], sampled[8];
    struct error e = {0};
    size_t n = 0;
    (void)state;
    drive_ids(ids, 40, 1);
    struct engine *m = drive_open(GOLDEN "c_replay/model", &o);
    struct seq *s = drive_seq(m);
    drive_input(m, s, ids, 40, PREFILL_FULL);
    assert_int_equal(seq_digest(s).n_rows, 40);
    drive_input(m, s, ids, 20, PREFILL_FULL);
    assert_int_equal(seq_digest(s).n_rows, 20);
    assert_ok(seq_generate(s, &g, &e), &e);
    drive_run(m, sampled, 8, &n);
    assert_true(n > 0);
    assert_int_equal(seq_digest(s).n_rows, n);
    drive_input(m, s, ids, 30, PREFILL_FULL);
    assert_int_equal(seq_digest(s).n_rows, 30);
    engine_free(m);
}

static void test_full_context(void **state)
{
    char model[160];
    struct engine_options o = {.no_weight_digest = true, .n_threads = 1};
    uint32_t ids[101], sampled[64];
    struct error e = {0};
    size_t n = 0;
    (void)state;
    path_in(model, sizeof(model), "short");
    make(edited_config("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 100"),
         model, 3, 0);
    drive_ids(ids, 101, 1);
    struct engine *m = drive_open(model, &o);
    struct seq *s = drive_seq(m);
    assert_int_equal(seq_input(s, ids, 101, PREFILL_CED, &e), ERR_LIMIT);
    assert_int_equal(seq_position(s), 0);
    drive_input(m, s, ids, 95, PREFILL_CED);
    assert_int_equal(seq_input(s, ids, 6, PREFILL_CED, &e), ERR_LIMIT);
    struct generate_options g = {.sampling = {.seed = 1, .temperature = 1, .top_p = 1},
                                 .max_tokens = UINT64_MAX};
    assert_ok(seq_generate(s, &g, &e), &e);
    enum end_reason reason = drive_run(m, sampled, 64, &n);
    if (reason != END_EOS)
        assert_int_equal(reason, END_LENGTH);
    assert_int_equal(seq_position(s), 95 + n);
    assert_true(reason == END_EOS || n == 5);
    if (seq_position(s) == 100) {
        assert_int_equal(seq_generate(s, &g, &e), ERR_LIMIT);
        assert_int_equal(seq_input(s, ids, 1, PREFILL_CED, &e), ERR_LIMIT);
    }
    engine_free(m);
}

/* An interrupted chunk is dropped whole; afterwards everything comes out the same. */
static void test_interrupt(void **state)
{
    struct engine_options o = {.no_weight_digest = true, .chunk_tokens = 40, .digests = true};
    uint32_t ids[120];
    struct drive_state plain, interrupted;
    (void)state;
    drive_ids(ids, 120, 2);
    struct engine *m = drive_open(GOLDEN "c_replay/model", &o);
    struct seq *s = drive_seq(m);
    drive_input(m, s, ids, 120, PREFILL_CED);
    drive_export(m, s, &plain);
    seq_free(s);

    s = drive_seq(m);
    struct error e = {0};
    struct engine_event ev[8];
    size_t n = 0, empty = 0;
    assert_ok(seq_input(s, ids, 120, PREFILL_CED, &e), &e);
    for (int i = 0; engine_has_work(m); i++) {
        uint64_t before = seq_position(s);
        if (i % 2 == 0)
            engine_interrupt(m);
        assert_ok(engine_step(m, ev, 8, &n, &e), &e);
        if (i % 2 == 0) {
            assert_int_equal(n, 0);
            assert_int_equal(seq_position(s), before);
            empty++;
        }
    }
    assert_int_equal(empty, 3);
    drive_export(m, s, &interrupted);
    drive_assert_planes(&plain, &interrupted);
    drive_assert_tip(&plain, &interrupted);
    assert_memory_equal(&plain.digest, &interrupted.digest, sizeof(plain.digest));
    drive_state_free(&plain);
    drive_state_free(&interrupted);
    engine_free(m);
}

/* What is left of an open input segment must be given as it was begun. */
static void test_open_segment(void **state)
{
    struct engine_options o = {.no_weight_digest = true, .chunk_tokens = 16};
    uint32_t ids[100];
    uint64_t start = 0;
    enum prefill_mode mode = PREFILL_FULL;
    struct error e = {0};
    struct engine_event ev[8];
    size_t n = 0;
    (void)state;
    drive_ids(ids, 100, 2);
    struct engine *m = drive_open(GOLDEN "c_replay/model", &o);
    struct seq *s = drive_seq(m);
    assert_ok(seq_input(s, ids, 100, PREFILL_CED, &e), &e);
    assert_ok(engine_step(m, ev, 8, &n, &e), &e);
    seq_cancel(s);
    assert_int_equal(drive_run(m, NULL, 0, NULL), END_CANCELLED);
    assert_int_equal(seq_position(s), 16);
    assert_true(seq_segment_open(s, &start, &mode));
    assert_int_equal(start, 0);
    assert_int_equal(mode, PREFILL_CED);
    struct generate_options g = {.sampling = {.top_p = 1}, .max_tokens = 1};
    assert_int_equal(seq_generate(s, &g, &e), ERR_CONFLICT);
    assert_int_equal(seq_input(s, ids + 16, 83, PREFILL_CED, &e), ERR_INVAL);
    assert_int_equal(seq_input(s, ids + 16, 84, PREFILL_FULL, &e), ERR_INVAL);
    drive_input(m, s, ids + 16, 84, PREFILL_CED);
    assert_false(seq_segment_open(s, &start, &mode));
    engine_free(m);
}

/* The n-th allocation fails: opening says so, leaks nothing and leaves nothing behind. Steps
 * grow, there is an allocation per tensor. */
static void test_no_memory_to_open(void **state)
{
    struct engine_options o = {.n_threads = 1};
    size_t failures = 0;
    (void)state;
    for (uint64_t nth = 1;; nth += 1 + nth / 12) {
        struct engine *m = NULL;
        struct error e = {0};
        fault_arm(FAULT_FAIL, "alloc", nth);
        enum err rc = engine_open_model(&m, GOLDEN "c_replay/model", &o, &e);
        bool hit = fault_disarm();
        if (!hit) {
            assert_ok(rc, &e);
            engine_free(m);
            break;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_null(m);
        failures++;
    }
    assert_true(failures > 20);
}

/* The same in a step: the sequence fails with an event that says why, the engine lives on. */
static void test_no_memory_in_a_step(void **state)
{
    struct engine_options o = {.n_threads = 1, .chunk_tokens = 64, .no_weight_digest = true};
    struct engine *m = drive_open(GOLDEN "c_replay/model", &o);
    uint32_t ids[64];
    size_t failures = 0;
    (void)state;
    drive_ids(ids, 64, 4);
    for (uint64_t nth = 1;; nth++) {
        struct seq *s = NULL;
        struct error e = {0};
        struct engine_event ev[8];
        size_t n = 0;
        fault_arm(FAULT_FAIL, "alloc", nth);
        enum err rc = seq_new(m, NULL, &s, &e);
        if (!rc)
            rc = seq_input(s, ids, 64, PREFILL_CED, &e);
        if (!rc)
            rc = engine_step(m, ev, 8, &n, &e);
        bool hit = fault_disarm();
        if (!hit) {
            assert_ok(rc, &e);
            assert_int_equal(seq_position(s), 64);
            seq_free(s);
            break;
        }
        if (!rc) {
            assert_int_equal(n, 1);
            assert_int_equal(ev[0].reason, END_FAILED);
            assert_int_equal(ev[0].error.code, ERR_NOMEM);
            assert_int_equal(seq_position(s), 0);
        } else {
            assert_int_equal(rc, ERR_NOMEM);
        }
        seq_free(s);
        failures++;
    }
    assert_true(failures >= 5);
    engine_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_weights),     cmocka_unit_test(test_options),
        cmocka_unit_test(test_fingerprint),       cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_interrupt),         cmocka_unit_test(test_open_segment),
        cmocka_unit_test(test_no_memory_to_open), cmocka_unit_test(test_no_memory_in_a_step),
        cmocka_unit_test(test_data_anywhere),     cmocka_unit_test(test_digest_of_a_segment),
    };
    return !!cmocka_run_group_tests(tests, setup, teardown);
}
