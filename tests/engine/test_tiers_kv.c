/* KV rows under a byte budget, where a sequence's state leaves and comes back: exports, exact
 * and deep resumes, input computed ahead; and a spill file that cannot be written or read. */
#include <inttypes.h>

#include "base/fault.h"
#include "engine/kv_pages.h"
#include "engine/model.h"
#include "engine/seq.h"
#include "tests/support/drive.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model"
#define N_IDS 900 /* eight pages of rows of ratio 1 */

static const struct engine_options EVERYTHING = {.precision = PRECISION_FAST,
                                                 .digests = true,
                                                 .no_weight_digest = true,
                                                 .n_threads = 1,
                                                 .chunk_tokens = 32};

static uint64_t smallest(void)
{
    struct engine_tier t[ENGINE_MAX_TIERS];
    struct engine *m = drive_open(MODEL, &EVERYTHING);
    size_t n = engine_tiers(m, t);
    engine_free(m);
    assert_string_equal(t[n - 1].name, "kv");
    return t[n - 1].minimum_bytes;
}

/* A budget for `n` sequences and no more pages than one needs. */
static struct engine *open_small(uint64_t n)
{
    struct engine_options o = EVERYTHING;
    o.kv_resident = smallest() * n;
    return drive_open(MODEL, &o);
}

struct tape {
    uint32_t ids[N_IDS];
    struct segment segments[3];
    struct tape_view view;
};

static void make_tape(struct tape *t)
{
    *t = (struct tape){.segments = {{0, 600, SEGMENT_INPUT, PREFILL_CED},
                                    {600, 50, SEGMENT_GENERATED, PREFILL_CED},
                                    {650, N_IDS - 650, SEGMENT_INPUT, PREFILL_CED}}};
    drive_ids(t->ids, N_IDS, 4);
    t->view = (struct tape_view){
        .ids = t->ids, .n_ids = N_IDS, .segments = t->segments, .n_segments = 3};
}

static void run_tape(struct engine *m, const struct tape *t, struct seq *s, uint64_t stop,
                     struct drive_state *out)
{
    struct seq_digest digests[3];
    drive_tape(m, s, &t->view, stop, digests);
    drive_export(m, s, out);
}

static void assert_same(const struct drive_state *a, const struct drive_state *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    drive_assert_planes(a, b);
    drive_assert_tip(a, b);
    assert_true(a->digest.n_rows > 0);
    assert_memory_equal(&a->digest, &b->digest, sizeof(a->digest));
}

static uint64_t n_cold(const struct seq *s)
{
    const struct kv *kv = &seq_of_const(s)->kv;
    uint64_t n = 0;
    for (uint32_t i = 0; i < kv->shape->n_sources; i++)
        n += kv->cold[i];
    return n;
}

/* What is exported from the spill file is what was written; what is imported goes there. */
static void test_resume(void **state)
{
    struct tape t;
    struct drive_state half, all, some;
    uint64_t n_replayed = 0;
    (void)state;
    make_tape(&t);
    struct engine *m = drive_open(MODEL, &EVERYTHING), *small = open_small(4);
    struct seq *s = drive_seq(m);
    run_tape(m, &t, s, 650, &half);
    run_tape(m, &t, s, N_IDS, &all);

    struct seq *x = drive_seq(small);
    run_tape(small, &t, x, 650, &some);
    assert_true(n_cold(x) > 0);
    assert_same(&half, &some);
    drive_state_free(&some);

    struct seq *exact = drive_import(small, &half); /* beside it */
    assert_true(n_cold(exact) > 0);
    run_tape(small, &t, exact, N_IDS, &some);
    assert_same(&all, &some);
    drive_state_free(&some);
    seq_free(exact);

    struct seq *deep = drive_rebuild(small, &half, &t.view, RESUME_DEEP, &n_replayed);
    assert_true(n_replayed > 0 && n_cold(deep) > 0);
    run_tape(small, &t, deep, N_IDS, &some);
    assert_same(&all, &some);
    drive_state_free(&some);

    run_tape(small, &t, x, N_IDS, &some); /* the first is as good as it was */
    assert_same(&all, &some);
    drive_state_free(&some);
    drive_state_free(&half);
    drive_state_free(&all);
    engine_free(m);
    engine_free(small);
}

static void step_all(struct engine *m)
{
    struct engine_event events[8];
    struct error e = {0};
    size_t n = 0;
    while (engine_has_work(m))
        assert_ok(engine_step(m, events, 8, &n, &e), &e);
}

