/* Exact and deep resume, at every kind of position: logits, planes and tip of what follows have
 * the bits of a session that never stopped. A session of 700 tokens, window 32; with
 * AGENTD_SLOW at every position. And a replay resume: what follows equals the session as it
 * went. */
#include "base/hash.h"
#include "engine/record.h"
#include "tests/support/drive.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "c_replay/model"
#define N_TOKENS 700
#define N_SEGMENTS 9
#define WINDOW 32
#define VOCAB 512

struct session {
    struct engine *m;
    struct record r;
    uint32_t ids[N_TOKENS];
    struct segment segments[N_SEGMENTS];
    struct tape_view tape;
    float *logits;          /* [N_TOKENS][VOCAB], of the session that never stopped */
    bool *has_logits;       /* [N_TOKENS] */
    struct drive_state end; /* at the last position */
    struct drive_state *at; /* [N_TOKENS + 1] planes and tip after so many tokens; NULL planes:
                               not wanted */
};

static void make_tape(struct session *x)
{
    const struct segment list[N_SEGMENTS] = {
        {0, 190, SEGMENT_INPUT, PREFILL_CED},        {0, 21, SEGMENT_GENERATED, PREFILL_CED},
        {0, 33, SEGMENT_INPUT, PREFILL_CED},         {0, 40, SEGMENT_GENERATED, PREFILL_CED},
        {0, 17, SEGMENT_INPUT, PREFILL_CED},         {0, 9, SEGMENT_GENERATED, PREFILL_CED},
        {0, 120, SEGMENT_INPUT, PREFILL_CED_REPORT}, {0, 60, SEGMENT_INPUT, PREFILL_FULL},
        {0, 210, SEGMENT_INPUT, PREFILL_CED},
    };
    uint64_t at = 0;
    for (size_t i = 0; i < N_SEGMENTS; i++) {
        x->segments[i] = list[i];
        x->segments[i].start = at;
        at += list[i].len;
    }
    assert_int_equal(at, N_TOKENS);
    drive_ids(x->ids, N_TOKENS, 5);
    x->tape = (struct tape_view){
        .ids = x->ids, .n_ids = N_TOKENS, .segments = x->segments, .n_segments = N_SEGMENTS};
}

/* A subset that has each border, its neighbours, and some odd and even positions between. */
static bool is_wanted(const struct session *x, uint64_t p)
{
    if (getenv("AGENTD_SLOW"))
        return true;
    for (size_t i = 0; i < N_SEGMENTS; i++) {
        uint64_t end = x->segments[i].start + x->segments[i].len;
        if (p == end || (i % 3 == 0 && (p + 1 == end || p == end + 1 || p == end - WINDOW ||
                                        p == end - WINDOW + 1)))
            return true;
    }
    return p % 97 == 1;
}

/* Computes the session once, token by token, and keeps the state at every wanted position. */
static void setup(struct session *x, const char *backend)
{
    struct engine_options o = {.backend = backend, .digests = true, .no_weight_digest = true};
    *x = (struct session){.m = drive_open(MODEL, &o)};
    make_tape(x);
    x->logits = calloc(N_TOKENS, VOCAB * sizeof(*x->logits));
    x->has_logits = calloc(N_TOKENS, sizeof(*x->has_logits));
    x->at = calloc(N_TOKENS + 1, sizeof(*x->at));
    assert_true(x->logits && x->has_logits && x->at);
    record_init(&x->r, x->m, false);
    struct seq *s = drive_seq(x->m);
    for (uint64_t p = 1; p <= N_TOKENS; p++) {
        /* A clipped input segment is queued whole, stopped at p and gone on with. */
        drive_tape(x->m, s, &x->tape, p, NULL);
        assert_int_equal(seq_position(s), p);
        if (is_wanted(x, p))
            drive_export(x->m, s, &x->at[p]);
    }
    drive_export(x->m, s, &x->end);
    seq_free(s);
    for (uint64_t i = 0; i < x->r.logits.n; i++) {
        uint64_t p = x->r.logits.positions[i];
        memcpy(x->logits + p * VOCAB, (float *)x->r.logits.data + i * VOCAB,
               VOCAB * sizeof(float));
        x->has_logits[p] = true;
    }
    record_clear(&x->r);
}

static void teardown(struct session *x)
{
    for (uint64_t p = 0; p <= N_TOKENS; p++)
        drive_state_free(&x->at[p]);
    drive_state_free(&x->end);
    record_fini(&x->r);
    engine_free(x->m);
    free(x->at);
    free(x->logits);
    free(x->has_logits);
}

