/* Weights that stay on the disk, read through base/aio instead of page faults: what is mapped
 * says where a tensor lies, a request brings a range of it into the caller's memory, around
 * the page cache where the file system lets it.
 *
 *     struct tier_files   the shards, opened for reading; shared by all tiers of a model
 *     struct tier         one tier's requests in flight, and its counters
 *     struct tier_request one range; the owner's, alive until tier_wait() hands it back
 *
 * A direct read is of whole pages, so the range lies `skip` bytes behind the start of its
 * memory. A read that fails or ends early is the request's error, never the tier's: whoever
 * waits for it reports it, the next try is a new request. Everything belongs to the engine's
 * thread but tier_counters(), which any thread may call. Fault point: tier.read. */
#ifndef ENGINE_TIER_H
#define ENGINE_TIER_H

#include <stdatomic.h>

#include "base/aio.h"
#include "engine/engine.h"
#include "engine/safetensors.h"

struct tier_files;

/* Opens every shard of st, which was opened from the folder dir and must outlive it. ERR_IO,
 * ERR_NOTFOUND with the file's name, ERR_CONFLICT: it is not the one that was mapped. */
NODISCARD enum err tier_files_open(struct tier_files **out, const char *dir,
                                   const struct safetensors *st, struct error *e);
void tier_files_close(struct tier_files *f);

struct tier_request {
    /* Set by the caller: a range of a mapped shard, or (mapped NULL) of a file of its own. */
    const uint8_t *mapped;
    size_t n_bytes;
    uint8_t *memory; /* AIO_ALIGN-aligned, tier_room(n_bytes) bytes */
    void *owner;
    /* The range in its file; tier_start() sets them for a mapped one. */
    int fd;
    const char *name;
    uint64_t at;
    /* Set by tier_start() and tier_wait(). */
    uint32_t skip; /* the range starts at memory + skip */
    struct error error;
};

/* Memory that a range of n bytes may need, wherever it starts. */
size_t tier_room(size_t n_bytes);

struct tier {
    const struct tier_files *files;
    struct aio *aio;
    const char *name; /* static: "experts", "engram", "engram-device", "kv" */
    uint64_t budget_bytes, minimum_bytes;
    /* Relaxed: sums for a report, nothing is decided by them. */
    _Atomic uint64_t resident_bytes, hits, misses, read_bytes, stall_ns;
};

/* files NULL: requests name their own. depth: most in flight. Errors of aio_open(). */
NODISCARD enum err tier_init(struct tier *t, const char *name, const struct tier_files *files,
                             uint32_t depth, struct error *e);
/* Waits for what is in flight. */
void tier_fini(struct tier *t);

uint32_t tier_n_free(const struct tier *t); /* requests that may be started now */
/* Queues a request; it is under way with the next tier_wait() or tier_submit(). Needs
 * tier_n_free(). ERR_INVAL where the range is in no shard. */
NODISCARD enum err tier_start(struct tier *t, struct tier_request *q, struct error *e);
NODISCARD enum err tier_submit(struct tier *t, struct error *e);
/* Hands back up to cap complete requests, at least one if `wait` and any is in flight.
 * q->error.code tells how each went. The time in here and in tier_submit() is the tier's stall.
 */
NODISCARD enum err tier_wait(struct tier *t, bool wait, struct tier_request **done, size_t cap,
                             size_t *n_done, struct error *e);

static inline void tier_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* As engine_tiers() reports it. */
struct engine_tier tier_counters(const struct tier *t);

#endif
