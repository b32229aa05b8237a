/* Products: weight rows in blocks, input rows in tiles, sums over the whole inner dimension.
 *
 * A block of weight rows is expanded once and meets all input rows; inputs are taken in bands
 * that stay in the second-level cache while the block's tiles pass over them. */
#include <assert.h>

#include "kernels/isa.h"

#define BAND_BYTES (1u << 18) /* inputs that are reused from cache */

size_t k_block_rows(size_t n)
{
    return n <= 16 ? 8 : 64;
}

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Packed means bf16 rows, or a copy of the codes (cpu.c). */
static bool has_bf16_rows(const struct k_weight *w)
{
    return w->type == K_W_BF16 || (w->packed && w->packed != w->data);
}

size_t k_block_scratch(const struct k_weight *w, size_t n_out)
{
    return w->type == K_W_F32 || has_bf16_rows(w) ? 0 : n_out * w->n_in * 2;
}

static const uint8_t *weight_rows(const struct k_isa *isa, const struct k_weight *w,
                                  size_t first, size_t last, void *scratch)
{
    size_t row_bytes = (size_t)w->n_in * (w->type == K_W_F32 ? 4 : 2);
    if (w->type == K_W_F32 || has_bf16_rows(w))
        return (const uint8_t *)(w->packed ? w->packed : w->data) + first * row_bytes;
    for (size_t o = first; o < last; o++)
        isa->expand(w, o, (uint16_t *)scratch + (o - first) * w->n_in);
    return scratch;
}

/* All of a block from its codes: where the rows are one tile, none is expanded twice. */
static bool product_codes(const struct k_isa *isa, const struct k_rows *x,
                          const struct k_weight *w, size_t first, size_t last, float *y,
                          size_t ldy)
{
    if (!isa->dot_codes || !x->bf16 || x->n > isa->tile_m || w->type == K_W_F32 ||
        has_bf16_rows(w))
        return false;
    for (size_t o = first; o < last; o += K_TILE_N)
        if (!isa->dot_codes(x->row, x->n, w, o, min(last - o, K_TILE_N), y + (o - first), ldy))
            return false;
    return true;
}

void k_product_block(const struct k_isa *isa, const struct k_rows *x, const struct k_weight *w,
                     size_t first, size_t last, void *scratch, float *y, size_t ldy)
{
    if (product_codes(isa, x, w, first, last, y, ldy))
        return;
    size_t row_bytes = (size_t)w->n_in * (w->type == K_W_F32 ? 4 : 2);
    const uint8_t *rows = weight_rows(isa, w, first, last, scratch);
    k_dot *dot = w->type == K_W_F32 ? isa->dot_f32
                 : x->bf16          ? isa->dot_bf16
                                    : isa->dot_f32_bf16;
    size_t band = BAND_BYTES / k_rows_part_bytes(isa, x, w->n_in) + isa->tile_m;
    assert(!x->bf16 || w->type != K_W_F32);
    for (size_t b = 0; b < x->n; b += band)
        for (size_t o = first; o < last; o += K_TILE_N) {
            const void *tile[K_TILE_N];
            size_t n = min(last - o, K_TILE_N), band_end = min(b + band, x->n);
            for (size_t j = 0; j < n; j++)
                tile[j] = rows + (o - first + j) * row_bytes;
            for (size_t i = b; i < band_end; i += isa->tile_m)
                dot(x->row + i, min(band_end - i, isa->tile_m), tile, n, w->n_in,
                    y + i * ldy + (o - first), ldy);
        }
}

/* ---- inputs -------------------------------------------------------------------------------
 */

struct prepare_job {
    const struct k_isa *isa;
    const float *x;
    size_t x_stride, width, n_parts;
    enum k_round round;
    bool bf16;
    uint8_t *values;
    size_t stride; /* bytes of a row of values */
    const void **row;
};

/* One part of a row by to_rows. */
static void prepare_part(const struct prepare_job *job, const float *x, uint8_t *y)
{
    if (job->round != K_FP8_32) {
        job->isa->to_rows(x, job->width, y);
        return;
    }
    for (size_t j = 0; j < job->width; j += 32) {
        float grid[32];
        k_quant_activation(x + j, 32, grid);
        job->isa->to_rows(grid, 32, y + j * job->isa->row_bytes);
    }
}

static void prepare_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct prepare_job *job = arg;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        const float *x = job->x + i * job->x_stride;
        uint8_t *values = job->values + i * job->stride;
        size_t n = job->width * job->n_parts, part = job->stride / job->n_parts;
        for (size_t p = 0; p < job->n_parts && job->bf16; p++)
            prepare_part(job, x + p * job->width, values + p * part);
        if (!job->bf16 && job->round == K_FP8_32)
            k_quant_activation(x, (uint32_t)n, (float *)(void *)values);
        else if (!job->bf16 && job->round == K_BF16)
            job->isa->round_bf16(x, n, (float *)(void *)values);
        job->row[i] = job->round == K_EXACT ? (const void *)x : (const void *)values;
    }
}

