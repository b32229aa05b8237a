/* Chains: the extents behind a head, from the newest back to the first. */
#include <stdlib.h>
#include <string.h>

#include "sessions/catalog.h"

#define MAX_PIECES (1u << 22)

void head_chain_fini(struct head_chain *c)
{
    free(c->pieces);
    memset(c, 0, sizeof *c);
}

static enum err push(struct head_chain *c, const struct chain_piece *p, struct error *e)
{
    if (c->n_pieces % 64 == 0) {
        struct chain_piece *grown =
            c->n_pieces >= MAX_PIECES ? NULL
                                      : realloc(c->pieces, (c->n_pieces + 64) * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "chain of %zu extents: out of memory", c->n_pieces);
        c->pieces = grown;
    }
    c->pieces[c->n_pieces++] = *p;
    return OK;
}

/* A row that cannot be used is no error of the walk: the chain ends before it. */
static bool is_unusable(enum err rc)
{
    return rc == ERR_NOTFOUND || rc == ERR_CORRUPT;
}

/* One step back: the piece (tail, or else block) and what is before it. *usable false: the row
 * is missing, damaged or set aside, and if even its predecessor is unknown *lost is set. */
static enum err step(struct store *st, int64_t *block, int64_t *tail, struct chain_piece *p,
                     bool *usable, bool *lost, struct error *e)
{
    memset(p, 0, sizeof *p);
    *lost = false;
    if (*tail) {
        struct tail_row r;
        enum err rc = tail_read(st, *tail, &r, e);
        *lost = is_unusable(rc);
        *usable = !rc && !r.x.damaged;
        if (rc)
            return *lost ? OK : rc;
        *p = (struct chain_piece){
            .kind = PIECE_TAIL, .x = r.x, .first = r.first, .last = r.last, .block = r.block};
        *tail = r.prev;
        *block = r.block;
        return OK;
    }
    struct block_row r;
    enum err rc = block_read(st, *block, &r, e);
    *lost = is_unusable(rc);
    *usable = !rc && !r.x.damaged;
    if (rc)
        return *lost ? OK : rc;
    uint64_t first = r.depth * st->block_tokens;
    *p = (struct chain_piece){
        .kind = PIECE_BLOCK, .x = r.x, .first = first, .last = first + st->block_tokens};
    memcpy(p->key, r.key, sizeof p->key);
    *block = r.parent;
    return OK;
}

static void reverse(struct head_chain *c)
{
    for (size_t i = 0, j = c->n_pieces; i + 1 < j; i++) {
        struct chain_piece tmp = c->pieces[i];
        c->pieces[i] = c->pieces[--j];
        c->pieces[j] = tmp;
    }
}

/* Pieces newest first -> oldest first without gaps, as far as they go. */
static void settle(struct head_chain *c, uint64_t position)
{
    reverse(c);
    uint64_t at = 0;
    size_t n = 0;
    while (n < c->n_pieces && c->pieces[n].first == at && !c->pieces[n].x.damaged)
        at = c->pieces[n++].used;
    c->n_pieces = n;
    c->position = at < position ? at : position;
}

enum err chain_load(struct store *st, int64_t layout, int64_t block, int64_t tail,
                    uint64_t position, struct head_chain *out, struct error *e)
{
    AUTO(head_chain) struct head_chain c = {.layout = layout};
    uint64_t end = position;
    while ((block || tail) && end > 0) {
        struct chain_piece p;
        bool usable, lost;
        enum err rc = step(st, &block, &tail, &p, &usable, &lost, e);
        if (rc)
            return rc;
        /* Behind a lost tail the blocks are known still; the gap shows in settle. */
        if (lost && tail) {
            tail = 0;
            continue;
        }
        if (lost || p.x.layout != layout || p.last <= p.first)
            break;
        p.x.damaged = !usable;
        if (p.first >= end)
            continue;
        p.used = p.last < end ? p.last : end;
        end = p.first;
        if ((rc = push(&c, &p, e)))
            return rc;
    }
    settle(&c, position);
    *out = c;
    memset(&c, 0, sizeof c);
    return OK;
}

void chain_cut(struct head_chain *c, uint64_t position)
{
    if (position < c->position)
        c->position = position;
    while (c->n_pieces && c->pieces[c->n_pieces - 1].first >= c->position)
        c->n_pieces--;
    if (c->n_pieces && c->pieces[c->n_pieces - 1].used > c->position)
        c->pieces[c->n_pieces - 1].used = c->position;
    if (c->tip.x.id && c->tip.position != c->position)
        memset(&c->tip, 0, sizeof c->tip);
}

void chain_ends(const struct head_chain *c, int64_t *block, int64_t *tail)
{
    *block = *tail = 0;
    if (!c->n_pieces)
        return;
    const struct chain_piece *last = &c->pieces[c->n_pieces - 1];
    *block = last->kind == PIECE_BLOCK ? last->x.id : last->block;
    *tail = last->kind == PIECE_TAIL ? last->x.id : 0;
}

uint32_t chain_lineage(const struct head_chain *c)
{
    uint32_t most = c->tip.x.id ? c->tip.x.lineage : 0;
    for (size_t i = 0; i < c->n_pieces; i++)
        if (c->pieces[i].x.lineage > most)
            most = c->pieces[i].x.lineage;
    return most;
}

void chain_numerics(const struct head_chain *c, char out[STATE_CLASS_BYTES])
{
    const char *first = c->n_pieces ? c->pieces[0].x.numerics : c->tip.x.numerics;
    bool same = true;
    for (size_t i = 1; i < c->n_pieces && same; i++)
        same = strcmp(first, c->pieces[i].x.numerics) == 0;
    if (c->tip.x.id)
        same = same && strcmp(first, c->tip.x.numerics) == 0;
    snprintf(out, STATE_CLASS_BYTES, "%s", same ? first : "");
}
