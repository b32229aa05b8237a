/* Mixture of experts in two parallel steps over all chosen experts at once:
 *
 *   up    items (block of inter, expert): a = silu(w1 x) (w3 x), rounded, into `act`
 *   down  items (block of outputs): w2 a of every expert in ascending order, added per token
 *
 * A (token, expert) pair has one row of `act`; pairs are sorted by expert, the shared expert is
 * the last one and has every token. moe_part takes some of the experts and leaves what `down`
 * gives as it is; moe_sum adds it in the order that `down` would have. */
#include <assert.h>

#include "kernels/isa.h"

struct used_expert {
    const struct k_expert *e;
    size_t first, n; /* its pairs */
    uint8_t *act;    /* [n][inter] f32 or bf16 */
};

struct moe_job {
    const struct k_isa *isa;
    const struct k_moe *a;
    const uint8_t *only; /* experts of this call; NULL: all, and they are summed */
    struct k_rows x;     /* prepared inputs by token */
    struct used_expert *used;
    size_t n_used, n_pairs, most_rows, widest, block;
    uint32_t *token;  /* [n_pairs] */
    uint32_t *place;  /* [n_pairs] of the expert in its token's list; top_k: shared */
    float *weight;    /* [n_pairs]; 1 for the shared expert */
    const void **row; /* [n_pairs] input row of a pair, later its act row */
    uint8_t *scratch;
    size_t stride;
};

/* ---- pairs by expert ----------------------------------------------------------------------
 */

static void add_expert(struct moe_job *job, const struct k_expert *e, size_t n)
{
    assert(e->w3.n_out == e->w1.n_out && e->w2.n_in == e->w1.n_out);
    assert(e->w1.n_in == job->a->d && e->w2.n_out == job->a->d);
    job->used[job->n_used++] = (struct used_expert){e, job->n_pairs, n, NULL};
    job->n_pairs += n;
    job->most_rows = n > job->most_rows ? n : job->most_rows;
    job->widest = e->w1.n_out > job->widest ? e->w1.n_out : job->widest;
}

static void add_pair(struct moe_job *job, size_t at, size_t token, uint32_t place, float weight)
{
    job->token[at] = (uint32_t)token;
    job->place[at] = place;
    job->weight[at] = weight;
}

/* Whether pair p of the token's choices is of this call. */
static bool is_wanted(const struct moe_job *job, size_t p)
{
    int32_t e = job->a->expert[p];
    assert(e < (int32_t)job->a->n_expert);
    return e >= 0 && (!job->only || job->only[e]);
}

/* Sorts pairs by expert, tokens in order within one. next [n_expert] is scratch. */
static void sort_pairs(struct moe_job *job, size_t *next)
{
    const struct k_moe *a = job->a;
    size_t n_chosen = a->n * a->top_k;
    memset(next, 0, a->n_expert * sizeof *next);
    for (size_t p = 0; p < n_chosen; p++)
        if (is_wanted(job, p))
            next[a->expert[p]]++;
    for (uint32_t e = 0; e < a->n_expert; e++) {
        size_t n = next[e];
        next[e] = job->n_pairs;
        if (n)
            add_expert(job, &a->experts[e], n);
    }
    for (size_t p = 0; p < n_chosen; p++)
        if (is_wanted(job, p))
            add_pair(job, next[a->expert[p]]++, p / a->top_k, (uint32_t)(p % a->top_k),
                     a->weight[p]);
    if (a->shared && (!job->only || job->only[a->n_expert])) {
        add_expert(job, a->shared, a->n);
        for (size_t i = 0; i < a->n; i++)
            add_pair(job, job->n_pairs - a->n + i, i, a->top_k, 1);
    }
}

static bool any_f32(const struct moe_job *job)
{
    for (size_t u = 0; u < job->n_used; u++) {
        const struct k_expert *e = job->used[u].e;
        if (e->w1.type == K_W_F32 || e->w3.type == K_W_F32 || e->w2.type == K_W_F32)
            return true;
    }
    return false;
}

/* ---- the two steps ------------------------------------------------------------------------
 */

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Bytes of one row of activations. */
static size_t act_bytes(const struct moe_job *job, size_t inter)
{
    return k_rows_part_bytes(job->isa, &job->x, inter);
}

