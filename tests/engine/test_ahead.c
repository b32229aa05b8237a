/* What is computed ahead of its segment changes no bit: planes, tip, digest of every computed
 * row and what is sampled behind it, for segments shorter and longer than the window, however
 * the ids arrive, wherever the segment takes over. And while it is ahead, the sequence is what
 * it was. */
#include "tests/support/drive.h"
#include "tests/support/test.h"

#include <string.h>

#define MAX_IDS 1024

struct checkpoint {
    const char *dir;
    uint32_t window;
};
static const struct checkpoint TINY = {GOLDEN "a_tiny/model", 32};
static const struct checkpoint REPLAY = {GOLDEN "c_replay/model", 32};

/* xorshift64 */
static uint32_t draw(uint64_t *s, uint32_t n)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (uint32_t)(*s >> 33) % n;
}

static void step(struct engine *m)
{
    struct engine_event ev[8];
    struct error e = {0};
    size_t n = 0;
    assert_ok(engine_step(m, ev, 8, &n, &e), &e);
    assert_int_equal(n, 0); /* nobody is told of what is ahead */
}

/* Hands the first n ids over in pieces of random size, with steps at random moments. */
static void hand_ahead(struct engine *m, struct seq *s, const uint32_t *ids, uint64_t n,
                       enum prefill_mode mode, uint64_t *seed)
{
    struct error e = {0};
    for (uint64_t at = 0; at < n;) {
        uint64_t k = 1 + draw(seed, 40);
        k = k < n - at ? k : n - at;
        assert_ok(seq_ahead(s, ids + at, k, mode, &e), &e);
        at += k;
        while (engine_has_work(m) && draw(seed, 3))
            step(m);
    }
    while (engine_has_work(m) && draw(seed, 8))
        step(m);
}

struct outcome {
    struct drive_state inside, end; /* behind the segment; behind the run that follows */
    uint32_t sampled[8];
    size_t n_sampled;
    uint64_t n_ahead;
};

static void outcome_free(struct outcome *o)
{
    drive_state_free(&o->inside);
    drive_state_free(&o->end);
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    drive_assert_planes(&a->inside, &b->inside);
    drive_assert_tip(&a->inside, &b->inside);
    assert_memory_equal(&a->inside.digest.d, &b->inside.digest.d, sizeof(a->inside.digest.d));
    assert_int_equal(a->inside.digest.n_rows, b->inside.digest.n_rows);
    drive_assert_planes(&a->end, &b->end);
    drive_assert_tip(&a->end, &b->end);
    assert_memory_equal(&a->end.digest.d, &b->end.digest.d, sizeof(a->end.digest.d));
    assert_int_equal(a->n_sampled, b->n_sampled);
    assert_memory_equal(a->sampled, b->sampled, a->n_sampled * sizeof(*a->sampled));
}

/* A first segment and a run, then the segment in question and a sampled run. n_ahead of its ids
 * come ahead; 0: none. */
static void play(struct engine *m, const uint32_t *ids, uint64_t n_first, uint64_t n,
                 uint64_t n_ahead, enum prefill_mode mode, uint64_t seed, struct outcome *out)
{
    struct seq *s = drive_seq(m);
    struct error e = {0};
    struct drive_state before, during;
    const uint32_t *segment = ids + n_first + 5;
    *out = (struct outcome){0};
    drive_input(m, s, ids, n_first, PREFILL_CED);
    drive_forced(m, s, ids + n_first, 5);
    if (n_ahead) {
        drive_export(m, s, &before);
        hand_ahead(m, s, segment, n_ahead, mode, &seed);
        assert_int_equal(seq_position(s), n_first + 5);
        drive_export(m, s, &during);
        drive_assert_planes(&before, &during);
        drive_assert_tip(&before, &during);
        assert_memory_equal(&before.digest, &during.digest, sizeof(before.digest));
        drive_state_free(&before);
        drive_state_free(&during);
    }
    assert_ok(seq_input(s, segment, n, mode, &e), &e);
    out->n_ahead = seq_ahead_tokens(s);
    assert_int_equal(seq_position(s), n_first + 5);
    assert_int_equal(drive_run(m, NULL, 0, NULL), END_SEGMENT);
    assert_int_equal(seq_ahead_tokens(s), 0);
    drive_export(m, s, &out->inside);
    struct generate_options g = {.sampling = {.seed = 7, .temperature = 1, .top_p = 1},
                                 .max_tokens = 8};
    assert_ok(seq_generate(s, &g, &e), &e);
    drive_run(m, out->sampled, 8, &out->n_sampled);
    drive_export(m, s, &out->end);
    seq_free(s);
}

