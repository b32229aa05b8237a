/* What a query sees, for attention.cu and attention_mma.cu: all that they read of where a run
 * stands. */
#ifndef KERNELS_ATTENTION_KEYS_CUH
#define KERNELS_ATTENTION_KEYS_CUH

#include "kernels/cuda.cuh"

#define K_ATTENTION_BLOCK 64u /* list entries of one step of the online softmax */

/* What query i sees, by number: window entries first, then selected rows. */
struct k_key_list {
    uint64_t from;       /* first position of the window */
    uint32_t n_window;   /* positions, then missing ones up to `pad` */
    uint32_t pad, n_sel; /* entries in all: pad + n_sel */
};

__device__ static inline struct k_key_list k_keys_of(const struct k_attention &a, size_t i)
{
    struct k_key_list l = {0, 0, 0, a.n_sel};
    if (a.window) {
        uint64_t end = a.block ? a.pos0 : a.pos0 + i + 1;
        l.from = end > a.window ? end - a.window : 0;
        l.from = l.from < a.lo ? a.lo : l.from;
        end = a.block ? a.pos0 + a.n : end;
        l.n_window = end > l.from ? (uint32_t)(end - l.from) : 0;
    }
    l.pad = a.prob == K_BF16 && !a.block && l.n_window < a.window ? a.window : l.n_window;
    return l;
}

/* Entry t of the list: its bytes, or NULL; *format as it is stored. */
__device__ static inline const uint8_t *k_key_at(const struct k_attention &a,
                                                 const struct k_key_list &l, size_t i,
                                                 uint32_t t, size_t window_bytes,
                                                 size_t row_bytes)
{
    if (t < l.pad) {
        uint64_t p = l.from + t;
        if (t >= l.n_window)
            return NULL;
        return p < a.pos0 ? (const uint8_t *)a.ring + p % a.window * window_bytes
                          : (const uint8_t *)a.keys + (p - a.pos0) * window_bytes;
    }
    int32_t row = a.sel[i * a.n_sel + (t - l.pad)];
    return row < 0 ? NULL : (const uint8_t *)a.rows + (size_t)row * row_bytes;
}

/* Queries a.from .. this. */
static inline size_t k_attention_to(const struct k_attention &a)
{
    return a.to ? a.to : a.n;
}

/* Keys that a query sees at most, missing ones included. */
static inline size_t k_attention_most(const struct k_attention &a)
{
    size_t own = !a.block ? 0 : a.runs ? a.most : a.n;
    return (size_t)a.window + own + a.n_sel;
}

/* attention_mma.cu: on tensor cores. False where this device or these formats do not allow it;
 * nothing was done then. */
bool k_attention_mma_cuda(struct kernels *k, const struct k_attention *a);

#endif
