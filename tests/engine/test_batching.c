/* Several sequences in one engine: company changes no bit, nobody starves, memory is refused
 * before the work begins, and a cancel is seen inside a chunk. */
#include <inttypes.h>

#include "engine/model.h"
#include "engine/observe.h"
#include "tests/support/drive.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model"
#define CHUNK 16
#define N_EVENTS ENGINE_MIN_EVENTS

static const struct engine_options OPTIONS = {.precision = PRECISION_FP32KVQ,
                                              .digests = true,
                                              .no_weight_digest = true,
                                              .n_threads = 1,
                                              .chunk_tokens = CHUNK};

/* ---- what a step did ----------------------------------------------------------------------
 */

#define MAX_SEQS 24
#define MAX_IDS 64

struct member {
    struct seq *seq;
    uint64_t n_prompt, n_new; /* prompt of n_prompt ids, then n_new sampled ones */
    uint32_t seed;
    uint32_t ids[MAX_IDS]; /* sampled */
    size_t n_ids;
    bool has_generated;
    enum end_reason reason;
    uint64_t served, longest; /* step of the last service; longest wait for one */
};

struct party {
    struct engine *m;
    struct member members[MAX_SEQS];
    size_t n;
    uint64_t n_steps;
};

static void queue_prompt(struct member *x)
{
    struct error e = {0};
    uint32_t ids[4096];
    drive_ids(ids, x->n_prompt, x->seed);
    assert_ok(seq_input(x->seq, ids, x->n_prompt, PREFILL_CED, &e), &e);
}

static void queue_run(struct member *x)
{
    struct error e = {0};
    const struct generate_options g = {
        .sampling = {.seed = x->seed, .temperature = 0.5f, .top_p = 1}, .max_tokens = x->n_new};
    x->has_generated = true;
    if (x->n_new)
        assert_ok(seq_generate(x->seq, &g, &e), &e);
}

static struct member *join(struct party *p, uint64_t n_prompt, uint64_t n_new)
{
    struct error e = {0};
    struct member *x = &p->members[p->n++];
    assert_true(p->n <= MAX_SEQS);
    *x = (struct member){.n_prompt = n_prompt, .n_new = n_new, .seed = (uint32_t)p->n};
    x->served = p->n_steps;
    assert_ok(seq_new(p->m, x, &x->seq, &e), &e);
    queue_prompt(x);
    return x;
}

static void take(struct party *p, const struct engine_event *ev)
{
    struct member *x = ev->user;
    uint64_t waited = p->n_steps - x->served;
    x->longest = waited > x->longest ? waited : x->longest;
    x->served = p->n_steps;
    for (uint32_t i = 0; ev->kind == ENGINE_TOKENS && i < ev->n_ids; i++)
        x->ids[x->n_ids++] = ev->ids[i];
    if (ev->kind != ENGINE_DONE)
        return;
    x->reason = ev->reason;
    if (!x->has_generated && ev->reason == END_SEGMENT)
        queue_run(x);
}

static void step(struct party *p)
{
    struct engine_event events[N_EVENTS];
    struct error e = {0};
    size_t n = 0;
    p->n_steps++;
    assert_ok(engine_step(p->m, events, N_EVENTS, &n, &e), &e);
    assert_true(n <= N_EVENTS);
    for (size_t i = 0; i < n; i++)
        take(p, &events[i]);
}

static void finish(struct party *p)
{
    while (engine_has_work(p->m))
        step(p);
}

/* ---- company ------------------------------------------------------------------------------
 */

#define N_GUESTS 6

static const struct {
    uint64_t n_prompt, n_new;
} GUESTS[N_GUESTS] = {{40, 20}, {150, 12}, {1, 30}, {33, 0}, {90, 25}, {17, 7}};

static void check_company(const struct engine_options *o)
{
    struct party all = {.m = drive_open(MODEL, o)};
    for (size_t i = 0; i < N_GUESTS; i++) {
        join(&all, GUESTS[i].n_prompt, GUESTS[i].n_new);
        step(&all); /* they come one after the other, into what goes on */
    }
    finish(&all);
    for (size_t i = 0; i < N_GUESTS; i++) {
        struct party one = {.m = drive_open(MODEL, &OPTIONS)};
        struct drive_state alone, company;
        one.n = i; /* the same seed */
        const struct member *x = join(&one, GUESTS[i].n_prompt, GUESTS[i].n_new);
        finish(&one);
        assert_int_equal(x->n_ids, all.members[i].n_ids);
        assert_memory_equal(x->ids, all.members[i].ids, x->n_ids * sizeof(*x->ids));
        drive_export(one.m, x->seq, &alone);
        drive_export(all.m, all.members[i].seq, &company);
        drive_assert_planes(&alone, &company);
        drive_assert_tip(&alone, &company);
        assert_memory_equal(&alone.digest, &company.digest, sizeof(alone.digest));
        drive_state_free(&alone);
        drive_state_free(&company);
        engine_free(one.m);
    }
    engine_free(all.m);
}

/* Alone and in company, with everything in memory, with drafts, and with little memory. */
static void test_company(void **state)
{
    struct engine_options o = OPTIONS;
    (void)state;
    check_company(&o);
    o.draft_tokens = 3;
    o.n_threads = 2;
    check_company(&o);
    o.expert_ram = 300000;
    o.engram_ram = 4096;
    o.kv_resident = 400000;
    check_company(&o);
}

/* ---- fairness -----------------------------------------------------------------------------
 */

/* Long prompts and many runs, with room for few events in a step. Everybody who has work is
 * served again within as many steps as there are prompts, or steps' worth of runs. */
