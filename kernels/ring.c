#include "kernels/ring.h"

#include <string.h>

#include "kernels/host.h"

void k_ring_ref(struct kernels *k, const struct k_ring *a)
{
    if (k_failed(k))
        return;
    size_t row = a->row_bytes, w = a->window;
    for (size_t l = 0; l < a->n_layers; l++) {
        uint8_t *ring = a->ring + l * w * row;
        const uint8_t *keys = a->keys + l * a->key_stride;
        for (size_t i = a->n > w ? a->n - w : 0, more; i < a->n;
             i += more) { /* one piece or two */
            size_t slot = (size_t)((a->pos0 + i) % w);
            more = a->n - i < w - slot ? a->n - i : w - slot;
            memcpy(ring + slot * row, keys + i * row, more * row);
        }
    }
}
