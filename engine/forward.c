#include "engine/forward.h"

#include <assert.h>
#include <string.h>

#include "engine/engram_slots.h"
#include "engine/forward_engram.h"
#include "engine/held.h"

/* ---- runs side by side --------------------------------------------------------------------
 */

uint32_t run_first(const struct model *m, const struct run *r, uint32_t layer)
{
    uint64_t from = r->from[m->shape.class[layer]];
    if (from <= r->pos0)
        return 0;
    return from - r->pos0 < r->n ? (uint32_t)(from - r->pos0) : r->n;
}

uint32_t batch_first(const struct model *m, const struct batch *batch, uint32_t layer)
{
    return run_first(m, &batch->runs[0], layer);
}

/* Does every layer work on all of its tokens? */
static bool is_whole(const struct run *r)
{
    for (int i = 0; i < N_LAYER_CLASSES; i++)
        if (r->from[i] > r->pos0)
            return false;
    return !r->replay && !r->held;
}

struct batch batch_of(struct run *runs, uint32_t n_runs)
{
    struct batch batch = {.runs = runs, .n_runs = n_runs};
    for (uint32_t i = 0; i < n_runs; i++) {
        runs[i].row = batch.n;
        batch.n += runs[i].n;
    }
    if (n_runs && runs[0].kv->pages)
        batch.n_alone = n_runs;
    else if (n_runs && (runs[0].is_chunk || !is_whole(&runs[0])))
        batch.n_alone = 1;
    return batch;
}

uint32_t run_groups(const struct run *r, uint32_t ratio, uint64_t *row0)
{
    *row0 = r->pos0 / ratio;
    return r->replay || r->held ? 0 : (uint32_t)((r->pos0 % ratio + r->n) / ratio);
}

uint32_t run_from(const struct run *r, uint32_t first, uint32_t *skip)
{
    *skip = first > r->row ? first - r->row : 0;
    return *skip < r->n ? r->n - *skip : 0;
}

uint64_t run_visible(const struct run *r)
{
    return r->replay ? r->rows : r->pos0 + r->n;
}

uint32_t batch_n_listed(const struct batch *batch)
{
    return batch->n_runs - batch->n_alone;
}

/* ---- before the first layer ---------------------------------------------------------------
 */

static void list_positions(struct model *m, const struct batch *batch)
{
    struct work *b = m->work;
    for (uint32_t k = 0; k < batch->n_runs; k++)
        for (uint32_t i = 0; i < batch->runs[k].n; i++)
            b->positions[batch->runs[k].row + i] = batch->runs[k].pos0 + i;
    work_to_device(m, b->d_positions, b->positions, batch->n * sizeof(*b->positions));
}

static void rope_tables(struct model *m, const struct batch *batch)
{
    struct work *b = m->work;
    struct k_rope_table t = {
        .pos = b->d_positions, .n = batch->n, .half = m->config.rope_dim / 2};
    t.inv_freq = m->rope_plain, t.cos = b->plain_cos, t.sin = b->plain_sin;
    m->k.rope_table(&m->k, &t);
    t.inv_freq = m->rope_yarn, t.cos = b->yarn_cos, t.sin = b->yarn_sin;
    m->k.rope_table(&m->k, &t);
}

/* Everything about a run that follows from its ids alone. */
static void begin_run(struct model *m, const struct run *r)
{
    struct work *b = m->work;
    if (m->config.n_engram && !r->block)
        forward_engram_ids(m, r);
    if (r->n_next)
        forward_engram_prefetch(m, r->history, r->ids, r->n, r->n_next);
    m->k.copy_in(&m->k, b->ids + r->row, r->ids, r->n * sizeof(*b->ids));
}

/* Tokens in steps of a power of two, so that launches that depend on the number keep their
 * shape for long. */
#define SEEN_LEAST 4096

static uint64_t rounded_up(uint64_t n)
{
    uint64_t step = SEEN_LEAST;
    while (step < n)
        step *= 2;
    return step;
}

/* Groups of a source, in the order of the runs. A steady batch has room for as many as there
 * can be, wherever its runs begin. */
static void list_groups(struct model *m, const struct batch *batch, uint32_t source)
{
    struct work *b = m->work;
    uint32_t ratio = m->shape.source_ratio[source], at = 0;
    uint64_t *positions = b->group_positions + (size_t)source * b->cap;
    for (uint32_t i = 0; i < batch->n_runs; i++) {
        const struct run *r = &batch->runs[i];
        uint64_t row0;
        uint32_t n = run_groups(r, ratio, &row0);
        uint32_t room = batch->is_steady ? (r->n + ratio - 1) / ratio : n;
        /* A row stands for its group's first token: that is its position. */
        for (uint32_t k = 0; k < room; k++)
            positions[at + k] = k < n ? (row0 + k) * ratio : 0;
        b->runs[i].source[source] = (struct k_run_source){.rows = kv_rows(r->kv, source, 0),
                                                          .keys = kv_keys(r->kv, source, 0),
                                                          .row = row0,
                                                          .n = n,
                                                          .first = at};
        at += room;
    }
    b->n_groups[source] = at;
    work_to_device(m, b->d_group_positions + (size_t)source * b->cap, positions,
                   at * sizeof(*positions));
}

