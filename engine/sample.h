/* From logits to one token id, reproducibly: the draw for a tape position is Philox(seed,
 * position), so a token that was lost is sampled again to the same id. */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include "engine/engine.h"

struct sampler_entry {
    double p;
    uint32_t id;
};

/* Temperature, then min-p, top-k and top-p, in this order; temperature 0 takes the largest
 * logit. Equal logits: lower id first. scratch [n]. ERR_FORMAT, naming the id, if a logit is
 * NaN or infinite: a broken model must not turn into a stream of one token. */
NODISCARD enum err sample_token(const struct sampling *s, const float *logits, uint32_t n,
                                uint64_t position, struct sampler_entry *scratch, uint32_t *id,
                                struct error *e);

/* ERR_INVAL names the field: temperature finite and >= 0, top_p in (0, 1], min_p in [0, 1]. */
NODISCARD enum err sampling_check(const struct sampling *s, struct error *e);

#endif
