/* The chosen experts of all tokens at once. Pairs (token, slot) are sorted by expert and cut
 * into tiles of rows that share one; every product is one launch over all tiles. A pair's
 * result is kept apart, and a token's are added in ascending order of the expert's number, the
 * shared one last: nothing depends on what other tokens chose. */
#include "kernels/linear_tile.cuh"

#define THREADS 128u
#define MAX_PAIRS 8192u /* of one round: bounds the scratch */

/* Lists on the device, for one round of tokens. */
struct moe_lists {
    uint32_t *count;       /* [n_expert + 1] pairs of an expert; then where its list begins */
    uint32_t *pair;        /* [pairs] token * top_k + slot, by expert, then ascending */
    uint32_t *tile_expert; /* [max_tiles] */
    uint32_t *tile_first;  /* [max_tiles] first entry of `pair` */
    uint32_t *tile_rows;   /* [max_tiles]; 0: unused */
};

/* One block. A thread per expert counts, one thread makes tiles, a thread per expert fills. */
__global__ void moe_sort(struct k_moe a, struct moe_lists l, uint32_t max_tiles,
                         const uint8_t *only)
{
    uint32_t pairs = (uint32_t)a.n * a.top_k;
    for (uint32_t e = threadIdx.x; e < a.n_expert; e += blockDim.x) {
        uint32_t n = 0;
        for (uint32_t p = 0; p < pairs && (!only || only[e]); p++)
            n += a.expert[p] == (int32_t)e;
        l.count[e] = n;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t first = 0, tile = 0;
        for (uint32_t e = 0; e < a.n_expert; e++) {
            uint32_t n = l.count[e];
            for (uint32_t at = 0; at < n; at += K_TILE_ROWS, tile++) {
                l.tile_expert[tile] = e;
                l.tile_first[tile] = first + at;
                l.tile_rows[tile] = n - at < K_TILE_ROWS ? n - at : K_TILE_ROWS;
            }
            l.count[e] = first;
            first += n;
        }
        for (; tile < max_tiles; tile++)
            l.tile_rows[tile] = 0;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < a.n_expert; e += blockDim.x) {
        uint32_t at = l.count[e];
        for (uint32_t p = 0; p < pairs && (!only || only[e]); p++)
            if (a.expert[p] == (int32_t)e)
                l.pair[at++] = p;
    }
}

/* Every token once, for the shared expert: tiles of consecutive rows. */
__global__ void moe_all_rows(struct moe_lists l, uint32_t n, uint32_t tiles)
{
    uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n)
        l.pair[at] = at;
    if (at < tiles) {
        l.tile_expert[at] = 0;
        l.tile_first[at] = at * K_TILE_ROWS;
        l.tile_rows[at] =
            n - at * K_TILE_ROWS < K_TILE_ROWS ? n - at * K_TILE_ROWS : K_TILE_ROWS;
    }
}

enum moe_product { MOE_W1, MOE_W3, MOE_W2 };

/* Where the result of entry p of the lists goes: row p / div * slots + slot0 + p % div. */
struct moe_rows {
    uint32_t div, slots, slot0;
};

/* y [row] = one of an expert's products of x [pair / x_div]. blockIdx: x tile, y outputs. */
__global__ void moe_tile(const struct k_expert *experts, enum moe_product product,
                         struct moe_lists l, const float *x, uint32_t x_div, float *y,
                         struct moe_rows to, enum k_round in, enum k_round out)
{
    K_SHARED(struct k_tile_shared, s);
    uint32_t rows = l.tile_rows[blockIdx.x];
    if (!rows)
        return; /* the whole block */
    const struct k_expert *expert = &experts[l.tile_expert[blockIdx.x]];
    const struct k_weight w = product == MOE_W1   ? expert->w1
                              : product == MOE_W3 ? expert->w3
                                                  : expert->w2;
    const uint32_t *pair = l.pair + l.tile_first[blockIdx.x];
    size_t o0 = blockIdx.y * (size_t)K_TILE_OUT;
    auto from = [&](uint32_t r) {
        return r < rows ? x + (size_t)(pair[r] / x_div) * w.n_in : (const float *)NULL;
    };
    float sum[K_THREAD_OUT];
    k_tile_product(s, w, o0, w.n_out, from, in, sum);
    if (k_tile_row() >= rows)
        return;
    uint32_t p = pair[k_tile_row()];
    y += (size_t)(p / to.div * to.slots + to.slot0 + p % to.div) * w.n_out + o0;
    for (unsigned q = 0; q < K_THREAD_OUT; q++)
        if (o0 + k_tile_out(q) < w.n_out)
            y[k_tile_out(q)] = k_rounded(sum[q], out);
}

