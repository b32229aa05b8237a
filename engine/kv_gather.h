/* The selected rows of some tokens, side by side in memory, wherever they were: what attention
 * reads where not all rows of a sequence are in memory.
 *
 * Rows keep their order, so a selection that was ascending still is, and the sums over it are
 * the same. Belongs to the engine's thread. */
#ifndef ENGINE_KV_GATHER_H
#define ENGINE_KV_GATHER_H

#include "engine/kv_pages.h"

struct kv_gather;

/* ERR_NOMEM. pages and k must outlive it. */
NODISCARD enum err kv_gather_new(struct kv_gather **out, struct kv_pages *pages,
                                 const struct kv_shape *shape, struct kernels *k,
                                 struct error *e);
void kv_gather_free(struct kv_gather *g);

/* Gathers the rows of source `source` that are in sel [n][width] (below 0: none) for as many of
 * the n tokens, from the first on, as there is room for: at least one. Their number goes to
 * *n_done, and at [n_done][width] counts in kv_gather_rows(). */
NODISCARD enum err kv_gather_take(struct kv_gather *g, const struct kv *kv, uint32_t source,
                                  const int32_t *sel, uint32_t width, size_t n, int32_t *at,
                                  size_t *n_done, struct error *e);
/* Memory of the backend. */
const uint8_t *kv_gather_rows(const struct kv_gather *g);

#endif
