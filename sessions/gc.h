/* Giving back what nothing refers to: gc, and deletion that leaves no trace.
 *
 * What is referred to follows from the heads of sessions alone: session -> head -> tip, tail,
 * block
 * -> the ones before it. Two phases: catalog rows go in one transaction; only after it is in
 * the database file itself are the bytes in the packs overwritten and punched, so that no crash
 * leaves a row over a hole. Tape and items are never touched. Store's thread. */
#ifndef SESSIONS_GC_H
#define SESSIONS_GC_H

#include <stdint.h>

#include "base/err.h"

struct store;

struct gc_report {
    uint64_t blocks, tails, tips; /* rows that nothing referred to, dropped */
    uint64_t extents;             /* in packs without a row, given back */
    uint64_t bytes;               /* of these */
};

/* Drops all state that no session's head leads to, also what deleted sessions have left for
 * others to share, and what a crash has forgotten. ERR_IO, ERR_NOMEM: what was not given back
 * yet is found by the next run. */
NODISCARD enum err gc_run(struct store *st, struct gc_report *out, struct error *e);

/* gc_run, then the database file written anew: afterwards no file of the store holds text or
 * tokens that only sessions had which session_delete has removed. What forks of them need
 * stays; so does an extent whose header is damaged, because nobody can tell whose it is. After
 * an error bytes may be left; the next call goes on. */
NODISCARD enum err gc_purge(struct store *st, struct gc_report *out, struct error *e);

#endif
