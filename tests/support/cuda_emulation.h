/* CUDA C++ as host C++: the language and the part of the runtime that kernels/ uses.
 *
 * The same .cu files that nvcc compiles are compiled by g++ with this header in front (the
 * Makefile does it), and a launch runs its grid on the calling thread, block after block. Every
 * CUDA thread is a fiber: __syncthreads is a real barrier, a warp exchange waits for its lanes,
 * shared memory is one buffer of exactly the launch's size, full of NaN when a block starts.
 * What is undefined on a device is an error here: a barrier that some thread of the block never
 * reaches (it exited, or waits elsewhere), an exchange whose lanes do not all arrive. Such a
 * launch prints kernel, block and thread, and aborts.
 *
 * Fibers run in an order that changes from block to block (ascending, descending, mixed), so
 * that a missing barrier shows as a wrong result in some block of some shape.
 *
 * Device memory is host memory of exactly the size asked for, so ASan sees what runs out of
 * bounds. Tensor-core products are emulated from the documented fragment layouts. */
#ifndef TESTS_SUPPORT_CUDA_EMULATION_H
#define TESTS_SUPPORT_CUDA_EMULATION_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#define K_CUDA_EMULATED 1

#define __global__ static
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};

namespace cuda_emulation
{
/* The fiber that runs now. */
struct place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    unsigned lane, warp;
};
extern place here;

/* Runs the grid; body is one thread's work. name is for messages. */
void launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
            const std::function<void()> &body);
void *shared_memory();
void block_barrier();
/* All lanes of mask meet, each with a value of at most 48 bytes. The value of a lane of mask is
 * at lane_value(lane, the result) until this lane calls part(), which it must. */
unsigned meet(unsigned mask, const void *mine, size_t bytes);
const void *lane_value(unsigned lane, unsigned slot);
void part(unsigned slot);

template <typename T> static inline T value_of(unsigned mask, const T &mine, unsigned lane)
{
    static_assert(sizeof(T) <= 48, "an exchange carries 48 bytes");
    T value;
    unsigned slot = meet(mask, &mine, sizeof mine);
    memcpy(&value, lane_value(lane, slot), sizeof value);
    part(slot);
    return value;
}
} // namespace cuda_emulation

#define threadIdx (cuda_emulation::here.thread)
#define blockIdx (cuda_emulation::here.block)
#define blockDim (cuda_emulation::here.block_dim)
#define gridDim (cuda_emulation::here.grid_dim)
#define warpSize 32

static inline void __syncthreads()
{
    cuda_emulation::block_barrier();
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    cuda_emulation::value_of(mask, 0, cuda_emulation::here.lane);
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32)
{
    unsigned lane = cuda_emulation::here.lane, base = lane / (unsigned)width * (unsigned)width;
    return cuda_emulation::value_of(mask, value, base + (unsigned)from % (unsigned)width);
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits)
{
    return cuda_emulation::value_of(mask, value,
                                    (cuda_emulation::here.lane ^ (unsigned)bits) & 31u);
}

template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by)
{
    unsigned lane = cuda_emulation::here.lane;
    return cuda_emulation::value_of(mask, value, lane + by < 32 ? lane + by : lane);
}

template <typename T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by)
{
    unsigned lane = cuda_emulation::here.lane;
    return cuda_emulation::value_of(mask, value, lane >= by ? lane - by : lane);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned votes = 0, slot = cuda_emulation::meet(mask, &predicate, sizeof predicate);
    for (unsigned i = 0; i < 32; i++) {
        int vote = 0;
        if (mask >> i & 1u)
            memcpy(&vote, cuda_emulation::lane_value(i, slot), sizeof vote);
        votes |= vote ? 1u << i : 0u;
    }
    cuda_emulation::part(slot);
    return votes;
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

/* Fibers change only at barriers and exchanges: a plain read and write is atomic here. */
template <typename T> static inline T atomicAdd(T *p, T value)
{
    T old = *p;
    *p = old + value;
    return old;
}

template <typename T> static inline T atomicMax(T *p, T value)
{
    T old = *p;
    *p = old > value ? old : value;
    return old;
}

template <typename T> static inline T atomicMin(T *p, T value)
{
    T old = *p;
    *p = old < value ? old : value;
    return old;
}

template <typename T> static inline T atomicOr(T *p, T value)
{
    T old = *p;
    *p = old | value;
    return old;
}

template <typename T> static inline T atomicCAS(T *p, T compare, T value)
{
    T old = *p;
    if (old == compare)
        *p = value;
    return old;
}

static inline void __threadfence()
{
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}

/* D = A B + D, m16 n8 k16, bf16 in and f32 sums: the fragments of mma.sync.aligned.m16n8k16
 * (PTX ISA, "Matrix Fragments for mma.m16n8k16"). */
void cuda_emulated_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void cuda_emulated_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2]);
/* fma.rn.bf16x2 with -0 added. */
uint32_t cuda_emulated_bf16x2_mul(uint32_t a, uint32_t b);
/* ldmatrix.m8n8.x4.b16: lane l names row l % 8 of matrix l / 8 and gets values 2 (l % 4) and
 * the next of row l / 4 of each, or, transposed, column l / 4 of these two rows. */
