/* The spill file of main KV rows (kv_pages.h): pages that are written once, read through the
 * tier and given back. It has no name and nobody else can read it: pages are sealed with a key
 * that lives in memory only, so a damaged page is an error, never wrong rows, and nothing of a
 * session stays on the disk. Belongs to the engine's thread. */
#ifndef ENGINE_KV_SPILL_H
#define ENGINE_KV_SPILL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct crypto_extent;

#define KV_SPILL_BATCH 64 /* pages of one write */

struct kv_spill {
    int fd;
    size_t page_bytes; /* whole pages of the disk; the last bytes of each are its tag */
    struct crypto_extent *key;
    uint64_t n_seals;
    uint32_t *unused; /* [n_unused] pages given back */
    size_t n_unused, cap_unused, n_file;
    uint8_t *batch; /* [KV_SPILL_BATCH][page_bytes], aligned; the owner's between calls */
};

/* Where a page is. */
struct kv_page {
    uint32_t at;   /* page of the file; KV_PAGE_LATE: with whoever fetches what stayed behind */
    uint64_t seal; /* number of its seal: none is used twice */
};
#define KV_PAGE_LATE UINT32_MAX

/* Bytes of a page for n bytes of rows, and how many bytes of rows it has room for. */
size_t kv_spill_page_bytes(size_t n);
size_t kv_spill_room(size_t page_bytes);

/* A file in dir. s may be given to kv_spill_fini() whatever this returns. ERR_IO, ERR_DENIED,
 * ERR_NOTFOUND, ERR_NOMEM. */
NODISCARD enum err kv_spill_init(struct kv_spill *s, const char *dir, size_t page_bytes,
                                 struct error *e);
void kv_spill_fini(struct kv_spill *s);

/* Writes rows [n][n_bytes], a page each; out [n]. ERR_LIMIT (disk full), ERR_IO: nothing is
 * kept. */
NODISCARD enum err kv_spill_write(struct kv_spill *s, const uint8_t *rows, size_t n_bytes,
                                  size_t n, struct kv_page *out, struct error *e);
/* These places may be written again; late ones have none. */
void kv_spill_drop(struct kv_spill *s, const struct kv_page *list, size_t n);
/* Opens a page [page_bytes] as it was read, in place: its first n_bytes are rows. ERR_CORRUPT,
 * without a message. */
NODISCARD enum err kv_spill_open(const struct kv_spill *s, uint64_t seal, uint8_t *page,
                                 size_t n_bytes);

#endif
