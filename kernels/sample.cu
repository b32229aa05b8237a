/* Draws of up to 16 rows: the largest logit, then weights, then, for rows that are cut, their
 * order, then sums, in which the id is looked for. A row's weights stay where their ids are, 0
 * for those that have no part: a 0 changes no sum, and comes last in the order. */
#include "kernels/cuda.cuh"
#include "kernels/philox.h"
#include "kernels/sample_rules.h"

#define THREADS 256u
#define PART 2048u /* ids of a block, but for sums */
#define SUM_THREADS 512u
#define EACH 8u /* terms that a thread of a sum adds one after the other */
#define NONE 0xffffffffu

/* ---- the largest logit --------------------------------------------------------------------
 */

struct sample_best {
    double logit;    /* with bias */
    uint32_t id;     /* the first of the largest; NONE: none is allowed */
    uint32_t broken; /* the first that is no number; NONE: all are */
};

__device__ static inline void take_better(struct sample_best &a, const struct sample_best &b)
{
    if (b.id != NONE &&
        (a.id == NONE || b.logit > a.logit || (b.logit == a.logit && b.id < a.id)))
        a.logit = b.logit, a.id = b.id;
    a.broken = b.broken < a.broken ? b.broken : a.broken;
}

/* Of a block; every thread gets it. scratch has room for one per warp. */
__device__ static inline struct sample_best block_best(struct sample_best mine,
                                                       struct sample_best *scratch)
{
    for (int bits = 16; bits; bits /= 2) {
        struct sample_best other = {__shfl_xor_sync(K_ALL_LANES, mine.logit, bits),
                                    __shfl_xor_sync(K_ALL_LANES, mine.id, bits),
                                    __shfl_xor_sync(K_ALL_LANES, mine.broken, bits)};
        take_better(mine, other);
    }
    if (threadIdx.x % K_WARP == 0)
        scratch[threadIdx.x / K_WARP] = mine;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / K_WARP; w++)
        take_better(mine, scratch[w]);
    __syncthreads();
    return mine;
}

__device__ static inline struct sample_best row_best(const struct sample_best *parts,
                                                     uint32_t n_parts,
                                                     struct sample_best *scratch)
{
    struct sample_best mine = {0, NONE, NONE};
    for (uint32_t i = threadIdx.x; i < n_parts; i += blockDim.x)
        take_better(mine, parts[i]);
    return block_best(mine, scratch);
}

__device__ static inline bool is_number(float x)
{
    return (k_f32_bits(x) & 0x7f800000u) != 0x7f800000u;
}

__device__ static inline bool is_allowed(const struct k_sample &a, size_t row, uint32_t id)
{
    return !a.draw[row].is_masked ||
           (a.allowed[row * K_MASK_WORDS(a.n_vocab) + id / 32] >> (id % 32) & 1u);
}

__device__ static inline float logit(const struct k_sample &a, size_t row, uint32_t id)
{
    size_t at = row * a.n_vocab + id;
    return a.add ? a.logits[at] + a.add[at] : a.logits[at];
}

/* The logit of id with its bias, which is looked for in the row's part of the list. */
__device__ static inline double biased(const struct k_sample &a, size_t row, uint32_t id)
{
    double x = (double)logit(a, row, id);
    uint32_t from = a.draw[row].bias_at, end = from + a.draw[row].n_bias, to = end;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (a.bias[middle].id < id)
            from = middle + 1;
        else
            to = middle;
    }
    return from < end && a.bias[from].id == id ? x + (double)a.bias[from].value : x;
}

__global__ void sample_look(struct k_sample a, struct sample_best *parts)
{
    K_SHARED(struct sample_best, scratch);
    size_t row = blockIdx.y;
    uint32_t first = blockIdx.x * PART;
    struct sample_best mine = {0, NONE, NONE};
    for (uint32_t id = first + threadIdx.x; id < first + PART && id < a.n_vocab;
         id += THREADS) {
        struct sample_best one = {0, NONE, NONE};
        if (!is_number(logit(a, row, id)))
            one.broken = id;
        else if (is_allowed(a, row, id))
            one.logit = biased(a, row, id), one.id = id;
        take_better(mine, one);
    }
    mine = block_best(mine, scratch);
    if (threadIdx.x == 0)
        parts[row * gridDim.x + blockIdx.x] = mine;
}

/* ---- weights ------------------------------------------------------------------------------
 */