size_t k_rows_part_bytes(const struct k_isa *isa, const struct k_rows *x, size_t width)
{
    return x->bf16 ? k_row_width(width) * isa->row_bytes : width * sizeof(float);
}

bool k_rows_prepare(struct kernels *k, const float *x, size_t n, size_t x_stride, size_t width,
                    size_t n_parts, enum k_round round, bool want_f32, enum k_slot slot_values,
                    enum k_slot slot_rows, struct k_rows *out)
{
    const struct k_isa *isa = k->ctx->isa;
    struct prepare_job job = {.isa = isa,
                              .x = x,
                              .x_stride = x_stride,
                              .width = width,
                              .n_parts = n_parts,
                              .round = round};
    job.bf16 = round != K_EXACT && isa->dot_bf16 && !want_f32;
    job.row = k_scratch(k, slot_rows, n * sizeof *job.row);
    *out = (struct k_rows){(const void *const *)job.row, n, job.bf16};
    job.stride = n_parts * k_rows_part_bytes(isa, out, width);
    if (round != K_EXACT)
        job.values = k_scratch(k, slot_values, n * job.stride);
    if (k_failed(k))
        return false;
    k_run(k, prepare_rows, &job, n,
          round == K_EXACT ? 0 : n * n_parts * width * (round == K_FP8_32 ? 8 : 1) / 4);
    return true;
}

/* ---- the op -------------------------------------------------------------------------------
 */

struct linear_job {
    const struct k_isa *isa;
    const struct k_linear *a;
    struct k_rows x;       /* rows of all groups' inputs */
    size_t block;          /* weight rows of one item */
    size_t blocks_a_group; /* items of one group */
    uint8_t *scratch;
    size_t stride;
};

/* Pointers to group g's slice of the input rows, behind the weight scratch. */
static struct k_rows slice(const struct linear_job *job, size_t g, uint8_t *scratch)
{
    struct k_rows x = job->x;
    if (g == 0)
        return x;
    const void **row = (const void **)(void *)scratch;
    size_t bytes = g * k_rows_part_bytes(job->isa, &x, job->a->w->n_in);
    for (size_t i = 0; i < x.n; i++)
        row[i] = (const uint8_t *)x.row[i] + bytes;
    x.row = (const void *const *)row;
    return x;
}

static void linear_blocks(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct linear_job *job = arg;
    const struct k_linear *a = job->a;
    size_t group_rows = a->w->n_out / k_groups(a->w), ldy = k_stride(a->y_stride, a->w->n_out);
    uint8_t *pointers = job->scratch + thread * job->stride;
    uint8_t *weights =
        pointers + (k_groups(a->w) > 1 ? (a->n * sizeof(void *) + 63) / 64 * 64 : 0);
    struct k_rows x = {0};
    for (size_t item = first; item < last; item++) {
        size_t g = item / job->blocks_a_group;
        size_t from = g * group_rows + item % job->blocks_a_group * job->block;
        size_t to = min(from + job->block, (g + 1) * group_rows);
        if (item == first || item % job->blocks_a_group == 0)
            x = slice(job, g, pointers);
        k_product_block(job->isa, &x, a->w, from, to, weights, a->y + from, ldy);
        for (size_t i = 0; a->out == K_BF16 && i < a->n; i++)
            job->isa->round_bf16(a->y + i * ldy + from, to - from, a->y + i * ldy + from);
    }
}

void k_linear_cpu(struct kernels *k, const struct k_linear *a)
{
    if (k_failed(k) || !a->n)
        return;
    uint32_t groups = k_groups(a->w);
    size_t width = (size_t)groups * a->w->n_in, group_rows = a->w->n_out / groups;
    struct linear_job job = {.isa = k->ctx->isa, .a = a, .block = k_block_rows(a->n)};
    assert(a->w->n_out % groups == 0 && (a->in != K_FP8_32 || width % 32 == 0));
    if (!k_rows_prepare(k, a->x, a->n, k_stride(a->x_stride, width), a->w->n_in, groups, a->in,
                        a->w->type == K_W_F32, K_SLOT_LINEAR_X, K_SLOT_LINEAR_ROWS, &job.x))
        return;
    job.blocks_a_group = (group_rows + job.block - 1) / job.block;
    job.scratch = k_scratch_threads(k, K_SLOT_LINEAR_THREAD,
                                    k_block_scratch(a->w, job.block) +
                                        (groups > 1 ? a->n * sizeof(void *) + 64 : 0),
                                    &job.stride);
    if (job.scratch)
        k_run(k, linear_blocks, &job, groups * job.blocks_a_group,
              (a->n + 2) * a->w->n_out * a->w->n_in / 16);
}
