#include "tests/support/engine_contract.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#define MAX_TAPE 8192
#define MAX_SEGMENTS 64

/* A sequence's history as the test keeps it, with what is to be found again. */
struct tape {
    uint32_t ids[MAX_TAPE];
    uint64_t n;
    struct segment segments[MAX_SEGMENTS];
    struct seq_digest digests[MAX_SEGMENTS]; /* at the end of each segment */
    size_t n_segments;
};

/* Exported state at one position. */
struct saved {
    uint64_t position;
    void *plane[STATE_MAX_PLANES];
    void *tip;
    struct seq_digest digest;
};

static struct seq *new_seq(const struct engine_contract *c)
{
    struct seq *s = NULL;
    struct error e;
    assert_ok(seq_new(c->m, NULL, &s, &e), &e);
    return s;
}

static struct tape *new_tape(void)
{
    struct tape *t = calloc(1, sizeof *t);
    assert_non_null(t);
    return t;
}

/* The k-th id of the input that begins at position start: a function of both, so that two tapes
 * can be made alike without keeping them. */
static uint32_t input_id(const struct engine_contract *c, uint64_t start, uint64_t k)
{
    uint64_t x = (start + 1) * 0x9e3779b97f4a7c15u + k * 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    return c->first_id + (uint32_t)(x * 0x94d049bb133111ebu >> 33) % c->n_ids;
}

/* ---- driving -------------------------------------------------------------------- */

/* Sampled ids of one piece of work, and how it ended. */
struct outcome {
    uint32_t ids[MAX_TAPE];
    uint64_t n_ids;
    enum end_reason reason;
    uint64_t n_progress;
};

static void take_event(const struct engine_event *ev, struct seq *s, uint64_t begin,
                       uint64_t n_given, struct outcome *out)
{
    assert_ptr_equal(ev->seq, s);
    assert_int_equal(ev->position, seq_position(s));
    if (ev->kind == ENGINE_PROGRESS) {
        assert_true(ev->done <= ev->total);
        out->n_progress++;
    } else if (ev->kind == ENGINE_TOKENS) {
        assert_true(ev->n_ids >= 1 && ev->n_ids <= ENGINE_EVENT_IDS);
        assert_int_equal(ev->first_position, begin + n_given + out->n_ids);
        for (uint32_t i = 0; i < ev->n_ids; i++)
            out->ids[out->n_ids++] = ev->ids[i];
    }
}

/* Runs the queued work of s alone; cancels it once n_tokens ids came or, for input, once there
 * was progress (UINT64_MAX: never). */
static void drive(struct engine *m, struct seq *s, uint64_t n_given, uint64_t cancel_after,
                  struct outcome *out)
{
    uint64_t begin = seq_position(s);
    bool done = false;
    memset(out, 0, sizeof *out);
    while (!done) {
        struct engine_event ev[8];
        struct error e;
        size_t n = 0;
        assert_true(engine_has_work(m));
        assert_ok(engine_step(m, ev, 8, &n, &e), &e);
        for (size_t i = 0; i < n; i++) {
            assert_false(done);
            take_event(&ev[i], s, begin, n_given, out);
            done = ev[i].kind == ENGINE_DONE;
            out->reason = ev[i].reason;
            if (done && ev[i].reason == END_FAILED)
                fail_msg("work failed: %s", ev[i].error.msg);
        }
        if (!done && out->n_ids + out->n_progress >= cancel_after)
            seq_cancel(s);
    }
    assert_false(engine_has_work(m));
}

static void add_segment(struct tape *t, struct seq *s, enum segment_kind kind,
                        enum prefill_mode mode, uint64_t n)
{
    assert_true(t->n_segments < MAX_SEGMENTS);
    t->segments[t->n_segments] = (struct segment){t->n, n, kind, mode};
    t->digests[t->n_segments++] = seq_digest(s);
    t->n += n;
}

