/* Writes a run's keys into the rings of several layers at once.
 *
 * ring  [n_layers][window] rows of row_bytes: position p goes to slot p % window
 * keys  [n_layers][n] rows, key_stride bytes from layer to layer: positions pos0 .. pos0+n-1.
 *       The last `window` of them count
 *
 * Bytes, as they are. */
#ifndef KERNELS_RING_H
#define KERNELS_RING_H

#include "kernels/types.h"

struct k_ring {
    uint8_t *ring;
    const uint8_t *keys;
    size_t key_stride;
    uint64_t pos0;
    size_t n;
    uint32_t n_layers, window, row_bytes;
};

#endif
