/* A trace replayed on a daemon in recorded mode: what a round appends is filler text, what the
 * model says is forced, so that every arm computes the same tokens.
 *
 * Sessions run one behind the other; a wait is not waited for but compared with the idle
 * timeout, as a scheduler with that timeout would: past it the session's state leaves memory.
 * Two arms differ in what that means. `forgets` is a cache that loses it (kv/drop): the next
 * round computes the whole prefix again. Without, the state is this store's: the round reads it
 * back. A daemon that is killed at seeded moments is started again, and the turn in work is
 * asked for again under the same client id. */
#ifndef EVALS_REPLAY_H
#define EVALS_REPLAY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/encode.h"
#include "base/err.h"
#include "base/state.h"
#include "evals/trace.h"

struct replay_options {
    const struct trace *trace;
    const char *model;  /* of a daemon of our own; its tokenizer gives the filler */
    const char *socket; /* a running daemon of that model instead; NULL: our own */
    const char *work;   /* folder for our own daemon's; NULL: TMPDIR */
    double scale;       /* lengths are divided by it, at least 1 token is left */
    uint32_t max_sessions, max_rounds; /* of the trace; 0: all */
    int64_t timeout_ms;                /* negative: never */
    bool forgets;
    bool verifies;    /* session/verify of each session at its end */
    uint32_t n_kills; /* only with a daemon of our own */
    uint64_t seed;
    int wake_fd; /* > 0: ERR_CANCELLED once it is readable */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
};

struct replay_result {
    char fingerprint[HEX_CHARS(STATE_KEY_BYTES)]; /* of the daemon's model */
    uint64_t n_rounds, n_later; /* all; those that are not a session's first */
    uint64_t n_suspended,
        n_hits; /* later rounds: after a timeout; with nothing computed again */
    uint64_t prompt, resident, restored, recomputed, relost, prefilled, decoded, replayed;
    uint64_t bytes_read;
    uint64_t n_kills, n_struck;      /* of them before the turn's end was known */
    uint64_t n_acknowledged, n_lost; /* turns */
    uint64_t n_verified, n_unequal;  /* sessions */
    double ttft_p50_ms, ttft_p90_ms; /* of later rounds: queue to first token */
};

/* hits / later; computed tokens / tokens that were new. 1 without any. */
double replay_hit_rate(const struct replay_result *r);
double replay_amplification(const struct replay_result *r);

/* ERR_CORRUPT: a ledger that does not add up, another receipt for the same prompt. Lost turns,
 * relost tokens and unequal sessions are counted, not errors. */
NODISCARD enum err replay_run(const struct replay_options *o, struct replay_result *out,
                              struct error *e);
json_t *replay_json(const struct replay_result *r);

#endif
