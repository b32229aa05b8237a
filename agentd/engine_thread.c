#include "agentd/engine_thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#define QUEUE_JOBS 256
#define QUEUE_NOTES 256
#define STEP_EVENTS 64

struct engine_thread {
    pthread_t thread;
    struct engine *engine;
    struct engine_listener listener;
    struct queue *jobs;  /* of struct job * */
    struct queue *notes; /* of struct engine_note */
    struct outbox outbox;
    size_t n_outstanding; /* jobs submitted, `done` not yet called */
};

static void post(struct engine_thread *t, const struct engine_note *n)
{
    enum err rc = queue_push(t->notes, n, QUEUE_FOREVER);

    assert(rc == OK); /* `notes` is closed by nobody */
    (void)rc;
}

/* One step; false when the engine as a whole failed. */
static bool step(struct engine_thread *t, struct engine_event *events)
{
    struct engine_note n = {0};
    size_t n_events = 0;

    if (engine_step(t->engine, events, STEP_EVENTS, &n_events, &n.event.error)) {
        n.is_fatal = true;
        post(t, &n);
        return false;
    }
    for (size_t i = 0; i < n_events; i++) {
        n.event = events[i];
        if (n.event.kind == ENGINE_DONE && n.event.reason != END_FAILED)
            n.digest = seq_digest(n.event.seq);
        post(t, &n);
    }
    return true;
}

static void *thread_main(void *arg)
{
    struct engine_thread *t = arg;
    struct engine_event events[STEP_EVENTS];
    bool healthy = true; /* after a failed step: wait until a job has changed something */

    for (;;) {
        struct engine_note n = {0};
        bool stepping = healthy && engine_has_work(t->engine);
        enum err rc = queue_pop(t->jobs, &n.job, stepping ? 0 : QUEUE_FOREVER);
        if (rc == ERR_CLOSED)
            return NULL;
        if (rc == OK) {
            n.job->run(n.job, t->engine);
            post(t, &n);
            healthy = true;
        } else if (stepping) {
            healthy = step(t, events);
        }
    }
}

static void free_queues(struct engine_thread *t)
{
    queue_free(t->jobs);
    queue_free(t->notes);
    free(t);
}

enum err engine_thread_new(struct engine *m, const struct engine_listener *listener,
                           struct engine_thread **out, struct error *e)
{
    struct engine_thread *t = calloc(1, sizeof(*t));
    enum err rc;

    if (!t)
        return err_set(e, ERR_NOMEM, "engine thread");
    t->engine = m;
    t->listener = *listener;
    if ((rc = queue_new(sizeof(struct job *), QUEUE_JOBS, &t->jobs, e)) ||
        (rc = queue_new(sizeof(struct engine_note), QUEUE_NOTES, &t->notes, e))) {
        free_queues(t);
        return rc;
    }
    outbox_init(&t->outbox, t->jobs);
    int sys = pthread_create(&t->thread, NULL, thread_main, t);
    if (sys) {
        free_queues(t);
        return err_sys(e, sys, "engine thread");
    }
    *out = t;
    return OK;
}

static void handle(struct engine_thread *t, const struct engine_note *n, bool ending)
{
    if (n->job) {
        t->n_outstanding--;
        n->job->done(n->job);
        outbox_flush(&t->outbox);
    } else if (!ending) {
        t->listener.event(n, t->listener.arg);
    }
    free(n->event.logprobs); /* the listener has copied what it wants of them */
}

void engine_thread_free(struct engine_thread *t)
{
    struct engine_note n;

    if (!t)
        return;
    engine_interrupt(t->engine);
    while (t->n_outstanding > 0 && queue_pop(t->notes, &n, QUEUE_FOREVER) == OK)
        handle(t, &n, true);
    queue_close(t->jobs);
    /* The thread may be inside a last step and wait for room to post its events. */
    while (queue_pop(t->notes, &n, 0) == OK)
        free(n.event.logprobs);
    pthread_join(t->thread, NULL);
    while (queue_pop(t->notes, &n, 0) == OK)
        free(n.event.logprobs);
    free_queues(t);
}

void engine_thread_submit(struct engine_thread *t, struct job *j)
{
    t->n_outstanding++;
    outbox_submit(&t->outbox, j);
}

void engine_thread_submit_urgent(struct engine_thread *t, struct job *j)
{
    engine_thread_submit(t, j);
    engine_interrupt(t->engine);
}

size_t engine_thread_outstanding(const struct engine_thread *t)
{
    return t->n_outstanding;
}

int engine_thread_fd(const struct engine_thread *t)
{
    return queue_fd(t->notes);
}

void engine_thread_drain(struct engine_thread *t)
{
    struct engine_note n;

    while (queue_try_pop(t->notes, &n) == OK)
        handle(t, &n, false);
}
