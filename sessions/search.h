/* Full-text search over what items say.
 *
 * The index (FTS5) holds the words of the newest version of each item in each strand, and
 * changes in the transaction that changes the events. It holds no text: what a hit shows is
 * read from the event, whose tag is checked, so a damaged index can miss or misplace a hit but
 * never show what was not said. It can be made again from the events at any time, and is when
 * SQLite finds it damaged; nothing that is acknowledged ever waits for or fails because of it.
 *
 * A query is words, all of which an item must have; "several words" in quotes follow each
 * other; wor* is a beginning. Letters match without case and accents. The first MiB of an
 * item is searched. Store's thread. */
#ifndef SESSIONS_SEARCH_H
#define SESSIONS_SEARCH_H

#include "sessions/db.h"
#include "sessions/session.h"
#include "sessions/tape.h"

#define SEARCH_QUERY_MAX 1024u
#define SEARCH_MAX_HITS 1000u

struct search_hit {
    const char *session; /* id; the oldest one that shows the item */
    const char *name;
    uint64_t seq, t_ms;
    const char *item, *kind, *turn; /* turn may be NULL */
    const char *snippet;            /* text around the first match, secrets taken out */
};

struct search_query {
    const char *text;
    const char *session; /* id; NULL: all */
    uint32_t limit;      /* hits; 0: 50 */
};

/* Calls fn for each hit, best first (BM25); fn returns false to stop and must not call the
 * store. *more (may be NULL): the limit was reached before the hits were. ERR_INVAL: no word in
 * the query, or too long. ERR_NOTFOUND: session. ERR_CORRUPT: the session is damaged. */
typedef bool search_fn(void *user, const struct search_hit *hit);
NODISCARD enum err search_run(struct store *st, const struct search_query *q, search_fn *fn,
                              void *user, bool *more, struct error *e);

/* ---- upkeep, by the files that change events --------------------------------------------- */

/* Makes item_text() known to a connection that was just opened. */
NODISCARD enum err search_register(struct db *db, struct error *e);

/* The event (strand, seq) was just added and is of an item. In its transaction. */
NODISCARD enum err search_add(struct store *st, int64_t strand, uint64_t seq, const char *item,
                              struct error *e);
/* Before the events of a strand behind seq are deleted. In that transaction. */
NODISCARD enum err search_drop(struct store *st, int64_t strand, uint64_t seq, struct error *e);

/* After they were: versions of items that newer ones have hidden are the newest again. */
NODISCARD enum err search_uncover(struct store *st, int64_t strand, struct error *e);

/* After a transaction failed, and was rolled back: true if that was because the index is
 * damaged; it has then been made again, and the transaction may be tried once more. */
bool search_mend(struct store *st);

/* Compares the index with the events. ERR_CORRUPT: search_rebuild is due. For fsck: it reads
 * everything. */
NODISCARD enum err search_check(struct store *st, struct error *e);

/* Makes the index again from the events; afterwards it holds nothing of those that are gone (a
 * purge needs that: FTS5 deletes by marking). In the transaction that is open, or one of its
 * own: after an error the index is what it was. */
NODISCARD enum err search_rebuild(struct store *st, struct error *e);

/* The same in steps of some milliseconds, each a transaction; what the store does between two
 * of them keeps the index right as far as it goes, and searches are ERR_BUSY. *done: that was
 * the last. One that was left is ended by search_rebuild. */
NODISCARD enum err search_renew(struct store *st, bool *done, struct error *e);
/* Once rows can be read: makes the index again if a process before left search_renew. */
NODISCARD enum err search_open(struct store *st, struct error *e);

#endif
