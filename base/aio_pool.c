/* The aio back end for machines without io_uring: threads that call pread and pwrite. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/aio_internal.h"

struct pool_backend {
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t todo_is_there, done_is_there;
    struct aio_list todo, done;
    uint32_t n_done;
    bool closing;
    int fd; /* eventfd: readable while `done` may hold something */
    uint32_t n_threads;
    pthread_t threads[AIO_MAX_THREADS];
};

static void transfer(struct aio_request *r)
{
    ssize_t n;
    do {
        char *mem = r->mem + r->done;
        off_t off = (off_t)(r->off + r->done);
        size_t len = aio_next_len(r);
        if (r->fail)
            n = -r->fail;
        else if ((n = r->is_write ? pwrite(r->fd, mem, len, off)
                                  : pread(r->fd, mem, len, off)) < 0)
            n = -errno;
    } while (!aio_advance(r, n));
}

static void *work(void *arg)
{
    struct pool_backend *b = arg;
    const uint64_t one = 1;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        struct aio_request *r = aio_list_pop(&b->todo);
        if (!r && b->closing)
            break;
        if (!r) {
            pthread_cond_wait(&b->todo_is_there, &b->lock);
            continue;
        }
        pthread_mutex_unlock(&b->lock);
        transfer(r);
        pthread_mutex_lock(&b->lock);
        aio_list_push(&b->done, r);
        /* The descriptor's counter cannot overflow: it is reset by every wait. */
        if (b->n_done++ == 0 && write(b->fd, &one, sizeof one) < 0)
            abort();
        pthread_cond_signal(&b->done_is_there);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

static enum err pool_submit(struct aio *a, struct error *e)
{
    (void)e;
    struct pool_backend *b = a->backend;
    pthread_mutex_lock(&b->lock);
    struct aio_request *r;
    while ((r = aio_list_pop(&a->queued))) {
        aio_list_push(&b->todo, r);
        pthread_cond_signal(&b->todo_is_there);
    }
    pthread_mutex_unlock(&b->lock);
    return OK;
}

static enum err pool_wait(struct aio *a, uint32_t want, struct error *e)
{
    struct pool_backend *b = a->backend;
    enum err rc = pool_submit(a, e);
    if (rc)
        return rc;
    pthread_mutex_lock(&b->lock);
    while (a->n_finished + b->n_done < want)
        pthread_cond_wait(&b->done_is_there, &b->lock);
    uint64_t count;
    if (b->n_done > 0 && read(b->fd, &count, sizeof count) < 0)
        abort();
    struct aio_request *r;
    while ((r = aio_list_pop(&b->done))) {
        aio_list_push(&a->finished, r);
        a->n_finished++;
    }
    b->n_done = 0;
    pthread_mutex_unlock(&b->lock);
    return OK;
}

static int pool_fd(const struct aio *a)
{
    return ((const struct pool_backend *)a->backend)->fd;
}

static void pool_close(struct aio *a)
{
    struct pool_backend *b = a->backend;
    pthread_mutex_lock(&b->lock);
    b->closing = true;
    pthread_cond_broadcast(&b->todo_is_there);
    pthread_mutex_unlock(&b->lock);
    for (uint32_t i = 0; i < b->n_threads; i++)
        pthread_join(b->threads[i], NULL);
    pthread_cond_destroy(&b->done_is_there);
    pthread_cond_destroy(&b->todo_is_there);
    pthread_mutex_destroy(&b->lock);
    close(b->fd);
    free(b);
}

static const struct aio_ops pool_ops = {
    .name = "threads",
    .submit = pool_submit,
    .wait = pool_wait,
    .fd = pool_fd,
    .close = pool_close,
};

enum err aio_pool_open(struct aio *a, uint32_t n_threads, struct error *e)
{
    struct pool_backend *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, ERR_NOMEM, "aio: no memory");
    b->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->fd < 0) {
        int sys = errno;
        free(b);
        return err_sys(e, sys, "aio: eventfd");
    }
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->todo_is_there, NULL);
    pthread_cond_init(&b->done_is_there, NULL);
    a->ops = &pool_ops;
    a->backend = b;
    int sys = 0;
    while (b->n_threads < n_threads &&
           (sys = pthread_create(&b->threads[b->n_threads], NULL, work, b)) == 0)
        b->n_threads++;
    if (b->n_threads == 0) {
        pool_close(a);
        return err_set(e, ERR_LIMIT, "aio: no thread can be started (errno %d)", sys);
    }
    return OK;
}
