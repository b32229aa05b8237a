/* Reading single extents; and dropping a head. */
#include "sessions/head.h"

#include <stdlib.h>
#include <string.h>

#include "base/aio.h"
#include "sessions/head_internal.h"

void page_buffer_fini(struct page_buffer *b)
{
    aio_buffer_free(b->p, b->bytes);
    *b = (struct page_buffer){0};
}

enum err page_buffer_need(struct page_buffer *b, size_t n, struct error *e)
{
    if (n <= b->bytes)
        return OK;
    void *p;
    enum err rc = aio_buffer_new(n, &p, e);
    if (rc)
        return rc;
    page_buffer_fini(b);
    *b = (struct page_buffer){p, n};
    return OK;
}

void head_extent_fini(struct head_extent *h)
{
    free(h->header);
    h->header = NULL;
}

enum err head_extent_check(const struct extent *x, const struct head_want_extent *w,
                           struct error *e)
{
    if (x->kind != w->kind || x->first != w->first || x->last != w->last ||
        x->pages != w->place.pages ||
        (w->digest && memcmp(x->digest, w->digest, sizeof x->digest) != 0))
        return err_set(e, ERR_CORRUPT, "pack %lld at %llu: another extent stands here",
                       (long long)w->place.pack, (unsigned long long)w->place.off);
    return OK;
}

/* Reads n bytes at off of a pack into st->scratch. */
static enum err read_scratch(struct store *st, const struct pack_file *f, uint64_t off,
                             size_t n, struct error *e)
{
    enum err rc = page_buffer_need(&st->scratch, n, e);
    return rc ? rc : fs_pread(f->fd, "pack", st->scratch.p, n, off, e);
}

enum err head_extent_open(struct store *st, const struct head_want_extent *w,
                          struct head_extent *out, struct error *e)
{
    const struct pack_file *f;
    enum err rc = pack_open(st, w->place.pack, &f, e);
    /* A pack that cannot be opened says nothing about the extent: the file may come back. */
    if (head_is_damage(rc))
        return err_wrap(e, ERR_IO, "pack %lld", (long long)w->place.pack);
    if (rc || (rc = read_scratch(st, f, w->place.off, EXTENT_PAGE, e)))
        return rc;
    uint32_t pages = extent_header_pages(st->scratch.p);
    if (!pages || pages > w->place.pages)
        return err_set(e, ERR_CORRUPT, "pack %lld at %llu: no extent", (long long)f->id,
                       (unsigned long long)w->place.off);
    size_t n = (size_t)pages * EXTENT_PAGE;
    if ((rc = read_scratch(st, f, w->place.off, n, e)))
        return rc;
    struct head_extent h = {.header = malloc(n)};
    if (!h.header)
        return err_set(e, ERR_NOMEM, "extent header: out of memory");
    memcpy(h.header, st->scratch.p, n);
    rc = extent_decode(h.header, n, st->space.keys.header, f->uuid, w->place.off, &h.x, e);
    if (!rc)
        rc = head_extent_check(&h.x, w, e);
    if (rc) {
        head_extent_fini(&h);
        return rc;
    }
    *out = h;
    return OK;
}

enum err head_extent_read(struct store *st, const struct head_want_extent *w,
                          const struct head_extent *h, const struct extent_region *r,
                          struct error *e)
{
    const struct pack_file *f;
    size_t n = (size_t)extent_pages(r->bytes) * EXTENT_PAGE;
    enum err rc = pack_open(st, w->place.pack, &f, e);
    if (rc || !n ||
        (rc = read_scratch(st, f, w->place.off + (uint64_t)r->page * EXTENT_PAGE, n, e)))
        return rc;
    return extent_open(&h->x, h->header, r, &st->space.keys, st->scratch.p, e);
}

enum err head_set_aside(struct store *st, const struct chain_piece *p, struct error *e)
{
    return catalog_set_aside(st, p->kind == PIECE_BLOCK ? CATALOG_BLOCKS : CATALOG_TAILS,
                             p->x.id, e);
}

const struct extent_region *head_region(const struct extent *x, const struct plane_spec *p)
{
    for (uint32_t i = 0; i < x->n_regions; i++) {
        const struct extent_region *r = &x->regions[i];
        if ((r->what == REGION_INDEX || r->what == REGION_MAIN) &&
            strncmp(r->name, p->name, sizeof r->name) == 0 && r->row_bytes == p->row_bytes &&
            r->ratio == p->ratio)
            return r;
    }
    return NULL;
}

enum err head_check_layout(const struct store *st, const struct state_layout *l,
                           struct error *e)
{
    static const uint8_t none[STATE_KEY_BYTES];
    if (memcmp(l->fingerprint, none, sizeof none) == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "this model's state has no fingerprint and cannot be stored");
    if (l->n_planes > STATE_MAX_PLANES)
        return err_set(e, ERR_INVAL, "%u planes, at most %d", l->n_planes, STATE_MAX_PLANES);
    for (uint32_t i = 0; i < l->n_planes; i++) {
        const struct plane_spec *p = &l->planes[i];
        if (!p->ratio || !p->row_bytes || st->block_tokens % p->ratio)
            return err_set(e, ERR_INVAL,
                           "plane %.23s: rows of %u bytes for %u tokens in blocks of %u",
                           p->name, p->row_bytes, p->ratio, st->block_tokens);
    }
    return OK;
}

/* One head of `from`, as generation `generation` of `to`. *made: there was something to give.
 */
static enum err fork_one(struct store *st, const struct head_row *head, int64_t to,
                         uint64_t generation, uint64_t position, bool *made, struct error *e)
{
    AUTO(head_chain) struct head_chain c = {0};
    uint64_t end = head->position < position ? head->position : position;
    enum err rc = chain_load(st, head->layout, head->block, head->tail, end, &c, e);
    *made = !rc && end > 0;
    if (!*made)
        return rc;
    struct head_row fork = *head;
    fork.session = to;
    fork.generation = generation;
    fork.position = end; /* also where less is left of it */
    chain_ends(&c, &fork.block, &fork.tail);
    if (end != head->position)
        fork.tip = 0;
    return head_row_write(st, &fork, e);
}

enum err head_fork(struct store *st, int64_t from, int64_t to, uint64_t position,
                   struct error *e)
{
    uint64_t generation = 1;
    for (int age = 1; age >= 0; age--) {
        struct head_row head;
        bool found, made = false;
        enum err rc = head_row_read(st, from, age, &head, &found, e);
        if (!rc && found)
            rc = fork_one(st, &head, to, generation, position, &made, e);
        if (rc)
            return rc;
        generation += made;
    }
    return OK;
}

enum err head_drop(struct store *st, const char *session, struct error *e)
{
    struct session_row row;
    enum err rc = session_row_need(st, session, &row, e);
    if (rc)
        return rc;
    AUTO(query) struct query q = {0};
    if ((rc = query_init(&q, &st->db, "DELETE FROM heads WHERE session = ?", e)))
        return rc;
    query_int(&q, row.num);
    return query_run(&q, e);
}
