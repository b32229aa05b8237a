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

INLINE vu vu_widen8(v16b b)
{
    return (vu){b[0], b[1], b[2], b[3]};
}

INLINE vu vu_widen16(vh h)
{
    return (vu){h[0], h[1], h[2], h[3]};
}

INLINE vh vu_narrow16(vu u)
{
    return (vh){(uint16_t)u[0], (uint16_t)u[1], (uint16_t)u[2], (uint16_t)u[3]};
}

#include "kernels/isa_rows.h"

const struct k_isa k_isa_portable = ISA_TABLE("portable", "cpu-portable/1", NULL);
