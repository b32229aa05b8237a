/* Rows of Engram tables kept in a device under a byte budget: logits, ids, planes and tips are
 * those of a device that is handed each token's rows, at every budget, with a cache on the host
 * behind it and without; what is expected is there before it is looked up; and what fails
 * leaves nothing behind that is wrong. */
#include <string.h>

#include "base/fault.h"
#include "engine/engram_slots.h"
#include "engine/forward.h"
#include "engine/row_index.h"
#include "tests/support/conversation.h"
#include "tests/support/fenced.h"
#include "tests/support/golden.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model" /* 2 Engram layers */
#define N_PROMPT 90

static struct engine_options options(uint64_t engram_device, uint64_t engram_ram)
{
    struct engine_options o = {.precision = PRECISION_FP32KVQ,
                               .digests = true,
                               .no_weight_digest = true,
                               .n_threads = 1,
                               .chunk_tokens = 32,
                               .engram_ram = engram_ram,
                               .engram_device = engram_device};
    backend_option(&o, "fenced");
    return o;
}

static struct engine *open_slots(uint64_t engram_device, uint64_t engram_ram)
{
    struct engine_options o = options(engram_device, engram_ram);
    return drive_open(MODEL, &o);
}

static struct engine_tier tier_of(const struct engine *m)
{
    struct engine_tier t[ENGINE_MAX_TIERS];
    size_t n = engine_tiers(m, t), i = 0;
    while (i < n && strcmp(t[i].name, "engram-device") != 0)
        i++;
    assert_true(i < n);
    return t[i];
}

static uint64_t smallest(void)
{
    struct engine *m = open_slots(0, 0);
    uint64_t n = tier_of(m).minimum_bytes;
    assert_int_equal(tier_of(m).budget_bytes, 0);
    engine_free(m);
    assert_true(n > 0);
    return n;
}

/* Opens, converses and compares; what the slots did. */
static struct engine_tier run(const struct engine_options *o, const struct conversation *want,
                              uint64_t *ahead_hits)
{
    struct conversation got;
    struct engine *m = drive_open(MODEL, o);
    conversation_run(m, N_PROMPT, &got);
    conversation_assert_same(want, &got);
    drive_state_free(&got.state);
    struct engine_tier t = tier_of(m);
    *ahead_hits = engram_slots_ahead_hits(model_of(m)->engram_slots);
    engine_free(m);
    assert_int_equal(fenced_bytes(), 0);
    return t;
}

static void test_budgets(void **state)
{
    static const uint64_t TIMES[] = {1, 2, 5, 60, 100000};
    uint64_t least = smallest(), ahead = 0;
    struct conversation all;
    (void)state;
    struct engine *m = open_slots(0, 0);
    conversation_run(m, N_PROMPT, &all);
    engine_free(m);
    for (size_t i = 0; i < sizeof(TIMES) / sizeof(*TIMES); i++)
        for (int cached = 0; cached < 2; cached++) {
            /* The host's cache is the smaller one in turn. */
            struct engine_options o =
                options(TIMES[i] * least, cached ? 3 * TIMES[4 - i] * least : 0);
            o.draft_tokens = i % 2 ? 3 : 0;
            const struct engine_tier t = run(&o, &all, &ahead);
            assert_int_equal(t.budget_bytes, o.engram_device);
            assert_true(t.resident_bytes > 0 && t.resident_bytes <= o.engram_device);
            assert_true(t.misses + ahead > 0 && t.read_bytes > 0);
            if (TIMES[i] < 60 || cached)
                continue;
            /* Tables that are in memory: rows are there before they are looked up. */
            assert_true(t.hits > t.misses);
            assert_true(ahead > 10 * t.misses);
        }
    drive_state_free(&all.state);
}

/* A row crosses the bus once where there is room for all: who comes again finds it there. And
 * the first time it is there before its layer runs, as far as the host has it. */
static void test_once(void **state)
{
    struct conversation first, again;
    (void)state;
    for (int cached = 0; cached < 2; cached++) {
        struct engine *m = open_slots(UINT64_C(1) << 30, cached ? 1 << 30 : 0);
        conversation_run(m, N_PROMPT, &first);
        const struct engine_tier before = tier_of(m);
        assert_true(engram_slots_ahead_hits(model_of(m)->engram_slots) > 0);
        conversation_run(m, N_PROMPT, &again);
        const struct engine_tier after = tier_of(m);
        conversation_assert_same(&first, &again);
        assert_true(before.read_bytes > 0);
        assert_int_equal(after.read_bytes, before.read_bytes);
        assert_int_equal(after.misses, before.misses);
        assert_int_equal(after.hits - before.hits, before.hits + before.misses);
        drive_state_free(&first.state);
        drive_state_free(&again.state);
        engine_free(m);
    }
}

/* ---- what is counted ----------------------------------------------------------------------
 */

static void refused(const struct engine_options *o, enum err want, const char *text)
{
    struct engine *m = NULL;
    struct error e = {0};
    assert_int_equal(engine_open_model(&m, MODEL, o, &e), want);
    if (!strstr(e.msg, text))
        fail_msg("%s, want %s", e.msg, text);
}

