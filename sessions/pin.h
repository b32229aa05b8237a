/* What a restore has found and is going to read: eviction and gc leave it alone until it has
 * been read, or for a minute. A plan that nobody reads costs no more than that; no pin is ever
 * lost or forgotten. In memory only: after a restart nobody is reading. Store's thread. */
#ifndef SESSIONS_PIN_H
#define SESSIONS_PIN_H

#include "sessions/catalog.h"

struct forest;

#define PIN_NS (60ull * 1000000000)

/* The chain's end pins all it hangs on. The oldest pin makes room when there are too many. */
void pin_add(struct store *st, const struct head_chain *c);
/* The chain was read: all pins of it go. */
void pin_drop(struct store *st, const struct head_chain *c);
/* Pins of a picture of the catalog. */
void pin_forest(const struct store *st, struct forest *f);
/* Whether an extent is the end of a pinned chain. What is before an end has children. */
bool pin_holds(const struct store *st, enum catalog_table kind, int64_t id);

#endif
