/* The ops of the CPU backend whose rows are independent: one primitive a row. */
#include <assert.h>
#include <math.h>

#include "kernels/hc_coefficients.h"
#include "kernels/isa.h"

struct rows_job {
    const struct k_isa *isa;
    const void *args;
};

#define ROW_OP(op, primitive, values)                                                          \
    static void op##_rows(void *arg, size_t first, size_t last, uint32_t thread)               \
    {                                                                                          \
        const struct rows_job *job = arg;                                                      \
        (void)thread;                                                                          \
        for (size_t i = first; i < last; i++)                                                  \
            job->isa->primitive(job->args, i);                                                 \
    }                                                                                          \
    void k_##op##_cpu(struct kernels *k, const struct k_##op *a)                               \
    {                                                                                          \
        struct rows_job job = {k->ctx->isa, a};                                                \
        if (!k_failed(k))                                                                      \
            k_run(k, op##_rows, &job, a->n, a->n *(values) / 4);                               \
    }

ROW_OP(rmsnorm, rmsnorm, a->d)
ROW_OP(hc_collapse, collapse, (size_t)a->hc * a->d)
ROW_OP(hc_update, update, (size_t)a->hc * a->hc * a->d)

static void gate_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct rows_job *job = arg;
    const struct k_engram_gate *a = job->args;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        if (!a->dead || !a->dead[i])
            job->isa->engram_gate(a, i);
        else if (a->gate)
            memset(a->gate + i * a->hc, 0, a->hc * sizeof *a->gate);
    }
}

void k_engram_gate_cpu(struct kernels *k, const struct k_engram_gate *a)
{
    struct rows_job job = {k->ctx->isa, a};
    if (!k_failed(k))
        k_run(k, gate_rows, &job, a->n, a->n * a->hc * a->d);
}

static void decode_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct rows_job *job = arg;
    const struct k_decode *a = job->args;
    (void)thread;
    size_t bytes = k_row_bytes(a->format, a->d);
    for (size_t i = first; i < last; i++)
        job->isa->decode(a->format, (const uint8_t *)a->rows + i * bytes, a->d,
                         a->x + i * a->d);
}

void k_decode_cpu(struct kernels *k, const struct k_decode *a)
{
    struct rows_job job = {k->ctx->isa, a};
    if (!k_failed(k))
        k_run(k, decode_rows, &job, a->n, a->n * a->d / 2);
}

/* ---- hc_mix: products, then the coefficients of each token ---------------------------------
 */

struct mix_job {
    const struct k_isa *isa;
    const struct k_hc_mix *a;
    size_t n_fn,
        n_blocks; /* outputs; blocks of them, so that one token can use several threads */
    float *y;     /* [n][n_fn] */
};

/* One item: a block of outputs for up to tile_m tokens, so that fn is read once for all of
 * them. */
static void mix_tiles(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct mix_job *job = arg;
    const struct k_hc_mix *a = job->a;
    (void)thread;
    size_t width = (size_t)a->hc * a->d, tile = job->isa->tile_m;
    for (size_t item = first; item < last; item++) {
        size_t i0 = item / job->n_blocks * tile, m = a->n - i0 < tile ? a->n - i0 : tile;
        size_t block = item % job->n_blocks;
        size_t o = job->n_fn * block / job->n_blocks;
        size_t end = job->n_fn * (block + 1) / job->n_blocks;
        const void *x[K_TILE_M_MAX];
        for (size_t i = 0; i < m; i++)
            x[i] = a->x + (i0 + i) * width;
        k_product_block(job->isa, &(struct k_rows){x, m, false}, a->fn, o, end, NULL,
                        job->y + i0 * job->n_fn + o, job->n_fn);
    }
}

static void mix_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct mix_job *job = arg;
    const struct k_hc_mix *a = job->a;
    (void)thread;
    size_t width = (size_t)a->hc * a->d;
    for (size_t i = first; i < last; i++) {
        const void *x = a->x + i * width;
        double mixes[(2 + K_MAX_HC) * K_MAX_HC];
        float square, rho;
        job->isa->dot_f32(&x, 1, &x, 1, width, &square, 1);
        rho = 1 / sqrtf(square / (float)width + a->norm_eps);
        for (size_t j = 0; j < job->n_fn; j++)
            mixes[j] = (double)(job->y[i * job->n_fn + j] * rho);
        k_hc_coefficients(mixes, a, a->pre + i * a->hc, a->post + i * a->hc,
                          a->comb + i * a->hc * a->hc);
    }
}

void k_hc_mix_cpu(struct kernels *k, const struct k_hc_mix *a)
{
    struct mix_job job = {.isa = k->ctx->isa, .a = a, .n_fn = (2 + a->hc) * (size_t)a->hc};
    size_t tiles = (a->n + job.isa->tile_m - 1) / job.isa->tile_m;
    size_t values = job.n_fn * a->fn->n_in;
    assert(a->fn->type == K_W_F32 && a->fn->n_in == a->hc * a->d);
    assert(a->fn->n_out == job.n_fn && a->hc <= K_MAX_HC);
    if (k_failed(k) || !a->n)
        return;
    job.n_blocks = tiles < k_threads(k) ? (job.n_fn + K_TILE_N - 1) / K_TILE_N : 1;
    if (!(job.y = k_scratch(k, K_SLOT_OP, a->n * job.n_fn * sizeof *job.y)))
        return;
    /* Few tokens: what counts is reading fn. */
    k_run(k, mix_tiles, &job, tiles * job.n_blocks, values / 5 + a->n * values / 16);
    k_run(k, mix_rows, &job, a->n, a->n * 2500);
}
