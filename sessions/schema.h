/* The tables of agentd.db as they are today; migrate.h makes them of an older database.
 *
 * To change them: write a golden store of the version before (scripts/store-golden.sh), change
 * columns here and tables in schema.c, raise SCHEMA_VERSION, and say in migrate.c what the
 * table had and what its new columns are made of.
 *
 * Every table whose rows hold content, order or a pointer ends in a 16-byte `tag` (db.h).
 * Column lists stand here once: the same list writes a row, reads it and feeds its tag.
 * README.md draws how the tables hang together. */
#ifndef SESSIONS_SCHEMA_H
#define SESSIONS_SCHEMA_H

#include "sessions/db.h"

#define SCHEMA_VERSION 4

#define META_COLS "key, value"
#define NAMESPACE_COLS "id, uuid, name, algorithm, wrapped, created"
#define LAYOUT_COLS "id, namespace, fingerprint, spec, root"
#define SESSION_COLS                                                                           \
    "num, id, name, namespace, strand, parent, forked_at, origin, state, reason, damaged, "    \
    "created, updated, n_turns, n_unfinished, n_calls, n_open"
#define CONFIG_COLS "session, cwd, config"
#define STRAND_COLS "id, parent, parent_pos, parent_seq, length, last_seq, n_marks"
#define TAPE_COLS "strand, chunk, ids"
#define SEGMENT_COLS "strand, start, len, kind, mode, open, digest, n_rows"
#define MARK_COLS "strand, at, origin"
#define EVENT_COLS "strand, seq, t, position, turn, type, item, kind, json, bytes"
#define CALL_COLS                                                                              \
    "session, id, ord, turn, item, name, arguments, step, idx, status, is_error, ingested, "   \
    "result, spill, spill_bytes, created, ended"
#define TURN_COLS                                                                              \
    "session, id, ord, client_message, forced_next, step, state, reason, ledger, finished, "   \
    "first_seq, created, n_calls"
#define PARAMS_COLS "session, id, params"
#define PACK_COLS "id, uuid, namespace, state, length"
#define BLOCK_COLS                                                                             \
    "id, layout, parent, depth, key, digest, numerics, lineage, pack, off, pages, "            \
    "commit_no, damaged, used"
#define TAIL_COLS                                                                              \
    "id, layout, block, prev, first, last, digest, numerics, lineage, pack, off, pages, "      \
    "commit_no, damaged"
#define TIP_COLS                                                                               \
    "id, layout, key, position, inside, block, tail, segment_digest, digest_rows, numerics, "  \
    "lineage, pack, off, pages, commit_no, damaged"
#define HEAD_COLS                                                                              \
    "session, slot, generation, layout, position, block, tail, tip, numerics, lineage, "       \
    "commit_no"
/* What a session's state is worth when space is short (holds.h); no row: nothing so far. */
#define HOLD_COLS "session, pinned, uses, used"

/* The full-text index is made of events: its row ids are strand and seq (both far below 2^31),
 * its text is what an item says. SQL over `events`; item_text() is search.c's. */
#define SEARCH_ID "(strand << 32) | seq"

struct schema_table {
    const char *name;
    const char *create;  /* CREATE TABLE */
    const char *indexes; /* CREATE INDEX ..., or NULL */
    const char *fill;    /* what puts in it what a migration finds in others, or NULL */
};
const struct schema_table *schema_tables(size_t *n);

/* user_version, 0 of an empty file. ERR_UNSUPPORTED: newer than this build. */
NODISCARD enum err schema_version(struct db *db, int64_t *out, struct error *e);
/* Makes the tables of a new database, in one transaction. */
NODISCARD enum err schema_create(struct db *db, struct error *e);
/* What comes last: indexes and user_version. Inside a transaction. */
NODISCARD enum err schema_finish(struct db *db, struct error *e);

#endif
