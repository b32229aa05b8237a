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

/* Zipping with zeros widens; any 128-bit instruction set has it. */
typedef uint16_t v8h __attribute__((vector_size(16)));
static const v8h zip16 = {0, 8, 1, 9, 2, 10, 3, 11};

INLINE vu vu_widen8(v16b b)
{
    const v16b zip8 = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    v8h h = (v8h)__builtin_shuffle(b, (v16b){0}, zip8);
    return (vu)__builtin_shuffle(h, (v8h){0}, zip16);
}

INLINE vu vu_widen16(vh h)
{
    return (vu)__builtin_shuffle((v8h)(v2u){(uint64_t)h, 0}, (v8h){0}, zip16);
}

INLINE vh vu_narrow16(vu u)
{
    v2u low = (v2u)__builtin_shuffle((v8h)u, (v8h){0, 2, 4, 6, 0, 2, 4, 6});
    return (vh)low[0];
}

#include "kernels/isa_rows.h"

const struct k_isa k_isa_portable =
    ISA_TABLE("portable", "cpu-portable/2", NULL, NULL, NULL, 0, .query_codes = NULL);
