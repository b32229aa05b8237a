/* Reads of extents, many in flight, opened (verified, decrypted) on worker threads while later
 * ones are still on their way.
 *
 * A job is a run of whole pages of one pack. It is read straight to where its bytes belong if
 * they are all wanted and the place is page-aligned; else through a bounce buffer, whose memory
 * stays with the store: the first touch of fresh pages costs more than the read. Jobs are
 * started in order, up to READER_BYTES of them in flight, being opened included; they finish in
 * any order. Small runs are opened on the calling thread: waking another costs more.
 *
 * Store's thread. */
#ifndef SESSIONS_READER_H
#define SESSIONS_READER_H

#include "base/workers.h"
#include "sessions/head_internal.h"

#define READER_BYTES (16u << 20)  /* in flight */
#define READER_DEPTH 256u         /* requests in flight: the depth of the store's aio */
#define READER_PIECE (1u << 20)   /* longest job for a part of a region; whole chunks */
#define READER_BOUNCE_PAGES 4096u /* of bounce memory at most; no job is longer */

struct reader_job {
    struct work work; /* private */
    size_t owner;     /* the caller's */
    int64_t pack;
    uint64_t off; /* in the pack */
    size_t n;     /* bytes, whole pages */
    uint8_t *dst; /* where the first n_used bytes belong; NULL: nowhere */
    size_t n_used;
    /* Makes the bytes usable, in place, on any thread: they are copied to dst after it said OK.
     */
    enum err (*open)(struct reader_job *j, uint8_t *data);
    struct head_extent *h; /* what open needs of the caller */
    const struct extent_region *region;
    uint32_t chunk, n_chunks;
    void *context;

    /* Outcome. OK; ERR_CANCELLED: not wanted any more, not read; ERR_CORRUPT and others of
     * open; ERR_IO: the device failed, and again when asked once more; ERR_NOTFOUND: its pack
     * cannot be opened. */
    enum err rc;
    uint8_t uuid[STORE_UUID_BYTES]; /* of the pack, for open */
    const struct extent_keys *keys; /* for open */

    uint8_t *data;  /* private from here */
    int64_t bounce; /* page of the bounce memory; -1: straight to dst */
};

struct reader {
    struct store *st;
    /* The list: *n_jobs of them so far. `finished` may add more behind; none may move. */
    struct reader_job *jobs;
    const size_t *n_jobs;
    uint64_t n_bytes; /* of all extents concerned, about: what is worth setting up */
    /* Asked before a job is started; and told about each one when it is through, in the calling
     * thread. */
    bool (*wanted)(void *user, const struct reader_job *j);
    void (*finished)(void *user, struct reader_job *j);
    /* After every batch. May be NULL. */
    void (*progress)(void *user);
    void *user;
    uint64_t bytes_read; /* counted up */

    struct workers *workers; /* private from here; NULL: open on the calling thread */
    size_t bytes_out;
    uint32_t n_out;
    uint64_t taken[READER_BOUNCE_PAGES / 64]; /* bit i: page i */
};

/* An open function: checks (and decrypts) chunks [chunk, chunk + n_chunks) of region. */
enum err reader_open_region(struct reader_job *j, uint8_t *data);

/* Runs all jobs to their end. ERR_IO: the ring itself failed; ERR_NOMEM. Whatever comes back,
 * nothing is in flight any more. */
NODISCARD enum err reader_run(struct reader *r, struct error *e);

#endif
