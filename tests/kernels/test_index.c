/* Index scores, top-k and candidate blocks on every backend: against a plain transcription,
 * ties, and bit for bit however the run of queries is cut. */
#include "tests/support/test.h"

#include <math.h>

#include "kernels/bits.h"
#include "kernels/isa.h"
#include "tests/kernels/backends.h"
#include "tests/kernels/data.h"

struct world {
    struct k_index a; /* all queries */
    uint8_t *keys;
    float *q, *w, *key;
    size_t n_row;
};

static struct world world_new(size_t n, uint32_t n_head, uint32_t d, uint32_t ratio,
                              uint32_t top_k, bool grid)
{
    struct world w = {.n_row = n / ratio};
    enum k_format format = grid ? K_ROW_FP4_32 : K_ROW_F32;
    size_t bytes = k_row_bytes(format, d);
    w.q = values_new(n * n_head * d, 1, 1);
    w.w = values_new(n * n_head, 2, 1);
    w.key = values_new((w.n_row + 1) * d, 3, 1);
    w.keys = calloc(w.n_row + 1, bytes);
    for (size_t r = 0; r < w.n_row; r++) {
        k_encode_row(format, w.key + r * d, d, w.keys + r * bytes);
        k_decode_row(format, w.keys + r * bytes, d, w.key + r * d);
    }
    /* Queries are on the grid of keys, as those of the model; one in three is not. */
    for (size_t i = 0; grid && i < n * n_head; i++)
        if (i / n_head % 3 != 1) {
            k_encode_row(format, w.q + i * d, d, w.keys + w.n_row * bytes);
            k_decode_row(format, w.keys + w.n_row * bytes, d, w.q + i * d);
        }
    w.a = (struct k_index){.q = w.q,
                           .w = w.w,
                           .keys = w.keys,
                           .format = format,
                           .n = n,
                           .n_row = w.n_row,
                           .n_head = n_head,
                           .d = d,
                           .ratio = ratio,
                           .top_k = top_k,
                           .block_rows = 4,
                           .n_blocks = 6};
    return w;
}

static void world_free(struct world *w)
{
    free(w->q), free(w->w), free(w->key), free(w->keys);
}

static void naive_scores(const struct world *w, size_t i, float *score, float *size)
{
    const struct k_index *a = &w->a;
    size_t visible = (i + 1) / a->ratio;
    for (size_t r = 0; r < a->n_row; r++) {
        double s = 0, m = 0;
        for (uint32_t h = 0; h < a->n_head; h++) {
            double dot = 0, weight = (double)w->w[i * a->n_head + h];
            for (uint32_t j = 0; j < a->d; j++) {
                double p =
                    (double)w->q[(i * a->n_head + h) * a->d + j] * (double)w->key[r * a->d + j];
                dot += p;
                m += fabs(p * weight);
            }
            s += fmax(dot, 0) * weight;
        }
        score[r] = r < visible ? (float)s : -INFINITY;
        size[r] = (float)m;
    }
}

/* Selection by repeated maximum over the rows that `allowed` admits. */
static size_t naive_top(const float *score, const uint8_t *allowed, size_t n, size_t k,
                        int32_t *out)
{
    uint8_t *taken = calloc(n + 1, 1);
    size_t kept = 0;
    for (; kept < k; kept++) {
        size_t best = n;
        for (size_t r = 0; r < n; r++)
            if (!taken[r] && (!allowed || allowed[r]) && (best == n || score[r] > score[best]))
                best = r;
        if (best == n)
            break;
        taken[best] = 1;
    }
    size_t m = 0;
    for (size_t r = 0; r < n; r++)
        if (taken[r])
            out[m++] = (int32_t)r;
    for (size_t j = m; j < k; j++)
        out[j] = -1;
    free(taken);
    return m;
}

static void run(struct kernels *k, const struct k_index *a, size_t cut)
{
    struct error e = {0};
    for (size_t p = 0; p < a->n; p += cut) {
        struct k_index c = *a;
        c.n = a->n - p < cut ? a->n - p : cut;
        c.pos0 = p;
        c.n_row = (p + c.n) / a->ratio; /* the plane as it is after this run */
        c.q += p * a->n_head * a->d;
        c.w += p * a->n_head;
        c.sel = a->sel ? a->sel + p * a->top_k : NULL;
        c.blocks_out = a->blocks_out ? a->blocks_out + p * a->n_blocks : NULL;
        c.blocks_in = a->blocks_in ? a->blocks_in + p * a->n_blocks : NULL;
        c.score = NULL;
        k->index(k, &c);
    }
    assert_ok(k->sync(k, &e), &e);
}

