/* Random company in one pass: whoever else there is, with what budgets, guesses and chunks, and
 * whatever befalls the others, a sequence's ids, planes, tip and digest are those that it has
 * alone; and the pass is one, of no more rows than the step may have. */
#include <inttypes.h>

#include "engine/model.h"
#include "engine/observe.h"
#include "engine/seq.h"
#include "tests/support/drive.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model" /* W is 32; 2 draft layers, blocks of 3 */
#define MAX_MEMBERS 10
#define MAX_ACTIONS 5
#define MAX_IDS 1024
#define N_EVENTS 64

static const struct engine_options PLAIN = {.precision = PRECISION_FAST,
                                            .digests = true,
                                            .no_weight_digest = true,
                                            .n_threads = 1,
                                            .chunk_tokens = 64};

/* xorshift64 */
static uint32_t draw(uint64_t *s, uint32_t n)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (uint32_t)(*s >> 33) % n;
}

/* ---- what a member does -------------------------------------------------------------------
 */

enum action_kind { ACTION_INPUT, ACTION_FORCED, ACTION_RUN };

struct action {
    enum action_kind kind;
    uint32_t n;
    enum prefill_mode mode; /* ACTION_INPUT */
    uint32_t n_ahead;       /* ids that are handed over ahead; 0: none */
};

struct script {
    struct action actions[MAX_ACTIONS];
    size_t n_actions;
    uint32_t seed;
};

static void make_script(struct script *x, uint64_t *seed)
{
    static const uint32_t lengths[] = {1, 2, 9, 31, 32, 33, 70, 150};
    static const enum prefill_mode modes[] = {PREFILL_CED, PREFILL_CED, PREFILL_FULL,
                                              PREFILL_CED_REPORT};
    *x = (struct script){.seed = draw(seed, 1000)};
    x->n_actions = 2 + draw(seed, MAX_ACTIONS - 1);
    for (size_t i = 0; i < x->n_actions; i++) {
        struct action *a = &x->actions[i];
        a->kind = i % 2 == 0 ? ACTION_INPUT : draw(seed, 4) ? ACTION_RUN : ACTION_FORCED;
        a->n = a->kind == ACTION_INPUT ? lengths[draw(seed, 8)] : 1 + draw(seed, 24);
        a->mode = modes[draw(seed, 4)];
        bool comes_ahead = i && a->kind == ACTION_INPUT && a->mode != PREFILL_CED_REPORT;
        a->n_ahead = comes_ahead ? draw(seed, a->n + 1) : 0;
    }
}

struct member {
    const struct script *script;
    struct engine *m;
    struct seq *seq;
    size_t at;        /* action */
    uint64_t start;   /* of it */
    uint32_t n_new;   /* ACTION_RUN: sampled by it so far */
    bool has_started; /* something of it is on the tape */
    bool is_done;     /* all actions */
    enum err failed;  /* it ended so */
    struct error why;
    uint32_t ids[MAX_IDS]; /* sampled */
    size_t n_ids;
    uint64_t n_rights;
};

static struct sampling how(const struct script *x)
{
    static const float temperatures[] = {0, 0.5F, 2};
    return (struct sampling){.seed = x->seed,
                             .temperature = temperatures[x->seed % 3],
                             .top_p = 1,
                             .top_k = x->seed % 2 ? 3 : 0};
}

/* The ids of an action come from its script and number alone. */
static void action_ids(const struct member *x, uint32_t *ids)
{
    drive_ids(ids, x->script->actions[x->at].n, x->script->seed * 16 + (uint32_t)x->at);
}

static void queue_run(struct member *x, const struct action *a, const uint32_t *ids,
                      uint64_t done)
{
    struct error e = {0};
    struct generate_options g = {
        .sampling = how(x->script), .max_tokens = a->n - done, .resumes = x->has_started};
    if (a->kind == ACTION_FORCED) {
        g.given = ids + done;
        g.n_given = a->n - done;
        g.end_with_given = true;
    }
    assert_ok(seq_generate(x->seq, &g, &e), &e);
}