/* gate = silu(min(gate, limit)) clamp(up) weight, a thread a value. weight NULL: 1. */
__global__ void moe_activate(float *gate, const float *up, const int32_t *expert,
                             const float *weight, size_t n, uint32_t inter, float limit)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n * inter || (expert && expert[at / inter] < 0))
        return;
    float g = gate[at], u = up[at];
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    double act = (double)g * k_sigmoid((double)g) * (double)u;
    gate[at] = (float)(weight ? act * (double)weight[at / inter] : act);
}

/* y = results of a token's experts by ascending number, then the shared one. A thread a value.
 */
__global__ void moe_sum(struct k_moe a, bool shared)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * a.d)
        return;
    size_t i = at / a.d;
    const float *part = a.part + i * (a.top_k + 1) * a.d + at % a.d;
    float sum = 0;
    int32_t last = -1;
    for (uint32_t done = 0; done < a.top_k; done++) {
        uint32_t next = a.top_k;
        int32_t number = INT32_MAX;
        for (uint32_t t = 0; t < a.top_k; t++) {
            int32_t e = a.expert[i * a.top_k + t];
            if (e > last && e < number)
                number = e, next = t;
        }
        if (next == a.top_k)
            break;
        sum += part[(size_t)next * a.d];
        last = number;
    }
    if (shared)
        sum += part[(size_t)a.top_k * a.d];
    a.y[at] = k_rounded(sum, a.out);
}

/* Scratch of a round. */
struct moe_work {
    struct k_expert *experts; /* [n_expert + 1] on the device, the shared one last */
    const uint8_t *only;      /* [n_expert + 1] behind them, or NULL */
    struct moe_lists lists;
    float *gate, *up, *x, *part;
    uint32_t max_tiles;
};

/* The experts' pointers, and which of them to compute, are the host's. */
static bool upload_experts(struct kernels *k, const struct k_moe *a, struct moe_work *w)
{
    size_t n = (size_t)a->n_expert + 1, bytes = n * sizeof *w->experts;
    w->experts = (struct k_expert *)k_cuda_scratch(k, K_CUDA_MOE_EXPERTS, bytes + n);
    if (!w->experts)
        return false;
    k->copy_in(k, w->experts, a->experts, a->n_expert * sizeof *w->experts);
    if (a->shared)
        k->copy_in(k, w->experts + a->n_expert, a->shared, sizeof *w->experts);
    if (a->only) {
        k->copy_in(k, w->experts + n, a->only, n);
        w->only = (const uint8_t *)(w->experts + n);
    }
    return true;
}

static bool reserve(struct kernels *k, const struct k_moe *a, size_t n, struct moe_work *w)
{
    size_t pairs = n * a->top_k, rows = pairs > n ? pairs : n;
    uint32_t inter = a->n_expert ? a->experts[0].w1.n_out : 0;
    for (uint32_t e = 0; e < a->n_expert; e++)
        inter = a->experts[e].w1.n_out > inter ? a->experts[e].w1.n_out : inter;
    if (a->shared && a->shared->w1.n_out > inter)
        inter = a->shared->w1.n_out;
    size_t widest = a->d > inter ? a->d : inter;
    w->max_tiles =
        k_div_up(rows, K_TILE_ROWS) + (uint32_t)(a->n_expert < pairs ? a->n_expert : pairs);
    size_t entries = (size_t)a->n_expert + 1 + rows + 3 * (size_t)w->max_tiles;
    uint32_t *lists = (uint32_t *)k_cuda_scratch(k, K_CUDA_MOE_LISTS, entries * sizeof *lists);
    w->gate = (float *)k_cuda_scratch(k, K_CUDA_MOE_GATE, rows * inter * sizeof(float));
    w->up = (float *)k_cuda_scratch(k, K_CUDA_MOE_UP, rows * inter * sizeof(float));
    w->x = (float *)k_cuda_scratch(k, K_CUDA_LINEAR_X, rows * widest * sizeof(float));
    w->part = a->part ? a->part
                      : (float *)k_cuda_scratch(k, K_CUDA_MOE_Y,
                                                n * (a->top_k + 1) * a->d * sizeof(float));
    if (!w->x || !w->part || !w->up || !w->gate || !lists)
        return false;
    w->lists.count = lists;
    w->lists.pair = lists + a->n_expert + 1;
    w->lists.tile_expert = w->lists.pair + rows;
    w->lists.tile_first = w->lists.tile_expert + w->max_tiles;
    w->lists.tile_rows = w->lists.tile_first + w->max_tiles;
    return true;
}

/* x of n rows as the products read it: rounded beforehand where groups of 32 share a scale. */
static const float *rounded_input(struct kernels *k, const struct k_moe *a, const float *x,
                                  size_t n, size_t width, float *scratch)
{
    if (a->in != K_FP8_32)
        return x;
    k_quant_activation_cuda(k, x, n, width, width, scratch);
    return scratch;
}

