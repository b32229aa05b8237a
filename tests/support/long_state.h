/* Sequences of many tokens for benches, without prefilling them all.
 *
 * Whatever goes wrong ends the program (tests/support/bench.h). */
#ifndef TESTS_SUPPORT_LONG_STATE_H
#define TESTS_SUPPORT_LONG_STATE_H

#include "base/auto.h"
#include "engine/engine.h"

/* The token of such a sequence at a position: an ordinary byte of any tokenizer. */
uint32_t long_state_id(uint64_t position);

/* Reads what `bench_million --keep` left: planes, tip and digest of n_tokens. */
struct seq *long_state_read(struct engine *m, const char *path, uint64_t n_tokens);
/* Prefills n_base tokens, repeats their rows up to n_tokens and computes the windows there, as
 * a deep resume does: a state as good as any other for what takes time, though no model would
 * have computed these rows at these positions. n_base: a multiple of every plane's ratio. */
struct seq *long_state_repeat(struct engine *m, uint64_t n_base, uint64_t n_tokens);

/* The tape of such a sequence: all input, in segments of 8,192 tokens. */
struct long_tape {
    struct tape_view view;
    uint32_t *ids;
    struct segment *segments;
};
void long_tape_make(struct long_tape *t, uint64_t n_base, uint64_t n_tokens);
void long_tape_fini(struct long_tape *t);

#endif
