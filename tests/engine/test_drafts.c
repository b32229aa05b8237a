/* Speculation changes nothing but the number of steps: ids, logits, planes and tips are bit by
 * bit those without drafts, greedy and sampled, wherever a run ends, and across a stop. */
#include <math.h>

#include "engine/chat_parser.h"
#include "engine/constrain.h"
#include "engine/draft.h"
#include "engine/model.h"
#include "engine/seq.h"
#include "engine/tokenizer.h"
#include "tests/support/calling.h"
#include "tests/support/drive.h"
#include "tests/support/fenced.h"
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

static void run_short(uint32_t n_drafts, uint32_t eos_id, struct outcome *out)
{
    const struct sampling how = {.seed = 3, .temperature = 2, .top_p = 1, .top_k = 2};
    uint32_t ids[N_PROMPT];
    struct engine *engine = open_drafting(n_drafts, eos_id);
    struct model *m = model_of(engine);
    m->config.window = m->shape.window = m->layout.window = 2;
    m->layout.tip_bytes = tip_bytes(m);
    struct seq *s = drive_seq(engine);
    *out = (struct outcome){0};
    drive_ids(ids, N_PROMPT, 5);
    drive_input(engine, s, ids, N_PROMPT, PREFILL_CED);
    generate(engine, s, &how, 24, false, out);
    drive_export(engine, s, &out->state);
    engine_free(engine);
}

/* A window that is shorter than a token and its guesses: the keys of what is kept are there,
 * however many of them were wrong. */
