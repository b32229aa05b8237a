/* Giving room back: garbage, eviction, and deletion that leaves no trace.
 *
 * What is referred to follows from the heads of sessions alone: session -> head -> tip, tail,
 * block -> the ones before it. Two phases: catalog rows go in transactions; only after these
 * are in the database file itself are the bytes in the packs punched, so that no crash leaves a
 * row over a hole. Packs under half live are rewritten. Tape and items are never touched.
 *
 * A run is made of steps of a few milliseconds, and everything else may happen to the store
 * between two of them: the daemon takes a step when nobody waits. What a run has planned is
 * looked at again when it is done. Store's thread. */
#ifndef SESSIONS_GC_H
#define SESSIONS_GC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/err.h"

struct store;

struct gc_report {
    uint64_t blocks, tails, tips; /* rows that nothing referred to, dropped */
    uint64_t evicted;             /* extents of sessions that went for room */
    uint64_t extents;             /* stretches of packs without a row, given back */
    uint64_t bytes;               /* of these */
    uint64_t packs_rewritten, packs_removed;
    uint64_t bytes_moved; /* by rewriting */
};

enum gc_mode {
    GC_COLLECT, /* garbage; what a crash forgot; eviction if space is short; rewriting */
    GC_EVICT,   /* only if space is short: the least valuable, down to the low watermark */
    /* Garbage, overwritten, also what a restore has found and not read yet; and then the
     * search index and the database file anew, the latter in one step. */
    GC_PURGE
};

struct gc;
/* A run that has evicted nothing yet, for gc_end(). ERR_NOMEM; GC_EVICT asks the file system
 * first: ERR_IO. */
NODISCARD enum err gc_begin(struct store *st, enum gc_mode mode, struct gc **out,
                            struct error *e);
/* One step. *done: that was the last. After an error the run is over; what was not given back
 * yet is found by the next one. */
NODISCARD enum err gc_step(struct gc *g, bool *done, struct error *e);
const struct gc_report *gc_so_far(const struct gc *g);
/* NULL is fine. */
void gc_end(struct gc *g);

/* All sessions of the namespace that is served (each id is told to `gone` first), their text,
 * tape and state; then its key, so that no copy of a sealed extent can be read again. ERR_IO,
 * ERR_NOMEM: what is left is dropped by the next call. */
typedef void gc_gone_fn(void *user, const char *session);
NODISCARD enum err gc_drop_namespace(struct store *st, gc_gone_fn *gone, void *user,
                                     uint64_t *n_sessions, uint64_t *n_packs, struct error *e);

/* A whole GC_COLLECT. ERR_IO, ERR_NOMEM. out may be NULL. */
NODISCARD enum err gc_run(struct store *st, struct gc_report *out, struct error *e);

/* A whole GC_PURGE: afterwards no file of the store holds text or tokens that only sessions had
 * which session_delete has removed. What forks of them need stays. After an error bytes may be
 * left; the next call goes on. */
NODISCARD enum err gc_purge(struct store *st, struct gc_report *out, struct error *e);

#endif