/* weight [n][n_vocab], of rows that are not greedy. */
__global__ void sample_weigh(struct k_sample a, const struct sample_best *parts, double *weight)
{
    K_SHARED(struct sample_best, scratch);
    size_t row = blockIdx.y;
    const struct k_draw &d = a.draw[row];
    if (d.temperature <= 0)
        return;
    struct sample_best best = row_best(parts + row * gridDim.x, gridDim.x, scratch);
    bool is_good = best.id != NONE && best.broken == NONE;
    double min_p = (double)d.min_p, least = k_sample_least(min_p);
    uint32_t first = blockIdx.x * PART;
    for (uint32_t id = first + threadIdx.x; id < first + PART && id < a.n_vocab;
         id += THREADS) {
        double p = 0, x = 0;
        if (is_good)
            x = (biased(a, row, id) - best.logit) / (double)d.temperature;
        if (is_good && x >= least && is_allowed(a, row, id))
            p = k_exp(x);
        weight[row * a.n_vocab + id] = p >= min_p ? p : 0;
    }
}

/* ---- their order --------------------------------------------------------------------------
 */

__device__ static inline bool is_sorted(const struct k_draw &d)
{
    return d.temperature > 0 && k_sample_is_cut(&d);
}

struct sample_tile {
    double weight[PART];
    uint32_t id[PART];
};

/* Whether entry i of a tile belongs behind entry j. */
__device__ static inline bool is_behind(const struct sample_tile *s, uint32_t i, uint32_t j)
{
    return s->weight[i] < s->weight[j] || (s->weight[i] == s->weight[j] && s->id[i] > s->id[j]);
}

__device__ static inline void exchange(struct sample_tile *s, uint32_t i, uint32_t j)
{
    double w = s->weight[i];
    uint32_t id = s->id[i];
    s->weight[i] = s->weight[j], s->id[i] = s->id[j];
    s->weight[j] = w, s->id[j] = id;
}

/* Parts of PART ids each, in themselves: a bitonic network. */
__global__ void sample_sort(struct k_sample a, double *weight, uint32_t *number)
{
    K_SHARED(struct sample_tile, s);
    size_t row = blockIdx.y, at = row * a.n_vocab + (size_t)blockIdx.x * PART;
    if (!is_sorted(a.draw[row]))
        return;
    uint32_t first = blockIdx.x * PART, n = a.n_vocab - first < PART ? a.n_vocab - first : PART;
    for (uint32_t i = threadIdx.x; i < PART; i += THREADS) {
        s->weight[i] = i < n ? weight[at + i] : -1; /* behind all there are */
        s->id[i] = first + i;
    }
    for (uint32_t size = 2; size <= PART; size *= 2)
        for (uint32_t apart = size / 2; apart; apart /= 2) {
            __syncthreads();
            for (uint32_t t = threadIdx.x; t < PART / 2; t += THREADS) {
                uint32_t i = t / apart * 2 * apart + t % apart, j = i + apart;
                bool is_down = (i & size) == 0;
                if (is_down ? is_behind(s, i, j) : is_behind(s, j, i))
                    exchange(s, i, j);
            }
        }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        weight[at + i] = s->weight[i], number[at + i] = s->id[i];
}

/* How many of n weights in order come before w: those above it, and equal ones with `equal`. */
__device__ static inline uint32_t n_before(const double *list, uint32_t n, double w, bool equal)
{
    uint32_t from = 0;
    while (from < n) {
        uint32_t middle = from + (n - from) / 2;
        if (list[middle] > w || (equal && list[middle] == w))
            from = middle + 1;
        else
            n = middle;
    }
    return from;
}

/* Two runs of `run` entries become one: an entry's place is that in its own run, and behind
 * those of the other that come before it. Ids of a left run are below those of the right one.
 */
__global__ void sample_merge(struct k_sample a, uint32_t run, const double *weight,
                             const uint32_t *number, double *to_weight, uint32_t *to_number)
{
    size_t row = blockIdx.y, base = row * a.n_vocab;
    if (!is_sorted(a.draw[row]))
        return;
    for (uint32_t i = blockIdx.x * PART + threadIdx.x, end = (blockIdx.x + 1) * PART;
         i < end && i < a.n_vocab; i += THREADS) {
        uint32_t mine = i / run * run, left = i / run / 2 * 2 * run;
        bool is_left = mine == left;
        uint32_t other = is_left ? left + run : left;
        uint32_t n = other < a.n_vocab ? a.n_vocab - other : 0;
        double w = weight[base + i];
        uint32_t before = n_before(weight + base + other, n < run ? n : run, w, !is_left);
        size_t to = base + left + (i - mine) + before;
        to_weight[to] = w, to_number[to] = number[base + i];
    }
}

/* ---- sums ---------------------------------------------------------------------------------
 */

/* By how many of its last places a sum moves whose last bit is 0, and 1; no more than FAR. */
struct sample_step {
    uint64_t even, odd;
};

