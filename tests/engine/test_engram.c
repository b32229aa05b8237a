/* Engram's primes, multipliers and row numbers against those of the release (golden d_ops). */
#include "engine/engram.h"
#include "tests/support/golden.h"
#include "tests/support/test.h"

#define N 40
#define TABLES 24

/* The release's Engram fields. */
static struct config release(void)
{
    struct config c = {.n_engram = 2,
                       .engram_layers = {1, 14},
                       .engram_rows = {384006168, 384016682},
                       .engram_ngram = 4,
                       .engram_vocab = 16000000,
                       .engram_heads = 8,
                       .engram_dim = 256,
                       .engram_pad = 2,
                       .engram_compressed = 99092};
    return c;
}

static void test_release(void **state)
{
    struct golden *g = golden_open(GOLDEN "d_ops/ops.safetensors");
    struct config c = release();
    struct engram e;
    struct error err = {0};
    const int64_t *primes = golden_i64(g, "engram.primes", NULL);
    const int64_t *offsets = golden_i64(g, "engram.offsets", NULL);
    const int64_t *multipliers = golden_i64(g, "engram.multipliers", NULL);
    (void)state;
    assert_ok(engram_init(&e, &c, 2, &err), &err);
    assert_int_equal(e.n_tables, TABLES);
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < TABLES; i++) {
            assert_int_equal(e.layer[k].prime[i], primes[k * TABLES + i]);
            assert_int_equal(e.layer[k].offset[i], offsets[k * TABLES + i]);
        }
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(e.layer[k].multiplier[i], multipliers[k * 4 + i]);
    }
    golden_close(g);
}

static void test_rows(void **state)
{
    struct golden *g = golden_open(GOLDEN "d_ops/ops.safetensors");
    struct config c = release();
    struct engram e;
    struct error err = {0};
    const int64_t *ids = golden_i64(g, "engram.compressed_ids", NULL);
    const int64_t *want = golden_i64(g, "engram.row_ids_pad2", NULL);
    uint32_t history[3 + N] = {ENGRAM_DEAD, ENGRAM_DEAD, ENGRAM_DEAD};
    (void)state;
    for (size_t i = 0; i < N; i++)
        history[3 + i] = (uint32_t)ids[i];
    assert_ok(engram_init(&e, &c, 2, &err), &err);
    for (uint32_t k = 0; k < 2; k++) {
        uint64_t rows[N * TABLES], piece[TABLES];
        engram_rows(&e, k, history, N, rows);
        for (size_t i = 0; i < N; i++) {
            engram_rows(&e, k, history + i, 1, piece); /* one by one: the same */
            for (size_t t = 0; t < TABLES; t++) {
                assert_int_equal(rows[i * TABLES + t], want[(i * 2 + k) * TABLES + t]);
                assert_int_equal(piece[t], rows[i * TABLES + t]);
                assert_true(rows[i * TABLES + t] < c.engram_rows[k]);
            }
        }
    }
    golden_close(g);
}

/* A dead position blocks all longer look-backs, as the start does. */
static void test_dead(void **state)
{
    struct config c = release();
    struct engram e;
    struct error err = {0};
    uint32_t dead[] = {7, 8, ENGRAM_DEAD, 9},
             start[] = {ENGRAM_DEAD, ENGRAM_DEAD, ENGRAM_DEAD, 9};
    uint32_t pads[] = {2, 2, 2, 9};
    uint64_t a[TABLES], b[TABLES], p[TABLES];
    (void)state;
    assert_ok(engram_init(&e, &c, 2, &err), &err);
    engram_rows(&e, 0, dead, 1, a);
    engram_rows(&e, 0, start, 1, b);
    engram_rows(&e, 0, pads, 1, p);
    assert_memory_equal(a, b, sizeof(a));
    assert_memory_equal(a, p, sizeof(a));
}

static void test_wrong_sum(void **state)
{
    struct config c = release();
    struct engram e;
    struct error err = {0};
    (void)state;
    c.engram_rows[1]++;
    assert_int_equal(engram_init(&e, &c, 2, &err), ERR_FORMAT);
    assert_non_null(strstr(err.msg, "384016683"));
    assert_non_null(strstr(err.msg, "384016682"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_release),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_dead),
        cmocka_unit_test(test_wrong_sum),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
