/* What the machine can do at most, measured in the run whose figures stand against it, and the
 * lines in which figures are reported.
 *
 * Rates are of all threads of the pool together. One thread is timed by its CPU time, which
 * other work on the machine disturbs little; several by the clock on the wall. */
#ifndef TESTS_SUPPORT_CEILINGS_H
#define TESTS_SUPPORT_CEILINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/pool.h"

struct ceilings {
    struct pool *pool;
    unsigned char *memory; /* two halves, each larger than a cache should be */
    size_t half_bytes;
};

/* Fails the program (tests/support/bench.h) where there is no memory. */
void ceilings_init(struct ceilings *c, struct pool *pool);
void ceilings_fini(struct ceilings *c);

/* Seconds on the clock that fits the pool. */
double ceilings_now(const struct ceilings *c);

/* Operations a second, an add and a multiply being two. bf16: pairs of bf16 added to f32
 * (vdpbf16ps); 0 where the machine has none. f32: fused multiply-add at the widest vectors. */
double ceiling_bf16(const struct ceilings *c);
double ceiling_f32(const struct ceilings *c);
/* Bytes a second: read once, from memory; copied, each byte read and written counted once. */
double ceiling_read(const struct ceilings *c);
double ceiling_copy(const struct ceilings *c);
/* Bytes a second of a file in `dir` whose pages are not cached; seconds of an fdatasync() after
 * 4 KiB. On the wall's clock. */
double ceiling_file_read(const char *dir);
double ceiling_fsync(const char *dir);

double median(double *values, size_t n); /* sorts them */

/* One line of JSON on stdout. against: what the ratio is to ("read", "bf16", ...), "": the
 * value is not compared. limit 0: none; at_least says on which side of it the ratio is well. */
struct figure {
    const char *group, *name, *unit, *against;
    double value, ratio, limit;
    bool at_least;
};
void figure_print(const struct figure *f);

#endif