/* What the ops read that look at sequences. */
static void list_runs(struct model *m, const struct batch *batch)
{
    struct work *b = m->work;
    assert(batch->n_runs <= BATCH_MAX_RUNS);
    b->n_seen = 0;
    b->n_most = 0;
    for (uint32_t i = 0; i < batch->n_runs; i++) {
        const struct run *r = &batch->runs[i];
        b->runs[i] = (struct k_run){.pos0 = r->pos0,
                                    .row = r->row,
                                    .n = r->n,
                                    .ring = r->kv->ring,
                                    .pending = r->kv->pending};
        memcpy(b->runs[i].lo, r->lo, sizeof(r->lo));
        if (i >= batch->n_alone && r->pos0 + r->n > b->n_seen)
            b->n_seen = r->pos0 + r->n;
        if (i >= batch->n_alone && r->n > b->n_most)
            b->n_most = r->n;
    }
    if (batch->is_steady)
        b->n_seen = rounded_up(b->n_seen);
    for (uint32_t i = 0; i < m->config.n_kv_sources && !batch->runs[0].block; i++)
        list_groups(m, batch, i);
    if (batch->n_alone < batch->n_runs)
        work_to_device(m, b->d_runs, b->runs, batch->n_runs * sizeof(*b->runs));
}

/* All that the host does in front of the first op. */
static enum err prepare(struct model *m, const struct batch *batch, struct error *e)
{
    enum err rc = work_reserve(m, batch->n, e);
    if (rc)
        return rc;
    m->broken = (struct error){0};
    m->gathered.of = NULL;
    for (uint32_t i = 0; i < batch->n_runs; i++) {
        assert(i == 0 || is_whole(&batch->runs[i]));
        begin_run(m, &batch->runs[i]);
    }
    if (!batch->runs[0].block)
        forward_engram_expect(m, batch, 0);
    list_runs(m, batch);
    list_positions(m, batch);
    return OK;
}

static void embed(struct model *m, const struct batch *batch)
{
    struct work *b = m->work;
    rope_tables(m, batch);
    m->k.embed(&m->k, &(struct k_embed){.w = &m->weights.embed,
                                        .ids = b->ids,
                                        .x = b->x,
                                        .pre = b->pre,
                                        .n = batch->n,
                                        .copies = m->config.hc});
}

enum err forward_begin(struct model *m, const struct batch *batch, struct error *e)
{
    enum err rc = prepare(m, batch, e);
    if (!rc)
        embed(m, batch);
    return rc;
}

/* ---- after the last layer -----------------------------------------------------------------
 */

uint32_t forward_end(struct model *m, const struct batch *batch)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    uint32_t first = batch_first(m, batch, c->n_layers - 1), n = batch->n - first;
    m->k.hc_collapse(&m->k, &(struct k_hc_collapse){.x = b->x + (size_t)first * c->hc * c->dim,
                                                    .pre = b->pre + (size_t)first * c->hc,
                                                    .h = b->h,
                                                    .n = n,
                                                    .hc = c->hc,
                                                    .d = c->dim,
                                                    .round = m->rounding.value});
    return n;
}

const float *forward_rows(const struct model *m, const struct batch *batch, const struct run *r,
                          uint32_t *n)
{
    uint32_t last = m->config.n_layers - 1, first = run_first(m, r, last);
    *n = r->n - first;
    return m->work->h + (size_t)(r->row + first - batch_first(m, batch, last)) * m->config.dim;
}

/* The layers, up to where something is broken. ERR_CANCELLED. */
static enum err run_layers(struct model *m, const struct batch *batch, struct error *e)
{
    /* A chunk can be thrown away, nothing is written; what is sampled is short enough to
     * finish, and so are single tokens and what was held. */
    bool stops = batch->runs[0].is_chunk && batch->runs[0].n > 1;
    for (uint32_t l = 0; l < m->config.n_layers; l++) {
        if (stops && atomic_exchange(&m->interrupted, false))
            return err_set(e, ERR_CANCELLED, "interrupted in layer %u", l);
        forward_engram(m, batch, l);
        forward_layer(m, batch, l);
        if (m->broken.code)
            break;
    }
    return OK;
}