/* One backend: scores near the plain ones; choices exactly those that its own scores imply. */
static void check_backend(const struct world *w, size_t b)
{
    struct k_index a = w->a;
    size_t n = a.n, rows = w->n_row;
    float *score = guarded_new(n * rows), *want = guarded_new(rows), *size = guarded_new(rows);
    int32_t *sel = malloc(n * a.top_k * 4), *sel2 = malloc(n * a.top_k * 4);
    int32_t *blocks = malloc(n * a.n_blocks * 4), *blocks2 = malloc(n * a.n_blocks * 4);
    int32_t *top = malloc((a.top_k + a.n_blocks) * 4);
    float *block_score = malloc((rows + 1) * sizeof(float));
    uint8_t *allowed = malloc(rows + 1);
    a.score = score, a.sel = sel, a.blocks_out = blocks;
    backends[b].index(&backends[b], &a);
    for (size_t i = 0; i < n; i++) {
        size_t visible = (i + 1) / a.ratio, n_block = (visible + 3) / 4;
        naive_scores(w, i, want, size);
        check_near(backends[b].numerics, score + i * rows, want, size, rows, K_TOL_INDEX);
        naive_top(score + i * rows, NULL, visible, a.top_k, top);
        assert_memory_equal(sel + i * a.top_k, top, a.top_k * 4);
        for (size_t c = 0; c < n_block; c++) {
            block_score[c] = -INFINITY;
            for (size_t r = c * 4; r < c * 4 + 4 && r < visible; r++)
                block_score[c] = fmaxf(block_score[c], score[i * rows + r]);
        }
        if (n_block)
            block_score[n_block - 1] = INFINITY;
        naive_top(block_score, NULL, n_block, a.n_blocks, top);
        assert_memory_equal(blocks + i * a.n_blocks, top, a.n_blocks * 4);
    }
    a.score = NULL, a.sel = sel2, a.blocks_out = blocks2;
    size_t cuts[] = {1, 13, n};
    for (size_t c = 0; c < 3; c++) {
        run(c % 2 ? &singles[b] : &backends[b], &a, cuts[c]);
        assert_memory_equal(sel2, sel, n * a.top_k * 4);
        assert_memory_equal(blocks2, blocks, n * a.n_blocks * 4);
    }
    /* A reader of candidates: only their rows can be chosen. */
    a.blocks_out = NULL, a.blocks_in = blocks;
    run(&backends[b], &a, n);
    for (size_t i = 0; i < n; i++) {
        size_t visible = (i + 1) / a.ratio;
        memset(allowed, 0, rows + 1);
        for (size_t c = 0; c < a.n_blocks && blocks[i * a.n_blocks + c] >= 0; c++)
            for (size_t r = 0; r < 4; r++)
                if ((size_t)blocks[i * a.n_blocks + c] * 4 + r < rows)
                    allowed[(size_t)blocks[i * a.n_blocks + c] * 4 + r] = 1;
        naive_top(score + i * rows, allowed, visible, a.top_k, top);
        assert_memory_equal(sel2 + i * a.top_k, top, a.top_k * 4);
    }
    run(&singles[b], &a, 1);
    a.sel = sel, a.score = score;
    backends[b].index(&backends[b], &a);
    assert_memory_equal(sel2, sel, n * a.top_k * 4);
    free(sel), free(sel2), free(blocks), free(blocks2), free(top), free(block_score);
    free(allowed);
    guarded_check("score", score, n * rows);
    guarded_free(score), guarded_free(want), guarded_free(size);
}

static void test_selection(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        uint32_t n_head, d, ratio, top_k;
        bool grid;
    } cases[] = {{150, 4, 32, 1, 9, true},   {131, 5, 64, 2, 24, true},
                 {70, 1, 32, 1, 100, false}, {200, 32, 128, 1, 20, true},
                 {70, 33, 32, 1, 9, true}, /* more heads than CUDA has tensor cores for */
                 {2, 3, 32, 2, 4, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w = world_new(cases[i].n, cases[i].n_head, cases[i].d, cases[i].ratio,
                                   cases[i].top_k, cases[i].grid);
        for (size_t b = 0; b < n_backends; b++)
            check_backend(&w, b);
        world_free(&w);
    }
}

/* Codes and scales that no quantiser writes, queries on the grid and none at all: scores are
 * NaN where the reference's are, and near it elsewhere. */
