#include "tests/support/drive.h"

#include "engine/observe.h"
#include "tests/support/fenced.h"
#include "tests/support/test.h"

struct engine *drive_open(const char *dir, const struct engine_options *o)
{
    struct error e = {0};
    struct engine *m = NULL;
    struct engine_options with = *o;
    backend_override(&with);
    assert_ok(engine_open_model(&m, dir, &with, &e), &e);
    return m;
}

struct seq *drive_seq(struct engine *m)
{
    struct error e = {0};
    struct seq *s = NULL;
    assert_ok(seq_new(m, NULL, &s, &e), &e);
    return s;
}

enum end_reason drive_run(struct engine *m, uint32_t *ids, size_t cap, size_t *n)
{
    struct error e = {0};
    struct engine_event ev[8];
    enum end_reason reason = END_FAILED;
    size_t got = 0;
    while (engine_has_work(m)) {
        size_t n_events = 0;
        assert_ok(engine_step(m, ev, 8, &n_events, &e), &e);
        for (size_t i = 0; i < n_events; i++) {
            if (ev[i].kind == ENGINE_TOKENS)
                for (uint32_t k = 0; k < ev[i].n_ids; k++, got++)
                    if (ids && got < cap)
                        ids[got] = ev[i].ids[k];
            free(ev[i].logprobs);
            if (ev[i].kind == ENGINE_DONE) {
                reason = ev[i].reason;
                if (reason == END_FAILED)
                    fail_msg("the sequence failed: %s", ev[i].error.msg);
            }
        }
    }
    if (n)
        *n = got;
    return reason;
}

void drive_input(struct engine *m, struct seq *s, const uint32_t *ids, uint64_t n,
                 enum prefill_mode mode)
{
    struct error e = {0};
    assert_ok(seq_input(s, ids, n, mode, &e), &e);
    assert_int_equal(drive_run(m, NULL, 0, NULL), END_SEGMENT);
}

void drive_forced(struct engine *m, struct seq *s, const uint32_t *ids, uint64_t n)
{
    struct error e = {0};
    struct generate_options g = {.sampling = {.top_p = 1},
                                 .max_tokens = n,
                                 .given = ids,
                                 .n_given = n,
                                 .end_with_given = true};
    assert_ok(seq_generate(s, &g, &e), &e);
    assert_int_equal(drive_run(m, NULL, 0, NULL), END_SEGMENT);
}

static void queue_segment(struct seq *s, const struct tape_view *t, const struct segment *g)
{
    struct error e = {0};
    uint64_t at = seq_position(s), n = g->start + g->len - at;
    if (g->kind == SEGMENT_INPUT) {
        assert_ok(seq_input(s, t->ids + at, n, g->mode, &e), &e);
        return;
    }
    struct generate_options o = {.max_tokens = n,
                                 .given = t->ids + at,
                                 .n_given = n,
                                 .end_with_given = true,
                                 .resumes = at > g->start};
    assert_ok(seq_generate(s, &o, &e), &e);
}

void drive_tape(struct engine *m, struct seq *s, const struct tape_view *t, uint64_t stop,
                struct seq_digest *digests)
{
    for (size_t i = 0; i < t->n_segments; i++) {
        const struct segment *g = &t->segments[i];
        if (g->start + g->len <= seq_position(s) || seq_position(s) >= stop)
            continue;
        queue_segment(s, t, g);
        while (engine_has_work(m)) {
            struct engine_event ev[8];
            struct error e = {0};
            size_t n = 0;
            uint64_t left = stop - seq_position(s);
            if (!left)
                seq_cancel(s);
            engine_limit_chunk(m, left < UINT32_MAX ? (uint32_t)left : 0);
            assert_ok(engine_step(m, ev, 8, &n, &e), &e);
        }
        if (digests && seq_position(s) == g->start + g->len)
            digests[i] = seq_digest(s);
    }
    engine_limit_chunk(m, 0);
}

void drive_ids(uint32_t *ids, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = 3 + (seed >> 8) % 480;
    }
}

void drive_export(const struct engine *m, const struct seq *s, struct drive_state *out)
{
    struct error e = {0};
    const struct state_layout *l = engine_describe(m)->layout;
    *out = (struct drive_state){.n_tokens = seq_position(s),
                                .n_planes = l->n_planes,
                                .tip_bytes = l->tip_bytes,
                                .digest = seq_digest(s)};
    for (uint32_t i = 0; i < l->n_planes; i++) {
        uint64_t rows = state_rows(&l->planes[i], out->n_tokens);
        out->plane_bytes[i] = rows * l->planes[i].row_bytes;
        out->plane[i] = malloc(out->plane_bytes[i] + 1);
        assert_non_null(out->plane[i]);
        assert_ok(seq_export_rows(s, i, 0, rows, out->plane[i], &e), &e);
    }
    out->tip = malloc(out->tip_bytes);
    assert_non_null(out->tip);
    assert_ok(seq_export_tip(s, out->tip, &e), &e);
}

void drive_state_free(struct drive_state *st)
{
    for (uint32_t i = 0; i < st->n_planes; i++)
        free(st->plane[i]);
    free(st->tip);
    *st = (struct drive_state){0};
}

static void assert_same(const char *what, uint32_t i, const void *a, const void *b, size_t n)
{
    const uint8_t *x = a, *y = b;
    for (size_t k = 0; k < n; k++)
        if (x[k] != y[k])
            fail_msg("%s %u: byte %zu of %zu differs (%02x, %02x)", what, i, k, n, x[k], y[k]);
}

void drive_assert_planes(const struct drive_state *a, const struct drive_state *b)
{
    assert_int_equal(a->n_planes, b->n_planes);
    for (uint32_t i = 0; i < a->n_planes; i++) {
        size_t n =
            a->plane_bytes[i] < b->plane_bytes[i] ? a->plane_bytes[i] : b->plane_bytes[i];
        assert_same("plane", i, a->plane[i], b->plane[i], n);
    }
}

void drive_assert_tip(const struct drive_state *a, const struct drive_state *b)
{
    assert_int_equal(a->tip_bytes, b->tip_bytes);
    assert_same("tip", 0, a->tip, b->tip, a->tip_bytes);
}

static struct seq *begin_import(struct engine *m, const struct drive_state *st)
{
    struct error e = {0};
    struct seq *s = drive_seq(m);
    struct state_regions regions;
    assert_ok(seq_import_begin(s, st->n_tokens, &regions, &e), &e);
    for (uint32_t i = 0; i < st->n_planes; i++)
        memcpy(regions.plane[i], st->plane[i], st->plane_bytes[i]);
    return s;
}

struct seq *drive_import(struct engine *m, const struct drive_state *st)
{
    struct error e = {0};
    struct seq *s = begin_import(m, st);
    assert_ok(seq_import_tip(s, st->tip, st->tip_bytes, &st->digest, &e), &e);
    assert_int_equal(seq_position(s), st->n_tokens);
    return s;
}

struct seq *drive_rebuild(struct engine *m, const struct drive_state *st,
                          const struct tape_view *tape, enum resume_mode mode,
                          uint64_t *n_replayed)
{
    struct error e = {0};
    struct seq *s = begin_import(m, st);
    assert_ok(seq_rebuild(s, tape, mode, &st->digest, n_replayed, &e), &e);
    assert_int_equal(drive_run(m, NULL, 0, NULL), END_SEGMENT);
    assert_int_equal(seq_position(s), st->n_tokens);
    return s;
}