static void run_input(const struct engine_contract *c, struct seq *s, struct tape *t,
                      uint64_t n, enum prefill_mode mode)
{
    struct outcome out;
    struct error e;
    assert_true(t->n + n <= MAX_TAPE);
    for (uint64_t k = 0; k < n; k++)
        t->ids[t->n + k] = input_id(c, t->n, k);
    assert_ok(seq_input(s, t->ids + t->n, n, mode, &e), &e);
    drive(c->m, s, 0, UINT64_MAX, &out);
    assert_int_equal(out.reason, END_SEGMENT);
    assert_int_equal(out.n_ids, 0);
    assert_int_equal(seq_position(s), t->n + n);
    add_segment(t, s, SEGMENT_INPUT, mode, n);
}

static struct generate_options sampled(const struct engine_contract *c)
{
    return (struct generate_options){
        .sampling = {.seed = 7, .temperature = c->temperature, .top_p = 1},
        .max_tokens = c->run_tokens};
}

static void run_sampled(const struct engine_contract *c, struct seq *s, struct tape *t)
{
    struct outcome out;
    struct error e;
    struct generate_options g = sampled(c);
    assert_ok(seq_generate(s, &g, &e), &e);
    drive(c->m, s, 0, UINT64_MAX, &out);
    assert_true(out.reason == END_EOS || out.reason == END_LENGTH);
    assert_true(out.n_ids >= 1 && out.n_ids <= c->run_tokens);
    assert_int_equal(seq_position(s), t->n + out.n_ids);
    memcpy(t->ids + t->n, out.ids, out.n_ids * sizeof *out.ids);
    add_segment(t, s, SEGMENT_GENERATED, PREFILL_CED, out.n_ids);
}

static enum prefill_mode mode_of_turn(uint32_t turn)
{
    return turn % 2 ? PREFILL_FULL : PREFILL_CED;
}

/* Lengths differ from turn to turn, odd and even, below and above what was asked for. */
static uint64_t input_of_turn(const struct engine_contract *c, uint32_t turn)
{
    return turn % 3 == 1 ? c->input_tokens / 3 + 1 : c->input_tokens + turn;
}

static struct tape *make_tape(const struct engine_contract *c, struct seq *s)
{
    struct tape *t = new_tape();
    for (uint32_t turn = 0; turn < c->n_turns; turn++) {
        run_input(c, s, t, input_of_turn(c, turn), mode_of_turn(turn));
        run_sampled(c, s, t);
    }
    return t;
}

/* ---- comparing ------------------------------------------------------------------ */

static void assert_same_digest(const struct seq_digest *a, const struct seq_digest *b)
{
    assert_int_equal(a->n_rows, b->n_rows);
    assert_memory_equal(a->d, b->d, sizeof a->d);
}

static void save(const struct engine_contract *c, struct seq *s, struct saved *out)
{
    const struct state_layout *l = engine_describe(c->m)->layout;
    struct error e;
    out->position = seq_position(s);
    out->digest = seq_digest(s);
    for (uint32_t i = 0; i < l->n_planes; i++) {
        uint64_t rows = state_rows(&l->planes[i], out->position);
        out->plane[i] = calloc(rows + 1, l->planes[i].row_bytes);
        assert_non_null(out->plane[i]);
        assert_ok(seq_export_rows(s, i, 0, rows, out->plane[i], &e), &e);
    }
    out->tip = calloc(1, l->tip_bytes + 1);
    assert_non_null(out->tip);
    assert_ok(seq_export_tip(s, out->tip, &e), &e);
}

static void saved_fini(struct saved *v)
{
    for (size_t i = 0; i < STATE_MAX_PLANES; i++)
        free(v->plane[i]);
    free(v->tip);
    memset(v, 0, sizeof *v);
}

/* Planes and tip of both sequences are the same bytes. */
static void assert_same_state(const struct engine_contract *c, struct seq *a, struct seq *b)
{
    const struct state_layout *l = engine_describe(c->m)->layout;
    struct saved x = {0}, y = {0};
    assert_int_equal(seq_position(a), seq_position(b));
    save(c, a, &x);
    save(c, b, &y);
    for (uint32_t i = 0; i < l->n_planes; i++)
        assert_memory_equal(x.plane[i], y.plane[i],
                            state_rows(&l->planes[i], x.position) * l->planes[i].row_bytes);
    assert_memory_equal(x.tip, y.tip, l->tip_bytes);
    saved_fini(&x);
    saved_fini(&y);
}

