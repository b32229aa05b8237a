/* The session store: what was acknowledged is never lost, what is damaged is never served.
 *
 * SQLite holds identities, order and pointers; pack files hold model state. This header opens
 * and closes the store and counts what it saw; the rest of the folder in reading order:
 *
 *     session.h    sessions: new, fork, list, rename, delete
 *     tape.h       the tape commit and everything that is read back from it
 *     head.h       the state commit, and finding and restoring model state
 *     identity.h   the keys of blocks and tips
 *     pack.h       the pack file format
 *
 * Everything here is synchronous and belongs to one thread, the store's. There is one
 * connection, which both writes and checkpoints (two can corrupt a WAL in SQLite 3.7.0
 * to 3.51.2), in WAL mode with synchronous=FULL: a commit that returned OK survives a power
 * cut. One process per store: a lock on `DB.lock` is held until store_close, also against a
 * second open in this process. */
#ifndef SESSIONS_STORE_H
#define SESSIONS_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/aio.h"
#include "base/clock.h"
#include "base/err.h"
#include "sessions/keys.h"

struct store;

#define STORE_BLOCK_TOKENS 2048u        /* tokens of a block, unless the store says otherwise */
#define STORE_PACK_BYTES (256ull << 20) /* a pack is sealed before it grows past this */

/* Whether the chunks of extents written from now on are encrypted. What is there already is
 * read either way. The database (text, tokens, tool output) is never encrypted by agentd. */
enum store_encrypt { STORE_ENCRYPT_AS_IS, STORE_ENCRYPT_OFF, STORE_ENCRYPT_ON };

struct store_options {
    const char *db_path;   /* the database; its folder is made (0700) when missing */
    const char *packs_dir; /* folder of NNNNNNNN.pack; made when missing */
    const char *state_dir; /* folder of master.key; made when missing */
    const char *key_path;  /* NULL: master.key in state_dir. Made (0600) for a new store */
    struct keys_passphrase passphrase;  /* of that file; none: it is plain */
    struct crypto_cost passphrase_cost; /* for a new file; zeros: CRYPTO_COST_DEFAULT */
    uint32_t
        block_tokens; /* recorded in a new store; 0: 2048 for a new store, else what it has */
    uint64_t pack_bytes;        /* 0: STORE_PACK_BYTES */
    uint64_t quota_bytes;       /* of packs, on the device (space.h); 0: no limit */
    enum store_encrypt encrypt; /* recorded; a new store begins with off */
    bool no_direct_io;      /* buffered reads and writes, as on file systems without O_DIRECT */
    const char *namespace;  /* the one that is served; NULL: "uid-N" of this user */
    struct aio_options aio; /* all 0: the defaults */
    const struct clock *clock; /* NULL: the machine's */
};

/* Opens or makes a store: lock, schema (migrated by user_version), start-up scan of the packs.
 * Junk and leftovers in any of the folders are harmless and counted.
 * ERR_BUSY: another process (or this one) has it. ERR_UNSUPPORTED: network file system, newer
 * schema. ERR_INVAL: block_tokens differs from the store's. ERR_CORRUPT: the database is not
 * one, or the master key does not belong to it. ERR_DENIED, ERR_INVAL: passphrase missing,
 * wrong, or not wanted (keys.h). ERR_IO, ERR_LIMIT (disk full),
 * ERR_DENIED (read-only folder). Nothing is changed on failure but empty folders and files left
 * behind. */
NODISCARD enum err store_open(struct store **out, const struct store_options *o,
                              struct error *e);

/* Checkpoints the WAL, closes everything, drops the lock. NULL is fine. */
void store_close(struct store *st);

/* Name of the namespace that is served. */
const char *store_namespace_name(const struct store *st);
uint32_t store_block_tokens(const struct store *st);
/* Whether extents written now are encrypted. */
bool store_encrypts(const struct store *st);

/* What the start-up scan and the reads since then met. All 0 on a healthy store. */
struct store_counters {
    uint64_t sessions; /* rows in the list, damaged ones included */
    uint64_t sessions_damaged;
    uint64_t packs;               /* pack files in use */
    uint64_t pack_bytes;          /* their length in all */
    uint64_t blocks, tails, tips; /* extents in the catalog that may be used */
    uint64_t junk_files;          /* files in packs_dir that are no pack of this store */
    uint64_t packs_refused;       /* superblock unreadable, of another key, or swapped */
    uint64_t rows_dropped;        /* catalog rows past a file's end or of a missing file */
    uint64_t bytes_truncated;     /* unindexed tails of open packs */
    uint64_t extents_adopted;     /* found in packs, unknown to the database: catalog rebuilt */
    uint64_t extents_damaged;     /* set aside: tag or ids did not match */
    uint64_t rows_damaged;        /* database rows whose tag did not match */
    uint64_t chunks_rebuilt;      /* tape chunks made again from the ids in blocks */
    uint64_t commits_lost;        /* state commits in the packs that the database does not know:
                                     the database is older than its packs */
    uint64_t indexes_rebuilt;     /* the search index, because it was damaged */
    uint64_t packs_killed;        /* packs given up after a failed write or fsync */
    uint64_t tape_commits_lost;   /* transactions that changed a session, acknowledged by the
                                     process before, and not in the database */
    bool wal_lost; /* the process before did not close the database, and its -wal is gone: what
                      was acknowledged since the last checkpoint is lost */
};
void store_count(struct store *st, struct store_counters *out);

/* Sessions that have lost commits (any of the three above), in no order; at most 256. */
typedef void store_name_fn(void *user, const char *session_id);
void store_lost_sessions(const struct store *st, store_name_fn *fn, void *user);

#endif
