#include "engine/kv.h"

#include "engine/kv_pages.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum layer_class kv_class(const struct config *c, uint32_t layer)
{
    if (layer == c->last_source)
        return LAYER_SOURCE;
    return layer < c->last_source ? LAYERS_BELOW : LAYERS_ABOVE;
}

static void name_planes(struct kv_shape *s, const struct config *c)
{
    for (uint32_t i = 0; i < c->n_kv_sources; i++) {
        uint32_t ratio = c->ratio[c->kv_sources[i]];
        struct plane_spec *rows = &s->planes[2 * i], *keys = &s->planes[2 * i + 1];
        s->source_ratio[i] = ratio;
        *rows = (struct plane_spec){.kind = PLANE_MAIN, .ratio = ratio};
        *keys = (struct plane_spec){.kind = PLANE_INDEX, .ratio = ratio};
        snprintf(rows->name, sizeof(rows->name), "L%u.kv", c->kv_sources[i]);
        snprintf(keys->name, sizeof(keys->name), "L%u.index", c->kv_sources[i]);
        rows->row_bytes = (uint32_t)k_row_bytes(s->row_format, c->head_dim);
        keys->row_bytes = (uint32_t)k_row_bytes(s->key_format, c->index_dim);
    }
}

void kv_shape_init(struct kv_shape *s, const struct config *c, enum precision precision)
{
    bool grids = precision != PRECISION_MATH;
    *s = (struct kv_shape){.ring_format = grids ? K_ROW_FP8_32 : K_ROW_F32,
                           .row_format = grids ? K_ROW_FP4_16 : K_ROW_F32,
                           .key_format = grids ? K_ROW_FP4_32 : K_ROW_F32,
                           .n_layers = c->n_layers,
                           .n_rings = c->n_layers + c->n_drafts,
                           .window = c->window,
                           .head_dim = c->head_dim,
                           .n_sources = c->n_kv_sources,
                           .n_planes = 2 * c->n_kv_sources,
                           .max_tokens = c->max_tokens};
    s->ring_row = (uint32_t)k_row_bytes(s->ring_format, c->head_dim);
    name_planes(s, c);
    for (uint32_t l = 0; l < s->n_rings; l++)
        s->class[l] = kv_class(c, l);
}

static size_t page_round(const struct kv *kv, uint64_t n)
{
    size_t page = kv->memory->page_bytes;
    return ((size_t)n + page - 1) / page * page;
}

static size_t plane_size(const struct kv *kv, uint32_t plane, uint64_t n_tokens)
{
    const struct plane_spec *p = &kv->shape->planes[plane];
    return page_round(kv, state_rows(p, n_tokens) * p->row_bytes);
}

static struct kernels *kernels_of(const struct kv *kv)
{
    return kv->memory->k;
}

/* Whether a plane is memory for its tail alone: where memory that is not touched costs nothing
 * there is no need to, and a device maps too much at once for that. */
static bool is_tail(const struct kv *kv, uint32_t plane)
{
    return kv->pages && plane % 2 == 0 && !kernels_of(kv)->host_memory;
}

/* Bytes of a plane in front of what its memory begins with. */
static size_t first_byte(const struct kv *kv, uint32_t plane)
{
    return is_tail(kv, plane) ? kv->cold[plane / 2] * kv->shape->planes[plane].row_bytes : 0;
}

/* Where byte `at` of a plane is, which is not cold. */
static uint8_t *place(const struct kv *kv, uint32_t plane, size_t at)
{
    return kv->plane[plane] + (at - first_byte(kv, plane));
}

static size_t tail_bytes(const struct kv *kv, uint32_t plane)
{
    return (size_t)kv_pages_tail_rows(kv->pages, plane / 2) *
           kv->shape->planes[plane].row_bytes;
}

/* More of the memory for all sequences: all or nothing. */
static enum err promise(struct kv *kv, uint64_t n_bytes, struct error *e)
{
    struct kv_memory *m = kv->memory;
    if (n_bytes > m->limit_bytes - m->promised_bytes)
        return err_set(e, ERR_LIMIT,
                       "memory: %" PRIu64 " bytes more, sequences have %" PRIu64 " of %" PRIu64,
                       n_bytes, m->promised_bytes, m->limit_bytes);
    m->promised_bytes += n_bytes;
    kv->promised_bytes += n_bytes;
    return OK;
}

