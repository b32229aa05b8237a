/* The chosen experts of all tokens at once. Pairs (token, slot) are sorted by expert and cut
 * into tiles of rows that share one; every product is one launch over all tiles. A pair's
 * result is kept apart, and a token's are added in ascending order of the expert's number, the
 * shared one last: nothing depends on what other tokens chose. */
#include "kernels/linear_mma.cuh"
#include "kernels/linear_tile.cuh"

#define THREADS 128u
#define MAX_PAIRS 12288u /* of one round: bounds the scratch; 2,048 tokens of the release */
#define WIDE_ROWS 64u    /* of a tile where experts have many rows: one expansion for them */

/* Lists on the device, for one round of tokens. */
struct moe_lists {
    uint32_t *count;       /* [n_expert + 1] pairs of an expert; then where its list begins */
    uint32_t *pair;        /* [pairs] token * top_k + slot, by expert, then ascending */
    uint32_t *tile_expert; /* [max_tiles] */
    uint32_t *tile_first;  /* [max_tiles] first entry of `pair` */
    uint32_t *tile_rows;   /* [max_tiles]; 0: unused */
    uint32_t rows;         /* of a tile at most */
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
            for (uint32_t at = 0; at < n; at += l.rows, tile++) {
                l.tile_expert[tile] = e;
                l.tile_first[tile] = first + at;
                l.tile_rows[tile] = n - at < l.rows ? n - at : l.rows;
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
        l.tile_first[at] = at * l.rows;
        l.tile_rows[at] = n - at * l.rows < l.rows ? n - at * l.rows : l.rows;
    }
}

enum moe_product { MOE_W1, MOE_W3, MOE_W2 };

/* Where the result of entry p of the lists goes: row p / div * slots + slot0 + p % div. */
struct moe_rows {
    uint32_t div, slots, slot0;
};

/* What a block of a product works on: rows of one expert. rows 0: nothing. */
struct moe_tile_work {
    struct k_weight w;
    const uint32_t *pair;
    uint32_t rows;
};

__device__ static inline struct moe_tile_work tile_work(const struct k_expert *experts,
                                                        enum moe_product product,
                                                        const struct moe_lists &l)
{
    struct moe_tile_work t = {};
    t.rows = l.tile_rows[blockIdx.x];
    if (!t.rows)
        return t;
    const struct k_expert *expert = &experts[l.tile_expert[blockIdx.x]];
    t.w = product == MOE_W1 ? expert->w1 : product == MOE_W3 ? expert->w3 : expert->w2;
    t.pair = l.pair + l.tile_first[blockIdx.x];
    return t;
}

__device__ static inline size_t result_row(const struct moe_rows &to, uint32_t p)
{
    return (size_t)(p / to.div) * to.slots + to.slot0 + p % to.div;
}

/* y [row] = one of an expert's products of x [pair / x_div]. blockIdx: x tile, y outputs. */
__global__ void moe_tile(const struct k_expert *experts, enum moe_product product,
                         struct moe_lists l, const float *x, uint32_t x_div, float *y,
                         struct moe_rows to, enum k_round in, enum k_round out)
{
    K_SHARED(struct k_tile_shared, s);
    struct moe_tile_work t = tile_work(experts, product, l);
    if (!t.rows)
        return; /* the whole block */
    size_t n_out = t.w.n_out, o0 = blockIdx.y * (size_t)K_TILE_OUT;
    auto from = [&](uint32_t r) {
        return r < t.rows ? x + (size_t)(t.pair[r] / x_div) * t.w.n_in : (const float *)NULL;
    };
    float sum[K_THREAD_OUT];
    k_tile_product(s, t.w, o0, n_out, from, in, sum);
    if (k_tile_row() >= t.rows)
        return;
    y += result_row(to, t.pair[k_tile_row()]) * n_out + o0;
    for (unsigned q = 0; q < K_THREAD_OUT; q++)
        if (o0 + k_tile_out(q) < n_out)
            y[k_tile_out(q)] = k_rounded(sum[q], out);
}

/* The same on tensor cores, tiles of 8 N rows by 64 M outputs: inputs are bf16 values, weights
 * are FP8, FP4 or bf16. */