static void test_fair(void **state)
{
    enum { PROMPTS = 3, RUNS = 12 };
    struct party p = {.m = drive_open(MODEL, &OPTIONS)};
    (void)state;
    for (size_t i = 0; i < RUNS; i++)
        join(&p, 1 + i, 40);
    for (size_t i = 0; i < PROMPTS; i++)
        join(&p, 25 * CHUNK, 0);
    /* The runs' prompts come first; then everything is under way. */
    while (p.n_steps < 3 * (RUNS + PROMPTS))
        step(&p);
    for (size_t i = 0; i < p.n; i++)
        p.members[i].longest = 0;
    finish(&p);
    /* A step has two events for its chunk, and two for each run that it serves. */
    const uint64_t runs_a_step = (N_EVENTS - 2) / 2,
                   round = (RUNS + runs_a_step - 1) / runs_a_step;
    for (size_t i = 0; i < p.n; i++) {
        const struct member *x = &p.members[i];
        uint64_t bound = i < RUNS ? round : PROMPTS;
        if (x->longest > bound)
            fail_msg("sequence %zu waited %" PRIu64 " steps, at most %" PRIu64, i, x->longest,
                     bound);
        assert_true(i < RUNS ? x->reason == END_LENGTH || x->reason == END_EOS
                             : x->reason == END_SEGMENT);
    }
    engine_free(p.m);
}

/* ---- memory -------------------------------------------------------------------------------
 */

/* What is promised can be kept: a sequence that does not fit is refused when it comes, the
 * others go on, and when one of them leaves there is room. */
static void check_admission(struct engine *m, uint64_t n_tokens, const char *says)
{
    struct party p = {.m = m};
    struct error e = {0};
    uint32_t ids[4096];
    (void)join(&p, n_tokens, 8);
    struct seq *late = NULL;
    drive_ids(ids, n_tokens, 9);
    enum err rc = seq_new(m, NULL, &late, &e);
    if (!rc)
        rc = seq_input(late, ids, n_tokens, PREFILL_CED, &e);
    assert_int_equal(rc, ERR_LIMIT);
    if (!strstr(e.msg, says))
        fail_msg("%s, want %s", e.msg, says);
    finish(&p);
    assert_true(p.members[0].n_ids > 0);
    seq_free(p.members[0].seq);
    if (!late)
        assert_ok(seq_new(m, NULL, &late, &e), &e);
    assert_ok(seq_input(late, ids, n_tokens, PREFILL_CED, &e), &e);
    assert_int_equal(drive_run(m, NULL, 0, NULL), END_SEGMENT);
    seq_free(late);
    engine_free(m);
}

static void test_memory(void **state)
{
    struct engine_options o = OPTIONS;
    struct engine_tier tiers[ENGINE_MAX_TIERS];
    (void)state;
    struct engine *m = drive_open(MODEL, &OPTIONS);
    struct kv_memory *memory = &model_of(m)->memory;
    assert_true(memory->limit_bytes > 0 && memory->promised_bytes == 0);
    struct seq *s = drive_seq(m);
    uint64_t rest = memory->promised_bytes;
    uint32_t ids[1000];
    drive_ids(ids, 1000, 1);
    drive_input(m, s, ids, 1000, PREFILL_CED);
    uint64_t planes = memory->promised_bytes - rest;
    assert_true(rest > 0 && planes > 0);
    seq_free(s);
    assert_int_equal(memory->promised_bytes, 0);
    memory->limit_bytes = 2 * rest + planes + planes / 2;
    check_admission(m, 1000, "memory: ");

    m = drive_open(MODEL, &OPTIONS);
    size_t n = engine_tiers(m, tiers);
    engine_free(m);
    o.kv_resident = tiers[n - 1].minimum_bytes; /* one sequence's */
    check_admission(drive_open(MODEL, &o), 300, "memory for KV rows");
}

/* ---- cancel -------------------------------------------------------------------------------
 */

struct interrupter {
    struct engine *m;
    uint32_t at_layer, last_layer;
};

static void interrupt(void *user, struct seq *s, const struct observed *t)
{
    struct interrupter *x = user;
    (void)s;
    x->last_layer = t->layer;
    if (t->layer == x->at_layer)
        engine_interrupt(x->m);
}

/* Somebody interrupts while a chunk is in layer 2: it ends there, nothing of it counts, and the
 * cancel that follows is the next step's. What was computed before is kept. */
static void test_cancel(void **state)
{
    struct party p = {.m = drive_open(MODEL, &OPTIONS)};
    struct interrupter x = {p.m, 2, 0};
    struct engine_event events[N_EVENTS];
    struct error e = {0};
    size_t n = 0;
    (void)state;
    struct member *a = join(&p, 5 * CHUNK, 4), *b = join(&p, 10, 6);
    step(&p);
    step(&p);
    step(&p);
    uint64_t before = seq_position(a->seq);
    assert_true(before > 0 && before < 5 * CHUNK);
    engine_observe(p.m, &(struct observer){.user = &x, .tensor = interrupt});
    while (x.last_layer != 2) /* the step that has the chunk */
        step(&p);
    assert_int_equal(seq_position(a->seq), before);
    engine_observe(p.m, NULL);
    seq_cancel(a->seq);
    assert_ok(engine_step(p.m, events, N_EVENTS, &n, &e), &e);
    bool cancelled = false;
    for (size_t i = 0; i < n; i++) {
        take(&p, &events[i]);
        cancelled = cancelled || (events[i].user == a && events[i].kind == ENGINE_DONE);
    }
    assert_true(cancelled);
    assert_int_equal(a->reason, END_CANCELLED);
    assert_int_equal(seq_position(a->seq), before);
    finish(&p);
    assert_true(b->n_ids == 6 || b->reason == END_EOS);
    engine_free(p.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_fair),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_cancel),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
