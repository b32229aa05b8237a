#include "evals/fidelity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/clock.h"
#include "evals/arm.h"
#include "evals/stats.h"

#define PROBE 160        /* tokens that follow a resume in the sweep, at least */
#define KEEP_ALL 512     /* rows of the continuation whose logits are all kept */
#define KEEP_STRIDE 32   /* of those behind */
#define NLL_TOKENS 512   /* E3 */
#define MAX_POSITIONS 40 /* those of a command line, and the end */
#define OTHER_CHUNK 61
#define COMPANY_TOKENS 512

struct fidelity {
    const struct fidelity_options *o;
    struct fidelity_tape tape;
    struct arm c, a, s; /* never stopped; C', X, D, B in one engine; S */
    uint64_t positions[MAX_POSITIONS];
    struct arm_state states[MAX_POSITIONS]; /* at those: S's, without S read off C */
    size_t n_positions;
    json_t *checks, *curve, *cycles, *nll, *answers;
    bool equal;
};

static void fidelity_fini(struct fidelity *f)
{
    arm_fini(&f->c);
    arm_fini(&f->a);
    arm_fini(&f->s);
    for (size_t i = 0; i < f->n_positions; i++)
        arm_state_fini(&f->states[i]);
    fidelity_tape_fini(&f->tape);
    json_decref(f->checks);
    json_decref(f->curve);
    json_decref(f->cycles);
    json_decref(f->nll);
    json_decref(f->answers);
}

static bool wants(const struct fidelity *f, char arm)
{
    return strchr(f->o->arms, arm) != NULL;
}

static void say(const struct fidelity *f, const char *what)
{
    if (f->o->progress)
        f->o->progress(f->o->user, what);
}

static double now_ms(void)
{
    return (double)clock_mono_ns(clock_real()) / 1e6;
}

/* ---- where to stop ---------------------------------------------------------------------- */

static void add_position(struct fidelity *f, uint64_t p)
{
    size_t at = 0;
    if (p == 0 || p > f->o->length || f->n_positions == MAX_POSITIONS)
        return;
    while (at < f->n_positions && f->positions[at] < p)
        at++;
    if (at < f->n_positions && f->positions[at] == p)
        return;
    memmove(f->positions + at + 1, f->positions + at,
            (f->n_positions - at) * sizeof *f->positions);
    f->positions[at] = p;
    f->n_positions++;
}

/* E4: residues of 128 and 2, the ends of the window, a block's end, inside a tool result,
 * inside thinking, and the end. */
static void choose_positions(struct fidelity *f)
{
    static const uint64_t residues[] = {0, 1, 63, 127};
    const uint32_t window = engine_describe(f->c.m)->layout->window;
    const struct tape_view *t = &f->tape.view;
    for (size_t i = 0; i < f->o->n_positions; i++)
        add_position(f, f->o->positions[i]);
    if (f->o->n_positions) {
        add_position(f, f->o->length);
        return;
    }
    for (size_t i = 0; i < sizeof residues / sizeof *residues; i++)
        add_position(f, (f->o->length - 128) / 128 * 128 + residues[i]);
    add_position(f, 1);
    add_position(f, window - 1);
    add_position(f, f->o->length / 2048 * 2048);
    add_position(f, t->segments[1].start + t->segments[1].len / 2); /* thinking */
    if (t->n_segments > 4)
        add_position(f, t->segments[t->n_segments - 2].start +
                            t->segments[t->n_segments - 2].len / 2); /* tool result */
    add_position(f, f->o->length);
}

/* Far enough that rows are computed by all layers again. */
static uint64_t probe_end(const struct fidelity *f, uint64_t p)
{
    const struct tape_view *t = &f->tape.view;
    uint64_t stop = p + PROBE;
    for (size_t i = 0; i < t->n_segments; i++) {
        const uint64_t end = t->segments[i].start + t->segments[i].len;
        if (t->segments[i].start <= p && p < end && t->segments[i].kind == SEGMENT_INPUT &&
            stop < end + PROBE / 4)
            stop = end + PROBE / 4;
    }
    return stop < t->n_ids ? stop : t->n_ids;
}

/* ---- checks ----------------------------------------------------------------------------- */

