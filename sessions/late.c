#include "sessions/late_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/aio.h"
#include "sessions/pack.h"

#define ROOM_CHUNKS 64u /* that are opened at once */

struct late_block {
    struct head_extent h;
    int64_t id; /* row of the catalog */
    struct pack_place place;
    uint8_t digest[HASH_BYTES];
    size_t file; /* index */
    atomic_bool is_bad;
};

struct late_file {
    int64_t pack;
    int fd;
};

struct late {
    atomic_uint n_refs;
    atomic_bool is_damaged;
    struct state_layout layout;
    uint32_t block_tokens;
    struct extent_keys *keys; /* a copy, in memory for secrets */
    struct late_block *blocks;
    size_t n_blocks, cap_blocks;
    struct late_file files[LATE_MAX_PACKS];
    size_t n_files;
    /* Chunks that were opened last, for rows beside those that were asked for. */
    uint8_t *room;
    size_t in_block, in_first, in_n; /* in_n 0: none */
    const struct extent_region *in_region;
};

/* ---- life -------------------------------------------------------------------------------- */

static void late_free(struct late *l)
{
    for (size_t i = 0; l->blocks && i < l->n_blocks; i++)
        head_extent_fini(&l->blocks[i].h);
    free(l->blocks);
    for (size_t i = 0; i < l->n_files; i++)
        close(l->files[i].fd);
    if (l->room)
        crypto_wipe(l->room, ROOM_CHUNKS * EXTENT_CHUNK); /* decrypted */
    aio_buffer_free(l->room, ROOM_CHUNKS * EXTENT_CHUNK);
    crypto_secret_free(l->keys, sizeof *l->keys);
    free(l);
}

struct late *late_ref(struct late *l)
{
    atomic_fetch_add(&l->n_refs, 1);
    return l;
}

void late_unref(struct late *l)
{
    if (l && atomic_fetch_sub(&l->n_refs, 1) == 1)
        late_free(l);
}

enum err late_new(struct store *st, const struct state_layout *layout, size_t n_blocks,
                  struct late **out, struct error *e)
{
    void *room = NULL;
    struct late *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "restore: out of memory");
    atomic_init(&l->n_refs, 1);
    l->layout = *layout;
    l->block_tokens = st->block_tokens;
    l->cap_blocks = n_blocks;
    l->blocks = calloc(n_blocks ? n_blocks : 1, sizeof *l->blocks);
    l->keys = crypto_secret_new(sizeof *l->keys);
    enum err rc = aio_buffer_reserve(ROOM_CHUNKS * EXTENT_CHUNK, &room, e);
    l->room = room;
    if (!rc && (!l->blocks || !l->keys))
        rc = err_set(e, ERR_NOMEM, "restore of %zu blocks: out of memory", n_blocks);
    if (rc) {
        late_unref(l);
        return rc;
    }
    *l->keys = st->space.keys;
    *out = l;
    return OK;
}

/* The pack's file, open for as long as we live. */
static enum err need_file(struct store *st, struct late *l, int64_t pack, size_t *out,
                          struct error *e)
{
    const struct pack_file *f;
    for (size_t i = 0; i < l->n_files; i++)
        if (l->files[i].pack == pack) {
            *out = i;
            return OK;
        }
    if (l->n_files == LATE_MAX_PACKS)
        return err_set(e, ERR_LIMIT, "more than %d packs", LATE_MAX_PACKS);
    enum err rc = pack_open(st, pack, &f, e);
    if (rc)
        return rc;
    int fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return err_sys(e, errno, "a descriptor of pack %lld", (long long)pack);
    *out = l->n_files;
    l->files[l->n_files++] = (struct late_file){pack, fd};
    return OK;
}

enum err late_add(struct store *st, struct late *l, const struct chain_piece *p,
                  struct head_extent *h, struct error *e)
{
    size_t file = 0;
    assert(l->n_blocks < l->cap_blocks && p->first == l->n_blocks * (uint64_t)l->block_tokens);
    enum err rc = need_file(st, l, p->x.place.pack, &file, e);
    if (rc)
        return rc;
    struct late_block *b = &l->blocks[l->n_blocks++];
    b->h.x = h->x;
    b->h.header = TAKE(h->header);
    b->id = p->x.id;
    b->place = p->x.place;
    memcpy(b->digest, p->x.digest, sizeof b->digest);
    b->file = file;
    return OK;
}

/* ---- rows -------------------------------------------------------------------------------- */

/* Chunks [first, first + n) of a region, checked, in the room. */
static enum err read_chunks(struct late *l, const struct late_block *b,
                            const struct extent_region *r, size_t first, size_t n,
                            struct error *e)
{
    uint64_t at = first * EXTENT_CHUNK, padded = extent_pages(r->bytes) * EXTENT_PAGE;
    size_t bytes = (size_t)(padded - at < n * EXTENT_CHUNK ? padded - at : n * EXTENT_CHUNK);
    enum err rc = fs_pread(l->files[b->file].fd, "pack", l->room, bytes,
                           b->place.off + (uint64_t)r->page * EXTENT_PAGE + at, e);
    if (rc)
        return rc == ERR_FORMAT ? err_wrap(e, ERR_CORRUPT, "cut off") : rc;
    return extent_open_chunks(&b->h.x, b->h.header, r, (uint32_t)first, (uint32_t)n, l->keys,
                              l->room, e);
}

/* The same, unless they are there. A read that fails is tried once more: errors of a device
 * may pass. */
