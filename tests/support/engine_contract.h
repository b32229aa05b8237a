/* What engine.h promises, checked on an opened engine, whichever stands behind it. Each
 * function fails the running cmocka test. The engine must keep digests.
 *
 * The tapes it uses are: input, run, input, run, ... of seeded ordinary ids; runs are sampled
 * at temperature 0 unless said otherwise. */
#ifndef TESTS_SUPPORT_ENGINE_CONTRACT_H
#define TESTS_SUPPORT_ENGINE_CONTRACT_H

#include "engine/engine.h"

struct engine_contract {
    struct engine *m;
    uint32_t first_id, n_ids; /* ordinary ids: first_id .. first_id + n_ids - 1 */
    uint64_t input_tokens;    /* of each input segment; more than the window is a good choice */
    uint64_t run_tokens;      /* most of each run */
    uint32_t n_turns;         /* input and run, so many times */
    float temperature;
};

/* Wrong arguments and wrong states get the right code and change nothing. */
void contract_refusals(const struct engine_contract *c);
/* Events: positions without gaps, progress that grows, one DONE, nothing after it. */
void contract_events(const struct engine_contract *c);
/* Forced and given ids instead of sampled ones: same digests, same tip, same ids behind them.
 */
void contract_given(const struct engine_contract *c);
/* Stopped at every segment border and in the middle of each run, exported, imported into a new
 * sequence: everything that follows is bit-equal. */
void contract_exact_resume(const struct engine_contract *c);
/* The same from planes and tape only, deep. */
void contract_deep_resume(const struct engine_contract *c);
/* Cancelled in the middle of input and of a run, then continued: bit-equal. */
void contract_cancel(const struct engine_contract *c);
/* Two sequences side by side give what each gives alone. */
void contract_company(const struct engine_contract *c);

/* All of the above. */
void contract_all(const struct engine_contract *c);

#endif