static enum err check(struct fidelity *f, const struct arm *a, const char *arm,
                      const char *what, uint64_t from, uint64_t to, uint64_t n_replayed,
                      double ms, struct error *e)
{
    const struct arm_difference d = arm_compare(a, &f->c, from, to);
    const bool equal = d.n_rows > 0 && !d.n_missing && !d.n_different;
    json_t *j =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:b, s:I, s:f}", "arm", arm, "what", what,
                  "position", (json_int_t)from, "rows", (json_int_t)d.n_rows, "different",
                  (json_int_t)d.n_different, "missing", (json_int_t)d.n_missing, "equal", equal,
                  "replayed", (json_int_t)n_replayed, "ms", ms);
    if (j && d.n_different)
        json_object_set_new(j, "first", json_integer((json_int_t)d.first));
    f->equal = f->equal && equal;
    return json_array_append_new(f->checks, j) ? err_set(e, ERR_NOMEM, "no memory for a check")
                                               : OK;
}

/* Planes and tip at the end of the tape. */
static enum err check_state(struct fidelity *f, const struct arm *a, const char *arm,
                            struct error *e)
{
    struct arm_state mine = {0}, reference = {0};
    uint8_t x[HASH_BYTES], y[HASH_BYTES];
    enum err rc = arm_export(a, &mine, e);
    if (!rc)
        rc = arm_export(&f->c, &reference, e);
    if (!rc) {
        arm_state_hash(&mine, x);
        arm_state_hash(&reference, y);
        const bool equal = !memcmp(x, y, sizeof x);
        f->equal = f->equal && equal;
        if (json_array_append_new(
                f->checks, json_pack("{s:s, s:s, s:I, s:i, s:i, s:i, s:b, s:i, s:f}", "arm",
                                     arm, "what", "planes and tip at the end", "position",
                                     (json_int_t)mine.n_tokens, "rows", 0, "different", !equal,
                                     "missing", 0, "equal", equal, "replayed", 0, "ms", 0.0)))
            rc = err_set(e, ERR_NOMEM, "no memory for a check");
    }
    arm_state_fini(&mine);
    arm_state_fini(&reference);
    return rc;
}

/* ---- whole passes ----------------------------------------------------------------------- */

static struct arm_keep keep(const struct fidelity *f)
{
    return (struct arm_keep){.first = f->o->length,
                             .n = f->o->continuation,
                             .n_all = KEEP_ALL,
                             .stride = KEEP_STRIDE};
}

/* Goes to each position and copies the state there; nothing leaves the engine. */
static enum err run_and_export(struct fidelity *f, struct arm *a, struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < f->n_positions && !rc; i++) {
        rc = arm_run(a, f->positions[i], e);
        if (!rc)
            rc = arm_export(a, &f->states[i], e);
    }
    return rc ? rc : arm_run(a, UINT64_MAX, e);
}

/* The states that X, D and B resume are S's, which has to be equal to C; where S is not wanted
 * they are read off C on its way, and a whole pass is saved. */
static enum err never_stopped(struct fidelity *f, struct error *e)
{
    const struct arm_keep k = keep(f);
    enum err rc = arm_open(&f->c, f->o->model, &f->o->engine, &f->tape.view, &k, e);
    if (rc)
        return rc;
    f->c.wake_fd = f->o->wake_fd;
    choose_positions(f);
    return strpbrk(f->o->arms, "XDB") && !wants(f, 'S') ? run_and_export(f, &f->c, e)
                                                        : arm_run(&f->c, UINT64_MAX, e);
}

/* C' and P: the whole tape once more. */
static enum err whole_pass(struct fidelity *f, struct arm *a, const char *arm, const char *what,
                           struct error *e)
{
    const double t0 = now_ms();
    enum err rc = arm_reset(a, e);
    if (!rc)
        rc = arm_run(a, UINT64_MAX, e);
    if (!rc)
        rc = check(f, a, arm, what, 0, f->tape.view.n_ids, 0, now_ms() - t0, e);
    return rc ? rc : check_state(f, a, arm, e);
}

/* S: also where the states to resume from come out. */
static enum err other_company(struct fidelity *f, struct error *e)
{
    struct engine_options o = f->o->engine;
    const struct arm_keep k = {.first = 0, .n = 0, .n_all = 0, .stride = 1};
    const double t0 = now_ms();
    o.chunk_tokens = OTHER_CHUNK;
    o.n_threads = 1;
    enum err rc = arm_open(&f->s, f->o->model, &o, &f->tape.view, &k, e);
    f->s.wake_fd = f->o->wake_fd;
    if (!rc)
        rc = arm_join(&f->s, f->tape.ids + 7,
                      f->o->length < COMPANY_TOKENS ? f->o->length / 2 : COMPANY_TOKENS, e);
    if (!rc)
        rc = run_and_export(f, &f->s, e);
    if (!rc)
        rc =
            check(f, &f->s, "S", "chunks of 61, one thread, company; stopped at every position",
                  0, f->tape.view.n_ids, 0, now_ms() - t0, e);
    return rc ? rc : check_state(f, &f->s, "S", e);
}

