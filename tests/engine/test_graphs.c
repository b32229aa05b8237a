/* Decode steps that are replayed as they were recorded: the bits of steps done call by call,
 * whatever has changed in between. On the CUDA kernels, in emulation (a recording keeps the
 * bytes of all arguments) or, with AGENTD_TEST_GPU, on a device. */
#include <stdlib.h>
#include <string.h>

#include "engine/forward.h"
#include "engine/seq.h"
#include "tests/support/drive.h"
#include "tests/support/fenced.h"
#include "tests/support/golden.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model"

/* Replays off: the same engine call by call. */
static struct engine *open_with(bool replays, const struct engine_options *more)
{
    struct engine_options o = more ? *more : (struct engine_options){0};
    o.chunk_tokens = 16;
    o.no_weight_digest = o.digests = true;
    backend_option(&o, "emulated");
    struct engine *m = drive_open(MODEL, &o);
    assert_non_null(model_of(m)->k.record);
    if (!replays)
        model_of(m)->k.record = NULL;
    return m;
}

static struct engine_graphs counts(const struct engine *m)
{
    struct engine_graphs g;
    engine_graphs(m, &g);
    return g;
}

static void start(struct seq *s, uint32_t n, uint64_t seed)
{
    struct generate_options g = {.sampling = {.temperature = 1, .top_p = 1, .seed = seed},
                                 .max_tokens = n};
    struct error e = {0};
    assert_ok(seq_generate(s, &g, &e), &e);
}

/* Steps until nobody has work, or n times. */
static void steps(struct engine *m, size_t n)
{
    struct engine_event ev[16];
    struct error e = {0};
    size_t n_events = 0;
    for (size_t i = 0; i < n && engine_has_work(m); i++) {
        assert_ok(engine_step(m, ev, 16, &n_events, &e), &e);
        for (size_t k = 0; k < n_events; k++)
            assert_true(ev[k].kind != ENGINE_DONE || ev[k].reason != END_FAILED);
    }
}

/* ---- the same steps on two engines, one of which replays ----------------------------------
 */

#define MOST_SEQS 3

struct pair {
    struct engine *m[2];
    struct seq *s[MOST_SEQS][2];
    uint32_t n_seqs;
};

static struct pair pair_open(const struct engine_options *more)
{
    return (struct pair){.m = {open_with(true, more), open_with(false, more)}};
}

static void pair_add(struct pair *p, const struct drive_state *from)
{
    for (int i = 0; i < 2; i++)
        p->s[p->n_seqs][i] = from ? drive_import(p->m[i], from) : drive_seq(p->m[i]);
    p->n_seqs++;
}

static void pair_input(struct pair *p, uint32_t at, uint32_t n)
{
    struct error e = {0};
    uint32_t ids[64];
    drive_ids(ids, n, 11 + at);
    for (int i = 0; i < 2; i++)
        assert_ok(seq_input(p->s[at][i], ids, n, PREFILL_CED, &e), &e);
}

static void pair_start(struct pair *p, uint32_t at, uint32_t n, uint64_t seed)
{
    for (int i = 0; i < 2; i++)
        start(p->s[at][i], n, seed);
}

static void pair_steps(struct pair *p, size_t n)
{
    for (int i = 0; i < 2; i++)
        steps(p->m[i], n);
}

/* Planes and tip hold everything that a step wrote, the digest every row of logits. */
static void assert_alike(const struct pair *p)
{
    for (uint32_t k = 0; k < p->n_seqs; k++) {
        struct drive_state st[2];
        for (int i = 0; i < 2; i++)
            drive_export(p->m[i], p->s[k][i], &st[i]);
        assert_int_equal(st[0].n_tokens, st[1].n_tokens);
        drive_assert_planes(&st[0], &st[1]);
        drive_assert_tip(&st[0], &st[1]);
        assert_memory_equal(&st[0].digest, &st[1].digest, sizeof(st[0].digest));
        for (int i = 0; i < 2; i++)
            drive_state_free(&st[i]);
    }
}

/* Ends the pair, in which so many steps were recorded, and at least so many replayed. */
static void pair_close(struct pair *p, uint64_t n_recorded, uint64_t least)
{
    struct engine_graphs with = counts(p->m[0]), without = counts(p->m[1]);
    assert_alike(p);
    assert_null(with.why);
    assert_non_null(without.why);
    assert_int_equal(with.n_recorded, n_recorded);
    if (with.n_replayed < least)
        fail_msg("%u replays, %u recorded, %u plain", (unsigned)with.n_replayed,
                 (unsigned)with.n_recorded, (unsigned)with.n_plain);
    assert_int_equal(with.n_recorded + with.n_replayed + with.n_plain, without.n_plain);
    assert_int_equal(without.n_recorded + without.n_replayed, 0);
    for (int i = 0; i < 2; i++)
        engine_free(p->m[i]);
}

