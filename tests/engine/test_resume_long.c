/* Exact and deep resume around the real block size, 2048 tokens, with the real window of 128
 * and top-k of 512, on the demo's configuration. */
#include "engine/observe.h"
#include "tests/support/checkpoint.h"
#include "tests/support/drive.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#define MAX_TOKENS 4150
#define MAX_SEGMENTS 4
#define DEEP (128 + 127 * 11) /* tokens that run again: W + (W-1)(L-1) */

static uint32_t ids[MAX_TOKENS];
static char dir[TEMPDIR_BYTES];
static struct engine *m;

static int setup(void **state)
{
    struct error e = {0};
    struct engine_options o = {.digests = true, .no_weight_digest = true};
    (void)state;
    tempdir_make(dir);
    struct checkpoint_options c = {.config = "tests/configs/demo.json",
                                   .tokenizer = CHECKPOINT_TOKENIZER,
                                   .out = dir,
                                   .seed = 1};
    assert_ok(checkpoint_make(&c, &e), &e);
    drive_ids(ids, MAX_TOKENS, 17);
    m = drive_open(dir, &o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    engine_free(m);
    tempdir_remove(dir);
    return 0;
}

/* Runs the rest: everything that is computed whole from here on has the same digest. */
static void check_rest(struct seq *s, const struct tape_view *tape, uint64_t from,
                       const struct drive_state *want, const struct seq_digest *digests)
{
    struct seq_digest got[MAX_SEGMENTS] = {0};
    struct drive_state end;
    drive_tape(m, s, tape, tape->n_ids, got);
    drive_export(m, s, &end);
    drive_assert_planes(want, &end);
    drive_assert_tip(want, &end);
    for (size_t i = 0; i < tape->n_segments; i++) {
        const struct segment *g = &tape->segments[i];
        bool tail_ahead = g->kind == SEGMENT_INPUT && from + 128 < g->start + g->len;
        if (g->start >= from || (tail_ahead && g->len > 128 && g->start + g->len > from))
            assert_memory_equal(&got[i], &digests[i], sizeof(got[i]));
    }
    drive_state_free(&end);
    seq_free(s);
}

static void check(const struct tape_view *tape, const uint64_t *at, size_t n_at)
{
    struct drive_state st[4], end;
    struct seq_digest digests[MAX_SEGMENTS] = {0};
    struct seq *s = drive_seq(m);
    for (size_t i = 0; i < n_at; i++) {
        drive_tape(m, s, tape, at[i], digests);
        drive_export(m, s, &st[i]);
    }
    drive_tape(m, s, tape, tape->n_ids, digests);
    drive_export(m, s, &end);
    seq_free(s);
    for (size_t i = 0; i < n_at; i++) {
        uint64_t n_replayed = 0;
        struct drive_state again;
        check_rest(drive_import(m, &st[i]), tape, at[i], &end, digests);
        s = drive_rebuild(m, &st[i], tape, RESUME_DEEP, &n_replayed);
        assert_int_equal(n_replayed, DEEP);
        drive_export(m, s, &again);
        drive_assert_planes(&st[i], &again);
        drive_assert_tip(&st[i], &again);
        drive_state_free(&again);
        check_rest(s, tape, at[i], &end, digests);
        drive_state_free(&st[i]);
    }
    drive_state_free(&end);
}

/* Inside an input segment that is not complete: the tail is still ahead. */
static void test_2048(void **state)
{
    static const uint64_t AT[] = {2047, 2048, 2049};
    static const struct segment SEGMENTS[] = {{0, 1900, SEGMENT_INPUT, PREFILL_CED},
                                              {1900, 60, SEGMENT_GENERATED, PREFILL_CED},
                                              {1960, 230, SEGMENT_INPUT, PREFILL_CED},
                                              {2190, 20, SEGMENT_GENERATED, PREFILL_CED}};
    static const struct tape_view TAPE = {
        .ids = ids, .n_ids = 2210, .segments = SEGMENTS, .n_segments = 4};
    (void)state;
    check(&TAPE, AT, 3);
}

/* Where a run and an input segment are still to come. */
static void test_4096(void **state)
{
    static const uint64_t AT[] = {4096};
    static const struct segment SEGMENTS[] = {{0, 4000, SEGMENT_INPUT, PREFILL_CED},
                                              {4000, 96, SEGMENT_INPUT, PREFILL_CED},
                                              {4096, 40, SEGMENT_GENERATED, PREFILL_CED},
                                              {4136, 14, SEGMENT_INPUT, PREFILL_CED}};
    static const struct tape_view TAPE = {
        .ids = ids, .n_ids = 4150, .segments = SEGMENTS, .n_segments = 4};
    (void)state;
    check(&TAPE, AT, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_2048),
                                       cmocka_unit_test(test_4096)};
    return !!cmocka_run_group_tests(tests, setup, teardown);
}
