/* Memory of the emulated device: blocks of exactly the size asked for, and address space into
 * which granules are mapped. What is not allowed on a device aborts. All of it counts, so that
 * a test can see what is left, or have less: AGENTD_EMULATED_DEVICE_BYTES. */
#include "tests/support/cuda_emulation.h"

#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <vector>

#define GRANULE ((size_t)16384)
#define DEFAULT_BYTES ((size_t)1 << 40)

namespace
{
struct mapping {
    size_t bytes;
    bool accessible;
};

std::map<void *, size_t> blocks;
std::map<CUdeviceptr, size_t> spaces;
std::map<CUdeviceptr, mapping> mappings;
std::map<CUmemGenericAllocationHandle, size_t> handles;
CUmemGenericAllocationHandle last_handle;
size_t n_used;

struct fill {
    void *p;
    int byte;
    size_t bytes;
};

typedef std::vector<std::function<void()>> graph;

struct stream {
    int device;
    std::mutex lock; /* uploads come from any thread */
    std::vector<fill> fills;
    graph *captured; /* NULL: it is not */
    bool invalid;    /* something was done that ends a capture */
};

/* Aligned, as mold else may begin what it protects after relocation a page too early: a
 * program of just the wrong size does not start then. */
alignas(64) thread_local int current_device;
thread_local stream *capturing; /* of this thread */
thread_local cudaError_t last_error;

[[noreturn]] void refuse(const char *what)
{
    fprintf(stderr, "cuda emulation: %s\n", what);
    abort();
}

size_t n_total()
{
    const char *limit = getenv("AGENTD_EMULATED_DEVICE_BYTES");
    return limit ? (size_t)strtoull(limit, NULL, 10) : DEFAULT_BYTES;
}

bool take(size_t bytes)
{
    if (bytes > n_total() || n_used > n_total() - bytes)
        return false;
    n_used += bytes;
    return true;
}

cudaError_t fails(cudaError_t error)
{
    last_error = error;
    return error;
}

void settle(cudaStream_t handle)
{
    struct stream *s = (struct stream *)handle;
    std::lock_guard<std::mutex> held(s->lock);
    for (const fill &f : s->fills)
        memset(f.p, f.byte, f.bytes);
    s->fills.clear();
}
/* What may not be done beside a capture ends it. */
bool ends_capture()
{
    if (capturing)
        capturing->invalid = true;
    return capturing != NULL;
}
} // namespace

/* ---- devices and streams ---------------------------------------------------------------- */

