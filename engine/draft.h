/* DSpark: the draft layers guess the next few tokens, which the model then checks in one run
 * (model description, section 12). Private to engine/.
 *
 * A guess never changes what is generated. The token at a position is the one that
 * sample_token() gives for the model's own logits and the position's own random number, with
 * and without drafts; a draft that is that token is merely computed already. So the
 * distribution is kept by construction, for any temperature, and ids that were lost in a crash
 * come out again the same, wherever the guessing starts anew. Guesses are drawn with the same
 * random numbers, which makes them agree as often as the two distributions do. */
#ifndef ENGINE_DRAFT_H
#define ENGINE_DRAFT_H

#include "engine/seq.h"

struct draft {
    uint32_t n, n_cut; /* guesses; and how many more were asked for */
    uint32_t n_failed; /* asked for, but the draft layers failed; there are none then */
    uint32_t ids[CONFIG_MAX_DRAFT_BLOCK];
    /* Logits of being right, given that those before are: of the guesses, then of the one that
     * was too unsure. */
    float confidence[CONFIG_MAX_DRAFT_BLOCK];
    /* [n][vocab], the Markov head's included; in the work buffers, good where one was asked
     * for. NULL: they are the device's alone */
    const float *logits;
};

/* What is asked for one sequence: n <= dspark_block_size guesses behind `anchor`, its chosen
 * but not yet computed token of position kv.n_tokens. */
struct draft_ask {
    struct model_seq *s;
    uint32_t anchor, n;
    const struct sampling *how;
    struct draft *out;
    bool shows; /* out->logits are wanted, wherever that is dear */
};
#define DRAFT_MAX_ASKS 64

/* Guesses for n_asks <= DRAFT_MAX_ASKS sequences in one pass through the draft layers. Each
 * gets as many as it asks for, or fewer: guesses end where the chance that all so far are
 * right, which is the product of their confidences, falls below
 * engine_options.draft_confidence. Nothing of a sequence changes. ERR_FORMAT: logits that are
 * no numbers. Whose fault an error is it does not say, and what is in `out` is no draft then.
 */
NODISCARD enum err draft_propose_all(struct model *m, const struct draft_ask *asks,
                                     uint32_t n_asks, struct error *e);
/* The same for one, with its logits. */
NODISCARD enum err draft_propose(struct model *m, struct model_seq *s, uint32_t anchor,
                                 const struct sampling *how, uint32_t n, struct draft *out,
                                 struct error *e);

#endif