static void test_short_window(void **state)
{
    static struct outcome whole, plain, drafted;
    (void)state;
    run_short(0, 0, &whole);
    for (size_t i = 4; i < 12; i++) {
        run_short(0, whole.ids[i], &plain);
        run_short(3, whole.ids[i], &drafted);
        assert_int_equal(plain.reason, END_EOS);
        assert_same(&plain, &drafted);
        drive_state_free(&plain.state);
        drive_state_free(&drafted.state);
    }
    drive_state_free(&whole.state);
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

/* No guess goes past the end of the context, where no row has room. */
static void test_full_context(void **state)
{
    const struct sampling how = {.seed = 3, .temperature = 2, .top_p = 1, .top_k = 2};
    uint32_t ids[N_PROMPT];
    (void)state;
    drive_ids(ids, N_PROMPT, 5);
    for (uint32_t room = 1; room <= 6; room++) {
        struct outcome out[2];
        for (uint32_t k = 0; k < 2; k++) {
            struct engine *engine = open_drafting(3 * k, 0);
            struct model *m = model_of(engine);
            m->config.max_tokens = m->shape.max_tokens = N_PROMPT + room;
            struct seq *s = drive_seq(engine);
            out[k] = (struct outcome){0};
            drive_input(engine, s, ids, N_PROMPT, PREFILL_CED);
            generate(engine, s, &how, UINT64_MAX, false, &out[k]);
            drive_export(engine, s, &out[k].state);
            engine_draft_counts(engine, &out[k].n_guessed, &out[k].n_right);
            engine_free(engine);
        }
        assert_true(out[1].n_guessed <= room * (room - 1) / 2); /* none right: one a step */
        assert_int_equal(out[0].reason, END_LENGTH);
        assert_int_equal(out[0].n, room);
        assert_same(&out[0], &out[1]);
        drive_state_free(&out[0].state);
        drive_state_free(&out[1].state);
    }
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

/* Everything that watches over a run at once: rules, with a bias that makes the model call all
 * the time, and stop strings. What a step guesses, what it takes and where it ends follow them.
 */
static void test_watched(void **state)
{
    static const char functions[] =
        "[{\"name\":\"read\",\"parameters\":{\"properties\":{\"path\":{\"type\":\"string\"},"
        "\"n\":{\"type\":\"integer\"}}}},{\"name\":\"list\",\"parameters\":{}}]";
    static const char *const stop[] = {"es", "9"};
    struct calling c;
    bool any_right = false;
    size_t n_calls = 0, n_stops = 0;
    (void)state;
    calling_open(&c, MODEL, functions);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const struct sampling how = {.seed = seed,
                                     .temperature = seed % 3 ? 1 : 0,
                                     .top_p = 1,
                                     .top_k = seed % 4 ? 0 : 3,
                                     .min_p = 0.001F,
                                     .bias = c.bias,
                                     .n_bias = seed % 2 ? 3 : 0,
                                     .rules = c.rules,
                                     .stop = stop,
                                     .n_stop = 2};
        struct outcome plain;
        compare(&how, 80, 0, &any_right);
        run(0, &how, 80, 0, 0, &plain);
        for (size_t i = 0; i < plain.n; i++)
            n_calls += plain.ids[i] == c.mark;
        n_stops += plain.reason == END_STOP;
        drive_state_free(&plain.state);
    }
    if (getenv("AGENTD_SHOW"))
        printf("%zu marks, %zu runs stopped, right guesses: %d\n", n_calls, n_stops, any_right);
    assert_true(any_right && n_calls >= 8 && n_stops);
    calling_close(&c);
}

/* Two letters of the answer of a run without stop strings, from its middle on. */
static void find_stop(const struct outcome *whole, const struct tokenizer *t, char *stop)
{
    struct chat_parser *p = NULL;
    struct error e = {0};
    assert_ok(chat_parser_new(&p, &(struct chat_parser_options){0}, &e), &e);
    for (size_t i = 0; i < whole->n; i++) {
        size_t n = 0;
        const uint8_t *bytes = tokenizer_bytes(t, whole->ids[i], &n);
        assert_ok(chat_parser_feed(p, bytes, n, tokenizer_is_added(t, whole->ids[i]), &e), &e);
    }
    const struct buf *text = chat_parser_text(p);
    const char *all = buf_str(text);
    for (size_t i = text->len / 2; i + 1 < text->len && !*stop; i++) {
        char two[3] = {all[i], all[i + 1], '\0'};
        bool letters = (two[0] | 32) >= 'a' && (two[0] | 32) <= 'z' && (two[1] | 32) >= 'a' &&
                       (two[1] | 32) <= 'z';
        if (letters && strstr(all, two) == all + i)
            memcpy(stop, two, sizeof two);
    }
    assert_true(*stop);
    chat_parser_free(p);
}

/* Sampling that goes on after a pause goes on watching where it was: generate_options.before.
 */
static void test_watched_across_a_pause(void **state)
{
    char stop[3] = "";
    const char *const stops[] = {stop};
    struct outcome whole, cut;
    struct error e = {0};
    uint32_t ids[N_PROMPT];
    struct tokenizer *t = NULL;
    struct call_rules *rules = NULL;
    (void)state;
    assert_ok(tokenizer_open(&t, MODEL, &e), &e);
    assert_ok(call_rules_new(&rules, NULL, t, &e), &e); /* no tools: all of it is answer */
    struct sampling how = {.seed = 8, .temperature = 1.5F, .top_p = 1, .rules = rules};
    run(0, &how, N_NEW, 0, 0, &whole);
    find_stop(&whole, t, stop);
    drive_state_free(&whole.state);
    how.stop = stops;
    how.n_stop = 1;
    run(0, &how, N_NEW, 0, 0, &whole);
    assert_int_equal(whole.reason, END_STOP);
    assert_in_range(whole.n, N_NEW / 4, N_NEW - 1);
    for (uint64_t at = 1; at < whole.n; at += 1 + whole.n / 7) {
        struct engine *m = open_drafting(2, 0);
        struct seq *s = drive_seq(m);
        cut = (struct outcome){0};
        drive_ids(ids, N_PROMPT, 5);
        drive_input(m, s, ids, N_PROMPT, PREFILL_CED);
        generate(m, s, &how, at, false, &cut);
        struct generate_options g = {.sampling = how,
                                     .max_tokens = N_NEW - at,
                                     .resumes = true,
                                     .before = cut.ids,
                                     .n_before = cut.n};
        size_t got = 0;
        assert_ok(seq_generate(s, &g, &e), &e);
        cut.reason = drive_run(m, cut.ids + cut.n, 2 * N_NEW - cut.n, &got);
        cut.n += got;
        drive_export(m, s, &cut.state);
        assert_same(&whole, &cut);
        drive_state_free(&cut.state);
        engine_free(m);
    }
    drive_state_free(&whole.state);
    call_rules_free(rules);
    tokenizer_free(t);
}

/* ---- the distribution -------------------------------------------------------------- */

#define K 4 /* choices at each place */
#define N_SEEDS 1500

/* Two tokens: which of the K most likely each was, and what the K probabilities were. */
struct pair {
    uint32_t rank[2];
    double p[2][K];
    uint32_t n_guessed, n_right;
};

static void take_logprobs(const struct token_logprobs *l, double temperature, uint32_t *rank,
                          double *p)
{
    double total = 0;
    assert_int_equal(l->n_top, K);
    *rank = K;
    for (uint32_t i = 0; i < K; i++) {
        if (l->top[i].id == l->id)
            *rank = i;
        total += p[i] = exp((double)l->top[i].logprob / temperature);
    }
    assert_in_range(*rank, 0, K - 1);
    for (uint32_t i = 0; i < K; i++)
        p[i] /= total;
}

static void draw_pair(struct engine *m, const struct drive_state *from, uint64_t seed,
                      struct pair *out)
{
    const struct sampling how = {
        .seed = seed, .temperature = 2, .top_p = 1, .top_k = K, .top_logprobs = K + 1};
    const struct generate_options g = {.sampling = how, .max_tokens = 4};
    struct seq *s = drive_import(m, from);
    struct error e = {0};
    struct engine_event ev[8];
    uint32_t n = 0;
    *out = (struct pair){0};
    assert_ok(seq_generate(s, &g, &e), &e);
    while (engine_has_work(m)) {
        size_t n_events = 0;
        assert_ok(engine_step(m, ev, 8, &n_events, &e), &e);
        for (size_t i = 0; i < n_events; i++) {
            for (uint32_t k = 0; k < ev[i].n_ids && ev[i].logprobs && n < 2; k++, n++) {
                assert_int_equal(ev[i].logprobs[k].id, ev[i].ids[k]);
                take_logprobs(&ev[i].logprobs[k], 2, &out->rank[n], out->p[n]);
            }
            out->n_guessed += ev[i].n_guessed;
            out->n_right += ev[i].n_right;
            free(ev[i].logprobs);
        }
    }
    assert_int_equal(n, 2);
    seq_free(s);
}

/* Over many seeds, with drafts: pairs of tokens come as often as the model's probabilities say.
 * The second token of each pair is one that a step with guesses decided. Pearson's statistic
 * over the K * K cells has K * K - 1 = 15 degrees of freedom: above 37.7 once in a thousand. */
static void test_distribution(void **state)
{
    uint32_t ids[N_PROMPT];
    struct engine *m = open_drafting(3, 0);
    struct seq *s = drive_seq(m);
    struct drive_state start;
    double expected[K][K] = {{0}}, chi2 = 0;
    uint32_t count[K][K] = {{0}};
    uint64_t n_right = 0, n_guessed = 0;
    (void)state;
    drive_ids(ids, N_PROMPT, 5);
    drive_input(m, s, ids, N_PROMPT, PREFILL_CED);
    drive_export(m, s, &start);
    seq_free(s);
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        struct pair p;
        draw_pair(m, &start, seed, &p);
        count[p.rank[0]][p.rank[1]]++;
        for (uint32_t k = 0; k < K; k++) /* the same for every pair with this first token */
            expected[p.rank[0]][k] = N_SEEDS * p.p[0][p.rank[0]] * p.p[1][k];
        n_right += p.n_right;
        n_guessed += p.n_guessed;
    }
    for (uint32_t i = 0; i < K; i++)
        for (uint32_t k = 0; k < K; k++) {
            double off = (double)count[i][k] - expected[i][k];
            assert_true(expected[i][k] > 5);
            chi2 += off * off / expected[i][k];
        }
    if (getenv("AGENTD_SHOW"))
        printf("%d pairs: chi square %.1f, 15 degrees of freedom; %d of %d guesses right\n",
               N_SEEDS, chi2, (int)n_right, (int)n_guessed);
    assert_true(chi2 < 37.7);
    assert_true(n_right > N_SEEDS / 20 && n_right < n_guessed);
    drive_state_free(&start);
    engine_free(m);
}

