#include "engine/chunk.h"

#include <string.h>

#include "engine/ahead.h"

static bool is_given(const struct queued *q)
{
    return q->kind == WORK_GENERATE && q->done < q->n_ids;
}

bool chunk_is_due(const struct model_seq *s)
{
    bool queued =
        s->work.kind == WORK_INPUT || s->work.kind == WORK_REBUILD || is_given(&s->work);
    return (queued && !s->work.cancelled) || ahead_is_due(s);
}

/* ---- before the pass ----------------------------------------------------------------------
 */

/* Whether a segment starts with the work's next chunk. */
static bool is_fresh(const struct model_seq *s)
{
    const struct queued *q = &s->work;
    if (q->kind == WORK_INPUT)
        return s->kv.n_tokens == q->segment.start;
    return q->kind == WORK_GENERATE && !q->resumes && !q->done;
}

static struct run run_of_queued(struct model_seq *s, uint32_t most)
{
    const struct queued *q = &s->work;
    uint64_t left = q->n_ids - q->done;
    uint64_t pos0 = q->kind == WORK_REBUILD ? q->plan.start + q->done : s->kv.n_tokens;
    uint32_t n = left < most ? (uint32_t)left : most;
    struct run r = part_run(s, q->ids + q->done, pos0, n);
    r.is_chunk = true;
    r.n_next = left - n < most ? (uint32_t)(left - n) : most;
    return r;
}

enum err chunk_begin(struct part *p, uint32_t most, struct run *r, struct error *e)
{
    struct model_seq *s = p->s;
    p->is_chunk = true;
    if (s->work.kind == WORK_NONE) {
        p->digest = s->ahead->done ? s->digest : (struct seq_digest){0};
        *r = ahead_run(s, most);
    } else if (s->ahead) {
        *r = ahead_run_above(s, p->history);
        p->digest = (struct seq_digest){0};
    } else {
        p->digest = is_fresh(s) ? (struct seq_digest){0} : s->digest;
        *r = run_of_queued(s, most);
    }
    return r->n ? part_make_room(r, e) : OK;
}

/* ---- after the pass -----------------------------------------------------------------------
 */

static void progress(struct event_list *l, struct model_seq *s)
{
    struct engine_event *ev = event_add(l, s, ENGINE_PROGRESS);
    ev->done = s->work.done;
    ev->total = s->work.n_ids;
}

static void input_moved(struct event_list *l, struct model_seq *s)
{
    struct queued *q = &s->work;
    s->open = q->segment;
    progress(l, s);
    if (q->done < q->n_ids)
        return;
    s->open = (struct open_segment){0};
    event_done(l, s, END_SEGMENT);
}

static void rebuild_moved(struct event_list *l, struct model_seq *s)
{
    struct queued *q = &s->work;
    if (q->done < q->n_ids) {
        progress(l, s);
        return;
    }
    s->kv.n_tokens = q->plan.n_tokens;
    s->importing = 0;
    s->open = q->plan.open;
    memcpy(s->history, q->history, sizeof(s->history));
    progress(l, s);
    event_done(l, s, END_SEGMENT);
}

static void given_moved(struct event_list *l, struct model_seq *s, uint32_t n)
{
    struct queued *q = &s->work;
    q->n_new += n;
    progress(l, s);
    if (q->done < q->n_ids)
        return;
    if (q->end_with_given)
        event_done(l, s, END_SEGMENT);
    else if (q->ids[q->n_ids - 1] == model_of_seq(s)->config.eos_id)
        event_done(l, s, END_EOS);
    else if (q->stops)
        event_done(l, s, END_STOP);
    else if (q->n_new == q->max_tokens)
        event_done(l, s, END_LENGTH);
}

/* Logits of the run's n_rows last tokens, collapsed in h, where somebody looks at them. */
static enum err see_rows(struct model *m, struct part *p, const struct run *r, const float *h,
                         uint32_t n_rows, struct error *e)
{
    bool wanted = !r->replay && (m->digests || m->observer.logits);
    for (uint32_t i = 0, n; wanted && i < n_rows; i += n) {
        n = n_rows - i < LOGIT_ROWS ? n_rows - i : LOGIT_ROWS;
        enum err rc = forward_logits(m, h + (size_t)i * m->config.dim, n, e);
        if (rc)
            return rc;
        for (uint32_t k = 0; k < n; k++)
            part_see_row(m, p, r->pos0 + r->n - n_rows + i + k,
                         m->work->logits + (size_t)k * m->config.vocab_size);
    }
    return OK;
}

static enum err keep_chunk(struct part *p, const struct batch *batch, const struct run *r,
                           struct error *e)
{
    struct model *m = model_of_seq(p->s);
    uint32_t n_rows;
    const float *h = forward_rows(m, batch, r, &n_rows);
    enum err rc = see_rows(m, p, r, h, n_rows, e);
    if (!rc)
        part_keep(p, r, r->n, n_rows ? h + (size_t)(n_rows - 1) * m->config.dim : NULL);
    return rc;
}

void chunk_end(struct event_list *l, struct part *p, const struct batch *batch,
               const struct run *r)
{
    struct model_seq *s = p->s;
    struct queued *q = &s->work;
    struct error e = {0};
    enum err rc = r->n ? keep_chunk(p, batch, r, &e) : OK;
    if (rc) {
        part_fail(l, p, rc, &e);
        return;
    }
    if (q->kind == WORK_NONE) {
        ahead_ran(s, r);
        return;
    }
    uint64_t before = q->done;
    if (s->ahead)
        ahead_close(s);
    else
        q->done += r->n;
    if (q->done == before) /* nothing was ahead: the next step has the first chunk */
        return;
    if (q->kind == WORK_INPUT)
        input_moved(l, s);
    else if (q->kind == WORK_REBUILD)
        rebuild_moved(l, s);
    else
        given_moved(l, s, r->n);
}