/* Queues what is left of the action; the next one where nothing is. */
static void queue(struct member *x)
{
    struct error e = {0};
    uint32_t ids[MAX_IDS];
    while (x->at < x->script->n_actions) {
        const struct action *a = &x->script->actions[x->at];
        uint64_t done = seq_position(x->seq) - x->start;
        if (done < a->n) {
            action_ids(x, ids);
            if (a->kind == ACTION_INPUT)
                assert_ok(seq_input(x->seq, ids + done, a->n - done, a->mode, &e), &e);
            else
                queue_run(x, a, ids, done);
            return;
        }
        x->at++;
        x->start = seq_position(x->seq);
        x->has_started = false;
    }
    x->is_done = true;
}

static void join(struct member *x, struct engine *m, const struct script *script)
{
    *x = (struct member){.script = script, .m = m};
    struct error e = {0};
    assert_ok(seq_new(m, x, &x->seq, &e), &e);
    queue(x);
}

/* Part of the next action, if it is input, before it is queued. */
static void hand_ahead(struct member *x)
{
    uint32_t ids[MAX_IDS];
    struct error e = {0};
    const struct action *a = &x->script->actions[x->at];
    if (x->at == x->script->n_actions || !a->n_ahead || seq_position(x->seq) != x->start)
        return;
    action_ids(x, ids);
    assert_ok(seq_ahead(x->seq, ids, a->n_ahead, a->mode, &e), &e);
}

static void take(struct engine_event *ev)
{
    struct member *x = ev->user;
    for (uint32_t i = 0; ev->kind == ENGINE_TOKENS && i < ev->n_ids; i++)
        x->ids[x->n_ids++] = ev->ids[i];
    assert_true(x->n_ids < MAX_IDS);
    x->n_rights += ev->n_right;
    x->has_started = x->has_started || ev->position > x->start;
    if (ev->kind != ENGINE_DONE)
        return;
    if (ev->reason == END_FAILED) {
        x->failed = ev->error.code;
        x->why = ev->error;
        return;
    }
    if (ev->reason == END_EOS) { /* the rest of the action is none */
        x->at++;
        x->start = seq_position(x->seq);
        x->has_started = false;
    } else if (ev->reason != END_CANCELLED) {
        assert_int_equal(seq_position(x->seq) - x->start, x->script->actions[x->at].n);
        x->at++;
        x->start = seq_position(x->seq);
        x->has_started = false;
    }
    hand_ahead(x);
}

/* One step; whoever is at rest then goes on with probability 1/`patience`. */
static size_t step(struct engine *m, size_t cap)
{
    struct engine_event events[N_EVENTS];
    struct error e = {0};
    size_t n = 0;
    assert_ok(engine_step(m, events, cap, &n, &e), &e);
    assert_true(n <= cap);
    for (size_t i = 0; i < n; i++)
        take(&events[i]);
    return n;
}

static bool is_busy(const struct member *x)
{
    return seq_of_const(x->seq)->work.kind != WORK_NONE;
}

/* ---- alone, and in company ----------------------------------------------------------------
 */

struct outcome {
    struct drive_state state;
    uint32_t ids[MAX_IDS];
    size_t n_ids;
};

static void outcome_of(const struct member *x, struct outcome *out)
{
    drive_export(x->m, x->seq, &out->state);
    memcpy(out->ids, x->ids, sizeof(out->ids));
    out->n_ids = x->n_ids;
}

static void alone(struct engine *m, const struct script *script, struct outcome *out)
{
    static struct member x;
    join(&x, m, script);
    while (!x.is_done) {
        while (engine_has_work(m))
            step(m, N_EVENTS);
        queue(&x);
    }
    outcome_of(&x, out);
    seq_free(x.seq);
}

static void assert_same(const struct outcome *a, const struct member *x)
{
    static struct outcome b;
    outcome_of(x, &b);
    assert_int_equal(a->n_ids, b.n_ids);
    assert_memory_equal(a->ids, b.ids, a->n_ids * sizeof(*a->ids));
    assert_int_equal(a->state.n_tokens, b.state.n_tokens);
    drive_assert_planes(&a->state, &b.state);
    drive_assert_tip(&a->state, &b.state);
    assert_int_equal(a->state.digest.n_rows, b.state.digest.n_rows);
    assert_memory_equal(a->state.digest.d, b.state.digest.d, sizeof(a->state.digest.d));
    drive_state_free(&b.state);
}