/* ---- the confidence head -------------------------------------------------------------------
 */

/* What is proposed at some places of a run, with and without a threshold: the same guesses, up
 * to where the product of their chances falls below it. */
static void test_confidence(void **state)
{
    static const double least[] = {0.1, 0.3, 0.5, 0.7, 1};
    const struct sampling greedy = {.top_p = 1};
    uint32_t ids[N_PROMPT], n_lengths[4] = {0};
    struct engine *m = open_drafting(3, 0);
    struct seq *s = drive_seq(m);
    struct error e = {0};
    (void)state;
    drive_ids(ids, N_PROMPT, 5);
    drive_input(m, s, ids, N_PROMPT, PREFILL_CED);
    for (uint32_t anchor = 100; anchor < 140; anchor++)
        for (size_t k = 0; k < 5; k++) {
            struct draft all, some;
            model_of(m)->draft_confidence = 0;
            assert_ok(draft_propose(model_of(m), seq_of(s), anchor, &greedy, 3, &all, &e), &e);
            assert_true(all.n == 3 && all.n_cut == 0);
            uint32_t n = 0;
            for (double right = 1; n < 3; n++) {
                right /= 1 + exp(-(double)all.confidence[n]);
                if (right < least[k])
                    break;
            }
            model_of(m)->draft_confidence = least[k];
            assert_ok(draft_propose(model_of(m), seq_of(s), anchor, &greedy, 3, &some, &e), &e);
            assert_int_equal(some.n, n);
            assert_int_equal(some.n_cut, 3 - n);
            assert_memory_equal(some.ids, all.ids, n * sizeof(*all.ids));
            n_lengths[n]++;
        }
    for (size_t n = 0; n < 4; n++)
        assert_true(n_lengths[n] > 0);
    engine_free(m);
}

