/* Memory of a device: what grows where it is, what is pinned, how much there is.
 *
 * Memory that grows is address space of its full size into which granules (2 MiB) are mapped as
 * it grows, by the driver's virtual memory management: rows stay where they are, addresses stay
 * contiguous, and kernels need no table of pages. The runtime has no names for these calls; it
 * gives out the driver's, so that no library but the runtime is linked. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda.cuh"

#ifndef K_CUDA_EMULATED
#include <cuda.h>
#endif

/* Address space for one array. */
struct k_growing {
    struct k_growing *next;
    uint8_t *p;
    size_t bytes;    /* whole granules */
    uint8_t *mapped; /* [bytes / granule] */
};

/* ---- the driver's calls ----------------------------------------------------------------- */

/* ERR_GPU: a driver without them. Each is looked up by its name of CUDA 10.2. */
static bool look_up(const char *name, void *out)
{
    void *p = NULL;
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t rc =
        cudaGetDriverEntryPointByVersion(name, &p, 10020, cudaEnableDefault, &found);
    if (rc != cudaSuccess || found != cudaDriverEntryPointSuccess || !p) {
        (void)cudaGetLastError();
        return false;
    }
    memcpy(out, &p, sizeof p);
    return true;
}

struct k_vmm {
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*address_reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*address_free)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                    unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUmemAllocationProp prop;
    size_t granule;
};

static bool look_up_all(struct k_vmm *v)
{
    return look_up("cuMemGetAllocationGranularity", &v->granularity) &&
           look_up("cuMemAddressReserve", &v->address_reserve) &&
           look_up("cuMemAddressFree", &v->address_free) &&
           look_up("cuMemCreate", &v->create) && look_up("cuMemRelease", &v->release) &&
           look_up("cuMemMap", &v->map) && look_up("cuMemUnmap", &v->unmap) &&
           look_up("cuMemSetAccess", &v->set_access);
}