enum err forward_check_weights(const struct model *m, struct error *e)
{
    enum err rc = safetensors_unchanged(m->st, e);
    return rc == ERR_CONFLICT ? err_wrap(e, rc, "weights, nothing is computed until a restart")
                              : rc;
}

/* All ops of a batch in which nothing stops; it is not a chunk. */
static void run_ops(struct model *m, const struct batch *batch)
{
    embed(m, batch);
    (void)run_layers(m, batch, NULL);
    forward_draft_keys(m, batch);
    (void)forward_end(m, batch);
}

/* The same ops as they were recorded, if they were. */
static void run_steady(struct model *m, const struct batch *batch)
{
    forward_engram_rows(m, batch);
    if (!m->broken.code)
        graphs_run(m, batch, run_ops);
}

/* ERR_CANCELLED. */
static enum err run_once(struct model *m, const struct batch *batch, struct error *e)
{
    embed(m, batch);
    if (batch->runs[0].held)
        held_put_back(m, &batch->runs[0]);
    enum err rc = run_layers(m, batch, e);
    if (rc)
        return rc;
    forward_draft_keys(m, batch);
    (void)forward_end(m, batch);
    if (!batch->runs[0].is_chunk && is_whole(&batch->runs[0]))
        atomic_fetch_add_explicit(&m->graphs.n_plain, 1, memory_order_relaxed);
    return OK;
}

enum err forward_batch(struct model *m, const struct batch *given, struct error *e)
{
    struct batch batch = *given;
    enum err rc = forward_check_weights(m, e), stopped = OK;
    if (rc || (rc = work_reserve(m, batch.n, e)))
        return rc;
    batch.is_steady = graphs_take(m, &batch);
    if ((rc = prepare(m, &batch, e)))
        return rc;
    if (batch.is_steady)
        run_steady(m, &batch);
    else
        stopped = run_once(m, &batch, e);
    if ((rc = m->k.sync(&m->k, e)) && m->engram_slots)
        engram_slots_forget(m->engram_slots);
    if (rc || (rc = stopped))
        return rc;
    if ((rc = forward_check_weights(m, e)))
        return rc;
    if (m->broken.code && e)
        *e = m->broken;
    return m->broken.code;
}

void forward_commit(struct model *m, const struct run *r, uint32_t n)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    assert(n && n <= r->n);
    size_t row = m->shape.ring_row, stride = b->cap * row;
    for (uint32_t l = 0, more; l < m->shape.n_rings; l += more) { /* all alike at once */
        uint32_t first = run_first(m, r, l);
        for (more = 1; l + more < m->shape.n_rings && run_first(m, r, l + more) == first;)
            more++;
        if (first < n)
            kv_ring_write(r->kv, l, more, r->pos0 + first, n - first,
                          b->keys + l * stride + (r->row + first) * row, stride);
    }
    for (uint32_t i = 0; i < c->n_kv_sources && !r->held; i++) {
        size_t at = ((size_t)i * b->cap + r->row + n - 1) * c->head_dim;
        size_t n_bytes = c->head_dim * sizeof(float);
        float *pending = kv_pending(r->kv, i);
        if ((r->pos0 + n) % m->shape.source_ratio[i] != 0) {
            m->k.copy(&m->k, pending, b->u + at, n_bytes);
            m->k.copy(&m->k, pending + c->head_dim, b->g + at, n_bytes);
        }
    }
    memcpy(r->kv->lo, r->lo, sizeof(r->lo));
    if (!r->replay)
        r->kv->n_tokens = r->pos0 + n;
}

enum err forward_head(struct model *m, const float *h, uint32_t n, struct error *e)
{
    const struct config *c = &m->config;
    assert(n <= LOGIT_ROWS);
    enum err rc = work_reserve(m, n, e);
    if (rc)
        return rc;
    m->k.rmsnorm(&m->k, &(struct k_rmsnorm){.x = h,
                                            .w = m->weights.norm,
                                            .y = m->work->y,
                                            .n = n,
                                            .d = c->dim,
                                            .eps = c->norm_eps,
                                            .round = m->rounding.value});
    m->k.linear(&m->k, &(struct k_linear){.w = &m->weights.head,
                                          .x = m->work->y,
                                          .y = m->work->d_logits,
                                          .n = n,
                                          .in = m->rounding.product});
    return OK;
}

enum err forward_head_end(struct model *m, uint32_t n, bool crosses, struct error *e)
{
    if (crosses)
        work_to_host(m, m->work->logits, m->work->d_logits,
                     (size_t)n * m->config.vocab_size * sizeof(float));
    enum err rc = m->k.sync(&m->k, e);
    return rc ? rc : forward_check_weights(m, e);
}

enum err forward_logits(struct model *m, const float *h, uint32_t n, struct error *e)
{
    enum err rc = forward_head(m, h, n, e);
    return rc ? rc : forward_head_end(m, n, true, e);
}
