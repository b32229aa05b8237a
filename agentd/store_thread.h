/* The thread that owns the session store: one SQLite connection and the pack files.
 *
 * Everything about the store happens in jobs (agentd/job.h) whose `run` gets the struct store
 * as its context: tape commits, state commits, restores and reads, one after the other in the
 * order of submission. That order is the durability argument of turn.c: a job that was
 * submitted later never becomes durable earlier. */
#ifndef AGENTD_STORE_THREAD_H
#define AGENTD_STORE_THREAD_H

#include "agentd/job.h"

struct store;
struct store_thread;

/* Starts the thread. The store is borrowed and belongs to the thread until store_thread_free.
 */
NODISCARD enum err store_thread_new(struct store *s, struct store_thread **out,
                                    struct error *e);
/* Finishes every submitted job (their `done` is called from here), then joins. */
void store_thread_free(struct store_thread *t);

/* Jobs submitted whose `done` was not called yet. */
size_t store_thread_outstanding(const struct store_thread *t);

/* Loop thread. */
void store_thread_submit(struct store_thread *t, struct job *j);
/* Readable when finished jobs wait: then store_thread_drain() calls their `done`. */
int store_thread_fd(const struct store_thread *t);
void store_thread_drain(struct store_thread *t);

#endif
