/* base/queue: order, bounds, closing, the descriptor's level, many producers (run under TSan).
 */
#include "tests/support/test.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/queue.h"

static bool readable(const struct queue *q)
{
    struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void test_order_and_bounds(void **state)
{
    (void)state;
    struct error e = {0};
    struct queue *q;
    assert_ok(queue_new(sizeof(int), 3, &q, &e), &e);
    int v;
    assert_int_equal(queue_try_pop(q, &v), ERR_BUSY);
    assert_int_equal(queue_pop(q, &v, 1), ERR_TIMEOUT);
    /* Many rounds, so that the ring wraps at every place. */
    for (int i = 0, out = 0; i < 100; i += 3) {
        for (int k = 0; k < 3; k++) {
            v = i + k;
            assert_int_equal(queue_try_push(q, &v), OK);
        }
        assert_int_equal(queue_try_push(q, &v), ERR_BUSY);
        assert_int_equal(queue_push(q, &v, 1), ERR_TIMEOUT);
        assert_int_equal(queue_len(q), 3);
        for (int k = 0; k < 3; k++, out++) {
            assert_int_equal(queue_try_pop(q, &v), OK);
            assert_int_equal(v, out);
        }
    }
    queue_free(q);
    queue_free(NULL);
}

static void test_descriptor_follows_the_contents(void **state)
{
    (void)state;
    struct error e = {0};
    struct queue *q;
    assert_ok(queue_new(1, 2, &q, &e), &e);
    char c = 'x';
    for (int round = 0; round < 3; round++) {
        assert_false(readable(q));
        assert_int_equal(queue_try_push(q, &c), OK);
        assert_true(readable(q));
        assert_int_equal(queue_try_push(q, &c), OK);
        assert_int_equal(queue_try_pop(q, &c), OK);
        assert_true(readable(q));
        assert_int_equal(queue_try_pop(q, &c), OK);
    }
    assert_false(readable(q));
    queue_close(q);
    assert_true(readable(q));
    queue_close(q);
    assert_true(readable(q));
    queue_free(q);
}

static void test_close_delivers_the_rest(void **state)
{
    (void)state;
    struct error e = {0};
    struct queue *q;
    assert_ok(queue_new(sizeof(int), 4, &q, &e), &e);
    int v = 7;
    assert_int_equal(queue_try_push(q, &v), OK);
    queue_close(q);
    assert_int_equal(queue_try_push(q, &v), ERR_CLOSED);
    assert_int_equal(queue_push(q, &v, QUEUE_FOREVER), ERR_CLOSED);
    v = 0;
    assert_int_equal(queue_pop(q, &v, QUEUE_FOREVER), OK);
    assert_int_equal(v, 7);
    assert_true(readable(q));
    assert_int_equal(queue_pop(q, &v, QUEUE_FOREVER), ERR_CLOSED);
    assert_int_equal(queue_try_pop(q, &v), ERR_CLOSED);
    queue_free(q);
}

struct item {
    uint32_t producer, number;
};

enum { N_PRODUCERS = 4, N_CONSUMERS = 2, N_ITEMS = 5000 };

struct producer {
    struct queue *q;
    uint32_t id;
};

static void *produce(void *arg)
{
    const struct producer *p = arg;
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        struct item it = {p->id, i};
        if (queue_push(p->q, &it, QUEUE_FOREVER))
            return NULL;
    }
    return NULL;
}

struct consumer {
    struct queue *q;
    uint32_t n, next[N_PRODUCERS];
    bool disorder;
};

static void *consume(void *arg)
{
    struct consumer *c = arg;
    struct item it;
    while (queue_pop(c->q, &it, QUEUE_FOREVER) == OK) {
        c->disorder = c->disorder || it.number < c->next[it.producer];
        c->next[it.producer] = it.number + 1;
        c->n++;
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    (void)state;
    struct error e = {0};
    struct queue *q;
    assert_ok(queue_new(sizeof(struct item), 8, &q, &e), &e);
    pthread_t producers[N_PRODUCERS], consumers[N_CONSUMERS];
    struct producer p[N_PRODUCERS];
    struct consumer c[N_CONSUMERS] = {{.q = q}, {.q = q}};
    for (uint32_t i = 0; i < N_CONSUMERS; i++)
        pthread_create(&consumers[i], NULL, consume, &c[i]);
    for (uint32_t i = 0; i < N_PRODUCERS; i++) {
        p[i] = (struct producer){q, i};
        pthread_create(&producers[i], NULL, produce, &p[i]);
    }
    for (int i = 0; i < N_PRODUCERS; i++)
        pthread_join(producers[i], NULL);
    queue_close(q);
    uint32_t n = 0;
    for (int i = 0; i < N_CONSUMERS; i++) {
        pthread_join(consumers[i], NULL);
        assert_false(c[i].disorder);
        n += c[i].n;
    }
    assert_int_equal(n, N_PRODUCERS * N_ITEMS);
    queue_free(q);
}

/* A poll loop with one producer never misses a wake-up and ends when the queue closes. */
static void test_poll_loop(void **state)
{
    (void)state;
    struct error e = {0};
    struct queue *q;
    assert_ok(queue_new(sizeof(struct item), 3, &q, &e), &e);
    struct producer p = {q, 0};
    pthread_t thread;
    pthread_create(&thread, NULL, produce, &p);
    uint32_t n = 0;
    while (n < N_ITEMS) {
        struct pollfd fd = {.fd = queue_fd(q), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, 10000), 1);
        struct item it;
        while (queue_try_pop(q, &it) == OK)
            assert_int_equal(it.number, n++);
    }
    pthread_join(thread, NULL);
    queue_free(q);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct queue *q = NULL;
    struct error e = {0};
    fault_arm(FAULT_FAIL, "alloc", 1);
    assert_int_equal(queue_new(8, 8, &q, &e), ERR_NOMEM);
    assert_true(fault_disarm());
    assert_int_equal(queue_new(SIZE_MAX, 2, &q, &e), ERR_NOMEM);
    assert_null(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_bounds),
        cmocka_unit_test(test_descriptor_follows_the_contents),
        cmocka_unit_test(test_close_delivers_the_rest),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_poll_loop),
        cmocka_unit_test(test_no_memory),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
