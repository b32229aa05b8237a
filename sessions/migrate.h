/* A database of an older version becomes one of today's.
 *
 * In this order: a copy of the database as it is (`agentd.db.vN`, N its version, durable before
 * anything is changed), then one transaction in which every table that has changed is written
 * anew, row by row: the old tag is checked, the new row gets a new one. A row whose tag did not
 * match keeps the wrong one, so that damage stays visible. A crash or an error leaves the old
 * database; the next start tries again.
 *
 * What a step is made of stands in one table in migrate.c. Store's thread, at the start. */
#ifndef SESSIONS_MIGRATE_H
#define SESSIONS_MIGRATE_H

#include "sessions/db.h"

/* From version `from` (1 or later) to SCHEMA_VERSION; row_key is set. ERR_LIMIT: disk full (the
 * copy and the new tables need as much room as the database again). */
NODISCARD enum err migrate(struct db *db, int64_t from, struct error *e);

/* Removes the copies that migrations have kept: a purge has to. */
NODISCARD enum err migrate_drop_copies(struct db *db, struct error *e);

#endif
