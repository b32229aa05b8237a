#include "tests/support/conversation.h"

#include "tests/support/test.h"

static void generate(struct engine *m, struct seq *s, struct conversation *out)
{
    struct error e = {0};
    const struct generate_options g = {.sampling = {.seed = 3, .temperature = 0.3f, .top_p = 1},
                                       .max_tokens = CONVERSATION_NEW};
    size_t got = 0;
    assert_ok(seq_generate(s, &g, &e), &e);
    assert_int_not_equal(drive_run(m, out->ids + out->n, 2 * CONVERSATION_NEW - out->n, &got),
                         END_FAILED);
    out->n += got;
}

void conversation_run(struct engine *m, uint64_t n_prompt, struct conversation *out)
{
    uint32_t ids[CONVERSATION_MOST + CONVERSATION_SECOND];
    struct seq *s = drive_seq(m);
    assert_true(n_prompt <= CONVERSATION_MOST);
    *out = (struct conversation){0};
    drive_ids(ids, n_prompt + CONVERSATION_SECOND, 5);
    drive_input(m, s, ids, n_prompt, PREFILL_CED);
    generate(m, s, out);
    drive_input(m, s, ids + n_prompt, CONVERSATION_SECOND, PREFILL_FULL);
    generate(m, s, out);
    drive_export(m, s, &out->state);
    out->n_tiers = engine_tiers(m, out->tiers);
    seq_free(s);
}

void conversation_assert_same(const struct conversation *a, const struct conversation *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof(*a->ids));
    drive_assert_planes(&a->state, &b->state);
    drive_assert_tip(&a->state, &b->state);
    assert_true(a->state.digest.n_rows > 0);
    assert_memory_equal(&a->state.digest, &b->state.digest, sizeof(a->state.digest));
}