template <unsigned M, unsigned N>
__global__ void moe_mma(const struct k_expert *experts, enum moe_product product,
                        struct moe_lists l, const float *x, uint32_t x_div, float *y,
                        struct moe_rows to, enum k_round out)
{
    typedef struct k_mma_shared<M, N> shared;
    K_SHARED(shared, s);
    struct moe_tile_work t = tile_work(experts, product, l);
    size_t n_out = t.w.n_out, o0 = blockIdx.y * (size_t)(64 * M);
    if (!t.rows || o0 >= n_out)
        return; /* the whole block */
    auto from = [&](uint32_t r) {
        return r < t.rows ? x + (size_t)(t.pair[r] / x_div) * t.w.n_in : (const float *)NULL;
    };
    float sum[M][N][4];
    k_mma_product<M, N>(s, t.w, o0, n_out, from, 0, t.w.n_in, (t.rows + 7) / 8, sum);
    K_UNROLL
    for (unsigned at = 0; at < M * N * 4; at++) {
        unsigned m = at / (N * 4), n = at / 4 % N, i = at % 4;
        size_t o = o0 + k_mma_out<M>(m, i);
        if (o < n_out && k_mma_row(n, i) < t.rows)
            y[result_row(to, t.pair[k_mma_row(n, i)]) * n_out + o] =
                k_rounded(sum[m][n][i], out);
    }
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
    const struct k_expert *experts; /* [n_expert + 1] on the device, the shared one last */
    const uint8_t *only;            /* [n_expert + 1] behind them, or NULL */
    struct moe_lists lists;
    float *gate, *up, *x, *part;
    uint32_t max_tiles;
    bool mma; /* the routed ones */
};

/* The experts' pointers are the host's unless there is a table of them here; which of them to
 * compute always is. */
static bool upload_experts(struct kernels *k, const struct k_moe *a, struct moe_work *w)
{
    size_t n = (size_t)a->n_expert + 1, bytes = n * sizeof *w->experts;
    w->experts = a->table;
    if (a->table && !a->only)
        return true;
    struct k_expert *copy = (struct k_expert *)k_cuda_scratch(k, K_CUDA_MOE_EXPERTS, bytes + n);
    if (!copy)
        return false;
    w->experts = copy;
    k->copy_in(k, copy, a->experts, a->n_expert * sizeof *copy);
    if (a->shared)
        k->copy_in(k, copy + a->n_expert, a->shared, sizeof *copy);
    if (a->only) {
        k->copy_in(k, copy + n, a->only, n);
        w->only = (const uint8_t *)(w->experts + n);
    }
    return true;
}

/* Can every expert that may be touched go to tensor cores? All of a layer are alike. */
static bool takes_mma(const struct k_moe *a, const struct k_expert *x)
{
    return k_mma_takes(x->w1, a->in) && k_mma_takes(x->w3, a->in) && k_mma_takes(x->w2, a->in);
}

static bool reserve(struct kernels *k, const struct k_moe *a, size_t n, struct moe_work *w)
{
    size_t pairs = n * a->top_k, rows = pairs > n ? pairs : n;
    uint32_t inter = a->n_expert ? a->experts[0].w1.n_out : 0;
    w->mma = true;
    for (uint32_t e = 0; e < a->n_expert; e++) {
        w->mma = w->mma && takes_mma(a, &a->experts[e]);
        inter = a->experts[e].w1.n_out > inter ? a->experts[e].w1.n_out : inter;
    }
    if (a->shared && a->shared->w1.n_out > inter)
        inter = a->shared->w1.n_out;
    size_t widest = a->d > inter ? a->d : inter;
    w->max_tiles =
        k_div_up(rows, K_TILE_ROWS) + (uint32_t)(a->n_expert < pairs ? a->n_expert : pairs);
    size_t entries = (size_t)a->n_expert + 1 + rows + 3 * (size_t)w->max_tiles;
    uint32_t *lists = (uint32_t *)k_cuda_scratch(k, K_CUDA_MOE_LISTS, entries * sizeof *lists);
    w->gate = (float *)k_cuda_scratch(k, K_CUDA_MOE_GATE, rows * inter * sizeof(float));
    w->up = (float *)k_cuda_scratch(k, K_CUDA_MOE_UP, rows * inter * sizeof(float));
    bool rounds = a->in == K_FP8_32; /* beforehand: rounded_input() */
    if (rounds)
        w->x = (float *)k_cuda_scratch(k, K_CUDA_LINEAR_X, rows * widest * sizeof(float));
    w->part = a->part ? a->part
                      : (float *)k_cuda_scratch(k, K_CUDA_MOE_Y,
                                                n * (a->top_k + 1) * a->d * sizeof(float));
    if ((rounds && !w->x) || !w->part || !w->up || !w->gate || !lists)
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
    bool mma, wide; /* tensor cores; tiles of WIDE_ROWS */
};

