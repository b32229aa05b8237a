/* The ops of one layer (tests/configs/flash.json: an index source of ratio 2, all experts in
 * memory), each alone and all of them in turn, for one run of n tokens (prefill) or n sequences
 * with a token each (decode). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/bench.h"

struct dims {
    size_t D, hc, heads, d, q_lora, groups, o_lora, inter, experts, active, window, top_k;
    size_t index_heads, index_dim, half;
};

static const struct dims REAL = {5120, 4, 64,  512,  1280, 8,   1024, 2304,
                                 384,  6, 128, 2048, 64,   128, 32};
static const struct dims SMALL = {128, 4, 2, 64, 64, 2, 64, 96, 4, 2, 8, 16, 2, 64, 8};

struct layer {
    struct dims m;
    size_t n;         /* tokens */
    size_t n_runs;    /* 1: a prefill; n: a decode */
    uint64_t context; /* tokens in front of each run */
    struct k_weight wq_a, wq_b, wkv, wo_a, wo_b, index_q, index_w, gate, mix;
    struct k_expert *list, shared;
    float *x, *h, *y, *qr, *q, *o, *oa, *key, *iq, *iw, *route, *weight, *pre, *post, *comb;
    float *cos, *sin, *norm, *bias, *sink;
    int32_t *sel, *expert;
    uint8_t *ring, *keys, *rows, *index_keys;
};

/* ---- memory -------------------------------------------------------------------------------
 */

static struct k_weight weight(struct bench *b, enum k_type type, size_t n_out, size_t n_in,
                              size_t groups)
{
    struct k_weight w = {.type = type,
                         .n_out = (uint32_t)n_out,
                         .n_in = (uint32_t)n_in,
                         .n_groups = (uint32_t)groups};
    size_t data = 0, scale = 0;
    if (!k_weight_bytes(&w, &data, &scale))
        abort();
    w.data = bench_random(b, data);
    w.scale = scale ? bench_random(b, scale) : NULL;
    return w;
}

static void release(struct bench *b, const void *p)
{
    void *q;
    memcpy(&q, &p, sizeof(q));
    b->k.free(&b->k, q);
}

static void weight_release(struct bench *b, struct k_weight *w)
{
    release(b, w->data);
    release(b, w->scale);
}

static void make_weights(struct bench *b, struct layer *l)
{
    const struct dims *m = &l->m;
    l->wq_a = weight(b, K_W_FP8_32X32, m->q_lora, m->D, 0);
    l->wq_b = weight(b, K_W_FP8_32X32, m->heads * m->d, m->q_lora, 0);
    l->wkv = weight(b, K_W_FP8_32X32, m->d, m->D, 0);
    l->wo_a =
        weight(b, K_W_FP8_32X32, m->groups * m->o_lora, m->heads * m->d / m->groups, m->groups);
    l->wo_b = weight(b, K_W_FP8_32X32, m->D, m->groups * m->o_lora, 0);
    l->index_q = weight(b, K_W_FP8_32X32, m->index_heads * m->index_dim, m->q_lora, 0);
    l->index_w = weight(b, K_W_BF16, m->index_heads, m->D, 0);
    l->gate = weight(b, K_W_BF16, m->experts, m->D, 0);
    l->mix = weight(b, K_W_F32, (2 + m->hc) * m->hc, m->hc * m->D, 0);
    l->list = calloc(m->experts, sizeof(*l->list));
    for (size_t i = 0; i < m->experts; i++)
        l->list[i] = (struct k_expert){weight(b, K_W_FP4_1X32, m->inter, m->D, 0),
                                       weight(b, K_W_FP4_1X32, m->inter, m->D, 0),
                                       weight(b, K_W_FP4_1X32, m->D, m->inter, 0)};
    l->shared = (struct k_expert){weight(b, K_W_FP8_32X32, m->inter, m->D, 0),
                                  weight(b, K_W_FP8_32X32, m->inter, m->D, 0),
                                  weight(b, K_W_FP8_32X32, m->D, m->inter, 0)};
}

