/* The CUDA backend: the same table of operations on a GPU, in a library of its own that is
 * loaded when it is asked for. agentd itself links no CUDA library. */
#ifndef KERNELS_CUDA_H
#define KERNELS_CUDA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills the table for a device (0: the first). The library is the file `library`; NULL:
 * libagentd-cuda.so, looked for beside the running program, then in its ../lib/agentd, then
 * where the dynamic linker looks. It stays loaded. ERR_UNSUPPORTED: no library, no driver, no
 * device, or one that the library was not built for (the message says which and what to do);
 * ERR_INVAL: no such device, or a library that is none of ours; ERR_GPU; ERR_NOMEM. */
NODISCARD enum err kernels_cuda(struct kernels *k, const char *library, int device,
                                struct error *e);

/* What the library exports, and what tests link directly (emulated). As kernels_cuda. */
#define K_CUDA_OPEN "k_cuda_open"
NODISCARD enum err k_cuda_open(struct kernels *k, int device, struct error *e);

#ifdef __cplusplus
}
#endif
#endif
