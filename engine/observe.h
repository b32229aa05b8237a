/* Looking inside a model while it runs: logits of every computed row and the tensors between
 * the layers. For the offline verbs and for tests; a daemon never sets an observer. */
#ifndef ENGINE_OBSERVE_H
#define ENGINE_OBSERVE_H

#include <stdint.h>

#include "engine/engine.h"

enum observed_type { OBSERVED_F32, OBSERVED_I32, OBSERVED_U64 };

/* One tensor [n][width] of consecutive positions from pos0 on; layer is UINT32_MAX for what
 * belongs to none. Names are those of the golden files without the layer ("hc_in32",
 * "route_idx", "topk_rows", "engram_rows", ...). Valid for the call. */
struct observed {
    const char *name;
    uint32_t layer;
    uint64_t pos0;
    uint32_t n, width;
    enum observed_type type;
    const void *data;
};

struct observer {
    void *user;
    /* Logits [vocab] of a row that all layers computed, in order of position. NULL: not wanted.
     */
    void (*logits)(void *user, struct seq *s, uint64_t position, const float *logits);
    void (*tensor)(void *user, struct seq *s, const struct observed *t);
};

/* Only for an engine of engine_open_model(); *o is copied. NULL takes the observer away. */
void engine_observe(struct engine *m, const struct observer *o);

/* Most input tokens of one step from now on (0: the engine's own), so that a step can be made
 * to end at a given position. */
void engine_limit_chunk(struct engine *m, uint32_t n_tokens);

/* The window of a layer after the last step: positions[slot] is the position that ring slot
 * holds
 * (-1: none) and keys [window][head_dim] its decoded values (zeros there). positions [window].
 */
void engine_read_window(const struct seq *s, uint32_t layer, int64_t *positions, float *keys);
/* Lowest position readable in a layer's window (golden name window_lo). */
uint64_t engine_window_lo(const struct seq *s, uint32_t layer);
/* Rows of a plane decoded to f32: out [n_rows][width], width being plane_width(). */
NODISCARD enum err engine_read_rows(const struct seq *s, uint32_t plane, uint64_t row0,
                                    uint64_t n_rows, float *out, struct error *e);
uint32_t engine_plane_width(const struct engine *m, uint32_t plane);
/* Value and gate [2][head_dim] of the unfinished group of KV source number i; NULL if none.
 * Good until the next call. */
const float *engine_read_pending(const struct seq *s, uint32_t source);

/* Tokens that the draft layers guessed since the engine was opened, and how many were right. */
void engine_draft_counts(const struct engine *m, uint64_t *n_guessed, uint64_t *n_right);
/* How many were not checked because the draft layers were too unsure of them. */
uint64_t engine_drafts_cut(const struct engine *m);
/* How many were not guessed because the draft layers failed. */
uint64_t engine_drafts_failed(const struct engine *m);

struct config;
const struct config *engine_config(const struct engine *m);

#endif