/* ---- resumes ---------------------------------------------------------------------------- */

static enum err sweep(struct fidelity *f, enum resume_mode mode, const char *arm,
                      struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < f->n_positions && !rc; i++) {
        const uint64_t p = f->positions[i];
        const uint64_t stop = p == f->o->length ? f->tape.view.n_ids : probe_end(f, p);
        uint64_t n_replayed = 0;
        const double t0 = now_ms();
        rc = arm_resume(&f->a, &f->states[i], mode, &n_replayed, e);
        const double ms = now_ms() - t0;
        if (!rc)
            rc = arm_run(&f->a, stop, e);
        if (!rc)
            rc = check(f, &f->a, arm, resume_mode_name(mode), p, stop, n_replayed, ms, e);
        if (!rc && stop == f->tape.view.n_ids && p == f->o->length)
            rc = check_state(f, &f->a, arm, e);
    }
    return rc;
}

/* E3: the difference in NLL of the continuation, token by token. */
static enum err note_nll(struct fidelity *f, const char *name, struct error *e)
{
    const uint64_t from = f->o->length;
    double v[NLL_TOKENS] = {0}, sum = 0;
    struct stats_interval i = {0, 0, 0};
    size_t n = 0;
    for (uint64_t p = from; p + 1 < f->tape.view.n_ids && n < NLL_TOKENS; p++, n++) {
        v[n] = f->a.nll[p] - f->c.nll[p];
        sum += f->c.nll[p];
    }
    enum err rc = stats_mean(v, n, 0.95, &i, e);
    if (rc)
        return rc;
    bool zero = true;
    for (size_t k = 0; k < n; k++)
        zero = zero && fpclassify(v[k]) == FP_ZERO;
    if (!isfinite(i.mean) || !isfinite(sum))
        return err_set(e, ERR_CORRUPT, "NLL of the continuation, %s: not every row was seen",
                       name);
    if (json_object_set_new(f->nll, name,
                            json_pack("{s:I, s:f, s:f, s:f, s:f, s:b}", "n", (json_int_t)n,
                                      "reference", sum / (double)n, "difference", i.mean, "low",
                                      i.low, "high", i.high, "zero", zero)))
        return err_set(e, ERR_NOMEM, "no memory for results");
    if (!strcmp(name, "exact"))
        f->equal = f->equal && zero;
    return OK;
}

struct bin {
    uint64_t n, n_same, n_near, n_real;
    double kl, kl_max, diff, top20;
};

static enum err end_bin(struct fidelity *f, const struct bin *b, uint64_t from, uint64_t to,
                        struct error *e)
{
    const double n = (double)b->n;
    if (!b->n)
        return OK;
    return json_array_append_new(
               f->curve,
               json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "from",
                         (json_int_t)from, "to", (json_int_t)to, "n", (json_int_t)b->n, "kl",
                         b->kl / n, "kl_max", b->kl_max, "max_diff", b->diff, "top1",
                         (double)b->n_same / n, "top20", b->top20 / n, "near_ties",
                         (json_int_t)b->n_near, "real", (json_int_t)b->n_real))
               ? err_set(e, ERR_NOMEM, "no memory for a curve")
               : OK;
}

/* By tokens since the resume: 1, 2-3, 4-7, ... A row whose first token differs is a near tie
 * when the reference's first two lie closer than logits moved. */
static enum err draw_curve(struct fidelity *f, struct error *e)
{
    enum err rc = OK;
    for (uint64_t from = 1; from <= f->o->continuation && !rc; from *= 2) {
        struct bin b = {0};
        uint64_t to = 2 * from - 1 < f->o->continuation ? 2 * from - 1 : f->o->continuation;
        for (uint64_t i = from; i <= to; i++) {
            const float *x = arm_logits(&f->c, f->o->length + i - 1);
            const float *y = arm_logits(&f->a, f->o->length + i - 1);
            struct arm_distance d;
            if (!x || !y)
                continue;
            arm_measure(x, y, f->c.vocab, &d);
            b.n++;
            b.n_same += d.top1;
            b.n_near += !d.top1 && d.gap <= 2 * d.max_diff;
            b.n_real += !d.top1 && d.gap > 2 * d.max_diff;
            b.kl += d.kl;
            b.kl_max = d.kl > b.kl_max ? d.kl : b.kl_max;
            b.diff = d.max_diff > b.diff ? d.max_diff : b.diff;
            b.top20 += d.top20;
        }
        rc = end_bin(f, &b, from, to, e);
    }
    return rc;
}