enum err k_cuda_memory_open(struct k_ctx *ctx, struct error *e)
{
    struct k_vmm *v = (struct k_vmm *)calloc(1, sizeof *v);
    if (!v)
        return err_set(e, ERR_NOMEM, "backend cuda: memory");
    ctx->vmm = v;
    (void)cudaFree(NULL); /* makes the context that the driver's calls need */
    v->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    v->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    v->prop.location.id = ctx->device;
    if (!look_up_all(v) ||
        v->granularity(&v->granule, &v->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        return err_set(e, ERR_UNSUPPORTED,
                       "backend cuda: device %d: no virtual memory management", ctx->device);
    return OK;
}

/* ---- what grows ------------------------------------------------------------------------- */

static struct k_growing *find(const struct k_ctx *ctx, const void *p)
{
    struct k_growing *g = ctx->growing;
    while (g && g->p != p)
        g = g->next;
    return g;
}

static CUdeviceptr address(const struct k_growing *g, size_t at)
{
    return (CUdeviceptr)(uintptr_t)(g->p + at);
}

void *k_cuda_reserve(struct kernels *k, size_t bytes)
{
    struct k_vmm *v = k->ctx->vmm;
    size_t n = (bytes + v->granule - 1) / v->granule;
    struct k_growing *g;
    CUdeviceptr at = 0;
    n = n ? n : 1;
    /* The address space first: where there is so much, its list of granules is small. */
    if (v->address_reserve(&at, n * v->granule, 0, 0, 0) != CUDA_SUCCESS)
        return NULL;
    g = (struct k_growing *)calloc(1, sizeof *g);
    if (g)
        g->mapped = (uint8_t *)calloc(n, 1);
    if (!g || !g->mapped) {
        free(g);
        (void)v->address_free(at, n * v->granule);
        return NULL;
    }
    g->p = (uint8_t *)(uintptr_t)at;
    g->bytes = n * v->granule;
    g->next = k->ctx->growing;
    k->ctx->growing = g;
    return g->p;
}

static bool map_granule(struct kernels *k, struct k_growing *g, size_t i)
{
    struct k_vmm *v = k->ctx->vmm;
    CUmemGenericAllocationHandle h;
    CUmemAccessDesc access = {};
    access.location = v->prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (v->create(&h, v->granule, &v->prop, 0) != CUDA_SUCCESS)
        return false;
    CUresult rc = v->map(address(g, i * v->granule), v->granule, 0, h, 0);
    (void)v->release(h); /* the mapping keeps the memory */
    if (rc != CUDA_SUCCESS)
        return false;
    if (v->set_access(address(g, i * v->granule), v->granule, &access, 1) != CUDA_SUCCESS) {
        (void)v->unmap(address(g, i * v->granule), v->granule);
        return false;
    }
    g->mapped[i] = 1;
    k_launched(k, cudaMemsetAsync(g->p + i * v->granule, 0, v->granule, k->ctx->stream),
               "memset");
    return true;
}

/* Granules [first, last) go back; nothing that is queued may touch them. */
static void unmap(struct kernels *k, struct k_growing *g, size_t first, size_t last)
{
    struct k_vmm *v = k->ctx->vmm;
    (void)cudaStreamSynchronize(k->ctx->stream);
    for (size_t i = first; i < last; i++) {
        if (g->mapped[i])
            (void)v->unmap(address(g, i * v->granule), v->granule);
        g->mapped[i] = 0;
    }
}

enum err k_cuda_grow(struct kernels *k, void *p, size_t from, size_t to, struct error *e)
{
    struct k_growing *g = find(k->ctx, p);
    size_t granule = k->ctx->vmm->granule;
    size_t first = (from + granule - 1) / granule, last = (to + granule - 1) / granule;
    if (!g || to > g->bytes)
        return err_set(e, ERR_INVAL, "%zu bytes of memory that was not reserved", to);
    for (size_t i = first; i < last; i++)
        if (!map_granule(k, g, i)) {
            unmap(k, g, first, i);
            return err_set(e, ERR_NOMEM, "device %d: %zu bytes of memory", k->ctx->device,
                           (last - first) * granule);
        }
    if (first < last) /* uploads, which wait for no op, may come next */
        k_launched(k, cudaStreamSynchronize(k->ctx->stream), "memset");
    return OK;
}

void k_cuda_discard(struct kernels *k, void *p, size_t from, size_t to)
{
    struct k_growing *g = find(k->ctx, p);
    size_t granule = k->ctx->vmm->granule, first = (from + granule - 1) / granule;
    if (g && to / granule > first)
        unmap(k, g, first, to / granule);
}

void k_cuda_release(struct kernels *k, void *p, size_t bytes)
{
    struct k_vmm *v = k->ctx->vmm;
    (void)bytes;
    for (struct k_growing **at = &k->ctx->growing; *at; at = &(*at)->next) {
        struct k_growing *g = *at;
        if (g->p != p)
            continue;
        unmap(k, g, 0, g->bytes / v->granule);
        (void)v->address_free(address(g, 0), g->bytes);
        *at = g->next;
        free(g->mapped);
        free(g);
        return;
    }
}

void k_cuda_memory_close(struct kernels *k)
{
    while (k->ctx->growing)
        k_cuda_release(k, k->ctx->growing->p, k->ctx->growing->bytes);
    free(k->ctx->vmm);
}

/* ---- host memory, and how much there is ------------------------------------------------- */

bool k_cuda_pin(struct kernels *k, void *p, size_t bytes)
{
    (void)k;
    if (cudaHostRegister(p, bytes, cudaHostRegisterDefault) == cudaSuccess)
        return true;
    (void)cudaGetLastError(); /* a limit of the kernel's: copies are staged then */
    return false;
}

void k_cuda_unpin(struct kernels *k, void *p)
{
    (void)cudaStreamSynchronize(k->ctx->stream);
    if (cudaHostUnregister(p) != cudaSuccess)
        (void)cudaGetLastError(); /* it never was */
}

/* On a stream of its own, so that it waits for no op and no op for it. */
bool k_cuda_upload(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    struct k_ctx *ctx = k->ctx;
    cudaError_t rc = cudaSetDevice(ctx->device); /* this may be another thread */
    if (rc == cudaSuccess)
        rc = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, ctx->uploads);
    if (rc != cudaSuccess)
        (void)cudaGetLastError(); /* the caller is told */
    return rc == cudaSuccess;
}

enum err k_cuda_upload_end(struct kernels *k, struct error *e)
{
    cudaError_t rc = cudaStreamSynchronize(k->ctx->uploads);
    return rc == cudaSuccess ? OK
                             : err_set(e, ERR_GPU, "device %d: copies to it: %s",
                                       k->ctx->device, cudaGetErrorString(rc));
}

enum err k_cuda_describe(struct kernels *k, struct k_device *out, struct error *e)
{
    struct cudaDeviceProp p;
    int driver = 0, runtime = 0;
    size_t n_free = 0, n_total = 0;
    k_cuda_enter(k->ctx);
    cudaError_t rc = cudaGetDeviceProperties(&p, k->ctx->device);
    if (rc == cudaSuccess)
        rc = cudaMemGetInfo(&n_free, &n_total);
    if (rc == cudaSuccess)
        rc = cudaDriverGetVersion(&driver);
    if (rc == cudaSuccess)
        rc = cudaRuntimeGetVersion(&runtime);
    if (rc != cudaSuccess)
        return err_set(e, ERR_GPU, "backend cuda: device %d: %s", k->ctx->device,
                       cudaGetErrorString(rc));
    *out = {};
    (void)snprintf(out->name, sizeof out->name, "%.63s", p.name);
    (void)snprintf(out->driver, sizeof out->driver, "CUDA %d.%d, built with %d.%d",
                   driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    out->total_bytes = n_total, out->free_bytes = n_free;
    out->grow_bytes = k->ctx->vmm->granule;
    return OK;
}