static void test_odd_codes(void **state)
{
    (void)state;
    struct world w = world_new(60, 5, 64, 1, 9, true);
    size_t bytes = k_row_bytes(K_ROW_FP4_32, 64), n = 60 * 60;
    float *want = guarded_new(n), *y = guarded_new(n), row[60], size[60];
    w.keys[10 * bytes + 33] = 0xff; /* the scale of 32 values is NaN */
    for (size_t r = 20; r < 30; r++)
        w.keys[r * bytes + 32] = (uint8_t)(97 + 2 * r), w.keys[r * bytes + 33] = 127;
    for (size_t r = 0; r < 60; r++)
        k_decode_row(K_ROW_FP4_32, w.keys + r * bytes, 64, w.key + r * 64);
    w.q[(40 * 5 + 3) * 64 + 9] = NAN;
    for (size_t j = 0; j < 5 * 64; j++) {
        w.q[50 * 5 * 64 + j] = 0;
        w.q[51 * 5 * 64 + j] *= j / 64 % 2 ? 0x1p-100f : 0x1p20f;
        w.q[52 * 5 * 64 + j] = (float)(int)(8 * w.q[52 * 5 * 64 + j]) / 2;
    }
    for (size_t b = 0; b < n_backends; b++) {
        struct k_index a = w.a;
        struct error e = {0};
        a.sel = NULL, a.score = b ? y : want;
        backends[b].index(&backends[b], &a);
        assert_ok(backends[b].sync(&backends[b], &e), &e);
        guarded_check("score", a.score, n);
        for (size_t i = 0; i < 60; i++) {
            naive_scores(&w, i, row, size);
            check_near(backends[b].numerics, a.score + i * 60, want + i * 60, size, 60,
                       K_TOL_INDEX);
        }
    }
    assert_true(isnan(want[20 * 60 + 10]) && isnan(want[40 * 60]) && want[50 * 60] == 0);
    guarded_free(want), guarded_free(y);
    world_free(&w);
}

static void test_no_rows(void **state)
{
    (void)state;
    float q[32] = {1}, w[1] = {1};
    for (size_t b = 0; b < n_backends; b++) {
        int32_t sel[3] = {7, 7, 7}, blocks[2] = {7, 7};
        struct k_index a = {.q = q,
                            .w = w,
                            .format = K_ROW_FP4_32,
                            .sel = sel,
                            .n = 1,
                            .n_head = 1,
                            .d = 32,
                            .ratio = 2,
                            .top_k = 3,
                            .block_rows = 8,
                            .n_blocks = 2,
                            .blocks_out = blocks};
        backends[b].index(&backends[b], &a);
        assert_true(sel[0] == -1 && sel[1] == -1 && sel[2] == -1);
        assert_true(blocks[0] == -1 && blocks[1] == -1);
    }
}

static void test_top_k(void **state)
{
    (void)state;
    int32_t out[8], pool[32];
    const float tie[6] = {1, 2, 2, 2, 1, 2};
    assert_int_equal(k_top_k(tie, 6, 3, out, pool), 3);
    assert_true(out[0] == 1 && out[1] == 2 && out[2] == 3);
    assert_int_equal(k_top_k(tie, 6, 5, out, pool), 5);
    assert_true(out[0] == 0 && out[3] == 3 && out[4] == 5);
    const float odd[5] = {NAN, -INFINITY, 0, NAN, -1};
    assert_int_equal(k_top_k(odd, 5, 3, out, pool), 3);
    assert_true(out[0] == 0 && out[1] == 2 && out[2] == 4);
    assert_int_equal(k_top_k(odd, 5, 8, out, pool), 5);
    assert_int_equal(k_top_k(odd, 0, 8, out, pool), 0);
}

/* The choice by sorting everything. */
static int better_first(const void *a, const void *b, void *scores)
{
    const float *score = scores;
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    float x = isnan(score[i]) ? -INFINITY : score[i],
          y = isnan(score[j]) ? -INFINITY : score[j];
    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

static int ascending(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return (i > j) - (i < j);
}

/* Scores in every kind of order, with ties, zeros of both signs and what is no number. */
static void fill_scores(float *score, size_t n, uint32_t kind, uint32_t seed)
{
    static const float odd[] = {NAN, -INFINITY, INFINITY, 0.0f, -0.0f, 1, -1};
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float noise = (float)(seed >> 8) / 16777216.0f;
        float x = (float)i / (float)n;
        score[i] = kind == 0   ? noise
                   : kind == 1 ? x + 0.01f * noise
                   : kind == 2 ? -x
                   : kind == 3 ? (float)(seed >> 30)
                   : kind == 4 ? odd[(seed >> 16) % 7]
                               : (seed >> 30 ? 0.0f : noise);
    }
}

