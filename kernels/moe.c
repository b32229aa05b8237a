#include "kernels/moe.h"

#include <assert.h>

#include "kernels/host.h"
#include "kernels/math.h"

/* The rows of one expert: token and routing weight of each. */
struct expert_rows {
    const struct k_moe *a;
    const struct k_expert *expert;
    const uint32_t *token;
    const float *weight; /* NULL: shared expert */
    size_t n;
    float *x, *gate, *up, *y; /* [n][d], [n][inter], [n][inter], [n][d] */
    double *sum;              /* [all tokens][d] */
};

static void gather(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct expert_rows *r = arg;
    (void)thread;
    for (size_t i = first; i < last; i++)
        memcpy(r->x + i * r->a->d, r->a->x + (size_t)r->token[i] * r->a->d,
               r->a->d * sizeof(float));
}

static void activate(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct expert_rows *r = arg;
    (void)thread;
    float limit = r->a->limit;
    size_t inter = r->expert->w1.n_out;
    for (size_t i = first; i < last; i++)
        for (size_t j = i * inter; j < (i + 1) * inter; j++) {
            float g = r->gate[j], u = r->up[j];
            g = g > limit ? limit : g;
            u = u > limit ? limit : u < -limit ? -limit : u;
            double act = (double)g * k_sigmoid((double)g) * (double)u;
            r->gate[j] = (float)(r->weight ? act * (double)r->weight[i] : act);
        }
}

static void add(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct expert_rows *r = arg;
    (void)thread;
    size_t d = r->a->d;
    for (size_t i = first; i < last; i++)
        for (size_t j = 0; j < d; j++)
            r->sum[r->token[i] * d + j] += (double)r->y[i * d + j];
}

static void run_expert(struct kernels *k, struct expert_rows *r)
{
    const struct k_moe *a = r->a;
    const struct k_expert *x = r->expert;
    size_t inter = x->w1.n_out;
    assert(x->w3.n_out == inter && x->w2.n_in == inter && x->w2.n_out == a->d);
    r->x = k_scratch(k, K_SLOT_MOE_X, r->n * a->d * sizeof(float));
    r->gate = k_scratch(k, K_SLOT_MOE_GATE, r->n * inter * sizeof(float));
    r->up = k_scratch(k, K_SLOT_MOE_UP, r->n * inter * sizeof(float));
    r->y = k_scratch(k, K_SLOT_MOE_Y, r->n * a->d * sizeof(float));
    if (k_failed(k))
        return;
    k_run(k, gather, r, r->n, r->n * a->d);
    k_linear_ref(
        k, &(struct k_linear){
               .w = &x->w1, .x = r->x, .y = r->gate, .n = r->n, .in = a->in, .out = a->mid});
    k_linear_ref(
        k, &(struct k_linear){
               .w = &x->w3, .x = r->x, .y = r->up, .n = r->n, .in = a->in, .out = a->mid});
    k_run(k, activate, r, r->n, r->n * inter * 30);
    k_linear_ref(
        k, &(struct k_linear){
               .w = &x->w2, .x = r->gate, .y = r->y, .n = r->n, .in = a->in, .out = a->mid});
    if (!k_failed(k))
        k_run(k, add, r, r->n, r->n * a->d);
}

/* Collects the rows of expert e in order of token. */
static size_t rows_of(const struct k_moe *a, uint32_t e, uint32_t *token, float *weight)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++)
        for (uint32_t t = 0; t < a->top_k; t++)
            if (a->expert[i * a->top_k + t] == (int32_t)e) {
                token[n] = (uint32_t)i;
                weight[n++] = a->weight[i * a->top_k + t];
            }
    return n;
}

void k_moe_ref(struct kernels *k, const struct k_moe *a)
{
    if (k_failed(k) || !a->n)
        return;
    size_t pairs = a->n * (a->top_k ? a->top_k : 1);
    uint32_t *token = k_scratch(k, K_SLOT_MOE_ROWS, pairs * (sizeof(uint32_t) + sizeof(float)));
    double *sum = k_scratch(k, K_SLOT_MOE_SUM, a->n * a->d * sizeof *sum);
    if (k_failed(k))
        return;
    float *weight = (float *)(void *)(token + pairs);
    struct expert_rows r = {.a = a, .token = token, .weight = weight, .sum = sum};
    memset(sum, 0, a->n * a->d * sizeof *sum);
    for (uint32_t e = 0; e < a->n_expert && !k_failed(k); e++) {
        r.n = rows_of(a, e, token, weight);
        r.expert = &a->experts[e];
        if (r.n)
            run_expert(k, &r);
    }
    if (a->shared && !k_failed(k)) {
        for (size_t i = 0; i < a->n; i++)
            token[i] = (uint32_t)i;
        r.n = a->n, r.expert = a->shared, r.weight = NULL;
        run_expert(k, &r);
    }
    for (size_t i = 0; i < a->n * a->d && !k_failed(k); i++)
        a->y[i] = k_round_to((float)sum[i], a->out);
}
