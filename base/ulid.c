#include "base/ulid.h"

#include <string.h>

#include "base/crypto.h"

static const char alphabet[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
#define MAX_MS ((UINT64_C(1) << 48) - 1)

void ulid_init(struct ulid_source *s, const struct clock *clock)
{
    *s = (struct ulid_source){.clock = clock};
}

/* Adds one to the 80 random bits; false when they were all ones. */
static bool increment(uint8_t random[10])
{
    for (int i = 9; i >= 0; i--)
        if (++random[i] != 0)
            return true;
    return false;
}

void ulid_next(struct ulid_source *s, char out[ULID_CHARS + 1])
{
    int64_t wall = clock_wall_ms(s->clock);
    uint64_t ms = wall < 0 ? 0 : (uint64_t)wall > MAX_MS ? MAX_MS : (uint64_t)wall;
    bool fresh = ms > s->last_ms || s->last_ms == 0;
    if (!fresh && !increment(s->last_random)) {
        ms = s->last_ms + 1;
        fresh = true;
    }
    if (fresh) {
        s->last_ms = ms;
        (s->random ? s->random : crypto_random)(s->last_random, sizeof s->last_random);
    }
    uint8_t raw[16];
    for (unsigned i = 0; i < 6; i++)
        raw[i] = (uint8_t)(s->last_ms >> (40 - 8 * i));
    memcpy(raw + 6, s->last_random, 10);
    /* 128 bits as 26 digits of 5: the first digit holds the top 3. */
    for (unsigned i = 0; i < ULID_CHARS; i++) {
        unsigned v = 0;
        for (unsigned b = 0; b < 5; b++) {
            unsigned bit = i * 5 + b; /* counted from 2 zero bits in front */
            unsigned byte = bit < 2 ? 0 : raw[(bit - 2) / 8];
            v = v << 1 | ((byte >> (7 - (bit + 6) % 8)) & 1);
        }
        out[i] = alphabet[v];
    }
    out[ULID_CHARS] = '\0';
}

bool ulid_is_valid(const char *s, size_t n)
{
    if (n != ULID_CHARS || s[0] < '0' || s[0] > '7')
        return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] == '\0' || !strchr(alphabet, s[i]))
            return false;
    return true;
}

uint64_t ulid_ms(const char *s)
{
    uint64_t ms = 0;
    for (unsigned i = 0; i < 10; i++) {
        const char *digit = strchr(alphabet, s[i]);
        ms = ms << 5 | (uint64_t)(digit ? digit - alphabet : 0);
    }
    return ms;
}
