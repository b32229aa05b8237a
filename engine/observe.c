#include "engine/observe.h"

#include "base/auto.h"

#include <stdlib.h>
#include <string.h>

#include "engine/seq.h"

void engine_observe(struct engine *m, const struct observer *o)
{
    model_of(m)->observer = o ? *o : (struct observer){0};
}

void engine_limit_chunk(struct engine *m, uint32_t n_tokens)
{
    model_of(m)->chunk_limit = n_tokens;
}

void engine_draft_counts(const struct engine *engine, uint64_t *n_guessed, uint64_t *n_right)
{
    const struct model *m = (const struct model *)(const void *)engine;
    *n_guessed = m->n_guessed;
    *n_right = m->n_guessed_right;
}

uint64_t engine_drafts_cut(const struct engine *m)
{
    return ((const struct model *)(const void *)m)->n_guesses_cut;
}

uint64_t engine_drafts_failed(const struct engine *m)
{
    return ((const struct model *)(const void *)m)->n_guesses_failed;
}

const struct config *engine_config(const struct engine *m)
{
    return &((const struct model *)(const void *)m)->config;
}

void engine_read_window(const struct seq *seq, uint32_t layer, int64_t *positions, float *keys)
{
    const struct kv *kv = &seq_of_const(seq)->kv;
    const struct kv_shape *s = kv->shape;
    struct model *m = model_of(seq->m);
    size_t n_bytes = (size_t)s->window * s->ring_row;
    AUTO_FREE uint8_t *ring = calloc(1, n_bytes); /* without it: positions and zeros */
    if (ring)
        m->k.copy_out(&m->k, ring, kv_ring(kv, layer), n_bytes);
    for (uint32_t slot = 0; slot < s->window; slot++) {
        float *out = keys + (size_t)slot * s->head_dim;
        uint64_t position = 0;
        bool held = kv_ring_position(kv, layer, slot, &position);
        positions[slot] = held ? (int64_t)position : -1;
        if (held && ring)
            k_decode_row(s->ring_format, ring + (size_t)slot * s->ring_row, s->head_dim, out);
        else
            memset(out, 0, s->head_dim * sizeof(*out));
    }
}

uint64_t engine_window_lo(const struct seq *seq, uint32_t layer)
{
    const struct kv *kv = &seq_of_const(seq)->kv;
    return kv->lo[kv->shape->class[layer]];
}

uint32_t engine_plane_width(const struct engine *engine, uint32_t plane)
{
    const struct config *c = engine_config(engine);
    return plane % 2 ? c->index_dim : c->head_dim;
}

enum err engine_read_rows(const struct seq *seq, uint32_t plane, uint64_t row0, uint64_t n_rows,
                          float *out, struct error *e)
{
    const struct model_seq *s = seq_of_const(seq);
    const struct kv_shape *shape = s->kv.shape;
    if (plane >= shape->n_planes)
        return err_set(e, ERR_INVAL, "plane %u of %u", plane, shape->n_planes);
    const struct plane_spec *p = &shape->planes[plane];
    uint64_t have = state_rows(p, s->kv.n_tokens);
    if (row0 > have || n_rows > have - row0)
        return err_set(e, ERR_INVAL, "plane %s has %llu rows", p->name,
                       (unsigned long long)have);
    uint32_t width = engine_plane_width(seq->m, plane);
    enum k_format format = plane % 2 ? shape->key_format : shape->row_format;
    AUTO_FREE uint8_t *row = malloc(p->row_bytes);
    if (!row)
        return err_set(e, ERR_NOMEM, "a row of plane %s", p->name);
    for (uint64_t i = 0; i < n_rows; i++) {
        enum err rc = kv_copy_rows(&s->kv, plane, row0 + i, 1, row, e);
        if (rc)
            return rc;
        k_decode_row(format, row, width, out + i * width);
    }
    return OK;
}

const float *engine_read_pending(const struct seq *seq, uint32_t source)
{
    const struct kv *kv = &seq_of_const(seq)->kv;
    struct model *m = model_of(seq->m);
    size_t n_bytes = 2 * (size_t)kv->shape->head_dim * sizeof(float);
    if (kv->n_tokens % kv->shape->source_ratio[source] == 0)
        return NULL;
    if (!m->pending_view && !(m->pending_view = malloc(n_bytes)))
        return NULL;
    m->k.copy_out(&m->k, m->pending_view, kv_pending(kv, source), n_bytes);
    return m->pending_view;
}
