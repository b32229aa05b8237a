/* Lists of runs on a host backend: the call for each of them, one after the other. */
#include "kernels/host.h"

void k_attention_runs(struct kernels *k, const struct k_attention *a,
                      void (*op)(struct kernels *k, const struct k_attention *a))
{
    size_t width = (size_t)a->n_head * a->d;
    size_t row_bytes = k_row_bytes(a->window_format, a->d);
    for (uint32_t i = 0; i < a->n_runs; i++) {
        const struct k_run *r = &a->runs[i];
        struct k_attention one = *a;
        size_t at = r->row - a->row0;
        one.runs = NULL;
        one.q += at * width, one.out += at * width;
        one.keys = (const uint8_t *)a->keys + at * row_bytes;
        one.sel = a->sel ? a->sel + at * a->n_sel : NULL;
        one.n = r->n, one.pos0 = r->pos0, one.lo = r->lo[a->layer_class];
        one.ring = r->ring + a->ring_at;
        one.rows = a->sel ? r->source[a->source].rows : NULL;
        op(k, &one);
    }
}

void k_index_runs(struct kernels *k, const struct k_index *a,
                  void (*op)(struct kernels *k, const struct k_index *a))
{
    for (uint32_t i = 0; i < a->n_runs; i++) {
        const struct k_run *r = &a->runs[i];
        struct k_index one = *a;
        size_t at = r->row - a->row0;
        one.runs = NULL;
        one.q += at * a->n_head * a->d, one.w += at * a->n_head;
        one.sel = a->sel ? a->sel + at * a->top_k : NULL;
        one.blocks_out = a->blocks_out ? a->blocks_out + at * a->n_blocks : NULL;
        one.blocks_in = a->blocks_in ? a->blocks_in + at * a->n_blocks : NULL;
        one.keys = r->source[a->source].keys;
        one.n = r->n, one.pos0 = r->pos0, one.n_row = (r->pos0 + r->n) / a->ratio;
        op(k, &one);
    }
}

void k_encode_runs(struct kernels *k, const struct k_encode *a,
                   void (*op)(struct kernels *k, const struct k_encode *a))
{
    size_t row_bytes = k_row_bytes(a->format, a->d), stride = k_stride(a->x_stride, a->d);
    for (uint32_t i = 0; i < a->n_runs; i++) {
        const struct k_run_source *s = &a->runs[i].source[a->source];
        struct k_encode one = *a;
        one.runs = NULL;
        one.x += (s->first - a->first) * stride;
        one.rows = (a->keys ? s->keys : s->rows) + s->row * row_bytes;
        one.n = s->n;
        op(k, &one);
    }
}
