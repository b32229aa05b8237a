/* What the host backends (ref, cpu) share: context, memory hooks, parallel loops, scratch.
 * Internal to kernels/. */
#ifndef KERNELS_HOST_H
#define KERNELS_HOST_H

#include "base/pool.h"
#include "kernels/bits.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct k_isa;

/* Scratch buffers by use. They grow and are kept; an op owns its slots from entry to return,
 * and an op that calls another (moe: linear) uses other slots. */
enum k_slot {
    K_SLOT_LINEAR_X,      /* rounded or converted inputs of a product */
    K_SLOT_LINEAR_ROWS,   /* pointers to them */
    K_SLOT_LINEAR_THREAD, /* expanded weight rows, per thread */
    K_SLOT_MOE_ROWS,      /* token lists by expert */
    K_SLOT_MOE_X,
    K_SLOT_MOE_GATE,
    K_SLOT_MOE_UP,
    K_SLOT_MOE_Y,
    K_SLOT_MOE_SUM,
    K_SLOT_INDEX_SCORE,
    K_SLOT_INDEX_BEST,
    K_SLOT_INDEX_QUERY,
    K_SLOT_INDEX_CODES,
    K_SLOT_INDEX_LIST,
    K_SLOT_OP, /* attention, index, hc, engram: once or per thread */
    K_N_SLOTS
};

struct k_ctx {
    struct pool *pool;
    const struct k_isa *isa; /* cpu backend */
    size_t serial_ns;        /* cheaper loops run on the caller alone; 0 in tests */
    enum err failed;         /* first failure since sync */
    size_t failed_bytes;     /* what could not be allocated */
    struct k_scratch {
        void *p;
        size_t bytes;
    } slot[K_N_SLOTS];
};

/* Fills the context and the memory hooks of a host table. ERR_NOMEM. */
NODISCARD enum err k_host_init(struct kernels *k, const char *numerics, struct pool *pool,
                               struct error *e);

/* Calls fn over [0, n_items), shares by thread as pool_run does. cost_ns is a guess of what all
 * of it costs one thread: below ctx->serial_ns waking the pool costs more than it saves. */
void k_run(struct kernels *k, pool_fn *fn, void *arg, size_t n_items, size_t cost_ns);
uint32_t k_threads(const struct kernels *k);

/* Memory for free(), 64-byte aligned, contents undefined; a large block lies in huge pages
 * where the system gives them. NULL when there is none. */
void *k_block(size_t bytes);

/* At least `bytes` of 64-byte aligned scratch, contents undefined. NULL when there is none: the
 * failure is kept for sync() and the op returns. */
void *k_scratch(struct kernels *k, enum k_slot slot, size_t bytes);
/* The same, `bytes` for each thread; thread t's part begins at t * *stride. */
void *k_scratch_threads(struct kernels *k, enum k_slot slot, size_t bytes, size_t *stride);

/* True when an earlier op failed: this one does nothing. */
static inline bool k_failed(const struct kernels *k)
{
    return k->ctx->failed != OK;
}

static inline float k_round_to(float x, enum k_round round)
{
    return round == K_BF16 ? k_bf16(x) : x;
}

/* row-th row of an array with rows of d floats, or `stride` apart when that is not 0 */
static inline size_t k_stride(size_t stride, size_t d)
{
    return stride ? stride : d;
}

/* Groups of a weight, at least 1. */
static inline uint32_t k_groups(const struct k_weight *w)
{
    return w->n_groups ? w->n_groups : 1;
}

/* Row o of w as n_in exact f32 values. */
void k_expand_row(const struct k_weight *w, size_t o, float *dst);

/* The keys that query i of an attention call sees, in the order of its header: n_window entries
 * of window_format, then n_sel of row_format. A NULL entry is a -1 of sel. `list` has room for
 * k_attention_list_max(a) pointers. Returns the number of entries. */
static inline size_t k_attention_queries(const struct k_attention *a)
{
    return (a->to ? a->to : a->n) - a->from;
}
size_t k_attention_list_max(const struct k_attention *a);
size_t k_attention_list(const struct k_attention *a, size_t i, const uint8_t **list,
                        size_t *n_window);

/* Rows that query i of an index call may choose from, ascending, before the top-k: all visible
 * ones (returns their number, *list stays untouched) or those of blocks_in, written to list. */
size_t k_index_visible(const struct k_index *a, size_t i);
size_t k_index_candidates(const struct k_index *a, size_t i, int32_t *list);
/* Writes blocks_out of query i from the scores of its visible rows. block_score, pool: scratch
 * of ceil(visible / block_rows) and 2 n_blocks values. */
void k_index_blocks(const struct k_index *a, size_t i, const float *score, float *block_score,
                    int32_t *pool);

/* A call with a list of runs, by `op`, which takes one. */
void k_attention_runs(struct kernels *k, const struct k_attention *a,
                      void (*op)(struct kernels *k, const struct k_attention *a));
void k_index_runs(struct kernels *k, const struct k_index *a,
                  void (*op)(struct kernels *k, const struct k_index *a));
void k_encode_runs(struct kernels *k, const struct k_encode *a,
                   void (*op)(struct kernels *k, const struct k_encode *a));

/* Ops that are the same on every host backend, and the reference ones. */
void k_embed_ref(struct kernels *k, const struct k_embed *a);
void k_hc_mix_ref(struct kernels *k, const struct k_hc_mix *a);
void k_hc_collapse_ref(struct kernels *k, const struct k_hc_collapse *a);
void k_hc_update_ref(struct kernels *k, const struct k_hc_update *a);
void k_rmsnorm_ref(struct kernels *k, const struct k_rmsnorm *a);
void k_linear_ref(struct kernels *k, const struct k_linear *a);
void k_rope_table_ref(struct kernels *k, const struct k_rope_table *a);
void k_rope_ref(struct kernels *k, const struct k_rope *a);
void k_encode_ref(struct kernels *k, const struct k_encode *a);
void k_decode_ref(struct kernels *k, const struct k_decode *a);
void k_fake_quant_ref(struct kernels *k, const struct k_fake_quant *a);
void k_compress_ref(struct kernels *k, const struct k_compress *a);
void k_attention_ref(struct kernels *k, const struct k_attention *a);
void k_index_ref(struct kernels *k, const struct k_index *a);
void k_ring_ref(struct kernels *k, const struct k_ring *a);
void k_route_ref(struct kernels *k, const struct k_route *a);
void k_scale_ref(struct kernels *k, const struct k_scale *a);
void k_moe_ref(struct kernels *k, const struct k_moe *a);
void k_moe_part_ref(struct kernels *k, const struct k_moe *a);
void k_moe_sum_ref(struct kernels *k, const struct k_moe *a);
/* The parts of token i in the order in which they are summed, at most top_k + 1 rows of
 * a->part. Returns their number. */
size_t k_moe_parts(const struct k_moe *a, size_t i, const float **part);
void k_engram_rows_ref(struct kernels *k, const struct k_engram_rows *a);
void k_engram_put_ref(struct kernels *k, const struct k_engram_put *a);
void k_engram_gate_ref(struct kernels *k, const struct k_engram_gate *a);
void k_sample_ref(struct kernels *k, const struct k_sample *a);

/* Double sum of x[i]*y[i] in eight lanes, folded in a fixed order. */
double k_dot_ref(const float *x, const float *y, size_t n);
/* The same sum of values that are double already. */
double k_dot_f64(const double *x, const double *y, size_t n);

#ifdef __cplusplus
}
#endif
#endif