static void test_top_k_like_sorting(void **state)
{
    (void)state;
    enum { N = 3000 };
    static const size_t ns[] = {1, 2, 63, 64, 65, 128, 129, 1000, N};
    static const uint32_t ks[] = {1, 2, 64, 512};
    static float score[N];
    static int32_t want[N], out[512], pool[1024];
    for (uint32_t kind = 0; kind < 6; kind++)
        for (size_t a = 0; a < sizeof ns / sizeof *ns; a++)
            for (size_t b = 0; b < sizeof ks / sizeof *ks; b++) {
                size_t n = ns[a], kept = n < ks[b] ? n : ks[b];
                fill_scores(score, n, kind, (uint32_t)(n + 7 * ks[b]));
                for (size_t i = 0; i < n; i++)
                    want[i] = (int32_t)i;
                qsort_r(want, n, sizeof *want, better_first, score);
                qsort(want, kept, sizeof *want, ascending);
                assert_int_equal(k_top_k(score, n, ks[b], out, pool), kept);
                assert_memory_equal(out, want, kept * sizeof *out);
            }
}

/* Products of codes: exact for one group of 32, with zeros, negative zeros and the largest
 * values; a key whose scale is no number has no score; a row of q off the grid is refused. */
static void check_codes(const struct k_isa *isa, uint32_t d)
{
    enum { M = 3, N = 61 };
    struct world w = world_new(N, M, d, 1, 1, true);
    size_t bytes = k_row_bytes(K_ROW_FP4_32, d), words = d / 4 + d / 32;
    float y[M * K_COLUMNS];
    uint32_t *tile = calloc(words * K_COLUMNS, sizeof *tile);
    uint8_t *codes = calloc(M, d + d / 4);
    const uint8_t *row[N];
    const void *q[M];
    memset(w.q + d, 0, d * sizeof(float));
    for (uint32_t j = 0; j < d; j++)
        w.q[j] = j % 2 ? 6 : -0.0f;
    memset(w.keys, 0xff, d / 2); /* -6 */
    memset(w.keys + bytes, 0x88, d / 2);
    w.keys[3 * bytes - 1] = 0xff;
    for (size_t i = 0; i < M; i++) {
        q[i] = codes + i * (d + d / 4);
        assert_true(isa->query_codes(w.q + i * d, d, codes + i * (d + d / 4)));
    }
    for (size_t r = 0; r < N; r++)
        row[r] = w.keys + r * bytes;
    isa->key_codes(row, N, d, tile);
    isa->dot_key_codes(q, M, tile, d, y, K_COLUMNS);
    for (size_t r = 0; r < N; r++) {
        float key[128];
        k_decode_row(K_ROW_FP4_32, row[r], d, key);
        for (size_t i = 0; i < M; i++) {
            double want = 0, size = 0;
            for (uint32_t j = 0; j < d; j++) {
                want += (double)w.q[i * d + j] * (double)key[j];
                size += fabs((double)w.q[i * d + j] * (double)key[j]);
            }
            double off = fabs((double)y[i * K_COLUMNS + r] - want);
            assert_true(r == 2 ? isnan(y[i * K_COLUMNS + r])
                               : off <= (d == 32 ? 0 : size * 0x1p-23));
        }
    }
    w.q[d - 1] = 1.0f / 3;
    assert_false(isa->query_codes(w.q, d, codes));
    w.q[d - 1] = NAN;
    assert_false(isa->query_codes(w.q, d, codes));
    free(tile), free(codes);
    world_free(&w);
}

static void test_codes(void **state)
{
    (void)state;
    for (size_t b = 1; b < n_backends; b++)
        if (!strncmp(backends[b].numerics, "cpu-avx512bf16", 14)) {
            check_codes(backends[b].ctx->isa, 32);
            check_codes(backends[b].ctx->isa, 64);
            check_codes(backends[b].ctx->isa, 128);
        }
}

/* A stream of scores in pieces of all sizes, as each instruction set keeps the best of it. */
static void check_best(const struct k_isa *isa, const float *score, size_t n, uint32_t k,
                       bool by_list)
{
    size_t values = k_best_room(k) + 16, at = 0;
    int32_t *row = malloc(n * sizeof *row), *want = malloc(2 * (k + n) * sizeof *want);
    struct k_best best = {.score = guarded_new(values),
                          .row = malloc(values * sizeof(int32_t)),
                          .rank = malloc(values * sizeof(int32_t)),
                          .k = k};
    memset(best.score, 0, values * sizeof *best.score);
    for (size_t i = 0; i < n; i++)
        row[i] = (int32_t)i;
    for (size_t piece = 1; at < n; piece = piece % K_COLUMNS + 1) {
        size_t m = n - at < piece ? n - at : piece;
        isa->best_add(&best, score + at, by_list ? row + at : NULL, by_list ? 0 : (int32_t)at,
                      m);
        at += m;
    }
    isa->best_cut(&best);
    assert_int_equal(best.n, k_top_k(score, n, k, want, want + k));
    assert_memory_equal(best.row, want, best.n * sizeof *want);
    guarded_check("score", best.score, values);
    guarded_free(best.score), free(best.row), free(best.rank), free(row), free(want);
}

