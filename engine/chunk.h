/* A chunk of ids that are known: of an input segment, of a run's given part, of the tape's end
 * that is replayed, or of input ahead. Private to engine/. */
#ifndef ENGINE_CHUNK_H
#define ENGINE_CHUNK_H

#include "engine/part.h"

/* Whether a chunk is what this sequence waits for. */
bool chunk_is_due(const struct model_seq *s);

/* The next chunk of p->s, of at most `most` tokens. r->n is 0 where nothing has to run: then,
 * too, chunk_end() goes on. Errors as part_make_room(). */
NODISCARD enum err chunk_begin(struct part *p, uint32_t most, struct run *r, struct error *e);
/* After a pass with it: its tokens are part of the sequence, and the events say so. */
void chunk_end(struct event_list *l, struct part *p, const struct batch *batch,
               const struct run *r);

#endif