/* Bytes of planes that stay in memory: main rows under a budget are the budget's, but for tails
 * in a device, whose memory that budget does not divide. */
static uint64_t resident_bytes(const struct kv *kv, uint64_t n_tokens)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < kv->shape->n_planes && n_tokens; i++)
        if (is_tail(kv, i))
            sum += tail_bytes(kv, i);
        else if (i % 2 || !kv->pages)
            sum += plane_size(kv, i, n_tokens);
    return sum;
}

static size_t ring_bytes(const struct kv_shape *s)
{
    return (size_t)s->n_rings * s->window * s->ring_row;
}

static size_t pending_bytes(const struct kv_shape *s)
{
    return ((size_t)s->n_sources + 1) * 2 * s->head_dim * sizeof(float);
}

enum err kv_init(struct kv *kv, const struct kv_shape *s, struct kv_memory *memory,
                 struct kv_pages *pages, struct error *e)
{
    *kv = (struct kv){.shape = s, .memory = memory, .pages = pages, .n_firm = UINT64_MAX};
    enum err rc = promise(kv, ring_bytes(s) + pending_bytes(s), e);
    if (rc)
        return rc;
    struct kernels *k = memory->k;
    kv->ring = k->alloc(k, ring_bytes(s));
    kv->pending = k->alloc(k, pending_bytes(s));
    if (!kv->ring || !kv->pending) {
        kv_fini(kv);
        return err_set(e, ERR_NOMEM, "rings of a sequence");
    }
    for (uint32_t i = 0; i < s->n_planes; i++) {
        size_t n = plane_size(kv, i, s->max_tokens);
        if (!is_tail(kv, i) && !(kv->plane[i] = k->reserve(k, n))) {
            kv_fini(kv);
            return err_set(e, ERR_NOMEM, "%zu bytes of address space for plane %s", n,
                           s->planes[i].name);
        }
        kv->plane_bytes[i] = n;
    }
    return OK;
}

static void drop_pages(struct kv *kv)
{
    if (!kv->has_joined)
        return;
    for (uint32_t i = 0; i < kv->shape->n_sources; i++) {
        kv_pages_drop(kv->pages, kv->page[i], kv->cold[i] / kv_pages_rows(kv->pages, i));
        free(kv->page[i]);
    }
    kv_pages_leave(kv->pages, kv->owner);
}

static void unmap_landing(struct kernels *k, uint8_t *p, size_t pinned, size_t n)
{
    if (p && pinned)
        k->unpin(k, p);
    if (p)
        munmap(p, n);
}

/* One set of them stays for the next import. */
static void end_landing(struct kv *kv)
{
    struct kv_memory *m = kv->memory;
    if (kv->n_landed && m->k->upload_end(m->k, NULL))
        kv->n_landed = 0; /* whatever became of them, they are over */
    for (uint32_t i = 0; i < STATE_MAX_PLANES; i++) {
        if (kv->landing[i] && kv->pinned[i] > m->spare_pinned[i]) {
            unmap_landing(m->k, m->spare[i], m->spare_pinned[i], kv->plane_bytes[i]);
            m->spare[i] = kv->landing[i];
            m->spare_pinned[i] = kv->pinned[i];
        } else {
            unmap_landing(m->k, kv->landing[i], kv->pinned[i], kv->plane_bytes[i]);
        }
        kv->landing[i] = NULL;
        kv->pinned[i] = 0;
    }
    free(kv->landed);
    kv->landed = NULL;
    kv->n_landed = kv->cap_landed = 0;
}

