/* Calls over a list of runs: on every backend the bits of a call for each run. And the op that
 * moves a run's keys into the rings. */
#include "tests/support/test.h"

#include "tests/kernels/backends.h"
#include "tests/kernels/data.h"

#define D 64u
#define HEADS 3u
#define WINDOW 8u
#define N_SEL 5u
#define RATIO 2u
#define N_RUNS 4u
#define ROW0 3u   /* rows of the batch in front of the list: a chunk's */
#define GROUP0 1u /* and its groups */
#define N_ROWS 8u
#define SOURCES 2u
#define SOURCE 1u /* the one that is looked at */
#define LAYERS 2u
#define PLANE 64u /* rows */

/* Positions and lengths: nothing before, an unfinished group before, a block, a wrap. */
static const struct {
    uint64_t pos0;
    uint32_t n;
} SHAPES[N_RUNS] = {{0, 1}, {7, 1}, {30, 4}, {17, 2}};

struct world {
    enum k_format window_format, row_format, key_format;
    struct k_run runs[N_RUNS];
    uint8_t *memory[N_RUNS][3]; /* ring, rows, keys */
    float *pending[N_RUNS];
    uint8_t *staged; /* keys of the list's rows */
    float *q, *w, *u, *g, *x, *sink;
    int32_t *sel;
    uint32_t n_groups; /* with gaps */
};

/* n rows of a format, from seeded values. */
static uint8_t *coded_new(enum k_format format, size_t n, uint32_t seed)
{
    size_t bytes = k_row_bytes(format, D);
    float *x = values_new(n * D, seed, 1);
    uint8_t *rows = calloc(n, bytes);
    for (size_t i = 0; i < n; i++)
        k_encode_row(format, x + i * D, D, rows + i * bytes);
    free(x);
    return rows;
}

static void make_run(struct world *w, uint32_t i, uint32_t row)
{
    struct k_run *r = &w->runs[i];
    w->memory[i][0] = coded_new(w->window_format, (size_t)LAYERS * WINDOW, 10 + i);
    w->memory[i][1] = coded_new(w->row_format, PLANE, 20 + i);
    w->memory[i][2] = coded_new(w->key_format, PLANE, 30 + i);
    w->pending[i] = values_new((size_t)SOURCES * 2 * D, 40 + i, 1);
    *r = (struct k_run){.pos0 = SHAPES[i].pos0,
                        .row = row,
                        .n = SHAPES[i].n,
                        .lo = {0, SHAPES[i].pos0 / 2, 0},
                        .ring = w->memory[i][0],
                        .pending = w->pending[i]};
    uint64_t end = r->pos0 + r->n;
    r->source[SOURCE] = (struct k_run_source){.rows = w->memory[i][1],
                                              .keys = w->memory[i][2],
                                              .row = r->pos0 / RATIO,
                                              .first = w->n_groups,
                                              .n = (uint32_t)(end / RATIO - r->pos0 / RATIO)};
    w->n_groups += (r->n + RATIO - 1) / RATIO; /* one that is not complete leaves a gap */
}

static struct world world_new(bool grids)
{
    struct world w = {.window_format = grids ? K_ROW_FP8_32 : K_ROW_F32,
                      .row_format = grids ? K_ROW_FP4_16 : K_ROW_F32,
                      .key_format = grids ? K_ROW_FP4_32 : K_ROW_F32,
                      .n_groups = GROUP0};
    for (uint32_t i = 0, row = ROW0; i < N_RUNS; row += SHAPES[i++].n)
        make_run(&w, i, row);
    w.staged = coded_new(w.window_format, N_ROWS, 1);
    w.q = values_new((size_t)N_ROWS * HEADS * D, 2, 2);
    w.w = values_new((size_t)N_ROWS * HEADS, 3, 1);
    w.u = values_new((size_t)N_ROWS * D, 4, 1);
    w.g = values_new((size_t)N_ROWS * D, 5, 1);
    w.x = values_new((size_t)N_ROWS * D, 6, 1);
    w.sink = values_new(HEADS, 7, 1);
    w.sel = calloc((size_t)N_ROWS * N_SEL, sizeof *w.sel);
    for (uint32_t i = 0; i < N_RUNS; i++)
        for (uint32_t t = 0; t < SHAPES[i].n; t++)
            for (uint32_t j = 0; j < N_SEL; j++) {
                uint64_t visible = (SHAPES[i].pos0 + t + 1) / RATIO;
                w.sel[(w.runs[i].row - ROW0 + t) * N_SEL + j] = j < visible ? (int32_t)j : -1;
            }
    return w;
}