static enum err bounded(struct fidelity *f, struct error *e)
{
    uint64_t n_replayed;
    const size_t last = f->n_positions - 1;
    enum err rc = arm_resume(&f->a, &f->states[last], RESUME_REPLAY, &n_replayed, e);
    if (!rc)
        rc = arm_run(&f->a, UINT64_MAX, e);
    if (!rc)
        rc = note_nll(f, "bounded", e);
    if (rc)
        return rc;
    if (json_object_set_new(f->nll, "replayed", json_integer((json_int_t)n_replayed)))
        return err_set(e, ERR_NOMEM, "no memory for results");
    return draw_curve(f, e);
}

/* The mean KL of rows [from, to), which both arms have kept. */
static enum err mean_kl(const struct fidelity *f, uint64_t from, uint64_t to, double *out,
                        struct error *e)
{
    *out = 0;
    for (uint64_t p = from; p < to; p++) {
        const float *x = arm_logits(&f->c, p), *y = arm_logits(&f->a, p);
        struct arm_distance d;
        if (!x || !y)
            return err_set(e, ERR_CORRUPT, "row %llu of the continuation was not seen",
                           (unsigned long long)p);
        arm_measure(x, y, f->c.vocab, &d);
        *out += d.kl / (double)(to - from);
    }
    return OK;
}

/* E7: stopped and resumed n times along the continuation, `step` tokens apart. */
static enum err cycle(struct fidelity *f, enum resume_mode mode, struct error *e)
{
    const uint64_t rows = f->o->continuation < KEEP_ALL ? f->o->continuation : KEEP_ALL;
    const uint64_t step = rows / f->o->n_cycles > 0 ? rows / f->o->n_cycles : 1;
    const struct arm_state *from = &f->states[f->n_positions - 1];
    struct arm_state st = {0};
    uint64_t n_replayed, n_all = 0, p = f->o->length;
    enum err rc = OK;
    for (uint32_t i = 1; i <= f->o->n_cycles && p + step <= f->o->length + rows && !rc; i++) {
        struct arm_state next = {0};
        double kl = 0;
        rc = arm_resume(&f->a, i == 1 ? from : &st, mode, &n_replayed, e);
        n_all += rc ? 0 : n_replayed;
        if (!rc)
            rc = arm_run(&f->a, p + step, e);
        if (!rc && mode != RESUME_REPLAY && (i == 1 || i == 10 || i == f->o->n_cycles))
            rc = check(f, &f->a, mode == RESUME_EXACT ? "X" : "D",
                       i == 1    ? "1 cycle"
                       : i == 10 ? "10 cycles"
                                 : "all cycles",
                       p, p + step, n_all, 0, e);
        if (!rc && mode == RESUME_REPLAY)
            rc = mean_kl(f, p, p + step, &kl, e);
        if (!rc && mode == RESUME_REPLAY &&
            json_array_append_new(f->cycles,
                                  json_pack("{s:i, s:f}", "cycle", (int)i, "kl", kl)))
            rc = err_set(e, ERR_NOMEM, "no memory for a curve");
        if (!rc)
            rc = arm_export(&f->a, &next, e);
        arm_state_fini(&st);
        st = next;
        p += step;
    }
    arm_state_fini(&st);
    return rc;
}

/* ---- all of it -------------------------------------------------------------------------- */

static enum err pack_result(struct fidelity *f, json_t **out, struct error *e)
{
    size_t i;
    json_t *c;
    json_array_foreach(f->checks, i, c)
        f->equal = f->equal && json_is_true(json_object_get(c, "equal"));
    *out = json_pack("{s:I, s:I, s:s?, s:O, s:O, s:O, s:O, s:O?, s:b}", "length",
                     (json_int_t)f->o->length, "continuation", (json_int_t)f->o->continuation,
                     "numerics", f->c.m ? engine_describe(f->c.m)->layout->numerics : NULL,
                     "checks", f->checks, "nll", f->nll, "curve", f->curve, "cycles", f->cycles,
                     "answers", f->answers, "equal", f->equal);
    return *out ? OK : err_set(e, ERR_NOMEM, "no memory for results");
}