static void free_weights(struct bench *b, struct layer *l)
{
    struct k_weight *all[] = {&l->wq_a, &l->wq_b,      &l->wkv,       &l->wo_a,
                              &l->wo_b, &l->index_q,   &l->index_w,   &l->gate,
                              &l->mix,  &l->shared.w1, &l->shared.w2, &l->shared.w3};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        weight_release(b, all[i]);
    for (size_t i = 0; i < l->m.experts; i++) {
        weight_release(b, &l->list[i].w1);
        weight_release(b, &l->list[i].w3);
        weight_release(b, &l->list[i].w2);
    }
    free(l->list);
}

static float *floats(struct bench *b, size_t n)
{
    return bench_alloc(b, n * sizeof(float));
}

/* Router logits that spread the tokens over all experts. */
static void fill_route(struct bench *b, struct layer *l)
{
    size_t n = l->n * l->m.experts;
    float *host = calloc(n, sizeof(*host));
    for (size_t i = 0; i < n; i++)
        host[i] = (float)(i * 2654435761u % 1000u) / 500 - 1;
    b->k.copy_in(&b->k, l->route, host, n * sizeof(*host));
    free(host);
}

static void make_buffers(struct bench *b, struct layer *l)
{
    const struct dims *m = &l->m;
    size_t n = l->n, rows = (size_t)l->context / 2 + n + 1;
    l->x = floats(b, n * m->hc * m->D), l->h = floats(b, n * m->D), l->y = floats(b, n * m->D);
    l->qr = floats(b, n * m->q_lora), l->q = floats(b, n * m->heads * m->d);
    l->o = floats(b, n * m->heads * m->d), l->oa = floats(b, n * m->groups * m->o_lora);
    l->key = floats(b, n * m->d), l->iq = floats(b, n * m->index_heads * m->index_dim);
    l->iw = floats(b, n * m->index_heads), l->route = floats(b, n * m->experts);
    l->weight = floats(b, n * m->active), l->pre = floats(b, n * m->hc);
    l->post = floats(b, n * m->hc), l->comb = floats(b, n * m->hc * m->hc);
    l->cos = floats(b, n * m->half), l->sin = floats(b, n * m->half);
    l->norm = floats(b, m->hc * m->D), l->bias = floats(b, m->experts);
    l->sink = floats(b, m->heads);
    l->sel = bench_alloc(b, n * m->top_k * sizeof(int32_t));
    l->expert = bench_alloc(b, n * m->active * sizeof(int32_t));
    l->ring = bench_random(b, m->window * k_row_bytes(K_ROW_FP8_32, (uint32_t)m->d));
    l->keys = bench_random(b, n * k_row_bytes(K_ROW_FP8_32, (uint32_t)m->d));
    l->rows = bench_random(b, rows * k_row_bytes(K_ROW_FP4_16, (uint32_t)m->d));
    l->index_keys = bench_random(b, rows * k_row_bytes(K_ROW_FP4_32, (uint32_t)m->index_dim));
    fill_route(b, l);
}

static void free_buffers(struct bench *b, struct layer *l)
{
    void *all[] = {l->x,      l->h,    l->y,    l->qr,    l->q,         l->o,    l->oa,
                   l->key,    l->iq,   l->iw,   l->route, l->weight,    l->pre,  l->post,
                   l->comb,   l->cos,  l->sin,  l->norm,  l->bias,      l->sink, l->sel,
                   l->expert, l->ring, l->keys, l->rows,  l->index_keys};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        b->k.free(&b->k, all[i]);
}

/* ---- the ops ------------------------------------------------------------------------------
 */

static void product(struct bench *b, const struct k_weight *w, const float *x, float *y,
                    size_t n)
{
    b->k.linear(&b->k, &(struct k_linear){.w = w, .x = x, .y = y, .n = n, .in = K_BF16});
}

