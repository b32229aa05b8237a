/* What the files of this folder share: the open store, and rows that several of them need. */
#ifndef SESSIONS_STORE_INTERNAL_H
#define SESSIONS_STORE_INTERNAL_H

#include "base/crypto.h"
#include "base/fs.h"
#include "base/ulid.h"
#include "sessions/db.h"
#include "sessions/extent.h"
#include "sessions/store.h"
#include "sessions/witness.h"

#define STORE_UUID_BYTES 16
#define STORE_MAX_LOST 256
#define STORE_MAX_FREED 1024
#define STORE_FREED_BYTES (64u << 20) /* worth a checkpoint */
#define STORE_MAX_PINS 64

struct aio;
struct workers;

/* Where an extent lies. */
struct pack_place {
    int64_t pack;
    uint64_t off;
    uint32_t pages;
};

/* End of a chain that is going to be read (pin.h). */
struct store_pin {
    int64_t block, tail, tip; /* 0: none */
    uint64_t until_ns;        /* monotonic; 0: free */
};

/* Page-aligned memory that is kept and grown: the first touch of fresh pages is what costs. */
struct page_buffer {
    void *p;
    size_t bytes;
};
void page_buffer_fini(struct page_buffer *b);
/* Room for n bytes; what was in it is gone if it has to grow. */
NODISCARD enum err page_buffer_need(struct page_buffer *b, size_t n, struct error *e);

/* Keys of the namespace that this process serves (one per uid by default). */
struct store_namespace {
    int64_t id;
    uint8_t uuid[STORE_UUID_BYTES];
    char name[64];
    uint8_t wrapped[CRYPTO_NONCE_BYTES + CRYPTO_KEY_BYTES + CRYPTO_TAG_BYTES];
    uint8_t key[CRYPTO_KEY_BYTES];          /* the data key */
    uint8_t identity_key[CRYPTO_KEY_BYTES]; /* of block and tip keys */
    uint8_t digest_key[CRYPTO_KEY_BYTES];   /* of the digests of rows */
    struct extent_keys keys;
    enum extent_algorithm algorithm; /* of extents written now */
    uint64_t created_ms;
};

struct store {
    struct db db;
    int lock_fd;
    bool is_open; /* all the way, and the witness says so */
    char packs_dir[FS_PATH_BYTES];
    uint8_t uuid[STORE_UUID_BYTES];
    uint8_t master[CRYPTO_KEY_BYTES];
    uint8_t superblock_key[CRYPTO_KEY_BYTES];
    struct store_namespace space;
    uint32_t block_tokens;
    uint64_t pack_bytes;
    bool no_direct_io;
    const struct clock *clock;
    struct ulid_source ulid;
    struct packs *packs; /* open files, the pack that is being filled */
    struct aio *aio;
    struct workers *workers;                  /* NULL until a restore is worth them */
    struct page_buffer extent, scratch;       /* of the save that runs */
    struct page_buffer bounces;               /* of the restore that runs */
    struct pack_place freed[STORE_MAX_FREED]; /* to punch once the database file knows */
    size_t n_freed;
    uint64_t freed_bytes;
    uint64_t quota_bytes; /* of all packs; 0: none */
    uint64_t used_bytes;  /* by them, when it was last looked, and written since */
    bool no_holes;        /* the packs' file system cannot punch any */
    struct store_pin pins[STORE_MAX_PINS];
    size_t next_pin;
    uint64_t replay_tokens;     /* what a tip saves, by the last layout seen; 0: none yet */
    bool search_is_partial;     /* search_renew is under way: */
    int64_t search_upto;        /* the index has what it should of ids up to this */
    uint64_t n_collections;     /* runs of gc: plans made before one have to be made again */
    struct store_counters seen; /* what the scan and the reads counted */
    char lost[STORE_MAX_LOST][ULID_CHARS + 1];
    size_t n_lost;
    struct witness witness;
};

/* The threads that verify and decrypt, for so many bytes: they are started for the first that
 * are worth it, and stay. NULL: too few, or there are none; then it is done on the store's own
 * thread. Whoever submits takes all of his back before he returns. */
struct workers *store_workers(struct store *st, uint64_t bytes);

/* Adds a session to those that have lost commits; nothing if it is no id. */
void store_note_lost(struct store *st, const char *id);

/* Wall clock, never below 0 (it is stored unsigned). */
uint64_t store_now_ms(const struct store *st);

/* A value in meta, of exactly n bytes. ERR_CORRUPT: it is missing or damaged. */
NODISCARD enum err meta_read(struct store *st, const char *key, void *dst, size_t n,
                             struct error *e);
NODISCARD enum err meta_write(struct store *st, const char *key, const void *src, size_t n,
                              struct error *e);

/* Opens the wrapped key in n and derives the others from it. ERR_CORRUPT: not our master key.
 */
NODISCARD enum err namespace_unwrap(const struct store *st, struct store_namespace *n,
                                    struct error *e);
/* Finds or makes the namespace of this process, for store_open. */
NODISCARD enum err namespace_open(struct store *st, enum store_encrypt encrypt,
                                  struct error *e);
/* Crypto-erase of the open namespace: all its saved state is gone for good, and sessions begin
 * at 0 again (tape and items are not touched). First its catalog rows and heads go. Then every
 * pack of it, known to the database or not, loses its superblock with the wrapped data key:
 * overwritten, synced, unlinked. Then its row gets a new uuid and data key, and the database
 * file and WAL forget the old one. From then on sealed extents are unreadable wherever copies
 * of their bytes may be; tagged ones were never secret and went with their files. After an
 * error or a crash in between, the packs that are left are still in use or are adopted at the
 * next start; call it again. *n_packs (may be NULL): files erased. */
NODISCARD enum err namespace_erase(struct store *st, uint64_t *n_packs, struct error *e);

#endif
