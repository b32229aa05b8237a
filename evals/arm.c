#include "evals/arm.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "engine/observe.h"

#define TOP 20

static uint64_t n_kept(const struct arm_keep *k)
{
    return k->n <= k->n_all ? k->n : k->n_all + (k->n - k->n_all + k->stride - 1) / k->stride;
}

/* Index among the kept rows; UINT64_MAX: not kept. */
static uint64_t kept_index(const struct arm_keep *k, uint64_t position)
{
    const uint64_t i = position - k->first;
    if (position < k->first || i >= k->n)
        return UINT64_MAX;
    if (i < k->n_all)
        return i;
    return (i - k->n_all) % k->stride ? UINT64_MAX : k->n_all + (i - k->n_all) / k->stride;
}

static double neg_log_prob(const float *logits, uint32_t n, uint32_t id)
{
    double top = (double)logits[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        top = (double)logits[i] > top ? (double)logits[i] : top;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - top);
    return log(sum) + top - (double)logits[id];
}

static void on_logits(void *user, struct seq *s, uint64_t position, const float *logits)
{
    struct arm *a = user;
    struct hash h;
    if (s != a->s || position >= a->n_rows)
        return;
    hash_init(&h, NULL, HASH_TAG_BYTES);
    hash_add(&h, logits, a->vocab * sizeof *logits);
    hash_final(&h, a->rows[position].digest);
    a->rows[position].seen = true;
    if (position + 1 < a->tape->n_ids)
        a->nll[position] = neg_log_prob(logits, a->vocab, a->tape->ids[position + 1]);
    const uint64_t k = kept_index(&a->keep, position);
    if (k == UINT64_MAX)
        return;
    memcpy(a->kept + k * a->vocab, logits, a->vocab * sizeof *logits);
    a->has[k] = true;
}

static void watch(struct arm *a, bool on)
{
    const struct observer o = {.user = a, .logits = on_logits};
    engine_observe(a->m, on ? &o : NULL);
}

enum err arm_fingerprint(const char *model, const struct engine_options *o,
                         char out[ARM_FINGERPRINT_CHARS], struct error *e)
{
    struct engine_options hashed = *o;
    struct engine *m = NULL;
    hashed.no_weight_digest = false;
    enum err rc = engine_open_model(&m, model, &hashed, e);
    if (!rc)
        hex_encode(engine_describe(m)->layout->fingerprint, STATE_KEY_BYTES, out);
    engine_free(m);
    return rc;
}

enum err arm_open(struct arm *a, const char *model, const struct engine_options *o,
                  const struct tape_view *tape, const struct arm_keep *keep, struct error *e)
{
    *a = (struct arm){.tape = tape, .n_rows = tape->n_ids, .keep = *keep};
    enum err rc = engine_open_model(&a->m, model, o, e);
    if (rc)
        return rc;
    a->vocab = engine_describe(a->m)->vocab_size;
    const uint64_t n = n_kept(keep);
    a->rows = calloc(a->n_rows, sizeof *a->rows);
    a->nll = calloc(a->n_rows, sizeof *a->nll);
    a->kept = calloc(n * a->vocab + 1, sizeof *a->kept);
    a->has = calloc(n + 1, sizeof *a->has);
    if (!a->rows || !a->nll || !a->kept || !a->has)
        return err_set(e, ERR_NOMEM, "no memory for %llu rows", (unsigned long long)n);
    return arm_reset(a, e);
}

void arm_fini(struct arm *a)
{
    seq_free(a->s);
    seq_free(a->company);
    engine_free(a->m);
    free(a->rows);
    free(a->nll);
    free(a->kept);
    free(a->has);
    *a = (struct arm){.m = NULL};
}

enum err arm_reset(struct arm *a, struct error *e)
{
    seq_free(a->s);
    a->s = NULL;
    memset(a->rows, 0, a->n_rows * sizeof *a->rows);
    memset(a->has, 0, n_kept(&a->keep) * sizeof *a->has);
    for (uint64_t i = 0; i < a->n_rows; i++)
        a->nll[i] = NAN;
    watch(a, true);
    return seq_new(a->m, NULL, &a->s, e);
}

/* ---- running ---------------------------------------------------------------------------- */

/* Steps until the watched sequence has no work left or stands at `stop`. What it samples is
 * appended to sampled, unless that is NULL. */
