/* From logits to one token id, reproducibly: the draw for a tape position is Philox(seed,
 * position), so a token that was lost is sampled again to the same id. */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include "engine/engine.h"

struct constrain_state;

/* Bias, then temperature, min-p, top-k and top-p, in this order; temperature 0 takes the
 * largest logit. Equal logits: lower id first. `calls` is where the run's tool calls are (with
 * s->rules; else NULL): ids that it does not allow have no part in any of this, and what is
 * syntax to it is taken greedily. scratch [2][n]. ERR_FORMAT, naming the id, if a logit is NaN
 * or infinite: a broken model must not turn into a stream of one token; and if no id is
 * allowed, which no vocabulary that has every byte can come to. */
NODISCARD enum err sample_token(const struct sampling *s, const struct constrain_state *calls,
                                const float *logits, uint32_t n, uint64_t position,
                                struct k_sample_entry *scratch, uint32_t *id, struct error *e);

/* In its two halves, for a row that the backend draws from: how (with `calls` only what is
 * greedy; which ids are allowed is the caller's), and what came of it, with the same errors. */
struct k_draw sample_draw(const struct sampling *s, const struct constrain_state *calls,
                          uint64_t position);
NODISCARD enum err sample_result(const struct k_drawn *drawn, uint64_t position, uint32_t *id,
                                 struct error *e);

/* The probability that the model itself gave id, and its n_top most likely tokens (at most
 * SAMPLE_MAX_LOGPROBS and n). logits [n], finite. */
void sample_logprobs(const float *logits, uint32_t n, uint32_t id, uint32_t n_top,
                     struct token_logprobs *out);

/* ERR_INVAL names the field: temperature finite and >= 0, top_p in (0, 1], min_p in [0, 1],
 * bias finite with ascending ids, stop strings not empty, at most SAMPLE_MAX_LOGPROBS + 1. */
NODISCARD enum err sampling_check(const struct sampling *s, struct error *e);

#endif
