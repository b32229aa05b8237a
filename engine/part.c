#include "engine/part.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/ahead.h"
#include "engine/forward_engram.h"

/* ---- events -------------------------------------------------------------------------------
 */

struct engine_event *event_add(struct event_list *l, struct model_seq *s,
                               enum engine_event_kind kind)
{
    struct engine_event *ev = &l->events[l->n++];
    *ev = (struct engine_event){.seq = &s->seq,
                                .user = s->seq.user,
                                .kind = kind,
                                .position = model_seq_position(&s->seq)};
    return ev;
}

void event_done(struct event_list *l, struct model_seq *s, enum end_reason reason)
{
    seq_drop_work(s);
    event_add(l, s, ENGINE_DONE)->reason = reason;
}

void event_failed(struct event_list *l, struct model_seq *s, enum err rc, const struct error *e)
{
    seq_drop_work(s);
    s->failed = true;
    struct engine_event *ev = event_add(l, s, ENGINE_DONE);
    ev->reason = END_FAILED;
    ev->error = *e;
    ev->error.code = rc;
}

/* ---- runs ---------------------------------------------------------------------------------
 */

static uint32_t *history_of(struct model_seq *s)
{
    return s->work.kind == WORK_REBUILD ? s->work.history : s->history;
}

struct run part_run(struct model_seq *s, const uint32_t *ids, uint64_t pos0, uint32_t n)
{
    struct run r = {.seq = &s->seq,
                    .kv = &s->kv,
                    .ids = ids,
                    .history = forward_engram_history(model_of_seq(s), history_of(s)),
                    .pos0 = pos0,
                    .n = n,
                    .replay = s->work.kind == WORK_REBUILD,
                    .rows = s->importing};
    memcpy(r.from, s->work.from, sizeof(r.from));
    memcpy(r.lo, s->work.lo, sizeof(r.lo));
    return r;
}

enum err part_make_room(const struct run *r, struct error *e)
{
    bool adds_rows = !r->replay && !r->held;
    assert(r->n && (!adds_rows || r->pos0 == r->kv->n_tokens));
    return adds_rows ? kv_make_room(r->kv, r->kv->n_tokens, r->n, e) : OK;
}

static void digest_row(struct seq_digest *d, uint64_t position, const float *logits, uint32_t n)
{
    static_assert(sizeof(float) == 4 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
                  "logits are hashed as they lie in memory");
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    hash_add(&h, d->d, sizeof(d->d));
    hash_u64le(&h, position);
    hash_add(&h, logits, n * sizeof(*logits));
    hash_final(&h, d->d);
    d->n_rows++;
}

void part_see_row(struct model *m, struct part *p, uint64_t position, const float *logits)
{
    if (m->digests)
        digest_row(&p->digest, position, logits, m->config.vocab_size);
    if (m->observer.logits)
        m->observer.logits(m->observer.user, &p->s->seq, position, logits);
}

static void push_history(uint32_t *history, const uint32_t *ids, uint32_t n)
{
    uint32_t cap = CONFIG_MAX_NGRAM - 1;
    for (uint32_t i = n > cap ? n - cap : 0; i < n; i++) {
        memmove(history, history + 1, (cap - 1) * sizeof(*history));
        history[cap - 1] = ids[i];
    }
}

void part_keep(struct part *p, const struct run *r, uint32_t n, const float *last)
{
    struct model_seq *s = p->s;
    struct model *m = model_of_seq(s);
    forward_commit(m, r, n);
    if (!r->held) /* those were ids of an earlier run */
        push_history(history_of(s), r->ids, n);
    s->has_last = last != NULL;
    if (last)
        m->k.copy(&m->k, s->last, last, m->config.dim * sizeof(*last));
    s->digest = p->digest;
}

void part_drop(struct part *p)
{
    free(p->logprobs);
    p->logprobs = NULL;
}

void part_fail(struct event_list *l, struct part *p, enum err rc, const struct error *e)
{
    part_drop(p);
    if (p->s->work.kind == WORK_NONE)
        p->s->ahead->stopped = true;
    else
        event_failed(l, p->s, rc, e);
}