static enum err so_far(struct fidelity *f, struct error *e)
{
    json_auto_t *result = NULL;
    if (!f->o->so_far)
        return OK;
    enum err rc = pack_result(f, &result, e);
    if (!rc && json_object_set_new(result, "unfinished", json_true()))
        rc = err_set(e, ERR_NOMEM, "no memory for results");
    return rc ? rc : f->o->so_far(f->o->user, result, e);
}

static enum err resumes(struct fidelity *f, struct error *e)
{
    enum err rc = OK;
    if (wants(f, 'X')) {
        say(f, "X: exact resume");
        rc = sweep(f, RESUME_EXACT, "X", e);
        if (!rc)
            rc = note_nll(f, "exact", e);
        if (!rc && f->o->n_cycles)
            rc = cycle(f, RESUME_EXACT, e);
    }
    if (!rc && wants(f, 'D')) {
        say(f, "D: deep resume");
        rc = sweep(f, RESUME_DEEP, "D", e);
    }
    if (!rc && wants(f, 'B')) {
        say(f, "B: bounded replay");
        rc = bounded(f, e);
        if (!rc && f->o->n_cycles)
            rc = cycle(f, RESUME_REPLAY, e);
    }
    if (!rc && f->o->n_probes && strpbrk(f->o->arms, "XDB")) {
        say(f, "X, D, B: what the model answers");
        if ((rc = so_far(f, e)))
            return rc;
        rc = fidelity_answers(f->o, engine_describe(f->c.m)->layout, f->checks, &f->answers, e);
    }
    return rc;
}

static enum err on_the_engine(struct fidelity *f, struct error *e)
{
    const struct arm_keep k = keep(f);
    say(f, "C: never stopped");
    enum err rc = never_stopped(f, e);
    if (rc)
        return rc;
    rc = arm_open(&f->a, f->o->model, &f->o->engine, &f->tape.view, &k, e);
    f->a.wake_fd = f->o->wake_fd;
    if (!rc && wants(f, 'c')) {
        say(f, "C': the same again");
        rc = whole_pass(f, &f->a, "C'", "the same again", e);
    }
    if (!rc && wants(f, 'S')) {
        say(f, "S: other chunks, threads, company");
        rc = other_company(f, e);
    }
    if (!rc && wants(f, 'P')) {
        say(f, "P: cold");
        rc = whole_pass(f, &f->a, "P", "cold: from the beginning, in an engine that ran before",
                        e);
    }
    return rc ? rc : resumes(f, e);
}

/* A daemon's arms have a never-stopped process of their own (session/verify): without others
 * nothing has to be computed here. */
static enum err all_arms(struct fidelity *f, struct error *e)
{
    enum err rc = strpbrk(f->o->arms, "cSPXDB") ? on_the_engine(f, e) : OK;
    if (!rc && strpbrk(f->o->arms, "FKI")) {
        say(f, "F, K, I: a daemon");
        if ((rc = so_far(f, e)))
            return rc;
        rc = fidelity_daemon(f->o, &f->tape, f->checks, e);
    }
    return rc;
}

static enum err check_options(const struct fidelity_options *o, struct error *e)
{
    const uint64_t rows = o->continuation < KEEP_ALL ? o->continuation : KEEP_ALL;
    if (o->length < 1024 || o->continuation < 128)
        return err_set(e, ERR_INVAL, "want at least 1024 tokens and 128 of continuation");
    if (o->n_cycles > rows)
        return err_set(e, ERR_INVAL, "%u cycles do not fit in %llu tokens", o->n_cycles,
                       (unsigned long long)rows);
    if (o->n_positions >= MAX_POSITIONS)
        return err_set(e, ERR_LIMIT, "over %d positions", MAX_POSITIONS - 1);
    for (size_t i = 0; i < o->n_positions; i++)
        if (!o->positions[i] || o->positions[i] > o->length)
            return err_set(e, ERR_INVAL, "position %llu: want 1..%llu",
                           (unsigned long long)o->positions[i], (unsigned long long)o->length);
    return OK;
}

enum err fidelity_run(const struct fidelity_options *o, json_t **out, bool *equal,
                      struct error *e)
{
    AUTO(fidelity)
    struct fidelity f = {.o = o,
                         .equal = true,
                         .checks = json_array(),
                         .curve = json_array(),
                         .cycles = json_array(),
                         .nll = json_object()};
    enum err rc = check_options(o, e);
    if (!rc)
        rc = fidelity_tape_make(&f.tape, o->model, o->length, o->continuation, o->seed, e);
    if (!rc)
        rc = all_arms(&f, e);
    if (!rc)
        rc = pack_result(&f, out, e);
    if (!rc)
        *equal = f.equal;
    return rc;
}