/* Every row computed since has the bits of the session that never stopped; none is missing. */
static void check_rows(const struct session *x, uint64_t from)
{
    uint64_t want = 0;
    for (uint64_t p = from; p < N_TOKENS; p++)
        want += x->has_logits[p];
    assert_int_equal(x->r.logits.n, want);
    for (uint64_t i = 0; i < x->r.logits.n; i++) {
        uint64_t p = x->r.logits.positions[i];
        assert_true(p >= from && x->has_logits[p]);
        if (memcmp((float *)x->r.logits.data + i * VOCAB, x->logits + p * VOCAB,
                   VOCAB * sizeof(float)) != 0)
            fail_msg("resumed at %llu: logits of position %llu differ",
                     (unsigned long long)from, (unsigned long long)p);
    }
}

static void finish_and_check(struct session *x, struct seq *s, uint64_t from)
{
    struct drive_state end;
    record_clear(&x->r);
    drive_tape(x->m, s, &x->tape, N_TOKENS, NULL);
    drive_export(x->m, s, &end);
    check_rows(x, from);
    drive_assert_planes(&x->end, &end);
    drive_assert_tip(&x->end, &end);
    drive_state_free(&end);
    seq_free(s);
}

static void check_exact(struct session *x, uint64_t p)
{
    struct drive_state again;
    struct seq *s = drive_import(x->m, &x->at[p]);
    drive_export(x->m, s, &again);
    drive_assert_tip(&x->at[p], &again);
    drive_assert_planes(&x->at[p], &again);
    drive_state_free(&again);
    finish_and_check(x, s, p);
}

static void check_deep(struct session *x, uint64_t p)
{
    uint64_t n_replayed = 0, most = WINDOW + (WINDOW - 1) * 7;
    struct drive_state again;
    struct seq *s = drive_rebuild(x->m, &x->at[p], &x->tape, RESUME_DEEP, &n_replayed);
    assert_int_equal(n_replayed, p < most ? p : most);
    drive_export(x->m, s, &again);
    drive_assert_planes(&x->at[p], &again); /* read, never written */
    drive_assert_tip(&x->at[p], &again);
    drive_state_free(&again);
    finish_and_check(x, s, p);
}

static void test_llama_cpp_21769_vmlx_swift_167_every_position(void **state)
{
    struct session *x = malloc(sizeof(*x));
    size_t checked = 0;
    (void)state;
    assert_non_null(x);
    setup(x, "cpu");
    for (uint64_t p = 1; p < N_TOKENS; p++)
        if (is_wanted(x, p)) {
            check_exact(x, p);
            check_deep(x, p);
            checked++;
        }
    assert_true(checked >= 20);
    teardown(x);
    free(x);
}

static void test_ref(void **state)
{
    struct session *x = malloc(sizeof(*x));
    (void)state;
    assert_non_null(x);
    setup(x, "ref");
    check_exact(x, 583);
    check_deep(x, 583);
    check_deep(x, 490);
    teardown(x);
    free(x);
}

/* A fork at P inside an input segment ends that segment there (rule 6): the new tape's rows are
 * those of a session whose segment ended at P. */
static void test_fork_inside_input(void **state)
{
    struct engine_options o = {.digests = true, .no_weight_digest = true};
    struct engine *m = drive_open(MODEL, &o);
    static uint32_t ids[300];
    struct segment whole = {0, 300, SEGMENT_INPUT, PREFILL_CED};
    struct segment cut = {0, 151, SEGMENT_INPUT, PREFILL_CED};
    struct tape_view tape = {.ids = ids, .n_ids = 151, .segments = &cut, .n_segments = 1};
    struct drive_state of_whole, of_cut, forked;
    uint64_t n_replayed = 0;
    (void)state;
    drive_ids(ids, 300, 3);
    struct seq *s = drive_seq(m);
    drive_tape(
        m, s,
        &(struct tape_view){.ids = ids, .n_ids = 300, .segments = &whole, .n_segments = 1}, 151,
        NULL);
    drive_export(m, s, &of_whole);
    seq_free(s);
    s = drive_seq(m);
    drive_input(m, s, ids, 151, PREFILL_CED);
    drive_export(m, s, &of_cut);
    seq_free(s);
    s = drive_rebuild(m, &of_whole, &tape, RESUME_DEEP, &n_replayed);
    drive_export(m, s, &forked);
    drive_assert_planes(&of_cut, &forked);
    drive_assert_tip(&of_cut, &forked);
    drive_forced(m, s, ids + 151, 20);
    seq_free(s);
    drive_state_free(&of_whole);
    drive_state_free(&of_cut);
    drive_state_free(&forked);
    engine_free(m);
}

