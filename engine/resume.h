/* What a tape says about windows: where they are clipped, and what has to run again when only
 * the planes are left. Pure functions (architecture, "Segments, and what exact means"). */
#ifndef ENGINE_RESUME_H
#define ENGINE_RESUME_H

#include "engine/kv.h"

/* An input segment that is not complete at a position. */
struct open_segment {
    bool is_open;
    uint64_t start, len;
    enum prefill_mode mode;
};

/* Tokens a deep resume runs again at most: W + (W-1)(L-1). */
uint64_t resume_depth(const struct config *c);

/* Raises lo[] as an input segment [start, start + len) in this mode does: longer than W, layers
 * above the last KV source (in ced-report that layer, too) run on its last W tokens only. */
void resume_clip(const struct config *c, uint64_t start, uint64_t len, enum prefill_mode mode,
                 uint64_t lo[N_LAYER_CLASSES]);

struct resume_plan {
    uint64_t start, n_tokens;     /* tokens [start, n_tokens) run again */
    uint64_t lo[N_LAYER_CLASSES]; /* first position that runs, and is read, in each class */
    struct open_segment open;     /* at n_tokens */
};

/* Plans a deep or replay resume of a tape's first n_tokens. Marks behind n_tokens do not count;
 * nothing starts before the last one that does. ERR_INVAL if the tape does not cover n_tokens.
 */
NODISCARD enum err resume_plan(const struct config *c, const struct tape_view *t,
                               uint64_t n_tokens, enum resume_mode mode,
                               struct resume_plan *out, struct error *e);

#endif
