/* Giving bytes of packs back: whatever lies between the extents that the catalog names. Where
 * an extent was, whether its header is whole, and whether a crash forgot it makes no
 * difference. The list at the end of a sealed pack stays, and so does what is behind the
 * committed length.
 *
 * Only after a checkpoint: the database file itself must know that the rows are gone. Store's
 * thread. Fault point: pack.punch. */
#ifndef SESSIONS_SWEEP_H
#define SESSIONS_SWEEP_H

#include "sessions/gc.h"
#include "sessions/pack.h"

struct sweep {
    struct store *st;
    bool overwrite; /* with zeros, before the hole is punched */
    int64_t pack;   /* in work; 0: the next one */
    uint64_t at;    /* offset in it */
};
/* Goes on with s->pack for at most a few MB or holes; extents and bytes are added to *r.
 * *done: it is finished, and s->pack 0. A pack whose row or file is gone holds nothing. */
NODISCARD enum err sweep_step(struct sweep *s, struct gc_report *r, bool *done,
                              struct error *e);

/* Checkpoints and punches all of these packs. */
NODISCARD enum err sweep_packs(struct store *st, const int64_t *packs, size_t n,
                               struct error *e);

/* The pack with the smallest number above `after`. */
NODISCARD enum err sweep_next_pack(struct store *st, int64_t after, struct pack_row *out,
                                   bool *found, struct error *e);

#endif
