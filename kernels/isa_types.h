/* Vector types of LANES elements for isa_lanes.h; an isa_NAME.c defines LANES first. */
#ifndef KERNELS_ISA_TYPES_H
#define KERNELS_ISA_TYPES_H

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef uint64_t v2u __attribute__((vector_size(16)));
typedef uint8_t v16b __attribute__((vector_size(16)));

#endif
