#include "engine/held.h"

#include <string.h>

struct held_part {
    void **held;    /* in struct held */
    void *work;     /* in struct work */
    size_t n_bytes; /* of one token */
};

#define HELD_PARTS 5

static void list_parts(const struct model *m, const struct work *w, struct held *h,
                       struct held_part out[HELD_PARTS])
{
    const struct config *c = &m->config;
    size_t hc = c->hc, f = sizeof(float);
    const struct held_part list[HELD_PARTS] = {
        {(void **)(void *)&h->x, w ? w->x : NULL, hc * c->dim * f},
        {(void **)(void *)&h->pre, w ? w->pre : NULL, hc * f},
        {(void **)(void *)&h->target, w ? w->target : NULL, c->n_draft_targets * c->dim * f},
        {(void **)(void *)&h->sel, w ? w->d_sel : NULL, c->index_topk * sizeof(int32_t)},
        {(void **)(void *)&h->blocks, w ? w->blocks : NULL,
         c->candidate_blocks * sizeof(int32_t)},
    };
    memcpy(out, list, sizeof(list));
}

enum err held_init(struct model *m, struct held *h, struct error *e)
{
    struct held_part parts[HELD_PARTS];
    *h = (struct held){0};
    list_parts(m, NULL, h, parts);
    for (size_t i = 0; i < HELD_PARTS; i++) {
        size_t n = parts[i].n_bytes * m->config.window;
        if (n && !(*parts[i].held = m->k.alloc(&m->k, n))) {
            held_fini(m, h);
            return err_set(e, ERR_NOMEM, "%zu bytes for streams that wait", n);
        }
    }
    return OK;
}

void held_fini(struct model *m, struct held *h)
{
    struct held_part parts[HELD_PARTS];
    list_parts(m, NULL, h, parts);
    for (size_t i = 0; i < HELD_PARTS; i++)
        m->k.free(&m->k, *parts[i].held);
    *h = (struct held){0};
}

/* The run's tokens from `first` on, between the work buffers and what is held. */
static void copy(struct model *m, const struct run *r, struct held *h, uint32_t first,
                 bool to_work)
{
    struct held_part parts[HELD_PARTS];
    list_parts(m, m->work, h, parts);
    for (size_t i = 0; i < HELD_PARTS; i++) {
        size_t n = parts[i].n_bytes;
        for (uint32_t t = first; n && t < r->n; t++) {
            char *held = (char *)*parts[i].held + (r->pos0 + t) % m->config.window * n;
            char *work = (char *)parts[i].work + (r->row + t) * n;
            m->k.copy(&m->k, to_work ? work : held, to_work ? held : work, n);
        }
    }
}

void held_keep(struct model *m, const struct run *r, struct held *h)
{
    copy(m, r, h, r->n > m->config.window ? r->n - m->config.window : 0, false);
}

void held_put_back(struct model *m, const struct run *r)
{
    struct held h = *r->held;
    copy(m, r, &h, 0, true);
}
