#include "engine/layer.h"

#include <math.h>
#include <stdlib.h>

#include "base/auto.h"
#include "engine/experts.h"
#include "kernels/math.h"

/* How close the choice of experts was: smallest chosen biased score less the largest other one.
 */
static void observe_margins(struct model *m, const struct batch *batch, uint32_t layer,
                            uint32_t first)
{
    const struct layer_weights *w = &m->weights.layers[layer];
    size_t n_bytes = batch->n * w->n_experts * sizeof(float);
    if (!m->observer.tensor || batch->runs[0].block)
        return;
    AUTO_FREE float *bias = malloc(w->n_experts * sizeof(*bias));
    AUTO_FREE float *route = malloc(n_bytes);
    AUTO_FREE float *margins = calloc(batch->n, sizeof(*margins));
    if (!bias || !route || !margins)
        return;
    m->k.copy_out(&m->k, bias, w->gate_bias, w->n_experts * sizeof(*bias));
    m->k.copy_out(&m->k, route, m->work->route, n_bytes);
    for (uint32_t i = first; i < batch->n; i++) {
        const int32_t *chosen = m->work->experts + (size_t)i * w->n_active;
        double in = HUGE_VAL, out = -HUGE_VAL;
        for (uint32_t k = 0; k < w->n_experts; k++) {
            double score =
                sqrt(k_softplus((double)route[(size_t)i * w->n_experts + k])) + (double)bias[k];
            bool is_chosen = false;
            for (uint32_t j = 0; j < w->n_active; j++)
                is_chosen = is_chosen || chosen[j] == (int32_t)k;
            if (is_chosen)
                in = fmin(in, score);
            else
                out = fmax(out, score);
        }
        margins[i] = (float)(in - out);
    }
    float *d_margins = m->work->oa; /* free between attention and the next layer */
    m->k.copy_in(&m->k, d_margins, margins, batch->n * sizeof(*margins));
    layer_observe_f32(m, batch, "route_margin", layer, first, 1, d_margins);
}

/* What is mapped is not read when the model opens: a NaN scale shows when its expert or row is
 * first used, and fails the run by name. */
static void check_expert(struct model *m, uint32_t layer, uint32_t expert)
{
    struct layer_weights *w = &m->weights.layers[layer];
    if (w->checked[expert] || m->broken.code)
        return;
    if (!experts_check(&m->config, layer, expert, &w->experts[expert], &m->broken))
        w->checked[expert] = 1;
}

/* Experts under a budget: those in memory at once, the others as they arrive. The order of the
 * sums is not that of arrival. */
static void run_cached(struct model *m, uint32_t layer, const int32_t *chosen, struct k_moe *a)
{
    struct experts *x = m->experts;
    struct experts_ready ready;
    enum err rc = experts_choose(x, layer, chosen, a->n * a->top_k, &m->broken);
    if (!rc && experts_are_here(x)) {
        if (!experts_next(x, &ready, &m->broken)) {
            a->experts = ready.experts;
            m->k.moe(&m->k, a);
        }
        return;
    }
    a->part = m->work->parts;
    if (!rc) { /* the shared expert, while the disk is at work */
        uint8_t only[K_MAX_EXPERTS + 1] = {0};
        only[a->n_expert] = 1;
        a->only = only;
        m->k.moe_part(&m->k, a);
    }
    while (!rc && !(rc = experts_next(x, &ready, &m->broken)) && ready.n) {
        a->experts = ready.experts;
        a->only = ready.only;
        m->k.moe_part(&m->k, a);
    }
    if (!rc)
        m->k.moe_sum(&m->k, a);
}

/* Which experts the rows from `first` on go to, and how much of each. */
static void route(struct model *m, uint32_t layer, uint32_t first, size_t n)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    float *logits = b->route + (size_t)first * w->n_experts;
    forward_product(m, &w->gate, b->h + (size_t)first * c->dim, logits, n, K_EXACT);
    m->k.route(&m->k, &(struct k_route){.logits = logits,
                                        .bias = w->gate_bias,
                                        .expert = b->d_experts + (size_t)first * w->n_active,
                                        .weight = b->route_w + (size_t)first * w->n_active,
                                        .n = n,
                                        .n_expert = w->n_experts,
                                        .top_k = w->n_active,
                                        .norm = c->norm_topk,
                                        .scale = c->route_scale});
}

void layer_moe(struct model *m, const struct batch *batch, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    size_t n = batch->n - first, at = (size_t)first * w->n_active;
    int32_t *chosen = b->experts + at;
    struct k_moe a = {.x = b->h + (size_t)first * c->dim,
                      .expert = b->d_experts + at,
                      .weight = b->route_w + at,
                      .experts = w->experts,
                      .shared = &w->shared,
                      .y = b->y + (size_t)first * c->dim,
                      .n = n,
                      .d = c->dim,
                      .top_k = w->n_active,
                      .n_expert = w->n_experts,
                      .limit = c->swiglu_limit,
                      .in = m->rounding.quantised,
                      .mid = m->rounding.value,
                      .out = m->rounding.value};
    route(m, layer, first, n);
    const struct experts_table *held = m->experts ? experts_hold(m->experts, layer) : NULL;
    if (!held || m->observer.tensor)
        work_to_host(m, chosen, a.expert, n * w->n_active * sizeof(*chosen));
    if (held) {
        a.experts = held->experts;
        a.table = held->table;
        m->k.moe(&m->k, &a);
    } else if (m->experts) {
        run_cached(m, layer, chosen, &a);
    } else {
        for (size_t i = 0; i < n * w->n_active; i++)
            check_expert(m, layer, (uint32_t)chosen[i]);
        m->k.moe(&m->k, &a);
    }
    observe_margins(m, batch, layer, first);
    layer_observe_i32(m, batch, "route_idx", layer, first, w->n_active, b->d_experts);
    layer_observe_f32(m, batch, "route_w", layer, first, w->n_active, b->route_w);
}
