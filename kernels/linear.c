#include "kernels/linear.h"

#include <assert.h>

#include "kernels/host.h"

/* Two doubles, the vector that every machine has. */
typedef double pair __attribute__((vector_size(16)));

static inline pair pair_f32(const float *x)
{
    return (pair){(double)x[0], (double)x[1]};
}

static inline pair pair_f64(const double *x)
{
    return (pair){x[0], x[1]};
}

/* Lanes 0 to 7 of a sum: s[0..3], two each. What is left of n after its eights goes to the
 * lanes from 0 on. */
#define DOT(load)                                                                              \
    do {                                                                                       \
        pair s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};                                           \
        size_t i = 0;                                                                          \
        for (; i + 8 <= n; i += 8) {                                                           \
            s0 += load(x + i) * load(y + i);                                                   \
            s1 += load(x + i + 2) * load(y + i + 2);                                           \
            s2 += load(x + i + 4) * load(y + i + 4);                                           \
            s3 += load(x + i + 6) * load(y + i + 6);                                           \
        }                                                                                      \
        double rest[8] = {0};                                                                  \
        for (size_t j = 0; i + j < n; j++)                                                     \
            rest[j] = (double)x[i + j] * (double)y[i + j];                                     \
        s0 += pair_f64(rest), s1 += pair_f64(rest + 2);                                        \
        s2 += pair_f64(rest + 4), s3 += pair_f64(rest + 6);                                    \
        pair s = (s0 + s2) + (s1 + s3);                                                        \
        return s[0] + s[1];                                                                    \
    } while (0)

double k_dot_ref(const float *x, const float *y, size_t n)
{
    DOT(pair_f32);
}

double k_dot_f64(const double *x, const double *y, size_t n)
{
    DOT(pair_f64);
}

struct linear_job {
    const struct k_linear *a;
    const float *x; /* rounded inputs */
    size_t x_stride;
    uint8_t *scratch;
    size_t scratch_stride;
};

static void round_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct linear_job *job = arg;
    const struct k_linear *a = job->a;
    (void)thread;
    size_t width = job->x_stride;
    float *rounded = (float *)(void *)job->scratch;
    for (size_t i = first; i < last; i++) {
        const float *x = a->x + i * k_stride(a->x_stride, width);
        float *y = rounded + i * width;
        if (a->in == K_FP8_32)
            k_quant_activation(x, (uint32_t)width, y);
        else
            for (size_t j = 0; j < width; j++)
                y[j] = k_bf16(x[j]);
    }
}

/* Items are output rows: one weight row is expanded once and used for every input row. */
static void linear_outputs(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct linear_job *job = arg;
    const struct k_linear *a = job->a;
    float *row = (float *)(void *)(job->scratch + thread * job->scratch_stride);
    size_t n_in = a->w->n_in, rows_per_group = a->w->n_out / k_groups(a->w);
    for (size_t o = first; o < last; o++) {
        const float *x = job->x + o / rows_per_group * n_in;
        k_expand_row(a->w, o, row);
        for (size_t i = 0; i < a->n; i++) {
            double sum = k_dot_ref(row, x + i * job->x_stride, n_in);
            a->y[i * k_stride(a->y_stride, a->w->n_out) + o] = k_round_to((float)sum, a->out);
        }
    }
}

void k_linear_ref(struct kernels *k, const struct k_linear *a)
{
    if (k_failed(k) || !a->n)
        return;
    size_t width = (size_t)k_groups(a->w) * a->w->n_in;
    struct linear_job job = {.a = a, .x = a->x, .x_stride = k_stride(a->x_stride, width)};
    assert(a->w->n_out % k_groups(a->w) == 0 && (a->in != K_FP8_32 || width % 32 == 0));
    if (a->in != K_EXACT) {
        job.x_stride = width;
        job.x = k_scratch(k, K_SLOT_LINEAR_X, a->n * width * sizeof(float));
        if (!job.x)
            return;
        job.scratch = k->ctx->slot[K_SLOT_LINEAR_X].p;
        k_run(k, round_rows, &job, a->n, a->n * width * 2);
    }
    job.scratch = k_scratch_threads(k, K_SLOT_LINEAR_THREAD, a->w->n_in * sizeof(float),
                                    &job.scratch_stride);
    if (job.scratch)
        k_run(k, linear_outputs, &job, a->w->n_out, (a->n + 2) * a->w->n_out * a->w->n_in);
}