static struct seq *begin_import(const struct engine_contract *c, const struct saved *v)
{
    const struct state_layout *l = engine_describe(c->m)->layout;
    struct seq *s = new_seq(c);
    struct state_regions r = {0};
    struct error e;
    assert_ok(seq_import_begin(s, v->position, &r, &e), &e);
    for (uint32_t i = 0; i < l->n_planes; i++) {
        assert_int_equal((uintptr_t)r.plane[i] % 4096, 0);
        memcpy(r.plane[i], v->plane[i],
               state_rows(&l->planes[i], v->position) * l->planes[i].row_bytes);
    }
    return s;
}

/* Feeds the tape's ids from the position on, as it was recorded: input as input, runs given.
 * The digest of every segment must be the recorded one, also of the one the position is in. */
static void follow(const struct engine_contract *c, struct seq *s, const struct tape *t)
{
    uint64_t from = seq_position(s);
    for (size_t i = 0; i < t->n_segments; i++) {
        const struct segment *g = &t->segments[i];
        uint64_t end = g->start + g->len, at = g->start > from ? g->start : from;
        struct outcome out;
        struct error e;
        if (end <= from)
            continue;
        if (g->kind == SEGMENT_INPUT) {
            assert_ok(seq_input(s, t->ids + at, end - at, g->mode, &e), &e);
        } else {
            struct generate_options o = {.max_tokens = UINT64_MAX,
                                         .given = t->ids + at,
                                         .n_given = end - at,
                                         .end_with_given = true,
                                         .resumes = at > g->start};
            assert_ok(seq_generate(s, &o, &e), &e);
        }
        drive(c->m, s, 0, UINT64_MAX, &out);
        assert_int_equal(out.reason, END_SEGMENT);
        assert_int_equal(seq_position(s), end);
        struct seq_digest d = seq_digest(s);
        assert_same_digest(&d, &t->digests[i]);
    }
}

/* ---- the checks ----------------------------------------------------------------- */

void contract_refusals(const struct engine_contract *c)
{
    const struct engine_info *info = engine_describe(c->m);
    struct seq *s = new_seq(c);
    struct tape *t = new_tape();
    struct error e;
    uint32_t bad = info->vocab_size, good = c->first_id;
    struct generate_options g = {.max_tokens = 4, .given = &bad, .n_given = 1};
    assert_int_equal(seq_input(s, &good, 0, PREFILL_CED, &e), ERR_INVAL);
    assert_int_equal(seq_input(s, &bad, 1, PREFILL_CED, &e), ERR_INVAL);
    assert_int_equal(seq_generate(s, &g, &e), ERR_INVAL);
    assert_int_equal(seq_position(s), 0);
    assert_false(engine_has_work(c->m));
    run_input(c, s, t, c->input_tokens, PREFILL_CED);
    g = (struct generate_options){.max_tokens = 0};
    assert_int_equal(seq_generate(s, &g, &e), ERR_INVAL);
    g = (struct generate_options){.max_tokens = 4, .end_with_given = true};
    assert_int_equal(seq_generate(s, &g, &e), ERR_INVAL);
    struct state_regions r;
    assert_int_equal(seq_import_begin(s, 10, &r, &e), ERR_CONFLICT);
    uint64_t dst;
    assert_int_equal(seq_export_rows(s, info->layout->n_planes, 0, 0, &dst, &e), ERR_INVAL);
    if (info->layout->n_planes)
        assert_int_equal(seq_export_rows(s, 0, UINT64_MAX, 2, &dst, &e), ERR_INVAL);
    assert_ok(seq_input(s, &good, 1, PREFILL_CED, &e), &e);
    assert_int_equal(seq_input(s, &good, 1, PREFILL_CED, &e), ERR_CONFLICT);
    g = sampled(c);
    assert_int_equal(seq_generate(s, &g, &e), ERR_CONFLICT);
    seq_free(s); /* with work queued */
    assert_false(engine_has_work(c->m));
    s = new_seq(c);
    assert_int_equal(seq_import_begin(s, info->max_tokens + 1, &r, &e), ERR_LIMIT);
    assert_int_equal(seq_import_begin(s, 0, &r, &e), ERR_INVAL);
    seq_free(s);
    free(t);
}

