/* agentd verify-tape: computes a tape (descriptor 3, agentd/tape_file.h) from token 0 without
 * ever stopping, segment by segment in the recorded modes, and compares the digest of every
 * segment's logits with the one on the tape. Where the session was resumed by replay, the
 * windows are dropped here, too, and replayed from the recorded start: that is the session as
 * it went. Started by session/verify; prints one JSON object. Exit code 8 unless every digest
 * that the tape has is equal and there is at least one, or no token at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "agentd/model_options.h"
#include "agentd/tape_file.h"
#include "agentd/verbs.h"
#include "base/clock.h"

#define TAPE_FD 3

struct verify_options {
    struct model_options model;
};

static const struct option table[] = {MODEL_OPTIONS(struct verify_options, model)};
static const struct command command = {
    "verify-tape",
    "",
    "computes a tape again and compares (used by the daemon)",
    OPTION_TABLE(table),
    OPTION_TABLE_EMPTY,
    0,
    0};

struct verdict {
    uint64_t segments, without_digest, rows, tokens;
    const struct tape_segment *mismatch; /* the first one, or NULL */
    struct seq_digest got;               /* its digest here */
};

/* Steps until the queued work is done. */
static enum err finish_work(struct engine *m, struct error *e)
{
    struct engine_event events[16];
    size_t n = 0;
    enum err rc;

    for (;;) {
        if ((rc = engine_step(m, events, 16, &n, e)))
            return rc;
        for (size_t i = 0; i < n; i++) {
            if (events[i].kind != ENGINE_DONE)
                continue;
            if (events[i].reason != END_FAILED)
                return OK;
            *e = events[i].error;
            return e->code ? e->code : ERR_GPU;
        }
    }
}

/* ---- computing -------------------------------------------------------------------- */

struct walk {
    struct engine *m;
    struct seq *s;
    const struct tape *t;
    size_t next_mark;
};

/* Ids [from, to) of a segment; of an input segment all that is left of it. */
static enum err run_ids(struct walk *w, const struct segment *seg, uint64_t from, uint64_t to,
                        struct error *e)
{
    const uint32_t *ids = w->t->ids + from;
    struct generate_options g = {.max_tokens = to - from,
                                 .given = ids,
                                 .n_given = to - from,
                                 .end_with_given = true,
                                 .resumes = from > seg->start};
    enum err rc;

    if (seg->kind == SEGMENT_INPUT)
        rc = seq_input(w->s, ids, to - from, seg->mode, e);
    else
        rc = seq_generate(w->s, &g, e);
    return rc ? rc : finish_work(w->m, e);
}

/* Rows of the first n tokens, from one sequence into the regions of another. */
static enum err copy_rows(struct walk *w, const struct state_regions *to, uint64_t n,
                          struct error *e)
{
    const struct state_layout *l = engine_describe(w->m)->layout;
    enum err rc = OK;

    for (uint32_t i = 0; i < l->n_planes && !rc; i++) {
        uint64_t rows = state_rows(&l->planes[i], n);
        if (rows)
            rc = seq_export_rows(w->s, i, 0, rows, to->plane[i], e);
    }
    return rc;
}

/* Goes on at the next mark as the session did. A deep rebuild never starts before a mark, so
 * here it starts at the recorded place. */
static enum err replay(struct walk *w, const struct seq_digest *digest, struct error *e)
{
    uint64_t at = w->t->marks[w->next_mark].at, n_replayed;
    struct tape_view view = w->t->view;
    struct state_regions regions;
    struct seq *s = NULL;
    enum err rc;

    view.n_marks = ++w->next_mark;
    if ((rc = seq_new(w->m, NULL, &s, e)))
        return rc;
    if (!(rc = seq_import_begin(s, at, &regions, e)) && !(rc = copy_rows(w, &regions, at, e)) &&
        !(rc = seq_rebuild(s, &view, RESUME_DEEP, digest, &n_replayed, e)))
        rc = finish_work(w->m, e);
    seq_free(rc ? s : w->s);
    w->s = rc ? w->s : s;
    return rc;
}

/* A mark inside an input segment: its rows are those of the whole segment, and the digest up to
 * there is known only where no row is in it (seq_rebuild). */
static enum err compute(struct walk *w, const struct segment *seg, struct error *e)
{
    uint64_t at = seg->start, end = seg->start + seg->len;
    enum err rc = OK;

