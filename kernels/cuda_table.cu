/* The table of the CUDA backend: context, memory, first failure. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda.cuh"
#include "kernels/cuda.h"

static void keep_failure(struct kernels *k, enum err rc, const char *what, cudaError_t error)
{
    (void)cudaGetLastError(); /* kept here: the launch after the next sync is not to find it */
    if (k->ctx->failed)
        return;
    k->ctx->failed = rc;
    (void)snprintf(k->ctx->what, sizeof k->ctx->what, "%s: %s", what,
                   cudaGetErrorString(error));
}

void k_launched(struct kernels *k, cudaError_t rc, const char *kernel)
{
    if (rc != cudaSuccess)
        keep_failure(k, ERR_GPU, kernel, rc);
}

bool k_ready(struct kernels *k, const void *kernel, size_t shared_bytes)
{
    if (k->ctx->failed)
        return false;
    k_cuda_enter(k->ctx);
#ifndef K_CUDA_EMULATED
    if (shared_bytes > 48 * 1024) {
        cudaError_t rc = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (rc != cudaSuccess)
            keep_failure(k, ERR_GPU, "shared memory", rc);
    }
#else
    (void)kernel, (void)shared_bytes;
#endif
    return !k->ctx->failed;
}

void *k_cuda_scratch(struct kernels *k, enum k_cuda_slot slot, size_t bytes)
{
    struct k_ctx *ctx = k->ctx;
    if (ctx->failed)
        return NULL;
    if (ctx->slot[slot].bytes >= bytes)
        return ctx->slot[slot].p;
    if (ctx->recording) { /* records name what there was before them */
        ctx->record_failed = true;
        return NULL;
    }
    k_cuda_enter(ctx);
    /* What is queued may still read the old buffer. */
    cudaError_t rc = cudaStreamSynchronize(ctx->stream);
    k_cuda_forget_records(ctx);
    (void)cudaFree(ctx->slot[slot].p);
    ctx->slot[slot].p = NULL, ctx->slot[slot].bytes = 0;
    if (rc == cudaSuccess)
        rc = cudaMalloc(&ctx->slot[slot].p, bytes);
    if (rc != cudaSuccess) {
        char what[64];
        (void)snprintf(what, sizeof what, "scratch of %zu bytes", bytes);
        keep_failure(k, rc == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_GPU, what, rc);
        return NULL;
    }
    ctx->slot[slot].bytes = bytes;
    return ctx->slot[slot].p;
}

static void *device_alloc(struct kernels *k, size_t bytes)
{
    void *p = NULL;
    k_cuda_enter(k->ctx);
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError(); /* the caller is told by NULL; nothing is kept */
        return NULL;
    }
    cudaError_t rc = cudaMemsetAsync(p, 0, bytes, k->ctx->stream);
    if (rc != cudaSuccess)
        keep_failure(k, ERR_GPU, "memset", rc);
    return p;
}

static void device_free(struct kernels *k, void *p)
{
    (void)cudaStreamSynchronize(k->ctx->stream); /* nothing queued reads it any more */
    (void)cudaFree(p);
}

static void device_copy(struct kernels *k, void *dst, const void *src, size_t bytes,
                        enum cudaMemcpyKind kind)
{
    if (!bytes || k->ctx->failed)
        return;
    if (k->ctx->recording && kind != cudaMemcpyDeviceToDevice) {
        k->ctx->record_failed = true; /* its bytes would be those of now in every replay */
        return;
    }
    cudaError_t rc = cudaMemcpyAsync(dst, src, bytes, kind, k->ctx->stream);
    if (rc == cudaSuccess && kind != cudaMemcpyDeviceToDevice)
        rc = cudaStreamSynchronize(k->ctx->stream); /* the host may reuse its buffer */
    if (rc != cudaSuccess)
        keep_failure(k, ERR_GPU, "copy", rc);
}

#define STAGING ((size_t)4 << 20)
#define STAGED_MOST ((size_t)256 << 10)

/* Small copies do not wait for what is queued before them: their bytes are put aside in pinned
 * memory, which is waited for when it is full. */