static void test_counted(void **state)
{
    uint64_t least = smallest();
    (void)state;
    struct engine_options o = options(least - 1, 0);
    refused(&o, ERR_LIMIT, "one token needs");
    o = options(least, 0);
    o.open_kernels = NULL;
    o.backend = "cpu";
    refused(&o, ERR_INVAL, "computes in memory of the host");

    struct engine *m = open_slots(0, 0);
    size_t without = fenced_bytes(), cap = model_of(m)->work->cap;
    const struct config c = model_of(m)->config;
    size_t tables = model_of(m)->engram.n_tables, row = c.engram_dim + c.engram_dim / 32;
    engine_free(m);
    m = open_slots(10 * least, 0);
    size_t n = engram_slots_rows(model_of(m)->engram_slots);
    assert_int_equal(n * row, tier_of(m).resident_bytes);
    /* Twice: the slots, and what passes; the rows of a chunk's tokens have no buffers more. */
    assert_int_equal(fenced_bytes(),
                     without - cap * tables * row + 2 * n * row + n * sizeof(uint64_t));
    engine_free(m);

    o = options(engram_slots_all_bytes(&c), 0);
    fenced_limit(without / 2 + engram_slots_all_bytes(&c) / 2);
    struct error e = {0};
    enum err rc = engine_open_model(&m, MODEL, &o, &e);
    assert_true(rc == ERR_LIMIT || rc == ERR_NOMEM);
    fenced_limit(SIZE_MAX);
    assert_int_equal(fenced_bytes(), 0);
}

/* ---- what fails ---------------------------------------------------------------------------
 */

static void put_nothing(struct kernels *k, const struct k_engram_put *a)
{
    (void)k, (void)a;
}

static enum err tell(struct kernels *k, struct error *e)
{
    (void)k;
    return err_set(e, ERR_GPU, "no copies");
}

/* Feeds a prompt to a new sequence; the code that it ended with. */
static enum err try_prompt(struct engine *m, struct error *failure)
{
    uint32_t ids[N_PROMPT];
    struct seq *s = drive_seq(m);
    struct error e = {0};
    *failure = (struct error){0};
    drive_ids(ids, N_PROMPT, 5);
    assert_ok(seq_input(s, ids, N_PROMPT, PREFILL_FULL, &e), &e);
    while (engine_has_work(m)) {
        struct engine_event ev[8];
        size_t n = 0;
        assert_ok(engine_step(m, ev, 8, &n, &e), &e);
        for (size_t i = 0; i < n; i++)
            if (ev[i].kind == ENGINE_DONE && ev[i].reason == END_FAILED)
                *failure = ev[i].error;
    }
    seq_free(s);
    return failure->code;
}

static void test_failures(void **state)
{
    struct conversation all, after;
    struct error e = {0};
    (void)state;
    struct engine *m = open_slots(0, 0);
    conversation_run(m, N_PROMPT, &all);
    engine_free(m);

    /* What was queued for the slots has not happened: none of it counts. */
    m = open_slots(UINT64_C(1) << 30, 0);
    struct kernels *k = &model_of(m)->k, works = *k;
    k->engram_put = put_nothing;
    k->sync = tell;
    assert_int_equal(try_prompt(m, &e), ERR_GPU);
    *k = works;
    conversation_run(m, N_PROMPT, &after);
    conversation_assert_same(&all, &after);
    drive_state_free(&after.state);
    engine_free(m);

    /* A disk that fails under the host's cache. */
    m = open_slots(4 * smallest(), 4 * smallest());
    for (uint64_t at = 1; at < 200; at = 3 * at + 1) {
        fault_arm(FAULT_FAIL, "tier.read", at);
        (void)try_prompt(m, &e);
        assert_true(fault_disarm());
        conversation_run(m, N_PROMPT, &after);
        conversation_assert_same(&all, &after);
        drive_state_free(&after.state);
    }
    fault_arm(FAULT_FAIL_FROM, "tier.read", 1);
    struct engine *other = open_slots(UINT64_C(1) << 30, 4 * smallest());
    assert_int_equal(try_prompt(other, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "Input/output error"));
    assert_true(fault_disarm());
    assert_int_equal(try_prompt(other, &e), OK);
    engine_free(other);
    engine_free(m);
    drive_state_free(&all.state);
}

/* ---- the index ----------------------------------------------------------------------------
 */

/* Rows come and go in a small one; it finds what was put last, and gives away nothing that a
 * fetch needs or that is on its way. */
static void test_index(void **state)
{
    struct row_index x;
    struct error e = {0};
    (void)state;
    assert_int_equal(row_index_init(&x, ROW_NO_SLOT, &e), ERR_LIMIT);
    assert_ok(row_index_init(&x, 4, &e), &e);
    for (uint64_t id = 0; id < 50; id++) {
        x.fetch++;
        uint32_t slot = row_index_room(&x);
        assert_true(slot < 4);
        row_index_put(&x, slot, row_key(1, id), ROW_READY);
        (void)row_index_use(&x, slot);
        assert_int_equal(row_index_find(&x, row_key(1, id)), slot);
        assert_int_equal(row_index_find(&x, row_key(0, id)), ROW_NO_SLOT);
        if (id > 4)
            assert_int_equal(row_index_find(&x, row_key(1, id - 5)), ROW_NO_SLOT);
    }
    x.fetch++;
    for (uint32_t i = 0; i < 3; i++)
        (void)row_index_use(&x, i);
    x.slots[3].state = ROW_LOADING;
    assert_int_equal(row_index_room(&x), ROW_NO_SLOT);
    x.slots[3].state = ROW_READY;
    assert_int_equal(row_index_room(&x), 3);
    x.slots[2].is_ahead = true;
    x.n_ahead = 1;
    assert_true(row_index_use(&x, 2));
    assert_false(row_index_use(&x, 2));
    row_index_forget_all(&x);
    assert_int_equal(x.n_ahead, 0);
    for (uint64_t id = 0; id < 50; id++)
        assert_int_equal(row_index_find(&x, row_key(1, id)), ROW_NO_SLOT);
    row_index_fini(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index), cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_once), cmocka_unit_test(test_counted),
        cmocka_unit_test(test_failures)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
