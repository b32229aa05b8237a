/* Damage in the packs of a store, at places that a test names by what is there. */
#ifndef TESTS_SUPPORT_STORE_HARM_H
#define TESTS_SUPPORT_STORE_HARM_H

#include <stdint.h>

struct store;

/* Flips a bit in the main rows of the block that begins with token `first`, in each plane and
 * wherever a pack has such a block. The test fails if none has. */
void harm_main_rows(struct store *st, uint64_t first);

#endif
