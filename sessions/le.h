/* Little-endian numbers at byte offsets, for the on-disk formats of this folder. */
#ifndef SESSIONS_LE_H
#define SESSIONS_LE_H

#include <stdint.h>

static inline void le_put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static inline void le_put64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static inline uint32_t le_take32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t le_take64(const uint8_t *p)
{
    return (uint64_t)le_take32(p) | (uint64_t)le_take32(p + 4) << 32;
}

#endif