/* A replay resume at P is part of the session's past: a later deep resume starts no earlier,
 * and gives the session as it went. */
static void test_deep_behind_a_replay(void **state)
{
    struct session *x = malloc(sizeof(*x));
    struct replay_mark mark = {.at = 331, .from = 331 - WINDOW};
    struct drive_state planes, as_it_went, again;
    uint64_t n_replayed = 0;
    (void)state;
    assert_non_null(x);
    struct engine_options o = {.digests = true, .no_weight_digest = true};
    *x = (struct session){.m = drive_open(MODEL, &o)};
    make_tape(x);
    struct seq *s = drive_seq(x->m);
    drive_tape(x->m, s, &x->tape, mark.at, NULL);
    drive_export(x->m, s, &planes);
    seq_free(s);
    s = drive_rebuild(x->m, &planes, &x->tape, RESUME_REPLAY, &n_replayed);
    assert_int_equal(n_replayed, WINDOW);
    drive_tape(x->m, s, &x->tape, 455, NULL);
    drive_export(x->m, s, &as_it_went);
    seq_free(s);

    x->tape.marks = &mark;
    x->tape.n_marks = 1;
    s = drive_rebuild(x->m, &as_it_went, &x->tape, RESUME_DEEP, &n_replayed);
    assert_int_equal(n_replayed, 455 - mark.from);
    drive_export(x->m, s, &again);
    drive_assert_planes(&as_it_went, &again);
    drive_assert_tip(&as_it_went, &again);
    seq_free(s);
    drive_state_free(&again);

    /* Without the mark it would start earlier and come out different: the mark matters. */
    x->tape.n_marks = 0;
    s = drive_rebuild(x->m, &as_it_went, &x->tape, RESUME_DEEP, &n_replayed);
    assert_int_equal(n_replayed, WINDOW + (WINDOW - 1) * 7);
    drive_export(x->m, s, &again);
    assert_memory_not_equal(as_it_went.tip, again.tip, again.tip_bytes);
    seq_free(s);
    drive_state_free(&again);
    drive_state_free(&planes);
    drive_state_free(&as_it_went);
    engine_free(x->m);
    free(x);
}

static struct seq *half_imported(struct engine *m, const struct drive_state *st)
{
    struct error e = {0};
    struct state_regions regions;
    struct seq *s = drive_seq(m);
    assert_ok(seq_import_begin(s, st->n_tokens, &regions, &e), &e);
    for (uint32_t i = 0; i < st->n_planes; i++)
        memcpy(regions.plane[i], st->plane[i], st->plane_bytes[i]);
    return s;
}

/* Any damaged byte of a tip is noticed, and the import stays open for a rebuild. */
static void test_atom_1417_sglang_38212_damaged_tip(void **state)
{
    struct session *x = malloc(sizeof(*x));
    struct drive_state st;
    struct error e = {0};
    uint64_t n_replayed = 0;
    (void)state;
    assert_non_null(x);
    struct engine_options o = {.digests = true, .no_weight_digest = true};
    *x = (struct session){.m = drive_open(MODEL, &o)};
    make_tape(x);
    struct seq *s = drive_seq(x->m);
    drive_tape(x->m, s, &x->tape, 100, NULL);
    drive_export(x->m, s, &st);
    seq_free(s);
    s = half_imported(x->m, &st);
    for (size_t i = 0; i < st.tip_bytes; i += i < 160 ? 1 : 997) {
        uint8_t *byte = (uint8_t *)st.tip + i;
        *byte ^= 0x10;
        assert_int_equal(seq_import_tip(s, st.tip, st.tip_bytes, NULL, &e), ERR_FORMAT);
        *byte ^= 0x10;
    }
    assert_int_equal(seq_import_tip(s, st.tip, st.tip_bytes - 1, NULL, &e), ERR_FORMAT);
    assert_int_equal(seq_position(s), 0);
    assert_ok(seq_rebuild(s, &x->tape, RESUME_DEEP, NULL, &n_replayed, &e), &e);
    assert_int_equal(drive_run(x->m, NULL, 0, NULL), END_SEGMENT);
    assert_int_equal(seq_position(s), 100);
    assert_int_equal(seq_digest(s).is_partial, st.digest.n_rows > 0); /* none was given */
    seq_free(s);

    /* A whole tip, but of another position than the planes. */
    st.n_tokens = 98;
    s = half_imported(x->m, &st);
    assert_int_equal(seq_import_tip(s, st.tip, st.tip_bytes, NULL, &e), ERR_FORMAT);
    seq_free(s);
    drive_state_free(&st);
    engine_free(x->m);
    free(x);
}

