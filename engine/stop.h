/* Where a run ends by a stop string: the output parser in the engine, so that the run ends with
 * the same token whatever the timing, and readers see the same text as what ended it. */
#ifndef ENGINE_STOP_H
#define ENGINE_STOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct sampling;
struct stop_watch;
struct tokenizer;

/* *out stays NULL when there is nothing to stop at. The sampling's strings and the tokenizer
 * are borrowed. */
NODISCARD enum err stop_watch_new(struct stop_watch **out, const struct sampling *s,
                                  const struct tokenizer *t, struct error *e);
void stop_watch_free(struct stop_watch *w);
/* The next id of the run. *stops: the run ends with it. w may be NULL. ERR_LIMIT, ERR_NOMEM. */
NODISCARD enum err stop_watch_feed(struct stop_watch *w, uint32_t id, bool *stops,
                                   struct error *e);

#endif