#define PLACES ((uint64_t)1 << 53) /* of a sum: where it has that many its place changes */
#define FAR (2 * PLACES)

/* One addition of x places: to the nearest, of two the even one. */
__device__ static inline struct sample_step step_of(double x)
{
    if (x >= (double)PLACES)
        return {PLACES, PLACES};
    uint64_t whole = (uint64_t)x;
    double rest = x - (double)whole;
    if (rest == 0.5)
        return {whole + (whole & 1), whole + ((whole + 1) & 1)};
    whole += rest > 0.5;
    return {whole, whole};
}

__device__ static inline struct sample_step joined(const struct sample_step &f,
                                                   const struct sample_step &g)
{
    struct sample_step both = {f.even + (f.even & 1 ? g.odd : g.even),
                               f.odd + (f.odd & 1 ? g.even : g.odd)};
    both.even = both.even < FAR ? both.even : FAR;
    both.odd = both.odd < FAR ? both.odd : FAR;
    return both;
}

struct sample_sums {
    struct sample_step warp[SUM_THREADS / K_WARP];
    double sum; /* of the terms before `at` */
    uint32_t at;
    struct sample_best best[SUM_THREADS / K_WARP];
};

/* The steps of all threads before this one, joined. */
__device__ static inline struct sample_step steps_before(struct sample_sums *s,
                                                         struct sample_step mine)
{
    unsigned lane = threadIdx.x % K_WARP, warp = threadIdx.x / K_WARP;
    struct sample_step before = {0, 0};
    for (unsigned by = 1; by < K_WARP; by *= 2) {
        struct sample_step other = {__shfl_up_sync(K_ALL_LANES, mine.even, by),
                                    __shfl_up_sync(K_ALL_LANES, mine.odd, by)};
        if (lane >= by)
            mine = joined(other, mine);
    }
    struct sample_step beside = {__shfl_up_sync(K_ALL_LANES, mine.even, 1),
                                 __shfl_up_sync(K_ALL_LANES, mine.odd, 1)};
    if (lane == K_WARP - 1)
        s->warp[warp] = mine;
    __syncthreads();
    for (unsigned w = 0; w < warp; w++)
        before = joined(before, s->warp[w]);
    return lane ? joined(before, beside) : before;
}

/* Every term becomes the sum up to it, as if one thread had added them one after the other. In
 * rounds: the steps of all threads' terms are joined, at the place that the sum has now, which
 * tells each thread what it has to begin with; then it adds. The first thread whose terms take
 * the sum to where its place changes ends the round: behind it nothing is right. */
__device__ static inline void add_up(struct sample_sums *s, double *term, uint32_t n)
{
    if (threadIdx.x == 0)
        s->sum = 0, s->at = 0;
    __syncthreads();
    while (s->at < n) {
        uint64_t bits = k_f64_bits(s->sum);
        int exponent = (int)(bits >> 52), place = (exponent ? exponent : 1) - 1075;
        uint64_t places = (bits & 0xfffffffffffffu) | (uint64_t)(exponent > 0) << 52;
        uint32_t first = s->at + threadIdx.x * EACH;
        struct sample_step mine = {0, 0};
        double x[EACH];
        K_UNROLL
        for (uint32_t i = 0; i < EACH; i++) {
            x[i] = first + i < n ? term[first + i] : 0;
            mine = joined(mine, step_of(k_scale2(x[i], -place)));
        }
        struct sample_step before = steps_before(s, mine), end = joined(before, mine);
        uint64_t from = places + (places & 1 ? before.odd : before.even);
        uint64_t to = places + (places & 1 ? end.odd : end.even);
        __syncthreads(); /* all have read s->sum and s->at */
        if (from < PLACES) {
            double sum = k_scale2((double)from, place);
            K_UNROLL
            for (uint32_t i = 0; i < EACH; i++) {
                sum += x[i];
                if (first + i < n)
                    term[first + i] = sum;
            }
            if (to >= PLACES || threadIdx.x == SUM_THREADS - 1)
                s->sum = sum, s->at = first + EACH;
        }
        __syncthreads();
    }
}

/* The first of n ascending sums above x, or, with `equal`, that reaches it; n - 1 at most. */
__device__ static inline uint32_t find_sum(const double *sum, uint32_t n, double x, bool equal)
{
    uint32_t from = 0, to = n - 1;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (sum[middle] > x || (equal && sum[middle] == x))
            to = middle;
        else
            from = middle + 1;
    }
    return from;
}

