#include "sessions/whole.h"

#include <string.h>

struct extent_row *whole_row(struct whole *w)
{
    switch (w->kind) {
    case CATALOG_BLOCKS:
        return &w->row.block.x;
    case CATALOG_TAILS:
        return &w->row.tail.x;
    case CATALOG_TIPS:
        break;
    }
    return &w->row.tip.x;
}

enum err whole_load(struct store *st, struct whole *w, struct error *e)
{
    switch (w->kind) {
    case CATALOG_BLOCKS:
        return block_read(st, w->id, &w->row.block, e);
    case CATALOG_TAILS:
        return tail_read(st, w->id, &w->row.tail, e);
    case CATALOG_TIPS:
        break;
    }
    return tip_read(st, w->id, &w->row.tip, e);
}

enum err whole_store(struct store *st, const struct whole *w, struct error *e)
{
    switch (w->kind) {
    case CATALOG_BLOCKS:
        return block_write(st, &w->row.block, e);
    case CATALOG_TAILS:
        return tail_write(st, &w->row.tail, e);
    case CATALOG_TIPS:
        break;
    }
    return tip_write(st, &w->row.tip, e);
}

/* What the extent must be, as its row says. */
static struct head_want_extent want_of(const struct store *st, struct whole *w)
{
    struct head_want_extent want = {.place = whole_row(w)->place,
                                    .digest = whole_row(w)->digest};
    switch (w->kind) {
    case CATALOG_BLOCKS:
        want.kind = EXTENT_BLOCK;
        want.first = w->row.block.depth * st->block_tokens;
        want.last = want.first + st->block_tokens;
        break;
    case CATALOG_TAILS:
        want.kind = EXTENT_TAIL;
        want.first = w->row.tail.first;
        want.last = w->row.tail.last;
        break;
    case CATALOG_TIPS:
        want.kind = EXTENT_TIP;
        want.first = want.last = w->row.tip.position;
        break;
    }
    return want;
}

/* Sealed chunks are decrypted when they are checked: in a copy. */
static enum err check_regions(struct store *st, const struct head_extent *h, struct error *e)
{
    const uint8_t *bytes = st->extent.p;
    enum err rc = OK;
    for (uint32_t i = 0; i < h->x.n_regions && !rc; i++) {
        const struct extent_region *r = &h->x.regions[i];
        size_t n = (size_t)extent_pages(r->bytes) * EXTENT_PAGE;
        if ((rc = page_buffer_need(&st->scratch, n, e)))
            return rc;
        if (n)
            memcpy(st->scratch.p, bytes + (size_t)r->page * EXTENT_PAGE, n);
        rc = extent_open(&h->x, h->header, r, &st->space.keys, st->scratch.p, e);
    }
    return rc;
}

enum err whole_read(struct store *st, struct whole *w, struct head_extent *h, struct error *e)
{
    const struct pack_file *f;
    struct head_want_extent want = want_of(st, w);
    size_t n = (size_t)want.place.pages * EXTENT_PAGE;
    enum err rc = head_extent_open(st, &want, h, e);
    if (rc || (rc = page_buffer_need(&st->extent, n, e)) ||
        (rc = pack_open(st, want.place.pack, &f, e)) ||
        (rc = fs_pread(f->fd, "pack", st->extent.p, n, want.place.off, e)))
        return rc;
    return check_regions(st, h, e);
}