static bool copy_staged(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    struct k_ctx *ctx = k->ctx;
    size_t room = (bytes + 255) / 256 * 256;
    if (!ctx->staging || bytes > STAGED_MOST || ctx->recording)
        return false;
    if (ctx->staged + room > STAGING) {
        cudaError_t rc = cudaStreamSynchronize(ctx->stream);
        if (rc != cudaSuccess)
            keep_failure(k, ERR_GPU, "queued work", rc);
        ctx->staged = 0;
    }
    uint8_t *at = ctx->staging + ctx->staged;
    ctx->staged += room;
    memcpy(at, src, bytes);
    k_launched(k, cudaMemcpyAsync(dst, at, bytes, cudaMemcpyHostToDevice, ctx->stream), "copy");
    return true;
}

static void copy_in(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    if (!bytes || k->ctx->failed || copy_staged(k, dst, src, bytes))
        return;
    device_copy(k, dst, src, bytes, cudaMemcpyHostToDevice);
}

static void copy_out(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    device_copy(k, dst, src, bytes, cudaMemcpyDeviceToHost);
}

static void copy_inside(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    device_copy(k, dst, src, bytes, cudaMemcpyDeviceToDevice);
}

static enum err device_sync(struct kernels *k, struct error *e)
{
    cudaError_t rc = cudaStreamSynchronize(k->ctx->stream);
    if (rc != cudaSuccess)
        keep_failure(k, ERR_GPU, "queued work", rc);
    enum err failed = k->ctx->failed;
    k->ctx->failed = OK;
    return failed ? err_set(e, failed, "kernels %s: %s", k->numerics, k->ctx->what) : OK;
}

/* Codes and scales as they are, in memory of the device. */
static enum err device_pack(struct kernels *k, struct k_weight *w, struct error *e)
{
    size_t data = 0, scale = 0;
    if (w->packed)
        return OK;
    if (!k_weight_bytes(w, &data, &scale))
        return err_set(e, ERR_INVAL, "weight of %u x %u", w->n_out, w->n_in);
    size_t at = (data + 255) / 256 * 256;
    uint8_t *p = NULL;
    k_cuda_enter(k->ctx);
    if (cudaMalloc((void **)&p, at + scale + 1) != cudaSuccess) {
        (void)cudaGetLastError();
        return err_set(e, ERR_NOMEM, "device %d: weight of %zu bytes", k->ctx->device,
                       data + scale);
    }
    k->copy_in(k, p, w->data, data);
    if (scale)
        k->copy_in(k, p + at, w->scale, scale);
    w->packed = p;
    w->data = p;
    w->scale = scale ? p + at : NULL;
    return OK;
}

static void device_unpack(struct kernels *k, struct k_weight *w)
{
    device_free(k, w->packed);
    w->packed = NULL;
    w->data = NULL, w->scale = NULL;
}

static void fini(struct kernels *k)
{
    (void)cudaStreamSynchronize(k->ctx->stream);
    k_cuda_forget_records(k->ctx);
    for (int i = 0; i < K_N_CUDA_SLOTS; i++)
        (void)cudaFree(k->ctx->slot[i].p);
    k_cuda_memory_close(k);
    (void)cudaStreamSynchronize(k->ctx->uploads);
    (void)cudaStreamDestroy(k->ctx->uploads);
    (void)cudaFreeHost(k->ctx->staging);
    (void)cudaStreamDestroy(k->ctx->stream);
    free(k->ctx);
}

/* Class of numerics: the compute capability decides which kernels run. */
static cudaError_t name_class(struct k_ctx *ctx)
{
#ifdef K_CUDA_EMULATED
    (void)snprintf(ctx->numerics, sizeof ctx->numerics, "cuda-emulated/1");
    return cudaSuccess;
#else
    int major = 0, minor = 0;
    cudaError_t rc =
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ctx->device);
    if (rc == cudaSuccess)
        rc = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ctx->device);
    (void)snprintf(ctx->numerics, sizeof ctx->numerics, "cuda-sm%d%d/1", major, minor);
    return rc;
#endif
}

