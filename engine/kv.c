#include "engine/kv.h"

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

static size_t page_round(uint64_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return ((size_t)n + page - 1) / page * page;
}

static size_t plane_size(const struct kv_shape *s, uint32_t plane, uint64_t n_tokens)
{
    return page_round(state_rows(&s->planes[plane], n_tokens) * s->planes[plane].row_bytes);
}

enum err kv_init(struct kv *kv, const struct kv_shape *s, struct error *e)
{
    *kv = (struct kv){.shape = s};
    kv->ring = calloc((size_t)s->n_rings * s->window, s->ring_row);
    kv->pending = calloc((size_t)s->n_sources + 1, 2 * s->head_dim * sizeof(float));
    if (!kv->ring || !kv->pending) {
        kv_fini(kv);
        return err_set(e, ERR_NOMEM, "rings of a sequence");
    }
    for (uint32_t i = 0; i < s->n_planes; i++) {
        size_t n = plane_size(s, i, s->max_tokens);
        void *p = mmap(NULL, n ? n : 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
        if (p == MAP_FAILED) {
            enum err rc = err_sys(e, errno, "%zu bytes of address space for plane %s", n,
                                  s->planes[i].name);
            kv_fini(kv);
            return rc;
        }
        kv->plane[i] = p;
        kv->plane_bytes[i] = n ? n : 1;
    }
    return OK;
}

void kv_fini(struct kv *kv)
{
    for (uint32_t i = 0; i < STATE_MAX_PLANES; i++)
        if (kv->plane[i])
            munmap(kv->plane[i], kv->plane_bytes[i]);
    free(kv->ring);
    free(kv->pending);
    *kv = (struct kv){0};
}

enum err kv_reserve(struct kv *kv, uint64_t n_tokens, struct error *e)
{
    const struct kv_shape *s = kv->shape;
    if (n_tokens > s->max_tokens)
        return err_set(e, ERR_LIMIT, "%" PRIu64 " tokens, the context holds %" PRIu64, n_tokens,
                       s->max_tokens);
    if (n_tokens <= kv->reserved)
        return OK;
    for (uint32_t i = 0; i < s->n_planes; i++) {
        size_t n = plane_size(s, i, n_tokens);
        if (n && mprotect(kv->plane[i], n, PROT_READ | PROT_WRITE))
            return err_set(e, ERR_LIMIT, "plane %s: no memory for %" PRIu64 " tokens (%s)",
                           s->planes[i].name, n_tokens, strerror(errno));
    }
    kv->reserved = n_tokens;
    return OK;
}

enum err kv_put_aside(struct kv *kv, struct kv_rest *out, struct error *e)
{
    const struct kv_shape *s = kv->shape;
    size_t ring = (size_t)s->n_rings * s->window * s->ring_row;
    size_t pending = ((size_t)s->n_sources + 1) * 2 * s->head_dim * sizeof(float);
    struct kv_rest copy = {
        .ring = malloc(ring), .pending = malloc(pending), .n_tokens = kv->n_tokens};
    if (!copy.ring || !copy.pending) {
        kv_rest_fini(&copy);
        return err_set(e, ERR_NOMEM, "a second set of rings");
    }
    memcpy(copy.ring, kv->ring, ring);
    memcpy(copy.pending, kv->pending, pending);
    memcpy(copy.lo, kv->lo, sizeof(copy.lo));
    kv_swap(kv, &copy);
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

void kv_rest_fini(struct kv_rest *rest)
{
    free(rest->ring);
    free(rest->pending);
    *rest = (struct kv_rest){0};
}

uint8_t *kv_ring(const struct kv *kv, uint32_t layer)
{
    return kv->ring + (size_t)layer * kv->shape->window * kv->shape->ring_row;
}

uint8_t *kv_rows(const struct kv *kv, uint32_t source, uint64_t row)
{
    return kv->plane[2 * source] + row * kv->shape->planes[2 * source].row_bytes;
}

uint8_t *kv_keys(const struct kv *kv, uint32_t source, uint64_t row)
{
    return kv->plane[2 * source + 1] + row * kv->shape->planes[2 * source + 1].row_bytes;
}

float *kv_pending(const struct kv *kv, uint32_t source)
{
    return kv->pending + (size_t)source * 2 * kv->shape->head_dim;
}

void kv_ring_write(struct kv *kv, uint32_t layer, uint64_t pos0, uint32_t n,
                   const uint8_t *keys)
{
    uint32_t w = kv->shape->window, row = kv->shape->ring_row;
    uint8_t *ring = kv_ring(kv, layer);
    for (uint32_t i = n > w ? n - w : 0; i < n; i++)
        memcpy(ring + (pos0 + i) % w * row, keys + (size_t)i * row, row);
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
