/* Does a resumed session answer exactly as one that never stopped? The arms of verify-resume.
 *
 *   C   never stopped; all others are compared with it, row by row
 *   C'  the same again (E0: the noise floor, which has to be zero)
 *   S   chunks of 61 tokens cut at every resume point, one thread, other company in the batch
 *   P   the same tape from its beginning, in an engine that ran before
 *   X   exact resume at every position of the sweep, and again and again (cycles)
 *   D   deep resume at the same positions
 *   B   bounded replay: reported, never equal; by tokens since resume and by cycles
 *   F   forks of a daemon's session, inside history and at its end
 *   K   a daemon killed in the middle of a turn; and one that is stopped and started (X)
 *   I   a daemon whose packs were damaged on disk: noticed, and still the right answer
 *
 * C' to D run in this process on the engine. F, K and I run a daemon of their own, whose
 * session/verify compares the digest of every computed row with a process that never stops; the
 * ledger of each of its turns is checked. Result of one length:
 *
 *   {"length", "continuation", "checks": [{"arm", "what", "position", "rows", "different",
 *    "missing", "equal", "replayed", "ms", "ledger"?}], "nll": {"exact", "bounded": {...}},
 *    "curve": [{"from", "to", "n", "kl", "kl_max", "max_diff", "top1", "top20", "near_ties",
 *    "real"}], "cycles": [{"cycle", "kl"}], "answers"?: [PROBE...], "equal", "unfinished"?}
 *
 *   PROBE: {"kind", "position", "depth"?, "distance"?, "from"?, "to"?, "right", "tool",
 *    "arguments", "arms": {"X"?, "D"?, "B"?: {"right", "same_ids", "same_action", "rows",
 *    "different", "replayed"}}}
 *
 * Or X, D and B on a suite's samples (fidelity_suite): each context is read once by a session
 * that never stops, resumed in each way, and every question is asked in a fork of each. Result
 * of one cell of the suite, as above and: {"cell", "n_contexts", "accuracy": {"C", "X"?, "D"?,
 * "B"?: {"n", "right", "mean", "low", "high"}}}, Wilson's 95 % intervals; PROBE has "id",
 * "expected" and "text", and so has an arm whose ids are others ("text"; none if not UTF-8);
 * "replayed" counts with the first fork of a resume. */
#ifndef EVALS_FIDELITY_H
#define EVALS_FIDELITY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

#define FIDELITY_ARMS "CcSPXDBFKI" /* C' is c */

struct fidelity_options {
    const char *model;
    struct engine_options engine;
    uint64_t length;       /* tokens before the forced continuation */
    uint64_t continuation; /* tokens of it, at least 128 */
    uint32_t n_cycles, n_kills;
    uint32_t n_probes; /* questions at each depth and distance; 0: the model is asked nothing */
    uint64_t seed;
    const char *arms;          /* letters of FIDELITY_ARMS */
    const char *work;          /* folder for daemons; theirs is made in it and removed */
    const uint64_t *positions; /* of the sweep; n_positions 0: as evals.md says (E4) */
    size_t n_positions;
    int wake_fd; /* > 0: ERR_CANCELLED once it is readable */
    void (*progress)(void *user, const char *what);
    /* The result so far ("unfinished": true; borrowed), before the model is asked and before
     * daemons run: lengths that take hours need not end to be read. NULL: nobody wants it. */
    enum err (*so_far)(void *user, json_t *result, struct error *e);
    void *user;
};

/* A tape of an agent's session: a question, thinking, a long tool result, calls and results in
 * turn, and the forced continuation. Text is seeded prose. */
struct fidelity_tape {
    struct tape_view view;
    uint32_t *ids;
    struct segment *segments;
};
NODISCARD enum err fidelity_tape_make(struct fidelity_tape *t, const char *model,
                                      uint64_t length, uint64_t continuation, uint64_t seed,
                                      struct error *e);
void fidelity_tape_fini(struct fidelity_tape *t);

/* One length. *equal: every check that must be equal is. An arm that could not be computed is
 * an error, not a difference. */
NODISCARD enum err fidelity_run(const struct fidelity_options *o, json_t **out, bool *equal,
                                struct error *e);
/* The cells of the suite in folder dir; o->length, continuation, cycles, kills, probes and
 * positions are not looked at, arms only for X, D and B. Results are appended to out. so_far is
 * called after each context. ERR_CONFLICT: the suite is of another tokenizer. ERR_UNSUPPORTED:
 * the process has more than one thread. */
NODISCARD enum err fidelity_suite(const struct fidelity_options *o, const char *dir,
                                  json_t *out, bool *equal, struct error *e);
/* The probes of each kind as one check of X and one of D, appended to checks. */
NODISCARD enum err fidelity_answer_checks(const json_t *probes, json_t *checks,
                                          struct error *e);
/* What the model says after X, D and B (evals/fidelity_answers.c): the probes, to be decref'd,
 * and their checks, appended. ERR_FORMAT: it has no chat format. */
NODISCARD enum err fidelity_answers(const struct fidelity_options *o,
                                    const struct state_layout *layout, json_t *checks,
                                    json_t **out, struct error *e);
/* The arms that need a daemon (F, K, I and its X): appends to checks. */
NODISCARD enum err fidelity_daemon(const struct fidelity_options *o,
                                   const struct fidelity_tape *t, json_t *checks,
                                   struct error *e);

#endif
