/* The parts that a layer is made of, each in its own file; forward_layer() in layer.c puts them
 * together. Private to the forward pass. Sections are those of the model description.
 *
 *     layer.c              the block: streams, and what comes after what   section 4
 *     layer_attention.c    a token's window and its selected rows          section 5
 *     layer_compressor.c   rows and index keys of a KV source              section 6
 *     layer_indexer.c      which rows a token attends to                   section 7
 *     layer_moe.c          router and experts                              section 8
 *     layer_observe.c      what somebody outside sees of all of them
 *
 * Engram (section 9) is no part of a layer: it changes the streams in front of it
 * (forward_engram.h).
 *
 * A layer works on the rows of the batch from `first` on. Buffers are those of struct work, and
 * a pointer to one is to its start, row 0 of the batch. Ops are queued and nothing waits for
 * them; what fails on the host is in m->broken, what fails in the backend is what sync() says.
 */
#ifndef ENGINE_LAYER_H
#define ENGINE_LAYER_H

#include "engine/forward.h"

/* ---- parts --------------------------------------------------------------------------------
 */

/* First row of the batch whose streams are brought to this layer: a KV source makes rows of
 * every token, even where the rest of the layer is skipped. */
uint32_t layer_stream_first(const struct model *m, const struct batch *batch, uint32_t layer);

/* w->h to rows and index keys of the layer, which is a KV source, above those that count; what
 * is left of an unfinished group to w->u and w->g. */
void layer_compress(struct model *m, const struct batch *batch, uint32_t layer);

/* w->h and w->qr (normalised) to w->d_sel, the rows that tokens attend to in this layer, which
 * is an index source, and in those that share its selection. */
void layer_select(struct model *m, const struct batch *batch, uint32_t layer, uint32_t first);

/* w->h to w->y; the layer's window keys to w->keys. */
void layer_attention(struct model *m, const struct batch *batch, uint32_t layer,
                     uint32_t first);

/* Window keys of n rows of x [batch][D], to w->keys. */
void layer_window_keys(struct model *m, uint32_t layer, const float *x, uint32_t first,
                       size_t n);

/* w->h to w->y. */
void layer_moe(struct model *m, const struct batch *batch, uint32_t layer, uint32_t first);

/* ---- steps that the parts share -----------------------------------------------------------
 */

/* forward_product() for rows [first, first + n) of x and y. */
void layer_product(struct model *m, const struct k_weight *w, const float *x, float *y,
                   size_t first, size_t n);

/* RMS norm with weight w [d], in place, of the same rows of x [batch][d]. */
void layer_norm(struct model *m, float *x, const float *w, uint32_t d, size_t first, size_t n);

/* Rotates the last rope_dim values of each of n_head heads of the same rows of
 * x [batch][n_head][d]; inverse: back. Layers with compressed rows use the long-context
 * frequencies for everything in them. */
void layer_rotate(struct model *m, uint32_t layer, float *x, uint32_t n_head, uint32_t d,
                  size_t first, size_t n, bool inverse);

/* ---- what the observer sees ---------------------------------------------------------------
 */

/* Shows it `rows` [batch][width], n_bytes each, memory of the backend (u64: of the host), from
 * `first` on; name as in struct observed. Nothing of draft layers. */
void layer_observe(const struct model *m, const struct batch *batch, const char *name,
                   uint32_t layer, uint32_t first, uint32_t width, enum observed_type type,
                   size_t n_bytes, const void *rows);
/* The same for the rows of one run. */
void layer_observe_run(const struct model *m, const struct run *r, const char *name,
                       uint32_t layer, uint32_t first, uint32_t width, enum observed_type type,
                       size_t n_bytes, const void *rows);
void layer_observe_f32(const struct model *m, const struct batch *batch, const char *name,
                       uint32_t layer, uint32_t first, uint32_t width, const float *rows);
void layer_observe_i32(const struct model *m, const struct batch *batch, const char *name,
                       uint32_t layer, uint32_t first, uint32_t width, const int32_t *rows);

#endif
