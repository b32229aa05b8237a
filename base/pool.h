/* A persistent worker pool for kernels: one parallel loop at a time, cut into fixed shares.
 *
 * pool_run(pool, fn, arg, n) calls fn once per thread that has a share: thread t of T works on
 * the items [n*t/T, n*(t+1)/T). The split depends on n and T only. A result must not depend on
 * it: one item is computed whole by one thread, in an order that its own index decides.
 *
 * The caller is thread 0 and takes its share. Nothing is allocated per call. Idle workers spin
 * for some microseconds (they do not when there are more threads than CPUs), then sleep on a
 * futex. A pool belongs to one thread at a time; pool_run may not be called from inside fn. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define POOL_MAX_THREADS 256

struct pool;

/* Works on items [first, last), first < last, as thread number `thread` of the pool. */
typedef void pool_fn(void *arg, size_t first, size_t last, uint32_t thread);

/* Threads that this process may use (its CPU affinity), at least 1. */
uint32_t pool_cpus(void);

/* n_threads counts the caller; 0 means pool_cpus(). ERR_INVAL above POOL_MAX_THREADS,
 * ERR_NOMEM, ERR_LIMIT when a thread cannot be started. */
NODISCARD enum err pool_new(uint32_t n_threads, struct pool **out, struct error *e);
/* Stops and joins the workers. NULL is fine. */
void pool_free(struct pool *p);
uint32_t pool_threads(const struct pool *p);

/* Returns when every item is done; what fn wrote is then visible to the caller. p NULL: the
 * caller does all of it. */
void pool_run(struct pool *p, pool_fn *fn, void *arg, size_t n_items);

#endif
