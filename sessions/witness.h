/* Whether the database was closed in order: kept in its lock file, which says "open" from the
 * moment when the store is open until just before the database is closed.
 *
 * A database that was not closed has its -wal, and what was acknowledged last is in there and
 * nowhere else. Without this, a -wal that somebody removed in between would not show: the
 * database file alone is whole, only older. */
#ifndef SESSIONS_WITNESS_H
#define SESSIONS_WITNESS_H

#include <stdbool.h>

#include "base/err.h"

/* Before the database is opened, with its lock held. *wal_lost: it was not closed, and its -wal
 * is not there; this is remembered until witness_open, whatever happens to the files. */
NODISCARD enum err witness_read(int lock_fd, const char *db_path, bool *wal_lost,
                                struct error *e);
/* The database is open, its -wal there; durable, with their names. */
NODISCARD enum err witness_open(int lock_fd, const char *db_path, struct error *e);
/* It is about to be closed. After an error the -wal has to stay. */
NODISCARD enum err witness_close(int lock_fd, struct error *e);

#endif