static void world_free(struct world *w)
{
    for (uint32_t i = 0; i < N_RUNS; i++) {
        free(w->pending[i]);
        for (int k = 0; k < 3; k++)
            free(w->memory[i][k]);
    }
    free(w->staged), free(w->q), free(w->w), free(w->u), free(w->g), free(w->x), free(w->sink);
    free(w->sel);
}

/* The list in memory of the backend. */
static struct k_run *list_new(struct kernels *k, const struct world *w)
{
    struct k_run *list = k->alloc(k, sizeof w->runs);
    assert_non_null(list);
    k->copy_in(k, list, w->runs, sizeof w->runs);
    return list;
}

static void synced(struct kernels *k)
{
    struct error e = {0};
    assert_ok(k->sync(k, &e), &e);
}

/* ---- attention ----------------------------------------------------------------------------
 */

static void attend(struct kernels *k, const struct world *w, bool block, enum k_round prob)
{
    size_t width = HEADS * D, n = N_ROWS * width, kb = k_row_bytes(w->window_format, D);
    float *list = guarded_new(n), *one = guarded_new(n);
    struct k_run *runs = list_new(k, w);
    struct k_attention a = {.q = w->q,
                            .out = list,
                            .n = N_ROWS,
                            .n_head = HEADS,
                            .d = D,
                            .keys = w->staged,
                            .window_format = w->window_format,
                            .window = WINDOW,
                            .block = block,
                            .row_format = w->row_format,
                            .sel = w->sel,
                            .n_sel = N_SEL,
                            .runs = runs,
                            .n_runs = N_RUNS,
                            .row0 = ROW0,
                            .most = 4,
                            .source = SOURCE,
                            .layer_class = 1,
                            .ring_at = WINDOW * kb,
                            .sink = w->sink,
                            .scale = 0.125f,
                            .prob = prob};
    k->attention(k, &a);
    a.runs = NULL;
    for (uint32_t i = 0; i < N_RUNS; i++) {
        const struct k_run *r = &w->runs[i];
        size_t at = r->row - ROW0;
        a.q = w->q + at * width, a.out = one + at * width;
        a.keys = w->staged + at * kb, a.sel = w->sel + at * N_SEL;
        a.ring = r->ring + WINDOW * kb, a.rows = r->source[SOURCE].rows;
        a.n = r->n, a.pos0 = r->pos0, a.lo = r->lo[1];
        k->attention(k, &a);
    }
    synced(k);
    check_same(k->numerics, list, one, n);
    guarded_check("list", list, n);
    k->free(k, runs);
    guarded_free(list), guarded_free(one);
}

static void test_attention(void **state)
{
    (void)state;
    for (int grids = 0; grids < 2; grids++) {
        struct world w = world_new(grids);
        for (size_t b = 0; b < n_backends; b++)
            for (int i = 0; i < 4; i++)
                attend(&backends[b], &w, i & 1, i & 2 ? K_BF16 : K_EXACT);
        world_free(&w);
    }
}

/* ---- index --------------------------------------------------------------------------------
 */

struct choice {
    int32_t sel[N_ROWS * N_SEL], blocks[N_ROWS * 3];
};

