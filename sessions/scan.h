/* What happens to packs when a store is opened.
 *
 * Every pack that the database knows: superblock checked, rows past its end dropped, bytes
 * behind its committed length cut off. Packs it does not know, but that were made with this
 * master key and namespace: their blocks go into the catalog (a database that was lost, or is
 * older than its packs). Everything else in the folder is left alone and counted. */
#ifndef SESSIONS_SCAN_H
#define SESSIONS_SCAN_H

#include "sessions/store_internal.h"

/* Looks for the key of st->space.name in the superblocks: *found and st->space filled, but for
 * its id. For a new database over old packs. */
NODISCARD enum err scan_namespace(struct store *st, bool *found, struct error *e);

/* Takes the superblock, and with it the wrapped data key, from every pack of the open
 * namespace, and unlinks the files. *n: how many. */
NODISCARD enum err scan_erase(struct store *st, uint64_t *n, struct error *e);

/* Damage is repaired or set aside and counted in st->seen; errors are those of the database,
 * the folder, or memory. */
NODISCARD enum err scan_packs(struct store *st, struct error *e);

/* While the store is open: drops the rows of packs whose files are gone. *n: how many packs. */
NODISCARD enum err scan_removed(struct store *st, uint64_t *n, struct error *e);

#endif
