/* Launches that are recorded once and repeated as one: CUDA graphs, captured from the table's
 * stream. What they name has to stay where it is: the engine sees to its own memory, scratch
 * that moves takes all records with it. */
#include "kernels/cuda.cuh"

static void drop(struct k_ctx *ctx, uint32_t slot)
{
    if (ctx->record[slot])
        (void)cudaGraphExecDestroy(ctx->record[slot]);
    ctx->record[slot] = NULL;
}

void k_cuda_forget_records(struct k_ctx *ctx)
{
    for (uint32_t slot = 0; slot < K_MAX_RECORDS; slot++)
        drop(ctx, slot);
}

bool k_cuda_record(struct kernels *k)
{
    struct k_ctx *ctx = k->ctx;
    if (ctx->failed)
        return false;
    k_cuda_enter(ctx);
    if (cudaStreamBeginCapture(ctx->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    ctx->recording = true, ctx->record_failed = false;
    return true;
}

bool k_cuda_record_end(struct kernels *k, uint32_t slot)
{
    struct k_ctx *ctx = k->ctx;
    cudaGraph_t graph = NULL;
    cudaError_t rc = cudaStreamEndCapture(ctx->stream, &graph);
    drop(ctx, slot);
    ctx->recording = false;
    if (rc == cudaSuccess && !ctx->record_failed && !ctx->failed)
        rc = cudaGraphInstantiate(&ctx->record[slot], graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (rc != cudaSuccess || !ctx->record[slot]) {
        (void)
            cudaGetLastError(); /* nothing was done yet: what fails in earnest does so again */
        ctx->record[slot] = NULL;
        ctx->failed = OK;
        return false;
    }
    return k_cuda_replay(k, slot);
}

bool k_cuda_replay(struct kernels *k, uint32_t slot)
{
    struct k_ctx *ctx = k->ctx;
    if (!ctx->record[slot])
        return false;
    if (ctx->failed)
        return true; /* as any op: nothing is done any more */
    k_cuda_enter(ctx);
    k_launched(k, cudaGraphLaunch(ctx->record[slot], ctx->stream), "replay");
    return true;
}