static enum err need_chunks(struct late *l, size_t block, const struct extent_region *r,
                            size_t first, size_t n, struct error *e)
{
    struct late_block *b = &l->blocks[block];
    if (l->in_n && l->in_block == block && l->in_region == r && first >= l->in_first &&
        first + n <= l->in_first + l->in_n)
        return OK;
    l->in_n = 0;
    enum err rc = read_chunks(l, b, r, first, n, e);
    if (rc == ERR_IO)
        rc = read_chunks(l, b, r, first, n, e);
    if (rc) {
        atomic_store(&b->is_bad, true);
        atomic_store(&l->is_damaged, true);
        return err_wrap(e, rc, "saved rows of tokens %llu to %llu",
                        (unsigned long long)b->h.x.first, (unsigned long long)b->h.x.last);
    }
    l->in_block = block;
    l->in_region = r;
    l->in_first = first;
    l->in_n = n;
    return OK;
}

/* Bytes [at, at + n) of a region of one block. */
static enum err read_bytes(struct late *l, size_t block, const struct extent_region *r,
                           uint64_t at, uint64_t n, uint8_t *dst, struct error *e)
{
    while (n) {
        size_t first = (size_t)(at / EXTENT_CHUNK);
        size_t n_chunks = (size_t)((at + n - 1) / EXTENT_CHUNK) + 1 - first;
        if (n_chunks > ROOM_CHUNKS)
            n_chunks = ROOM_CHUNKS;
        enum err rc = need_chunks(l, block, r, first, n_chunks, e);
        if (rc)
            return rc;
        uint64_t end = (first + n_chunks) * (uint64_t)EXTENT_CHUNK;
        uint64_t take = at + n < end ? n : end - at;
        memcpy(dst, l->room + (at - l->in_first * (uint64_t)EXTENT_CHUNK), (size_t)take);
        at += take;
        dst += take;
        n -= take;
    }
    return OK;
}

static enum err late_rows(void *ctx, uint32_t plane, uint64_t first, uint64_t n, void *dst,
                          struct error *e)
{
    struct late *l = ctx;
    if (plane >= l->layout.n_planes || l->layout.planes[plane].kind != PLANE_MAIN)
        return err_set(e, ERR_INVAL, "late rows: plane %u is not a main plane", plane);
    const struct plane_spec *p = &l->layout.planes[plane];
    uint64_t per_block = l->block_tokens / p->ratio, all = l->n_blocks * per_block;
    if (first > all || n > all - first)
        return err_set(e, ERR_INVAL, "late rows: %llu from %llu on of %llu",
                       (unsigned long long)n, (unsigned long long)first,
                       (unsigned long long)all);
    for (uint8_t *to = dst; n;) {
        size_t block = (size_t)(first / per_block);
        uint64_t row = first % per_block, take = per_block - row < n ? per_block - row : n;
        const struct extent_region *r = head_region(&l->blocks[block].h.x, p);
        enum err rc = read_bytes(l, block, r, row * p->row_bytes, take * p->row_bytes, to, e);
        if (rc)
            return rc;
        first += take;
        n -= take;
        to += take * p->row_bytes;
    }
    return OK;
}

static void late_close(void *ctx)
{
    late_unref(ctx);
}

struct state_fetch late_fetch(struct late *l)
{
    return (struct state_fetch){late_ref(l), late_tokens(l), late_rows, late_close};
}

uint64_t late_tokens(const struct late *l)
{
    return l->n_blocks * (uint64_t)l->block_tokens;
}

/* ---- damage ------------------------------------------------------------------------------ */

bool late_is_damaged(const struct late *l)
{
    return atomic_load(&l->is_damaged);
}

static bool is_same_place(const struct late_block *b, const struct block_row *now)
{
    return !now->x.damaged && now->x.place.pack == b->place.pack &&
           now->x.place.off == b->place.off &&
           memcmp(now->x.digest, b->digest, sizeof b->digest) == 0;
}

/* Reads an extent whole, and checks every chunk against the header that the restore saw. */
static enum err check_block(struct store *st, const struct late *l, const struct late_block *b)
{
    const struct extent *x = &b->h.x;
    size_t n = (size_t)x->pages * EXTENT_PAGE;
    enum err rc = page_buffer_need(&st->scratch, n, NULL);
    if (!rc)
        rc = fs_pread(l->files[b->file].fd, "pack", st->scratch.p, n, b->place.off, NULL);
    for (uint32_t i = 0; i < x->n_regions && !rc; i++)
        rc = extent_open(x, b->h.header, &x->regions[i], l->keys,
                         (uint8_t *)st->scratch.p + (size_t)x->regions[i].page * EXTENT_PAGE,
                         NULL);
    return rc;
}

/* Whether it is bad, whatever was asked of it so far. */
static bool is_bad(struct store *st, const struct late *l, struct late_block *b)
{
    enum err rc = atomic_load(&b->is_bad) ? ERR_CORRUPT : check_block(st, l, b);
    if (rc == ERR_IO)
        rc = check_block(st, l, b);
    return head_is_damage(rc);
}

enum err late_set_aside(struct store *st, struct late *l, uint32_t *n, struct error *e)
{
    *n = 0;
    for (size_t i = 0; i < l->n_blocks && late_is_damaged(l); i++) {
        struct late_block *b = &l->blocks[i];
        struct block_row now;
        enum err rc = block_read(st, b->id, &now, e);
        if (!rc && is_same_place(b, &now) && is_bad(st, l, b)) {
            rc = catalog_set_aside(st, CATALOG_BLOCKS, b->id, e);
            *n += rc == OK;
        }
        if (rc && rc != ERR_NOTFOUND && rc != ERR_CORRUPT)
            return rc;
    }
    return OK;
}
