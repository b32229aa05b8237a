/* A prompt, a run, a second input, a second run: what engines that must not differ are held to,
 * with everything that could tell them apart. */
#ifndef TESTS_SUPPORT_CONVERSATION_H
#define TESTS_SUPPORT_CONVERSATION_H

#include "tests/support/drive.h"

#define CONVERSATION_NEW 24    /* tokens of each run, at most */
#define CONVERSATION_SECOND 45 /* ids of the second input */
#define CONVERSATION_MOST 700  /* ids of the prompt, at most */

struct conversation {
    uint32_t ids[2 * CONVERSATION_NEW]; /* drawn */
    size_t n;
    struct drive_state state; /* at the end; drive_state_free() */
    struct engine_tier tiers[ENGINE_MAX_TIERS];
    size_t n_tiers;
};

void conversation_run(struct engine *m, uint64_t n_prompt, struct conversation *out);
/* Fails unless ids, planes, tips and digests of all logits are equal. */
void conversation_assert_same(const struct conversation *a, const struct conversation *b);

#endif