/* Rows that are computed ahead may be dropped, so they stay in memory while they can; what does
 * not fit waits for its segment. Taken over or dropped, the bits are the same. */
static void test_ahead(void **state)
{
    struct tape t;
    struct drive_state all, some;
    struct error e = {0};
    (void)state;
    make_tape(&t);
    struct engine *m = drive_open(MODEL, &EVERYTHING);
    struct seq *s = drive_seq(m);
    run_tape(m, &t, s, N_IDS, &all);
    engine_free(m);
    for (int drop = 0; drop < 2; drop++) {
        m = open_small(3);
        s = drive_seq(m);
        run_tape(m, &t, s, 650, &some);
        drive_state_free(&some);
        assert_ok(seq_ahead(s, t.ids + 650, N_IDS - 650, PREFILL_CED, &e), &e);
        step_all(m);
        assert_int_equal(seq_position(s), 650);
        if (drop)
            seq_ahead_drop(s);
        run_tape(m, &t, s, N_IDS, &some);
        assert_same(&all, &some);
        drive_state_free(&some);
        engine_free(m);
    }
    drive_state_free(&all);
}

/* ---- rows that stay behind
 * --------------------------------------------------------------------
 */

/* Where they are: in an exported state. */
struct behind {
    const struct drive_state *state;
    const struct state_layout *layout;
    uint64_t n_calls, n_rows, fail_at; /* fail_at: the call that fails; 0: none */
    uint64_t n_closed;
};

static enum err fetch_rows(void *ctx, uint32_t plane, uint64_t first, uint64_t n, void *dst,
                           struct error *e)
{
    struct behind *b = ctx;
    size_t row = b->layout->planes[plane].row_bytes;
    assert_int_equal(plane % 2, 0);
    assert_int_equal(b->n_closed, 0);
    assert_true((first + n) * row <= b->state->plane_bytes[plane]);
    if (++b->n_calls == b->fail_at)
        return err_set(e, ERR_CORRUPT, "the pack is damaged");
    b->n_rows += n;
    memcpy(dst, (const uint8_t *)b->state->plane[plane] + first * row, n * row);
    return OK;
}

static void fetch_close(void *ctx)
{
    ((struct behind *)ctx)->n_closed++;
}

/* A new sequence with b's state, of which main rows of the first n_behind tokens stay there. */
static struct seq *import_late(struct engine *m, struct behind *b, uint64_t n_behind)
{
    const struct drive_state *st = b->state;
    struct state_regions regions;
    struct seq *s = drive_seq(m);
    struct error e = {0};
    b->layout = engine_describe(m)->layout;
    assert_ok(seq_import_begin(s, st->n_tokens, &regions, &e), &e);
    for (uint32_t i = 0; i < st->n_planes; i++) {
        const struct plane_spec *p = &b->layout->planes[i];
        size_t skip = i % 2 ? 0 : state_rows(p, n_behind) * p->row_bytes;
        memcpy((uint8_t *)regions.plane[i] + skip, (const uint8_t *)st->plane[i] + skip,
               st->plane_bytes[i] - skip);
    }
    const struct state_fetch f = {b, n_behind, fetch_rows, fetch_close};
    assert_ok(seq_import_fetch(s, &f, &e), &e);
    assert_int_equal(seq_import_fetch(s, &f, &e), ERR_CONFLICT);
    b->n_closed = 0; /* the second one's */
    assert_ok(seq_import_tip(s, st->tip, st->tip_bytes, &st->digest, &e), &e);
    return s;
}