static struct engine_options random_options(uint64_t *seed)
{
    static const uint32_t chunks[] = {7, 16, 64, 256};
    struct engine_options o = PLAIN;
    o.chunk_tokens = chunks[draw(seed, 4)];
    o.n_threads = 1 + draw(seed, 2);
    o.draft_tokens = draw(seed, 4);
    o.expert_ram = draw(seed, 2) ? 120000 : 0; /* a few of 80 */
    o.engram_ram = draw(seed, 2) ? 4096 : 0;
    o.kv_resident = draw(seed, 2) ? 1000000 : 0;
    return o;
}

struct round {
    struct script scripts[MAX_MEMBERS];
    struct member members[MAX_MEMBERS];
    struct outcome want[MAX_MEMBERS];
    size_t n;
};

/* They come, pause, are cancelled and go on at random moments. */
static void play(struct round *r, struct engine *m, uint64_t *seed)
{
    size_t joined = 0, n_done = 0, cap = draw(seed, 2) ? N_EVENTS : 8;
    while (n_done < r->n) {
        if (joined < r->n && !draw(seed, 3)) {
            join(&r->members[joined], m, &r->scripts[joined]);
            joined++;
        }
        if (engine_has_work(m))
            step(m, cap);
        if (joined && !draw(seed, 6))
            seq_cancel(r->members[draw(seed, (uint32_t)joined)].seq);
        if (!draw(seed, 20))
            engine_interrupt(m);
        n_done = 0;
        for (size_t i = 0; i < joined; i++) {
            struct member *x = &r->members[i];
            if (x->failed)
                fail_msg("member %zu: %s", i, x->why.msg);
            if (!x->is_done && !is_busy(x) && draw(seed, 2))
                queue(x);
            n_done += x->is_done;
        }
    }
}

static void test_random(void **state)
{
    struct engine *plain = drive_open(MODEL, &PLAIN);
    struct round *r = calloc(1, sizeof(*r));
    uint64_t seed = 20, n_rounds = getenv("AGENTD_SLOW") ? 100 : 8, n_rights = 0;
    (void)state;
    assert_non_null(r);
    for (uint64_t round = 0; round < n_rounds; round++) {
        struct engine_options o = random_options(&seed);
        struct engine *m = drive_open(MODEL, &o);
        r->n = 2 + draw(&seed, MAX_MEMBERS - 1);
        for (size_t i = 0; i < r->n; i++) {
            make_script(&r->scripts[i], &seed);
            alone(plain, &r->scripts[i], &r->want[i]);
        }
        play(r, m, &seed);
        for (size_t i = 0; i < r->n; i++) {
            assert_same(&r->want[i], &r->members[i]);
            n_rights += r->members[i].n_rights;
            drive_state_free(&r->want[i].state);
        }
        engine_free(m);
    }
    assert_true(n_rights > 0); /* some guesses were kept in company */
    free(r);
    engine_free(plain);
}

/* ---- what a pass is -----------------------------------------------------------------------
 */

/* Passes through the layers, by the first Engram layer, which every token goes through, and no
 * draft layer has. The kernels' table knows nothing of who counts: one at a time. */
static struct {
    void (*engram_gate)(struct kernels *k, const struct k_engram_gate *a);
    void (*embed)(struct kernels *k, const struct k_embed *a);
    uint64_t n_calls, n_rows; /* n_rows: of the last one */
    uint64_t n_embedded;      /* passes through layers, those through draft layers included */
} pass;

static void count_pass(struct kernels *k, const struct k_engram_gate *a)
{
    pass.n_calls++;
    pass.n_rows = a->n;
    pass.engram_gate(k, a);
}

static void count_embed(struct kernels *k, const struct k_embed *a)
{
    pass.n_embedded += a->copies > 1; /* 1: of the Markov head */
    pass.embed(k, a);
}

static struct engine *open_counted(const struct engine_options *o)
{
    struct engine *m = drive_open(MODEL, o);
    pass.engram_gate = model_of(m)->k.engram_gate;
    pass.embed = model_of(m)->k.embed;
    model_of(m)->k.engram_gate = count_pass;
    model_of(m)->k.embed = count_embed;
    return m;
}

