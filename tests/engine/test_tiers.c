/* What is kept in memory changes nothing but time: under every budget, down to the smallest,
 * with drafts and without, ids, logits, planes and tips are bit by bit those of a model that
 * holds everything. And a disk that fails is one clear error, after which the rest goes on. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/fault.h"
#include "engine/engine_impl.h"
#include "engine/tier.h"
#include "tests/support/conversation.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model" /* 2 draft layers, blocks of 3, 2 Engram layers */
#define N_PROMPT 90
#define N_LONG 700 /* six pages of rows of ratio 1 */

static const struct engine_options EVERYTHING = {.precision = PRECISION_FP32KVQ,
                                                 .digests = true,
                                                 .no_weight_digest = true,
                                                 .n_threads = 1,
                                                 .chunk_tokens = 32};

static void run_long(const struct engine_options *o, uint64_t n_prompt,
                     struct conversation *out)
{
    struct engine *m = drive_open(MODEL, o);
    conversation_run(m, n_prompt, out);
    engine_free(m);
}

static void run(const struct engine_options *o, struct conversation *out)
{
    run_long(o, N_PROMPT, out);
}

static struct engine_tier tier(const struct conversation *x, const char *name)
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
    struct conversation x = {0};
    struct engine *m = drive_open(MODEL, &EVERYTHING);
    x.n_tiers = engine_tiers(m, x.tiers);
    engine_free(m);
    assert_true(tier(&x, name).minimum_bytes > 0);
    if (!getenv("AGENTD_TEST_FENCED")) /* where nothing can stay mapped, experts have one */
        assert_int_equal(tier(&x, name).budget_bytes, 0);
    return tier(&x, name).minimum_bytes;
}

/* ---- Engram rows
 * -----------------------------------------------------------------------------
 */

static void test_engram(void **state)
{
    static const uint64_t TIMES[] = {1, 2, 5, 60, 100000};
    uint64_t least = minimum("engram");
    struct conversation all, some;
    (void)state;
    run(&EVERYTHING, &all);
    for (size_t i = 0; i < sizeof(TIMES) / sizeof(*TIMES); i++) {
        struct engine_options o = EVERYTHING;
        o.engram_ram = TIMES[i] * least;
        o.draft_tokens = i % 2 ? 3 : 0;
        run(&o, &some);
        conversation_assert_same(&all, &some);
        struct engine_tier t = tier(&some, "engram");
        assert_true(t.resident_bytes > 0 && t.resident_bytes <= o.engram_ram);
        assert_true(t.hits + t.misses > 0 && t.read_bytes > 0);
        if (i + 1 == sizeof(TIMES) / sizeof(*TIMES)) /* read ahead or kept, mostly */
            assert_true(t.hits > t.misses);
        drive_state_free(&some.state);
    }
    drive_state_free(&all.state);
}

/* ---- KV rows
 * ---------------------------------------------------------------------------------
 */

static void test_kv(void **state)
{
    static const uint64_t PARTS[] = {10, 11, 15, 40, 10000}; /* tenths of the smallest */
    uint64_t least = minimum("kv");
    struct conversation all, some;
    (void)state;
    run_long(&EVERYTHING, N_LONG, &all);
    for (size_t i = 0; i < sizeof(PARTS) / sizeof(*PARTS); i++) {
        struct engine_options o = EVERYTHING;
        o.kv_resident = PARTS[i] * least / 10;
        o.n_threads = 1 + i % 2;
        run_long(&o, N_LONG, &some);
        conversation_assert_same(&all, &some);
        struct engine_tier t = tier(&some, "kv");
        assert_true(t.resident_bytes > 0 && t.resident_bytes <= o.kv_resident);
        if (PARTS[i] < 20)
            assert_true(t.misses > 0 && t.read_bytes > 0);
        drive_state_free(&some.state);
    }
    drive_state_free(&all.state);
}

/* All three at their smallest, with drafts. */
static void test_smallest(void **state)
{
    struct engine_options o = EVERYTHING;
    struct conversation all, some;
    (void)state;
    run_long(&EVERYTHING, N_LONG, &all);
    o.draft_tokens = 3;
    o.expert_ram = minimum("experts");
    o.engram_ram = minimum("engram");
    o.kv_resident = 2 * minimum("kv"); /* its minimum with drafts */
    run_long(&o, N_LONG, &some);
    conversation_assert_same(&all, &some);
    drive_state_free(&some.state);
    drive_state_free(&all.state);
}

/* ---- experts ------------------------------------------------------------------------------
 */

/* 8 layers of 8 and 2 draft layers of 4. */
#define N_EXPERTS 72

