/* AVX-512 without BF16 products. */
#include "kernels/isa_zmm.h"

const struct k_isa k_isa_avx512 =
    ISA_TABLE("avx512", "cpu-avx512/2", NULL, NULL, NULL, 0, .query_codes = NULL);