static void norm(struct bench *b, struct layer *l, float *x, size_t d)
{
    b->k.rmsnorm(&b->k,
                 &(struct k_rmsnorm){
                     .x = x, .w = l->norm, .y = x, .n = l->n, .d = (uint32_t)d, .eps = 1e-6f});
}

static void rotate(struct bench *b, struct layer *l, float *x, size_t heads, size_t d)
{
    b->k.rope(&b->k, &(struct k_rope){.x = x,
                                      .cos = l->cos,
                                      .sin = l->sin,
                                      .n = l->n,
                                      .n_head = (uint32_t)heads,
                                      .d = (uint32_t)d,
                                      .half = (uint32_t)l->m.half});
}

static void run_mix(struct bench *b, void *arg)
{
    struct layer *l = arg;
    const struct dims *m = &l->m;
    b->k.hc_mix(&b->k, &(struct k_hc_mix){.x = l->x,
                                          .fn = &l->mix,
                                          .scale = l->norm,
                                          .base = l->norm,
                                          .pre = l->pre,
                                          .post = l->post,
                                          .comb = l->comb,
                                          .n = l->n,
                                          .hc = (uint32_t)m->hc,
                                          .d = (uint32_t)m->D,
                                          .iters = 20,
                                          .norm_eps = 1e-6f,
                                          .hc_eps = 1e-6f});
}

static void run_collapse(struct bench *b, void *arg)
{
    struct layer *l = arg;
    b->k.hc_collapse(&b->k, &(struct k_hc_collapse){.x = l->x,
                                                    .pre = l->pre,
                                                    .h = l->h,
                                                    .n = l->n,
                                                    .hc = (uint32_t)l->m.hc,
                                                    .d = (uint32_t)l->m.D});
    norm(b, l, l->h, l->m.D);
}

static void run_update(struct bench *b, void *arg)
{
    struct layer *l = arg;
    b->k.hc_update(&b->k, &(struct k_hc_update){.x = l->x,
                                                .y = l->y,
                                                .post = l->post,
                                                .comb = l->comb,
                                                .out = l->x,
                                                .n = l->n,
                                                .hc = (uint32_t)l->m.hc,
                                                .d = (uint32_t)l->m.D});
}

static void run_queries(struct bench *b, void *arg)
{
    struct layer *l = arg;
    product(b, &l->wq_a, l->h, l->qr, l->n);
    norm(b, l, l->qr, l->m.q_lora);
    product(b, &l->wq_b, l->qr, l->q, l->n);
    rotate(b, l, l->q, l->m.heads, l->m.d);
}

static void run_keys(struct bench *b, void *arg)
{
    struct layer *l = arg;
    product(b, &l->wkv, l->h, l->key, l->n);
    norm(b, l, l->key, l->m.d);
    rotate(b, l, l->key, 1, l->m.d);
    b->k.encode(&b->k, &(struct k_encode){.x = l->key,
                                          .rows = l->keys,
                                          .n = l->n,
                                          .d = (uint32_t)l->m.d,
                                          .format = K_ROW_FP8_32});
}

static void run_index(struct bench *b, void *arg)
{
    struct layer *l = arg;
    const struct dims *m = &l->m;
    size_t each = l->n / l->n_runs;
    product(b, &l->index_q, l->qr, l->iq, l->n);
    product(b, &l->index_w, l->h, l->iw, l->n);
    for (size_t r = 0; r < l->n_runs; r++)
        b->k.index(&b->k,
                   &(struct k_index){.q = l->iq + r * each * m->index_heads * m->index_dim,
                                     .w = l->iw + r * each * m->index_heads,
                                     .keys = l->index_keys,
                                     .format = K_ROW_FP4_32,
                                     .sel = l->sel + r * each * m->top_k,
                                     .n = each,
                                     .n_row = (l->context + each) / 2,
                                     .pos0 = l->context,
                                     .n_head = (uint32_t)m->index_heads,
                                     .d = (uint32_t)m->index_dim,
                                     .ratio = 2,
                                     .top_k = (uint32_t)m->top_k});
}

