/* Traces of real work: how much was asked, when, and which part of it had been seen before.
 *
 * Two forms are read and written:
 *
 *   Mooncake JSONL  a request a line: {"timestamp" ms, "input_length", "output_length",
 *                   "hash_ids": one id for each begun block of 512 input tokens; equal ids mean
 *                   equal prefixes}. Every request is a session of one step.
 *   TraceLab CSV    a round a line under a header: session_id, arrival_time (ms; may be
 * missing), round_idx, prefix_len, input_len, output_len, tool_wait_after_ms; columns by name,
 * others ignored. A round keeps prefix_len tokens of its session, appends input_len and
 * generates output_len; a prefix shorter than what is there is a step back, and that of a
 * session's first round was never in the trace.
 *
 * Sessions stand one behind the other, rounds in order. No text is in a trace: trace_filler()
 * gives the tokens that stand for it. Source: kvcache-ai/Mooncake, FAST25-release/traces;
 * uw-syfi/TraceLab, replay/examples. */
#ifndef EVALS_TRACE_H
#define EVALS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define TRACE_BLOCK_TOKENS 512
#define TRACE_MAX_STEPS (1u << 22)
#define TRACE_MAX_BLOCKS (1u << 27)
#define TRACE_MAX_LENGTH INT32_MAX      /* tokens of prefix, input or output */
#define TRACE_MAX_MS (INT64_C(1) << 52) /* 142,000 years; sums of 2^11 fit in 63 bits */

enum trace_form { TRACE_MOONCAKE, TRACE_TRACELAB };

struct trace_step {
    uint32_t prefix_len, input_len, output_len;
    uint32_t n_blocks; /* Mooncake: of the whole input, prefix included */
    uint64_t block;    /* index of the first into trace.blocks */
    int64_t wait_ms;   /* after the step, until the next of its session */
};

struct trace_session {
    uint64_t id;
    int64_t arrival_ms; /* of its first step; -1: not known */
    uint32_t step, n_steps;
};

struct trace {
    enum trace_form form;
    struct trace_session *sessions;
    struct trace_step *steps;
    uint64_t *blocks;
    uint32_t n_sessions, n_steps;
    uint64_t n_blocks;
    uint32_t session_cap, step_cap;
    uint64_t block_cap;
};

#define TRACE_INIT(which)                                                                      \
    {                                                                                          \
        .form = (which)                                                                        \
    }

void trace_fini(struct trace *t);

/* Building: a session, then its steps, whose `block` is set here. ERR_LIMIT past the maxima
 * above, ERR_NOMEM. */
NODISCARD enum err trace_add_session(struct trace *t, uint64_t id, int64_t arrival_ms,
                                     struct error *e);
NODISCARD enum err trace_add_step(struct trace *t, const struct trace_step *s,
                                  const uint64_t *blocks, struct error *e);

/* Reads n bytes of a form. ERR_FORMAT with line and field, ERR_LIMIT, ERR_NOMEM; the trace is
 * then empty. `name` is for messages. */
NODISCARD enum err trace_parse(struct trace *out, enum trace_form form, const char *text,
                               size_t n, const char *name, struct error *e);
/* Reads a file: a first byte '{' means Mooncake. */
NODISCARD enum err trace_load(struct trace *out, const char *path, struct error *e);
/* Appends the trace in its form. */
NODISCARD enum err trace_write(const struct trace *t, struct buf *out, struct error *e);

/* n filler tokens from position `at` of an endless stream, all in first..first + n_ids - 1 (the
 * ordinary ids of a vocabulary). The same stream and position give the same token for ever. */
void trace_filler(uint64_t stream, uint64_t at, uint32_t first, uint32_t n_ids, uint32_t *out,
                  size_t n);
/* The stream of a Mooncake block, of what a round appends, and of the prefix that a session
 * came with; no two of them are equal. */
uint64_t trace_block_stream(uint64_t block_id);
uint64_t trace_round_stream(uint64_t session_id, uint32_t round);
uint64_t trace_prefix_stream(uint64_t session_id);

struct trace_summary {
    uint64_t n_steps;
    double prefix_p50, input_p50, output_p50; /* tokens a step */
    double wait_p50_ms, wait_p99_ms;          /* between steps of a session */
    double prefix_share;                      /* of all tokens that prompts had, 0..1 */
};
/* ERR_INVAL for an empty trace, ERR_NOMEM. */
NODISCARD enum err trace_summarise(const struct trace *t, struct trace_summary *out,
                                   struct error *e);

/* What a cache does that drops a session's state when a wait exceeds timeout_ms (negative:
 * never), counted over all but the first step of each session. */
struct trace_sweep {
    double hit_rate;      /* share of steps that found their prefix */
    double amplification; /* tokens prefilled over tokens prefilled by one that never drops */
    uint64_t n_later;     /* steps that are counted */
    uint64_t n_suspended; /* of them after a wait over the timeout */
    double prefix_tokens; /* that those had: computed again, or read back by a store */
};
struct trace_sweep trace_sweep_timeout(const struct trace *t, int64_t timeout_ms);

/* Agent sessions drawn with the medians that TraceLab publishes: prefix 119k, append 875,
 * output 214 tokens a step, waits of 1.4 minutes for a user and of seconds for tools. Form
 * TraceLab. ERR_NOMEM, ERR_LIMIT. */
NODISCARD enum err trace_synthesise(struct trace *out, uint32_t n_sessions, uint64_t seed,
                                    struct error *e);

#endif