/* Whatever is not checked, what is generated is the same, and nothing is counted twice. */
static void test_unsure(void **state)
{
    static const double least[] = {0, 0.2, 0.4, 1};
    const struct sampling how = {.seed = 3, .temperature = 2, .top_p = 1, .top_k = 2};
    uint64_t n_guessed[4], n_cut[4];
    struct outcome plain, drafted;
    (void)state;
    run(0, &how, 60, 0, 0, &plain);
    for (size_t k = 0; k < 4; k++) {
        uint32_t ids[N_PROMPT];
        struct engine *m = open_drafting(3, 0);
        model_of(m)->draft_confidence = least[k];
        struct seq *s = drive_seq(m);
        drafted = (struct outcome){0};
        drive_ids(ids, N_PROMPT, 5);
        drive_input(m, s, ids, N_PROMPT, PREFILL_CED);
        generate(m, s, &how, 60, false, &drafted);
        drive_export(m, s, &drafted.state);
        engine_draft_counts(m, &n_guessed[k], &drafted.n_right);
        n_cut[k] = engine_drafts_cut(m);
        assert_same(&plain, &drafted);
        drive_state_free(&drafted.state);
        engine_free(m);
    }
    assert_int_equal(n_cut[0], 0);
    for (size_t k = 1; k < 4; k++)
        assert_true(n_cut[k] > 0 && n_guessed[k] < n_guessed[k - 1]);
    assert_int_equal(n_guessed[3], 0);
    drive_state_free(&plain.state);
}

/* ---- draft layers that fail ----------------------------------------------------------------
 */

/* A backend that fails behind the base logits of guesses: in every pass of the draft layers, or
 * in two of three, which is one in company, and then the one of whoever is tried first. */
static struct {
    void (*rmsnorm)(struct kernels *k, const struct k_rmsnorm *a);
    enum err (*sync)(struct kernels *k, struct error *e);
    const struct model *m;
    enum err code;
    bool always, is_due;
    uint32_t n_passes;
} bad;

static void bad_rmsnorm(struct kernels *k, const struct k_rmsnorm *a)
{
    bad.rmsnorm(k, a);
    if (a->w == bad.m->weights.draft.norm)
        bad.is_due = ++bad.n_passes % 3 || bad.always;
}