static void put(uint8_t *at, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(v >> 8 * i);
}

/* A tip with the right sum, from somebody who made it up (engine/tip.h has the offsets). Behind
 * 211 tokens stands a border of segments: nothing is open. */
static void test_forged_tip(void **state)
{
    static const struct {
        size_t at, n;
        uint64_t v;
        bool is_open; /* flags: an input segment is, of mode CED */
        uint64_t start, len;
        const char *says;
    } CASES[] = {
        {.at = 0, .n = 8, .v = 1, .says = "not a tip"},
        {.at = 8, .n = 4, .v = 99, .says = "version 99"},
        {.at = 12, .n = 4, .v = 77, .says = "another model or precision"},
        {.at = 16, .n = 8, .v = 144, .says = "another model or precision"},
        {.at = 24, .n = 8, .v = 0, .says = "another model or precision"},
        {.at = 56, .n = 8, .v = 212, .says = "position 212, 211 tokens"},
        {.at = 64, .n = 8, .v = 212, .says = "a window from 212"},
        {.at = 80, .n = 8, .v = UINT64_MAX, .says = "a window from"},
        {.at = 88, .n = 4, .v = 4, .says = "flags 4"},
        {.at = 92, .n = 4, .v = 9, .says = "prefill mode 9"},
        {.at = 96, .n = 8, .v = 50, .says = "a closed segment at 50"},
        {.at = 104, .n = 8, .v = 50, .says = "a closed segment"},
        {.at = 112, .n = 4, .v = VOCAB, .says = "id 512"},
        {.at = 140, .n = 4, .v = 1, .says = "where a zero stands"},
        {.is_open = true, .start = 211, .len = 50, .says = "not inside the segment 211+50"},
        {.is_open = true, .start = 200, .len = 11, .says = "not inside the segment 200+11"},
        {.is_open = true, .start = 200, .len = UINT64_MAX, .says = "the context holds 4096"},
        {.is_open = true, .start = 200, .len = 3897, .says = "200+3897, the context holds"},
        {.is_open = true, .start = UINT64_MAX, .len = 50, .says = "the context holds 4096"},
        {.at = 64, .n = 8, .v = 212, .is_open = true, .start = 200, .len = 50, .says = "212"},
        {.at = 72, .n = 8, .v = 212, .is_open = true, .start = 200, .len = 50, .says = "212"},
        {.at = 80, .n = 8, .v = 219, .is_open = true, .start = 200, .len = 50, .says = "219"},
    };
    struct session *x = malloc(sizeof(*x));
    struct drive_state st;
    struct error e = {0};
    (void)state;
    assert_non_null(x);
    struct engine_options o = {.digests = true, .no_weight_digest = true};
    *x = (struct session){.m = drive_open(MODEL, &o)};
    make_tape(x);
    struct seq *s = drive_seq(x->m);
    drive_tape(x->m, s, &x->tape, 211, NULL);
    drive_export(x->m, s, &st);
    seq_free(s);
    s = half_imported(x->m, &st);
    uint8_t *forged = malloc(st.tip_bytes), *sum = forged + st.tip_bytes - HASH_BYTES;
    assert_non_null(forged);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++) {
        memcpy(forged, st.tip, st.tip_bytes);
        put(forged + CASES[i].at, CASES[i].v, CASES[i].n);
        if (CASES[i].is_open) {
            forged[88] |= 1;
            put(forged + 96, CASES[i].start, 8);
            put(forged + 104, CASES[i].len, 8);
        }
        hash_bytes(NULL, forged, st.tip_bytes - HASH_BYTES, sum);
        assert_int_equal(seq_import_tip(s, forged, st.tip_bytes, NULL, &e), ERR_FORMAT);
        if (!strstr(e.msg, CASES[i].says))
            fail_msg("case %zu: \"%s\", want \"%s\"", i, e.msg, CASES[i].says);
        assert_int_equal(seq_position(s), 0);
    }
    assert_ok(seq_import_tip(s, st.tip, st.tip_bytes, NULL, &e), &e);
    assert_int_equal(seq_position(s), 211);
    seq_free(s);
    free(forged);
    drive_state_free(&st);
    engine_free(x->m);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_cpp_21769_vmlx_swift_167_every_position),
        cmocka_unit_test(test_ref),
        cmocka_unit_test(test_fork_inside_input),
        cmocka_unit_test(test_deep_behind_a_replay),
        cmocka_unit_test(test_atom_1417_sglang_38212_damaged_tip),
        cmocka_unit_test(test_forged_tip),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