static void run_attention(struct bench *b, void *arg)
{
    struct layer *l = arg;
    const struct dims *m = &l->m;
    size_t each = l->n / l->n_runs, key = k_row_bytes(K_ROW_FP8_32, (uint32_t)m->d);
    for (size_t r = 0; r < l->n_runs; r++)
        b->k.attention(&b->k, &(struct k_attention){.q = l->q + r * each * m->heads * m->d,
                                                    .out = l->o + r * each * m->heads * m->d,
                                                    .n = each,
                                                    .n_head = (uint32_t)m->heads,
                                                    .d = (uint32_t)m->d,
                                                    .ring = l->ring,
                                                    .keys = l->keys + r * each * key,
                                                    .window_format = K_ROW_FP8_32,
                                                    .window = (uint32_t)m->window,
                                                    .pos0 = l->context,
                                                    .rows = l->rows,
                                                    .row_format = K_ROW_FP4_16,
                                                    .sel = l->sel + r * each * m->top_k,
                                                    .n_sel = (uint32_t)m->top_k,
                                                    .sink = l->sink,
                                                    .scale = 0.04f});
}

static void run_output(struct bench *b, void *arg)
{
    struct layer *l = arg;
    rotate(b, l, l->o, l->m.heads, l->m.d);
    product(b, &l->wo_a, l->o, l->oa, l->n);
    product(b, &l->wo_b, l->oa, l->y, l->n);
}

static void run_moe(struct bench *b, void *arg)
{
    struct layer *l = arg;
    const struct dims *m = &l->m;
    b->k.route(&b->k, &(struct k_route){.logits = l->route,
                                        .bias = l->bias,
                                        .expert = l->expert,
                                        .weight = l->weight,
                                        .n = l->n,
                                        .n_expert = (uint32_t)m->experts,
                                        .top_k = (uint32_t)m->active,
                                        .norm = true,
                                        .scale = 1.5f});
    b->k.moe(&b->k, &(struct k_moe){.x = l->h,
                                    .expert = l->expert,
                                    .weight = l->weight,
                                    .experts = l->list,
                                    .shared = &l->shared,
                                    .y = l->y,
                                    .n = l->n,
                                    .d = (uint32_t)m->D,
                                    .top_k = (uint32_t)m->active,
                                    .n_expert = (uint32_t)m->experts,
                                    .limit = 10,
                                    .in = K_BF16});
}

static void run_layer(struct bench *b, void *arg)
{
    run_mix(b, arg);
    run_collapse(b, arg);
    run_queries(b, arg);
    run_keys(b, arg);
    run_index(b, arg);
    run_attention(b, arg);
    run_output(b, arg);
    run_update(b, arg);
    run_collapse(b, arg);
    run_mix(b, arg);
    run_moe(b, arg);
    run_update(b, arg);
}

/* ---- floors -------------------------------------------------------------------------------
 */

struct cost {
    double flops, bytes;
};

static struct cost linear_cost(const struct k_weight *w, size_t n)
{
    size_t data = 0, scale = 0;
    double groups = w->n_groups ? w->n_groups : 1;
    if (!k_weight_bytes(w, &data, &scale))
        abort();
    return (struct cost){2.0 * (double)n * w->n_out * w->n_in,
                         (double)(data + scale) +
                             4.0 * (double)n * (w->n_out + groups * w->n_in)};
}

static struct cost sum(struct cost a, struct cost b)
{
    return (struct cost){a.flops + b.flops, a.bytes + b.bytes};
}

static struct cost index_cost(const struct layer *l)
{
    const struct dims *m = &l->m;
    double rows = (double)l->context / 2, n = (double)l->n, runs = (double)l->n_runs;
    struct cost c = sum(linear_cost(&l->index_q, l->n), linear_cost(&l->index_w, l->n));
    double row = (double)k_row_bytes(K_ROW_FP4_32, (uint32_t)m->index_dim);
    return sum(c, (struct cost){2 * n * rows * (double)(m->index_heads * m->index_dim),
                                runs * rows * row});
}

