/* A backend whose memory the host may not touch, made of a host backend: what the engine does
 * on a device has to work on it, and what would be wrong on a device crashes here.
 *
 * What alloc and reserve give out are addresses that no program can use (a bit is set that no
 * address of a process has): reading or writing through them is a fault, a system call that is
 * handed one fails. Every op takes the bit away from each pointer of its arguments, and aborts,
 * with the op's and the member's name, when it was not there: memory of the host handed to a
 * device is found as well. Weights are copied by pack(). Results are those of the host backend
 * behind it, bit for bit.
 *
 *     struct engine_options o = {...};
 *     backend_option(&o, "fenced");    or "cpu", "ref", "emulated" */
#ifndef TESTS_SUPPORT_FENCED_H
#define TESTS_SUPPORT_FENCED_H

#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"

/* The best CPU backend behind the fence; fenced_ref: the reference. As kernels_cpu. */
NODISCARD enum err fenced_open(struct kernels *k, struct pool *pool, struct error *e);
NODISCARD enum err fenced_ref_open(struct kernels *k, struct pool *pool, struct error *e);

/* Bytes that alloc, reserve and pack have given out and not got back, of all fenced tables. */
size_t fenced_bytes(void);
/* The most that there were at once since the last call. */
size_t fenced_most(void);
/* The next n uploads are not begun. */
void fenced_refuse_uploads(size_t n);
/* Most bytes there are from now on; SIZE_MAX: no end. */
void fenced_limit(size_t bytes);

/* The CUDA kernels as a library that the loader takes for libagentd-cuda.so, compiled for the
 * host (tests/support/cuda_emulation.h). */
const char *emulated_library(void);

/* Sets the backend of these options by the name that a test knows it by: those of the product,
 * "fenced" and "fenced-ref", "emulated". */
void backend_option(struct engine_options *o, const char *name);

/* A whole test program on a device: AGENTD_TEST_GPU names the library (tests/gpu/run). Or on a
 * fenced backend: with AGENTD_TEST_FENCED in the environment what
 * drive_open() would open on a host backend is opened behind the fence. */
void backend_override(struct engine_options *o);

#endif
