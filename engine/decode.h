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
/* After a pass with it: logits [r->n][vocab] and collapsed rows h [r->n][D] of its tokens. What
 * was guessed right is kept, and the events tell of it and of the token that follows. */
void decode_end(struct event_list *l, struct part *p, const struct run *r, const float *logits,
                const float *h);

#endif
