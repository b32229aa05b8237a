/* Times the ops at shapes of the released model: reference against every instruction set.
 *
 *     build/tests/bench_kernels [threads [part of a name]]
 *
 * Prints the median of repeated runs in microseconds, and the reference's time over it. With
 * one thread (the default) that is CPU time: other work on the machine disturbs it little. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/pool.h"
#include "kernels/host.h"
#include "kernels/kernels.h"
#include "kernels/philox.h"

#define MAX_RUNS 200

static clockid_t bench_clock = CLOCK_MONOTONIC;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(bench_clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static float *floats(size_t n)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; p && i < n; i++)
        p[i] = (float)(k_philox_uniform(1, i, 0) - 0.5);
    return p;
}

/* Random codes; scales near 1. */
static struct k_weight weight(enum k_type type, uint32_t n_out, uint32_t n_in)
{
    struct k_weight w = {.type = type, .n_out = n_out, .n_in = n_in, .n_groups = 1};
    size_t data_bytes = 0, scale_bytes = 0;
    if (!k_weight_bytes(&w, &data_bytes, &scale_bytes))
        exit(1);
    uint8_t *data = malloc(data_bytes), *scale = malloc(scale_bytes + 1);
    for (size_t i = 0; i < data_bytes; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13) & 0x3f;
    memset(scale, 120, scale_bytes + 1);
    for (size_t i = 0; type == K_W_BF16 && i < data_bytes / 2; i++) /* no subnormals */
        ((uint16_t *)(void *)data)[i] = (uint16_t)(0x3c00 + data[2 * i]);
    w.data = type == K_W_F32 ? (const void *)floats((size_t)n_out * n_in) : data;
    w.scale = scale;
    return w;
}

struct job {
    void (*run)(struct kernels *k, const void *args);
    const void *args;
};

static void linear(struct kernels *k, const void *a)
{
    k->linear(k, a);
}

static void rmsnorm(struct kernels *k, const void *a)
{
    k->rmsnorm(k, a);
}

static void hc_mix(struct kernels *k, const void *a)
{
    k->hc_mix(k, a);
}

static void hc_update(struct kernels *k, const void *a)
{
    k->hc_update(k, a);
}

static void attention(struct kernels *k, const void *a)
{
    k->attention(k, a);
}

static void index_rows(struct kernels *k, const void *a)
{
    k->index(k, a);
}

