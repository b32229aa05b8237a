/* One run of a batch as ops see it: some consecutive tokens of one sequence, and where the
 * state of that sequence lies.
 *
 * An op that looks at sequences takes one run in its own members, or a list of these: one call
 * for all of them, and nothing in the call that changes from one step to the next, so that a
 * step's launches can be recorded and repeated (kernels.h, record). The list is memory of the
 * backend; the caller writes it anew before each step.
 *
 * Rows of a batch are numbered through: those of a run follow those of the run before. So are
 * the groups of tokens that become compressed rows of a KV source, but there may be gaps:
 * numbers that belong to no run, for which nothing is computed. */
#ifndef KERNELS_RUN_H
#define KERNELS_RUN_H

#include "kernels/types.h"

#define K_MAX_SOURCES 32
#define K_N_CLASSES 3 /* of layers that share the first position whose key may be read */

/* A KV source of the run's sequence. */
struct k_run_source {
    uint8_t *rows, *keys; /* its planes, from row 0 on */
    uint64_t row;         /* the first row that the run completes ... */
    uint32_t n, first;    /* ... of so many, and the number of that group in the batch */
};

struct k_run {
    uint64_t pos0;            /* position of its first token */
    uint32_t row, n;          /* its rows in the batch; n > 0 */
    uint64_t lo[K_N_CLASSES]; /* first position whose key exists */
    const uint8_t *ring;      /* [layers][window] rows */
    const float *pending;     /* [sources][2][d] value and gate of the token that an unfinished
                                 group begins with; it counts where pos0 % ratio != 0 */
    struct k_run_source source[K_MAX_SOURCES];
};

#endif
