/* Main planes that a restore has left in the packs: rows come when they are asked for.
 *
 * What is there is known from the restore: every header was read and verified, its token ids
 * compared. Each chunk is checked against the tags of that header when it is read, so what is
 * handed out is what was saved, or nothing is. It holds its own descriptors and keys: files may
 * be renamed or removed meanwhile, and the store may be closed.
 *
 * Rows that are not to be had (damaged, punched since, a device that fails twice) are noted:
 * whoever needs them lets go of the sequence, has the extents set aside, and restores again,
 * shorter.
 *
 * Shared by reference between the engine (by its state_fetch) and whoever looks after the
 * session. */
#ifndef SESSIONS_LATE_H
#define SESSIONS_LATE_H

#include <stdbool.h>

#include "base/state.h"

struct late;
struct store;

/* Another reference. Any thread. */
struct late *late_ref(struct late *l);
/* NULL is fine. Any thread; the last one closes and wipes. */
void late_unref(struct late *l);

/* For the engine, with a reference of its own. Errors of rows: those of base/state.h; ERR_IO
 * and ERR_CORRUPT leave a note. */
struct state_fetch late_fetch(struct late *l);
/* Main rows of the first so many tokens are late. Any thread. */
uint64_t late_tokens(const struct late *l);
/* Whether rows were asked for that are not to be had. Any thread. */
bool late_is_damaged(const struct late *l);

/* When there is a note: reads all of it and sets aside every extent that is not whole (a save
 * shares what it finds under the same key, so none may be left), where the catalog still means
 * the same place: a pack may have been rewritten, and then it is looked for where it is now.
 * *n: how many. Store's thread. ERR_IO, ERR_NOMEM of the database. */
NODISCARD enum err late_set_aside(struct store *st, struct late *l, uint32_t *n,
                                  struct error *e);

#endif
