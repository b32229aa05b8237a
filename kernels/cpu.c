#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/isa.h"

/* Best first; the first two are both "avx512bf16". */
static const struct k_isa *const isas[] = {&k_isa_fma_avx512bf16, &k_isa_avx512bf16,
                                           &k_isa_avx512, &k_isa_avx2, &k_isa_portable};
#define N_ISAS (sizeof isas / sizeof *isas)

static bool machine_has(const struct k_isa *isa)
{
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
    if (isa == &k_isa_avx2)
        return avx2;
    if (isa == &k_isa_avx512)
        return avx512;
    if (isa == &k_isa_avx512bf16 || isa == &k_isa_fma_avx512bf16)
        return avx512 && __builtin_cpu_supports("avx512bf16") &&
               __builtin_cpu_supports("avx512vnni");
    return true;
}

#define TRIAL_ROW 1024

/* The shortest of some tiles, each well below a microsecond. */
static uint64_t trial_ns(const struct k_isa *isa)
{
    static const _Alignas(64) float zeros[TRIAL_ROW];
    const void *x[K_TILE_M_MAX], *w[K_TILE_N];
    float y[K_TILE_M_MAX * K_TILE_N];
    uint64_t best = UINT64_MAX;
    for (size_t i = 0; i < K_TILE_M_MAX; i++)
        x[i] = zeros;
    for (size_t j = 0; j < K_TILE_N; j++)
        w[j] = zeros;
    for (int i = 0; i < 20; i++) {
        uint64_t start = clock_mono_ns(clock_real());
        isa->dot_bf16(x, isa->tile_m, w, K_TILE_N, TRIAL_ROW, y, K_TILE_N);
        uint64_t took = clock_mono_ns(clock_real()) - start;
        best = took < best ? took : best;
    }
    return best;
}

/* Two ways to the same bits: which is faster differs between makers. */
static const struct k_isa *faster_avx512bf16(void)
{
    return trial_ns(&k_isa_avx512bf16) < trial_ns(&k_isa_fma_avx512bf16)
               ? &k_isa_avx512bf16
               : &k_isa_fma_avx512bf16;
}

static bool is_called(const struct k_isa *isa, const char *name)
{
    return !name || !strcmp(name, isa->name) ||
           (isa == &k_isa_fma_avx512bf16 && !strcmp(name, "avx512bf16"));
}

static enum err pick(const char *name, const struct k_isa **out, struct error *e)
{
    for (size_t i = 0; i < N_ISAS; i++) {
        if (!is_called(isas[i], name))
            continue;
        if (machine_has(isas[i])) {
            bool is_class = !name || strcmp(name, isas[i]->name) != 0;
            *out = isas[i] == &k_isa_fma_avx512bf16 && is_class ? faster_avx512bf16() : isas[i];
            return OK;
        }
        if (name)
            return err_set(e, ERR_UNSUPPORTED, "instruction set %s: not on this machine", name);
    }
    return err_set(e, ERR_INVAL,
                   "instruction set \"%s\": want avx512bf16, avx512, avx2 or portable", name);
}

/* A copy of codes and scales: what was mapped from a file is resident then. */
static enum err copy_codes(struct k_weight *w, struct error *e)
{
    size_t data = 0, scale = 0;
    if (!k_weight_bytes(w, &data, &scale))
        return err_set(e, ERR_INVAL, "weight of %u x %u", w->n_out, w->n_in);
    size_t at = (data + 63) / 64 * 64;
    uint8_t *copy = k_block(at + scale);
    if (!copy)
        return err_set(e, ERR_NOMEM, "weight of %zu bytes", data);
    memcpy(copy, w->data, data);
    memcpy(copy + at, w->scale, scale);
    w->packed = copy;
    w->data = copy;
    w->scale = copy + at;
    return OK;
}

/* Quantised weights stay codes where products take them as they are, as a token then reads half
 * or a quarter of the bytes; elsewhere they become bf16 rows, without expansion per call. */
static enum err cpu_pack(struct kernels *k, struct k_weight *w, struct error *e)
{
    if (w->packed || w->type == K_W_F32 || w->type == K_W_BF16)
        return OK;
    if (k->ctx->isa->dot_codes)
        return copy_codes(w, e);
    size_t bytes = (size_t)w->n_out * w->n_in * 2;
    uint16_t *rows = k_block(bytes);
    if (!rows)
        return err_set(e, ERR_NOMEM, "packed weight of %zu bytes", bytes);
    for (size_t o = 0; o < w->n_out; o++)
        k->ctx->isa->expand(w, o, rows + o * w->n_in);
    w->packed = rows;
    return OK;
}

enum err kernels_cpu(struct kernels *k, const char *isa, struct pool *pool, struct error *e)
{
    const struct k_isa *chosen = &k_isa_portable;
    enum err rc = pick(isa, &chosen, e);
    if (rc)
        return rc;
    if ((rc = k_host_init(k, chosen->numerics, pool, e)))
        return rc;
    k->ctx->isa = chosen;
    k->pack = cpu_pack;
    k->embed = k_embed_ref;
    k->hc_mix = k_hc_mix_cpu;
    k->hc_collapse = k_hc_collapse_cpu;
    k->hc_update = k_hc_update_cpu;
    k->rmsnorm = k_rmsnorm_cpu;
    k->linear = k_linear_cpu;
    k->rope_table = k_rope_table_ref;
    k->rope = k_rope_ref;
    k->encode = k_encode_ref;
    k->decode = k_decode_cpu;
    k->fake_quant = k_fake_quant_ref;
    k->compress = k_compress_ref;
    k->attention = k_attention_cpu;
    k->index = k_index_cpu;
    k->ring = k_ring_ref;
    k->route = k_route_ref;
    k->scale = k_scale_ref;
    k->moe = k_moe_cpu;
    k->moe_part = k_moe_part_cpu;
    k->moe_sum = k_moe_sum_cpu;
    k->engram_rows = k_engram_rows_ref;
    k->engram_put = k_engram_put_ref;
    k->engram_gate = k_engram_gate_cpu;
    k->sample = k_sample_ref;
    return OK;
}
