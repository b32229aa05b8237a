#include "agentd/store_thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#define QUEUE_JOBS 256

struct store_thread {
    pthread_t thread;
    struct store *store;
    struct queue *jobs, *finished; /* of struct job * */
    struct outbox outbox;
    size_t n_outstanding; /* submitted, `done` not yet called */
};

static void *thread_main(void *arg)
{
    struct store_thread *t = arg;
    struct job *j;

    while (queue_pop(t->jobs, &j, QUEUE_FOREVER) == OK) {
        j->run(j, t->store);
        enum err rc = queue_push(t->finished, &j, QUEUE_FOREVER);
        assert(rc == OK); /* `finished` is closed by nobody */
        (void)rc;
    }
    return NULL;
}

static void free_queues(struct store_thread *t)
{
    queue_free(t->jobs);
    queue_free(t->finished);
    free(t);
}

enum err store_thread_new(struct store *s, struct store_thread **out, struct error *e)
{
    struct store_thread *t = calloc(1, sizeof(*t));
    enum err rc;

    if (!t)
        return err_set(e, ERR_NOMEM, "store thread");
    t->store = s;
    if ((rc = queue_new(sizeof(struct job *), QUEUE_JOBS, &t->jobs, e)) ||
        (rc = queue_new(sizeof(struct job *), QUEUE_JOBS, &t->finished, e))) {
        free_queues(t);
        return rc;
    }
    outbox_init(&t->outbox, t->jobs);
    int sys = pthread_create(&t->thread, NULL, thread_main, t);
    if (sys) {
        free_queues(t);
        return err_sys(e, sys, "store thread");
    }
    *out = t;
    return OK;
}

static void finish(struct store_thread *t, struct job *j)
{
    t->n_outstanding--;
    j->done(j);
    outbox_flush(&t->outbox);
}

void store_thread_free(struct store_thread *t)
{
    struct job *j;

    if (!t)
        return;
    while (t->n_outstanding > 0 && queue_pop(t->finished, &j, QUEUE_FOREVER) == OK)
        finish(t, j);
    queue_close(t->jobs);
    pthread_join(t->thread, NULL);
    free_queues(t);
}

void store_thread_submit(struct store_thread *t, struct job *j)
{
    t->n_outstanding++;
    outbox_submit(&t->outbox, j);
}

size_t store_thread_outstanding(const struct store_thread *t)
{
    return t->n_outstanding;
}

int store_thread_fd(const struct store_thread *t)
{
    return queue_fd(t->finished);
}

void store_thread_drain(struct store_thread *t)
{
    struct job *j;

    while (queue_try_pop(t->finished, &j) == OK)
        finish(t, j);
}