static struct cost attention_cost(const struct layer *l)
{
    const struct dims *m = &l->m;
    double n = (double)l->n, keys = (double)(m->window + m->top_k);
    double row = (double)k_row_bytes(K_ROW_FP4_16, (uint32_t)m->d);
    double rows = l->n_runs > 1 ? n * (double)m->top_k : (double)l->context / 2;
    return (struct cost){4 * n * (double)(m->heads * m->d) * keys,
                         8 * n * (double)(m->heads * m->d) + rows * row};
}

static struct cost moe_cost(const struct layer *l)
{
    const struct dims *m = &l->m;
    double pairs = (double)(l->n * m->active), weights = (double)(3 * m->D * m->inter);
    double touched = pairs < (double)m->experts ? pairs : (double)m->experts;
    return (struct cost){2 * weights * (pairs + (double)l->n),
                         weights * (touched * 17 / 32 + 33.0 / 32) +
                             8.0 * (double)(l->n * m->D)};
}

static struct cost stream_cost(const struct layer *l, double passes)
{
    return (struct cost){0, 4 * passes * (double)(l->n * l->m.D)};
}

static void measure(struct bench *b, struct layer *l, const char *shape)
{
    const double hc = (double)l->m.hc;
    const struct {
        const char *what;
        void (*run)(struct bench *, void *);
        struct cost cost;
        double times; /* in a layer */
    } parts[] = {
        {"layer: hc_mix", run_mix,
         sum(stream_cost(l, hc), (struct cost){linear_cost(&l->mix, l->n).flops, 0}), 2},
        {"layer: collapse, norm", run_collapse, stream_cost(l, hc + 1), 2},
        {"layer: queries", run_queries,
         sum(linear_cost(&l->wq_a, l->n), linear_cost(&l->wq_b, l->n)), 1},
        {"layer: window keys", run_keys, linear_cost(&l->wkv, l->n), 1},
        {"layer: index", run_index, index_cost(l), 1},
        {"layer: attention", run_attention, attention_cost(l), 1},
        {"layer: output", run_output,
         sum(linear_cost(&l->wo_a, l->n), linear_cost(&l->wo_b, l->n)), 1},
        {"layer: experts", run_moe, moe_cost(l), 1},
        {"layer: update", run_update, stream_cost(l, 2 * hc + 1), 2},
    };
    double floor = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        double t = bench_time(b, parts[i].run, l);
        floor += parts[i].times * bench_floor(b, parts[i].cost.flops, parts[i].cost.bytes);
        bench_report(b, parts[i].what, shape, t, parts[i].cost.flops, parts[i].cost.bytes);
    }
    bench_report_floor(b, "layer", shape, bench_time(b, run_layer, l), floor);
}

void bench_layer(struct bench *b)
{
    static const struct {
        size_t n, n_runs;
        uint64_t context;
        const char *shape;
    } cases[] = {{1, 1, 1048570, "decode 1, 1M tokens before it"},
                 {16, 16, 131072, "decode 16, 128k tokens before each"},
                 {64, 64, 131072, "decode 64, 128k tokens before each"},
                 {2048, 1, 32768, "prefill 2048, 32k tokens before it"},
                 {8192, 1, 32768, "prefill 8192, 32k tokens before it"}};
    struct layer l = {.m = b->small ? SMALL : REAL};
    make_weights(b, &l);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        l.n = cases[i].n, l.n_runs = cases[i].n_runs, l.context = cases[i].context;
        if (b->small) {
            l.n = l.n > 4 ? 4 : l.n;
            l.n_runs = l.n_runs > 1 ? l.n : 1;
            l.context = 64;
        }
        make_buffers(b, &l);
        measure(b, &l, cases[i].shape);
        free_buffers(b, &l);
    }
    free_weights(b, &l);
}