static void fill(struct kernels *k, struct k_ctx *ctx)
{
    *k = {};
    k->numerics = ctx->numerics;
    k->ctx = ctx;
    k->fini = fini;
    k->alloc = device_alloc, k->free = device_free;
    k->reserve = k_cuda_reserve, k->grow = k_cuda_grow;
    k->discard = k_cuda_discard, k->release = k_cuda_release;
    k->pin = k_cuda_pin, k->unpin = k_cuda_unpin;
    k->upload = k_cuda_upload, k->upload_end = k_cuda_upload_end;
    k->describe = k_cuda_describe;
    k->copy_in = copy_in, k->copy_out = copy_out, k->copy = copy_inside;
    k->sync = device_sync;
    k->record = k_cuda_record, k->record_end = k_cuda_record_end;
    k->replay = k_cuda_replay;
    k->pack = device_pack, k->unpack = device_unpack;
    k->embed = k_embed_cuda;
    k->hc_mix = k_hc_mix_cuda;
    k->hc_collapse = k_hc_collapse_cuda;
    k->hc_update = k_hc_update_cuda;
    k->rmsnorm = k_rmsnorm_cuda;
    k->linear = k_linear_cuda;
    k->rope_table = k_rope_table_cuda;
    k->rope = k_rope_cuda;
    k->encode = k_encode_cuda;
    k->decode = k_decode_cuda;
    k->fake_quant = k_fake_quant_cuda;
    k->compress = k_compress_cuda;
    k->attention = k_attention_cuda;
    k->index = k_index_cuda;
    k->ring = k_ring_cuda;
    k->route = k_route_cuda;
    k->scale = k_scale_cuda;
    k->moe = k_moe_cuda;
    k->moe_part = k_moe_part_cuda;
    k->moe_sum = k_moe_sum_cuda;
    k->engram_rows = k_engram_rows_cuda;
    k->engram_put = k_engram_put_cuda;
    k->engram_gate = k_engram_gate_cuda;
    k->sample = k_sample_cuda;
}

/* A device that there is, that the driver can run, and that the library was built for. */
static enum err check_device(int device, struct error *e)
{
    int n = 0, driver = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    (void)cudaDriverGetVersion(&driver);
    if (rc == cudaErrorInsufficientDriver && !driver)
        return err_set(e, ERR_UNSUPPORTED, "backend cuda: no driver here");
    if (rc == cudaErrorInsufficientDriver)
        return err_set(e, ERR_UNSUPPORTED,
                       "backend cuda: the driver is for CUDA %d.%d, the library for %d.%d",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
    if (rc == cudaErrorNoDevice || (rc == cudaSuccess && !n))
        return err_set(e, ERR_UNSUPPORTED, "backend cuda: the driver finds no device");
    if (rc != cudaSuccess)
        return err_set(e, ERR_UNSUPPORTED, "backend cuda: %s", cudaGetErrorString(rc));
    if (device < 0 || device >= n)
        return err_set(e, ERR_INVAL, "backend cuda: device %d, there are %d", device, n);
    return OK;
}

static enum err open_device(struct k_ctx *ctx, struct error *e)
{
    enum err bad = check_device(ctx->device, e);
    if (bad)
        return bad;
    cudaError_t rc = cudaSetDevice(ctx->device);
    if (rc == cudaSuccess)
        rc = name_class(ctx);
    if (rc == cudaSuccess)
        rc = cudaDeviceGetAttribute(&ctx->multiprocessors, cudaDevAttrMultiProcessorCount,
                                    ctx->device);
    if (rc == cudaSuccess)
        rc = cudaDeviceGetAttribute(&ctx->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                    ctx->device);
    if (rc == cudaSuccess && !k_cuda_is_built_for_device())
        return err_set(e, ERR_UNSUPPORTED,
                       "backend cuda: device %d is %s, the library has no kernels for it",
                       ctx->device, ctx->numerics);
    if (rc == cudaSuccess)
        rc = cudaStreamCreate(&ctx->stream);
    if (rc == cudaSuccess)
        rc = cudaStreamCreateWithFlags(&ctx->uploads, cudaStreamNonBlocking);
    return rc == cudaSuccess ? OK
                             : err_set(e, ERR_GPU, "backend cuda: device %d: %s", ctx->device,
                                       cudaGetErrorString(rc));
}

enum err k_cuda_open(struct kernels *k, int device, struct error *e)
{
    struct k_ctx *ctx = (struct k_ctx *)calloc(1, sizeof *ctx);
    if (!ctx)
        return err_set(e, ERR_NOMEM, "backend cuda: context");
    ctx->device = device;
    enum err rc = open_device(ctx, e);
    if (!rc && (rc = k_cuda_memory_open(ctx, e))) {
        (void)cudaStreamDestroy(ctx->uploads);
        (void)cudaStreamDestroy(ctx->stream);
    }
    if (!rc && cudaMallocHost((void **)&ctx->staging, STAGING) != cudaSuccess) {
        (void)cudaGetLastError(); /* all copies wait, then */
        ctx->staging = NULL;
    }
    if (rc) {
        free(ctx->vmm);
        free(ctx);
        return rc;
    }
    fill(k, ctx);
    return OK;
}