static void choose(struct kernels *k, const struct world *w, struct k_run *runs, bool masked,
                   const int32_t *blocks, struct choice *out)
{
    struct k_index a = {.q = w->q,
                        .w = w->w,
                        .format = w->key_format,
                        .sel = out->sel,
                        .n = N_ROWS,
                        .n_row = PLANE, /* more than anybody sees */
                        .n_head = HEADS,
                        .d = D,
                        .ratio = RATIO,
                        .top_k = N_SEL,
                        .block_rows = 2,
                        .n_blocks = 3,
                        .blocks_out = masked ? NULL : out->blocks,
                        .blocks_in = masked ? blocks : NULL,
                        .runs = runs,
                        .n_runs = N_RUNS,
                        .row0 = ROW0,
                        .source = SOURCE};
    if (runs)
        k->index(k, &a);
    for (uint32_t i = 0; !runs && i < N_RUNS; i++) {
        const struct k_run *r = &w->runs[i];
        size_t at = r->row - ROW0;
        struct k_index one = a;
        one.q += at * HEADS * D, one.w += at * HEADS, one.sel += at * N_SEL;
        one.blocks_out = masked ? NULL : out->blocks + at * 3;
        one.blocks_in = masked ? blocks + at * 3 : NULL;
        one.keys = r->source[SOURCE].keys;
        one.n = r->n, one.pos0 = r->pos0, one.n_row = (r->pos0 + r->n) / RATIO;
        k->index(k, &one);
    }
    synced(k);
}

static void test_index(void **state)
{
    (void)state;
    for (int grids = 0; grids < 2; grids++) {
        struct world w = world_new(grids);
        for (size_t b = 0; b < n_backends; b++) {
            struct kernels *k = &backends[b];
            struct k_run *runs = list_new(k, &w);
            struct choice list = {{0}, {0}}, one = {{1}, {1}}, in;
            choose(k, &w, runs, false, NULL, &list);
            choose(k, &w, NULL, false, NULL, &one);
            assert_memory_equal(&list, &one, sizeof one);
            in = one;
            choose(k, &w, runs, true, in.blocks, &list);
            choose(k, &w, NULL, true, in.blocks, &one);
            assert_memory_equal(&list, &one, sizeof one);
            k->free(k, runs);
        }
        world_free(&w);
    }
}

/* ---- groups -------------------------------------------------------------------------------
 */

/* What came of a run's groups is where a group's tokens, side by side, come to as one. */
static void check_pooled(struct kernels *k, const struct world *w, const float *out)
{
    float u[RATIO * D], g[RATIO * D], want[D];
    for (uint32_t i = 0; i < N_RUNS; i++) {
        const struct k_run *r = &w->runs[i];
        const struct k_run_source *s = &r->source[SOURCE];
        for (uint32_t n = 0; n < s->n; n++) {
            for (uint32_t t = 0; t < RATIO; t++) {
                uint64_t p = (s->row + n) * RATIO + t;
                const float *waits = r->pending + SOURCE * 2 * D;
                size_t at = (r->row - ROW0 + (p - r->pos0)) * D;
                memcpy(u + t * D, p < r->pos0 ? waits : w->u + at, D * sizeof *u);
                memcpy(g + t * D, p < r->pos0 ? waits + D : w->g + at, D * sizeof *g);
            }
            k->compress(k, &(struct k_compress){
                               .u = u, .g = g, .out = want, .n = 1, .ratio = RATIO, .d = D});
            synced(k);
            check_same("group", out + (s->first - GROUP0 + n) * D, want, D);
        }
    }
}

