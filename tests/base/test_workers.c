/* base/workers: every job once, in any number of threads; none where there are no threads. Run
 * under TSan. */
#include "tests/support/test.h"

#include "base/fault.h"
#include "base/workers.h"

enum { N_JOBS = 500 };

struct job {
    struct work work;
    uint64_t in, out;
    uint32_t times;
};

static void square(struct work *w)
{
    struct job *j = (struct job *)w;
    j->out = j->in * j->in;
    j->times++;
}

static void every_job_once(void **state)
{
    (void)state;
    for (uint32_t t = 1; t <= 4; t++) {
        struct error e;
        struct workers *w;
        static struct job jobs[N_JOBS];
        assert_ok(workers_new(t, &w, &e), &e);
        assert_null(workers_take(w, true));
        for (uint32_t i = 0; i < N_JOBS; i++) {
            jobs[i] = (struct job){.work.run = square, .in = i};
            workers_submit(w, &jobs[i].work);
            if (i % 7 == 0)
                (void)workers_take(w, i % 2 == 0);
        }
        while (workers_out(w))
            assert_non_null(workers_take(w, true));
        assert_null(workers_take(w, true));
        for (uint32_t i = 0; i < N_JOBS; i++) {
            assert_int_equal(jobs[i].times, 1);
            assert_int_equal(jobs[i].out, (uint64_t)i * i);
        }
        workers_free(w);
    }
}

static void without_workers(void **state)
{
    (void)state;
    struct job j = {.work.run = square, .in = 5};
    workers_submit(NULL, &j.work);
    assert_int_equal(j.out, 25);
    assert_null(workers_take(NULL, true));
    assert_int_equal(workers_out(NULL), 0);
    workers_free(NULL);
}

static void what_cannot_be_started(void **state)
{
    (void)state;
    struct error e;
    struct workers *w;
    assert_int_equal(workers_new(0, &w, &e), ERR_INVAL);
    assert_int_equal(workers_new(WORKERS_MAX_THREADS + 1, &w, &e), ERR_INVAL);
    fault_arm(FAULT_FAIL, "alloc", 1);
    assert_int_equal(workers_new(2, &w, &e), ERR_NOMEM);
    assert_true(fault_disarm());
    fault_arm(FAULT_FAIL, "workers.thread", 1);
    assert_int_equal(workers_new(2, &w, &e), ERR_LIMIT);
    assert_true(fault_disarm());
    /* One of two is enough. */
    fault_arm(FAULT_FAIL, "workers.thread", 2);
    assert_ok(workers_new(2, &w, &e), &e);
    assert_true(fault_disarm());
    struct job j = {.work.run = square, .in = 3};
    workers_submit(w, &j.work);
    assert_ptr_equal(workers_take(w, true), &j.work);
    assert_int_equal(j.out, 9);
    workers_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_job_once),
        cmocka_unit_test(without_workers),
        cmocka_unit_test(what_cannot_be_started),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
