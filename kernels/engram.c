#include "kernels/engram.h"

#include <assert.h>
#include <math.h>

#include "kernels/host.h"
#include "kernels/math.h"

static void gather_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_engram_rows *a = arg;
    (void)thread;
    for (size_t i = first * a->n_id; i < last * a->n_id; i++) {
        const uint8_t *codes = a->codes + a->ids[i] * a->d;
        const uint8_t *scales = a->scales + a->ids[i] * (a->d / 32);
        for (uint32_t j = 0; j < a->d; j++)
            a->out[i * a->d + j] = k_e4m3_to_f32(codes[j]) * k_e8m0_to_f32(scales[j / 32]);
    }
}

void k_engram_rows_ref(struct kernels *k, const struct k_engram_rows *a)
{
    if (k_failed(k))
        return;
    struct k_engram_rows args = *a;
    assert(a->d % 32 == 0);
    k_run(k, gather_rows, &args, a->n, a->n * a->n_id * a->d * 2);
}

static void put_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_engram_put *a = arg;
    size_t d = a->d, n_scales = d / 32;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        memcpy(a->codes + a->at[i] * d, a->from_codes + i * d, d);
        memcpy(a->scales + a->at[i] * n_scales, a->from_scales + i * n_scales, n_scales);
    }
}

void k_engram_put_ref(struct kernels *k, const struct k_engram_put *a)
{
    if (k_failed(k))
        return;
    struct k_engram_put args = *a;
    assert(a->d % 32 == 0);
    k_run(k, put_rows, &args, a->n, a->n * a->d);
}

static double gate_of(double dot)
{
    double size = fabs(dot);
    double root = sqrt(size < 1e-6 ? 1e-6 : size); /* NaN stays NaN */
    return k_sigmoid(dot < 0 ? -root : root);
}

static void gate_row(const struct k_engram_gate *a, size_t i)
{
    size_t d = a->d;
    const float *value = a->kv + (i * (a->hc + 1) + a->hc) * d;
    for (uint32_t c = 0; c < a->hc; c++) {
        float *x = a->x + (i * a->hc + c) * d;
        const float *key = a->kv + (i * (a->hc + 1) + c) * d;
        double dot = 0;
        for (size_t j = 0; j < d; j++)
            dot += (double)x[j] * ((double)a->qw[c * d + j] * (double)a->kw[c * d + j]) *
                   (double)key[j];
        dot /= sqrt(k_dot_ref(x, x, d) / (double)d + (double)a->eps);
        dot /= sqrt(k_dot_ref(key, key, d) / (double)d + (double)a->eps);
        double gate = gate_of(dot / sqrt((double)d));
        for (size_t j = 0; j < d; j++)
            x[j] = k_round_to((float)((double)x[j] + gate * (double)value[j]), a->round);
        if (a->gate)
            a->gate[i * a->hc + c] = (float)gate;
    }
}

static void gate_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_engram_gate *a = arg;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        if (!a->dead || !a->dead[i])
            gate_row(a, i);
        else if (a->gate)
            memset(a->gate + i * a->hc, 0, a->hc * sizeof *a->gate);
    }
}

void k_engram_gate_ref(struct kernels *k, const struct k_engram_gate *a)
{
    if (k_failed(k))
        return;
    struct k_engram_gate args = *a;
    k_run(k, gate_rows, &args, a->n, a->n * a->hc * a->d * 4);
}