static enum err step_until(struct arm *a, uint64_t stop, struct ids *sampled, struct error *e)
{
    while (engine_has_work(a->m)) {
        struct pollfd wake = {.fd = a->wake_fd > 0 ? a->wake_fd : -1, .events = POLLIN};
        if (poll(&wake, 1, 0) > 0)
            return err_set(e, ERR_CANCELLED, "interrupted");
        struct engine_event events[8];
        size_t n = 0;
        const uint64_t left = stop - seq_position(a->s);
        if (!left)
            seq_cancel(a->s);
        engine_limit_chunk(a->m, left < UINT32_MAX ? (uint32_t)left : 0);
        enum err rc = engine_step(a->m, events, 8, &n, e);
        bool done = false;
        for (size_t i = 0; i < n && !rc; i++) {
            if (events[i].kind == ENGINE_TOKENS && events[i].seq == a->s && sampled)
                rc = ids_add_all(sampled, events[i].ids, events[i].n_ids, e);
            if (events[i].kind != ENGINE_DONE)
                continue;
            done = done || events[i].seq == a->s;
            if (events[i].reason == END_FAILED) {
                rc = events[i].error.code;
                if (e)
                    *e = events[i].error;
            }
        }
        if (rc || done)
            return rc;
    }
    engine_limit_chunk(a->m, 0);
    return OK;
}

static enum err queue(struct arm *a, const struct segment *g, struct error *e)
{
    const uint64_t at = seq_position(a->s), n = g->start + g->len - at;
    const struct generate_options o = {.max_tokens = n,
                                       .given = a->tape->ids + at,
                                       .n_given = n,
                                       .end_with_given = true,
                                       .resumes = at > g->start};
    return g->kind == SEGMENT_INPUT ? seq_input(a->s, a->tape->ids + at, n, g->mode, e)
                                    : seq_generate(a->s, &o, e);
}

enum err arm_run(struct arm *a, uint64_t stop, struct error *e)
{
    for (size_t i = 0; i < a->tape->n_segments; i++) {
        const struct segment *g = &a->tape->segments[i];
        const uint64_t at = seq_position(a->s), end = g->start + g->len;
        if (at >= end || at >= stop)
            continue;
        enum err rc = queue(a, g, e);
        if (!rc)
            rc = step_until(a, stop < end ? stop : UINT64_MAX, NULL, e);
        if (rc)
            return err_wrap(e, rc, "segment at %llu", (unsigned long long)g->start);
    }
    engine_limit_chunk(a->m, 0);
    return OK;
}

enum err arm_input(struct arm *a, const uint32_t *ids, uint64_t n, enum prefill_mode mode,
                   struct error *e)
{
    enum err rc = seq_input(a->s, ids, n, mode, e);
    return rc ? rc : step_until(a, UINT64_MAX, NULL, e);
}

enum err arm_generate(struct arm *a, const struct generate_options *o, struct ids *out,
                      struct error *e)
{
    const uint64_t at = seq_position(a->s);
    const size_t had = out->n;
    enum err rc = seq_generate(a->s, o, e);
    if (!rc)
        rc = step_until(a, UINT64_MAX, out, e);
    if (!rc && out->n - had != seq_position(a->s) - at)
        rc = err_set(e, ERR_CORRUPT, "%zu ids were sampled for %llu tokens", out->n - had,
                     (unsigned long long)(seq_position(a->s) - at));
    return rc;
}

enum err arm_join(struct arm *a, const uint32_t *ids, uint64_t n, struct error *e)
{
    enum err rc = seq_new(a->m, NULL, &a->company, e);
    return rc ? rc : seq_input(a->company, ids, n, PREFILL_CED, e);
}

/* ---- state ------------------------------------------------------------------------------ */

enum err arm_export(const struct arm *a, struct arm_state *out, struct error *e)
{
    const struct state_layout *l = engine_describe(a->m)->layout;
    *out = (struct arm_state){
        .n_tokens = seq_position(a->s), .digest = seq_digest(a->s), .tip_bytes = l->tip_bytes};
    for (uint32_t i = 0; i < l->n_planes; i++) {
        const uint64_t n = state_rows(&l->planes[i], out->n_tokens);
        out->plane_bytes[i] = n * l->planes[i].row_bytes;
        out->n_planes = i + 1;
        if (!(out->plane[i] = malloc(out->plane_bytes[i] + 1)))
            return err_set(e, ERR_NOMEM, "no memory for plane %s", l->planes[i].name);
        enum err rc = seq_export_rows(a->s, i, 0, n, out->plane[i], e);
        if (rc)
            return rc;
    }
    if (!(out->tip = malloc(out->tip_bytes + 1)))
        return err_set(e, ERR_NOMEM, "no memory for a tip");
    return seq_export_tip(a->s, out->tip, e);
}