void contract_events(const struct engine_contract *c)
{
    struct seq *s = new_seq(c);
    struct tape *t = make_tape(c, s); /* drive() asserts the order of events */
    assert_int_equal(seq_position(s), t->n);
    assert_int_equal(t->segments[t->n_segments - 1].kind, SEGMENT_GENERATED);
    struct seq_digest d = seq_digest(s);
    assert_int_equal(d.n_rows, t->segments[t->n_segments - 1].len);
    seq_free(s);
    free(t);
}

void contract_given(const struct engine_contract *c)
{
    struct seq *a = new_seq(c), *b = new_seq(c);
    struct tape *t = make_tape(c, a);
    follow(c, b, t);
    assert_same_state(c, a, b);
    seq_free(b);
    /* The first half of the last run is given, the rest sampled again. */
    const struct segment *g = &t->segments[t->n_segments - 1];
    uint64_t half = g->len / 2;
    struct tape *most = new_tape();
    *most = *t;
    most->n_segments--;
    b = new_seq(c);
    follow(c, b, most);
    struct generate_options o = sampled(c);
    struct outcome out;
    struct error e;
    o.given = t->ids + g->start;
    o.n_given = half;
    assert_ok(seq_generate(b, &o, &e), &e);
    drive(c->m, b, half, UINT64_MAX, &out);
    assert_int_equal(out.n_ids, g->len - half);
    assert_memory_equal(out.ids, t->ids + g->start + half, out.n_ids * sizeof *out.ids);
    assert_same_state(c, a, b);
    seq_free(a);
    seq_free(b);
    free(most);
    free(t);
}

static void check_exact_at(const struct engine_contract *c, const struct tape *t, uint64_t stop,
                           const struct saved *v, struct seq *whole)
{
    struct error e;
    struct seq *s = begin_import(c, v);
    uint64_t tip_bytes = engine_describe(c->m)->layout->tip_bytes;
    assert_int_equal(v->position, stop);
    assert_int_equal(seq_import_tip(s, v->tip, tip_bytes + 1, &v->digest, &e), ERR_FORMAT);
    assert_ok(seq_import_tip(s, v->tip, tip_bytes, &v->digest, &e), &e);
    assert_int_equal(seq_position(s), stop);
    follow(c, s, t);
    assert_same_state(c, s, whole);
    seq_free(s);
}

/* Positions at which the checks stop: every segment border and the middle of every run. */
static size_t stops_of(const struct tape *t, uint64_t *stops)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_segments; i++) {
        const struct segment *g = &t->segments[i];
        if (g->kind == SEGMENT_GENERATED && g->len > 1)
            stops[n++] = g->start + g->len / 2;
        stops[n++] = g->start + g->len;
    }
    return n;
}

/* The tape's first n tokens as a tape of its own. */
static struct tape *cut(const struct tape *t, uint64_t n)
{
    struct tape *out = new_tape();
    *out = *t;
    out->n = n;
    out->n_segments = 0;
    for (size_t i = 0; i < t->n_segments && t->segments[i].start < n; i++) {
        struct segment *g = &out->segments[out->n_segments++];
        if (g->start + g->len > n)
            g->len = n - g->start;
    }
    return out;
}

