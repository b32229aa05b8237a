/* A bounded queue between threads, with a descriptor that a poll loop can wait on.
 *
 * Holds copies of fixed-size items (a pointer, a small struct) in order. Any number of threads
 * may push and pop. Whoever pushes a pointer gives the object away; whoever pops it owns it.
 *
 * queue_fd() is readable exactly while there is something to pop or the queue is closed: watch
 * it level-triggered, then queue_try_pop() until ERR_BUSY. Never read the descriptor itself.
 *
 * Closing: pushes fail from then on, pops still deliver what is inside, then say ERR_CLOSED.
 * The codes are the whole story here, so there is no struct error. */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct queue;

#define QUEUE_FOREVER (-1)

/* n_items >= 1 items of item_bytes >= 1. ERR_NOMEM, ERR_IO (no descriptor left). */
NODISCARD enum err queue_new(size_t item_bytes, size_t n_items, struct queue **out,
                             struct error *e);
/* NULL is fine. No thread may be inside a call. Items still inside are dropped: pop them first
 * if they own something. */
void queue_free(struct queue *q);

/* Copies *item in; waits while full, at most timeout_ms (QUEUE_FOREVER: as long as it takes).
 * ERR_TIMEOUT, ERR_CLOSED. */
NODISCARD enum err queue_push(struct queue *q, const void *item, int64_t timeout_ms);
/* As queue_push, but ERR_BUSY at once when full. */
NODISCARD enum err queue_try_push(struct queue *q, const void *item);

/* Copies the oldest item out; waits while empty. ERR_TIMEOUT, ERR_CLOSED (closed and empty). */
NODISCARD enum err queue_pop(struct queue *q, void *item, int64_t timeout_ms);
/* As queue_pop, but ERR_BUSY at once when empty. */
NODISCARD enum err queue_try_pop(struct queue *q, void *item);

/* Wakes everybody who waits. May be called again. */
void queue_close(struct queue *q);

/* Readable while there is something to pop or the queue is closed. The queue's; do not close.
 */
int queue_fd(const struct queue *q);
/* Items inside at this moment. */
size_t queue_len(struct queue *q);

#endif
