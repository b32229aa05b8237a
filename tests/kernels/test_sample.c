/* Draws on every backend: the ids, and the bits of the sums behind them, are those of a loop
 * that adds one weight after the other. */
#include "tests/support/test.h"

#include <math.h>

#include "kernels/host.h"
#include "kernels/math.h"
#include "kernels/philox.h"
#include "tests/kernels/backends.h"
#include "tests/kernels/data.h"

/* ---- what is to be drawn ------------------------------------------------------------------
 */

struct entry {
    double p;
    uint32_t id;
};

static int by_weight(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->p > y->p ? -1 : x->p < y->p ? 1 : x->id < y->id ? -1 : x->id > y->id;
}

static bool allowed(const struct k_sample *a, uint32_t row, uint32_t id)
{
    const uint32_t *mask = a->allowed + row * K_MASK_WORDS(a->n_vocab);
    return !a->draw[row].is_masked || mask[id / 32] >> (id % 32) & 1;
}

static float plain(const struct k_sample *a, uint32_t row, uint32_t id)
{
    size_t at = (size_t)row * a->n_vocab + id;
    return a->logits[at] + (a->add ? a->add[at] : 0);
}

static double logit(const struct k_sample *a, uint32_t row, uint32_t id)
{
    const struct k_draw *d = &a->draw[row];
    double x = (double)plain(a, row, id);
    for (uint32_t i = d->bias_at; i < d->bias_at + d->n_bias; i++)
        if (a->bias[i].id == id)
            x += (double)a->bias[i].value;
    return x;
}

/* How many of a list of n count, and their sum, added in its order. */
static uint32_t n_counted(const struct k_draw *d, const struct entry *list, uint32_t n)
{
    double total = 0, sum = 0;
    if (!d->top_k && d->top_p >= 1)
        return n;
    n = d->top_k && d->top_k < n ? d->top_k : n;
    for (uint32_t i = 0; i < n; i++)
        total += list[i].p;
    for (uint32_t i = 0; i < n; i++)
        if ((sum += list[i].p) >= (double)d->top_p * total)
            return i + 1;
    return n;
}

static struct k_drawn wanted(const struct k_sample *a, uint32_t row)
{
    const struct k_draw *d = &a->draw[row];
    struct entry *list = malloc(a->n_vocab * sizeof *list);
    struct k_drawn out = {.state = K_DRAWN_NOTHING};
    double largest = -HUGE_VAL, sum = 0;
    uint32_t n = 0, i = 0;
    assert_non_null(list);
    for (uint32_t id = a->n_vocab; id-- > 0;)
        if (!isfinite(plain(a, row, id)))
            out = (struct k_drawn){K_DRAWN_BROKEN, id, plain(a, row, id), 0};
        else if (out.state != K_DRAWN_BROKEN && allowed(a, row, id) &&
                 logit(a, row, id) >= largest)
            largest = logit(a, row, id),
            out = (struct k_drawn){K_DRAWN, id, plain(a, row, id), 0};
    for (uint32_t id = 0; id < a->n_vocab && out.state == K_DRAWN; id++) {
        double p = k_exp((logit(a, row, id) - largest) / (double)d->temperature);
        if (allowed(a, row, id) && p > 0 && p >= (double)d->min_p)
            list[n++] = (struct entry){p, id};
    }
    if (out.state == K_DRAWN && d->temperature > 0) {
        if (d->top_k || d->top_p < 1)
            qsort(list, n, sizeof *list, by_weight);
        n = n_counted(d, list, n);
        for (uint32_t k = 0; k < n; k++)
            out.whole += list[k].p;
        double at = k_philox_uniform(d->seed, d->position, 0) * out.whole;
        while (i + 1 < n && (sum += list[i].p) <= at)
            i++;
        out.id = list[i].id, out.logit = plain(a, row, out.id);
    }
    free(list);
    return out;
}

/* ---- rows ---------------------------------------------------------------------------------
 */

enum kind { SPREAD, FLAT, COARSE, NEAR, RISING, FALLING, N_KINDS };

/* Random ones; all equal; few values; where sums round at every step; from weights that are
 * subnormal up, through all powers of two, and down. */
static void fill(float *x, uint32_t n, enum kind kind, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        double u = k_philox_uniform(seed, i, 7), at = (double)i / n;
        x[i] = (float)(kind == SPREAD   ? 40 * u - 20
                       : kind == FLAT   ? 3
                       : kind == COARSE ? floor(6 * u)
                       : kind == NEAR   ? u
                       : kind == RISING ? 750 * (at - 1) + u
                                        : -750 * at + u);
    }
}

