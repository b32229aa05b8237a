/* Tokens are drawn where their logits lie, and are the same ones: a device against the host,
 * row by row and as whole runs; and what crosses to the host for it. */
#include <math.h>
#include <stdlib.h>

#include "engine/model.h"
#include "engine/sample.h"
#include "engine/sampler.h"
#include "engine/tokenizer.h"
#include "kernels/philox.h"
#include "tests/support/calling.h"
#include "tests/support/drive.h"
#include "tests/support/fenced.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model"
#define VOCAB 512
#define N_PROMPT 61
#define N_NEW 40

#define FUNCTIONS                                                                              \
    "[{\"name\":\"read\",\"parameters\":{\"properties\":{\"path\":{\"type\":\"string\"}}}}]"

/* ---- rows ---------------------------------------------------------------------------------
 */

/* What row i is drawn by; every other one is held to calls, some of which are being written. */
static struct sampling how(const struct calling *r, uint32_t i)
{
    return (struct sampling){.seed = i,
                             .temperature = i % 5 ? 1 : 0,
                             .top_p = i % 3 ? 0.8f : 1,
                             .top_k = i % 4 == 3 ? 9 : 0,
                             .min_p = i % 7 == 1 ? 0.01f : 0,
                             .bias = r->bias,
                             .n_bias = i % 3,
                             .rules = i % 2 ? r->rules : NULL};
}

static void fill(float *rows, uint32_t n)
{
    for (size_t i = 0; i < (size_t)n * VOCAB; i++)
        rows[i] = (float)(8 * k_philox_uniform(5, i, 0) - 4);
    rows[5 * VOCAB + 300] = (float)NAN;
    rows[5 * VOCAB + 200] = (float)INFINITY;
}

static void check_rows(struct kernels *k, const struct calling *r)
{
    const uint32_t n = K_SAMPLE_ROWS;
    static float rows[K_SAMPLE_ROWS * VOCAB];
    struct constrain_state calls[K_SAMPLE_ROWS] = {0};
    struct k_sample_entry scratch[2 * VOCAB];
    struct sampling s[K_SAMPLE_ROWS];
    struct sampler *x = NULL;
    struct error e = {0};
    size_t n_crossed = 0;
    fill(rows, n);
    assert_ok(sampler_new(&x, k, VOCAB, &e), &e);
    float *there = k->alloc(k, sizeof(rows));
    k->copy_in(k, there, rows, sizeof(rows));
    for (int round = 0; round < 2; round++) {
        sampler_begin(x);
        for (uint32_t i = 0; i < n; i++) {
            s[i] = how(r, i + (uint32_t)round);
            if (i % 4 == 2 && round) { /* "<" and the mark: a call is written */
                constrain_feed(r->rules, &calls[i], calling_byte(r, '<'));
                constrain_feed(r->rules, &calls[i], r->mark);
            }
            n_crossed += sampler_add(x, &s[i], &calls[i], 100 + i);
        }
        sampler_run(x, there);
        assert_ok(k->sync(k, &e), &e);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t want = 1, got = 1;
            struct error e2 = {0};
            enum err rc = sample_token(&s[i], &calls[i], rows + i * VOCAB, VOCAB, 100 + i,
                                       scratch, &want, &e2);
            assert_int_equal(
                sampler_take(x, i, &s[i], &calls[i], rows + i * VOCAB, 100 + i, &got, &e), rc);
            assert_int_equal(got, want);
            assert_string_equal(e.msg, e2.msg);
            assert_int_equal(rc, i == 5 ? ERR_FORMAT : OK);
            e = (struct error){0};
        }
    }
    /* All where the host has them; on a device those of calls that are being written. */
    assert_int_equal(n_crossed, k->host_memory ? 2 * n : n / 4);
    k->free(k, there);
    sampler_free(x);
}

static void test_rows(void **state)
{
    struct calling r;
    calling_open(&r, MODEL, FUNCTIONS);
    struct kernels k = {0};
    struct error e = {0};
    (void)state;
    assert_ok(kernels_ref(&k, NULL, &e), &e);
    check_rows(&k, &r);
    kernels_fini(&k);
    assert_ok(fenced_ref_open(&k, NULL, &e), &e);
    check_rows(&k, &r);
    kernels_fini(&k);
    assert_int_equal(fenced_bytes(), 0);
    calling_close(&r);
}

