/* agentd verify-tape: computes a tape (descriptor 3, agentd/tape_file.h) from token 0 without
 * ever stopping, segment by segment in the recorded modes, and compares the digest of every
 * segment's logits with the one on the tape. Started by session/verify; prints one JSON object.
 */
#include <stdio.h>
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

static enum err compute(struct engine *m, struct seq *s, const struct tape *t,
                        const struct tape_segment *seg, struct error *e)
{
    const uint32_t *ids = t->ids + seg->seg.start;
    uint64_t n = seg->seg.len;
    struct generate_options g = {
        .max_tokens = n, .given = ids, .n_given = n, .end_with_given = true};
    enum err rc = seg->seg.kind == SEGMENT_INPUT ? seq_input(s, ids, n, seg->seg.mode, e)
                                                 : seq_generate(s, &g, e);

    return rc ? rc : finish_work(m, e);
}

static void compare(struct verdict *v, const struct tape_segment *seg,
                    const struct seq_digest *d)
{
    v->segments++;
    v->tokens += seg->seg.len;
    if (!seg->has_digest) {
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
    struct seq *s = NULL;
    enum err rc;

    if (t->view.n_marks)
        return err_set(
            e, ERR_UNSUPPORTED,
            "the session was resumed by replay: cannot be computed again as it went");
    if ((rc = seq_new(m, NULL, &s, e)))
        return rc;
    for (size_t i = 0; i < t->view.n_segments && !rc; i++) {
        struct tape_segment *seg = &t->tape_segments[i];
        if (seg->open)
            seg->seg.len = t->view.n_ids - seg->seg.start;
        if (seg->seg.start + seg->seg.len > t->view.n_ids)
            rc = err_set(e, ERR_FORMAT, "segment %zu ends past the tape", i);
        else if (seg->seg.len && !(rc = compute(m, s, t, seg, e))) {
            struct seq_digest d = seq_digest(s);
            compare(v, seg, &d);
        }
    }
    seq_free(s);
    return rc;
}

static void print(const struct verdict *v, uint64_t ns)
{
    bool equal = !v->mismatch && v->segments > v->without_digest;
    json_t *j = json_pack("{s:b, s:I, s:I, s:I, s:I, s:f}", "equal", equal, "segments",
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
    struct verify_options o = {0};
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
    rc = verify(m, &tape, &v, &e);
    uint64_t ns = clock_mono_ns(clock_real()) - t0;
    engine_free(m);
    if (rc)
        return verb_fail("verify-tape", rc, &e);
    print(&v, ns);
    return v.mismatch ? EXIT_CORRUPT : EXIT_DONE;
}