static void test_experts(void **state)
{
    static const uint64_t SLOTS[] = {1, 1000, 3, N_EXPERTS, 2, 7, 20, 60};
    bool slow = getenv("AGENTD_SLOW") != NULL;
    uint64_t slot = minimum("experts");
    struct conversation all, some;
    (void)state;
    run(&EVERYTHING, &all);
    for (size_t i = 0; i < (slow ? sizeof(SLOTS) / sizeof(*SLOTS) : 4); i++) {
        for (uint32_t drafts = slow ? 0 : (uint32_t)i; drafts <= 3; drafts += slow ? 1 : 4) {
            struct engine_options o = EVERYTHING;
            o.expert_ram = SLOTS[i] * slot + slot - 1; /* the rest of a slot is of no use */
            o.draft_tokens = drafts;
            o.n_threads = 1 + i % 2;
            run(&o, &some);
            conversation_assert_same(&all, &some);
            const struct engine_tier t = tier(&some, "experts");
            assert_int_equal(t.budget_bytes, o.expert_ram);
            assert_true(t.resident_bytes > 0 && t.resident_bytes <= SLOTS[i] * slot);
            assert_true(t.misses > 0 && t.read_bytes > t.misses * slot / 2);
            if (SLOTS[i] >= N_EXPERTS) /* each is read once; a device holds them, unasked */
                assert_true(t.misses <= N_EXPERTS &&
                            (getenv("AGENTD_TEST_FENCED") || t.hits > 10 * t.misses));
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
    struct conversation half;
    (void)state;
    o.chunk_tokens = 1;       /* every token goes through all layers */
    o.expert_ram = 14 * slot; /* 16 experts a token: the least recently used is never hit */
    run(&o, &half);
    const struct engine_tier t = tier(&half, "experts");
    if (t.hits * 10 < t.hits + t.misses)
        fail_msg("%" PRIu64 " hits, %" PRIu64 " misses", t.hits, t.misses);
    drive_state_free(&half.state);
}

/* ---- a disk that fails
 * -----------------------------------------------------------------------
 */

/* Feeds a prompt to a new sequence; the error that it ended with, code OK without. */
static struct error try_prompt(struct engine *m, const uint32_t *ids, uint64_t n)
{
    struct seq *s = drive_seq(m);
    struct error e = {0}, failure = {0};
    assert_ok(seq_input(s, ids, n, PREFILL_FULL, &e), &e);
    while (engine_has_work(m)) {
        struct engine_event events[ENGINE_MIN_EVENTS];
        size_t k = 0;
        assert_ok(engine_step(m, events, ENGINE_MIN_EVENTS, &k, &e), &e);
        for (size_t i = 0; i < k; i++)
            if (events[i].kind == ENGINE_DONE && events[i].reason == END_FAILED)
                failure = events[i].error;
    }
    seq_free(s);
    return failure;
}

/* The n-th read fails: whoever needed it is told which tensor and why, unless it was read ahead
 * and is read again. Nothing else is hurt: the next session computes what it should. */
static void test_read_errors(void **state)
{
    static const uint64_t AT[] = {1, 2, 9, 60, 301};
    struct engine_options o = EVERYTHING;
    struct conversation all, after;
    uint32_t ids[N_PROMPT];
    size_t n_failed = 0;
    (void)state;
    drive_ids(ids, N_PROMPT, 7);
    run(&EVERYTHING, &all);
    o.expert_ram = 2 * minimum("experts");
    o.engram_ram = 2 * minimum("engram");
    struct engine *m = drive_open(MODEL, &o);
    for (size_t i = 0; i < sizeof(AT) / sizeof(*AT); i++) {
        fault_arm(FAULT_FAIL, "tier.read", AT[i]);
        struct error e = try_prompt(m, ids, N_PROMPT);
        assert_true(fault_disarm());
        if (e.code) {
            assert_int_equal(e.code, ERR_IO);
            assert_non_null(strstr(e.msg, "tensor layers."));
            assert_non_null(strstr(e.msg, "Input/output error"));
            n_failed++;
        }
        conversation_run(m, N_PROMPT, &after);
        conversation_assert_same(&all, &after);
        drive_state_free(&after.state);
    }
    assert_true(n_failed >= 2);
    fault_arm(FAULT_FAIL_FROM, "tier.read", 1); /* and a disk that is gone for good */
    assert_int_equal(try_prompt(m, ids, N_PROMPT).code, ERR_IO);
    assert_int_equal(try_prompt(m, ids, N_PROMPT).code, ERR_IO);
    assert_true(fault_disarm());
    assert_int_equal(try_prompt(m, ids, N_PROMPT).code, OK);
    engine_free(m);
    drive_state_free(&all.state);
}

/* Transfers that stop half way are gone on with, one after the other. */
static void test_short_reads(void **state)
{
    struct engine_options o = EVERYTHING;
    struct conversation all, some;
    (void)state;
    run(&EVERYTHING, &all);
    o.expert_ram = 3 * minimum("experts");
    o.engram_ram = 2 * minimum("engram");
    fault_arm(FAULT_FAIL_FROM, "aio.short", 1);
    run(&o, &some);
    assert_true(fault_disarm());
    conversation_assert_same(&all, &some);
    drive_state_free(&some.state);
    drive_state_free(&all.state);
}

/* A shard that lost its end while it was open: an error with the sizes, no signal. */
static void test_truncated(void **state)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 32];
    struct safetensors *st = NULL;
    struct tier_files *files = NULL;
    struct tier t = {0};
    struct error e = {0};
    const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[9000],"
                          "\"data_offsets\":[0,9000]}}";
    uint64_t n_header = sizeof(header) - 1;
    void *memory = NULL;
    (void)state;
    tempdir_make(dir);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    FILE *f = fopen(path, "wbe");
    assert_non_null(f);
    fwrite(&n_header, 8, 1, f);
    fwrite(header, 1, sizeof(header) - 1, f);
    for (int i = 0; i < 9000; i++)
        fputc(i % 251, f);
    fclose(f);
    assert_ok(safetensors_open_dir(&st, dir, &e), &e);
    assert_ok(tier_files_open(&files, dir, st, &e), &e);
    assert_ok(tier_init(&t, "test", files, 4, &e), &e);
    assert_ok(aio_buffer_new(tier_room(5000), &memory, &e), &e);
    struct tier_request q = {.mapped = safetensors_find(st, "a")->data + 3900,
                             .n_bytes = 5000,
                             .memory = memory},
                        *done = NULL;
    for (int cut = 0; cut < 2; cut++) {
        size_t n = 0;
        if (cut)
            assert_int_equal(truncate(path, 8100), 0);
        assert_ok(tier_start(&t, &q, &e), &e);
        assert_ok(tier_wait(&t, true, &done, 1, &n, &e), &e);
        assert_int_equal(n, 1);
        assert_ptr_equal(done, &q);
        if (!cut) {
            assert_int_equal(q.error.code, OK);
            for (int i = 0; i < 5000; i++)
                assert_int_equal(q.memory[q.skip + (uint32_t)i], (3900 + i) % 251);
            continue;
        }
        assert_int_equal(q.error.code, ERR_IO);
        assert_non_null(strstr(q.error.msg, "model.safetensors: 5000 bytes at "));
        assert_non_null(strstr(q.error.msg, "the file ends after"));
    }
    uint8_t elsewhere = 0;
    q.mapped = &elsewhere;
    assert_int_equal(tier_start(&t, &q, &e), ERR_INVAL);
    tier_fini(&t);
    tier_files_close(files);
    safetensors_free(st);
    aio_buffer_free(memory, tier_room(5000));
    tempdir_remove(dir);
}