cudaError_t cudaGetLastError()
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    const char *devices = getenv("AGENTD_EMULATED_DEVICES");
    *n = devices ? (int)strtol(devices, NULL, 10) : 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    const char *shared = getenv("AGENTD_EMULATED_SHARED_BYTES");
    *value = attribute == cudaDevAttrMultiProcessorCount ? 5
             : shared                                    ? (int)strtol(shared, NULL, 10)
                                                         : 227 * 1024;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    int n = 0;
    (void)cudaGetDeviceCount(&n);
    if (device < 0 || device >= n)
        return fails(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    struct stream *s = new stream();
    s->device = current_device;
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    return cudaStreamCreate(out);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (((struct stream *)s)->captured && ends_capture())
        return fails(cudaErrorStreamCaptureUnsupported);
    settle(s);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    settle(s);
    delete (struct stream *)s;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    if (((struct stream *)s)->captured && kind != cudaMemcpyDeviceToDevice)
        refuse("a copy from or to the host is captured");
    if (!((struct stream *)s)->captured) { /* uploads come from threads of no device */
        settle(s);
        memcpy(dst, src, bytes);
        return cudaSuccess;
    }
    cuda_emulation::submit(s, [=] { memcpy(dst, src, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t handle)
{
    struct stream *s = (struct stream *)handle;
    if (s->captured) {
        cuda_emulation::submit(handle, [=] { memset(p, byte, bytes); });
        return cudaSuccess;
    }
    std::lock_guard<std::mutex> held(s->lock);
    s->fills.push_back({p, byte, bytes});
    return cudaSuccess;
}

void cuda_emulation::submit(cudaStream_t handle, const std::function<void()> &work)
{
    struct stream *s = (struct stream *)handle;
    if (s->device != current_device)
        refuse("work on a stream of another device");
    if (s->captured) {
        s->captured->push_back(work);
        return;
    }
    settle(handle);
    work();
}

/* ---- graphs ----------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode)
{
    struct stream *s = (struct stream *)handle;
    if (s->captured || capturing)
        refuse("a capture within a capture");
    s->captured = new graph();
    s->invalid = false;
    capturing = s;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out)
{
    struct stream *s = (struct stream *)handle;
    if (!s->captured || capturing != s)
        refuse("the end of a capture that never began, or of another thread's");
    *out = s->captured;
    s->captured = NULL;
    capturing = NULL;
    if (!s->invalid)
        return cudaSuccess;
    delete (graph *)*out;
    *out = NULL;
    return fails(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long)
{
    *exec = new graph(*(graph *)g);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete (graph *)g;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete (graph *)exec;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    const graph g = *(graph *)exec;
    cuda_emulation::submit(stream, [g] {
        for (const std::function<void()> &work : g)
            work();
    });
    return cudaSuccess;
}

/* ---- memory ----------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = NULL;
    if (ends_capture())
        return fails(cudaErrorStreamCaptureUnsupported);
    if (!take(bytes))
        return fails(cudaErrorMemoryAllocation);
    if (posix_memalign(p, 256, bytes)) {
        n_used -= bytes;
        return fails(cudaErrorMemoryAllocation);
    }
    memset(*p, 0xff, bytes); /* NaN: nobody zeroes it */
    blocks[*p] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    if (ends_capture())
        return fails(cudaErrorStreamCaptureUnsupported);
    auto b = blocks.find(p);
    if (b == blocks.end())
        refuse("free of what was not allocated");
    n_used -= b->second;
    blocks.erase(b);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *total)
{
    *total = n_total();
    *n_free = *total > n_used ? *total - n_used : 0;
    return cudaSuccess;
}

/* ---- virtual memory management ---------------------------------------------------------- */

static CUresult get_granularity(size_t *out, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags)
{
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    *out = GRANULE;
    return CUDA_SUCCESS;
}

static CUresult address_reserve(CUdeviceptr *p, size_t bytes, size_t, CUdeviceptr,
                                unsigned long long)
{
    if (!bytes || bytes % GRANULE)
        refuse("address space that is no multiple of the granule");
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *p = (CUdeviceptr)at;
    spaces[*p] = bytes;
    return CUDA_SUCCESS;
}

static CUresult address_free(CUdeviceptr p, size_t bytes)
{
    auto s = spaces.find(p);
    auto m = mappings.lower_bound(p);
    if (s == spaces.end() || s->second != bytes ||
        (m != mappings.end() && m->first < p + bytes))
        refuse("address space freed with another size, or with something mapped");
    spaces.erase(s);
    munmap((void *)p, bytes);
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t bytes,
                       const CUmemAllocationProp *, unsigned long long)
{
    if (!bytes || bytes % GRANULE)
        refuse("memory that is no multiple of the granule");
    if (!take(bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    handles[ *out = ++last_handle] = bytes;
    return CUDA_SUCCESS;
}

/* Mapped memory lives on: its bytes are the mapping's now. */
static CUresult release(CUmemGenericAllocationHandle h)
{
    auto at = handles.find(h);
    if (at == handles.end())
        refuse("release of no memory");
    n_used -= at->second; /* 0 when it was mapped */
    handles.erase(at);
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle h,
                    unsigned long long)
{
    auto s = spaces.upper_bound(p);
    auto at = handles.find(h);
    if (s == spaces.begin() || at == handles.end() || offset || at->second != bytes)
        refuse("a mapping of no memory, or nowhere");
    --s;
    if (p + bytes > s->first + s->second || (p - s->first) % GRANULE || mappings.count(p))
        refuse("a mapping outside its address space, or on another");
    at->second = 0;
    mappings[p] = {bytes, false};
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr p, size_t bytes)
{
    auto m = mappings.find(p);
    if (m == mappings.end() || m->second.bytes != bytes)
        refuse("unmap of what is not mapped");
    mprotect((void *)p, bytes, PROT_NONE);
    madvise((void *)p, bytes, MADV_DONTNEED);
    n_used -= bytes;
    mappings.erase(m);
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *access, size_t n)
{
    auto m = mappings.find(p);
    if (m == mappings.end() || m->second.bytes != bytes || n != 1 ||
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        refuse("access to what is not mapped");
    if (mprotect((void *)p, bytes, PROT_READ | PROT_WRITE))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset((void *)p, 0xff, bytes);
    m->second.accessible = true;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **p, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    static const std::map<std::string, void *> calls = {
        {"cuMemGetAllocationGranularity", (void *)get_granularity},
        {"cuMemAddressReserve", (void *)address_reserve},
        {"cuMemAddressFree", (void *)address_free},
        {"cuMemCreate", (void *)create},
        {"cuMemRelease", (void *)release},
        {"cuMemMap", (void *)map},
        {"cuMemUnmap", (void *)unmap},
        {"cuMemSetAccess", (void *)set_access}};
    auto at = calls.find(name);
    (void)version, (void)flags;
    *found =
        at == calls.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    *p = at == calls.end() ? NULL : at->second;
    return cudaSuccess;
}