/* Computes the first n tokens of the tape and exports there. */
static void save_at(const struct engine_contract *c, const struct tape *t, uint64_t n,
                    struct saved *v)
{
    struct seq *s = new_seq(c);
    struct tape *front = cut(t, n);
    memset(v, 0, sizeof *v);
    /* a run that is cut has another digest at its end than the whole one: outside follow() */
    uint64_t last = front->n_segments - 1;
    bool is_cut = front->segments[last].len != t->segments[last].len;
    if (is_cut)
        front->n_segments--;
    follow(c, s, front);
    if (is_cut) {
        const struct segment *g = &front->segments[last];
        struct generate_options o = {.max_tokens = UINT64_MAX,
                                     .given = t->ids + g->start,
                                     .n_given = g->len,
                                     .end_with_given = true};
        struct outcome out;
        struct error e;
        assert_int_equal(g->kind, SEGMENT_GENERATED);
        assert_ok(seq_generate(s, &o, &e), &e);
        drive(c->m, s, 0, UINT64_MAX, &out);
    }
    save(c, s, v);
    seq_free(s);
    free(front);
}

void contract_exact_resume(const struct engine_contract *c)
{
    struct seq *whole = new_seq(c);
    struct tape *t = make_tape(c, whole);
    uint64_t stops[2 * MAX_SEGMENTS];
    size_t n = stops_of(t, stops);
    for (size_t i = 0; i < n; i++) {
        struct saved v;
        save_at(c, t, stops[i], &v);
        check_exact_at(c, t, stops[i], &v, whole);
        saved_fini(&v);
    }
    seq_free(whole);
    free(t);
}

static void check_deep_at(const struct engine_contract *c, const struct tape *t,
                          const struct saved *v, struct seq *whole)
{
    const struct state_layout *l = engine_describe(c->m)->layout;
    struct tape_view view = {
        .ids = t->ids, .n_ids = t->n, .segments = t->segments, .n_segments = t->n_segments};
    struct seq *s = begin_import(c, v);
    struct outcome out;
    struct error e;
    uint64_t n_replayed = 0;
    assert_int_equal(seq_rebuild(s, &view, RESUME_EXACT, NULL, &n_replayed, &e), ERR_INVAL);
    assert_ok(seq_rebuild(s, &view, RESUME_DEEP, &v->digest, &n_replayed, &e), &e);
    assert_true(n_replayed >= 1 && n_replayed <= l->replay_tokens);
    drive(c->m, s, 0, UINT64_MAX, &out);
    assert_int_equal(out.reason, END_SEGMENT);
    assert_int_equal(seq_position(s), v->position);
    for (uint32_t i = 0; i < l->n_planes; i++) {
        uint64_t rows = state_rows(&l->planes[i], v->position);
        void *now = calloc(rows + 1, l->planes[i].row_bytes);
        assert_non_null(now);
        assert_ok(seq_export_rows(s, i, 0, rows, now, &e), &e);
        assert_memory_equal(now, v->plane[i], rows * l->planes[i].row_bytes);
        free(now);
    }
    follow(c, s, t);
    assert_same_state(c, s, whole);
    seq_free(s);
}

void contract_deep_resume(const struct engine_contract *c)
{
    struct seq *whole = new_seq(c);
    struct tape *t = make_tape(c, whole);
    uint64_t stops[2 * MAX_SEGMENTS];
    size_t n = stops_of(t, stops);
    for (size_t i = 0; i < n; i++) {
        struct saved v;
        save_at(c, t, stops[i], &v);
        check_deep_at(c, t, &v, whole);
        saved_fini(&v);
    }
    seq_free(whole);
    free(t);
}

/* s stands inside the first input segment: its state goes over to another sequence, which goes
 * on with the tape to its end; then s itself completes the segment. */
static void check_open_input(const struct engine_contract *c, struct seq *s,
                             const struct tape *t, struct seq *whole)
{
    uint64_t start = 99, at = seq_position(s);
    enum prefill_mode mode;
    struct saved v = {0};
    struct error e;
    assert_true(seq_segment_open(s, &start, &mode));
    assert_int_equal(start, 0);
    assert_int_equal(mode, t->segments[0].mode);
    struct generate_options early = sampled(c);
    assert_int_equal(seq_generate(s, &early, &e), ERR_CONFLICT);
    enum prefill_mode other = mode == PREFILL_CED ? PREFILL_FULL : PREFILL_CED;
    assert_int_equal(seq_input(s, t->ids + at, 1, other, &e), ERR_INVAL);
    save(c, s, &v);
    check_exact_at(c, t, at, &v, whole);
    saved_fini(&v);
    struct tape *front = cut(t, t->segments[0].len);
    follow(c, s, front);
    free(front);
}