void kv_fini(struct kv *kv)
{
    drop_pages(kv);
    if (kv->fetch.close)
        kv->fetch.close(kv->fetch.ctx);
    if (!kv->memory)
        return;
    struct kernels *k = kernels_of(kv);
    kv->memory->promised_bytes -= kv->promised_bytes;
    end_landing(kv);
    for (uint32_t i = 0; i < STATE_MAX_PLANES; i++)
        if (is_tail(kv, i))
            k->free(k, kv->plane[i]);
        else
            k->release(k, kv->plane[i], kv->plane_bytes[i]);
    k->free(k, kv->ring);
    k->free(k, kv->pending);
    *kv = (struct kv){0};
}

/* The first n_bytes of a plane may be used from now on. */
static enum err grow(struct kv *kv, uint32_t plane, size_t n_bytes, struct error *e)
{
    struct kernels *k = kernels_of(kv);
    if (n_bytes <= kv->grown[plane])
        return OK;
    n_bytes = page_round(kv, n_bytes);
    enum err rc = k->grow(k, kv->plane[plane], kv->grown[plane], n_bytes, e);
    if (rc)
        return err_wrap(e, ERR_LIMIT, "plane %s", kv->shape->planes[plane].name);
    kv->grown[plane] = n_bytes;
    return OK;
}

static enum err take_tail(struct kv *kv, uint32_t plane, struct error *e)
{
    struct kernels *k = kernels_of(kv);
    if (!kv->plane[plane] && !(kv->plane[plane] = k->alloc(k, tail_bytes(kv, plane))))
        return err_set(e, ERR_LIMIT, "plane %s: %zu bytes for its newest rows",
                       kv->shape->planes[plane].name, tail_bytes(kv, plane));
    return OK;
}

/* Planes are for `reserved` tokens again, and so is what was promised. */
static void give_back(struct kv *kv, uint64_t n_bytes)
{
    struct kernels *k = kernels_of(kv);
    for (uint32_t i = 0; i < kv->shape->n_planes; i++) {
        size_t had = plane_size(kv, i, kv->reserved);
        if (is_tail(kv, i) && !kv->reserved) {
            k->free(k, kv->plane[i]);
            kv->plane[i] = NULL;
        }
        if (is_tail(kv, i) || kv->grown[i] <= had)
            continue;
        k->discard(k, kv->plane[i], had, kv->grown[i]);
        kv->grown[i] = had;
    }
    kv->promised_bytes -= n_bytes;
    kv->memory->promised_bytes -= n_bytes;
}

enum err kv_reserve(struct kv *kv, uint64_t n_tokens, struct error *e)
{
    const struct kv_shape *s = kv->shape;
    if (n_tokens > s->max_tokens)
        return err_set(e, ERR_LIMIT, "%" PRIu64 " tokens, the context holds %" PRIu64, n_tokens,
                       s->max_tokens);
    if (n_tokens <= kv->reserved)
        return OK;
    enum err rc;
    if (kv->pages && !kv->has_joined) {
        if ((rc = kv_pages_join(kv->pages, &kv->owner, e)))
            return rc;
        kv->has_joined = true;
    }
    uint64_t more = resident_bytes(kv, n_tokens) - resident_bytes(kv, kv->reserved);
    if ((rc = promise(kv, more, e)))
        return err_wrap(e, rc, "%" PRIu64 " tokens", n_tokens);
    for (uint32_t i = 0; i < s->n_planes; i++) {
        rc = is_tail(kv, i) ? take_tail(kv, i, e) : grow(kv, i, plane_size(kv, i, n_tokens), e);
        if (rc) {
            give_back(kv, more);
            return err_wrap(e, rc, "%" PRIu64 " tokens", n_tokens);
        }
    }
    kv->reserved = n_tokens;
    return OK;
}

/* ---- imports ------------------------------------------------------------------------------
 */

struct kv_landed {
    uint32_t plane;
    size_t from, to; /* bytes of it */
};