/* One step, which has to be one pass, and with drafts another one for all guesses. Returns the
 * rows of the first. */
static uint64_t one_pass(struct engine *m)
{
    pass.n_calls = pass.n_embedded = 0;
    (void)step(m, N_EVENTS);
    assert_int_equal(pass.n_calls, engine_config(m)->n_engram);
    assert_int_equal(pass.n_embedded, model_of(m)->draft_tokens ? 2 : 1);
    return pass.n_rows;
}

#define N_RUNS 8
#define N_LONG 1500

/* N_RUNS that decode, and one with a prompt of N_LONG that has not begun. */
static void gather(struct engine *m, struct member *x, struct member *prompt)
{
    static const struct script run = {
        {{ACTION_INPUT, 20, PREFILL_CED, 0}, {ACTION_RUN, 200, PREFILL_CED, 0}}, 2, 5};
    static const struct script input = {{{ACTION_INPUT, N_LONG, PREFILL_CED, 0}}, 1, 6};
    for (size_t i = 0; i < N_RUNS; i++) {
        join(&x[i], m, &run);
        while (engine_has_work(m))
            step(m, N_EVENTS);
    }
    for (size_t i = 0; i < N_RUNS; i++)
        queue(&x[i]);
    (void)step(m, N_EVENTS); /* the first tokens are drawn */
    static uint32_t ids[N_LONG];
    struct error e = {0};
    *prompt = (struct member){.script = &input, .m = m};
    assert_ok(seq_new(m, prompt, &prompt->seq, &e), &e);
    drive_ids(ids, N_LONG, 6);
    assert_ok(seq_input(prompt->seq, ids, N_LONG, PREFILL_CED, &e), &e);
}

/* While a long prompt is on its way everybody gets a token in every step, and a step is one
 * pass of at most `most` rows; the prompt gets what the others leave, at least a fourth. */
static void check_bounded(uint32_t chunk, uint32_t drafts, uint64_t most)
{
    static struct member x[N_RUNS], prompt;
    struct engine_options o = PLAIN;
    o.chunk_tokens = chunk;
    o.draft_tokens = drafts;
    struct engine *m = open_counted(&o);
    gather(m, x, &prompt);
    size_t n_steps = 0;
    while (seq_position(prompt.seq) < N_LONG && n_steps < 20) {
        uint64_t before[N_RUNS], was = seq_position(prompt.seq), n_others = 0;
        for (size_t i = 0; i < N_RUNS; i++)
            before[i] = seq_position(x[i].seq);
        uint64_t rows = one_pass(m), others = 0;
        for (size_t i = 0; i < N_RUNS; i++) {
            assert_true(seq_position(x[i].seq) > before[i]);
            others += 1 + drafts;
            n_others += seq_position(x[i].seq) - before[i];
        }
        uint64_t got = seq_position(prompt.seq) - was;
        uint64_t left = seq_position(prompt.seq) == N_LONG ? got : most - others;
        assert_int_equal(rows, got + others);
        assert_int_equal(got, most > others + most / 4 ? left : most / 4);
        assert_true(rows <= most || got == most / 4);
        assert_true(n_others >= N_RUNS);
        n_steps++;
    }
    assert_true(n_steps > 3);
    for (size_t i = 0; i < N_RUNS; i++)
        seq_cancel(x[i].seq);
    while (engine_has_work(m))
        step(m, N_EVENTS);
    engine_free(m);
}

static void test_bounded(void **state)
{
    (void)state;
    check_bounded(64, 0, 64);
    check_bounded(64, 3, 64);
    check_bounded(8, 0, 8);      /* those that decode are as many as the step may have rows */
    check_bounded(1024, 0, 256); /* a step that is shared is shorter */
}

