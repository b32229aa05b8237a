/* The table of operations that the forward pass is written over, once for every backend.
 *
 *     AUTO(kernels) struct kernels k = {0};
 *     rc = kernels_cpu(&k, NULL, pool, e);       or kernels_ref(&k, pool, e)
 *     float *x = k.alloc(&k, n * d * sizeof *x);
 *     k.rmsnorm(&k, &(struct k_rmsnorm){.x = x, .w = w, .y = x, .n = n, .d = d, .eps = eps});
 *     rc = k.sync(&k, e);
 *
 * Every pointer in an argument struct is memory of this backend (alloc) or, where the backend's
 * `host_memory` is true, any host memory; the struct itself is only read during the call. Ops
 * return nothing: on a device they are queued in call order, and the first failure (scratch
 * memory, device) is kept. Later ops then do nothing, and sync() waits and reports it. n = 0 is
 * allowed everywhere and does nothing.
 *
 * Shapes are the caller's to check: a wrong shape is a bug (assert), never an input error.
 * Values are not: NaN and Inf pass through as IEEE arithmetic would have them and never crash.
 *
 * Invariance, of every op here: a row's result has the same bits whatever else is in the call,
 * however rows are divided over calls, and however many threads run. Order of sums depends on
 * the summed dimension only. Different backends differ in the last bits; `numerics` names the
 * class.
 *
 * A table and its memory belong to one thread; the pool's workers serve it during a call. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/auto.h"
#include "base/err.h"
#include "kernels/attention.h"
#include "kernels/compress.h"
#include "kernels/embed.h"
#include "kernels/engram.h"
#include "kernels/hc.h"
#include "kernels/index.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/quant.h"
#include "kernels/ring.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/route.h"
#include "kernels/sample.h"
#include "kernels/scale.h"
#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pool;
struct k_ctx;

/* What a table computes on, for reports and for the division of its memory. */
struct k_device {
    char name[64];                    /* "NVIDIA H200"; "host" */
    char driver[64];                  /* "CUDA 13.0, built with 13.0"; "" where there is none */
    uint64_t total_bytes, free_bytes; /* of the memory that alloc takes from, now */
    uint64_t grow_bytes;              /* what grow() takes at least at once */
};

#define K_MAX_RECORDS 32

struct kernels {
    const char *numerics; /* class and revision: "ref/1", "cpu-avx512bf16/1"; static */
    bool host_memory;     /* the engine may read and write buffers directly */
    struct k_ctx *ctx;    /* the backend's own: pool, scratch, first failure */
    void (*fini)(struct kernels *k); /* frees ctx and what it owns: kernels_fini() calls it */

    /* Zeroed memory for activations, rings and planes, page-aligned (256 bytes on a device);
     * NULL when there is none. */
    void *(*alloc)(struct kernels *k, size_t bytes);
    void (*free)(struct kernels *k, void *p); /* NULL is fine */
    /* Memory that grows where it is. reserve: address space for `bytes`, none of which may be
     * touched yet; NULL when there is none. grow: the first `to` bytes are usable from now on,
     * those below `from` (of the call before, 0 at first) already were; new ones are zero.
     * ERR_NOMEM: nothing has changed. discard: the pages that lie whole in [from, to) go back,
     * nobody reads them any more. release takes what reserve gave, with its size; NULL is fine.
     */
    void *(*reserve)(struct kernels *k, size_t bytes);
    NODISCARD enum err (*grow)(struct kernels *k, void *p, size_t from, size_t to,
                               struct error *e);
    void (*discard)(struct kernels *k, void *p, size_t from, size_t to);
    void (*release)(struct kernels *k, void *p, size_t bytes);
    /* Tells that the backend's copies from and to this memory of the host will be many: they
     * are faster then, and ups may run beside the ops. False: it stays as it is, which is
     * right, too. unpin before it is freed, with no copy of it under way. */
    bool (*pin)(struct kernels *k, void *p, size_t bytes);
    void (*unpin)(struct kernels *k, void *p);
    /* ERR_GPU. */
    NODISCARD enum err (*describe)(struct kernels *k, struct k_device *out, struct error *e);

