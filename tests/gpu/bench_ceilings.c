/* What the device can do at most: copies, and the product that cuBLAS makes of two large bf16
 * matrices (bench_cublas.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/bench.h"

struct copy {
    void *dst;
    const void *src;
    size_t bytes;
};

static void copy_inside(struct bench *b, void *arg)
{
    const struct copy *c = arg;
    b->k.copy(&b->k, c->dst, c->src, c->bytes);
}

static void copy_in(struct bench *b, void *arg)
{
    const struct copy *c = arg;
    b->k.copy_in(&b->k, c->dst, c->src, c->bytes);
}

static void measure_copies(struct bench *b)
{
    size_t bytes = b->small ? (size_t)1 << 16 : (size_t)1 << 30;
    struct copy c = {.dst = bench_alloc(b, bytes), .bytes = bytes};
    void *other = bench_alloc(b, bytes), *host = NULL;
    c.src = other;
    double t = bench_time(b, copy_inside, &c);
    b->ceilings.copy_bytes = 2 * (double)bytes / t;
    bench_report(b, "copy inside the device", "1 GiB, read and written", t, 0,
                 2 * (double)bytes);
    if (posix_memalign(&host, 4096, bytes))
        abort();
    memset(host, 1, bytes);
    bool pinned = b->k.pin(&b->k, host, bytes);
    c.src = host;
    t = bench_time(b, copy_in, &c);
    b->ceilings.in_bytes = (double)bytes / t;
    printf("{\"what\": \"copy to the device\", \"pinned\": %s, \"gb_per_s\": %.2f}\n",
           pinned ? "true" : "false", (double)bytes / t / 1e9);
    fprintf(stderr, "%-28s %-44s %12.2f GB/s\n", "copy to the device",
            pinned ? "1 GiB, pinned" : "1 GiB, could not be pinned", (double)bytes / t / 1e9);
    b->k.unpin(&b->k, host);
    free(host);
    b->k.free(&b->k, other);
    b->k.free(&b->k, c.dst);
}

/* ---- products ----------------------------------------------------------------------------
 */

struct square {
    void *a, *b, *c;
    int n;
    bool failed;
};

static void multiply(struct bench *b, void *arg)
{
    struct square *p = arg;
    p->failed |= !bench_cublas_product(b, p->c, false, p->b, p->a, p->n, p->n, p->n);
}

static void measure_product(struct bench *b)
{
    struct square p = {.n = b->small ? 32 : 8192};
    size_t bytes = (size_t)p.n * (size_t)p.n * 2;
    if (!bench_cublas_open(b)) {
        fprintf(stderr, "%-28s %s\n", "product of matrices",
                "no cuBLAS: floors count bytes alone");
        return;
    }
    p.a = bench_random(b, bytes), p.b = bench_random(b, bytes), p.c = bench_alloc(b, bytes);
    double t = bench_time(b, multiply, &p);
    if (!p.failed) {
        b->ceilings.matmul_flops = 2.0 * p.n * p.n * p.n / t;
        printf("{\"what\": \"cublas bf16 product\", \"n\": %d, \"tflops\": %.1f}\n", p.n,
               b->ceilings.matmul_flops / 1e12);
        fprintf(stderr, "%-28s %-44s %12.1f TFLOP/s\n", "product of matrices",
                "cuBLAS, bf16, 8192 cubed", b->ceilings.matmul_flops / 1e12);
    }
    b->k.free(&b->k, p.a), b->k.free(&b->k, p.b), b->k.free(&b->k, p.c);
}

void bench_ceilings(struct bench *b)
{
    measure_copies(b);
    measure_product(b);
}
