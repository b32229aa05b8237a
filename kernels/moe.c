#include "kernels/moe.h"

#include <assert.h>

#include "kernels/host.h"
#include "kernels/math.h"

/* The rows of one expert: token and routing weight of each. */
struct expert_rows {
    const struct k_moe *a;
    const struct k_expert *expert;
    const uint32_t *token;
    const uint32_t *place; /* of the expert in its token's list; top_k: shared expert */
    const float *weight;   /* NULL: shared expert */
    size_t n;
    float *x, *gate, *up, *y; /* [n][d], [n][inter], [n][inter], [n][d] */
    double *sum;              /* [all tokens][d]; NULL: into a->part */
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

static void put(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct expert_rows *r = arg;
    const struct k_moe *a = r->a;
    (void)thread;
    for (size_t i = first; i < last; i++)
        memcpy(a->part + (r->token[i] * (a->top_k + (size_t)1) + r->place[i]) * a->d,
               r->y + i * a->d, a->d * sizeof(float));
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
        k_run(k, r->sum ? add : put, r, r->n, r->n * a->d);
}

/* Scratch for the rows of one expert. */
struct row_lists {
    uint32_t *token, *place;
    float *weight;
};

static bool make_lists(struct kernels *k, const struct k_moe *a, struct row_lists *l)
{
    size_t pairs = a->n * (a->top_k ? a->top_k : 1);
    l->token = k_scratch(k, K_SLOT_MOE_ROWS, pairs * (2 * sizeof(uint32_t) + sizeof(float)));
    if (k_failed(k))
        return false;
    l->place = l->token + pairs;
    l->weight = (float *)(void *)(l->place + pairs);
    return true;
}

/* Collects the rows of expert e in order of token. */
static size_t rows_of(const struct k_moe *a, uint32_t e, const struct row_lists *l)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++)
        for (uint32_t t = 0; t < a->top_k; t++)
            if (a->expert[i * a->top_k + t] == (int32_t)e) {
                l->token[n] = (uint32_t)i;
                l->place[n] = t;
                l->weight[n++] = a->weight[i * a->top_k + t];
            }
    return n;
}

/* Those of the experts that `only` names, NULL: all of them; in ascending order, the shared
 * one last. */
static void run_experts(struct kernels *k, const struct k_moe *a, const uint8_t *only,
                        double *sum)
{
    struct row_lists l;
    if (!make_lists(k, a, &l))
        return;
    struct expert_rows r = {
        .a = a, .token = l.token, .place = l.place, .weight = l.weight, .sum = sum};
    for (uint32_t e = 0; e < a->n_expert && !k_failed(k); e++) {
        r.n = !only || only[e] ? rows_of(a, e, &l) : 0;
        r.expert = &a->experts[e];
        if (r.n)
            run_expert(k, &r);
    }
    if (!a->shared || (only && !only[a->n_expert]) || k_failed(k))
        return;
    for (size_t i = 0; i < a->n; i++)
        l.token[i] = (uint32_t)i, l.place[i] = a->top_k;
    r.n = a->n, r.expert = a->shared, r.weight = NULL;
    run_expert(k, &r);
}

void k_moe_ref(struct kernels *k, const struct k_moe *a)
{
    if (k_failed(k) || !a->n)
        return;
    double *sum = k_scratch(k, K_SLOT_MOE_SUM, a->n * a->d * sizeof *sum);
    if (k_failed(k))
        return;
    memset(sum, 0, a->n * a->d * sizeof *sum);
    run_experts(k, a, NULL, sum);
    for (size_t i = 0; i < a->n * a->d && !k_failed(k); i++)
        a->y[i] = k_round_to((float)sum[i], a->out);
}

void k_moe_part_ref(struct kernels *k, const struct k_moe *a)
{
    if (!k_failed(k) && a->n)
        run_experts(k, a, a->only, NULL);
}

size_t k_moe_parts(const struct k_moe *a, size_t i, const float **part)
{
    const int32_t *expert = a->expert + i * a->top_k;
    const float *row = a->part + i * (a->top_k + (size_t)1) * a->d;
    int32_t number[K_MAX_TOP_K + 1];
    size_t n = 0;
    assert(a->top_k <= K_MAX_TOP_K);
    for (uint32_t t = 0; t < a->top_k; t++) {
        if (expert[t] < 0)
            continue;
        size_t at = n++;
        for (; at && number[at - 1] > expert[t]; at--)
            number[at] = number[at - 1], part[at] = part[at - 1];
        number[at] = expert[t];
        part[at] = row + t * (size_t)a->d;
    }
    if (a->shared)
        part[n++] = row + a->top_k * (size_t)a->d;
    return n;
}

static void sum_parts(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_moe *a = arg;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        const float *part[K_MAX_TOP_K + 1];
        size_t n = k_moe_parts(a, i, part);
        for (size_t j = 0; j < a->d; j++) {
            double sum = 0;
            for (size_t p = 0; p < n; p++)
                sum += (double)part[p][j];
            a->y[i * a->d + j] = k_round_to((float)sum, a->out);
        }
    }
}

void k_moe_sum_ref(struct kernels *k, const struct k_moe *a)
{
    struct k_moe args = *a;
    if (!k_failed(k))
        k_run(k, sum_parts, &args, a->n, a->n * a->d * (a->top_k + (size_t)1));
}
