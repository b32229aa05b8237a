/* Draws tokens from rows of logits where they lie.
 *
 *     sampler_begin(s);
 *     for each row, in order: crosses |= sampler_add(s, how, calls, position);
 *     sampler_run(s, d_logits);      on a device: all of them at once, queued
 *     copy the rows to the host if `crosses`, or if somebody else wants them there; sync
 *     rc = sampler_take(s, i, how, calls, row, position, &id, e);
 *
 * Where the host may read the backend's memory nothing happens before sampler_take(), which
 * draws from the one row that is asked for: behind a guess that was wrong no row is. On a
 * device a row costs less than the wait for it, and guesses are drawn for as if they were
 * right.
 *
 * A row is drawn on the host, and has to cross, while a tool call is written, but for its text
 * values: what may come is asked of few ids there, mostly greedily, and would have to be listed
 * for all of them. So is a row with more biases than there is room for.
 *
 * Belongs to the engine's thread. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "engine/constrain.h"
#include "engine/engine.h"
#include "kernels/kernels.h"

#define SAMPLER_MAX_BIAS 4096 /* entries of all rows of a call */

struct sampler;

/* The table must outlive it. ERR_NOMEM. */
NODISCARD enum err sampler_new(struct sampler **out, struct kernels *k, uint32_t n_vocab,
                               struct error *e);
void sampler_free(struct sampler *s);

void sampler_begin(struct sampler *s);
/* One more row, K_SAMPLE_ROWS at most. Borrows until sampler_run(). True: sampler_take() wants
 * the row on the host. */
bool sampler_add(struct sampler *s, const struct sampling *how,
                 const struct constrain_state *calls, uint64_t position);
/* logits: the rows that were added, in the backend's memory. */
void sampler_run(struct sampler *s, const float *logits);
/* The token of row i, with the arguments it was added with, after a sync() that was well; row
 * is its logits, if they had to cross. Errors as sample_token(). */
NODISCARD enum err sampler_take(struct sampler *s, uint32_t i, const struct sampling *how,
                                const struct constrain_state *calls, const float *row,
                                uint64_t position, uint32_t *id, struct error *e);

/* Guesses: one behind the other, of which the host learns none before the end. Each is drawn
 * from the sum of two rows of the backend's memory. False: this run's are to be drawn on the
 * host; as for a row, and wherever the host may read the memory. What may come is taken to be
 * what may come first: whoever takes a guess looks whether it fits. */
bool sampler_guess_begin(struct sampler *s, const struct sampling *how,
                         const struct constrain_state *calls);
/* Queues guess number i, and where its id will be, in the backend's memory. */
void sampler_guess(struct sampler *s, uint32_t i, const float *logits, const float *add,
                   uint64_t position);
const uint32_t *sampler_guess_id(const struct sampler *s, uint32_t i);
/* Fetches n of them; each is good after a sync() that was well. Errors as sample_token(). */
void sampler_guess_end(struct sampler *s, uint32_t n);
NODISCARD enum err sampler_guess_take(struct sampler *s, uint32_t i, uint64_t position,
                                      uint32_t *id, struct error *e);

/* For draws beside all this: [2][n_vocab] */
struct k_sample_entry *sampler_scratch(struct sampler *s);

#endif