/* Rounds n activations in front of w2 and stores them as the products want them. */
static void store_act(const struct moe_job *job, float *g, size_t n, uint8_t *dst)
{
    if (job->a->in == K_FP8_32)
        k_quant_activation(g, (uint32_t)n, g);
    if (job->x.bf16)
        job->isa->to_rows(g, n, dst);
    else if (job->a->in == K_BF16)
        job->isa->round_bf16(g, n, (float *)(void *)dst);
    else
        memcpy(dst, g, n * sizeof *g);
}

static void up_items(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct moe_job *job = arg;
    const struct k_moe *a = job->a;
    float *gate = (float *)(void *)(job->scratch + thread * job->stride);
    float *up = gate + job->most_rows * job->block;
    void *weights = up + job->most_rows * job->block;
    for (size_t item = first; item < last; item++) {
        const struct used_expert *u = &job->used[item % job->n_used];
        size_t inter = u->e->w1.n_out, o = item / job->n_used * job->block;
        if (o >= inter)
            continue;
        size_t n = min(inter - o, job->block);
        struct k_rows x = {job->row + u->first, u->n, job->x.bf16};
        k_product_block(job->isa, &x, &u->e->w1, o, o + n, weights, gate, n);
        k_product_block(job->isa, &x, &u->e->w3, o, o + n, weights, up, n);
        if (a->mid == K_BF16) {
            job->isa->round_bf16(gate, u->n * n, gate);
            job->isa->round_bf16(up, u->n * n, up);
        }
        for (size_t i = 0; i < u->n; i++) {
            job->isa->swiglu(gate + i * n, up + i * n, n, a->limit, job->weight[u->first + i]);
            store_act(job, gate + i * n, n,
                      u->act + i * act_bytes(job, inter) + act_bytes(job, o));
        }
    }
}

/* Outputs [o, o + n) of one expert for its rows, into y [rows][n]. */
static void down_block(const struct moe_job *job, const struct used_expert *u, size_t o,
                       size_t n, void *weights, float *y)
{
    struct k_rows x = {job->row + u->first, u->n, job->x.bf16};
    k_product_block(job->isa, &x, &u->e->w2, o, o + n, weights, y, n);
    if (job->a->mid == K_BF16)
        job->isa->round_bf16(y, u->n * n, y);
}

static void down_items(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct moe_job *job = arg;
    const struct k_moe *a = job->a;
    float *y = (float *)(void *)(job->scratch + thread * job->stride);
    void *weights = y + job->most_rows * job->block;
    for (size_t item = first; item < last; item++) {
        size_t o = item * job->block, n = min(a->d - o, job->block);
        for (size_t i = 0; i < a->n; i++)
            memset(a->y + i * a->d + o, 0, n * sizeof *a->y);
        for (size_t e = 0; e < job->n_used; e++) {
            const struct used_expert *u = &job->used[e];
            down_block(job, u, o, n, weights, y);
            for (size_t i = 0; i < u->n; i++) {
                float *sum = a->y + (size_t)job->token[u->first + i] * a->d + o;
                for (size_t j = 0; j < n; j++)
                    sum[j] += y[i * n + j];
            }
        }
        for (size_t i = 0; i < a->n && a->out == K_BF16; i++)
            job->isa->round_bf16(a->y + i * a->d + o, n, a->y + i * a->d + o);
    }
}

static void part_items(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct moe_job *job = arg;
    const struct k_moe *a = job->a;
    float *y = (float *)(void *)(job->scratch + thread * job->stride);
    void *weights = y + job->most_rows * job->block;
    for (size_t item = first; item < last; item++) {
        const struct used_expert *u = &job->used[item % job->n_used];
        size_t o = item / job->n_used * job->block, n = min(a->d - o, job->block);
        down_block(job, u, o, n, weights, y);
        for (size_t i = 0; i < u->n; i++) {
            size_t p = u->first + i;
            float *part =
                a->part + (job->token[p] * (a->top_k + (size_t)1) + job->place[p]) * a->d;
            memcpy(part + o, y + i * n, n * sizeof *y);
        }
    }
}

static void down_rows(struct moe_job *job)
{
    for (size_t e = 0; e < job->n_used; e++) {
        struct used_expert *u = &job->used[e];
        for (size_t i = 0; i < u->n; i++)
            job->row[u->first + i] = u->act + i * act_bytes(job, u->e->w1.n_out);
    }
}

/* ---- the op -------------------------------------------------------------------------------
 */

