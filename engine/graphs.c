#include "engine/graphs.h"

#include <stdlib.h>
#include <string.h>

#include "engine/experts.h"
#include "engine/forward.h"

#define MOST_FAILURES 3 /* to record one shape: then it is left alone */

const char *graphs_why(const struct model *m)
{
    if (!m->k.record)
        return "the backend records no launches";
    if (m->kv_pages)
        return "KV rows have a budget: those that a layer selects are fetched";
    if (m->experts && !experts_can_hold(m->experts))
        return "experts have a budget: those that a router chooses are fetched";
    return NULL;
}

void graphs_counters(const struct model *m, struct engine_graphs *out)
{
    const struct graphs *g = &m->graphs;
    out->why = graphs_why(m);
    out->n_recorded = atomic_load_explicit(&g->n_recorded, memory_order_relaxed);
    out->n_replayed = atomic_load_explicit(&g->n_replayed, memory_order_relaxed);
    out->n_plain = atomic_load_explicit(&g->n_plain, memory_order_relaxed);
}

bool graphs_take(const struct model *m, const struct batch *batch)
{
    const struct config *c = &m->config;
    if (graphs_why(m) || batch->n_alone || batch->runs[0].block)
        return false;
    if (m->observer.tensor) /* what it looks at lies there between two ops only */
        return false;
    if ((uint64_t)batch->n * c->n_engram > m->work->cap) /* rows of all layers, side by side */
        return false;
    for (uint32_t l = 0; l < c->n_layers && m->experts; l++)
        if (!experts_held(m->experts, l))
            return false;
    return true;
}

/* ---- shapes -------------------------------------------------------------------------------
 */

static bool is_like(const struct graph *g, const struct model *m, const struct batch *batch)
{
    if (!g->turn || g->n_runs != batch->n_runs || g->n_seen != m->work->n_seen)
        return false;
    for (uint32_t i = 0; i < g->n_runs; i++)
        if (g->n[i] != batch->runs[i].n)
            return false;
    return true;
}

/* A new shape, in place of the one that was not met for longest. NULL: no memory. */
static struct graph *add(struct model *m, const struct batch *batch)
{
    struct graphs *all = &m->graphs;
    struct graph *g = all->list;
    uint32_t *n = malloc(batch->n_runs * sizeof(*n));
    if (!n)
        return NULL;
    for (uint32_t i = 1; i < K_MAX_RECORDS; i++)
        if (all->list[i].turn < g->turn)
            g = &all->list[i];
    free(g->n);
    for (uint32_t i = 0; i < batch->n_runs; i++)
        n[i] = batch->runs[i].n;
    *g = (struct graph){
        .turn = ++all->turn, .n_seen = m->work->n_seen, .n_runs = batch->n_runs, .n = n};
    return g;
}

static struct graph *find(struct model *m, const struct batch *batch)
{
    for (uint32_t i = 0; i < K_MAX_RECORDS; i++)
        if (is_like(&m->graphs.list[i], m, batch))
            return &m->graphs.list[i];
    return NULL;
}

void graphs_forget(struct model *m)
{
    for (uint32_t i = 0; i < K_MAX_RECORDS; i++)
        m->graphs.list[i].is_recorded = false;
}

void graphs_fini(struct graphs *g)
{
    for (uint32_t i = 0; i < K_MAX_RECORDS; i++)
        free(g->list[i].n);
}

/* ---- steps --------------------------------------------------------------------------------
 */

static void count(_Atomic uint64_t *n)
{
    atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

/* Records the ops and does them; false: they are not done. */
static bool record(struct model *m, const struct batch *batch, struct graph *g,
                   void (*ops)(struct model *m, const struct batch *batch))
{
    uint32_t slot = (uint32_t)(g - m->graphs.list);
    if (g->n_failed >= MOST_FAILURES || !m->k.record(&m->k))
        return false;
    ops(m, batch);
    g->is_recorded = m->k.record_end(&m->k, slot);
    g->n_failed += !g->is_recorded;
    return g->is_recorded;
}

void graphs_run(struct model *m, const struct batch *batch,
                void (*ops)(struct model *m, const struct batch *batch))
{
    struct graphs *all = &m->graphs;
    struct graph *g = find(m, batch);
    if (g) {
        g->turn = ++all->turn;
        if (g->is_recorded && m->k.replay(&m->k, (uint32_t)(g - all->list))) {
            count(&all->n_replayed);
            return;
        }
        if (record(m, batch, g, ops)) {
            count(&all->n_recorded);
            return;
        }
    } else {
        (void)add(m, batch); /* without memory the shape stays unknown */
    }
    ops(m, batch);
    count(&all->n_plain);
}
