#include "kernels/quant.h"

#include <assert.h>

#include "kernels/host.h"
#include "kernels/quant_groups.h"

void k_encode_row(enum k_format format, const float *x, uint32_t d, uint8_t *row)
{
    uint32_t size = k_group_size(format), bytes = k_group_bytes(format);
    assert(k_row_bytes(format, d));
    if (!size) {
        memcpy(row, x, (size_t)d * 4);
        return;
    }
    for (uint32_t g = 0; g < d / size; g++)
        row[d / size * bytes + g] = k_encode_group(format, x + g * size, row + g * bytes);
}

void k_decode_row(enum k_format format, const uint8_t *row, uint32_t d, float *x)
{
    uint32_t size = k_group_size(format), bytes = k_group_bytes(format);
    if (!size) {
        memcpy(x, row, (size_t)d * 4);
        return;
    }
    for (uint32_t g = 0; g < d / size; g++)
        k_decode_group(format, row + g * bytes, row[d / size * bytes + g], x + g * size);
}

/* y may be x: a group is read whole before it is written. */
static void fake_group(enum k_format format, const float *x, uint32_t n, float *y)
{
    uint8_t row[64];
    k_encode_row(format, x, n, row);
    k_decode_row(format, row, n, y);
}

void k_quant_activation(const float *x, uint32_t d, float *y)
{
    assert(d % 32 == 0);
    for (uint32_t i = 0; i < d; i++)
        y[i] = k_bf16(x[i]);
    for (uint32_t i = 0; i < d; i += 32)
        fake_group(K_ROW_FP8_32, y + i, 32, y + i);
}

static void encode_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_encode *a = arg;
    (void)thread;
    size_t bytes = k_row_bytes(a->format, a->d);
    for (size_t i = first; i < last; i++)
        k_encode_row(a->format, a->x + i * k_stride(a->x_stride, a->d), a->d,
                     (uint8_t *)a->rows + i * bytes);
}

void k_encode_ref(struct kernels *k, const struct k_encode *a)
{
    if (a->runs) {
        k_encode_runs(k, a, k_encode_ref);
        return;
    }
    if (k_failed(k))
        return;
    struct k_encode args = *a;
    k_run(k, encode_rows, &args, a->n, a->n * a->d * 5);
}

static void decode_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_decode *a = arg;
    (void)thread;
    size_t bytes = k_row_bytes(a->format, a->d);
    for (size_t i = first; i < last; i++)
        k_decode_row(a->format, (const uint8_t *)a->rows + i * bytes, a->d, a->x + i * a->d);
}

void k_decode_ref(struct kernels *k, const struct k_decode *a)
{
    if (k_failed(k))
        return;
    struct k_decode args = *a;
    k_run(k, decode_rows, &args, a->n, a->n * a->d * 3);
}

static void fake_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_fake_quant *a = arg;
    (void)thread;
    size_t from = first * a->d, end = last * a->d;
    uint32_t group = a->format == K_ROW_FP4_16 ? 16 : 32;
    if (a->format == K_ROW_F32)
        memmove(a->y + from, a->x + from, (end - from) * sizeof(float));
    else
        for (size_t i = from; i < end; i += group)
            fake_group(a->format, a->x + i, group, a->y + i);
}

void k_fake_quant_ref(struct kernels *k, const struct k_fake_quant *a)
{
    if (k_failed(k))
        return;
    struct k_fake_quant args = *a;
    assert(k_row_bytes(a->format, a->d));
    k_run(k, fake_rows, &args, a->n, a->n * a->d * 8);
}