/* More biases than there is room for: the row crosses, those before it do not. */
static void test_many_biases(void **state)
{
    static struct logit_bias many[SAMPLER_MAX_BIAS];
    struct kernels k = {0};
    struct sampler *x = NULL;
    struct error e = {0};
    const struct constrain_state none = {0};
    (void)state;
    for (uint32_t i = 0; i < SAMPLER_MAX_BIAS; i++)
        many[i] = (struct logit_bias){i, 1};
    const struct sampling all = {.top_p = 1, .bias = many, .n_bias = SAMPLER_MAX_BIAS};
    const struct sampling one = {.top_p = 1, .bias = many, .n_bias = 1};
    assert_ok(fenced_ref_open(&k, NULL, &e), &e);
    assert_ok(sampler_new(&x, &k, VOCAB, &e), &e);
    sampler_begin(x);
    assert_false(sampler_add(x, &all, &none, 1));
    assert_true(sampler_add(x, &one, &none, 2));
    sampler_begin(x);
    assert_false(sampler_add(x, &one, &none, 1));
    assert_true(sampler_add(x, &all, &none, 2));
    assert_false(sampler_add(x, &one, &none, 3));
    sampler_free(x);
    kernels_fini(&k);
}

/* ---- runs ---------------------------------------------------------------------------------
 */

static size_t n_copied;
static void (*copy_out)(struct kernels *k, void *dst, const void *src, size_t bytes);

static void count_copies(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    n_copied += bytes;
    copy_out(k, dst, src, bytes);
}

struct outcome {
    uint32_t ids[N_NEW];
    size_t n, n_copied; /* bytes, of the run */
    struct seq_digest digest;
    uint64_t n_guessed, n_right;
};

static struct outcome run(const char *backend, const struct sampling *s, uint32_t n_drafts,
                          bool digests)
{
    struct engine_options o = {
        .draft_tokens = n_drafts, .digests = digests, .no_weight_digest = true, .n_threads = 1};
    struct outcome out = {0};
    struct error e = {0};
    uint32_t prompt[N_PROMPT];
    if (backend)
        backend_option(&o, backend);
    struct engine *m = drive_open(MODEL, &o);
    struct seq *seq = drive_seq(m);
    drive_ids(prompt, N_PROMPT, 5);
    drive_input(m, seq, prompt, N_PROMPT, PREFILL_CED);
    copy_out = model_of(m)->k.copy_out;
    model_of(m)->k.copy_out = count_copies;
    n_copied = 0;
    const struct generate_options g = {.sampling = *s, .max_tokens = N_NEW};
    assert_ok(seq_generate(seq, &g, &e), &e);
    (void)drive_run(m, out.ids, N_NEW, &out.n);
    out.digest = seq_digest(seq);
    out.n_copied = n_copied;
    engine_draft_counts(m, &out.n_guessed, &out.n_right);
    model_of(m)->k.copy_out = copy_out;
    engine_free(m);
    return out;
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof(*a->ids));
    assert_memory_equal(&a->digest, &b->digest, sizeof(a->digest));
}

/* Rows cross for digests, and for calls as they are written; else what is drawn does. */
static void test_runs(void **state)
{
    const size_t row = VOCAB * sizeof(float);
    struct calling r;
    calling_open(&r, MODEL, FUNCTIONS);
    struct sampling s = {.seed = 4, .temperature = 1, .top_p = 0.9f};
    (void)state;
    struct outcome host = run(NULL, &s, 0, false), there = run("fenced", &s, 0, false);
    assert_int_equal(host.n, N_NEW);
    assert_same(&host, &there);
    assert_true(there.n_copied < N_NEW * row / 8);
    host = run(NULL, &s, 0, true), there = run("fenced", &s, 0, true);
    assert_same(&host, &there);
    assert_true(there.n_copied >= N_NEW * row);
    s.rules = r.rules; /* free text: what may come is known as a list */
    host = run(NULL, &s, 0, false), there = run("fenced", &s, 0, false);
    assert_same(&host, &there);
    assert_true(there.n_copied < N_NEW * row / 8);
    host = run(NULL, &s, 2, false), there = run("fenced", &s, 2, false); /* nor for guesses */
    assert_same(&host, &there);
    assert_true(there.n_guessed > N_NEW / 2 && there.n_right > 0);
    assert_int_equal(there.n_guessed, host.n_guessed);
    assert_int_equal(there.n_right, host.n_right);
    assert_true(there.n_copied < N_NEW * row / 4);
    s.bias = r.bias, s.n_bias = 3;
    host = run(NULL, &s, 2, true), there = run("fenced", &s, 2, true);
    assert_same(&host, &there);
    host = run(NULL, &s, 0, false), there = run("fenced", &s, 0, false);
    assert_same(&host, &there);
    assert_true(there.n_copied > 5 * row && there.n_copied < N_NEW * row);
    s.temperature = 0, s.n_bias = 0;
    s.rules = NULL, s.top_logprobs = 3; /* of what the model gave, which crosses */
    host = run(NULL, &s, 0, false), there = run("fenced", &s, 0, false);
    assert_same(&host, &there);
    assert_true(there.n_copied >= N_NEW * row);
    calling_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_many_biases),
                                       cmocka_unit_test(test_runs)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
