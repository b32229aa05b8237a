#include "engine/work.h"

#include <assert.h>
#include <stdlib.h>

struct buffer {
    void **p;    /* memory of the backend */
    void **host; /* and its other half, for the host; NULL: it has none */
    size_t n_bytes;
};

#define WORK_BUFFERS 60

/* Every buffer of w with its size, for a batch of `cap` tokens. */
static size_t list_buffers(const struct model *m, struct work *w, size_t cap,
                           struct buffer *out)
{
    const struct config *c = &m->config;
    size_t hc = c->hc, D = c->dim, d = c->head_dim, half = c->rope_dim / 2;
    size_t tables = m->engram.n_tables, f = sizeof(float), k = 0;
    size_t o = (size_t)c->o_groups * c->o_lora;
    size_t n_experts = c->n_experts > c->draft_experts ? c->n_experts : c->draft_experts;
    size_t n_active = c->n_active > c->draft_active ? c->n_active : c->draft_active;
#define ADD(member, bytes)                                                                     \
    out[k++] = (struct buffer){(void **)(void *)&w->member, NULL, (bytes)}
#define ADD_PAIR(member, bytes)                                                                \
    out[k++] = (struct buffer)                                                                 \
    {                                                                                          \
        (void **)(void *)&w->d_##member, (void **)(void *)&w->member, (bytes)                  \
    }
    ADD(x, cap * hc * D * f);
    ADD(pre, cap * hc * f);
    ADD(next_pre, cap * hc * f);
    ADD(post, cap * hc * f);
    ADD(comb, cap * hc * hc * f);
    ADD(h, cap * D * f);
    ADD(y, cap * D * f);
    ADD(qr, cap * c->q_lora * f);
    ADD(q, cap * c->n_heads * d * f);
    ADD(o, cap * c->n_heads * d * f);
    ADD(oa, cap * o * f);
    ADD(key, cap * d * f);
    ADD(u, c->n_kv_sources * cap * d * f);
    ADD(g, c->n_kv_sources * cap * d * f);
    ADD(group_u, K_MAX_RATIO * d * f);
    ADD(group_g, K_MAX_RATIO * d * f);
    ADD(latent, cap * d * f);
    ADD(ikey, cap * c->index_dim * f);
    ADD(iq, cap * c->index_heads * c->index_dim * f);
    ADD(iw, cap * c->index_heads * f);
    ADD(route, cap * n_experts * f);
    ADD(route_w, cap * n_active * f);
    ADD(parts, m->experts ? cap * (n_active + 1) * D * f : 0);
    ADD(engram, cap * tables * c->engram_dim * f);
    ADD(engram_kv, cap * (hc + 1) * D * f);
    ADD(engram_gate, cap * hc * f);
    ADD(plain_cos, cap * half * f);
    ADD(plain_sin, cap * half * f);
    ADD(yarn_cos, cap * half * f);
    ADD(yarn_sin, cap * half * f);
    ADD(row_cos, cap * half * f);
    ADD(row_sin, cap * half * f);
    ADD_PAIR(sel, cap * c->index_topk * sizeof(int32_t));
    ADD_PAIR(sel_at, m->kv_pages ? cap * c->index_topk * sizeof(int32_t) : 0);
    ADD(blocks, cap * c->candidate_blocks * sizeof(int32_t));
    bool copies_engram = !m->k.host_memory && !m->engram_slots;
    ADD_PAIR(experts, cap * n_active * sizeof(int32_t));
    ADD_PAIR(runs, BATCH_MAX_RUNS * sizeof(struct k_run));
    ADD_PAIR(group_positions, c->n_kv_sources * cap * sizeof(uint64_t));
    ADD(ids, cap * sizeof(uint32_t));
    ADD_PAIR(positions, cap * sizeof(uint64_t));
    ADD_PAIR(engram_ids, c->n_engram * cap * tables * sizeof(uint64_t));
    ADD_PAIR(engram_at,
             m->engram_cache || !m->k.host_memory ? cap * tables * sizeof(uint64_t) : 0);
    ADD_PAIR(engram_codes, copies_engram ? cap * tables * c->engram_dim : 0);
    ADD_PAIR(engram_scales, copies_engram ? cap * tables * (c->engram_dim / 32) : 0);
    ADD(keys, (size_t)m->shape.n_rings * cap * m->shape.ring_row);
    ADD(target, cap * c->n_draft_targets * D * f);
    ADD(draft_in, c->n_drafts ? (D + c->draft_rank) * f : 0);
    ADD_PAIR(draft_bias, c->n_drafts ? c->vocab_size * f : 0);
    ADD_PAIR(confidence, c->n_drafts ? CONFIG_MAX_DRAFT_BLOCK * f : 0);
    ADD_PAIR(logits, (size_t)LOGIT_ROWS * c->vocab_size * f);
#undef ADD
#undef ADD_PAIR
    assert(k <= WORK_BUFFERS);
    return k;
}

static void free_buffers(struct model *m, struct work *w)
{
    struct buffer list[WORK_BUFFERS];
    size_t n = list_buffers(m, w, 0, list);
    for (size_t i = 0; i < n; i++) {
        if (list[i].host && *list[i].host != *list[i].p)
            free(*list[i].host);
        w->k->free(w->k, *list[i].p);
    }
}

static bool allocate(const struct model *m, struct work *w, const struct buffer *b)
{
    if (!b->n_bytes)
        return true;
    if (!(*b->p = w->k->alloc(w->k, b->n_bytes)))
        return false;
    if (b->host)
        *b->host = m->k.host_memory ? *b->p : malloc(b->n_bytes);
    return !b->host || *b->host;
}

enum err work_reserve(struct model *m, uint32_t n, struct error *e)
{
    if (m->work && m->work->cap >= n)
        return OK;
    if (n < LOGIT_ROWS) /* h must survive forward_logits() */
        n = LOGIT_ROWS;
    struct work *w = calloc(1, sizeof(*w));
    if (!w)
        return err_set(e, ERR_NOMEM, "buffers of a batch");
    w->k = &m->k;
    w->cap = n;
    struct buffer list[WORK_BUFFERS];
    size_t k = list_buffers(m, w, n, list);
    for (size_t i = 0; i < k; i++)
        if (!allocate(m, w, &list[i])) {
            free_buffers(m, w);
            free(w);
            return err_set(e, ERR_NOMEM, "%zu bytes of buffers for a batch of %u tokens",
                           list[i].n_bytes, n);
        }
    work_free(m);
    graphs_forget(m);
    m->work = w;
    return OK;
}

void work_free(struct model *m)
{
    if (!m->work)
        return;
    free_buffers(m, m->work);
    free(m->work);
    m->work = NULL;
}
