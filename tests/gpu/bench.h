/* Parts of bench_gpu: they need kernels/, errors, clock and nothing else, so that the program
 * builds and runs on a machine that has a GPU, nvcc and little more. */
#ifndef TESTS_GPU_BENCH_H
#define TESTS_GPU_BENCH_H

#include "base/clock.h"
#include "kernels/kernels.h"

/* What the device can do at most, measured in the same run. */
struct bench_ceilings {
    double copy_bytes;   /* a second, read and written, inside the device */
    double in_bytes;     /* from pinned memory of the host */
    double matmul_flops; /* bf16, by cuBLAS; 0: it is not here */
};

struct bench {
    struct kernels k;
    const struct clock *clock;
    bool small; /* shapes that an emulation can do */
    struct bench_ceilings ceilings;
    const char *folder; /* for the file that a resume reads */
    double least_s;     /* how long one figure is measured */
    void *cublas;       /* its handle; NULL: it is not here, or not looked up yet */
    void *cublas_gemm, *cublas_mark;
};

/* Stops the program: every call of a bench is meant to work. */
void bench_ok(struct bench *b, enum err rc, const struct error *e);
void *bench_alloc(struct bench *b, size_t bytes);
/* The same, filled with codes and scales of which none is a NaN. */
void *bench_random(struct bench *b, size_t bytes);
/* Time of one call in seconds: repeated until least_s have passed, the device waited for. */
double bench_time(struct bench *b, void (*call)(struct bench *b, void *arg), void *arg);

/* One figure: a line of the table, and one of JSON. flops and bytes 0: none counted. */
void bench_report(const struct bench *b, const char *what, const char *shape, double seconds,
                  double flops, double bytes);
/* The same of a sum of parts: its floor is given. */
void bench_report_floor(const struct bench *b, const char *what, const char *shape,
                        double seconds, double floor_seconds);
double bench_floor(const struct bench *b, double flops, double bytes);

/* Looks cuBLAS up; false: it is not here. */
bool bench_cublas_open(struct bench *b);
/* y [n][n_out] = x [n][n_in] times w [n_out][n_in] by cuBLAS, x and w bf16, y bf16 or f32;
 * false: it refuses. */
bool bench_cublas_product(struct bench *b, void *y, bool is_f32, const void *x, const void *w,
                          int n, int n_out, int n_in);
void bench_ceilings(struct bench *b);
/* Dense products of a layer by cuBLAS, if it is here, beside ours. */
void bench_cublas(struct bench *b);
/* One layer at prefill 2048 and 8192, decode 1, 16 and 64. */
void bench_layer(struct bench *b);
/* Draws from 1 and 16 rows of the released model's vocabulary. */
void bench_draw(struct bench *b);
/* The state of 1,048,576 tokens into the device, whole and bounded. */
void bench_resume(struct bench *b);

#endif