static void moe(struct kernels *k, const void *a)
{
    k->moe(k, a);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median over at least 3 runs and about 0.3 s. */
static double median_us(struct kernels *k, const struct job *job)
{
    double t[MAX_RUNS], begin = now_us();
    int n = 0;
    while (n < MAX_RUNS && (n < 3 || now_us() - begin < 3e5)) {
        double start = now_us();
        job->run(k, job->args);
        t[n++] = now_us() - start;
    }
    qsort(t, (size_t)n, sizeof *t, by_value);
    return t[n / 2];
}

static struct kernels backends[6];
static int n_backends;
static const char *only = "";

static void bench(const char *name, struct job job)
{
    double ref = 0;
    if (!strstr(name, only))
        return;
    printf("%-34s", name);
    for (int b = 0; b < n_backends; b++) {
        double us = median_us(&backends[b], &job);
        ref = b ? ref : us;
        printf(" %10.0f", us);
        if (b)
            printf(" %5.1fx", ref / us);
        fflush(stdout);
    }
    printf("\n");
}

static void bench_linear(const char *name, enum k_type type, uint32_t n_out, uint32_t n_in,
                         size_t n, enum k_round in)
{
    struct k_weight w = weight(type, n_out, n_in);
    struct k_linear a = {
        .w = &w, .x = floats(n * n_in), .y = floats(n * n_out), .n = n, .in = in};
    bench(name, (struct job){linear, &a});
}

static void bench_linears(void)
{
    bench_linear("wkv FP8 512x5120, 1 row, bf16", K_W_FP8_32X32, 512, 5120, 1, K_BF16);
    bench_linear("compressor BF16 512x5120, 1 row", K_W_BF16, 512, 5120, 1, K_BF16);
    bench_linear("wkv FP8 512x5120, 64 rows, bf16", K_W_FP8_32X32, 512, 5120, 64, K_BF16);
    bench_linear("wkv FP8 512x5120, 64 rows, f32", K_W_FP8_32X32, 512, 5120, 64, K_EXACT);
    bench_linear("w1 FP4 2304x5120, 1 row, bf16", K_W_FP4_1X32, 2304, 5120, 1, K_BF16);
    bench_linear("w1 FP4 2304x5120, 16 rows, bf16", K_W_FP4_1X32, 2304, 5120, 16, K_BF16);
}

static void bench_rows(void)
{
    struct k_rmsnorm norm = {.x = floats(64 * 5120),
                             .w = floats(5120),
                             .y = floats(64 * 5120),
                             .n = 64,
                             .d = 5120,
                             .eps = 1e-20f};
    bench("rmsnorm 64x5120", (struct job){rmsnorm, &norm});
    struct k_weight fn = weight(K_W_F32, 24, 20480);
    struct k_hc_mix mix = {.x = floats(16 * 20480),
                           .fn = &fn,
                           .scale = floats(3),
                           .base = floats(24),
                           .pre = floats(64),
                           .post = floats(64),
                           .comb = floats(256),
                           .n = 16,
                           .hc = 4,
                           .d = 5120,
                           .iters = 20,
                           .hc_eps = 1e-6f,
                           .norm_eps = 1e-20f};
    bench("hc_mix 16 tokens", (struct job){hc_mix, &mix});
    struct k_hc_update update = {.x = mix.x,
                                 .y = norm.x,
                                 .post = mix.post,
                                 .comb = mix.comb,
                                 .out = floats(16 * 20480),
                                 .n = 16,
                                 .hc = 4,
                                 .d = 5120};
    bench("hc_update 16 tokens", (struct job){hc_update, &update});
}

static void bench_attention(size_t n)
{
    size_t window_bytes = k_row_bytes(K_ROW_FP8_32, 512),
           row_bytes = k_row_bytes(K_ROW_FP4_16, 512);
    uint8_t *window = calloc(128 + n, window_bytes), *rows = calloc(2048, row_bytes);
    int32_t *sel = malloc(n * 512 * sizeof *sel);
    memset(rows, 0x35, 2048 * row_bytes);
    memset(window, 0x35, (128 + n) * window_bytes);
    for (size_t i = 0; i < n * 512; i++)
        sel[i] = (int32_t)(i % 512 * 4);
    struct k_attention a = {.q = floats(n * 64 * 512),
                            .out = floats(n * 64 * 512),
                            .n = n,
                            .n_head = 64,
                            .d = 512,
                            .ring = window,
                            .keys = window + 128 * window_bytes,
                            .window_format = K_ROW_FP8_32,
                            .window = 128,
                            .pos0 = 4096,
                            .rows = rows,
                            .row_format = K_ROW_FP4_16,
                            .sel = sel,
                            .n_sel = 512,
                            .sink = floats(64),
                            .scale = 0.04419417f};
    char name[64];
    snprintf(name, sizeof name, "attention 64x512, 640 keys, %zu q", n);
    bench(name, (struct job){attention, &a});
}

/* With n_blocks rows of 8: the source of candidates. */
static void bench_index(size_t n, uint64_t n_row, uint32_t n_head, uint32_t d,
                        uint32_t n_blocks)
{
    size_t bytes = k_row_bytes(K_ROW_FP4_32, d);
    uint8_t *keys = calloc(n_row, bytes);
    float *q = floats(n * n_head * d);
    for (size_t i = 0; i < n * n_head; i++) { /* on their grid, as the model has them */
        k_encode_row(K_ROW_FP4_32, q + i * d, d, keys);
        k_decode_row(K_ROW_FP4_32, keys, d, q + i * d);
    }
    for (uint64_t i = 0; i < n_row * bytes; i++)
        keys[i] = i % bytes < d / 2 ? (uint8_t)(i * 2654435761u >> 11) : 127;
    struct k_index a = {.q = q,
                        .w = floats(n * n_head),
                        .keys = keys,
                        .format = K_ROW_FP4_32,
                        .sel = malloc(n * 512 * sizeof(int32_t)),
                        .n = n,
                        .n_row = n_row,
                        .pos0 = n_row - n,
                        .n_head = n_head,
                        .d = d,
                        .ratio = 1,
                        .top_k = 512,
                        .block_rows = 8,
                        .n_blocks = n_blocks,
                        .blocks_out = n_blocks ? malloc(n * n_blocks * sizeof(int32_t)) : NULL};
    char name[64];
    snprintf(name, sizeof name, "index %ux%u%s, %llu rows, %zu q", n_head, d,
             n_blocks ? ", blocks" : "", (unsigned long long)n_row, n);
    bench(name, (struct job){index_rows, &a});
    free(keys);
}

static void bench_moe(size_t n)
{
    static struct k_expert experts[8], shared;
    if (!experts[0].w1.data) {
        for (int e = 0; e < 8; e++)
            experts[e] = (struct k_expert){weight(K_W_FP4_1X32, 2304, 5120),
                                           weight(K_W_FP4_1X32, 2304, 5120),
                                           weight(K_W_FP4_1X32, 5120, 2304)};
        shared = (struct k_expert){weight(K_W_FP8_32X32, 2304, 5120),
                                   weight(K_W_FP8_32X32, 2304, 5120),
                                   weight(K_W_FP8_32X32, 5120, 2304)};
    }
    int32_t *expert = malloc(n * 6 * sizeof *expert);
    for (size_t i = 0; i < n * 6; i++)
        expert[i] = (int32_t)((i / 6 + i % 6) % 8);
    struct k_moe a = {.x = floats(n * 5120),
                      .expert = expert,
                      .weight = floats(n * 6),
                      .experts = experts,
                      .shared = &shared,
                      .y = floats(n * 5120),
                      .n = n,
                      .d = 5120,
                      .top_k = 6,
                      .n_expert = 8,
                      .limit = 10,
                      .in = K_BF16};
    char name[64];
    snprintf(name, sizeof name, "moe 6 of 8 + shared, %zu tokens", n);
    bench(name, (struct job){moe, &a});
}

int main(int argc, char **argv)
{
    static const char *const isas[] = {"portable", "avx2", "avx512", "avx512bf16-dot",
                                       "avx512bf16-fma"};
    struct error e = {0};
    struct pool *pool = NULL;
    uint32_t n_threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    if (n_threads == 1)
        bench_clock = CLOCK_THREAD_CPUTIME_ID;
    if (pool_new(n_threads, &pool, &e) || kernels_ref(&backends[n_backends++], pool, &e)) {
        fprintf(stderr, "bench_kernels: %s\n", e.msg);
        return 1;
    }
    if (argc > 2)
        only = argv[2];
    printf("%-34s %10s", "median us", "ref");
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        if (!kernels_cpu(&backends[n_backends], isas[i], pool, &e)) {
            n_backends++;
            printf(" %10s       ", isas[i]);
        }
    printf("\n");
    bench_linears();
    bench_rows();
    bench_attention(1);
    bench_attention(4);
    bench_index(1, 16384, 32, 128, 0);
    bench_index(8, 4096, 32, 128, 0);
    bench_index(32, 65536, 2, 32, 0);
    bench_index(32, 65536, 2, 32, 2048);
    bench_moe(1);
    bench_moe(8);
    for (int b = 0; b < n_backends; b++)
        kernels_fini(&backends[b]);
    pool_free(pool);
    return 0;
}
