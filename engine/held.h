/* Streams as they leave the last KV source's layer, of the last W tokens of an input: kept
 * while the layers above wait for the segment's length (ahead.h), so that those run later from
 * where the others stopped. One thread, the engine's. */
#ifndef ENGINE_HELD_H
#define ENGINE_HELD_H

#include "engine/forward.h"

/* Position p in row p % W; memory of the backend. Members as in struct work. */
struct held {
    float *x, *pre, *target;
    int32_t *sel, *blocks;
};

/* ERR_NOMEM: h holds nothing. */
NODISCARD enum err held_init(struct model *m, struct held *h, struct error *e);
/* Of an h that is all 0, too. */
void held_fini(struct model *m, struct held *h);

/* Keeps the streams of the run's last W tokens, after forward_batch() with one that left out
 * the layers above the last KV source. */
void held_keep(struct model *m, const struct run *r, struct held *h);
/* The streams of the run's tokens from r->held to the work buffers. */
void held_put_back(struct model *m, const struct run *r);

#endif
