/* bench_gpu: speed of the CUDA backend beside what the device can do.
 *
 *     bench_gpu --library FILE [--device N] [--info] [--small] [--folder DIR]
 *
 * Exit status: 0; 2 a wrong command line; 3 no library, driver or device. One JSON line a
 * figure on stdout, the table of all on stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda.h"
#include "tests/gpu/bench.h"

#define EXIT_NO_DEVICE 3

void bench_ok(struct bench *b, enum err rc, const struct error *e)
{
    (void)b;
    if (!rc)
        return;
    fprintf(stderr, "bench_gpu: %s\n", e->msg);
    exit(1);
}

void *bench_alloc(struct bench *b, size_t bytes)
{
    void *p = b->k.alloc(&b->k, bytes);
    struct error e = {0};
    if (!p)
        bench_ok(b, err_set(&e, ERR_NOMEM, "no %zu bytes of memory", bytes), &e);
    return p;
}

void *bench_random(struct bench *b, size_t bytes)
{
    enum { PIECE = 1 << 20 };
    static uint8_t piece[PIECE];
    uint8_t *p = bench_alloc(b, bytes);
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < PIECE; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift64 */
        piece[i] = (uint8_t)(x >> 32) & 0x77;
    }
    for (size_t at = 0; at < bytes; at += PIECE)
        b->k.copy_in(&b->k, p + at, piece, bytes - at < PIECE ? bytes - at : PIECE);
    return p;
}

static void wait(struct bench *b)
{
    struct error e = {0};
    bench_ok(b, b->k.sync(&b->k, &e), &e);
}

double bench_time(struct bench *b, void (*call)(struct bench *b, void *arg), void *arg)
{
    call(b, arg); /* scratch is allocated, code is loaded */
    wait(b);
    for (unsigned n = 1;; n *= 4) {
        uint64_t start = clock_mono_ns(b->clock);
        for (unsigned i = 0; i < n; i++)
            call(b, arg);
        wait(b);
        double seconds = (double)(clock_mono_ns(b->clock) - start) / 1e9;
        if (seconds >= b->least_s || n >= 1u << 16)
            return seconds / n;
    }
}

double bench_floor(const struct bench *b, double flops, double bytes)
{
    double by_bytes = b->ceilings.copy_bytes > 0 ? bytes / b->ceilings.copy_bytes : 0;
    double by_flops = b->ceilings.matmul_flops > 0 ? flops / b->ceilings.matmul_flops : 0;
    return by_bytes > by_flops ? by_bytes : by_flops;
}

void bench_report_floor(const struct bench *b, const char *what, const char *shape,
                        double seconds, double floor_seconds)
{
    (void)b;
    double share = seconds > 0 ? floor_seconds / seconds : 0;
    printf("{\"what\": \"%s\", \"shape\": \"%s\", \"us\": %.2f, \"floor_us\": %.2f, "
           "\"share\": %.3f}\n",
           what, shape, seconds * 1e6, floor_seconds * 1e6, share);
    fflush(stdout);
    fprintf(stderr, "%-28s %-44s %12.2f us  floor %10.2f us  %5.1f %%\n", what, shape,
            seconds * 1e6, floor_seconds * 1e6, share * 100);
}

void bench_report(const struct bench *b, const char *what, const char *shape, double seconds,
                  double flops, double bytes)
{
    bench_report_floor(b, what, shape, seconds, bench_floor(b, flops, bytes));
}

static int show_device(struct bench *b, int device)
{
    struct k_device d;
    struct error e = {0};
    bench_ok(b, b->k.describe(&b->k, &d, &e), &e);
    printf("{\"device\": %d, \"name\": \"%s\", \"numerics\": \"%s\", \"driver\": \"%s\", "
           "\"free_bytes\": %llu, \"total_bytes\": %llu}\n",
           device, d.name, b->k.numerics, d.driver, (unsigned long long)d.free_bytes,
           (unsigned long long)d.total_bytes);
    return 0;
}

struct options {
    const char *library, *folder;
    int device;
    bool info, small;
};

static bool parse(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--info"))
            o->info = true;
        else if (!strcmp(argv[i], "--small"))
            o->small = true;
        else if (more && !strcmp(argv[i], "--library"))
            o->library = argv[++i];
        else if (more && !strcmp(argv[i], "--folder"))
            o->folder = argv[++i];
        else if (more && !strcmp(argv[i], "--device"))
            o->device = (int)strtol(argv[++i], NULL, 10);
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o = {.folder = "."};
    struct error e = {0};
    if (!parse(argc, argv, &o)) {
        fputs("usage: bench_gpu [--library FILE] [--device N] [--info] [--small] "
              "[--folder DIR]\n",
              stderr);
        return 2;
    }
    struct bench b = {.clock = clock_real(),
                      .small = o.small,
                      .folder = o.folder,
                      .least_s = o.small ? 0 : 0.2};
    enum err rc = kernels_cuda(&b.k, o.library, o.device, &e);
    if (rc) {
        fprintf(stderr, "bench_gpu: %s\n", e.msg);
        return rc == ERR_NOMEM || rc == ERR_GPU ? 1 : EXIT_NO_DEVICE;
    }
    int code = show_device(&b, o.device);
    if (!o.info) {
        bench_ceilings(&b);
        bench_cublas(&b);
        bench_layer(&b);
        bench_draw(&b);
        bench_resume(&b);
    }
    kernels_fini(&b.k);
    return code;
}
