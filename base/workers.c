#include "base/workers.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/fault.h"

struct work_list {
    struct work *first, **end;
};

struct workers {
    uint32_t n_out; /* the submitter's own count */
    uint32_t n_threads;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t todo_is_there, done_is_there;
    struct work_list todo, done;
    bool closing;
    pthread_t threads[WORKERS_MAX_THREADS];
};

static void push(struct work_list *l, struct work *w)
{
    w->next = NULL;
    if (!l->first)
        l->end = &l->first;
    *l->end = w;
    l->end = &w->next;
}

static struct work *pop(struct work_list *l)
{
    struct work *w = l->first;
    if (w)
        l->first = w->next;
    return w;
}

static void *thread_main(void *arg)
{
    struct workers *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct work *job = pop(&w->todo);
        if (!job && w->closing)
            break;
        if (!job) {
            pthread_cond_wait(&w->todo_is_there, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        job->run(job);
        pthread_mutex_lock(&w->lock);
        push(&w->done, job);
        pthread_cond_signal(&w->done_is_there);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum err workers_new(uint32_t n_threads, struct workers **out, struct error *e)
{
    if (n_threads == 0 || n_threads > WORKERS_MAX_THREADS)
        return err_set(e, ERR_INVAL, "%u workers: want 1 to %d", n_threads,
                       WORKERS_MAX_THREADS);
    struct workers *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "workers: no memory");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->todo_is_there, NULL);
    pthread_cond_init(&w->done_is_there, NULL);
    int sys = 0;
    while (w->n_threads < n_threads && !fault_point("workers.thread") &&
           (sys = pthread_create(&w->threads[w->n_threads], NULL, thread_main, w)) == 0)
        w->n_threads++;
    if (w->n_threads == 0) {
        workers_free(w);
        return err_set(e, ERR_LIMIT, "workers: no thread can be started (errno %d)", sys);
    }
    *out = w;
    return OK;
}

void workers_free(struct workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->todo_is_there);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->done_is_there);
    pthread_cond_destroy(&w->todo_is_there);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void workers_submit(struct workers *w, struct work *job)
{
    if (!w) {
        job->run(job);
        return;
    }
    w->n_out++;
    pthread_mutex_lock(&w->lock);
    push(&w->todo, job);
    pthread_cond_signal(&w->todo_is_there);
    pthread_mutex_unlock(&w->lock);
}

struct work *workers_take(struct workers *w, bool wait)
{
    if (!w || !w->n_out)
        return NULL;
    pthread_mutex_lock(&w->lock);
    while (wait && !w->done.first)
        pthread_cond_wait(&w->done_is_there, &w->lock);
    struct work *job = pop(&w->done);
    pthread_mutex_unlock(&w->lock);
    w->n_out -= job != NULL;
    return job;
}

uint32_t workers_out(const struct workers *w)
{
    return w ? w->n_out : 0;
}