    while (!rc && w->next_mark < w->t->view.n_marks && w->t->marks[w->next_mark].at <= end) {
        uint64_t stop = w->t->marks[w->next_mark].at;
        bool inside_input = seg->kind == SEGMENT_INPUT && stop < end;
        if (stop <= seg->start)
            return err_set(e, ERR_FORMAT, "replay mark at %llu", (unsigned long long)stop);
        if (stop > at)
            rc = run_ids(w, seg, at, inside_input ? end : stop, e);
        struct seq_digest d = seq_digest(w->s);
        if (!rc)
            rc = replay(w, inside_input ? NULL : &d, e);
        at = stop;
    }
    return rc || at == end ? rc : run_ids(w, seg, at, end, e);
}

/* ---- comparing -------------------------------------------------------------------- */

static void compare(struct verdict *v, const struct tape_segment *seg,
                    const struct seq_digest *d)
{
    v->segments++;
    v->tokens += seg->seg.len;
    if (!seg->has_digest || d->is_partial) {
        v->without_digest++;
        return;
    }
    v->rows += d->n_rows;
    if (v->mismatch || (d->n_rows == seg->n_rows && !memcmp(d->d, seg->digest, sizeof(d->d))))
        return;
    v->mismatch = seg;
    v->got = *d;
}

static enum err verify(struct engine *m, const struct tape *t, struct verdict *v,
                       struct error *e)
{
    struct walk w = {.m = m, .t = t};
    enum err rc = seq_new(m, NULL, &w.s, e);

    if (rc)
        return rc;
    for (size_t i = 0; i < t->view.n_segments && !rc; i++) {
        const struct tape_segment *seg = &t->tape_segments[i];
        if (seg->seg.start + seg->seg.len > t->view.n_ids)
            rc = err_set(e, ERR_FORMAT, "segment %zu ends past the tape", i);
        else if (seg->seg.len && !(rc = compute(&w, &seg->seg, e))) {
            struct seq_digest d = seq_digest(w.s);
            compare(v, seg, &d);
        }
    }
    seq_free(w.s);
    return rc;
}

/* An open segment ends where the tape does. */
static void close_last(struct tape *t)
{
    size_t n = t->view.n_segments;

    if (n == 0 || !t->tape_segments[n - 1].open)
        return;
    t->tape_segments[n - 1].seg.len = t->view.n_ids - t->tape_segments[n - 1].seg.start;
    t->segments[n - 1] = t->tape_segments[n - 1].seg;
}

/* Nothing to compare with is no proof, but of a tape without a token there is nothing to prove.
 */
static bool is_equal(const struct verdict *v)
{
    return !v->mismatch && (v->rows > 0 || v->tokens == 0);
}

static void print(const struct verdict *v, uint64_t ns)
{
    json_t *j = json_pack("{s:b, s:I, s:I, s:I, s:I, s:f}", "equal", is_equal(v), "segments",
                          (json_int_t)v->segments, "segmentsWithoutDigest",
                          (json_int_t)v->without_digest, "rows", (json_int_t)v->rows, "tokens",
                          (json_int_t)v->tokens, "ms", (double)ns / 1e6);

    if (v->mismatch)
        json_object_set_new(
            j, "firstMismatch",
            json_pack("{s:I, s:I, s:s, s:I, s:I}", "start", (json_int_t)v->mismatch->seg.start,
                      "len", (json_int_t)v->mismatch->seg.len, "kind",
                      v->mismatch->seg.kind == SEGMENT_INPUT ? "input" : "generated", "rows",
                      (json_int_t)v->mismatch->n_rows, "rowsHere", (json_int_t)v->got.n_rows));
    json_dumpf(j, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(j);
}

int verb_verify_tape(int argc, char **argv)
{
    struct verify_options o = {.model.draft_confidence = MODEL_DRAFT_CONFIDENCE};
    struct options parsed;
    AUTO(tape) struct tape tape = {0};
    struct engine *m = NULL;
    struct verdict v = {0};
    struct error e = {0};
    enum err rc = options_parse(&command, argc, (const char *const *)argv, &o, &parsed, &e);

    if (rc) {
        fprintf(stderr, "agentd verify-tape: %s\n", e.msg);
        return EXIT_USAGE;
    }
    if (parsed.help) {
        options_usage(&command, "agentd", stdout);
        return EXIT_DONE;
    }
    if ((rc = tape_file_read(TAPE_FD, &tape, &e)) || (rc = model_open(&o.model, &m, &e)))
        return verb_fail("verify-tape", rc, &e);
    uint64_t t0 = clock_mono_ns(clock_real());
    close_last(&tape);
    rc = verify(m, &tape, &v, &e);
    uint64_t ns = clock_mono_ns(clock_real()) - t0;
    engine_free(m);
    if (rc)
        return verb_fail("verify-tape", rc, &e);
    print(&v, ns);
    return is_equal(&v) ? EXIT_DONE : EXIT_CORRUPT;
}