/* Called by whoever fills the regions. */
static void landed(void *ctx, const void *at, size_t n_bytes)
{
    struct kv *kv = ctx;
    struct kernels *k = kernels_of(kv);
    uint32_t i = 0;
    while (i < kv->shape->n_planes &&
           !((const uint8_t *)at >= kv->landing[i] &&
             (size_t)((const uint8_t *)at - kv->landing[i]) < kv->plane_bytes[i]))
        i++;
    if (i == kv->shape->n_planes || is_tail(kv, i) || !n_bytes)
        return;
    size_t from = (size_t)((const uint8_t *)at - kv->landing[i]);
    if (n_bytes > kv->grown[i] || from > kv->grown[i] - n_bytes)
        return;
    if (kv->n_landed == kv->cap_landed) {
        size_t cap = kv->cap_landed ? 2 * kv->cap_landed : 256;
        struct kv_landed *more = reallocarray(kv->landed, cap, sizeof(*more));
        if (!more)
            return; /* kv_land() copies it */
        kv->landed = more;
        kv->cap_landed = cap;
    }
    if (k->upload(k, kv->plane[i] + from, at, n_bytes)) /* else kv_land() copies it */
        kv->landed[kv->n_landed++] = (struct kv_landed){i, from, from + n_bytes};
}

/* The first n bytes of where plane i lands, zero or of an earlier import: pinned, if that may
 * be. */
static enum err map_landing(struct kv *kv, uint32_t i, size_t n, struct error *e)
{
    struct kv_memory *m = kv->memory;
    uint8_t *p = m->spare[i];
    kv->pinned[i] = m->spare_pinned[i];
    m->spare[i] = NULL;
    m->spare_pinned[i] = 0;
    if (!p) {
        void *fresh = mmap(NULL, kv->plane_bytes[i], PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fresh == MAP_FAILED)
            return err_sys(e, errno, "%zu bytes for an import of plane %s", kv->plane_bytes[i],
                           kv->shape->planes[i].name);
        p = fresh;
    }
    kv->landing[i] = p;
    /* Of a plane whose rows stay on the host only its tail is copied: locking all of it would
     * cost its size in memory, and more time than that copy. */
    if (n <= kv->pinned[i] || is_tail(kv, i))
        return OK;
    if (kv->pinned[i])
        m->k->unpin(m->k, p);
    kv->pinned[i] = m->k->pin(m->k, p, n) ? n : 0;
    return OK;
}

enum err kv_import_begin(struct kv *kv, uint64_t n_tokens, struct state_regions *out,
                         struct error *e)
{
    const struct kv_shape *s = kv->shape;
    bool lands = !kernels_of(kv)->host_memory;
    end_landing(kv);
    *out = (struct state_regions){.n_tokens = n_tokens};
    for (uint32_t i = 0; i < s->n_planes; i++) {
        enum err rc = lands ? map_landing(kv, i, plane_size(kv, i, n_tokens), e) : OK;
        if (rc) {
            end_landing(kv);
            return rc;
        }
        out->plane[i] = lands ? kv->landing[i] : kv->plane[i];
    }
    out->landed = lands ? landed : NULL;
    out->ctx = kv;
    return OK;
}

void kv_memory_fini(struct kv_memory *m, const struct kv_shape *shape)
{
    for (uint32_t i = 0; i < shape->n_planes; i++) {
        const struct plane_spec *p = &shape->planes[i];
        size_t n = (size_t)state_rows(p, shape->max_tokens) * p->row_bytes;
        if (m->spare[i])
            unmap_landing(m->k, m->spare[i], m->spare_pinned[i],
                          (n + m->page_bytes - 1) / m->page_bytes * m->page_bytes);
        m->spare[i] = NULL;
    }
}

