/* base/pool: every item once, the fixed split, visibility, many short jobs (run under TSan). */
#include "tests/support/test.h"

#include "base/fault.h"
#include "base/pool.h"

enum { MAX_ITEMS = 1000 };

struct job {
    size_t n_items;
    uint32_t n_threads;
    uint32_t times[MAX_ITEMS], thread[MAX_ITEMS];
};

static void mark(void *arg, size_t first, size_t last, uint32_t thread)
{
    struct job *j = arg;
    for (size_t i = first; i < last; i++) {
        j->times[i]++;
        j->thread[i] = thread;
    }
}

static void test_every_item_once_by_the_same_thread(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 7, 64, 999, MAX_ITEMS};
    for (uint32_t t = 1; t <= 5; t++) {
        struct error e = {0};
        struct pool *p;
        assert_ok(pool_new(t, &p, &e), &e);
        assert_int_equal(pool_threads(p), t);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            static struct job j;
            j = (struct job){.n_items = sizes[s], .n_threads = t};
            pool_run(p, mark, &j, sizes[s]);
            for (size_t i = 0; i < sizes[s]; i++) {
                assert_int_equal(j.times[i], 1);
                size_t first = sizes[s] * j.thread[i] / t;
                size_t last = sizes[s] * (j.thread[i] + 1) / t;
                assert_true(first <= i && i < last);
            }
            for (size_t i = sizes[s]; i < MAX_ITEMS; i++)
                assert_int_equal(j.times[i], 0);
        }
        pool_free(p);
    }
    pool_free(NULL);
}

static void test_without_a_pool(void **state)
{
    (void)state;
    static struct job j;
    pool_run(NULL, mark, &j, 10);
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(j.times[i], 1);
    assert_int_equal(pool_threads(NULL), 1);
    assert_true(pool_cpus() >= 1);
}

struct chain {
    const uint64_t *in;
    uint64_t *out;
    size_t n;
};

/* Reads what other threads wrote in the job before. */
static void add_neighbour(void *arg, size_t first, size_t last, uint32_t thread)
{
    (void)thread;
    const struct chain *c = arg;
    for (size_t i = first; i < last; i++)
        c->out[i] = c->in[i] * 3 + c->in[(i + c->n / 2) % c->n];
}

static void test_jobs_see_each_other(void **state)
{
    (void)state;
    enum { N = 64, ROUNDS = 2000 };
    uint64_t want[N] = {0};
    for (uint32_t t = 1; t <= 4; t++) {
        struct error e = {0};
        struct pool *p;
        assert_ok(pool_new(t, &p, &e), &e);
        uint64_t a[N], b[N];
        for (size_t i = 0; i < N; i++)
            a[i] = i;
        for (int r = 0; r < ROUNDS; r += 2) {
            pool_run(p, add_neighbour, &(struct chain){a, b, N}, N);
            pool_run(p, add_neighbour, &(struct chain){b, a, N}, N);
        }
        pool_free(p);
        if (t == 1)
            memcpy(want, a, sizeof want);
        assert_memory_equal(a, want, sizeof want);
    }
}

static void note_last(void *arg, size_t first, size_t last, uint32_t thread)
{
    (void)first;
    ((size_t *)arg)[thread] = last;
}

static void test_huge_ranges_do_not_overflow(void **state)
{
    (void)state;
    struct error e = {0};
    struct pool *p;
    assert_ok(pool_new(3, &p, &e), &e);
    size_t last[3] = {0};
    pool_run(p, note_last, last, SIZE_MAX);
    assert_true(last[0] == SIZE_MAX / 3 && last[2] == SIZE_MAX);
    pool_free(p);
}

static void test_errors(void **state)
{
    (void)state;
    struct error e = {0};
    struct pool *p = NULL;
    assert_int_equal(pool_new(POOL_MAX_THREADS + 1, &p, &e), ERR_INVAL);
    fault_arm(FAULT_FAIL, "alloc", 1);
    assert_int_equal(pool_new(2, &p, &e), ERR_NOMEM);
    assert_true(fault_disarm());
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once_by_the_same_thread),
        cmocka_unit_test(test_without_a_pool),
        cmocka_unit_test(test_jobs_see_each_other),
        cmocka_unit_test(test_huge_ranges_do_not_overflow),
        cmocka_unit_test(test_errors),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
