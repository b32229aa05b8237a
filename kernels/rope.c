#include "kernels/rope.h"

#include <math.h>

#include "kernels/host.h"
#include "kernels/math.h"

#define PI 3.14159265358979323846

/* Dimension index at which a wavelength makes t turns over the original context. */
static double correction(const struct k_rope_config *c, double t)
{
    double turns = c->original_max_position / (2 * PI * t);
    return c->rope_dim * k_log(turns) / (2 * k_log(c->base));
}

void k_rope_inv_freq(const struct k_rope_config *c, float *inv_freq)
{
    double low = 0, high = 0, last = c->rope_dim - 1.0;
    if (c->yarn) {
        low = fmin(fmax(floor(correction(c, c->beta_fast)), 0), last);
        high = fmin(fmax(ceil(correction(c, c->beta_slow)), 0), last);
        high = fmax(high, low + 1e-3);
    }
    for (uint32_t i = 0; i < c->rope_dim / 2; i++) {
        /* The reference takes the f32 reciprocal of an f32 power. */
        float exponent = (float)(2 * i) / (float)c->rope_dim;
        float theta = 1.0f / (float)k_pow(c->base, (double)exponent);
        if (c->yarn) {
            float ramp = ((float)i - (float)low) / (float)(high - low);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            theta = theta / (float)c->factor * ramp + theta * (1 - ramp);
        }
        inv_freq[i] = theta;
    }
}

static void table_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_rope_table *a = arg;
    (void)thread;
    for (size_t i = first; i < last; i++)
        for (uint32_t j = 0; j < a->half; j++) {
            double s, c;
            k_sincos((double)((float)a->pos[i] * a->inv_freq[j]), &s, &c);
            a->cos[i * a->half + j] = (float)c;
            a->sin[i * a->half + j] = (float)s;
        }
}

void k_rope_table_ref(struct kernels *k, const struct k_rope_table *a)
{
    if (k_failed(k))
        return;
    struct k_rope_table args = *a;
    k_run(k, table_rows, &args, a->n, a->n * a->half * 60);
}

static void rotate_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_rope *a = arg;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        float *row = a->x + i * k_stride(a->x_stride, (size_t)a->n_head * a->d);
        const float *cs = a->cos + i * a->half, *sn = a->sin + i * a->half;
        for (uint32_t h = 0; h < a->n_head; h++) {
            float *x = row + (size_t)(h + 1) * a->d - 2 * (size_t)a->half;
            for (uint32_t j = 0; j < a->half; j++) {
                float re = x[2 * j], im = x[2 * j + 1];
                float s = a->inverse ? -sn[j] : sn[j];
                x[2 * j] = k_round_to(re * cs[j] - im * s, a->round);
                x[2 * j + 1] = k_round_to(re * s + im * cs[j], a->round);
            }
        }
    }
}

void k_rope_ref(struct kernels *k, const struct k_rope *a)
{
    if (k_failed(k))
        return;
    struct k_rope args = *a;
    k_run(k, rotate_rows, &args, a->n, a->n * a->n_head * a->half * 4);
}