static const struct k_draw HOW[] = {
    {.temperature = 0, .top_p = 1},
    {.temperature = 1, .top_p = 1},
    {.temperature = 1, .top_p = 0.9f},
    {.temperature = 0.6f, .top_p = 0.5f, .min_p = 0.01f},
    {.temperature = 1, .top_p = 1, .top_k = 1},
    {.temperature = 1, .top_p = 1, .top_k = 40},
    {.temperature = 2, .top_p = 0.999f, .top_k = 1500},
    {.temperature = 1.3f, .top_p = 1, .min_p = 0.3f},
    {.temperature = 1e-30f, .top_p = 1},
    {.temperature = 100, .top_p = 1, .min_p = 1},
};
#define N_HOW (sizeof HOW / sizeof *HOW)

static const struct logit_bias BIAS[] = {
    {0, 2}, {1, -100}, {17, 0.1f}, {3000, 4}, {1u << 30, 9}, /* there is no such id */
    {2, 8},                                                  /* of another row */
};

struct world {
    float *logits, *add;
    uint32_t *mask;
    struct k_sample a;
};

static struct world world_new(uint32_t n, uint32_t n_vocab)
{
    struct world w = {.a = {.n = n, .n_vocab = n_vocab, .bias = BIAS}};
    size_t n_words = n * K_MASK_WORDS(n_vocab);
    w.logits = malloc((size_t)n * n_vocab * sizeof *w.logits);
    w.add = values_new((size_t)n * n_vocab, n_vocab + 1, 2);
    w.mask = (uint32_t *)(void *)bytes_new(n_words * sizeof *w.mask, n_vocab);
    assert_true(w.logits && w.add && w.mask);
    w.a.add = n_vocab % 2 ? w.add : NULL;
    w.a.logits = w.logits, w.a.allowed = w.mask;
    for (uint32_t i = 0; i < n; i++) {
        struct k_draw *d = &w.a.draw[i];
        *d = HOW[(n_vocab + i) % N_HOW];
        d->seed = 11 + i, d->position = 1000 * i + n_vocab;
        d->n_bias = i % 3 == 1 ? 5 : i % 3 == 2 ? 1 : 0;
        d->bias_at = i % 3 == 2 ? 5 : 0;
        d->is_masked = i % 4 == 3;
    }
    return w;
}

static void world_free(struct world *w)
{
    free(w->logits), free(w->add), free(w->mask);
}

static void check(const char *what, const struct k_drawn *got, const struct k_drawn *want)
{
    bool same = got->state == want->state && got->id == want->id &&
                !memcmp(&got->logit, &want->logit, sizeof got->logit) &&
                !memcmp(&got->whole, &want->whole, sizeof got->whole);
    if (!same)
        fail_msg("%s: state %u, id %u, logit %g of %a, want %u, %u, %g of %a", what, got->state,
                 got->id, (double)got->logit, got->whole, want->state, want->id,
                 (double)want->logit, want->whole);
}

/* All rows in one call, and each alone, on every backend; with a row behind that no one may
 * write. */
static void check_all(const struct world *w, const char *what)
{
    char name[160];
    struct k_drawn want[K_SAMPLE_ROWS];
    for (uint32_t i = 0; i < w->a.n; i++)
        want[i] = wanted(&w->a, i);
    /* Threads divide a call by rows, whatever their size. */
    for (size_t b = 0; b < (w->a.n_vocab < 1000 ? 2 : 1) * n_backends; b++) {
        struct kernels *k = b < n_backends ? &backends[b] : &singles[b - n_backends];
        struct k_drawn got[K_SAMPLE_ROWS + 1], alone, guard;
        struct error e = {0};
        struct k_sample a = w->a, one = w->a;
        memset(got, 0x5a, sizeof got), memset(&guard, 0x5a, sizeof guard);
        a.drawn = got, one.drawn = &alone, one.n = 1;
        k->sample(k, &a);
        assert_ok(k->sync(k, &e), &e);
        assert_memory_equal(&got[a.n], &guard, sizeof guard);
        for (uint32_t i = 0; i < a.n; i++) {
            (void)snprintf(name, sizeof name, "%s, %s, row %u of %u", what, k->numerics, i,
                           a.n);
            check(name, &got[i], &want[i]);
        }
        uint32_t row = w->a.n / 2; /* of several, one alone */
        one.logits += (size_t)row * a.n_vocab;
        one.add += one.add ? (size_t)row * a.n_vocab : 0;
        one.allowed += row * K_MASK_WORDS(a.n_vocab);
        one.draw[0] = a.draw[row];
        k->sample(k, &one);
        assert_ok(k->sync(k, &e), &e);
        check(what, &alone, &want[row]);
    }
}

