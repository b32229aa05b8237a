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

/* Eight values of output o from input i on (i % 8 == 0) as bf16. */
__device__ static inline void k_mma_weights(const struct k_weight &w, size_t o, uint32_t i,
                                            uint16_t out[8])
{
    size_t at = o * w.n_in + i;
    if (w.type == K_W_BF16) {
        *(uint4 *)out = *(const uint4 *)((const uint16_t *)w.data + at);
        return;
    }
    __align__(8) uint8_t codes[8];
    bool fp8 = w.type == K_W_FP8_32X32;
    float scale =
        k_e8m0_to_f32(fp8 ? w.scale[o / 32 * (w.n_in / 32) + i / 32] : w.scale[at / 32]);
    if (fp8)
        *(uint2 *)codes = *(const uint2 *)((const uint8_t *)w.data + at);
    else
        *(uint32_t *)codes = *(const uint32_t *)((const uint8_t *)w.data + at / 2);
    for (unsigned q = 0; q < 8; q++) {
        float v = fp8 ? k_e4m3_to_f32(codes[q])
                      : k_e2m1_to_f32((uint8_t)(codes[q / 2] >> (q % 2 * 4)));
        out[q] = k_f32_to_bf16(v * scale);
    }
}

template <unsigned M, unsigned N, typename X>
__device__ static inline void k_mma_stage(struct k_mma_shared<M, N> *s,
                                          const struct k_weight &w, size_t o0, size_t o_end,
                                          X x, uint32_t k0)
{
    __align__(16) uint16_t part[8];
    for (unsigned c = threadIdx.x; c < 4 * 16 * M * (K_MMA_IN / 8); c += K_MMA_THREADS) {
        unsigned o = c / (K_MMA_IN / 8), i = c % (K_MMA_IN / 8) * 8;
        memset(part, 0, sizeof part);
        if (o0 + o < o_end)
            k_mma_weights(w, o0 + o, k0 + i, part);
        *(uint4 *)&s->w[o][i] = *(const uint4 *)part;
    }
    for (unsigned c = threadIdx.x; c < 8 * N * (K_MMA_IN / 8); c += K_MMA_THREADS) {
        unsigned r = c / (K_MMA_IN / 8), i = c % (K_MMA_IN / 8) * 8;
        const float *from = x(r);
        for (unsigned q = 0; q < 8; q++)
            part[q] = from ? k_f32_to_bf16(from[k0 + i + q]) : 0;
        *(uint4 *)&s->x[r][i] = *(const uint4 *)part;
    }
}

__device__ static inline uint32_t k_mma_pair(const uint16_t *p)
{
    return *(const uint32_t *)p;
}

/* sum[m][n][i]: outputs o0 + k_mma_out<M>(m, i) of rows k_mma_row(n, i); x(r): the n_in inputs
 * of tile row r, or NULL. Outputs from o_end on are undefined. All threads of the block call
 * it. */
template <unsigned M, unsigned N, typename X>
__device__ static inline void k_mma_product(struct k_mma_shared<M, N> *s,
                                            const struct k_weight &w, size_t o0, size_t o_end,
                                            X x, float sum[M][N][4])
{
    unsigned warp = threadIdx.x / K_WARP, lane = threadIdx.x % K_WARP;
    K_UNROLL
    for (unsigned at = 0; at < M * N * 4; at++)
        sum[at / (N * 4)][at / 4 % N][at % 4] = 0;
    for (uint32_t k0 = 0; k0 < w.n_in; k0 += K_MMA_IN) {
        k_mma_stage(s, w, o0, o_end, x, k0);
        __syncthreads();
        for (unsigned i = lane % 4 * 2; i < K_MMA_IN; i += 16) {
            uint32_t b[N][2];
            K_UNROLL
            for (unsigned n = 0; n < N; n++) {
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
