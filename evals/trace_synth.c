/* Sessions drawn with the published medians of agent work. */
#include <math.h>

#include "evals/pyrandom.h"
#include "evals/trace.h"

#define MAX_CONTEXT 1000000
#define BASE_P50 20000 /* system prompt, tools and first request */
#define MIN_STEPS 98   /* so that the median prefix of all steps is 119k */
#define MAX_STEPS 174
#define INPUT_P50 875
#define OUTPUT_P50 214
#define USER_SHARE 0.19   /* of steps that wait for a user */
#define USER_WAIT_MS 84e3 /* 1.4 minutes at P50; 13.9 hours at P99 */
#define TOOL_WAIT_MS 5e3
#define ARRIVAL_GAP_MS 60000

/* A log-normal number with this median; sigma is that of its logarithm. */
static double draw(struct pyrandom *r, double median, double sigma)
{
    const double two_pi = 6.283185307179586;
    double u = 1 - pyrandom_real(r), v = pyrandom_real(r); /* u is not 0 */
    return median * exp(sigma * sqrt(-2 * log(u)) * cos(two_pi * v));
}

static uint32_t draw_length(struct pyrandom *r, double median, double sigma)
{
    double v = draw(r, median, sigma);
    return v < 1 ? 1 : v > 100000 ? 100000 : (uint32_t)v;
}

static int64_t draw_wait(struct pyrandom *r)
{
    const double month_ms = 30.0 * 86400e3;
    double v = pyrandom_real(r) < USER_SHARE ? draw(r, USER_WAIT_MS, 2.747)
                                             : draw(r, TOOL_WAIT_MS, 1.5);
    return (int64_t)fmin(v, month_ms);
}

static enum err add_session(struct trace *t, struct pyrandom *r, struct error *e)
{
    const uint32_t n = MIN_STEPS + pyrandom_below(r, MAX_STEPS - MIN_STEPS + 1);
    struct trace_step s = {.input_len = draw_length(r, BASE_P50, 0.4)};
    enum err rc = OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        s.output_len = draw_length(r, OUTPUT_P50, 0.9);
        s.wait_ms = i + 1 < n ? draw_wait(r) : 0;
        if ((uint64_t)s.prefix_len + s.input_len + s.output_len > MAX_CONTEXT)
            break;
        rc = trace_add_step(t, &s, NULL, e);
        s.prefix_len += s.input_len + s.output_len;
        s.input_len = draw_length(r, INPUT_P50, 0.7);
    }
    return rc;
}

enum err trace_synthesise(struct trace *out, uint32_t n_sessions, uint64_t seed,
                          struct error *e)
{
    struct trace t = TRACE_INIT(TRACE_TRACELAB);
    struct pyrandom r;
    pyrandom_init(&r, seed);
    enum err rc = OK;
    for (uint32_t k = 0; k < n_sessions && !rc; k++) {
        rc = trace_add_session(&t, k, (int64_t)k * ARRIVAL_GAP_MS, e);
        if (!rc)
            rc = add_session(&t, &r, e);
    }
    if (rc)
        trace_fini(&t);
    else
        *out = t;
    return rc;
}
