/* Choosing what goes, and taking its rows out of the catalog.
 *
 * Leaves first: an extent goes when nothing hangs on it any more. Of all leaves, the one with
 * the lowest
 *
 *     tokens that would be computed again x uses, faded / bytes
 *
 * goes next, the oldest commit first among equals. What no newest head needs is worth nothing
 * and goes before everything else. Heads that meant an extent mean what it hung on from then
 * on; their position stays, so that what is computed again is known to have been there
 * (`relost`). Never taken: what a pinned session needs, what a restore is about to read, and
 * what the caller names.
 *
 * Rows go in transactions of a few dozen, each looked at again first. Bytes are given back
 * afterwards (sweep.h). Store's thread. */
#ifndef SESSIONS_EVICT_H
#define SESSIONS_EVICT_H

#include "sessions/forest.h"
#include "sessions/gc.h"

struct evict {
    struct store *st;
    struct forest forest;
    bool ignore_plans; /* what a restore has found may go */
    int32_t *heap;     /* leaves, the least valuable first */
    size_t n_heap, cap_heap;
    bool has_heap;
    size_t at;           /* garbage: nodes before it are still to be looked at */
    bool started, again; /* garbage: at all; once more, for what hung on what went later */
    uint64_t freed;      /* bytes of the rows dropped */
    int64_t *packs;      /* where they were, each once */
    size_t n_packs;
    struct gc_report report;
};
void evict_init(struct evict *v, struct store *st);
void evict_fini(struct evict *v);

/* When v->forest is ready: one transaction with rows that no head leads to. *done: there are no
 * more. */
NODISCARD enum err evict_garbage(struct evict *v, bool *done, struct error *e);

/* The same with the least valuable, until v->freed is `goal`. *done also when no leaf is left.
 */
NODISCARD enum err evict_leaves(struct evict *v, uint64_t goal, bool *done, struct error *e);

/* What must stay, whatever it is worth. */
struct evict_keep {
    const int64_t *blocks;
    size_t n_blocks;
    int64_t tail, tip; /* 0: none */
};
/* Makes room for `bytes` at once, bytes in the packs included. ERR_LIMIT, with nothing evicted:
 * what may go is less. */
NODISCARD enum err evict_room(struct store *st, uint64_t bytes, const struct evict_keep *keep,
                              struct error *e);

#endif