/* Fills the lists; false when there is no memory. */
static bool make_lists(struct kernels *k, struct moe_job *job)
{
    const struct k_moe *a = job->a;
    size_t pairs = a->n * (a->top_k + (size_t)1);
    job->row =
        k_scratch(k, K_SLOT_MOE_ROWS,
                  pairs * (sizeof *job->row + 2 * sizeof *job->token + sizeof *job->weight));
    job->used = k_scratch(k, K_SLOT_MOE_Y, (a->n_expert + (size_t)1) * sizeof *job->used);
    size_t *next = k_scratch(k, K_SLOT_MOE_UP, (a->n_expert + (size_t)1) * sizeof *next);
    if (k_failed(k))
        return false;
    job->token = (uint32_t *)(void *)(job->row + pairs);
    job->place = job->token + pairs;
    job->weight = (float *)(void *)(job->place + pairs);
    sort_pairs(job, next);
    return true;
}

static bool make_buffers(struct kernels *k, struct moe_job *job)
{
    const struct k_moe *a = job->a;
    struct k_weight w = {.type = K_W_FP8_32X32}; /* the scratch that any weight may need */
    w.n_in = job->widest > a->d ? (uint32_t)job->widest : a->d;
    size_t at = 0, values = job->most_rows * job->block * sizeof(float);
    for (size_t e = 0; e < job->n_used; e++)
        at += job->used[e].n * act_bytes(job, job->used[e].e->w1.n_out);
    uint8_t *act = k_scratch(k, K_SLOT_MOE_GATE, at);
    job->scratch = k_scratch_threads(k, K_SLOT_OP, 2 * values + k_block_scratch(&w, job->block),
                                     &job->stride);
    if (k_failed(k))
        return false;
    for (size_t e = 0; e < job->n_used; e++) {
        struct used_expert *u = &job->used[e];
        u->act = act;
        act += u->n * act_bytes(job, u->e->w1.n_out);
    }
    return true;
}

/* Up and down for the experts of this call. */
static void run_job(struct kernels *k, struct moe_job *job)
{
    const struct k_moe *a = job->a;
    if (!make_lists(k, job) ||
        !k_rows_prepare(k, a->x, a->n, a->d, a->d, 1, a->in, any_f32(job), K_SLOT_LINEAR_X,
                        K_SLOT_LINEAR_ROWS, &job->x))
        return;
    if (!make_buffers(k, job))
        return;
    for (size_t p = 0; p < job->n_pairs; p++)
        job->row[p] = job->x.row[job->token[p]];
    size_t cost = (job->n_pairs + 2 * job->n_used) * job->widest * a->d / 16;
    size_t outputs = (a->d + job->block - 1) / job->block;
    k_run(k, up_items, job, job->n_used * ((job->widest + job->block - 1) / job->block),
          2 * cost);
    down_rows(job);
    if (job->only)
        k_run(k, part_items, job, job->n_used * outputs, cost);
    else
        k_run(k, down_items, job, outputs, cost);
}

void k_moe_cpu(struct kernels *k, const struct k_moe *a)
{
    struct moe_job job = {.isa = k->ctx->isa, .a = a, .block = a->n <= 16 ? 32 : 64};
    if (!k_failed(k) && a->n)
        run_job(k, &job);
}

void k_moe_part_cpu(struct kernels *k, const struct k_moe *a)
{
    struct moe_job job = {
        .isa = k->ctx->isa, .a = a, .only = a->only, .block = a->n <= 16 ? 32 : 64};
    if (!k_failed(k) && a->n)
        run_job(k, &job);
}

struct sum_job {
    const struct k_isa *isa;
    const struct k_moe *a;
};

static void sum_items(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct sum_job *job = arg;
    const struct k_moe *a = job->a;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        const float *part[K_MAX_TOP_K + 1];
        size_t n = k_moe_parts(a, i, part);
        float *y = a->y + i * a->d;
        memset(y, 0, a->d * sizeof *y);
        for (size_t p = 0; p < n; p++)
            for (size_t j = 0; j < a->d; j++)
                y[j] += part[p][j];
        if (a->out == K_BF16)
            job->isa->round_bf16(y, a->d, y);
    }
}

void k_moe_sum_cpu(struct kernels *k, const struct k_moe *a)
{
    struct sum_job job = {k->ctx->isa, a};
    if (!k_failed(k))
        k_run(k, sum_items, &job, a->n, a->n * a->d * (a->top_k + (size_t)1));
}
