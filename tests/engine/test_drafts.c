/* Speculation changes nothing but the number of steps: ids, logits, planes and tips are bit by
 * bit those without drafts, greedy and sampled, wherever a run ends, and across a stop. */
#include "engine/model.h"
#include "tests/support/drive.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model" /* 2 draft layers, blocks of 3 */
#define N_PROMPT 61
#define N_NEW 150

struct outcome {
    uint32_t ids[2 * N_NEW];
    size_t n;
    enum end_reason reason;
    struct drive_state state;
    uint64_t n_guessed, n_right;
};

/* eos_id: 0 leaves the model's own. */
static struct engine *open_drafting(uint32_t n, uint32_t eos_id)
{
    struct engine_options o = {.draft_tokens = n,
                               .precision = PRECISION_FP32KVQ,
                               .digests = true,
                               .no_weight_digest = true,
                               .n_threads = 1};
    struct engine *m = drive_open(MODEL, &o);
    if (eos_id)
        model_of(m)->config.eos_id = eos_id;
    return m;
}

static void generate(struct engine *m, struct seq *s, const struct sampling *how, uint64_t n,
                     bool resumes, struct outcome *out)
{
    struct error e = {0};
    struct generate_options g = {.sampling = *how, .max_tokens = n, .resumes = resumes};
    size_t got = 0;
    assert_ok(seq_generate(s, &g, &e), &e);
    out->reason = drive_run(m, out->ids + out->n, 2 * N_NEW - out->n, &got);
    out->n += got;
}

/* A prompt, then a run of at most n_new, stopped and resumed exactly after `cut` (0: never). */
static void run(uint32_t n_drafts, const struct sampling *how, uint64_t n_new, uint64_t cut,
                uint32_t eos_id, struct outcome *out)
{
    uint32_t ids[N_PROMPT];
    struct engine *m = open_drafting(n_drafts, eos_id);
    struct seq *s = drive_seq(m);
    *out = (struct outcome){0};
    drive_ids(ids, N_PROMPT, 5);
    drive_input(m, s, ids, N_PROMPT, PREFILL_CED);
    if (cut)
        generate(m, s, how, cut, false, out);
    if (cut && out->reason == END_LENGTH) {
        struct drive_state saved;
        drive_export(m, s, &saved);
        seq_free(s);
        s = drive_import(m, &saved);
        drive_state_free(&saved);
    }
    if (!cut || out->reason == END_LENGTH)
        generate(m, s, how, n_new - cut, cut > 0, out);
    drive_export(m, s, &out->state);
    engine_draft_counts(m, &out->n_guessed, &out->n_right);
    engine_free(m);
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        assert_int_equal(a->ids[i], b->ids[i]);
    assert_int_equal(a->reason, b->reason);
    assert_int_equal(a->state.n_tokens, b->state.n_tokens);
    drive_assert_planes(&a->state, &b->state);
    drive_assert_tip(&a->state, &b->state);
    assert_memory_equal(&a->state.digest, &b->state.digest, sizeof(a->state.digest));
}

static void compare(const struct sampling *how, uint64_t n_new, uint64_t cut, bool *any_right)
{
    struct outcome plain, drafted;
    run(0, how, n_new, 0, 0, &plain);
    assert_int_equal(plain.n_guessed, 0);
    for (uint32_t n = 1; n <= 3; n++) {
        run(n, how, n_new, cut, 0, &drafted);
        assert_same(&plain, &drafted);
        assert_true(drafted.n_guessed > 0 && drafted.n_right <= drafted.n_guessed);
        *any_right = *any_right || drafted.n_right;
        drive_state_free(&drafted.state);
    }
    drive_state_free(&plain.state);
}

static void test_greedy(void **state)
{
    const struct sampling greedy = {.top_p = 1};
    bool any_right = false;
    (void)state;
    compare(&greedy, N_NEW, 0, &any_right);
    compare(&greedy, N_NEW, 77, &any_right);
}

/* The random weights guess badly: low temperatures and few choices make some of them right. */
static void test_sampled(void **state)
{
    bool any_right = false;
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const struct sampling how = {.seed = seed,
                                     .temperature = seed % 2 ? 1.0F : 3.0F,
                                     .top_p = seed % 3 ? 1 : 0.8F,
                                     .top_k = seed % 2 ? 0 : 2};
        compare(&how, 60, seed % 2 ? 31 : 0, &any_right);
    }
    assert_true(any_right);
}

/* Every length, so that the limit falls on each place of a block. */
static void test_lengths(void **state)
{
    const struct sampling how = {.seed = 3, .temperature = 2, .top_p = 1, .top_k = 2};
    bool any_right = false;
    (void)state;
    for (uint64_t n = 2; n <= 9; n++)
        compare(&how, n, 0, &any_right);
}

/* Whatever id ends the run, it ends it at the same place: as the anchor, as a right guess with
 * guesses behind it, as what follows a wrong one. */
static void test_eos(void **state)
{
    const struct sampling how = {.seed = 3, .temperature = 2, .top_p = 1, .top_k = 2};
    struct outcome whole;
    size_t ended = 0;
    (void)state;
    run(0, &how, 24, 0, 0, &whole);
    for (size_t i = 0; i < whole.n; i++) {
        struct outcome plain, drafted;
        run(0, &how, 24, 0, whole.ids[i], &plain);
        run(3, &how, 24, 0, whole.ids[i], &drafted);
        assert_int_equal(plain.reason, END_EOS);
        assert_same(&plain, &drafted);
        ended += drafted.n_right > 0;
        drive_state_free(&plain.state);
        drive_state_free(&drafted.state);
    }
    assert_true(ended > 0);
    drive_state_free(&whole.state);
}

static void test_options(void **state)
{
    static const struct {
        const char *model;
        uint32_t n;
        enum err code;
        const char *says;
    } CASES[] = {
        {MODEL, 4, ERR_INVAL, "4 draft tokens, dspark_block_size is 3"},
        {GOLDEN "c_replay/model", 1, ERR_UNSUPPORTED, "the model has no draft layers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++) {
        struct engine_options o = {.draft_tokens = CASES[i].n, .no_weight_digest = true};
        struct engine *m = NULL;
        struct error e = {0};
        assert_int_equal(engine_open_model(&m, CASES[i].model, &o, &e), CASES[i].code);
        assert_non_null(strstr(e.msg, CASES[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),  cmocka_unit_test(test_sampled),
        cmocka_unit_test(test_lengths), cmocka_unit_test(test_eos),
        cmocka_unit_test(test_options),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
