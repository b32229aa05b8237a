/* The thread that owns the model: it drives engine_step() and takes jobs between steps.
 *
 * Jobs (agentd/job.h) get the struct engine as context; they queue work on sequences, export
 * and import state, cancel. What comes back arrives in one ordered stream: finished jobs and
 * engine events. So whoever handles a finished export has already seen every id up to its
 * position.
 *
 * The stream is bounded and the loop never waits for the engine, so a loop that is behind slows
 * the engine down and nothing else. */
#ifndef AGENTD_ENGINE_THREAD_H
#define AGENTD_ENGINE_THREAD_H

#include "agentd/job.h"
#include "engine/engine.h"

struct engine_thread;

/* What the loop is told, in order. */
struct engine_note {
    struct job *job;           /* a finished job; else NULL and: */
    struct engine_event event; /* one event of a step, */
    struct seq_digest digest;  /* with ENGINE_DONE: the digest of the segment it ended in, */
    bool is_fatal;             /* or: engine_step failed as a whole, see event.error */
};

/* Called on the loop thread for every event and for a fatal error (seq and user are NULL). */
struct engine_listener {
    void *arg;
    void (*event)(const struct engine_note *n, void *arg);
};

/* Starts the thread. The engine is borrowed and belongs to the thread until
 * engine_thread_free. */
NODISCARD enum err engine_thread_new(struct engine *m, const struct engine_listener *listener,
                                     struct engine_thread **out, struct error *e);
/* Interrupts the step in progress, runs the jobs that were submitted, drops events, joins. */
void engine_thread_free(struct engine_thread *t);

/* Jobs submitted whose `done` was not called yet. */
size_t engine_thread_outstanding(const struct engine_thread *t);

/* Loop thread. */
void engine_thread_submit(struct engine_thread *t, struct job *j);
/* As submit, and makes a long step end soon: for cancelling. */
void engine_thread_submit_urgent(struct engine_thread *t, struct job *j);
int engine_thread_fd(const struct engine_thread *t);
void engine_thread_drain(struct engine_thread *t);

#endif