/* What the three products of the rows in the lists run over. */
struct moe_pass {
    const struct k_expert *experts; /* on the device */
    uint32_t inter, tiles;
    size_t rows;           /* entries of the lists */
    const int32_t *expert; /* NULL: the shared one */
    const float *weight;
    uint32_t per_token; /* entries of a token */
    uint32_t slot0;
};

static void run_pass(struct kernels *k, const struct k_moe *a, struct moe_work *w,
                     const struct moe_pass *p)
{
    enum k_round in = a->in == K_FP8_32 ? K_EXACT : a->in, mid = a->mid;
    dim3 threads(K_TILE_THREADS), wide(p->tiles, k_div_up(p->inter, K_TILE_OUT)),
        back(p->tiles, k_div_up(a->d, K_TILE_OUT));
    const float *x = rounded_input(k, a, a->x, p->rows / p->per_token, a->d, w->x);
    size_t shared = sizeof(struct k_tile_shared), values = p->rows * p->inter;
    struct moe_lists lists = w->lists;
    struct moe_rows plain = {1, 1, 0}, slots = {p->per_token, a->top_k + 1, p->slot0};
    float *gate = w->gate, *up = w->up, *part = a->part;
    K_LAUNCH(moe_tile, wide, threads, shared, k, p->experts, MOE_W1, lists, x, p->per_token,
             gate, plain, in, mid);
    K_LAUNCH(moe_tile, wide, threads, shared, k, p->experts, MOE_W3, lists, x, p->per_token, up,
             plain, in, mid);
    K_LAUNCH(moe_activate, dim3(k_div_up(values, THREADS)), dim3(THREADS), 0, k, gate, up,
             p->expert, p->weight, p->rows, p->inter, a->limit);
    const float *act = rounded_input(k, a, gate, p->rows, p->inter, w->x);
    K_LAUNCH(moe_tile, back, threads, shared, k, p->experts, MOE_W2, lists, act, 1u, part,
             slots, in, mid);
}

/* part of a few tokens. */
static void run_round(struct kernels *k, const struct k_moe *a, struct moe_work *w)
{
    struct moe_lists lists = w->lists;
    uint32_t tiles = w->max_tiles, n = (uint32_t)a->n;
    if (a->top_k && a->n_expert) {
        struct moe_pass routed = {w->experts, a->experts[0].w1.n_out,
                                  tiles,      a->n * a->top_k,
                                  a->expert,  a->weight,
                                  a->top_k,   0};
        K_LAUNCH(moe_sort, dim3(1), dim3(256), 0, k, *a, lists, tiles, w->only);
        run_pass(k, a, w, &routed);
    }
    if (a->shared && (!a->only || a->only[a->n_expert])) {
        struct moe_pass all = {w->experts + a->n_expert,
                               a->shared->w1.n_out,
                               k_div_up(n, K_TILE_ROWS),
                               n,
                               NULL,
                               NULL,
                               1,
                               a->top_k};
        K_LAUNCH(moe_all_rows, dim3(k_div_up(n, THREADS)), dim3(THREADS), 0, k, lists, n,
                 all.tiles);
        run_pass(k, a, w, &all);
    }
}

static void sum_parts(struct kernels *k, const struct k_moe *a)
{
    K_LAUNCH(moe_sum, dim3(k_div_up(a->n * a->d, THREADS)), dim3(THREADS), 0, k, *a,
             a->shared != NULL);
}

/* Rounds bound the scratch. */
static void run(struct kernels *k, const struct k_moe *a, bool keep_parts)
{
    struct moe_work w = {};
    size_t step = MAX_PAIRS / (a->top_k ? a->top_k : 1);
    step = step ? step : 1;
    if (!a->n || !upload_experts(k, a, &w) || !reserve(k, a, step < a->n ? step : a->n, &w))
        return;
    for (size_t i = 0; i < a->n; i += step) {
        struct k_moe round = *a;
        round.n = a->n - i < step ? a->n - i : step;
        round.x += i * a->d;
        round.expert += i * a->top_k, round.weight += i * a->top_k;
        round.part = keep_parts ? a->part + i * (a->top_k + 1) * a->d : w.part;
        run_round(k, &round, &w);
        round.y = keep_parts ? NULL : a->y + i * a->d;
        if (!keep_parts)
            sum_parts(k, &round);
    }
}

void k_moe_cuda(struct kernels *k, const struct k_moe *a)
{
    struct k_moe args = *a;
    args.part = NULL, args.only = NULL;
    run(k, &args, false);
}

void k_moe_part_cuda(struct kernels *k, const struct k_moe *a)
{
    run(k, a, true);
}

void k_moe_sum_cuda(struct kernels *k, const struct k_moe *a)
{
    if (a->n)
        sum_parts(k, a);
}