template <unsigned M, unsigned N>
static void product_mma(struct kernels *k, const struct moe_lists &lists,
                        const struct moe_pass *p, enum moe_product which, uint32_t n_out,
                        const float *x, uint32_t x_div, float *y, struct moe_rows to,
                        enum k_round out)
{
    auto moe_mma = ::moe_mma<M, N>;
    const struct k_expert *experts = p->experts;
    K_LAUNCH(moe_mma, dim3(p->tiles, k_div_up(n_out, 64 * M)), dim3(K_MMA_THREADS),
             sizeof(struct k_mma_shared<M, N>), k, experts, which, lists, x, x_div, y, to, out);
}

static void product(struct kernels *k, const struct k_moe *a, const struct moe_work *w,
                    const struct moe_pass *p, enum moe_product which, const float *x,
                    uint32_t x_div, float *y, struct moe_rows to)
{
    enum k_round in = a->in == K_FP8_32 ? K_EXACT : a->in, mid = a->mid;
    uint32_t n_out = which == MOE_W2 ? a->d : p->inter;
    struct moe_lists lists = w->lists;
    const struct k_expert *experts = p->experts;
    if (p->mma && p->wide)
        product_mma<2, WIDE_ROWS / 8>(k, lists, p, which, n_out, x, x_div, y, to, mid);
    else if (p->mma)
        product_mma<1, K_TILE_ROWS / 8>(k, lists, p, which, n_out, x, x_div, y, to, mid);
    else
        K_LAUNCH(moe_tile, dim3(p->tiles, k_div_up(n_out, K_TILE_OUT)), dim3(K_TILE_THREADS),
                 sizeof(struct k_tile_shared), k, experts, which, lists, x, x_div, y, to, in,
                 mid);
}

static void run_pass(struct kernels *k, const struct k_moe *a, struct moe_work *w,
                     const struct moe_pass *p)
{
    const float *x = rounded_input(k, a, a->x, p->rows / p->per_token, a->d, w->x);
    size_t values = p->rows * p->inter;
    struct moe_rows plain = {1, 1, 0}, slots = {p->per_token, a->top_k + 1, p->slot0};
    float *gate = w->gate, *up = w->up;
    product(k, a, w, p, MOE_W1, x, p->per_token, gate, plain);
    product(k, a, w, p, MOE_W3, x, p->per_token, up, plain);
    K_LAUNCH(moe_activate, dim3(k_div_up(values, THREADS)), dim3(THREADS), 0, k, gate, up,
             p->expert, p->weight, p->rows, p->inter, a->limit);
    const float *act = rounded_input(k, a, gate, p->rows, p->inter, w->x);
    product(k, a, w, p, MOE_W2, act, 1, a->part, slots);
}

/* How rows of a pass are cut into tiles. `experts` of them at most have a tile that is not
 * full. */
static void cut(struct moe_work *w, struct moe_pass *p, size_t rows, uint32_t experts)
{
    p->rows = rows;
    p->wide = p->mma && rows > K_TILE_ROWS * (size_t)experts;
    w->lists.rows = p->wide ? WIDE_ROWS : K_TILE_ROWS;
    p->tiles = k_div_up(rows, w->lists.rows) + (uint32_t)(experts < rows ? experts : rows);
}

/* part of a few tokens. */
static void run_round(struct kernels *k, const struct k_moe *a, struct moe_work *w)
{
    uint32_t n = (uint32_t)a->n;
    if (a->top_k && a->n_expert) {
        struct moe_pass routed = {};
        routed.experts = w->experts, routed.inter = a->experts[0].w1.n_out;
        routed.expert = a->expert, routed.weight = a->weight, routed.per_token = a->top_k;
        routed.mma = w->mma;
        cut(w, &routed, a->n * a->top_k, a->n_expert);
        struct moe_lists lists = w->lists;
        uint32_t tiles = routed.tiles;
        K_LAUNCH(moe_sort, dim3(1), dim3(256), 0, k, *a, lists, tiles, w->only);
        run_pass(k, a, w, &routed);
    }
    if (a->shared && (!a->only || a->only[a->n_expert])) {
        struct moe_pass all = {};
        all.experts = w->experts + a->n_expert, all.inter = a->shared->w1.n_out;
        all.per_token = 1, all.slot0 = a->top_k;
        all.mma = takes_mma(a, a->shared);
        cut(w, &all, n, 1);
        struct moe_lists lists = w->lists;
        all.tiles = k_div_up(n, lists.rows);
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
