/* The dense products of a layer by cuBLAS, beside ours: how fast a library is that may add in
 * any order, and whether it keeps to one. cuBLAS is looked up when the program runs; nothing
 * links it (docs/kernels.md says why the backend does not). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/bench.h"

/* Values of cublas_api.h and library_types.h. */
enum { OP_N = 0, OP_T = 1, R_16BF = 14, R_32F = 0, COMPUTE_32F = 68, GEMM_DEFAULT = -1 };

typedef int create_fn(void **handle);
typedef int gemm_fn(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                    const void *a, int type_a, int lda, const void *b, int type_b, int ldb,
                    const void *beta, void *c, int type_c, int ldc, int compute, int algo);

static void *open_library(void)
{
    static const char *const names[] = {"libcublas.so", "libcublas.so.13", "libcublas.so.12",
                                        "/usr/local/cuda/lib64/libcublas.so"};
    void *lib = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !lib; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return lib;
}

bool bench_cublas_open(struct bench *b)
{
    void *lib = open_library();
    void *create_at = lib ? dlsym(lib, "cublasCreate_v2") : NULL;
    void *gemm_at = lib ? dlsym(lib, "cublasGemmEx") : NULL;
    create_fn *create;
    if (!create_at || !gemm_at)
        return false;
    memcpy(&create, &create_at, sizeof(create));
    b->cublas_gemm = gemm_at;
    b->cublas_mark = bench_alloc(b, 4);
    return create(&b->cublas) == 0 && b->cublas;
}

bool bench_cublas_product(struct bench *b, void *y, bool is_f32, const void *x, const void *w,
                          int n, int n_out, int n_in)
{
    const float one = 1, zero = 0;
    gemm_fn *gemm;
    memcpy(&gemm, &b->cublas_gemm, sizeof(gemm));
    /* Our rows are its columns. */
    int rc = gemm(b->cublas, OP_T, OP_N, n_out, n, n_in, &one, w, R_16BF, n_in, x, R_16BF, n_in,
                  &zero, y, is_f32 ? R_32F : R_16BF, n_out, COMPUTE_32F, GEMM_DEFAULT);
    b->k.copy(&b->k, b->cublas_mark, y, 4); /* the table's stream waits for the default one */
    return rc == 0;
}

/* ---- beside ours --------------------------------------------------------------------------
 */

struct product {
    int n, n_out, n_in;
    void *w, *x;        /* bf16 */
    float *x32, *y;     /* ours take f32, both give it */
    struct k_weight w8; /* the same shape in FP8, as the checkpoint has it */
    bool failed;
};

/* n bf16 numbers of either sign, 2^-8 to 1: sums of their products are rounded, and do not
 * overflow. */
static void *bf16_random(struct bench *b, size_t n)
{
    uint16_t *host = malloc(n * sizeof(*host)), *p = bench_alloc(b, n * sizeof(*host));
    uint64_t x = 88172645463325252u;
    if (!host)
        abort();
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift64 */
        host[i] = (uint16_t)(0x3b80 + (x >> 40 & 0x3ff) + (x >> 8 & 0x8000));
    }
    b->k.copy_in(&b->k, p, host, n * sizeof(*host));
    free(host);
    return p;
}

static void theirs(struct bench *b, void *arg)
{
    struct product *p = arg;
    p->failed |= !bench_cublas_product(b, p->y, true, p->x, p->w, p->n, p->n_out, p->n_in);
}

static void ours(struct bench *b, void *arg)
{
    const struct product *p = arg;
    b->k.linear(&b->k,
                &(struct k_linear){
                    .w = &p->w8, .x = p->x32, .y = p->y, .n = (size_t)p->n, .in = K_BF16});
}

/* How many of the first row's values have other bits in the company of n rows than alone. */
static size_t n_moved(struct bench *b, struct product *p, int n)
{
    struct error e = {0};
    size_t bytes = (size_t)p->n_out * sizeof(float), moved = 0;
    uint32_t *alone = malloc(bytes), *in_company = malloc(bytes);
    if (!alone || !in_company)
        abort();
    p->n = 1;
    theirs(b, p);
    bench_ok(b, b->k.sync(&b->k, &e), &e);
    b->k.copy_out(&b->k, alone, p->y, bytes);
    p->n = n;
    theirs(b, p);
    bench_ok(b, b->k.sync(&b->k, &e), &e);
    b->k.copy_out(&b->k, in_company, p->y, bytes);
    for (int i = 0; i < p->n_out; i++)
        moved += alone[i] != in_company[i];
    free(alone);
    free(in_company);
    return moved;
}

static void compare(struct bench *b, struct product *p, const char *name, int n)
{
    char shape[80];
    size_t moved = n_moved(b, p, n);
    double t = bench_time(b, theirs, p), mine = bench_time(b, ours, p);
    snprintf(shape, sizeof(shape), "%d token%s, %s %d x %d", n, n > 1 ? "s" : "", name,
             p->n_out, p->n_in);
    if (p->failed) {
        fprintf(stderr, "%-28s %s: cuBLAS refused it\n", "dense product", shape);
        return;
    }
    printf("{\"what\": \"dense product\", \"shape\": \"%s\", \"cublas_bf16_us\": %.2f, "
           "\"ours_fp8_us\": %.2f, \"cublas_moved\": %zu, \"of\": %d}\n",
           shape, t * 1e6, mine * 1e6, moved, p->n_out);
    fflush(stdout);
    fprintf(stderr, "%-28s %-44s %12.2f us  ours  %10.2f us  %zu of %d values moved\n",
            "dense product by cuBLAS", shape, t * 1e6, mine * 1e6, moved, p->n_out);
}

void bench_cublas(struct bench *b)
{
    static const struct {
        const char *name;
        int n_out, n_in;
    } SHAPES[] = {{"wq_a", 1280, 5120}, {"wq_b", 32768, 1280}, {"wo_b", 5120, 8192}};
    static const int TOKENS[] = {1, 16, 64, 256, 2048};
    int most = b->small ? 16 : 2048;
    if (!b->cublas)
        return; /* said where the ceilings are measured */
    for (size_t i = 0; i < sizeof(SHAPES) / sizeof(*SHAPES); i++) {
        struct product p = {.n_out = b->small ? 64 : SHAPES[i].n_out,
                            .n_in = b->small ? 256 : SHAPES[i].n_in};
        size_t out = (size_t)p.n_out, in = (size_t)p.n_in, n = (size_t)most;
        p.w = bf16_random(b, out * in), p.x = bf16_random(b, n * in);
        p.x32 = bench_random(b, n * in * 4), p.y = bench_alloc(b, n * out * 4);
        p.w8 = (struct k_weight){.type = K_W_FP8_32X32,
                                 .n_out = (uint32_t)p.n_out,
                                 .n_in = (uint32_t)p.n_in,
                                 .data = bench_random(b, out * in),
                                 .scale = bench_random(b, out / 32 * (in / 32))};
        for (size_t k = 0; k < sizeof(TOKENS) / sizeof(*TOKENS) && TOKENS[k] <= most; k++)
            compare(b, &p, SHAPES[i].name, TOKENS[k]);
        void *all[] = {
            p.w, p.x, p.y, p.x32, (void *)(uintptr_t)p.w8.data, (void *)(uintptr_t)p.w8.scale};
        for (size_t k = 0; k < sizeof(all) / sizeof(*all); k++)
            b->k.free(&b->k, all[k]);
    }
}