static void test_compress(void **state)
{
    (void)state;
    struct world w = world_new(true);
    size_t n = w.n_groups - GROUP0;
    bool has_gap = false;
    for (size_t b = 0; b < n_backends; b++) {
        struct kernels *k = &backends[b];
        struct k_run *runs = list_new(k, &w);
        float *out = guarded_new(n * D);
        for (size_t i = 0; i < n * D; i++)
            out[i] = -7;
        k->compress(k, &(struct k_compress){.u = w.u,
                                            .g = w.g,
                                            .out = out,
                                            .n = n,
                                            .ratio = RATIO,
                                            .d = D,
                                            .runs = runs,
                                            .n_runs = N_RUNS,
                                            .row0 = ROW0,
                                            .first = GROUP0,
                                            .source = SOURCE});
        synced(k);
        check_pooled(k, &w, out);
        for (uint32_t i = 0; i < N_RUNS; i++)
            if (!w.runs[i].source[SOURCE].n) {
                has_gap = true;
                assert_true(out[(w.runs[i].source[SOURCE].first - GROUP0) * D] == -7);
            }
        guarded_check("groups", out, n * D);
        k->free(k, runs);
        guarded_free(out);
    }
    assert_true(has_gap);
    world_free(&w);
}

/* The planes of all runs, rows that nothing was written to included. */
static void check_planes(const struct world *got, const struct world *want, int plane,
                         enum k_format format)
{
    for (uint32_t i = 0; i < N_RUNS; i++)
        assert_memory_equal(got->memory[i][plane], want->memory[i][plane],
                            PLANE * k_row_bytes(format, D));
}

static void test_encode(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool grids = i & 1, keys = i & 2;
        for (size_t b = 0; b < n_backends; b++) {
            struct kernels *k = &backends[b];
            struct world list = world_new(grids), one = world_new(grids);
            struct k_run *runs = list_new(k, &list);
            struct k_encode a = {.x = list.x,
                                 .n = list.n_groups - GROUP0,
                                 .d = D,
                                 .format = keys ? list.key_format : list.row_format,
                                 .runs = runs,
                                 .n_runs = N_RUNS,
                                 .first = GROUP0,
                                 .source = SOURCE,
                                 .keys = keys};
            k->encode(k, &a);
            a.runs = NULL;
            for (uint32_t r = 0; r < N_RUNS; r++) {
                const struct k_run_source *s = &one.runs[r].source[SOURCE];
                a.x = one.x + (s->first - GROUP0) * D;
                a.rows = (keys ? s->keys : s->rows) + s->row * k_row_bytes(a.format, D);
                a.n = s->n;
                k->encode(k, &a);
            }
            synced(k);
            check_planes(&list, &one, keys ? 2 : 1, a.format);
            k->free(k, runs);
            world_free(&list);
            world_free(&one);
        }
    }
}

/* ---- rings --------------------------------------------------------------------------------
 */

static void test_ring(void **state)
{
    (void)state;
    const uint32_t row = 66, stride = 40 * row;
    uint8_t *keys = bytes_new((size_t)LAYERS * stride, 9);
    for (size_t b = 0; b < n_backends; b++)
        for (uint64_t pos0 = 0; pos0 < 2 * WINDOW; pos0 += 3)
            for (size_t n = 0; n < 3 * WINDOW; n += n < 2 ? 1 : 7) {
                uint8_t got[LAYERS * WINDOW * 66] = {0}, want[sizeof got] = {0};
                struct kernels *k = &backends[b];
                k->ring(k, &(struct k_ring){.ring = got,
                                            .keys = keys,
                                            .key_stride = stride,
                                            .pos0 = pos0,
                                            .n = n,
                                            .n_layers = LAYERS,
                                            .window = WINDOW,
                                            .row_bytes = row});
                synced(k);
                for (size_t l = 0; l < LAYERS; l++)
                    for (size_t i = 0; i < n; i++)
                        memcpy(want + (l * WINDOW + (pos0 + i) % WINDOW) * row,
                               keys + l * stride + i * row, row);
                assert_memory_equal(got, want, sizeof want);
            }
    free(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention), cmocka_unit_test(test_index),
        cmocka_unit_test(test_compress), cmocka_unit_test(test_encode),
        cmocka_unit_test(test_ring)};
    backends_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backends_close();
    return !!failed;
}
