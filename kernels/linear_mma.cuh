/* The product of linear_tile.cuh on tensor cores, for inputs that are bf16 values and weights
 * of any type but f32 (each of their values is exactly a bf16).
 *
 * mma.m16n8k16 with outputs as M and rows as N: one row uses an eighth of an instruction, and
 * the sum of an output runs over the inner dimension in ascending steps of 16 whatever the
 * tile, so tiles may be chosen by the number of rows without changing a bit. A block is four
 * warps; each has M tiles of 16 outputs and all N tiles of 8 rows. Weights are expanded into
 * shared memory once per block, 32 inputs (one scale) at a time. */
#ifndef KERNELS_LINEAR_MMA_CUH
#define KERNELS_LINEAR_MMA_CUH

#include "kernels/cuda.cuh"

#define K_MMA_THREADS 128u
#define K_MMA_IN 32u
#define K_MMA_PITCH                                                                            \
    (K_MMA_IN + 8) /* bf16: rows 20 banks apart, fragments without conflicts                   \
                    */

template <unsigned M, unsigned N> struct k_mma_shared {
    __align__(16) uint16_t w[4 * 16 * M][K_MMA_PITCH];
    __align__(16) uint16_t x[8 * N][K_MMA_PITCH];
};

/* D += A B; fragments as in the PTX ISA, "Matrix Fragments for mma.m16n8k16". */
__device__ static inline void k_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef K_CUDA_EMULATED
    cuda_emulated_mma_bf16(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* Can this weight be read eight values at a time, and its values be bf16? */
__host__ __device__ static inline bool k_mma_takes(const struct k_weight &w, enum k_round in)
{
    return in != K_EXACT && w.type != K_W_F32 && w.n_in % K_MMA_IN == 0 &&
           (uintptr_t)w.data % 16 == 0;
}

/* a b of both halves, bf16. */
__device__ static inline uint32_t k_mma_times(uint32_t a, uint32_t b)
{
#ifdef K_CUDA_EMULATED
    return cuda_emulated_bf16x2_mul(a, b);
#else
    uint32_t product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
#endif
}

/* Two E4M3 codes, in bits 8..15 and 24..31, as bf16: exponent and mantissa fall into place, but
 * for a bias that 2^120 makes up for; NaN (0x7f) has to be made. */
__device__ static inline uint32_t k_mma_e4m3(uint32_t codes)
{
    uint32_t nan = ((codes & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
    uint32_t bits = (codes & 0x80008000u) | (codes & 0x7f007f00u) >> 4 | (nan >> 15) * 0x7fc0u;
    return k_mma_times(bits, 0x7b807b80u);
}

/* The two E2M1 codes of the low byte as bf16, in the same way. */
__device__ static inline uint32_t k_mma_e2m1(uint32_t codes)
{
    uint32_t y = (codes & 0x0fu) << 12 | (codes & 0xf0u) << 24;
    return k_mma_times((y & 0x80008000u) | (y & 0x70007000u) >> 6, 0x7e807e80u); /* 2^126 */
}

/* 2^(code - 127) as a pair; 255: NaN. */
__device__ static inline uint32_t k_mma_scale(uint8_t code)
{
    return k_f32_to_bf16(k_e8m0_to_f32(code)) * 0x10001u;
}

/* Eight values of output o from input i on (i % 8 == 0) as bf16. */
__device__ static inline uint4 k_mma_weights(const struct k_weight &w, size_t o, uint32_t i)
{
    size_t at = o * w.n_in + i;
    if (w.type == K_W_BF16)
        return *(const uint4 *)((const uint16_t *)w.data + at);
    uint32_t pair[4];
    if (w.type == K_W_FP8_32X32) {
        uint2 codes = *(const uint2 *)((const uint8_t *)w.data + at);
        uint32_t scale = k_mma_scale(w.scale[o / 32 * (w.n_in / 32) + i / 32]);
        K_UNROLL
        for (unsigned q = 0; q < 4; q++) {
            uint32_t two = (q < 2 ? codes.x : codes.y) >> q % 2 * 16;
            two = (two << 8 & 0xff00u) | (two << 16 & 0xff000000u);
            pair[q] = k_mma_times(k_mma_e4m3(two), scale);
        }
    } else {
        uint32_t codes = *(const uint32_t *)((const uint8_t *)w.data + at / 2);
        uint32_t scale = k_mma_scale(w.scale[at / 32]);
        K_UNROLL
        for (unsigned q = 0; q < 4; q++)
            pair[q] = k_mma_times(k_mma_e2m1(codes >> q * 8), scale);
    }
    return {pair[0], pair[1], pair[2], pair[3]};
}

/* Eight inputs as bf16, nearest even. */
__device__ static inline uint4 k_mma_inputs(const float *from)
{
    __align__(16) float x[8];
    uint32_t pair[4];
    if ((uintptr_t)from % 16 == 0) {
        *(float4 *)x = *(const float4 *)from;
        *(float4 *)(x + 4) = *(const float4 *)(from + 4);
    } else {
        K_UNROLL
        for (unsigned q = 0; q < 8; q++)
            x[q] = from[q];
    }
    K_UNROLL
    for (unsigned q = 0; q < 4; q++) {
#ifdef K_CUDA_EMULATED
        pair[q] = k_f32_to_bf16(x[2 * q]) | (uint32_t)k_f32_to_bf16(x[2 * q + 1]) << 16;
#else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair[q]) : "f"(x[2 * q + 1]), "f"(x[2 * q]));
#endif
    }
    return {pair[0], pair[1], pair[2], pair[3]};
}

template <unsigned M, unsigned N, typename X>
__device__ static inline void k_mma_stage(struct k_mma_shared<M, N> *s,
                                          const struct k_weight &w, size_t o0, size_t o_end,
                                          X x, uint32_t k0, unsigned used)
{
    for (unsigned c = threadIdx.x; c < 4 * 16 * M * (K_MMA_IN / 8); c += K_MMA_THREADS) {
        unsigned o = c / (K_MMA_IN / 8), i = c % (K_MMA_IN / 8) * 8;
        uint4 eight = {0, 0, 0, 0};
        if (o0 + o < o_end)
            eight = k_mma_weights(w, o0 + o, k0 + i);
        *(uint4 *)&s->w[o][i] = eight;
    }
    for (unsigned c = threadIdx.x; c < 8 * used * (K_MMA_IN / 8); c += K_MMA_THREADS) {
        unsigned r = c / (K_MMA_IN / 8), i = c % (K_MMA_IN / 8) * 8;
        const float *from = x(r);
        uint4 eight = {0, 0, 0, 0};
        if (from)
            eight = k_mma_inputs(from + k0 + i);
        *(uint4 *)&s->x[r][i] = eight;
    }
}

__device__ static inline uint32_t k_mma_pair(const uint16_t *p)
{
    return *(const uint32_t *)p;
}

/* sum[m][n][i]: outputs o0 + k_mma_out<M>(m, i) of rows k_mma_row(n, i); x(r): the n_in inputs
 * of tile row r, or NULL. Of them those from `from` to before `to` are summed (multiples of
 * 32). Outputs from o_end on, and rows from 8 used on, are undefined. All threads of the block
 * call it. */
template <unsigned M, unsigned N, typename X>
__device__ static inline void k_mma_product(struct k_mma_shared<M, N> *s,
                                            const struct k_weight &w, size_t o0, size_t o_end,
                                            X x, uint32_t from, uint32_t to, unsigned used,
                                            float sum[M][N][4])
{
    unsigned warp = threadIdx.x / K_WARP, lane = threadIdx.x % K_WARP;
    K_UNROLL
    for (unsigned at = 0; at < M * N * 4; at++)
        sum[at / (N * 4)][at / 4 % N][at % 4] = 0;
    for (uint32_t k0 = from; k0 < to; k0 += K_MMA_IN) {
        k_mma_stage(s, w, o0, o_end, x, k0, used);
        __syncthreads();
        for (unsigned i = lane % 4 * 2; i < K_MMA_IN; i += 16) {
            uint32_t b[N][2];
            K_UNROLL
            for (unsigned n = 0; n < N; n++) {
                if (n >= used)
                    continue;
                b[n][0] = k_mma_pair(&s->x[n * 8 + lane / 4][i]);
                b[n][1] = k_mma_pair(&s->x[n * 8 + lane / 4][i + 8]);
            }
            K_UNROLL
            for (unsigned m = 0; m < M; m++) {
                const uint16_t(*row)[K_MMA_PITCH] = &s->w[(warp * M + m) * 16 + lane / 4];
                uint32_t a[4] = {k_mma_pair(&row[0][i]), k_mma_pair(&row[8][i]),
                                 k_mma_pair(&row[0][i + 8]), k_mma_pair(&row[8][i + 8])};
                K_UNROLL
                for (unsigned n = 0; n < N; n++)
                    if (n < used)
                        k_mma_bf16(sum[m][n], a, b[n]);
            }
        }
        __syncthreads();
    }
}

/* Where value i of fragment (m, n) of this thread belongs. */
template <unsigned M> __device__ static inline unsigned k_mma_out(unsigned m, unsigned i)
{
    return (threadIdx.x / K_WARP * M + m) * 16 + threadIdx.x % K_WARP / 4 + i / 2 * 8;
}

__device__ static inline unsigned k_mma_row(unsigned n, unsigned i)
{
    return n * 8 + threadIdx.x % 4 * 2 + i % 2;
}

#endif