static void test_best_of_a_stream(void **state)
{
    (void)state;
    enum { N = 3000 };
    static const size_t ns[] = {1, 63, 64, 65, 129, 1000, N};
    static const uint32_t ks[] = {1, 2, 64, 512};
    static float score[N];
    for (size_t b = 1; b < n_backends; b++)
        for (uint32_t kind = 0; kind < 6 && strncmp(backends[b].numerics, "cpu-", 4) == 0;
             kind++)
            for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
                for (size_t j = 0; j < sizeof ks / sizeof *ks; j++) {
                    fill_scores(score, ns[i], kind, (uint32_t)(ns[i] + 7 * ks[j]));
                    check_best(backends[b].ctx->isa, score, ns[i], ks[j], i & 1);
                }
}

/* Rows in many tiles and more than one part; blocks that do and do not fill tiles; all scores
 * equal. */
static void check_many(size_t b, const struct world *w, uint32_t block_rows)
{
    enum { N = 3, ROWS = 3000, K = 100, BLOCKS = 20 };
    struct k_index a = w->a;
    static float score[N * ROWS], block_score[ROWS];
    int32_t sel[N * K], sel2[N * K], blocks[N * BLOCKS], blocks2[N * BLOCKS];
    int32_t want[N * BLOCKS + K], pool[4 * K];
    a.pos0 = a.n - N, a.n = N, a.top_k = K;
    a.block_rows = block_rows, a.n_blocks = BLOCKS;
    a.score = score, a.sel = sel, a.blocks_out = blocks;
    backends[b].index(&backends[b], &a);
    struct k_index reference = a;
    reference.blocks_out = want + K;
    for (size_t i = 0; i < N; i++) {
        size_t visible = k_index_visible(&a, i);
        k_top_k(score + i * ROWS, visible, K, want, pool);
        assert_memory_equal(sel + i * K, want, K * sizeof *want);
        k_index_blocks(&reference, i, score + i * ROWS, block_score, pool);
    }
    assert_memory_equal(blocks, want + K, sizeof blocks);
    a.score = NULL, a.sel = sel2, a.blocks_out = blocks2;
    singles[b].index(&singles[b], &a);
    assert_memory_equal(sel2, sel, sizeof sel);
    assert_memory_equal(blocks2, blocks, sizeof blocks);
}

static void test_many_rows(void **state)
{
    (void)state;
    struct world w = world_new(3000, 2, 32, 1, 1, true);
    for (size_t b = 0; b < n_backends; b++) {
        check_many(b, &w, 8);
        check_many(b, &w, 48);
        check_many(b, &w, 1);
    }
    memset(w.w, 0, 3000 * 2 * sizeof *w.w);
    for (size_t b = 0; b < n_backends; b++)
        check_many(b, &w, 8);
    world_free(&w);
}

/* The released form: dots, products and the sum on the bf16 grid. */
static void test_bf16_scores(void **state)
{
    (void)state;
    struct world w = world_new(40, 4, 32, 1, 8, true);
    for (size_t b = 0; b < n_backends; b++) {
        float score[40 * 40];
        int32_t sel[40 * 8];
        struct k_index a = w.a;
        a.sel = sel, a.score = score, a.score_round = K_BF16;
        backends[b].index(&backends[b], &a);
        for (size_t i = 0; i < 40; i++)
            for (size_t r = 0; r <= i; r++) {
                float want[40], size[40];
                naive_scores(&w, i, want, size);
                assert_true(score[i * 40 + r] == k_bf16(score[i * 40 + r]));
                assert_true(fabsf(score[i * 40 + r] - want[r]) <= 0.02f * size[r]);
            }
    }
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_selection),
                                       cmocka_unit_test(test_odd_codes),
                                       cmocka_unit_test(test_codes),
                                       cmocka_unit_test(test_no_rows),
                                       cmocka_unit_test(test_top_k),
                                       cmocka_unit_test(test_top_k_like_sorting),
                                       cmocka_unit_test(test_best_of_a_stream),
                                       cmocka_unit_test(test_many_rows),
                                       cmocka_unit_test(test_bf16_scores)};
    backends_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backends_close();
    return !!failed;
}
