/* What is kept in memory changes nothing but time: under every budget, down to the smallest,
 * with drafts and without, ids, logits, planes and tips are bit by bit those of a model that
 * holds everything. And a disk that fails is one clear error, after which the rest goes on. */
#include <inttypes.h>

#include "base/fault.h"
#include "engine/model.h"
#include "tests/support/drive.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model" /* 2 draft layers, blocks of 3, 2 Engram layers */
#define N_PROMPT 90
#define N_NEW 24
#define N_SECOND 45

struct outcome {
    uint32_t ids[2 * N_NEW];
    size_t n;
    struct drive_state state;
    struct engine_tier tiers[ENGINE_MAX_TIERS];
    size_t n_tiers;
};

static const struct engine_options EVERYTHING = {.precision = PRECISION_FP32KVQ,
                                                 .digests = true,
                                                 .no_weight_digest = true,
                                                 .n_threads = 1,
                                                 .chunk_tokens = 32};

static void generate(struct engine *m, struct seq *s, struct outcome *out)
{
    struct error e = {0};
    const struct generate_options g = {
        .sampling = {.seed = 3, .temperature = 0.3f, .top_p = 1}, .max_tokens = N_NEW};
    size_t got = 0;
    assert_ok(seq_generate(s, &g, &e), &e);
    assert_int_not_equal(drive_run(m, out->ids + out->n, 2 * N_NEW - out->n, &got), END_FAILED);
    out->n += got;
}

/* A prompt, a run, a second input, a second run. */
static void converse(struct engine *m, struct outcome *out)
{
    uint32_t ids[N_PROMPT + N_SECOND];
    struct seq *s = drive_seq(m);
    *out = (struct outcome){0};
    drive_ids(ids, N_PROMPT + N_SECOND, 5);
    drive_input(m, s, ids, N_PROMPT, PREFILL_CED);
    generate(m, s, out);
    drive_input(m, s, ids + N_PROMPT, N_SECOND, PREFILL_FULL);
    generate(m, s, out);
    drive_export(m, s, &out->state);
    out->n_tiers = engine_tiers(m, out->tiers);
    seq_free(s);
}

static void run(const struct engine_options *o, struct outcome *out)
{
    struct engine *m = drive_open(MODEL, o);
    converse(m, out);
    engine_free(m);
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof(*a->ids));
    drive_assert_planes(&a->state, &b->state);
    drive_assert_tip(&a->state, &b->state);
    assert_true(a->state.digest.n_rows > 0);
    assert_memory_equal(&a->state.digest, &b->state.digest, sizeof(a->state.digest));
}

static struct engine_tier tier(const struct outcome *x, const char *name)
{
    size_t i = 0;
    while (i < x->n_tiers && strcmp(x->tiers[i].name, name) != 0)
        i++;
    assert_true(i < x->n_tiers);
    return x->tiers[i];
}

/* The smallest budget of each tier, as an engine without budgets tells it. */
static uint64_t minimum(const char *name)
{
    struct outcome x = {0};
    struct engine *m = drive_open(MODEL, &EVERYTHING);
    x.n_tiers = engine_tiers(m, x.tiers);
    engine_free(m);
    assert_true(tier(&x, name).minimum_bytes > 0);
    assert_int_equal(tier(&x, name).budget_bytes, 0);
    return tier(&x, name).minimum_bytes;
}

/* ---- experts ------------------------------------------------------------------------------
 */

/* 8 layers of 8 and 2 draft layers of 4. */
#define N_EXPERTS 72

static void test_experts(void **state)
{
    static const uint64_t SLOTS[] = {1, 2, 3, 7, 20, 60, N_EXPERTS, 1000};
    uint64_t slot = minimum("experts");
    struct outcome all, some;
    (void)state;
    run(&EVERYTHING, &all);
    for (size_t i = 0; i < sizeof(SLOTS) / sizeof(*SLOTS); i++) {
        for (uint32_t drafts = 0; drafts <= 3; drafts += 3) {
            struct engine_options o = EVERYTHING;
            o.expert_ram = SLOTS[i] * slot + slot - 1; /* the rest of a slot is of no use */
            o.draft_tokens = drafts;
            o.n_threads = 1 + i % 2;
            run(&o, &some);
            assert_same(&all, &some);
            const struct engine_tier t = tier(&some, "experts");
            assert_int_equal(t.budget_bytes, o.expert_ram);
            assert_true(t.resident_bytes > 0 && t.resident_bytes <= SLOTS[i] * slot);
            assert_true(t.misses > 0 && t.read_bytes > t.misses * slot / 2);
            if (SLOTS[i] >= N_EXPERTS) /* each is read once */
                assert_true(t.misses <= N_EXPERTS && t.hits > 10 * t.misses);
            drive_state_free(&some.state);
        }
    }
    drive_state_free(&all.state);
}

/* The last draws of a cache that is too small are better than none: scans do not empty it. */
static void test_scan(void **state)
{
    uint64_t slot = minimum("experts");
    struct engine_options o = EVERYTHING;
    struct outcome half;
    (void)state;
    o.chunk_tokens = 1; /* every token goes through all layers */
    o.expert_ram = 14 * slot; /* 16 experts a token: the least recently used is never hit */
    run(&o, &half);
    const struct engine_tier t = tier(&half, "experts");
    if (t.hits * 10 < t.hits + t.misses)
        fail_msg("%" PRIu64 " hits, %" PRIu64 " misses", t.hits, t.misses);
    drive_state_free(&half.state);
}

static void test_below_minimum(void **state)
{
    struct engine *m = NULL;
    struct error e = {0};
    struct engine_options o = EVERYTHING;
    char want[32];
    (void)state;
    o.expert_ram = minimum("experts") - 1;
    assert_int_equal(engine_open_model(&m, MODEL, &o, &e), ERR_LIMIT);
    snprintf(want, sizeof(want), "needs %" PRIu64, minimum("experts"));
    assert_non_null(strstr(e.msg, want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_scan),
        cmocka_unit_test(test_below_minimum),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