void arm_state_fini(struct arm_state *st)
{
    for (uint32_t i = 0; i < st->n_planes; i++)
        free(st->plane[i]);
    free(st->tip);
    *st = (struct arm_state){.n_tokens = 0};
}

enum err arm_resume(struct arm *a, const struct arm_state *st, enum resume_mode mode,
                    uint64_t *n_replayed, struct error *e)
{
    struct state_regions regions;
    *n_replayed = 0;
    enum err rc = arm_reset(a, e);
    if (rc || !st->n_tokens)
        return rc;
    rc = seq_import_begin(a->s, st->n_tokens, &regions, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < st->n_planes; i++)
        memcpy(regions.plane[i], st->plane[i], st->plane_bytes[i]);
    if (mode == RESUME_EXACT)
        return seq_import_tip(a->s, st->tip, st->tip_bytes, &st->digest, e);
    rc = seq_rebuild(a->s, a->tape, mode, &st->digest, n_replayed, e);
    if (rc)
        return rc;
    watch(a, false);
    rc = step_until(a, UINT64_MAX, NULL, e);
    watch(a, true);
    return rc;
}

void arm_state_hash(const struct arm_state *st, uint8_t out[HASH_BYTES])
{
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    for (uint32_t i = 0; i < st->n_planes; i++)
        hash_field(&h, st->plane[i], st->plane_bytes[i]);
    hash_field(&h, st->tip, st->tip_bytes);
    hash_final(&h, out);
}

/* ---- comparing -------------------------------------------------------------------------- */

const float *arm_logits(const struct arm *a, uint64_t position)
{
    const uint64_t k = kept_index(&a->keep, position);
    return k == UINT64_MAX || !a->has[k] ? NULL : a->kept + k * a->vocab;
}

struct arm_difference arm_compare(const struct arm *a, const struct arm *reference,
                                  uint64_t from, uint64_t to)
{
    struct arm_difference d = {.first = UINT64_MAX};
    for (uint64_t p = from; p < to && p < a->tape->n_ids; p++) {
        const struct arm_row *x = &reference->rows[p], *y = &a->rows[p];
        d.n_rows += x->seen;
        d.n_missing += x->seen && !y->seen;
        if (y->seen && (!x->seen || memcmp(x->digest, y->digest, HASH_TAG_BYTES))) {
            d.first = d.n_different ? d.first : p;
            d.n_different++;
        }
    }
    return d;
}

/* The n_top largest, largest first; the lower id of equals. */
static void find_top(const float *v, uint32_t n, uint32_t *top, uint32_t n_top)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = have;
        while (at > 0 && v[i] > v[top[at - 1]])
            at--;
        if (at == n_top)
            continue;
        have += have < n_top;
        memmove(top + at + 1, top + at, (have - at - 1) * sizeof *top);
        top[at] = i;
    }
}

static double log_sum(const float *v, uint32_t n)
{
    double top = (double)v[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        top = (double)v[i] > top ? (double)v[i] : top;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)v[i] - top);
    return top + log(sum);
}

void arm_measure(const float *reference, const float *other, uint32_t n,
                 struct arm_distance *out)
{
    const double x = log_sum(reference, n), y = log_sum(other, n);
    uint32_t a[TOP], b[TOP], n_top = n < TOP ? n : TOP, shared = 0;
    *out = (struct arm_distance){.kl = 0};
    for (uint32_t i = 0; i < n; i++) {
        const double p = (double)reference[i] - x, q = (double)other[i] - y;
        const double diff = fabs((double)reference[i] - (double)other[i]);
        out->kl += exp(p) * (p - q);
        out->max_diff = diff > out->max_diff ? diff : out->max_diff;
    }
    find_top(reference, n, a, n_top);
    find_top(other, n, b, n_top);
    for (uint32_t i = 0; i < n_top; i++)
        for (uint32_t k = 0; k < n_top; k++)
            shared += a[i] == b[k];
    out->top1 = a[0] == b[0];
    out->top20 = (double)shared / n_top;
    out->gap = n_top > 1 ? (double)reference[a[0]] - (double)reference[a[1]] : 0;
}
