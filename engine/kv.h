/* The state of one sequence inside the layers: planes that grow, rings, unfinished groups.
 *
 * Planes (per KV source one of rows, one of index keys) are contiguous, page-aligned and
 * reserved up front as address space only, so that they grow without moving and a restore can
 * read straight into them. A row at or above rows(n_tokens) is not part of the sequence: a step
 * writes there and it counts only once kv_commit() has moved n_tokens.
 *
 * Rings hold, per layer, the keys of the last W positions in the format of the cache: position
 * p in slot p % W. What a ring holds below `lo` of its layer's class was never computed on this
 * path (a clipped prefill, a replay) and is not read. Draft layers have rings like the layers
 * above the last KV source: their keys come from what the target computed for a position.
 *
 * With a budget (kv_pages.h) the rows of main planes below cold[source] are no longer where
 * they were written: kv_copy_rows() and kv_gather() find them, kv_rows() may only be asked for
 * those above.
 *
 * Rings, unfinished groups and planes are memory of the backend. Where the host may not touch
 * it (k->host_memory), kv_land() brings what an import filled in there, and a main plane under
 * a budget is memory for its tail and nothing else: the first row that is not cold lies at its
 * start. One thread, the engine's. */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include "base/state.h"
#include "engine/config.h"
#include "engine/engine.h"
#include "kernels/kernels.h"

/* Layers by their place relative to the last KV source: what a clipped prefill skips. */
enum layer_class { LAYERS_BELOW, LAYER_SOURCE, LAYERS_ABOVE, N_LAYER_CLASSES };

enum layer_class kv_class(const struct config *c, uint32_t layer);

/* How the state of a model looks; constant for the engine's life. */
struct kv_shape {
    enum k_format ring_format, row_format, key_format;
    uint32_t ring_row; /* bytes of one ring slot */
    uint32_t n_layers, window, head_dim;
    uint32_t n_rings; /* of the layers, then of the draft layers */
    uint32_t n_sources;
    uint32_t source_ratio[CONFIG_MAX_SOURCES];
    uint32_t n_planes; /* 2 * n_sources: rows of source i at 2i, its index keys at 2i + 1 */
    struct plane_spec planes[STATE_MAX_PLANES];
    enum layer_class class[CONFIG_MAX_LAYERS];
    uint64_t max_tokens;
};

void kv_shape_init(struct kv_shape *s, const struct config *c, enum precision precision);

struct kv_landed;
struct kv_pages;
struct kv_page;
struct kv_want;

/* Memory for the state of all sequences of a model: what was promised may not exceed the limit.
 * Address space costs nothing before it is touched, so only this keeps a promise. */
struct kv_memory {
    struct kernels *k;
    /* Where imports land, kept pinned from one to the next: of the largest so far. */
    uint8_t *spare[STATE_MAX_PLANES];
    size_t spare_pinned[STATE_MAX_PLANES];
    size_t page_bytes; /* planes grow by these */
    uint64_t limit_bytes, promised_bytes;
};

struct kv {
    const struct kv_shape *shape;
    struct kv_memory *memory;
    uint64_t promised_bytes; /* this one's part */
    struct kv_pages *pages;  /* NULL: no budget, nothing is cold */
    bool has_joined;
    uint32_t owner;                    /* its name there */
    uint64_t cold[CONFIG_MAX_SOURCES]; /* rows, whole pages */
    struct kv_page *page[CONFIG_MAX_SOURCES];
    size_t cap_page[CONFIG_MAX_SOURCES];
    struct state_fetch fetch; /* of the pages that stayed behind; rows NULL: none did */
    uint64_t n_firm;   /* rows of tokens from here on may be dropped: they stay in the tail */
    uint64_t n_tokens; /* committed */
    uint64_t reserved; /* tokens there is memory for */
    uint8_t *plane[STATE_MAX_PLANES];     /* a tail: NULL before there are rows */
    size_t plane_bytes[STATE_MAX_PLANES]; /* of address space; a tail has less */
    size_t grown[STATE_MAX_PLANES];       /* bytes from the start that may be used */
    uint8_t *landing[STATE_MAX_PLANES];   /* of an import, memory of the host; NULL: none */
    size_t pinned[STATE_MAX_PLANES];      /* bytes of it that copies are fast from */
    struct kv_landed *landed;             /* what is on its way to the planes already */
    size_t n_landed, cap_landed;
    uint8_t *ring;                /* [n_rings][window][ring_row] */
    uint64_t lo[N_LAYER_CLASSES]; /* first position readable in a ring */
    /* [n_sources][2][head_dim]: value and gate of the first token of an unfinished group. It
     * counts where n_tokens % ratio != 0. */
    float *pending;
};

