/* Sampled tokens: the one that was reported last is computed, with guesses of the draft layers
 * behind it, and the next ones are drawn. Private to engine/. */
#ifndef ENGINE_DECODE_H
#define ENGINE_DECODE_H

#include "engine/part.h"

/* Draws a run's first token from the last computed row; nothing has to run for that. */
NODISCARD enum err decode_first(struct event_list *l, struct model_seq *s, struct error *e);

/* p->s has a token that is reported and not computed: what is to be guessed behind it, into
 * p->draft. False: nothing is of use. */
bool decode_ask(struct part *p, struct draft_ask *out);
/* The token and the guesses become a run. Nothing has happened where this fails. */
NODISCARD enum err decode_begin(struct part *p, struct run *r, struct error *e);
/* After a pass with it, its rows of logits: sampler_begin(), then for each run that has some
 * decode_add_rows(), which says whether somebody wants them on the host; decode_logits(), from
 * collapsed rows h [n][D] of all; and for each run decode_end(), which is told the number of
 * its first row and its own h. What was guessed right is kept, and the events tell of it and of
 * the token that follows. */
bool decode_add_rows(struct model *m, const struct part *p, const struct run *r);
NODISCARD enum err decode_logits(struct model *m, const float *h, uint32_t n, bool crosses,
                                 struct error *e);
void decode_end(struct event_list *l, struct part *p, const struct run *r, uint32_t first,
                const float *h);

#endif
