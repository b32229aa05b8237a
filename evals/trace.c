#include "evals/trace.h"

#include <stdlib.h>
#include <string.h>

#include "base/auto.h"

/* ---- building --------------------------------------------------------------------------- */

void trace_fini(struct trace *t)
{
    free(t->sessions);
    free(t->steps);
    free(t->blocks);
    *t = (struct trace){.form = t->form};
}

/* A grown copy of an array of n objects with room for more, or NULL. */
static void *grown(void *v, uint64_t cap, size_t object_bytes)
{
    return realloc(v, (size_t)cap * object_bytes); /* cannot overflow: see the maxima */
}

enum err trace_add_session(struct trace *t, uint64_t id, int64_t arrival_ms, struct error *e)
{
    if (t->n_sessions == TRACE_MAX_STEPS)
        return err_set(e, ERR_LIMIT, "trace: over %u sessions", TRACE_MAX_STEPS);
    if (t->n_sessions == t->session_cap) {
        uint32_t cap = t->session_cap ? 2 * t->session_cap : 64;
        void *v = grown(t->sessions, cap, sizeof *t->sessions);
        if (!v)
            return err_set(e, ERR_NOMEM, "no memory for %u sessions", cap);
        t->sessions = v;
        t->session_cap = cap;
    }
    t->sessions[t->n_sessions++] =
        (struct trace_session){.id = id, .arrival_ms = arrival_ms, .step = t->n_steps};
    return OK;
}

static enum err add_blocks(struct trace *t, const uint64_t *blocks, uint32_t n, struct error *e)
{
    if (n > TRACE_MAX_BLOCKS - t->n_blocks)
        return err_set(e, ERR_LIMIT, "trace: over %u blocks", TRACE_MAX_BLOCKS);
    if (t->n_blocks + n > t->block_cap) {
        uint64_t cap = t->block_cap ? 2 * t->block_cap : 1024;
        cap = cap < t->n_blocks + n ? t->n_blocks + n : cap;
        void *v = grown(t->blocks, cap, sizeof *t->blocks);
        if (!v)
            return err_set(e, ERR_NOMEM, "no memory for %llu blocks", (unsigned long long)cap);
        t->blocks = v;
        t->block_cap = cap;
    }
    if (n)
        memcpy(t->blocks + t->n_blocks, blocks, n * sizeof *blocks);
    t->n_blocks += n;
    return OK;
}

enum err trace_add_step(struct trace *t, const struct trace_step *s, const uint64_t *blocks,
                        struct error *e)
{
    if (t->n_steps == TRACE_MAX_STEPS || !t->n_sessions)
        return err_set(e, ERR_LIMIT, "trace: over %u steps, or no session", TRACE_MAX_STEPS);
    if (t->n_steps == t->step_cap) {
        uint32_t cap = t->step_cap ? 2 * t->step_cap : 256;
        void *v = grown(t->steps, cap, sizeof *t->steps);
        if (!v)
            return err_set(e, ERR_NOMEM, "no memory for %u steps", cap);
        t->steps = v;
        t->step_cap = cap;
    }
    const uint64_t first = t->n_blocks;
    enum err rc = add_blocks(t, blocks, s->n_blocks, e);
    if (rc)
        return rc;
    t->steps[t->n_steps] = *s;
    t->steps[t->n_steps++].block = first;
    t->sessions[t->n_sessions - 1].n_steps++;
    return OK;
}

/* ---- filler ----------------------------------------------------------------------------- */

/* The finalizer of splitmix64 (Vigna): every bit of x touches every bit of the result. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

void trace_filler(uint64_t stream, uint64_t at, uint32_t first, uint32_t n_ids, uint32_t *out,
                  size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t x = mix(stream + (at + i + 1) * UINT64_C(0x9e3779b97f4a7c15));
        out[i] = first + (uint32_t)((x >> 32) * n_ids >> 32);
    }
}

uint64_t trace_block_stream(uint64_t block_id)
{
    return mix(mix(block_id) + 1);
}

uint64_t trace_round_stream(uint64_t session_id, uint32_t round)
{
    return mix(mix(mix(session_id) + 2) + round);
}

uint64_t trace_prefix_stream(uint64_t session_id)
{
    return mix(mix(session_id) + 3);
}

/* ---- figures ---------------------------------------------------------------------------- */

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nearest rank. */
static double percentile(double *v, size_t n, double p)
{
    qsort(v, n, sizeof *v, compare_double);
    return n ? v[(size_t)(p * (double)(n - 1) + 0.5)] : 0;
}

enum err trace_summarise(const struct trace *t, struct trace_summary *out, struct error *e)
{
    if (!t->n_steps)
        return err_set(e, ERR_INVAL, "trace: no steps");
    AUTO_FREE double *v = calloc(t->n_steps, sizeof *v);
    if (!v)
        return err_set(e, ERR_NOMEM, "no memory for figures of %u steps", t->n_steps);
    struct trace_summary s = {.n_steps = t->n_steps};
    double prefix = 0, all = 0;
    for (uint32_t i = 0; i < t->n_steps; i++) {
        v[i] = t->steps[i].prefix_len;
        prefix += v[i];
        all += v[i] + t->steps[i].input_len;
    }
    s.prefix_share = all > 0 ? prefix / all : 0;
    s.prefix_p50 = percentile(v, t->n_steps, 0.5);
    for (uint32_t i = 0; i < t->n_steps; i++)
        v[i] = t->steps[i].input_len;
    s.input_p50 = percentile(v, t->n_steps, 0.5);
    for (uint32_t i = 0; i < t->n_steps; i++)
        v[i] = t->steps[i].output_len;
    s.output_p50 = percentile(v, t->n_steps, 0.5);
    size_t n = 0;
    for (uint32_t k = 0; k < t->n_sessions; k++)
        for (uint32_t i = 0; i + 1 < t->sessions[k].n_steps; i++)
            v[n++] = (double)t->steps[t->sessions[k].step + i].wait_ms;
    s.wait_p50_ms = percentile(v, n, 0.5);
    s.wait_p99_ms = percentile(v, n, 0.99);
    *out = s;
    return OK;
}

struct trace_sweep trace_sweep_timeout(const struct trace *t, int64_t timeout_ms)
{
    struct trace_sweep r = {.hit_rate = 1, .amplification = 1};
    double needed = 0;
    for (uint32_t k = 0; k < t->n_sessions; k++) {
        const struct trace_step *s = &t->steps[t->sessions[k].step];
        for (uint32_t i = 1; i < t->sessions[k].n_steps; i++) {
            const bool suspended = timeout_ms >= 0 && s[i - 1].wait_ms > timeout_ms;
            r.n_later++;
            r.n_suspended += suspended;
            r.prefix_tokens += suspended ? s[i].prefix_len : 0.0;
            needed += s[i].input_len;
        }
    }
    if (r.n_later)
        r.hit_rate = (double)(r.n_later - r.n_suspended) / (double)r.n_later;
    if (needed > 0)
        r.amplification = (needed + r.prefix_tokens) / needed;
    return r;
}
