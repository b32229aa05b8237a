/* Plain C: four lanes, no fused multiply-add. */
#define LANES 4
#define TILE_M 2
#include "kernels/isa_types.h"

INLINE vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

INLINE v4 vf_fold(vf v)
{
    return v;
}

#include "kernels/isa_rows.h"

const struct k_isa k_isa_portable = ISA_TABLE("portable", "cpu-portable/1", NULL);
