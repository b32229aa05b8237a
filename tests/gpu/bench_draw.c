/* Draws from rows of logits at the released model's vocabulary. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/philox.h"
#include "tests/gpu/bench.h"

static void run(struct bench *b, void *arg)
{
    b->k.sample(&b->k, arg);
}

/* Logits of a normal distribution, four wide: a few thousand ids count for something. */
static float *logits_new(struct bench *b, size_t n)
{
    float *host = malloc(n * sizeof(*host)), *there = bench_alloc(b, n * sizeof(*there));
    if (!host)
        abort();
    for (size_t i = 0; i < n; i++) {
        double u = 1 - k_philox_uniform(1, i, 0), v = k_philox_uniform(1, i, 1);
        host[i] = (float)(4 * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
    b->k.copy_in(&b->k, there, host, n * sizeof(*host));
    free(host);
    return there;
}

void bench_draw(struct bench *b)
{
    static const struct {
        const char *name;
        struct k_draw draw;
    } ways[] = {{"greedy", {.top_p = 1}},
                {"temperature 1", {.temperature = 1, .top_p = 1}},
                {"top-p 0.95", {.temperature = 1, .top_p = 0.95f}}};
    const uint32_t n_vocab = b->small ? 3000 : 129280;
    float *logits = logits_new(b, (size_t)K_SAMPLE_ROWS * n_vocab);
    struct k_drawn *drawn = bench_alloc(b, K_SAMPLE_ROWS * sizeof(*drawn));
    for (uint32_t n = 1; n <= K_SAMPLE_ROWS; n += K_SAMPLE_ROWS - 1)
        for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
            char shape[64];
            struct k_sample a = {.logits = logits, .drawn = drawn, .n = n, .n_vocab = n_vocab};
            for (uint32_t row = 0; row < n; row++)
                a.draw[row] = ways[i].draw;
            (void)snprintf(shape, sizeof(shape), "%u row%s of %u, %s", n, n > 1 ? "s" : "",
                           n_vocab, ways[i].name);
            bench_report(b, "draw", shape, bench_time(b, run, &a), 0, 4.0 * n * n_vocab);
        }
    b->k.free(&b->k, logits);
    b->k.free(&b->k, drawn);
}
