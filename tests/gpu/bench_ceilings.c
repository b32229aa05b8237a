/* What the device can do at most: copies, and the product that cuBLAS makes of two large bf16
 * matrices. cuBLAS is looked up when the program runs; nothing links it. */
#include <dlfcn.h>
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

/* ---- cuBLAS -------------------------------------------------------------------------------
 */

/* Values of cublas_api.h and library_types.h. */
enum { OP_N = 0, OP_T = 1, R_16BF = 14, R_32F = 0, COMPUTE_32F = 68, GEMM_DEFAULT = -1 };

typedef int create_fn(void **handle);
typedef int gemm_fn(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                    const void *a, int type_a, int lda, const void *b, int type_b, int ldb,
                    const void *beta, void *c, int type_c, int ldc, int compute, int algo);

struct product {
    gemm_fn *gemm;
    void *handle;
    void *a, *b, *c;
    int n;
    bool failed;
};

static void multiply(struct bench *b, void *arg)
{
    struct product *p = arg;
    const float one = 1, zero = 0;
    p->failed |=
        p->gemm(p->handle, OP_T, OP_N, p->n, p->n, p->n, &one, p->a, R_16BF, p->n, p->b, R_16BF,
                p->n, &zero, p->c, R_16BF, p->n, COMPUTE_32F, GEMM_DEFAULT) != 0;
    b->k.copy(&b->k, p->c, p->a, 4); /* the table's stream waits for the default one */
}

static void *open_cublas(void)
{
    static const char *const names[] = {"libcublas.so", "libcublas.so.13", "libcublas.so.12",
                                        "/usr/local/cuda/lib64/libcublas.so"};
    void *lib = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !lib; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return lib;
}

static bool look_up(struct product *p)
{
    void *lib = open_cublas();
    void *create_at = lib ? dlsym(lib, "cublasCreate_v2") : NULL;
    void *gemm_at = lib ? dlsym(lib, "cublasGemmEx") : NULL;
    create_fn *create;
    if (!create_at || !gemm_at)
        return false;
    memcpy(&create, &create_at, sizeof(create));
    memcpy(&p->gemm, &gemm_at, sizeof(p->gemm));
    return create(&p->handle) == 0;
}

static void measure_product(struct bench *b)
{
    struct product p = {.n = 8192};
    size_t bytes = (size_t)p.n * (size_t)p.n * 2;
    if (b->small || !look_up(&p)) {
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
