/* A piece of work for another thread, and its way there.
 *
 * The loop thread fills a struct that begins with a struct job and submits it; `run` is called
 * on the worker's thread with the worker's context (the store, or the engine), sets rc and
 * error; `done` is called back on the loop thread. Between submit and done the struct belongs
 * to the worker. Jobs of one worker run one after the other, in the order of submission.
 *
 * Submitting never blocks and never fails: what does not fit in the bounded queue waits in a
 * list of the loop thread. Its length is bounded by who submits: a session has a handful of
 * jobs outstanding at most, and a connection's requests are capped. */
#ifndef AGENTD_JOB_H
#define AGENTD_JOB_H

#include <stddef.h>

#include "base/err.h"
#include "base/queue.h"

struct job {
    void (*run)(struct job *j, void *ctx); /* worker's thread */
    void (*done)(struct job *j);           /* loop thread; owns the struct again */
    enum err rc;
    struct error error;
    struct job *next; /* of the waiting list */
};

/* Loop thread's end of a queue of struct job *. */
struct outbox {
    struct queue *queue;       /* borrowed */
    struct job *first, **tail; /* submitted, no room yet */
};

void outbox_init(struct outbox *o, struct queue *jobs);
/* Gives j away: to the queue, or to the list if it is full. */
void outbox_submit(struct outbox *o, struct job *j);
/* Moves on what waits; call whenever the worker has taken something (a job came back). */
void outbox_flush(struct outbox *o);

#endif
