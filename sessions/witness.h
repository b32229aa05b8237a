/* What the database held when it was last used, kept in its lock file: so that a -wal which
 * somebody removed, cut or damaged while nothing ran shows, and the sessions with it. The
 * database alone is whole then, only older.
 *
 * The file begins with a word: "open" from the moment when the store is open until just before
 * the database is closed. A page behind it there is a slot for each session: the number of the
 * last transaction that changed it, with its id. Every such transaction counts up one number,
 * which stands in `meta`; a slot with a higher number is that of a session which has lost
 * commits. A slot is written after its commit and before anything is acknowledged. It is not
 * synced: it outlives the process as it is, and after a power cut it may be older than what was
 * committed, which names one session too few; it is never newer. */
#ifndef SESSIONS_WITNESS_H
#define SESSIONS_WITNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/ulid.h"

struct store;

#define WITNESS_MAX_NOTED 4 /* sessions of one transaction */

struct witness {
    uint64_t commit; /* number of the last transaction that changed a session */
    struct witness_noted {
        int64_t num;
        char id[ULID_CHARS + 1];
    } noted[WITNESS_MAX_NOTED]; /* by the transaction that is open */
    size_t n_noted;
};

/* Before the database is opened, with its lock held. *wal_lost: it was not closed, and its -wal
 * is not there; this is remembered until witness_open, whatever happens to the files. */
NODISCARD enum err witness_read(int lock_fd, const char *db_path, bool *wal_lost,
                                struct error *e);
/* Once rows can be read: compares the slots with the database, names the sessions that have
 * lost commits (store_note_lost) and counts them. Watches the database's transactions from then
 * on. ERR_IO. */
NODISCARD enum err witness_compare(struct store *st, struct error *e);
/* The database is open, its -wal there; durable, with their names. Slots begin anew. */
NODISCARD enum err witness_open(int lock_fd, const char *db_path, struct error *e);
/* It is about to be closed. After an error the -wal has to stay. */
NODISCARD enum err witness_close(int lock_fd, struct error *e);

/* The open transaction changes this session. Outside of one: nothing, for what nobody asked
 * for (a mark of damage). */
void witness_note(struct store *st, int64_t num, const char *id);

#endif
