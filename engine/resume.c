#include "engine/resume.h"

#include <assert.h>
#include <inttypes.h>

uint64_t resume_depth(const struct config *c)
{
    /* A window entry of the last layer depends on W-1 earlier positions per layer below it. */
    return c->window + (uint64_t)(c->window - 1) * (c->n_layers - 1);
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void resume_clip(const struct config *c, uint64_t start, uint64_t len, enum prefill_mode mode,
                 uint64_t lo[N_LAYER_CLASSES])
{
    if (mode == PREFILL_FULL || len <= c->window)
        return;
    uint64_t tail = start + len - c->window;
    lo[LAYERS_ABOVE] = max_u64(lo[LAYERS_ABOVE], tail);
    if (mode == PREFILL_CED_REPORT)
        lo[LAYER_SOURCE] = max_u64(lo[LAYER_SOURCE], tail);
}

enum err resume_plan(const struct config *c, const struct tape_view *t, uint64_t n_tokens,
                     enum resume_mode mode, struct resume_plan *out, struct error *e)
{
    assert(mode == RESUME_DEEP || mode == RESUME_REPLAY);
    if (n_tokens > t->n_ids)
        return err_set(e, ERR_INVAL, "rebuild: %" PRIu64 " tokens of a tape of %" PRIu64,
                       n_tokens, t->n_ids);
    uint64_t need = mode == RESUME_DEEP ? resume_depth(c) : c->window;
    struct resume_plan p = {.n_tokens = n_tokens,
                            .start = n_tokens > need ? n_tokens - need : 0};
    for (size_t i = 0; i < t->n_segments && t->segments[i].start < n_tokens; i++) {
        const struct segment *s = &t->segments[i];
        if (s->kind != SEGMENT_INPUT)
            continue;
        resume_clip(c, s->start, s->len, s->mode, p.lo);
        if (s->start + s->len > n_tokens)
            p.open = (struct open_segment){true, s->start, s->len, s->mode};
    }
    /* Where windows were rebuilt once, nothing older was in them: this session's past starts
     * there. */
    for (size_t i = 0; i < t->n_marks; i++) {
        if (t->marks[i].at > n_tokens)
            continue;
        if (t->marks[i].from > t->marks[i].at)
            return err_set(e, ERR_INVAL, "tape: replay mark at %" PRIu64 " starts at %" PRIu64,
                           t->marks[i].at, t->marks[i].from);
        p.start = max_u64(p.start, t->marks[i].from);
    }
    for (int k = 0; k < N_LAYER_CLASSES; k++)
        p.lo[k] = max_u64(p.lo[k], p.start);
    *out = p;
    return OK;
}