static void compare(struct engine *m, uint64_t n_first, uint64_t n, enum prefill_mode mode,
                    uint64_t rounds, uint64_t *taken)
{
    uint32_t ids[MAX_IDS];
    struct outcome plain, ahead;
    assert_true(n_first + 5 + n <= MAX_IDS);
    drive_ids(ids, MAX_IDS, (uint32_t)(n * 31 + n_first));
    play(m, ids, n_first, n, 0, mode, 1, &plain);
    for (uint64_t r = 1; r <= rounds; r++) {
        uint64_t seed = r * 0x9e3779b97f4a7c15u + n;
        uint64_t n_ahead = r == 1 ? n : 1 + draw(&seed, (uint32_t)n);
        play(m, ids, n_first, n, n_ahead, mode, seed, &ahead);
        *taken += ahead.n_ahead;
        assert_same(&plain, &ahead);
        outcome_free(&ahead);
    }
    outcome_free(&plain);
}

static struct engine *open_model(const struct checkpoint *c, const char *backend,
                                 enum precision precision, uint32_t chunk, uint32_t drafts)
{
    struct engine_options o = {.backend = backend,
                               .precision = precision,
                               .n_threads = 1,
                               .chunk_tokens = chunk,
                               .draft_tokens = drafts,
                               .digests = true,
                               .no_weight_digest = true};
    return drive_open(c->dir, &o);
}

/* Lengths around the window, many windows, and odd starts (unfinished groups). */
static void all_lengths(const struct checkpoint *c, const char *backend,
                        enum precision precision, uint32_t chunk, uint32_t drafts,
                        uint64_t rounds)
{
    struct engine *m = open_model(c, backend, precision, chunk, drafts);
    uint32_t w = c->window;
    const uint64_t lengths[] = {1, 2, w - 1, w, w + 1, w + 7, 2 * w + 3, 5 * w + 1};
    uint64_t taken = 0;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        compare(m, 40 + i % 2, lengths[i], PREFILL_CED, rounds, &taken);
        compare(m, 8 + i % 3, lengths[i], PREFILL_FULL, 1 + rounds / 3, &taken);
    }
    assert_true(taken > 5 * w * rounds / 4); /* else nothing was taken over */
    engine_free(m);
}

static void test_cpu(void **state)
{
    (void)state;
    uint64_t rounds = getenv("AGENTD_SLOW") ? 40 : 4;
    all_lengths(&TINY, "cpu", PRECISION_FAST, 16, 0, rounds);
    all_lengths(&REPLAY, "cpu", PRECISION_FAST, 7, 0, rounds);
    all_lengths(&TINY, "cpu", PRECISION_FP32KVQ, 512, 0, 2);
    all_lengths(&REPLAY, "cpu", PRECISION_MATH, 64, 0, 2);
}

/* The draft layers' windows are fed from the same streams. */
static void test_drafts(void **state)
{
    (void)state;
    all_lengths(&TINY, "cpu", PRECISION_FAST, 16, 3, getenv("AGENTD_SLOW") ? 20 : 3);
}

static void test_ref(void **state)
{
    (void)state;
    all_lengths(&TINY, "ref", PRECISION_FAST, 33, 0, 1);
}

/* Other ids than those that came ahead, another mode, fewer of them, a run in its place. */
static void test_dropped(void **state)
{
    (void)state;
    struct engine *m = open_model(&TINY, "cpu", PRECISION_FAST, 16, 0);
    uint32_t ids[MAX_IDS], other[MAX_IDS];
    struct outcome plain, now;
    struct error e = {0};
    drive_ids(ids, MAX_IDS, 5);
    play(m, ids, 40, 100, 0, PREFILL_CED, 1, &plain);
    for (int how = 0; how < 5; how++) {
        struct seq *s = drive_seq(m);
        uint64_t seed = 99;
        memcpy(other, ids + 45, sizeof(uint32_t) * 200);
        drive_input(m, s, ids, 40, PREFILL_CED);
        drive_forced(m, s, ids + 40, 5);
        if (how == 0)
            other[3] ^= 1; /* the result was another one */
        hand_ahead(m, s, other, how == 1 ? 180 : 90, how == 2 ? PREFILL_FULL : PREFILL_CED,
                   &seed);
        while (engine_has_work(m))
            step(m);
        assert_true(seq_ahead_tokens(s) >= 64);
        if (how == 3)
            seq_ahead_drop(s);
        if (how == 4) { /* twice, and then from the start again */
            seq_ahead_drop(s);
            seq_ahead_drop(s);
            hand_ahead(m, s, ids + 45, 80, PREFILL_CED, &seed);
        }
        assert_ok(seq_input(s, ids + 45, 100, PREFILL_CED, &e), &e);
        if (how < 4)
            assert_int_equal(seq_ahead_tokens(s), 0);
        drive_run(m, NULL, 0, NULL);
        drive_export(m, s, &now.inside);
        drive_assert_planes(&plain.inside, &now.inside);
        drive_assert_tip(&plain.inside, &now.inside);
        assert_memory_equal(&plain.inside.digest, &now.inside.digest,
                            sizeof(struct seq_digest));
        drive_state_free(&now.inside);
        seq_free(s);
    }
    outcome_free(&plain);
    engine_free(m);
}