static int by_place(const void *a, const void *b)
{
    const struct kv_landed *x = a, *y = b;
    if (x->plane != y->plane)
        return x->plane < y->plane ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Copies bytes [from, to) of plane i but for those that are on their way; *next walks the list
 * of those. */
static void copy_rest(struct kv *kv, uint32_t i, size_t from, size_t to, size_t *next)
{
    struct kernels *k = kernels_of(kv);
    for (; *next < kv->n_landed && kv->landed[*next].plane <= i; ++*next) {
        const struct kv_landed *l = &kv->landed[*next];
        if (l->plane < i || l->to <= from)
            continue;
        if (l->from > from && from < to)
            k->copy_in(k, place(kv, i, from), kv->landing[i] + from,
                       (l->from < to ? l->from : to) - from);
        from = l->to;
    }
    if (from < to)
        k->copy_in(k, place(kv, i, from), kv->landing[i] + from, to - from);
}

enum err kv_land(struct kv *kv, uint64_t n_tokens, struct error *e)
{
    const struct kv_shape *s = kv->shape;
    struct kernels *k = kernels_of(kv);
    size_t next = 0;
    if (kv->n_landed)
        qsort(kv->landed, kv->n_landed, sizeof(*kv->landed), by_place);
    for (uint32_t i = 0; i < s->n_planes && kv->landing[i]; i++) {
        size_t row = s->planes[i].row_bytes;
        size_t from = i % 2 ? 0 : kv->cold[i / 2] * row;
        size_t to = state_rows(&s->planes[i], n_tokens) * row;
        assert(!is_tail(kv, i) || to - from <= tail_bytes(kv, i)); /* room was made */
        copy_rest(kv, i, from, to, &next);
    }
    enum err rc = kv->landing[0] ? k->upload_end(k, e) : OK;
    if (!rc)
        rc = k->sync(k, e);
    if (!rc)
        end_landing(kv);
    return rc;
}

/* ---- rows that are not in memory -----------------------------------------------------------
 */

/* Room for n pages of source i in all. */
static enum err reserve_pages(struct kv *kv, uint32_t i, size_t n, struct error *e)
{
    if (n <= kv->cap_page[i])
        return OK;
    struct kv_page *more = reallocarray(kv->page[i], 2 * n, sizeof(*more));
    if (!more)
        return err_set(e, ERR_NOMEM, "%zu pages of KV rows", 2 * n);
    kv->page[i] = more;
    kv->cap_page[i] = 2 * n;
    return OK;
}

enum err kv_leave_behind(struct kv *kv, const struct state_fetch *fetch, struct error *e)
{
    kv->fetch = *fetch;
    if (!kv->pages)
        return err_set(e, ERR_UNSUPPORTED,
                       "rows that stay behind: only with a budget for them");
    for (uint32_t i = 0; i < kv->shape->n_sources; i++) {
        uint32_t per_page = kv_pages_rows(kv->pages, i);
        uint64_t rows = state_rows(&kv->shape->planes[2 * (size_t)i], fetch->n_tokens);
        size_t n = (size_t)(rows / per_page);
        enum err rc = reserve_pages(kv, i, n, e);
        uint64_t rest = rows - n * per_page; /* a page that is not full begins the tail */
        size_t at = n * per_page * kv->shape->planes[2 * (size_t)i].row_bytes;
        if (!rc && rest)
            rc = fetch->rows(fetch->ctx, 2 * i, n * per_page, rest,
                             (kv->landing[2 * i] ? kv->landing[2 * i] : kv->plane[2 * i]) + at,
                             e);
        if (rc)
            return rc;
        for (size_t k = 0; k < n; k++)
            kv->page[i][k] = (struct kv_page){.at = KV_PAGE_LATE};
        kv->cold[i] = n * per_page;
    }
    return OK;
}

enum err kv_read(const struct kv *kv, uint32_t source, const struct kv_want *want, size_t n,
                 struct error *e)
{
    const struct kv_origin from = {
        .owner = kv->owner, .source = source, .list = kv->page[source], .fetch = &kv->fetch};
    return kv_pages_read(kv->pages, &from, want, n, e);
}

/* n bytes of a main plane as the host can read them: where they are, or copied to *copy. */
static enum err host_view(const struct kv *kv, uint32_t plane, size_t at, size_t n, void **copy,
                          const uint8_t **out, struct error *e)
{
    struct kernels *k = kernels_of(kv);
    if (k->host_memory || kv->landing[plane]) {
        *out = kv->landing[plane] ? kv->landing[plane] + at : place(kv, plane, at);
        return OK;
    }
    if (!(*copy = malloc(n ? n : 1)))
        return err_set(e, ERR_NOMEM, "%zu bytes of plane %s", n, kv->shape->planes[plane].name);
    k->copy_out(k, *copy, place(kv, plane, at), n);
    *out = *copy;
    return k->sync(k, e);
}

/* The first n bytes of a tail are another one's: what is behind them moves to its start, in
 * pieces that do not overlap. */
static enum err move_tail(struct kv *kv, uint32_t plane, size_t n, struct error *e)
{
    struct kernels *k = kernels_of(kv);
    uint8_t *tail = kv->plane[plane];
    size_t end = tail_bytes(kv, plane);
    for (size_t at = n; at < end; at += n)
        k->copy(k, tail + at - n, tail + at, end - at < n ? end - at : n);
    return k->sync(k, e);
}

/* Rows of source i from cold[i] up to `to`, whole pages, go to the spill file. */
static enum err spill(struct kv *kv, uint32_t i, uint64_t to, struct error *e)
{
    uint32_t per_page = kv_pages_rows(kv->pages, i), plane = 2 * i;
    size_t had = kv->cold[i] / per_page, n = to / per_page - had;
    size_t row = kv->shape->planes[plane].row_bytes, page = kv->memory->page_bytes;
    size_t from = kv->cold[i] * row, end = to * row;
    AUTO_FREE void *copy = NULL;
    const uint8_t *rows = NULL;
    enum err rc = reserve_pages(kv, i, had + n, e);
    if (rc || (rc = host_view(kv, plane, from, end - from, &copy, &rows, e)))
        return rc;
    rc = kv_pages_write(kv->pages, i, rows, n, kv->page[i] + had, e);
    if (rc)
        return err_wrap(e, rc, "plane %s", kv->shape->planes[plane].name);
    struct kernels *k = kernels_of(kv);
    if (!is_tail(kv, plane))
        k->discard(k, kv->plane[plane], from / page * page, end / page * page);
    else if (!kv->landing[plane] && (rc = move_tail(kv, plane, end - from, e)))
        return rc;
    kv->cold[i] = to;
    return OK;
}

enum err kv_make_room(struct kv *kv, uint64_t below, uint64_t n, struct error *e)
{
    if (below > kv->n_firm)
        below = kv->n_firm;
    for (uint32_t i = 0; kv->pages && i < kv->shape->n_sources; i++) {
        const struct plane_spec *p = &kv->shape->planes[2 * (size_t)i];
        uint64_t rows = state_rows(p, kv->n_tokens > below ? kv->n_tokens : below);
        uint64_t after = rows + (n + p->ratio - 1) / p->ratio;
        uint64_t most = kv_pages_tail_rows(kv->pages, i);
        if (after - kv->cold[i] <= most)
            continue;
        uint64_t firm = state_rows(p, below);
        uint64_t to = firm / kv_pages_rows(kv->pages, i) * kv_pages_rows(kv->pages, i);
        enum err rc = to > kv->cold[i] ? spill(kv, i, to, e) : OK;
        if (rc)
            return rc;
        if (after - kv->cold[i] > most)
            return err_set(e, ERR_LIMIT,
                           "plane %s: %" PRIu64
                           " rows may be dropped still, memory is for %" PRIu64,
                           p->name, after - kv->cold[i], most);
    }
    return OK;
}

/* Cold rows of source i. */
static enum err read_cold(const struct kv *kv, uint32_t i, uint64_t row0, uint64_t n,
                          uint8_t *dst, struct error *e)
{
    uint32_t per_page = kv_pages_rows(kv->pages, i);
    size_t row = kv->shape->planes[2 * (size_t)i].row_bytes;
    while (n) {
        struct kv_want want[64];
        size_t n_want = 0;
        for (; n && n_want < sizeof(want) / sizeof(*want); n_want++) {
            uint32_t first = (uint32_t)(row0 % per_page);
            uint32_t take = n < per_page - first ? (uint32_t)n : per_page - first;
            want[n_want] = (struct kv_want){(uint32_t)(row0 / per_page), first, take, dst};
            row0 += take;
            n -= take;
            dst += take * row;
        }
        enum err rc = kv_read(kv, i, want, n_want, e);
        if (rc)
            return rc;
    }
    return OK;
}

enum err kv_copy_rows(const struct kv *kv, uint32_t plane, uint64_t row0, uint64_t n, void *dst,
                      struct error *e)
{
    size_t row = kv->shape->planes[plane].row_bytes;
    uint64_t cold = plane % 2 || !kv->pages ? 0 : kv->cold[plane / 2];
    uint64_t n_cold = row0 >= cold ? 0 : cold - row0 < n ? cold - row0 : n;
    enum err rc = n_cold ? read_cold(kv, plane / 2, row0, n_cold, dst, e) : OK;
    if (rc)
        return rc;
    struct kernels *k = kernels_of(kv);
    if (n > n_cold)
        k->copy_out(k, (uint8_t *)dst + n_cold * row, place(kv, plane, (row0 + n_cold) * row),
                    (n - n_cold) * row);
    return k->sync(k, e);
}

enum err kv_put_aside(struct kv *kv, struct kv_rest *out, struct error *e)
{
    const struct kv_shape *s = kv->shape;
    struct kernels *k = kernels_of(kv);
    struct kv_rest copy = {.ring = k->alloc(k, ring_bytes(s)),
                           .pending = k->alloc(k, pending_bytes(s)),
                           .n_tokens = kv->n_tokens};
    if (!copy.ring || !copy.pending) {
        kv_rest_fini(k, &copy);
        return err_set(e, ERR_NOMEM, "a second set of rings");
    }
    k->copy(k, copy.ring, kv->ring, ring_bytes(s));
    k->copy(k, copy.pending, kv->pending, pending_bytes(s));
    memcpy(copy.lo, kv->lo, sizeof(copy.lo));
    kv_swap(kv, &copy);
    kv->n_firm = kv->n_tokens;
    *out = copy;
    return OK;
}

void kv_swap(struct kv *kv, struct kv_rest *rest)
{
    struct kv_rest mine = {.ring = kv->ring, .pending = kv->pending, .n_tokens = kv->n_tokens};
    memcpy(mine.lo, kv->lo, sizeof(mine.lo));
    kv->ring = rest->ring;
    kv->pending = rest->pending;
    kv->n_tokens = rest->n_tokens;
    memcpy(kv->lo, rest->lo, sizeof(kv->lo));
    *rest = mine;
}

void kv_rest_fini(struct kernels *k, struct kv_rest *rest)
{
    k->free(k, rest->ring);
    k->free(k, rest->pending);
    *rest = (struct kv_rest){0};
}

uint8_t *kv_ring(const struct kv *kv, uint32_t layer)
{
    return kv->ring + (size_t)layer * kv->shape->window * kv->shape->ring_row;
}

uint8_t *kv_rows(const struct kv *kv, uint32_t source, uint64_t row)
{
    if (is_tail(kv, 2 * source) && row < kv->cold[source])
        return NULL;
    return place(kv, 2 * source, row * kv->shape->planes[2 * source].row_bytes);
}

uint8_t *kv_keys(const struct kv *kv, uint32_t source, uint64_t row)
{
    return kv->plane[2 * source + 1] + row * kv->shape->planes[2 * source + 1].row_bytes;
}

float *kv_pending(const struct kv *kv, uint32_t source)
{
    return kv->pending + (size_t)source * 2 * kv->shape->head_dim;
}

void kv_ring_write(struct kv *kv, uint32_t layer, uint32_t n_layers, uint64_t pos0, uint32_t n,
                   const uint8_t *keys, size_t key_stride)
{
    struct kernels *k = kernels_of(kv);
    k->ring(k, &(struct k_ring){.ring = kv_ring(kv, layer),
                                .keys = keys,
                                .key_stride = key_stride,
                                .pos0 = pos0,
                                .n = n,
                                .n_layers = n_layers,
                                .window = kv->shape->window,
                                .row_bytes = kv->shape->ring_row});
}

bool kv_ring_position(const struct kv *kv, uint32_t layer, uint32_t slot, uint64_t *position)
{
    uint32_t w = kv->shape->window;
    uint64_t n = kv->n_tokens, back = (n + w - 1 - slot) % w; /* steps from n - 1 down to it */
    if (back >= n || n - 1 - back < kv->lo[kv->shape->class[layer]])
        return false;
    *position = n - 1 - back;
    return true;
}
