/* The 16 values of E2M1 times each scale s, as bf16 bits in the upper or lower half of a
 * number: a table for each plain scale (isa_zmm.h), which adds s - 127 to the exponents. */
#ifndef KERNELS_ISA_E2M1_TABLE_H
#define KERNELS_ISA_E2M1_TABLE_H

#define E2M1_BITS(s, bits) (((unsigned)(bits) + ((unsigned)(s)-127) * 128) & 0xffffu)
#define E2M1_EIGHT(s, sign, as)                                                                \
    as(sign), as(E2M1_BITS(s, (sign) | 0x3f00)), as(E2M1_BITS(s, (sign) | 0x3f80)),            \
        as(E2M1_BITS(s, (sign) | 0x3fc0)), as(E2M1_BITS(s, (sign) | 0x4000)),                  \
        as(E2M1_BITS(s, (sign) | 0x4040)), as(E2M1_BITS(s, (sign) | 0x4080)),                  \
        as(E2M1_BITS(s, (sign) | 0x40c0))
#define E2M1_ROW(s, as) E2M1_EIGHT(s, 0, as), E2M1_EIGHT(s, 0x8000, as)

/* row(s) for all 256 scales */
#define E2M1_ROWS_4(row, s) row(s), row((s) + 1), row((s) + 2), row((s) + 3)
#define E2M1_ROWS_16(row, s)                                                                   \
    E2M1_ROWS_4(row, s), E2M1_ROWS_4(row, (s) + 4), E2M1_ROWS_4(row, (s) + 8),                 \
        E2M1_ROWS_4(row, (s) + 12)
#define E2M1_ROWS_64(row, s)                                                                   \
    E2M1_ROWS_16(row, s), E2M1_ROWS_16(row, (s) + 16), E2M1_ROWS_16(row, (s) + 32),            \
        E2M1_ROWS_16(row, (s) + 48)
#define E2M1_TABLE(row)                                                                        \
    {                                                                                          \
        E2M1_ROWS_64(row, 0), E2M1_ROWS_64(row, 64), E2M1_ROWS_64(row, 128),                   \
            E2M1_ROWS_64(row, 192)                                                             \
    }

#endif
