/* A few threads that take jobs from one list, for a thread that has other things in flight.
 *
 * base/pool.h makes one loop faster while its caller waits for it; this is for work that
 * arrives piece by piece (reads that complete) and whose results are collected when they are
 * ready:
 *
 *     workers_submit(w, &job->work);            the job's run() is called on one of the threads
 *     while ((done = workers_take(w, false)))   finished jobs, in the order they finished
 *
 * One thread submits and takes. A job is the caller's, in one piece from submit to take; what
 * run() wrote is then visible to the taker. Nothing is allocated per job. */
#ifndef BASE_WORKERS_H
#define BASE_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define WORKERS_MAX_THREADS 64

/* Embedded in a job, first or not (container of the caller's choice). */
struct work {
    struct work *next; /* private */
    void (*run)(struct work *w);
};

struct workers;

/* n_threads 1..WORKERS_MAX_THREADS. ERR_INVAL, ERR_NOMEM, ERR_LIMIT: not one thread can be
 * started (with fewer than asked for it goes on). */
NODISCARD enum err workers_new(uint32_t n_threads, struct workers **out, struct error *e);
/* Nothing may be submitted and not taken. NULL is fine. */
void workers_free(struct workers *w);

/* w NULL: runs it now, on this thread; the caller has it back on return and takes nothing. */
void workers_submit(struct workers *w, struct work *job);
/* The next finished job. wait: blocks until there is one, if any is out. NULL: none is
 * finished (or, after waiting, none is out). */
struct work *workers_take(struct workers *w, bool wait);
/* Submitted and not taken yet. */
uint32_t workers_out(const struct workers *w);

#endif