/* The place in its row of the id that is drawn, and the sum it is drawn from; one thread. */
__device__ static inline uint32_t find_drawn(const struct k_draw &d, const double *sum,
                                             uint32_t n, double *whole)
{
    if (k_sample_is_cut(&d))
        n = find_sum(sum, n, (double)d.top_p * sum[n - 1], true) + 1;
    *whole = sum[n - 1];
    return find_sum(sum, n, k_philox_uniform(d.seed, d.position, 0) * *whole, false);
}

/* A block a row. weight: by id, of rows that are not cut; sorted, number: of those that are. */
__global__ void sample_draw(struct k_sample a, const struct sample_best *parts,
                            uint32_t n_parts, double *weight, double *sorted,
                            const uint32_t *number)
{
    K_SHARED(struct sample_sums, s);
    size_t row = blockIdx.x, base = row * a.n_vocab;
    const struct k_draw &d = a.draw[row];
    struct sample_best best = row_best(parts + row * n_parts, n_parts, s->best);
    struct k_drawn out = {K_DRAWN, best.id, 0, 0};
    if (best.broken != NONE)
        out.state = K_DRAWN_BROKEN, out.id = best.broken;
    else if (best.id == NONE)
        out.state = K_DRAWN_NOTHING, out.id = 0;
    if (out.state == K_DRAWN && d.temperature > 0) {
        bool is_cut = k_sample_is_cut(&d);
        double *sum = (is_cut ? sorted : weight) + base;
        uint32_t n = d.top_k && d.top_k < a.n_vocab ? d.top_k : a.n_vocab;
        add_up(s, sum, n);
        if (threadIdx.x == 0) {
            out.id = find_drawn(d, sum, n, &out.whole);
            out.id = is_cut ? number[base + out.id] : out.id;
        }
    }
    if (threadIdx.x == 0) {
        out.logit = out.state == K_DRAWN_NOTHING ? 0 : logit(a, row, out.id);
        a.drawn[row] = out;
    }
}

/* ---- the op -------------------------------------------------------------------------------
 */

/* Whether weight and number, both [2][K_SAMPLE_ROWS][n_vocab], end up in their second half. */
static bool sort_rows(struct kernels *k, const struct k_sample *a, dim3 grid, double *weight,
                      uint32_t *number)
{
    size_t half = (size_t)K_SAMPLE_ROWS * a->n_vocab;
    bool second = false;
    K_LAUNCH(sample_sort, grid, dim3(THREADS), sizeof(struct sample_tile), k, *a, weight,
             number);
    for (uint32_t run = PART; run < a->n_vocab; run *= 2, second = !second) {
        size_t from = second ? half : 0, to = second ? 0 : half;
        K_LAUNCH(sample_merge, grid, dim3(THREADS), 0, k, *a, run, weight + from, number + from,
                 weight + to, number + to);
    }
    return second;
}

/* Scratch is for as many rows as there may be: when it moves, all records are lost. */
void k_sample_cuda(struct kernels *k, const struct k_sample *a)
{
    size_t half = (size_t)K_SAMPLE_ROWS * a->n_vocab, best = sizeof(struct sample_best);
    uint32_t n_parts = k_div_up(a->n_vocab, PART);
    bool any = false, cut = false;
    double *weight = NULL, *sorted = NULL;
    uint32_t *number = NULL;
    for (uint32_t i = 0; i < a->n; i++) {
        any |= a->draw[i].temperature > 0;
        cut |= a->draw[i].temperature > 0 && k_sample_is_cut(&a->draw[i]);
    }
    if (!a->n)
        return;
    struct sample_best *parts = (struct sample_best *)k_cuda_scratch(
        k, K_CUDA_SAMPLE_BEST, K_SAMPLE_ROWS * n_parts * best);
    if (any) {
        weight = (double *)k_cuda_scratch(k, K_CUDA_SAMPLE_WEIGHT, 2 * half * sizeof(double));
        number =
            (uint32_t *)k_cuda_scratch(k, K_CUDA_SAMPLE_NUMBER, 2 * half * sizeof(uint32_t));
    }
    if (!parts || (any && (!weight || !number)))
        return;
    dim3 grid(n_parts, a->n);
    K_LAUNCH(sample_look, grid, dim3(THREADS), THREADS / K_WARP * best, k, *a, parts);
    if (any)
        K_LAUNCH(sample_weigh, grid, dim3(THREADS), THREADS / K_WARP * best, k, *a, parts,
                 weight);
    sorted = weight;
    if (cut && sort_rows(k, a, grid, weight, number))
        sorted += half, number += half;
    K_LAUNCH(sample_draw, dim3(a->n), dim3(SUM_THREADS), sizeof(struct sample_sums), k, *a,
             parts, n_parts, weight, sorted, number);
}
