/* Packs: append-only files of extents, `packs/NNNNNNNN.pack`.
 *
 *     page 0        superblock: who made it, its namespace, how it is keyed, with a tag
 *     page 1...     extents (extent.h), one behind the other; punched holes between them
 *     at the end    of a sealed pack: an extent that lists the others, and a trailer page that
 *                   says where the list is
 *
 * A pack belongs to one namespace and carries its key, wrapped by the master key, so that packs
 * and master key alone can rebuild the catalog of blocks.
 *
 * Writing goes in steps that head_save drives: pack_room, pack_write, ... then pack_sync, then
 * pack_note inside the transaction, then pack_done; or pack_undo at any point, after which the
 * bytes that were not committed are gone. A pack whose write or fsync failed (but for a full
 * disk) is never written again: what its unsynced pages hold is unknown.
 *
 * Belongs to the store's thread. Fault points beside those of fs and aio: pack.create,
 * pack.truncate, pack.seal. */
#ifndef SESSIONS_PACK_H
#define SESSIONS_PACK_H

#include "sessions/extent.h"
#include "sessions/store_internal.h"

#define PACK_MAX_OPEN 64
#define PACK_MAX_KILLED 64

enum pack_state {
    PACK_OPEN = 1,
    PACK_SEALED,
    PACK_DEAD,   /* what is committed stays readable */
    PACK_LEAVING /* nothing is in it, and its file is being removed */
};

/* A row of `packs`. */
struct pack_row {
    int64_t id; /* the number in the file's name */
    uint8_t uuid[STORE_UUID_BYTES];
    int64_t space;
    enum pack_state state;
    uint64_t length; /* committed bytes */
};

/* Superblock, little endian (offset, bytes): magic "AGDPACK1" 8, version 4, page size 4, chunk
 * size 4, algorithm of chunk tags 4, of hashes 4 (1: BLAKE2b), tokens of a block 4, uuid 16,
 * uuid of the store 16, uuid of the namespace 16, its name 64, its wrapped key 72 (nonce, key,
 * tag), number 8, made at (Unix ms) 8; zeros; in the last 16 bytes a BLAKE2b-128 tag. */
struct pack_super {
    uint8_t uuid[STORE_UUID_BYTES], store[STORE_UUID_BYTES], space[STORE_UUID_BYTES];
    char space_name[64];
    uint8_t wrapped[CRYPTO_NONCE_BYTES + CRYPTO_KEY_BYTES + CRYPTO_TAG_BYTES];
    uint64_t number, created_ms;
    uint32_t block_tokens;
    enum extent_algorithm algorithm; /* of new extents when the pack was begun */
};
void pack_super_encode(const struct pack_super *s, const uint8_t key[CRYPTO_KEY_BYTES],
                       uint8_t page[EXTENT_PAGE]);
/* ERR_FORMAT: no pack, or of a later version. ERR_CORRUPT: damaged, or of another master key.
 */
NODISCARD enum err pack_super_decode(const uint8_t page[EXTENT_PAGE],
                                     const uint8_t key[CRYPTO_KEY_BYTES],
                                     struct pack_super *out, struct error *e);

/* Whether a superblock, damaged or not, names this namespace. */
bool pack_super_is_of(const uint8_t page[EXTENT_PAGE], const uint8_t *space_uuid);

/* Path of pack number id. */
NODISCARD enum err pack_path(const struct store *st, int64_t id, char *out, size_t cap,
                             struct error *e);

/* ---- walking ----------------------------------------------------------------------------- */

struct pack_walk {
    const uint8_t *header_key;
    const uint8_t *uuid;
    uint64_t n_damaged; /* headers that begin right but do not verify */
    /* Returns OK to go on. */
    enum err (*fn)(void *user, const struct extent *x, uint64_t off, struct error *e);
    void *user;
};
/* Hands over every extent of [from, to) whose header verifies, in order; holes, garbage and
 * damage are stepped over page by page. fd: a buffered descriptor. */
NODISCARD enum err pack_walk(struct pack_walk *w, int fd, uint64_t from, uint64_t to,
                             struct error *e);