/* An interruption is for chunks: who decodes, guesses included, gets on in the same pass. */
static void test_interrupted(void **state)
{
    static const struct script run = {
        {{ACTION_INPUT, 20, PREFILL_CED, 0}, {ACTION_RUN, 200, PREFILL_CED, 0}}, 2, 5};
    static struct member x;
    struct engine_options o = PLAIN;
    (void)state;
    o.draft_tokens = 3;
    struct engine *m = open_counted(&o);
    join(&x, m, &run);
    while (engine_has_work(m))
        step(m, N_EVENTS);
    queue(&x);
    (void)step(m, N_EVENTS); /* the first token is drawn */
    for (int i = 0; i < 5; i++) {
        uint64_t before = seq_position(x.seq);
        engine_interrupt(m);
        (void)one_pass(m);
        assert_true(seq_position(x.seq) > before);
    }
    engine_free(m);
}

/* ---- faults -------------------------------------------------------------------------------
 */

/* Members that go on while another one fails. */
static const struct script OTHERS[] = {
    {{{ACTION_INPUT, 9, PREFILL_CED, 0}, {ACTION_RUN, 20, PREFILL_CED, 0}}, 2, 11},
    {{{ACTION_INPUT, 3, PREFILL_FULL, 0}, {ACTION_RUN, 24, PREFILL_CED, 0}}, 2, 12},
    {{{ACTION_INPUT, 40, PREFILL_CED, 0}, {ACTION_RUN, 28, PREFILL_CED, 0}}, 2, 13},
};
#define N_OTHERS 3
/* And the one that does. */
static const struct script VICTIM = {
    {{ACTION_INPUT, 12, PREFILL_CED, 0}, {ACTION_RUN, 40, PREFILL_CED, 0}}, 2, 14};

static void rest(struct engine *m, struct member *x, size_t n)
{
    bool busy = true;
    while (busy) {
        busy = engine_has_work(m);
        if (busy)
            step(m, N_EVENTS);
        for (size_t i = 0; i < n; i++)
            if (!x[i].is_done && !x[i].failed && !is_busy(&x[i])) {
                queue(&x[i]);
                busy = true;
            }
    }
}

/* Which rows of Engram layer 1 a sequence looks up. */
struct rows {
    uint64_t *seen; /* [rows] 1 + the first position that looks it up */
    const struct seq *victim;
};

static void note_rows(void *user, struct seq *s, const struct observed *t)
{
    struct rows *r = user;
    if (t->layer != 1 || strcmp(t->name, "engram_rows"))
        return;
    const uint64_t *row = t->data;
    for (uint32_t i = 0; i < t->n * t->width; i++) {
        uint64_t *seen = &r->seen[row[i]];
        if (s != r->victim)
            *seen = UINT64_MAX; /* others need it, too */
        else if (!*seen)
            *seen = 1 + t->pos0 + i / t->width;
    }
}

/* While the others decode, too. */
#define LATEST 24

/* A row that only the victim looks up, the later the better, and where. */
static uint64_t find_row(uint64_t *position)
{
    static struct member x[N_OTHERS + 1];
    struct engine *m = drive_open(MODEL, &PLAIN);
    uint64_t n_rows = engine_config(m)->engram_rows[0], best = 0;
    struct rows r = {.seen = calloc(n_rows, sizeof(*r.seen))};
    for (size_t i = 0; i < N_OTHERS; i++)
        join(&x[i], m, &OTHERS[i]);
    join(&x[N_OTHERS], m, &VICTIM);
    r.victim = x[N_OTHERS].seq;
    engine_observe(m, &(struct observer){.user = &r, .tensor = note_rows});
    rest(m, x, N_OTHERS + 1);
    *position = 0;
    for (uint64_t i = 0; i < n_rows; i++)
        if (r.seen[i] <= LATEST && r.seen[i] > *position)
            *position = r.seen[i], best = i;
    free(r.seen);
    engine_free(m);
    assert_true(*position > 13); /* in the run */
    return best;
}

/* A bad row of a table ends the one that looks it up, with the tensor's name, and nobody else
 * of the pass; once it is good again the victim goes on from what was saved of it before. */