/* ---- what changes between steps -----------------------------------------------------------
 */

/* From where there are no compressed rows yet, through both halves of a group and, after more
 * input, past the end of the window. */
static void test_one(void **state)
{
    (void)state;
    struct pair p = pair_open(NULL);
    pair_add(&p, NULL);
    pair_input(&p, 0, 1);
    pair_steps(&p, SIZE_MAX);
    pair_start(&p, 0, 6, 7);
    pair_steps(&p, SIZE_MAX);
    pair_input(&p, 0, 20);
    pair_steps(&p, SIZE_MAX);
    pair_start(&p, 0, 11, 8);
    pair_steps(&p, SIZE_MAX);
    pair_close(&p, 2, 11); /* the input needed more scratch, and that moved */
}

/* A state of n tokens, computed by another backend: here it is bytes. */
static struct drive_state state_of(uint32_t n)
{
    struct engine_options o = {.no_weight_digest = true, .digests = true};
    struct engine *m = drive_open(MODEL, &o);
    struct seq *s = drive_seq(m);
    struct drive_state st;
    uint32_t *ids = calloc(n, sizeof(*ids));
    drive_ids(ids, n, 3);
    drive_input(m, s, ids, n, PREFILL_CED);
    drive_export(m, s, &st);
    engine_free(m);
    free(ids);
    return st;
}

/* Imported, and up to where the planes of the source of ratio 1 need more memory. */
static void test_growth(void **state)
{
    (void)state;
    struct pair p = pair_open(NULL);
    size_t granule = model_of(p.m[0])->memory.page_bytes;
    size_t row = model_of(p.m[0])->shape.planes[2].row_bytes;
    bool grows = granule / row < 1000; /* a device's granules are more than the context */
    uint32_t n = grows ? (uint32_t)(granule / row) - 4 : 300;
    struct drive_state st = state_of(n);
    assert_int_equal(model_of(p.m[0])->shape.planes[2].ratio, 1);
    pair_add(&p, &st);
    size_t grown = seq_of(p.s[0][0])->kv.grown[2];
    pair_start(&p, 0, 10, 9);
    pair_steps(&p, SIZE_MAX);
    assert_true(!grows || seq_of(p.s[0][0])->kv.grown[2] > grown);
    pair_close(&p, 1, 7);
    drive_state_free(&st);
}

/* Sequences that come and go, of other lengths and halves of a group: the records of a shape
 * serve whoever has it. */
static void test_several(void **state)
{
    (void)state;
    struct pair p = pair_open(NULL);
    struct drive_state st = state_of(37);
    pair_add(&p, NULL);
    pair_add(&p, &st);
    pair_add(&p, &st);
    pair_input(&p, 0, 4);
    pair_steps(&p, SIZE_MAX);
    pair_start(&p, 0, 16, 1);
    pair_start(&p, 1, 10, 2);
    pair_steps(&p, 3); /* two of them */
    pair_input(&p, 2, 3);
    pair_steps(&p, 1); /* two, and a chunk beside them */
    pair_start(&p, 2, 9, 3);
    pair_steps(&p, SIZE_MAX); /* three, two, one */
    /* A chunk beside two needed more scratch, and so did three: two are recorded thrice. */
    pair_close(&p, 5, 6);
    drive_state_free(&st);
}

/* ---- what is never recorded ---------------------------------------------------------------
 */

static void test_plain(void **state)
{
    (void)state;
    struct engine_options bounded[] = {{.expert_ram = 1000000}, {.kv_resident = 1000000}};
    static const char *const WHY[] = {"experts have a budget", "KV rows have a budget"};
    for (size_t i = 0; i < 2; i++) {
        struct engine *m = open_with(true, &bounded[i]);
        struct seq *s = drive_seq(m);
        uint32_t id = 5;
        drive_input(m, s, &id, 1, PREFILL_CED);
        start(s, 4, 1);
        steps(m, SIZE_MAX);
        struct engine_graphs g = counts(m);
        assert_non_null(strstr(g.why, WHY[i]));
        assert_int_equal(g.n_recorded + g.n_replayed, 0);
        assert_int_equal(g.n_plain, 4);
        engine_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one), cmocka_unit_test(test_growth),
        cmocka_unit_test(test_several), cmocka_unit_test(test_plain)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