/* Reads an extent that pack_walk has found, whole, and checks every chunk against its tag.
 * ERR_CORRUPT: one does not match. */
NODISCARD enum err pack_check_extent(int fd, const struct extent *x, uint64_t off,
                                     const struct extent_keys *k, struct error *e);

/* Compares a sealed pack of `size` bytes with the list at its end: *n_damaged is how many of
 * the extents it names are neither whole nor punched. ERR_NOTFOUND: it has no list (it was
 * never sealed). ERR_CORRUPT: the list itself is damaged. */
NODISCARD enum err pack_check_list(int fd, const uint8_t *uuid, const struct extent_keys *k,
                                   uint64_t size, uint64_t *n_damaged, struct error *e);

/* ---- reading ----------------------------------------------------------------------------- */

/* A pack open for reading; borrowed from the store until the next call of a pack function. */
struct pack_file {
    int64_t id;
    int fd;
    bool direct;
    uint8_t uuid[STORE_UUID_BYTES];
    uint64_t used;    /* for choosing whom to close */
    uint32_t n_holds; /* not closed while it is held */
};
/* Opens pack id if it is not, and checks its superblock. ERR_CORRUPT: not the pack that the row
 * with this id means. ERR_BUSY: as pack_hold. */
NODISCARD enum err pack_open(struct store *st, int64_t id, const struct pack_file **out,
                             struct error *e);
/* The same for reads that go on after the call: the file stays open until pack_release.
 * ERR_BUSY: PACK_MAX_OPEN others are held. */
NODISCARD enum err pack_hold(struct store *st, int64_t id, const struct pack_file **out,
                             struct error *e);
void pack_release(struct store *st, int64_t id);
/* Forgets the open file of a pack (its file is going to change or vanish). */
void pack_forget(struct store *st, int64_t id);
/* Of all packs, the one that is being filled included; nothing may be uncommitted. */
void pack_forget_all(struct store *st);

NODISCARD enum err pack_row_read(struct store *st, int64_t id, struct pack_row *out,
                                 struct error *e);
NODISCARD enum err pack_row_write(struct store *st, const struct pack_row *r, struct error *e);

/* Whether what the catalog says of pack id can be relied on: its file opens, is the one that is
 * meant, and has its name still. */
NODISCARD enum err pack_is_there(struct store *st, int64_t id, bool *out, struct error *e);

/* ---- writing ----------------------------------------------------------------------------- */

/* Before a save: when somebody has removed the file of the pack that is being filled, rows of
 * all packs that are gone are dropped, as at a start, and another pack is begun. What would be
 * written into a file without a name is lost with this process. */
NODISCARD enum err pack_check_removed(struct store *st, struct error *e);

/* Where the next extent of that many pages goes; seals a full pack and begins another.
 * *uuid_out: of that pack, borrowed until the next call. */
NODISCARD enum err pack_room(struct store *st, uint32_t pages, struct pack_place *out,
                             const uint8_t **uuid_out, struct error *e);
/* Writes an extent at the place just given; bytes are page-aligned. */
NODISCARD enum err pack_write(struct store *st, const struct pack_place *p, const void *bytes,
                              struct error *e);
/* Makes everything written durable, new files' names included. */
NODISCARD enum err pack_sync(struct store *st, struct error *e);
/* The rows of packs that were written to. In the transaction. */
NODISCARD enum err pack_note(struct store *st, struct error *e);
/* The transaction is durable. */
void pack_done(struct store *st);
/* It is not: uncommitted bytes will be cut off. */
void pack_undo(struct store *st);
/* The extent is one that no row refers to any more: its bytes will be given back to the file
 * system, but not before the database file itself (not only its WAL) knows. Best effort: what
 * is forgotten in a crash is found by gc. */
void pack_free(struct store *st, const struct pack_place *p);
/* Checkpoints the WAL and punches everything given to pack_free so far. */
void pack_flush_freed(struct store *st);

/* NULL: out of memory. */
struct packs *packs_new(void);
void pack_close_all(struct store *st);

#endif
