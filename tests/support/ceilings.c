#include "tests/support/ceilings.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/bench.h"

/* One version for each vector width, chosen at load: before ThreadSanitizer is up, which
 * instruments the choice, too. */
#ifdef __SANITIZE_THREAD__
#define FOR_EACH_WIDTH
#else
#define FOR_EACH_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

#define HALF_BYTES ((size_t)384 << 20)
#define FILE_BYTES ((size_t)64 << 20)
#define PEAK_ROUNDS 1000000
#define N_CHAINS 14 /* sums in flight: more than latency times ports */
#define N_SYNCS 9

static double seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double ceilings_now(const struct ceilings *c)
{
    return seconds(pool_threads(c->pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
}

void ceilings_init(struct ceilings *c, struct pool *pool)
{
    *c = (struct ceilings){.pool = pool, .half_bytes = HALF_BYTES};
    c->memory = aligned_alloc(4096, 2 * HALF_BYTES);
    if (!c->memory)
        bench_fail("no memory for %zu bytes", 2 * HALF_BYTES);
    memset(c->memory, 1, 2 * HALF_BYTES);
}

void ceilings_fini(struct ceilings *c)
{
    free(c->memory);
}

static double timed(const struct ceilings *c, pool_fn *fn, void *arg, size_t n_items)
{
    double start = ceilings_now(c);

    pool_run(c->pool, fn, arg, n_items);
    return ceilings_now(c) - start;
}

/* ---- arithmetic ---------------------------------------------------------------------------
 * The instructions themselves: no compiler's choice is measured. All inputs are 0. */

#define CHAINS(op, r)                                                                          \
    op " %%" r "15,%%" r "14,%%" r "0\n" op " %%" r "15,%%" r "14,%%" r "1\n" op " %%" r       \
       "15,%%" r "14,%%" r "2\n" op " %%" r "15,%%" r "14,%%" r "3\n" op " %%" r "15,%%" r     \
       "14,%%" r "4\n" op " %%" r "15,%%" r "14,%%" r "5\n" op " %%" r "15,%%" r "14,%%" r     \
       "6\n" op " %%" r "15,%%" r "14,%%" r "7\n" op " %%" r "15,%%" r "14,%%" r "8\n" op      \
       " %%" r "15,%%" r "14,%%" r "9\n" op " %%" r "15,%%" r "14,%%" r "10\n" op " %%" r      \
       "15,%%" r "14,%%" r "11\n" op " %%" r "15,%%" r "14,%%" r "12\n" op " %%" r "15,%%" r   \
       "14,%%" r "13\n"

#define PEAK(name, op, r)                                                                      \
    static void name(void *arg, size_t first, size_t last, uint32_t thread)                    \
    {                                                                                          \
        uint64_t n = PEAK_ROUNDS;                                                              \
        (void)arg, (void)first, (void)last, (void)thread;                                      \
        __asm__ volatile("vzeroall\n1:\n" CHAINS(op, r) "dec %0\njnz 1b\nvzeroupper\n"         \
                         : "+r"(n)                                                             \
                         :                                                                     \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",       \
                           "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",         \
                           "xmm14", "xmm15");                                                  \
    }

PEAK(peak_bf16, "vdpbf16ps", "zmm")
PEAK(peak_zmm, "vfmadd231ps", "zmm")
PEAK(peak_ymm, "vfmadd231ps", "ymm")

static double peak(const struct ceilings *c, pool_fn *fn, double ops_a_chain)
{
    uint32_t n = pool_threads(c->pool);
    return PEAK_ROUNDS * N_CHAINS * ops_a_chain * n / timed(c, fn, NULL, n);
}

double ceiling_bf16(const struct ceilings *c)
{
    return __builtin_cpu_supports("avx512bf16") ? peak(c, peak_bf16, 64) : 0;
}

double ceiling_f32(const struct ceilings *c)
{
    if (__builtin_cpu_supports("avx512f"))
        return peak(c, peak_zmm, 32);
    return __builtin_cpu_supports("fma") ? peak(c, peak_ymm, 16) : 0;
}

/* ---- memory -------------------------------------------------------------------------------
 */

typedef uint64_t v8u __attribute__((vector_size(64), may_alias));
#define LINES 4

FOR_EACH_WIDTH static uint64_t sum_bytes(const unsigned char *p, size_t n)
{
    v8u sum[LINES] = {{0}};
    for (size_t i = 0; i + LINES * sizeof(v8u) <= n; i += LINES * sizeof(v8u))
        for (size_t k = 0; k < LINES; k++)
            sum[k] += *(const v8u *)(const void *)(p + i + k * sizeof(v8u));
    sum[0] += sum[1] + sum[2] + sum[3];
    return sum[0][0];
}

#define PIECE ((size_t)1 << 20)

static void read_pieces(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct ceilings *c = arg;
    (void)thread;
    uint64_t sum = sum_bytes(c->memory + first * PIECE, (last - first) * PIECE);
    __asm__ volatile("" : : "r"(sum));
}

static void copy_pieces(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct ceilings *c = arg;
    (void)thread;
    memcpy(c->memory + c->half_bytes + first * PIECE, c->memory + first * PIECE,
           (last - first) * PIECE);
}

double ceiling_read(const struct ceilings *c)
{
    struct ceilings arg = *c;
    size_t n = 2 * c->half_bytes / PIECE;
    return (double)(n * PIECE) / timed(c, read_pieces, &arg, n);
}

double ceiling_copy(const struct ceilings *c)
{
    struct ceilings arg = *c;
    size_t n = c->half_bytes / PIECE;
    return (double)(n * PIECE) / timed(c, copy_pieces, &arg, n);
}

/* ---- files --------------------------------------------------------------------------------
 */

static int make_file(const char *dir, size_t n)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/ceiling-XXXXXX", dir);
    int fd = mkostemp(path, O_CLOEXEC);
    char *bytes = calloc(1, PIECE);
    if (fd < 0 || !bytes || unlink(path))
        bench_fail("%s cannot be made", path);
    for (size_t done = 0; done < n; done += PIECE)
        if (pwrite(fd, bytes, PIECE, (off_t)done) != (ssize_t)PIECE)
            bench_fail("%s cannot be written", path);
    free(bytes);
    if (fdatasync(fd))
        bench_fail("%s cannot be synced", path);
    return fd;
}

double ceiling_file_read(const char *dir)
{
    int fd = make_file(dir, FILE_BYTES);
    void *bytes = aligned_alloc(4096, PIECE);

    if (!bytes || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        bench_fail("a file in %s cannot be dropped from the page cache", dir);
    double start = seconds(CLOCK_MONOTONIC);
    for (size_t done = 0; done < FILE_BYTES; done += PIECE)
        if (pread(fd, bytes, PIECE, (off_t)done) != (ssize_t)PIECE)
            bench_fail("a file in %s cannot be read", dir);
    double took = seconds(CLOCK_MONOTONIC) - start;
    free(bytes);
    close(fd);
    return (double)FILE_BYTES / took;
}

double ceiling_fsync(const char *dir)
{
    int fd = make_file(dir, PIECE);
    char page[4096] = {1};
    double took[N_SYNCS];

    for (size_t i = 0; i < N_SYNCS; i++) {
        double start = seconds(CLOCK_MONOTONIC);
        if (pwrite(fd, page, sizeof(page), (off_t)(i * sizeof(page))) != sizeof(page) ||
            fdatasync(fd))
            bench_fail("a file in %s cannot be synced", dir);
        took[i] = seconds(CLOCK_MONOTONIC) - start;
    }
    close(fd);
    return median(took, N_SYNCS);
}

/* ---- figures ------------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void figure_print(const struct figure *f)
{
    bool met = f->at_least ? f->ratio >= f->limit : f->ratio <= f->limit;

    printf("{\"group\": \"%s\", \"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"", f->group,
           f->name, f->value, f->unit);
    if (f->against[0])
        printf(", \"against\": \"%s\", \"ratio\": %.4f", f->against, f->ratio);
    if (f->limit > 0)
        printf(", \"limit\": %.2f, \"at\": \"%s\", \"ok\": %s", f->limit,
               f->at_least ? "least" : "most", met ? "true" : "false");
    printf("}\n");
    fflush(stdout);
}