static enum err bad_sync(struct kernels *k, struct error *e)
{
    enum err rc = bad.sync(k, e);
    if (rc || !bad.is_due)
        return rc;
    bad.is_due = false;
    return err_set(e, bad.code, "the draft layers are gone");
}

static void make_bad(struct model *m, enum err code, bool always)
{
    memset(&bad, 0, sizeof(bad));
    bad.rmsnorm = m->k.rmsnorm;
    bad.sync = m->k.sync;
    bad.m = m;
    bad.code = code;
    bad.always = always;
    m->k.rmsnorm = bad_rmsnorm;
    m->k.sync = bad_sync;
}

static struct engine *open_on(const char *backend, uint32_t n_drafts)
{
    struct engine_options o = {
        .draft_tokens = n_drafts, .digests = true, .no_weight_digest = true, .n_threads = 1};
    if (backend)
        backend_option(&o, backend);
    return drive_open(MODEL, &o);
}

static struct seq *prompted(struct engine *m)
{
    uint32_t ids[N_PROMPT];
    struct seq *s = drive_seq(m);
    drive_ids(ids, N_PROMPT, 5);
    drive_input(m, s, ids, N_PROMPT, PREFILL_CED);
    return s;
}

static void start(struct seq *s)
{
    const struct generate_options g = {.sampling = {.seed = 4, .temperature = 1, .top_p = 0.9f},
                                       .max_tokens = N_NEW};
    struct error e = {0};
    assert_ok(seq_generate(s, &g, &e), &e);
}

static struct seq *begin(struct engine *m)
{
    struct seq *s = prompted(m);
    start(s);
    return s;
}

/* What the events tell of one of two sequences. */
struct told {
    struct seq *s;
    uint32_t ids[N_NEW];
    size_t n;
    uint64_t n_guessed, n_failed;
    enum end_reason reason;
    struct error error; /* of its end, or of its last guesses that failed */
};

static void tell(struct told *t, const struct engine_event *ev)
{
    if (ev->kind == ENGINE_TOKENS) {
        memcpy(t->ids + t->n, ev->ids, ev->n_ids * sizeof(*ev->ids));
        t->n += ev->n_ids;
        t->n_guessed += ev->n_guessed;
        t->n_failed += ev->n_failed;
        assert_true(!ev->n_failed || (ev->error.code && !ev->n_guessed));
    }
    if (ev->kind == ENGINE_DONE)
        t->reason = ev->reason;
    if (ev->n_failed || ev->reason == END_FAILED)
        t->error = ev->error;
}

static void listen(struct engine *m, struct told *t, size_t n)
{
    struct engine_event ev[8];
    struct error e = {0};
    while (engine_has_work(m)) {
        size_t n_events = 0;
        assert_ok(engine_step(m, ev, 8, &n_events, &e), &e);
        for (size_t i = 0; i < n_events; i++)
            for (size_t k = 0; k < n; k++)
                if (ev[i].seq == t[k].s)
                    tell(&t[k], &ev[i]);
    }
}

static void assert_told(const struct told *t, const struct told *want)
{
    assert_int_equal(t->reason, want->reason);
    assert_int_equal(t->n, want->n);
    assert_memory_equal(t->ids, want->ids, want->n * sizeof(*want->ids));
}

static void tell_plain(const char *backend, struct told *out)
{
    struct engine *m = open_on(backend, 0);
    *out = (struct told){.s = begin(m)};
    listen(m, out, 1);
    assert_int_equal(out->n_guessed + out->n_failed, 0);
    engine_free(m);
}

/* What fails costs guesses, which are counted, and no token is another one. */
static void check_costs_guesses(const char *backend, enum err code, const struct told *plain)
{
    for (int always = 0; always < 2; always++) {
        struct engine *m = open_on(backend, 3);
        struct told t = {.s = begin(m)};
        make_bad(model_of(m), code, always);
        listen(m, &t, 1);
        assert_told(&t, plain);
        assert_true(t.n_failed > 0 && (t.n_guessed == 0) == always);
        assert_int_equal(engine_drafts_failed(m), t.n_failed);
        assert_int_equal(t.error.code, code);
        assert_non_null(strstr(t.error.msg, "the draft layers are gone"));
        engine_free(m);
    }
}

