/* Damage in the packs of a store, at places that a test names by what is there. */
#ifndef TESTS_SUPPORT_STORE_HARM_H
#define TESTS_SUPPORT_STORE_HARM_H

#include <stddef.h>
#include <stdint.h>

struct store;

/* A byte of main rows. */
struct harm_place {
    char path[256]; /* of the pack */
    uint64_t off;
};

/* Finds such a byte for each main plane of each block of tokens in [from, to), wherever a pack
 * has one. The test fails if there is none, or more than cap. */
size_t harm_places(struct store *st, uint64_t from, uint64_t to, struct harm_place *out,
                   size_t cap);
/* Flips a bit there, and the second time back. */
void harm_flip(const struct harm_place *p);
/* Both at once, of the blocks in [from, to). */
void harm_main_rows(struct store *st, uint64_t from, uint64_t to);

#endif