static void test_fetch(void **state)
{
    struct tape t;
    struct drive_state half, all, some;
    struct behind b = {.state = &half};
    struct error e = {0};
    (void)state;
    make_tape(&t);
    struct engine *m = drive_open(MODEL, &EVERYTHING), *small = open_small(2);
    struct seq *s = drive_seq(m);
    run_tape(m, &t, s, 650, &half);
    run_tape(m, &t, s, N_IDS, &all);

    struct seq *late = import_late(small, &b, 599);
    uint64_t first = b.n_rows; /* of pages that are not full */
    assert_true(n_cold(late) > 0);
    run_tape(small, &t, late, N_IDS, &some);
    assert_same(&all, &some);
    assert_true(b.n_rows > first);
    drive_state_free(&some);
    seq_free(late);
    assert_int_equal(b.n_closed, 1);

    b = (struct behind){.state = &half};
    late = import_late(small, &b, 650);
    b.fail_at = b.n_calls + 3;
    assert_ok(seq_input(late, t.ids + 650, N_IDS - 650, PREFILL_CED, &e), &e);
    bool failed = false;
    while (engine_has_work(small)) {
        struct engine_event events[8];
        size_t n = 0;
        assert_ok(engine_step(small, events, 8, &n, &e), &e);
        for (size_t i = 0; i < n; i++)
            if (events[i].kind == ENGINE_DONE && events[i].reason == END_FAILED) {
                failed = true;
                assert_int_equal(events[i].error.code, ERR_CORRUPT);
                assert_non_null(strstr(events[i].error.msg, "the pack is damaged"));
            }
    }
    assert_true(failed);
    seq_free(late);
    assert_int_equal(b.n_closed, 1);

    b = (struct behind){.state = &half}; /* no budget: everything has to be brought */
    struct state_regions regions;
    const struct state_fetch f = {&b, 650, fetch_rows, fetch_close};
    s = drive_seq(m);
    assert_ok(seq_import_begin(s, 650, &regions, &e), &e);
    assert_int_equal(seq_import_fetch(s, &f, &e), ERR_UNSUPPORTED);
    assert_int_equal(b.n_closed, 1);
    drive_state_free(&half);
    drive_state_free(&all);
    engine_free(m);
    engine_free(small);
}

/* ---- a spill file that fails --------------------------------------------------------------
 */

/* The error of the tape's first segment on a new sequence; OK when it ran. */
static struct error try(struct engine *m, const struct tape *t)
{
    struct seq *s = drive_seq(m);
    struct error e = {0}, failure = {0};
    assert_ok(seq_input(s, t->ids, 600, PREFILL_CED, &e), &e);
    while (engine_has_work(m)) {
        struct engine_event events[8];
        size_t n = 0;
        assert_ok(engine_step(m, events, 8, &n, &e), &e);
        for (size_t i = 0; i < n; i++)
            if (events[i].kind == ENGINE_DONE && events[i].reason == END_FAILED)
                failure = events[i].error;
    }
    seq_free(s);
    return failure;
}

static void test_faults(void **state)
{
    static const struct {
        const char *point, *says;
        uint64_t n;
        enum err code;
    } FAULTS[] = {{"fs.write", "plane L", 1, ERR_LIMIT}, /* the disk is full */
                  {"fs.write", "spill of KV rows", 4, ERR_LIMIT},
                  {"tier.read", "plane L", 1, ERR_IO},
                  {"tier.read", "spill of KV rows", 30, ERR_IO}};
    struct tape t;
    struct drive_state all, some;
    (void)state;
    make_tape(&t);
    struct engine *m = drive_open(MODEL, &EVERYTHING);
    run_tape(m, &t, drive_seq(m), N_IDS, &all);
    engine_free(m);
    m = open_small(1);
    for (size_t i = 0; i < sizeof(FAULTS) / sizeof(*FAULTS); i++) {
        fault_arm(FAULT_FAIL, FAULTS[i].point, FAULTS[i].n);
        struct error e = try(m, &t);
        assert_true(fault_disarm());
        assert_int_equal(e.code, FAULTS[i].code);
        if (!strstr(e.msg, FAULTS[i].says))
            fail_msg("%s, want %s", e.msg, FAULTS[i].says);
        struct seq *s = drive_seq(m); /* and the next one is well */
        run_tape(m, &t, s, N_IDS, &some);
        assert_same(&all, &some);
        drive_state_free(&some);
        seq_free(s);
    }
    engine_free(m);
    drive_state_free(&all);
}

/* A page that changed on the disk is found out. */
static void test_damage(void **state)
{
    struct tape t;
    struct error e = {0};
    uint8_t rows[256];
    (void)state;
    make_tape(&t);
    struct engine *m = open_small(1);
    struct seq *s = drive_seq(m);
    drive_input(m, s, t.ids, 600, PREFILL_FULL);
    struct kv *kv = &seq_of(s)->kv;
    uint32_t source = kv->shape->n_sources - 1;
    assert_true(kv->cold[source] > 0);
    kv->page[source][0].seal++; /* as good as another content: the tag no longer fits */
    assert_int_equal(seq_export_rows(s, 2 * source, 0, 1, rows, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.msg, "page 0: the spilled rows are damaged"));
    kv->page[source][0].seal--;
    assert_ok(seq_export_rows(s, 2 * source, 0, 1, rows, &e), &e);
    engine_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume), cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_fetch),  cmocka_unit_test(test_faults),
        cmocka_unit_test(test_damage),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