/* pages: NULL without a budget. It and memory must outlive kv. ERR_LIMIT (memory), ERR_NOMEM.
 */
NODISCARD enum err kv_init(struct kv *kv, const struct kv_shape *shape,
                           struct kv_memory *memory, struct kv_pages *pages, struct error *e);
void kv_fini(struct kv *kv);

/* Makes memory for n_tokens in all. ERR_LIMIT past max_tokens or past what all sequences may
 * have; the state is unchanged then. */
NODISCARD enum err kv_reserve(struct kv *kv, uint64_t n_tokens, struct error *e);

/* ---- cold rows (kv_cold.c) ----------------------------------------------------------------
 */

/* Makes room in the tails for the rows of n more tokens: older ones, of tokens below `below`,
 * become cold. ERR_LIMIT (disk full), ERR_IO: nothing is lost, the run may not begin. */
NODISCARD enum err kv_make_room(struct kv *kv, uint64_t below, uint64_t n, struct error *e);
/* The main rows of an import's first fetch->n_tokens tokens stay behind. Takes fetch: closed
 * with kv, whatever this returns. Only with a budget (ERR_UNSUPPORTED). */
NODISCARD enum err kv_leave_behind(struct kv *kv, const struct state_fetch *fetch,
                                   struct error *e);
/* kv_pages_read() for this one. */
NODISCARD enum err kv_read(const struct kv *kv, uint32_t source, const struct kv_want *want,
                           size_t n, struct error *e);
/* Rows [row0, row0 + n) of a plane to dst, wherever they are. ERR_IO, ERR_CORRUPT. */
NODISCARD enum err kv_copy_rows(const struct kv *kv, uint32_t plane, uint64_t row0, uint64_t n,
                                void *dst, struct error *e);

/* ---- imports (kv_import.c) ----------------------------------------------------------------
 */

/* Where an import puts the rows of its planes, in memory of the host. ERR_NOMEM. */
NODISCARD enum err kv_import_begin(struct kv *kv, uint64_t n_tokens, struct state_regions *out,
                                   struct error *e);
/* The rows of n_tokens that the import has put there, and that are not cold, are the planes'
 * now. After kv_make_room(). Waits for the backend, whose errors are ERR_GPU and ERR_NOMEM. */
NODISCARD enum err kv_land(struct kv *kv, uint64_t n_tokens, struct error *e);
/* Gives back what kv_import_begin() kept, when no sequence is left. */
void kv_memory_fini(struct kv_memory *m, const struct kv_shape *shape);

/* ---- all but the planes -------------------------------------------------------------------
 */

/* All of a state but its planes. */
struct kv_rest {
    uint8_t *ring;
    float *pending;
    uint64_t n_tokens, lo[N_LAYER_CLASSES];
};
/* kv goes on with a copy of its rest, `out` gets its own. ERR_NOMEM: nothing has happened. */
NODISCARD enum err kv_put_aside(struct kv *kv, struct kv_rest *out, struct error *e);
/* Exchanges them. */
void kv_swap(struct kv *kv, struct kv_rest *rest);
void kv_rest_fini(struct kernels *k, struct kv_rest *rest);

/* ---- where things are ---------------------------------------------------------------------
 */

uint8_t *kv_ring(const struct kv *kv, uint32_t layer);
/* Rows and index keys of KV source i, from row number `row` on. NULL: it is cold, and its place
 * is another one's now. */
uint8_t *kv_rows(const struct kv *kv, uint32_t source, uint64_t row);
uint8_t *kv_keys(const struct kv *kv, uint32_t source, uint64_t row);
float *kv_pending(const struct kv *kv, uint32_t source); /* [2][head_dim] */

/* Writes the keys of n consecutive positions from pos0 on into the rings of n_layers layers
 * (the last W count). keys [n_layers][n][ring_row], key_stride bytes from layer to layer,
 * memory of the backend. */
void kv_ring_write(struct kv *kv, uint32_t layer, uint32_t n_layers, uint64_t pos0, uint32_t n,
                   const uint8_t *keys, size_t key_stride);

/* Does slot `slot` of this layer's ring hold a position that may be read after n_tokens? Which?
 */
bool kv_ring_position(const struct kv *kv, uint32_t layer, uint32_t slot, uint64_t *position);

#endif
