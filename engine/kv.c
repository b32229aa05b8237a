#include "engine/kv_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv_pages.h"

/* ---- how the state of a model looks -------------------------------------------------------
 */

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

/* ---- memory for it ------------------------------------------------------------------------
 */

static size_t page_round(const struct kv *kv, uint64_t n)
{
    size_t page = kv->memory->page_bytes;
    return ((size_t)n + page - 1) / page * page;
}

size_t kv_plane_bytes(const struct kv *kv, uint32_t plane, uint64_t n_tokens)
{
    const struct plane_spec *p = &kv->shape->planes[plane];
    return page_round(kv, state_rows(p, n_tokens) * p->row_bytes);
}

struct kernels *kv_kernels(const struct kv *kv)
{
    return kv->memory->k;
}

bool kv_is_tail(const struct kv *kv, uint32_t plane)
{
    return kv->pages && plane % 2 == 0 && !kv_kernels(kv)->host_memory;
}

/* Bytes of a plane in front of what its memory begins with. */
static size_t first_byte(const struct kv *kv, uint32_t plane)
{
    return kv_is_tail(kv, plane) ? kv->cold[plane / 2] * kv->shape->planes[plane].row_bytes : 0;
}

uint8_t *kv_place(const struct kv *kv, uint32_t plane, size_t at)
{
    return kv->plane[plane] + (at - first_byte(kv, plane));
}

size_t kv_tail_bytes(const struct kv *kv, uint32_t plane)
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
        if (kv_is_tail(kv, i))
            sum += kv_tail_bytes(kv, i);
        else if (i % 2 || !kv->pages)
            sum += kv_plane_bytes(kv, i, n_tokens);
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
        size_t n = kv_plane_bytes(kv, i, s->max_tokens);
        if (!kv_is_tail(kv, i) && !(kv->plane[i] = k->reserve(k, n))) {
            kv_fini(kv);
            return err_set(e, ERR_NOMEM, "%zu bytes of address space for plane %s", n,
                           s->planes[i].name);
        }
        kv->plane_bytes[i] = n;
    }
    return OK;
}

void kv_fini(struct kv *kv)
{
    kv_cold_fini(kv);
    if (!kv->memory)
        return;
    struct kernels *k = kv_kernels(kv);
    kv->memory->promised_bytes -= kv->promised_bytes;
    kv_import_end(kv);
    for (uint32_t i = 0; i < STATE_MAX_PLANES; i++)
        if (kv_is_tail(kv, i))
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
    struct kernels *k = kv_kernels(kv);
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
    struct kernels *k = kv_kernels(kv);
    if (!kv->plane[plane] && !(kv->plane[plane] = k->alloc(k, kv_tail_bytes(kv, plane))))
        return err_set(e, ERR_LIMIT, "plane %s: %zu bytes for its newest rows",
                       kv->shape->planes[plane].name, kv_tail_bytes(kv, plane));
    return OK;
}

/* Planes are for `reserved` tokens again, and so is what was promised. */
static void give_back(struct kv *kv, uint64_t n_bytes)
{
    struct kernels *k = kv_kernels(kv);
    for (uint32_t i = 0; i < kv->shape->n_planes; i++) {
        size_t had = kv_plane_bytes(kv, i, kv->reserved);
        if (kv_is_tail(kv, i) && !kv->reserved) {
            k->free(k, kv->plane[i]);
            kv->plane[i] = NULL;
        }
        if (kv_is_tail(kv, i) || kv->grown[i] <= had)
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
        rc = kv_is_tail(kv, i) ? take_tail(kv, i, e)
                               : grow(kv, i, kv_plane_bytes(kv, i, n_tokens), e);
        if (rc) {
            give_back(kv, more);
            return err_wrap(e, rc, "%" PRIu64 " tokens", n_tokens);
        }
    }
    kv->reserved = n_tokens;
    return OK;
}

/* ---- all but the planes -------------------------------------------------------------------
 */

enum err kv_put_aside(struct kv *kv, struct kv_rest *out, struct error *e)
{
    const struct kv_shape *s = kv->shape;
    struct kernels *k = kv_kernels(kv);
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

/* ---- where things are ---------------------------------------------------------------------
 */

uint8_t *kv_ring(const struct kv *kv, uint32_t layer)
{
    return kv->ring + (size_t)layer * kv->shape->window * kv->shape->ring_row;
}

uint8_t *kv_rows(const struct kv *kv, uint32_t source, uint64_t row)
{
    if (kv_is_tail(kv, 2 * source) && row < kv->cold[source])
        return NULL;
    return kv_place(kv, 2 * source, row * kv->shape->planes[2 * source].row_bytes);
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
    struct kernels *k = kv_kernels(kv);
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
