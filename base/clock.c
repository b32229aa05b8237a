#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static uint64_t real_mono_ns(const struct clock *c)
{
    (void)c;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int64_t real_wall_ms(const struct clock *c)
{
    (void)c;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

const struct clock *clock_real(void)
{
    static const struct clock real = {real_mono_ns, real_wall_ms};
    return &real;
}

static uint64_t fake_mono_ns(const struct clock *c)
{
    return atomic_load(&((const struct fake_clock *)c)->mono_ns);
}

static int64_t fake_wall_ms(const struct clock *c)
{
    return atomic_load(&((const struct fake_clock *)c)->wall_ms);
}

void fake_clock_init(struct fake_clock *f, int64_t wall_ms)
{
    f->clock = (struct clock){fake_mono_ns, fake_wall_ms};
    atomic_init(&f->mono_ns, 0);
    atomic_init(&f->wall_ms, wall_ms);
}

void fake_clock_advance(struct fake_clock *f, uint64_t ms)
{
    atomic_fetch_add(&f->mono_ns, ms * 1000000u);
    atomic_fetch_add(&f->wall_ms, (int64_t)ms);
}

void fake_clock_set_wall(struct fake_clock *f, int64_t wall_ms)
{
    atomic_store(&f->wall_ms, wall_ms);
}

void clock_text(int64_t wall_ms, char out[CLOCK_TEXT_BYTES])
{
    const int64_t last_ms = 253402300799999; /* 9999-12-31T23:59:59.999Z */
    int64_t ms = wall_ms < 0 ? 0 : wall_ms > last_ms ? last_ms : wall_ms;
    time_t s = (time_t)(ms / 1000);
    struct tm t;
    char date[CLOCK_TEXT_BYTES];
    gmtime_r(&s, &t);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(out, CLOCK_TEXT_BYTES, "%.19s.%03dZ", date, (int)(ms % 1000));
}