/* A device that is gone is no matter of guesses, nor is memory. */
static void check_ends(const char *backend, enum err code)
{
    struct engine *m = open_on(backend, 3);
    struct told t = {.s = begin(m)};
    make_bad(model_of(m), code, true);
    listen(m, &t, 1);
    assert_int_equal(t.reason, END_FAILED);
    assert_int_equal(t.error.code, code);
    assert_int_equal(engine_drafts_failed(m), 0);
    engine_free(m);
}

static void test_failing(void **state)
{
    static const char *const BACKENDS[] = {NULL, "fenced"}; /* guesses drawn here, and there */
    static struct told plain;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        tell_plain(BACKENDS[i], &plain);
        check_costs_guesses(BACKENDS[i], ERR_IO, &plain);
        check_costs_guesses(BACKENDS[i], ERR_FORMAT, &plain);
        check_ends(BACKENDS[i], ERR_GPU);
        check_ends(BACKENDS[i], ERR_NOMEM);
    }
}

/* Only who fails alone goes without. */
static void test_failing_in_company(void **state)
{
    static struct told plain, t[2];
    struct engine *m = open_on(NULL, 3);
    (void)state;
    tell_plain(NULL, &plain);
    for (size_t i = 0; i < 2; i++)
        t[i] = (struct told){.s = prompted(m)};
    for (size_t i = 0; i < 2; i++)
        start(t[i].s);
    make_bad(model_of(m), ERR_IO, false);
    listen(m, t, 2);
    for (size_t i = 0; i < 2; i++)
        assert_told(&t[i], &plain);
    assert_true(t[0].n_failed && t[1].n_guessed > t[0].n_guessed);
    engine_free(m);
}

/* Weights of the draft layers that are no numbers: found when a guess is drawn, behind a
 * draft's length. */
static void test_broken_weights(void **state)
{
    static struct told plain;
    struct engine *m = open_on(NULL, 3);
    struct told t = {.s = begin(m)};
    float *norm = calloc(model_of(m)->config.dim, sizeof(*norm));
    (void)state;
    assert_non_null(norm);
    for (uint32_t i = 0; i < model_of(m)->config.dim; i++)
        norm[i] = NAN;
    model_of(m)->weights.draft.norm = norm;
    listen(m, &t, 1);
    tell_plain(NULL, &plain);
    assert_told(&t, &plain);
    assert_true(t.n_failed > 0 && t.n_guessed == 0);
    assert_int_equal(t.error.code, ERR_FORMAT);
    engine_free(m);
    free(norm);
}

static void test_options(void **state)
{
    static const struct {
        const char *model;
        uint32_t n;
        double confidence;
        enum err code;
        const char *says;
    } CASES[] = {
        {MODEL, 4, 0, ERR_INVAL, "4 draft tokens, dspark_block_size is 3"},
        {MODEL, 3, 1.5, ERR_INVAL, "a draft confidence of 1.5, want 0 to 1"},
        {MODEL, 3, (double)NAN, ERR_INVAL, "a draft confidence of nan, want 0 to 1"},
        {GOLDEN "c_replay/model", 1, 0, ERR_UNSUPPORTED, "the model has no draft layers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++) {
        struct engine_options o = {.draft_tokens = CASES[i].n,
                                   .draft_confidence = CASES[i].confidence,
                                   .no_weight_digest = true};
        struct engine *m = NULL;
        struct error e = {0};
        assert_int_equal(engine_open_model(&m, CASES[i].model, &o, &e), CASES[i].code);
        assert_non_null(strstr(e.msg, CASES[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),         cmocka_unit_test(test_sampled),
        cmocka_unit_test(test_short_window),   cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_full_context),   cmocka_unit_test(test_eos),
        cmocka_unit_test(test_watched),        cmocka_unit_test(test_watched_across_a_pause),
        cmocka_unit_test(test_distribution),   cmocka_unit_test(test_confidence),
        cmocka_unit_test(test_unsure),         cmocka_unit_test(test_options),
        cmocka_unit_test(test_failing),        cmocka_unit_test(test_failing_in_company),
        cmocka_unit_test(test_broken_weights),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