static void test_bad_row(void **state)
{
    static struct member x[N_OTHERS + 1];
    static struct outcome want[N_OTHERS + 1];
    uint64_t position, bad = find_row(&position);
    struct engine *plain = drive_open(MODEL, &PLAIN), *m = drive_open(MODEL, &PLAIN);
    struct engram_weights *w = &model_of(m)->weights.layers[1].engram;
    const struct config *c = engine_config(m);
    size_t n_bytes = c->engram_rows[0] * (c->engram_dim / 32);
    uint8_t *scales = malloc(n_bytes), good;
    struct drive_state saved = {0};
    size_t n_busy = 0;
    (void)state;
    memcpy(scales, w->scales, n_bytes);
    w->scales = scales;
    good = scales[bad * (c->engram_dim / 32)];
    scales[bad * (c->engram_dim / 32)] = 0xff;
    struct member *victim = &x[N_OTHERS];
    for (size_t i = 0; i <= N_OTHERS; i++) {
        alone(plain, i < N_OTHERS ? &OTHERS[i] : &VICTIM, &want[i]);
        join(&x[i], m, i < N_OTHERS ? &OTHERS[i] : &VICTIM);
    }
    while (!victim->failed) {
        if (seq_position(victim->seq) > 12) {
            drive_state_free(&saved);
            drive_export(m, victim->seq, &saved);
        }
        n_busy = 0;
        for (size_t i = 0; i < N_OTHERS; i++)
            n_busy += seq_of_const(x[i].seq)->work.has_next;
        step(m, N_EVENTS);
        for (size_t i = 0; i <= N_OTHERS; i++)
            if (!x[i].is_done && !x[i].failed && !is_busy(&x[i]))
                queue(&x[i]);
    }
    assert_int_equal(victim->failed, ERR_FORMAT);
    assert_true(n_busy == N_OTHERS);
    assert_non_null(strstr(victim->why.msg, "tensor layers.1.engram.embed.scale ["));
    assert_int_equal(saved.n_tokens, position - 1); /* up to the token in question */
    rest(m, x, N_OTHERS);
    for (size_t i = 0; i < N_OTHERS; i++)
        assert_same(&want[i], &x[i]);

    scales[bad * (c->engram_dim / 32)] = good;
    seq_free(victim->seq);
    victim->seq = drive_import(m, &saved);
    victim->seq->user = victim;
    victim->failed = OK;
    victim->n_ids = saved.n_tokens - victim->start; /* the last one is drawn again */
    rest(m, victim, 1);
    assert_same(&want[N_OTHERS], victim);
    for (size_t i = 0; i <= N_OTHERS; i++)
        drive_state_free(&want[i].state);
    drive_state_free(&saved);
    engine_free(m);
    engine_free(plain);
    free(scales);
}

/* Memory of the backend runs out when the buffers have to grow for company. */
static struct {
    void *(*alloc)(struct kernels *k, size_t bytes);
    size_t n_refused;
} memory;

static void *refuse(struct kernels *k, size_t bytes)
{
    (void)k;
    (void)bytes;
    memory.n_refused++;
    return NULL;
}

/* More rows than there are buffers for: everybody gets on alone. */
static void test_no_memory(void **state)
{
    enum { N = 9 };
    static struct script scripts[N];
    static struct member x[N];
    static struct outcome want[N];
    struct engine_options o = PLAIN;
    (void)state;
    o.draft_tokens = 3; /* 4 rows each: more than 16, which there always are */
    o.chunk_tokens = 8;
    struct engine *plain = drive_open(MODEL, &PLAIN), *m = drive_open(MODEL, &o);
    for (uint32_t i = 0; i < N; i++) {
        scripts[i] = (struct script){
            {{ACTION_INPUT, 1 + i, PREFILL_CED, 0}, {ACTION_RUN, 10 + i, PREFILL_CED, 0}},
            2,
            30 + i};
        alone(plain, &scripts[i], &want[i]);
        join(&x[i], m, &scripts[i]);
    }
    struct kernels *k = &model_of(m)->k;
    memory.alloc = k->alloc;
    k->alloc = refuse;
    rest(m, x, N);
    k->alloc = memory.alloc;
    assert_true(memory.n_refused > 0);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(x[i].failed, OK);
        assert_same(&want[i], &x[i]);
        drive_state_free(&want[i].state);
    }
    engine_free(m);
    engine_free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),      cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_interrupted), cmocka_unit_test(test_bad_row),
        cmocka_unit_test(test_no_memory),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
