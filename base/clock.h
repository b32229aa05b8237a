/* Time, passed in: whoever needs a clock takes a `const struct clock *`, so that tests never
 * sleep.
 *
 *     uint64_t t0 = clock_mono_ns(c->clock);
 *
 * clock_real() is the machine's; a fake_clock stands still until a test moves it. Any thread.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

struct clock {
    uint64_t (*mono_ns)(const struct clock *c); /* since some start; never goes back */
    int64_t (*wall_ms)(const struct clock *c);  /* Unix time; may jump */
};

static inline uint64_t clock_mono_ns(const struct clock *c)
{
    return c->mono_ns(c);
}

static inline int64_t clock_wall_ms(const struct clock *c)
{
    return c->wall_ms(c);
}

/* CLOCK_MONOTONIC and CLOCK_REALTIME. Constant, for the life of the program. */
const struct clock *clock_real(void);

/* A clock for tests: pass &f.clock on. */
struct fake_clock {
    struct clock clock; /* first: the functions find the rest by it */
    _Atomic uint64_t mono_ns;
    _Atomic int64_t wall_ms;
};

/* Starts at monotonic 0 and the given wall time. */
void fake_clock_init(struct fake_clock *f, int64_t wall_ms);
/* Moves both times on by ms. */
void fake_clock_advance(struct fake_clock *f, uint64_t ms);
/* Sets the wall time only, as a person or NTP would. */
void fake_clock_set_wall(struct fake_clock *f, int64_t wall_ms);

#define CLOCK_TEXT_BYTES 25
/* "2026-11-30T13:00:45.123Z" with its end; years outside 1970..9999 are clamped to that range.
 */
void clock_text(int64_t wall_ms, char out[CLOCK_TEXT_BYTES]);

#endif
