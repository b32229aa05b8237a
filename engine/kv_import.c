#include "engine/kv_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

struct kv_landed {
    uint32_t plane;
    size_t from, to; /* bytes of it */
};

static void unmap_landing(struct kernels *k, uint8_t *p, size_t pinned, size_t n)
{
    if (p && pinned)
        k->unpin(k, p);
    if (p)
        munmap(p, n);
}

void kv_import_end(struct kv *kv)
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

void kv_memory_fini(struct kv_memory *m, const struct kv_shape *shape)
{
    const struct kv any = {.shape = shape, .memory = m};
    for (uint32_t i = 0; i < shape->n_planes; i++) {
        unmap_landing(m->k, m->spare[i], m->spare_pinned[i],
                      kv_plane_bytes(&any, i, shape->max_tokens));
        m->spare[i] = NULL;
        m->spare_pinned[i] = 0;
    }
}

/* ---- where rows land ----------------------------------------------------------------------
 */

/* Called by whoever fills the regions. */
static void landed(void *ctx, const void *at, size_t n_bytes)
{
    struct kv *kv = ctx;
    struct kernels *k = kv_kernels(kv);
    uint32_t i = 0;
    while (i < kv->shape->n_planes &&
           !((const uint8_t *)at >= kv->landing[i] &&
             (size_t)((const uint8_t *)at - kv->landing[i]) < kv->plane_bytes[i]))
        i++;
    if (i == kv->shape->n_planes || kv_is_tail(kv, i) || !n_bytes)
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
    if (n <= kv->pinned[i] || kv_is_tail(kv, i))
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
    bool lands = !kv_kernels(kv)->host_memory;
    kv_import_end(kv);
    *out = (struct state_regions){.n_tokens = n_tokens};
    for (uint32_t i = 0; i < s->n_planes; i++) {
        enum err rc = lands ? map_landing(kv, i, kv_plane_bytes(kv, i, n_tokens), e) : OK;
        if (rc) {
            kv_import_end(kv);
            return rc;
        }
        out->plane[i] = lands ? kv->landing[i] : kv->plane[i];
    }
    out->landed = lands ? landed : NULL;
    out->ctx = kv;
    return OK;
}

/* ---- into the planes ----------------------------------------------------------------------
 */

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
    struct kernels *k = kv_kernels(kv);
    for (; *next < kv->n_landed && kv->landed[*next].plane <= i; ++*next) {
        const struct kv_landed *l = &kv->landed[*next];
        if (l->plane < i || l->to <= from)
            continue;
        if (l->from > from && from < to)
            k->copy_in(k, kv_place(kv, i, from), kv->landing[i] + from,
                       (l->from < to ? l->from : to) - from);
        from = l->to;
    }
    if (from < to)
        k->copy_in(k, kv_place(kv, i, from), kv->landing[i] + from, to - from);
}

enum err kv_land(struct kv *kv, uint64_t n_tokens, struct error *e)
{
    const struct kv_shape *s = kv->shape;
    struct kernels *k = kv_kernels(kv);
    size_t next = 0;
    if (kv->n_landed)
        qsort(kv->landed, kv->n_landed, sizeof(*kv->landed), by_place);
    for (uint32_t i = 0; i < s->n_planes && kv->landing[i]; i++) {
        size_t row = s->planes[i].row_bytes;
        size_t from = i % 2 ? 0 : kv->cold[i / 2] * row;
        size_t to = state_rows(&s->planes[i], n_tokens) * row;
        assert(!kv_is_tail(kv, i) || to - from <= kv_tail_bytes(kv, i)); /* room was made */
        copy_rest(kv, i, from, to, &next);
    }
    enum err rc = kv->landing[0] ? k->upload_end(k, e) : OK;
    if (!rc)
        rc = k->sync(k, e);
    if (!rc)
        kv_import_end(kv);
    return rc;
}