/* 2,048 ids are a block's, 4,096 terms a round's. */
static void test_shapes(void **state)
{
    static const uint32_t sizes[] = {1, 2, 33, 257, 2047, 2048, 2049, 4097, 6145};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            char what[64];
            uint32_t n = kind == SPREAD ? K_SAMPLE_ROWS : 3;
            struct world w = world_new(n, sizes[s]);
            (void)snprintf(what, sizeof what, "%u ids, kind %d", sizes[s], kind);
            for (uint32_t i = 0; i < n; i++) {
                w.a.draw[i] = kind == SPREAD ? w.a.draw[i] : HOW[1 + (i + s) % (N_HOW - 1)];
                fill(w.logits + (size_t)i * sizes[s], sizes[s], (enum kind)kind, 5 * s + i);
            }
            check_all(&w, what);
            world_free(&w);
        }
}

/* Sums of every length: what is first in the order, one id more each time. */
static void test_sums(void **state)
{
    const uint32_t n_vocab = 700;
    (void)state;
    for (int kind = NEAR; kind < N_KINDS; kind++)
        for (uint32_t top_k = 1; top_k < 640; top_k += 19 * K_SAMPLE_ROWS) {
            struct world w = world_new(K_SAMPLE_ROWS, n_vocab);
            for (uint32_t i = 0; i < w.a.n; i++) {
                w.a.draw[i] = (struct k_draw){.seed = i,
                                              .position = top_k,
                                              .temperature = 1,
                                              .top_p = 1,
                                              .top_k = top_k + 19 * i};
                fill(w.logits + (size_t)i * n_vocab, n_vocab, (enum kind)kind, top_k);
            }
            check_all(&w, "sums");
            world_free(&w);
        }
}

/* The released model's vocabulary. */
static void test_vocabulary(void **state)
{
    const uint32_t n_vocab = 129280;
    (void)state;
    for (uint32_t how = 1; how < 3; how++) {
        struct k_drawn got, want;
        struct error e = {0};
        struct kernels *k = &backends[n_backends - 1];
        struct world w = world_new(1, n_vocab);
        fill(w.logits, n_vocab, SPREAD, 3);
        w.a.draw[0] = HOW[how];
        want = wanted(&w.a, 0);
        w.a.drawn = &got;
        k->sample(k, &w.a);
        assert_ok(k->sync(k, &e), &e);
        check("vocabulary", &got, &want);
        world_free(&w);
    }
}

/* The first logit that is no number is told, whether its id is allowed or not, beside rows that
 * are well; and where nothing is allowed, that. */
static void test_broken(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const uint32_t n_vocab = 5000;
    (void)state;
    struct world w = world_new(8, n_vocab);
    for (uint32_t i = 0; i < w.a.n; i++) {
        fill(w.logits + (size_t)i * n_vocab, n_vocab, SPREAD, i);
        w.a.draw[i].is_masked = i >= 4;
    }
    for (uint32_t i = 0; i < 3; i++) {
        w.logits[(size_t)(2 * i) * n_vocab + 4000] = bad[i];
        w.logits[(size_t)(2 * i) * n_vocab + 3999 - 1000 * i] = bad[(i + 1) % 3];
    }
    memset(w.mask + 4 * K_MASK_WORDS(n_vocab), 0, 2 * K_MASK_WORDS(n_vocab) * sizeof *w.mask);
    check_all(&w, "broken");
    assert_int_equal(wanted(&w.a, 4).state, K_DRAWN_BROKEN); /* though masked */
    assert_int_equal(wanted(&w.a, 4).id, 1999);
    assert_int_equal(wanted(&w.a, 5).state, K_DRAWN_NOTHING);
    world_free(&w);
}

static void test_none(void **state)
{
    (void)state;
    for (size_t b = 0; b < n_backends; b++) {
        struct error e = {0};
        backends[b].sample(&backends[b], &(struct k_sample){.n_vocab = 5});
        assert_ok(backends[b].sync(&backends[b], &e), &e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_sums),
        cmocka_unit_test(test_vocabulary), cmocka_unit_test(test_broken),
        cmocka_unit_test(test_none)};
    backends_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backends_close();
    return !!failed;
}