void cuda_emulated_ldmatrix(uint32_t r[4], const void *row, bool transposed);
/* cvt.rn.f16x2.f32 (x low) and cvt.f32.f16. */
uint32_t cuda_emulated_f16x2(float x, float y);
float cuda_emulated_f16_to_f32(uint16_t half);

/* ---- runtime ------------------------------------------------------------------------------
 */

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef void *cudaEvent_t;
enum {
    cudaSuccess = 0,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidDevice = 101,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901
};
#define CUDART_VERSION 13000

enum { cudaHostRegisterDefault };
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};

/* Memory of the device is of exactly the size asked for; cuda_emulation.cc counts it, and may
 * be told to run out (cuda_emulated_memory). */
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total);
/* Copies run at once. A memset runs as late as it may: with the next work of its stream. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t stream);
/* Of the calling thread, as on a machine; AGENTD_EMULATED_DEVICES says how many there are. */
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceCount(int *n);
enum { cudaStreamNonBlocking = 1 };
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaGetLastError();
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin };
/* Five multiprocessors, so that few blocks fill them; shared memory as on sm_90, or what
 * AGENTD_EMULATED_SHARED_BYTES says. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);

/* Graphs: what is captured is kept with its arguments as they are, byte by byte, and done at
 * each launch. While a stream is captured nothing of its thread may allocate, free or wait: as
 * on a device these fail, and so does the capture. A copy from or to the host aborts: a device
 * would take it and read the host's memory at each launch. */
typedef void *cudaGraph_t;
typedef void *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);

namespace cuda_emulation
{
/* Does it at once, after what is due on the stream, or keeps it where the stream is captured.
 * Aborts where the stream is of another device than the thread's. */
void submit(cudaStream_t stream, const std::function<void()> &work);

template <typename... P, typename... A>
void queue(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
           cudaStream_t stream, const A &...args)
{
    std::tuple<P...> values(args...);
    submit(stream, [=] {
        launch(name, grid, block, shared_bytes, [&] { std::apply(kernel, values); });
    });
}
} // namespace cuda_emulation
static inline cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    *p = malloc(bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
static inline cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}
static inline const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorInvalidDevice  ? "invalid device ordinal"
                                              : "emulated error";
}
static inline cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    (void)p, (void)bytes, (void)flags;
    return cudaSuccess;
}
static inline cudaError_t cudaHostUnregister(void *p)
{
    (void)p;
    return cudaSuccess;
}
static inline cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
static inline cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
struct cudaDeviceProp {
    char name[256];
};
static inline cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    snprintf(p->name, sizeof p->name, "emulated device");
    return cudaSuccess;
}

/* ---- the driver's virtual memory management -----------------------------------------------
 */

typedef int CUresult;
typedef uintptr_t CUdeviceptr;
typedef uint64_t CUmemGenericAllocationHandle;
enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2 };
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum CUmemAllocationGranularity_flags { CU_MEM_ALLOC_GRANULARITY_MINIMUM };
struct CUmemLocation {
    int type, id;
};
struct CUmemAllocationProp {
    int type;
    struct CUmemLocation location;
};
struct CUmemAccessDesc {
    struct CUmemLocation location;
    int flags;
};
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess,
    cudaDriverEntryPointSymbolNotFound
};
enum { cudaEnableDefault };
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **p, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found);

#endif