void contract_cancel(const struct engine_contract *c)
{
    struct seq *a = new_seq(c), *b = new_seq(c);
    struct tape *t = make_tape(c, a);
    const struct segment *in = &t->segments[0], *run = &t->segments[1];
    struct outcome out;
    struct error e;
    uint64_t start;
    enum prefill_mode mode;
    assert_ok(seq_input(b, t->ids, in->len, in->mode, &e), &e);
    drive(c->m, b, 0, 1, &out);
    if (out.reason == END_CANCELLED)
        check_open_input(c, b, t, a);
    assert_false(seq_segment_open(b, &start, &mode));
    struct generate_options o = sampled(c);
    assert_ok(seq_generate(b, &o, &e), &e);
    drive(c->m, b, 0, run->len / 2, &out);
    /* what was handed out is computed */
    assert_int_equal(seq_position(b), run->start + out.n_ids);
    assert_memory_equal(out.ids, t->ids + run->start, out.n_ids * sizeof *out.ids);
    if (out.n_ids < run->len)
        assert_int_equal(out.reason, END_CANCELLED);
    follow(c, b, t);
    assert_same_state(c, a, b);
    seq_free(a);
    seq_free(b);
    free(t);
}

/* Queues the next segment of the tape on s; false when there is none. */
static bool queue_next(struct seq *s, const struct tape *t)
{
    struct error e;
    for (size_t i = 0; i < t->n_segments; i++) {
        const struct segment *g = &t->segments[i];
        if (g->start != seq_position(s))
            continue;
        struct generate_options o = {.max_tokens = UINT64_MAX,
                                     .given = t->ids + g->start,
                                     .n_given = g->len,
                                     .end_with_given = true};
        if (g->kind == SEGMENT_INPUT)
            assert_ok(seq_input(s, t->ids + g->start, g->len, g->mode, &e), &e);
        else
            assert_ok(seq_generate(s, &o, &e), &e);
        return true;
    }
    return false;
}

void contract_company(const struct engine_contract *c)
{
    struct engine_contract other = *c;
    other.first_id++;
    other.n_ids--;
    other.input_tokens += 5;
    struct seq *alone[2] = {new_seq(c), new_seq(c)}, *pair[2];
    struct tape *t[2] = {make_tape(c, alone[0]), make_tape(&other, alone[1])};
    struct error e;
    for (int i = 0; i < 2; i++) {
        pair[i] = new_seq(c);
        assert_true(queue_next(pair[i], t[i]));
    }
    while (engine_has_work(c->m)) {
        struct engine_event ev[8];
        size_t n;
        assert_ok(engine_step(c->m, ev, 8, &n, &e), &e);
        for (size_t k = 0; k < n; k++)
            if (ev[k].kind == ENGINE_DONE) {
                assert_int_equal(ev[k].reason, END_SEGMENT);
                queue_next(ev[k].seq, ev[k].seq == pair[0] ? t[0] : t[1]);
            }
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seq_position(pair[i]), t[i]->n);
        struct seq_digest d = seq_digest(pair[i]);
        assert_same_digest(&d, &t[i]->digests[t[i]->n_segments - 1]);
        assert_same_state(c, pair[i], alone[i]);
        seq_free(pair[i]);
        seq_free(alone[i]);
        free(t[i]);
    }
}

void contract_all(const struct engine_contract *c)
{
    contract_refusals(c);
    contract_events(c);
    contract_given(c);
    contract_exact_resume(c);
    contract_deep_resume(c);
    contract_cancel(c);
    contract_company(c);
}
