#include "base/queue.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t not_full, not_empty;
    size_t item_bytes, cap;
    size_t head, len; /* items; head is the oldest */
    bool closed;
    int fd; /* eventfd: 1 exactly while len > 0 or closed */
    uint8_t items[];
};

static void init_cond(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

enum err queue_new(size_t item_bytes, size_t n_items, struct queue **out, struct error *e)
{
    assert(item_bytes > 0 && n_items > 0);
    size_t bytes;
    if (__builtin_mul_overflow(item_bytes, n_items, &bytes) ||
        __builtin_add_overflow(bytes, sizeof(struct queue), &bytes))
        return err_set(e, ERR_NOMEM, "queue: %zu items of %zu bytes", n_items, item_bytes);
    struct queue *q = calloc(1, bytes);
    if (!q)
        return err_set(e, ERR_NOMEM, "queue: no memory for %zu bytes", bytes);
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd < 0) {
        int sys = errno;
        free(q);
        return err_sys(e, sys, "queue: eventfd");
    }
    q->item_bytes = item_bytes;
    q->cap = n_items;
    pthread_mutex_init(&q->lock, NULL);
    init_cond(&q->not_full);
    init_cond(&q->not_empty);
    *out = q;
    return OK;
}

void queue_free(struct queue *q)
{
    if (!q)
        return;
    pthread_cond_destroy(&q->not_empty);
    pthread_cond_destroy(&q->not_full);
    pthread_mutex_destroy(&q->lock);
    close(q->fd);
    free(q);
}

/* The two edges of the descriptor's level, under the lock: neither can block or fail. */
static void raise_fd(const struct queue *q)
{
    uint64_t one = 1;
    ssize_t n = write(q->fd, &one, sizeof one);
    assert(n == sizeof one);
    (void)n;
}

static void lower_fd(const struct queue *q)
{
    uint64_t value;
    ssize_t n = read(q->fd, &value, sizeof value);
    assert(n == sizeof value);
    (void)n;
}

static void put(struct queue *q, const void *item)
{
    size_t at = (q->head + q->len) % q->cap;
    memcpy(q->items + at * q->item_bytes, item, q->item_bytes);
    if (q->len++ == 0)
        raise_fd(q);
    pthread_cond_signal(&q->not_empty);
}

static void take(struct queue *q, void *item)
{
    memcpy(item, q->items + q->head * q->item_bytes, q->item_bytes);
    q->head = (q->head + 1) % q->cap;
    if (--q->len == 0 && !q->closed)
        lower_fd(q);
    pthread_cond_signal(&q->not_full);
}

static struct timespec deadline_in(int64_t timeout_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += timeout_ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* One wait under the lock; false when the deadline has passed. */
static bool wait_on(struct queue *q, pthread_cond_t *c, int64_t timeout_ms,
                    const struct timespec *deadline)
{
    if (timeout_ms >= 0)
        return pthread_cond_timedwait(c, &q->lock, deadline) != ETIMEDOUT;
    pthread_cond_wait(c, &q->lock);
    return true;
}

enum err queue_push(struct queue *q, const void *item, int64_t timeout_ms)
{
    struct timespec deadline = deadline_in(timeout_ms < 0 ? 0 : timeout_ms);
    bool in_time = true;
    pthread_mutex_lock(&q->lock);
    while (!q->closed && q->len == q->cap && in_time)
        in_time = wait_on(q, &q->not_full, timeout_ms, &deadline);
    enum err rc = q->closed ? ERR_CLOSED : q->len == q->cap ? ERR_TIMEOUT : OK;
    if (!rc)
        put(q, item);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

enum err queue_try_push(struct queue *q, const void *item)
{
    enum err rc = queue_push(q, item, 0);
    return rc == ERR_TIMEOUT ? ERR_BUSY : rc;
}

enum err queue_pop(struct queue *q, void *item, int64_t timeout_ms)
{
    struct timespec deadline = deadline_in(timeout_ms < 0 ? 0 : timeout_ms);
    bool in_time = true;
    pthread_mutex_lock(&q->lock);
    while (!q->closed && q->len == 0 && in_time)
        in_time = wait_on(q, &q->not_empty, timeout_ms, &deadline);
    enum err rc = q->len > 0 ? OK : q->closed ? ERR_CLOSED : ERR_TIMEOUT;
    if (!rc)
        take(q, item);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

enum err queue_try_pop(struct queue *q, void *item)
{
    enum err rc = queue_pop(q, item, 0);
    return rc == ERR_TIMEOUT ? ERR_BUSY : rc;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    if (!q->closed) {
        q->closed = true;
        if (q->len == 0)
            raise_fd(q);
        pthread_cond_broadcast(&q->not_empty);
        pthread_cond_broadcast(&q->not_full);
    }
    pthread_mutex_unlock(&q->lock);
}

int queue_fd(const struct queue *q)
{
    return q->fd;
}

size_t queue_len(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    size_t n = q->len;
    pthread_mutex_unlock(&q->lock);
    return n;
}
