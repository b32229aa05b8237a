/* What ran in the CUDA emulation so far, for C. */
#ifndef TESTS_SUPPORT_CUDA_REPORT_H
#define TESTS_SUPPORT_CUDA_REPORT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_emulated_kernel {
    const char *name;
    uint64_t launches, blocks, threads; /* threads: fibers run to their end */
    uint64_t barriers;                  /* of a block */
    uint64_t exchanges;                 /* of a lane */
    uint64_t products;                  /* tensor-core instructions of a lane */
};

/* The i-th kernel that was ever launched, in order of the first launch; NULL past the last. */
const struct cuda_emulated_kernel *cuda_emulated(unsigned i);

#ifdef __cplusplus
}
#endif
#endif
