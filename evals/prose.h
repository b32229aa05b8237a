/* Filler text: a seeded generator of plain English sentences, all of our own making.
 *
 * Sentences hold no digits, no brackets, no colons and no names, so that whatever a task hides
 * among them stays unambiguous. The same generator state gives the same bytes for ever: a
 * change of the grammar is a new version of every suite that uses it. */
#ifndef EVALS_PROSE_H
#define EVALS_PROSE_H

#include "base/buf.h"
#include "evals/pyrandom.h"

/* Appends one sentence, with its full stop and nothing behind. */
NODISCARD enum err prose_sentence(struct pyrandom *r, struct buf *out, struct error *e);
/* Appends n sentences, a space between them. */
NODISCARD enum err prose_sentences(struct pyrandom *r, uint32_t n, struct buf *out,
                                   struct error *e);

/* Number of names that prose_name makes: pronounceable, none twice, none a word of the prose.
 */
#define PROSE_N_NAMES 421875
#define PROSE_NAME_BYTES 8
/* The i-th name, "Bodufa", i < PROSE_N_NAMES. */
void prose_name(uint32_t i, char out[PROSE_NAME_BYTES]);

#endif