/* Stopped at every moment of the take-over: what was computed ahead is kept, and it goes on. */
static void test_cancelled(void **state)
{
    (void)state;
    struct engine *m = open_model(&TINY, "cpu", PRECISION_FAST, 16, 0);
    uint32_t ids[MAX_IDS];
    struct outcome plain;
    struct error e = {0};
    drive_ids(ids, MAX_IDS, 6);
    play(m, ids, 41, 150, 0, PREFILL_CED, 1, &plain);
    for (int steps = 0; steps < 5; steps++) {
        struct seq *s = drive_seq(m);
        struct drive_state now;
        struct engine_event ev[8];
        size_t n = 0;
        uint64_t seed = 7;
        drive_input(m, s, ids, 41, PREFILL_CED);
        drive_forced(m, s, ids + 41, 5);
        hand_ahead(m, s, ids + 46, 100, PREFILL_CED, &seed);
        while (engine_has_work(m))
            step(m);
        uint64_t ahead = seq_ahead_tokens(s);
        assert_true(ahead >= 64);
        assert_ok(seq_input(s, ids + 46, 150, PREFILL_CED, &e), &e);
        for (int i = 0; i < steps; i++)
            assert_ok(engine_step(m, ev, 8, &n, &e), &e);
        seq_cancel(s);
        assert_int_equal(drive_run(m, NULL, 0, NULL), END_CANCELLED);
        assert_true(seq_position(s) >= 46 + ahead); /* nothing is lost */
        uint64_t left = 46 + 150 - seq_position(s);
        drive_input(m, s, ids + 46 + (150 - left), left, PREFILL_CED);
        drive_export(m, s, &now);
        drive_assert_planes(&plain.inside, &now);
        drive_assert_tip(&plain.inside, &now);
        assert_memory_equal(&plain.inside.digest, &now.digest, sizeof(now.digest));
        drive_state_free(&now);
        seq_free(s);
    }
    outcome_free(&plain);
    engine_free(m);
}

static void test_refused(void **state)
{
    (void)state;
    struct engine *m = open_model(&TINY, "cpu", PRECISION_FAST, 16, 0);
    struct seq *s = drive_seq(m);
    uint32_t ids[200];
    struct error e = {0};
    drive_ids(ids, 200, 8);
    assert_int_equal(seq_ahead(s, ids, 0, PREFILL_CED, &e), ERR_INVAL);
    uint32_t big = 1u << 30;
    assert_int_equal(seq_ahead(s, &big, 1, PREFILL_CED, &e), ERR_INVAL);
    assert_int_equal(seq_ahead(s, ids, 70, PREFILL_CED_REPORT, &e), ERR_UNSUPPORTED);
    assert_ok(seq_ahead(s, ids, 70, PREFILL_CED, &e), &e);
    assert_int_equal(seq_ahead(s, ids, 70, PREFILL_FULL, &e), ERR_CONFLICT);
    assert_ok(seq_input(s, ids, 200, PREFILL_CED, &e), &e);
    assert_int_equal(seq_ahead(s, ids, 70, PREFILL_CED, &e), ERR_CONFLICT);
    drive_run(m, NULL, 0, NULL);
    /* The first segment of a sequence can be ahead, too; and it can be freed with it. */
    struct seq *two = drive_seq(m);
    assert_ok(seq_ahead(two, ids, 70, PREFILL_CED, &e), &e);
    step(m);
    seq_free(two);
    seq_free(s);
    engine_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu),       cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_ref),       cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_cancelled), cmocka_unit_test(test_refused),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
