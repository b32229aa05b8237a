/* ULIDs: 26 characters that sort by the time they were made.
 *
 * 48 bits of Unix milliseconds and 80 random bits in Crockford's base 32, upper case. The ids
 * of one source are strictly increasing, also within a millisecond and when the wall clock goes
 * back. A source belongs to one thread. Source: the ULID specification. */
#ifndef BASE_ULID_H
#define BASE_ULID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

#define ULID_CHARS 26

struct ulid_source {
    const struct clock *clock;
    /* NULL: crypto_random. A test passes its own. */
    void (*random)(void *dst, size_t n);
    uint64_t last_ms;
    uint8_t last_random[10]; /* big-endian, as it is printed */
};

void ulid_init(struct ulid_source *s, const struct clock *clock);
/* The next id, with its terminating 0. */
void ulid_next(struct ulid_source *s, char out[ULID_CHARS + 1]);
/* Exactly 26 characters of the alphabet, upper case, not above the largest id. */
bool ulid_is_valid(const char *s, size_t n);
/* The time inside a valid id, Unix milliseconds. */
uint64_t ulid_ms(const char *s);

#endif
