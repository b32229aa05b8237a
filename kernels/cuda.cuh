/* What every CUDA op shares: launches, reductions of a fixed order, context. Internal to
 * kernels/.
 *
 * The files compile twice: by nvcc, and as host C++ with tests/support/cuda_emulation.h in
 * front (K_CUDA_EMULATED), where every op meets the same tests as the host backends. So kernels
 * keep to what both know: K_LAUNCH for launches, one K_SHARED buffer a kernel, barriers and
 * exchanges that all threads of a block or mask reach.
 *
 * Order of sums: within a thread ascending, then the lanes of a warp by xor of 16, 8, 4, 2, 1,
 * then the warps of a block ascending. It depends on the summed dimension and the block size,
 * which is fixed per kernel: a row has the same bits in any company. fmad is off; where a
 * multiply-add is meant it is written fmaf. */
#ifndef KERNELS_CUDA_CUH
#define KERNELS_CUDA_CUH

#ifndef K_CUDA_EMULATED
#include <cuda_runtime.h>
#endif

#include "kernels/bits.h"
#include "kernels/kernels.h"
#include "kernels/math.h"

#ifdef K_CUDA_EMULATED
#define K_LAUNCH(kernel, grid, block, shared, k, ...)                                          \
    do {                                                                                       \
        if (k_ready((k), NULL, (shared))) {                                                    \
            cuda_emulation::queue(#kernel, kernel, (grid), (block), (shared),                  \
                                  (k)->ctx->stream, __VA_ARGS__);                              \
            k_launched((k), cudaGetLastError(), #kernel);                                      \
        }                                                                                      \
    } while (0)
#define K_SHARED(type, name) type *name = (type *)cuda_emulation::shared_memory()
#else
/* Queues kernel(...) on the table's stream unless an earlier op failed; keeps the first
 * failure. */
#define K_LAUNCH(kernel, grid, block, shared, k, ...)                                          \
    do {                                                                                       \
        if (k_ready((k), (const void *)kernel, (shared))) {                                    \
            kernel<<<(grid), (block), (shared), (k)->ctx->stream>>>(__VA_ARGS__);              \
            k_launched((k), cudaGetLastError(), #kernel);                                      \
        }                                                                                      \
    } while (0)
#define K_SHARED(type, name)                                                                   \
    extern __shared__ __align__(16) unsigned char k_shared_bytes[];                            \
    type *name = reinterpret_cast<type *>(k_shared_bytes)
#endif

#ifdef K_CUDA_EMULATED
#define K_UNROLL
#else
#define K_UNROLL _Pragma("unroll") /* arrays indexed in the loop stay in registers */
#endif

#define K_WARP 32u
#define K_ALL_LANES 0xffffffffu

/* Device scratch by use; grows and is kept. An op owns its slots from entry to return. */
enum k_cuda_slot {
    K_CUDA_LINEAR_X,
    K_CUDA_LINEAR_PART,
    K_CUDA_MOE_LISTS,
    K_CUDA_MOE_EXPERTS,
    K_CUDA_MOE_GATE,
    K_CUDA_MOE_UP,
    K_CUDA_MOE_Y,
    K_CUDA_INDEX_SCORE,
    K_CUDA_INDEX_BLOCK,
    K_CUDA_INDEX_QUERY,
    K_CUDA_ATTENTION_PART,
    K_CUDA_SAMPLE_BEST,
    K_CUDA_SAMPLE_WEIGHT,
    K_CUDA_SAMPLE_NUMBER,
    K_N_CUDA_SLOTS
};

/* The table's context: one device, one stream. */
struct k_ctx {
    int device;
    int multiprocessors;
    int shared_bytes; /* that a block may have */
    uint8_t *staging; /* pinned memory that small copies pass through, as a ring */
    size_t staged;    /* bytes of it in use, up to the next wait */
    cudaStream_t uploads;
    struct k_vmm *vmm;         /* cuda_memory.cu */
    struct k_growing *growing; /* list of what reserve() gave */
    cudaStream_t stream;
    bool recording,
        record_failed; /* between record() and record_end(); it will come to nothing */
    cudaGraphExec_t record[K_MAX_RECORDS];
    enum err failed; /* first failure since sync, and what it was */
    char what[160];
    struct {
        void *p;
        size_t bytes;
    } slot[K_N_CUDA_SLOTS];
    char numerics[32];
};

/* The device of a call is one that its thread has chosen, and a table may be opened by one
 * thread and used by another: before every launch and allocation. */
static inline void k_cuda_enter(const struct k_ctx *ctx)
{
    (void)cudaSetDevice(ctx->device); /* a device that is gone fails what follows */
}

/* At least `bytes` of device scratch, contents undefined; NULL: kept as a failure. */
void *k_cuda_scratch(struct kernels *k, enum k_cuda_slot slot, size_t bytes);
/* False after an earlier failure. Raises a kernel's limit of shared memory where it must be. */
bool k_ready(struct kernels *k, const void *kernel, size_t shared_bytes);
void k_launched(struct kernels *k, cudaError_t rc, const char *kernel);

/* Whether this device can run what the library holds. */
bool k_cuda_is_built_for_device(void);

/* cuda_record.cu: the table's hooks of the same names. */
bool k_cuda_record(struct kernels *k);
bool k_cuda_record_end(struct kernels *k, uint32_t slot);
bool k_cuda_replay(struct kernels *k, uint32_t slot);
/* Scratch has moved, or the device is closed. */
void k_cuda_forget_records(struct k_ctx *ctx);

/* cuda_memory.cu: the table's hooks of the same names. */
enum err k_cuda_memory_open(struct k_ctx *ctx, struct error *e);
void k_cuda_memory_close(struct kernels *k);
void *k_cuda_reserve(struct kernels *k, size_t bytes);
enum err k_cuda_grow(struct kernels *k, void *p, size_t from, size_t to, struct error *e);
void k_cuda_discard(struct kernels *k, void *p, size_t from, size_t to);
void k_cuda_release(struct kernels *k, void *p, size_t bytes);
bool k_cuda_pin(struct kernels *k, void *p, size_t bytes);
void k_cuda_unpin(struct kernels *k, void *p);
bool k_cuda_upload(struct kernels *k, void *dst, const void *src, size_t bytes);
enum err k_cuda_upload_end(struct kernels *k, struct error *e);
enum err k_cuda_describe(struct kernels *k, struct k_device *out, struct error *e);

static inline unsigned k_div_up(size_t n, size_t by)
{
    return (unsigned)((n + by - 1) / by);
}

__device__ static inline float k_rounded(float x, enum k_round round)
{
    return round == K_BF16 ? k_bf16(x) : x;
}

__host__ __device__ static inline size_t k_row_stride(size_t stride, size_t d)
{
    return stride ? stride : d;
}

__device__ static inline float k_warp_sum(float x)
{
    for (int bits = 16; bits; bits /= 2)
        x += __shfl_xor_sync(K_ALL_LANES, x, bits);
    return x;
}

/* Sum over a block of blockDim.x threads (a multiple of 32); every thread gets it. scratch has
 * room for a float per warp. All threads call it. */
__device__ static inline float k_block_sum(float x, float *scratch)
{
    unsigned n_warps = blockDim.x / K_WARP;
    x = k_warp_sum(x);
    if (threadIdx.x % K_WARP == 0)
        scratch[threadIdx.x / K_WARP] = x;
    __syncthreads();
    float sum = 0;
    for (unsigned w = 0; w < n_warps; w++)
        sum += scratch[w];
    __syncthreads();
    return sum;
}

/* One value of a weight matrix, exact. w is a copy in the kernel's arguments. */
__device__ static inline float k_weight_value(const struct k_weight &w, size_t o, size_t i)
{
    const uint8_t *data = (const uint8_t *)w.data;
    size_t at = o * w.n_in + i;
    switch (w.type) {
    case K_W_F32:
        return ((const float *)w.data)[at];
    case K_W_BF16:
        return k_bf16_to_f32(((const uint16_t *)w.data)[at]);
    case K_W_FP8_32X32:
        return k_e4m3_to_f32(data[at]) *
               k_e8m0_to_f32(w.scale[o / 32 * (w.n_in / 32) + i / 32]);
    case K_W_FP4_1X32:
        return k_e2m1_to_f32((uint8_t)(data[at / 2] >> (i % 2 * 4))) *
               k_e8m0_to_f32(w.scale[at / 32]);
    }
    return 0;
}

/* The run of a list that row `row` of the batch belongs to. */
__device__ static inline const struct k_run &k_run_of_row(const struct k_run *runs,
                                                          uint32_t n_runs, uint32_t row)
{
    uint32_t i = row - runs[0].row; /* with a row each, this one; never one before */
    i = i < n_runs ? i : n_runs - 1;
    while (runs[i].row > row)
        i--;
    return runs[i];
}

/* The run that completes group number `group`, or NULL. */
__device__ static inline const struct k_run *k_run_of_group(const struct k_run *runs,
                                                            uint32_t n_runs, uint32_t source,
                                                            uint32_t group)
{
    for (uint32_t i = 0; i < n_runs; i++) {
        uint32_t first = runs[i].source[source].first;
        if (group >= first && group - first < runs[i].source[source].n)
            return &runs[i];
    }
    return NULL;
}

/* A call over a list of runs becomes that of the run that query i belongs to, where it is
 * number i from then on. The first thing that a kernel does. */
__device__ static inline void k_single_run(struct k_attention &a, size_t &i,
                                           size_t window_bytes)
{
    if (!a.runs)
        return;
    const struct k_run &r = k_run_of_row(a.runs, a.n_runs, a.row0 + (uint32_t)i);
    size_t skip = r.row - a.row0, width = (size_t)a.n_head * a.d;
    a.q += skip * width, a.out += skip * width;
    a.keys = (const uint8_t *)a.keys + skip * window_bytes;
    a.sel = a.sel ? a.sel + skip * a.n_sel : NULL;
    a.ring = r.ring + a.ring_at;
    a.rows = a.sel ? r.source[a.source].rows : NULL;
    a.pos0 = r.pos0, a.lo = r.lo[a.layer_class], a.n = r.n;
    i -= skip;
}

/* The same, but query i keeps its number: pos0 and keys are such that it finds its own. */
__device__ static inline void k_single_run(struct k_index &a, size_t i)
{
    if (!a.runs)
        return;
    uint32_t row = a.row0 + (uint32_t)i;
    const struct k_run &r = k_run_of_row(a.runs, a.n_runs, row);
    a.keys = r.source[a.source].keys;
    a.pos0 = r.pos0 + (row - r.row) - i;
}

/* The ops. */
void k_embed_cuda(struct kernels *k, const struct k_embed *a);
void k_hc_mix_cuda(struct kernels *k, const struct k_hc_mix *a);
void k_hc_collapse_cuda(struct kernels *k, const struct k_hc_collapse *a);
void k_hc_update_cuda(struct kernels *k, const struct k_hc_update *a);
void k_rmsnorm_cuda(struct kernels *k, const struct k_rmsnorm *a);
void k_linear_cuda(struct kernels *k, const struct k_linear *a);
void k_rope_table_cuda(struct kernels *k, const struct k_rope_table *a);
void k_rope_cuda(struct kernels *k, const struct k_rope *a);
void k_encode_cuda(struct kernels *k, const struct k_encode *a);
void k_decode_cuda(struct kernels *k, const struct k_decode *a);
void k_fake_quant_cuda(struct kernels *k, const struct k_fake_quant *a);
void k_compress_cuda(struct kernels *k, const struct k_compress *a);
void k_attention_cuda(struct kernels *k, const struct k_attention *a);
void k_index_cuda(struct kernels *k, const struct k_index *a);
void k_ring_cuda(struct kernels *k, const struct k_ring *a);
void k_route_cuda(struct kernels *k, const struct k_route *a);
void k_scale_cuda(struct kernels *k, const struct k_scale *a);
void k_moe_cuda(struct kernels *k, const struct k_moe *a);
void k_moe_part_cuda(struct kernels *k, const struct k_moe *a);
void k_moe_sum_cuda(struct kernels *k, const struct k_moe *a);
void k_engram_rows_cuda(struct kernels *k, const struct k_engram_rows *a);
void k_engram_put_cuda(struct kernels *k, const struct k_engram_put *a);
void k_engram_gate_cuda(struct kernels *k, const struct k_engram_gate *a);
void k_sample_cuda(struct kernels *k, const struct k_sample *a);

#endif
