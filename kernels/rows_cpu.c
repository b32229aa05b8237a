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

/* One item: up to tile_m tokens, so that fn is read once for all of them. */
static void mix_tiles(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct rows_job *job = arg;
    const struct k_hc_mix *a = job->args;
    (void)thread;
    size_t width = (size_t)a->hc * a->d, n_fn = (2 + a->hc) * a->hc, tile = job->isa->tile_m;
    for (size_t t = first; t < last; t++) {
        float y[K_TILE_M_MAX * (2 + K_MAX_HC) * K_MAX_HC];
        const void *x[K_TILE_M_MAX];
        size_t i0 = t * tile, m = a->n - i0 < tile ? a->n - i0 : tile;
        for (size_t i = 0; i < m; i++)
            x[i] = a->x + (i0 + i) * width;
        k_product_block(job->isa, &(struct k_rows){x, m, false}, a->fn, 0, n_fn, NULL, y, n_fn);
        for (size_t i = 0; i < m; i++) {
            double mixes[(2 + K_MAX_HC) * K_MAX_HC];
            float square, rho;
            job->isa->dot_f32(&x[i], 1, &x[i], 1, width, &square, 1);
            rho = 1 / sqrtf(square / (float)width + a->norm_eps);
            for (size_t j = 0; j < n_fn; j++)
                mixes[j] = (double)(y[i * n_fn + j] * rho);
            k_hc_coefficients(mixes, a, a->pre + (i0 + i) * a->hc, a->post + (i0 + i) * a->hc,
                              a->comb + (i0 + i) * a->hc * a->hc);
        }
    }
}

void k_hc_mix_cpu(struct kernels *k, const struct k_hc_mix *a)
{
    struct rows_job job = {k->ctx->isa, a};
    size_t tile = k->ctx->isa->tile_m;
    assert(a->fn->type == K_W_F32 && a->fn->n_in == a->hc * a->d);
    assert(a->fn->n_out == (2 + a->hc) * a->hc && a->hc <= K_MAX_HC);
    if (!k_failed(k))
        k_run(k, mix_tiles, &job, (a->n + tile - 1) / tile,
              a->n * (2500 + a->fn->n_out * (size_t)a->fn->n_in / 16));
}