    /* Host to backend, backend to host, inside the backend; in order with the ops. Ranges of
     * copy may not overlap. copy_in has read src when it returns; copy_out waits for what was
     * queued before it, and leaves dst as it was after a failure. */
    void (*copy_in)(struct kernels *k, void *dst, const void *src, size_t bytes);
    void (*copy_out)(struct kernels *k, void *dst, const void *src, size_t bytes);
    void (*copy)(struct kernels *k, void *dst, const void *src, size_t bytes);
    /* The same as copy_in beside the ops, and from any threads: neither src nor
     * dst may be touched before upload_end(), which the table's thread calls, and which waits
     * for all there are, whoever began them. False: this one was not begun, and is for copy_in
     * to make and to tell of. ERR_GPU: the device is lost, with all of them. */
    NODISCARD bool (*upload)(struct kernels *k, void *dst, const void *src, size_t bytes);
    NODISCARD enum err (*upload_end)(struct kernels *k, struct error *e);
    /* Waits for all queued work; the first failure since the last sync, which it clears:
     * ERR_NOMEM, ERR_GPU. After a failure the outputs of the ops since then are undefined. */
    NODISCARD enum err (*sync)(struct kernels *k, struct error *e);

    /* Puts a resident weight into the form this backend multiplies fastest (w->packed), which
     * may be a copy that w->data and w->scale then point into: after unpack() they are gone.
     * What they pointed to may be unmapped only if the backend says so (it does not today).
     * Optional: every op takes unpacked weights, with the same bits. ERR_NOMEM; w is unchanged
     * then. */
    NODISCARD enum err (*pack)(struct kernels *k, struct k_weight *w, struct error *e);
    void (*unpack)(struct kernels *k, struct k_weight *w);

    /* Optional, all three or none (NULL): launches that are recorded once and repeated as one.
     * Between record() and record_end() ops and copy() are kept instead of done, arguments as
     * they are; nothing else of this table may be called. record_end() puts them into `slot`
     * (< K_MAX_RECORDS; what was there is gone) and does them. False: they could not be kept
     * (an op needed more scratch memory than there was, say), nothing was done and the slot is
     * empty; the caller does it again without. replay() does again what is in a slot, on
     * whatever the memory it names holds by now; false: nothing is there, or the memory of the
     * backend's own that it used has moved. A replay gives the bits that the ops would give. */
    bool (*record)(struct kernels *k);
    bool (*record_end)(struct kernels *k, uint32_t slot);
    bool (*replay)(struct kernels *k, uint32_t slot);

    void (*embed)(struct kernels *k, const struct k_embed *a);
    void (*hc_mix)(struct kernels *k, const struct k_hc_mix *a);
    void (*hc_collapse)(struct kernels *k, const struct k_hc_collapse *a);
    void (*hc_update)(struct kernels *k, const struct k_hc_update *a);
    void (*rmsnorm)(struct kernels *k, const struct k_rmsnorm *a);
    void (*linear)(struct kernels *k, const struct k_linear *a);
    void (*rope_table)(struct kernels *k, const struct k_rope_table *a);
    void (*rope)(struct kernels *k, const struct k_rope *a);
    void (*encode)(struct kernels *k, const struct k_encode *a);
    void (*decode)(struct kernels *k, const struct k_decode *a);
    void (*fake_quant)(struct kernels *k, const struct k_fake_quant *a);
    void (*compress)(struct kernels *k, const struct k_compress *a);
    void (*attention)(struct kernels *k, const struct k_attention *a);
    void (*index)(struct kernels *k, const struct k_index *a);
    void (*ring)(struct kernels *k, const struct k_ring *a);
    void (*route)(struct kernels *k, const struct k_route *a);
    void (*scale)(struct kernels *k, const struct k_scale *a);
    void (*moe)(struct kernels *k, const struct k_moe *a);
    void (*moe_part)(struct kernels *k, const struct k_moe *a);
    void (*moe_sum)(struct kernels *k, const struct k_moe *a);
    void (*engram_rows)(struct kernels *k, const struct k_engram_rows *a);
    void (*engram_put)(struct kernels *k, const struct k_engram_put *a);
    void (*engram_gate)(struct kernels *k, const struct k_engram_gate *a);
    void (*sample)(struct kernels *k, const struct k_sample *a);
};

/* The ground truth: plain C, double sums, f32 results. pool may be NULL (one thread); borrowed,
 * must outlive the table. ERR_NOMEM. */
NODISCARD enum err kernels_ref(struct kernels *k, struct pool *pool, struct error *e);

/* The fast CPU backend. isa: "avx512bf16", "avx512", "avx2", "portable", or NULL for the best
 * that this machine has. "avx512bf16" has two forms of the same bits, of which the one that is
 * faster here is taken; "avx512bf16-dot" and "avx512bf16-fma" name them. ERR_INVAL for another
 * name, ERR_UNSUPPORTED if the machine lacks it, ERR_NOMEM. */
NODISCARD enum err kernels_cpu(struct kernels *k, const char *isa, struct pool *pool,
                               struct error *e);

/* Frees what the table owns, not what alloc or pack gave out. A zeroed table is fine. */
void kernels_fini(struct kernels *k);

#ifdef __cplusplus
}
#endif
#endif