/* ---- counters from another thread
 * -------------------------------------------------------------
 */

struct reader {
    const struct engine *m;
    atomic_bool stop;
    uint64_t misses; /* the last seen */
    bool went_back;
};

static void *read_counters(void *arg)
{
    struct reader *r = arg;
    while (!atomic_load(&r->stop)) {
        struct engine_tier t[ENGINE_MAX_TIERS];
        size_t n = engine_tiers(r->m, t);
        uint64_t misses = 0;
        for (size_t i = 0; i < n; i++)
            misses += t[i].misses;
        r->went_back = r->went_back || misses < r->misses;
        r->misses = misses;
        sched_yield();
    }
    return NULL;
}

/* As the daemon's loop does, while the engine's thread computes with threads of its own. */
static void test_counters(void **state)
{
    struct engine_options o = EVERYTHING;
    struct conversation out;
    struct reader r = {0};
    pthread_t thread;
    (void)state;
    o.expert_ram = 3 * minimum("experts");
    o.engram_ram = 3 * minimum("engram");
    o.kv_resident = 2 * minimum("kv");
    o.n_threads = 3;
    r.m = drive_open(MODEL, &o);
    assert_int_equal(pthread_create(&thread, NULL, read_counters, &r), 0);
    conversation_run((struct engine *)(uintptr_t)r.m, N_PROMPT, &out);
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    assert_false(r.went_back);
    assert_true(tier(&out, "experts").misses > 0);
    drive_state_free(&out.state);
    engine_free((struct engine *)(uintptr_t)r.m);
}

/* ---- budgets that are refused
 * ----------------------------------------------------------------
 */

static void refused(const struct engine_options *o, const char *needs, uint64_t n)
{
    struct engine *m = NULL;
    struct error e = {0};
    char want[64];
    snprintf(want, sizeof(want), "%s needs %" PRIu64, needs, n);
    assert_int_equal(engine_open_model(&m, MODEL, o, &e), ERR_LIMIT);
    if (!strstr(e.msg, want))
        fail_msg("%s, want %s", e.msg, want);
}

static void test_below_minimum(void **state)
{
    struct engine_options o = EVERYTHING;
    (void)state;
    o.expert_ram = minimum("experts") - 1;
    refused(&o, "one expert", minimum("experts"));
    o.expert_ram = 0;
    o.engram_ram = minimum("engram") - 1;
    refused(&o, "one token", minimum("engram"));
    o.engram_ram = 0;
    o.kv_resident = minimum("kv") - 1;
    refused(&o, "one sequence", minimum("kv"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts),     cmocka_unit_test(test_scan),
        cmocka_unit_test(test_engram),      cmocka_unit_test(test_kv),
        cmocka_unit_test(test_smallest),    cmocka_unit_test(test_read_errors),
        cmocka_unit_test(test_short_reads), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_counters),    cmocka_unit_test(test_below_minimum),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
