/* Finding state: the session's own heads first, then blocks and tips that others left. */
#include <stdlib.h>
#include <string.h>

#include "sessions/head_internal.h"
#include "sessions/identity.h"
#include "sessions/pin.h"
#include "sessions/strand.h"
#include "sessions/tape.h"
#include "sessions/tape_internal.h"

/* How many segment ends, from the newest back, are looked at for a tip of somebody else. */
#define MAX_TIP_TRIES 64
#define MAX_VARIANTS 8

struct find {
    struct store *st;
    const struct state_layout *l;
    int64_t session; /* num */
    const struct tape *tape;
    uint64_t position; /* wanted */
    int64_t layout;
    uint8_t root[HASH_BYTES];
    uint8_t *keys; /* HASH_BYTES for each full block of [0, position); NULL: not needed yet */
    struct head_chain best;
    enum head_source source;
};

static void find_fini(struct find *f)
{
    free(f->keys);
    head_chain_fini(&f->best);
}

void head_plan_free(struct head_plan *p)
{
    if (!p)
        return;
    if (p->chain)
        head_chain_fini(p->chain);
    free(p->chain);
    free(p->own_ids);
    free(p);
}

/* ---- keys --------------------------------------------------------------------------------

 * Hashing a long tape is most of what a search costs, and the session's own head spares it: the
 * keys of its blocks are in the catalog, under tags. Whether the head is this tape's is not
 * decided by them but by head_restore, which compares every token id. So keys are computed only
 * to look for what others left, and then only behind the own blocks. */

/* Full blocks at the beginning of a chain; the last is *last (NULL: none). */
static size_t full_blocks(const struct find *f, const struct head_chain *c,
                          const struct chain_piece **last)
{
    size_t n = 0;
    *last = NULL;
    while (n < c->n_pieces && c->pieces[n].kind == PIECE_BLOCK &&
           c->pieces[n].used == (n + 1) * f->st->block_tokens)
        *last = &c->pieces[n++];
    return n;
}

static enum err need_keys(struct find *f, struct error *e)
{
    uint32_t b = f->st->block_tokens;
    size_t n = (size_t)(f->position / b);
    const struct chain_piece *last;
    if (f->keys)
        return OK;
    f->keys = malloc((n + 1) * HASH_BYTES);
    if (!f->keys)
        return err_set(e, ERR_NOMEM, "find state: out of memory");
    size_t n_own = full_blocks(f, &f->best, &last);
    for (size_t i = 0; i < n_own; i++)
        memcpy(f->keys + i * HASH_BYTES, f->best.pieces[i].key, HASH_BYTES);
    const uint8_t *parent = last ? last->key : f->root;
    for (size_t i = n_own; i < n; i++) {
        uint8_t *key = f->keys + i * HASH_BYTES;
        identity_block(f->st->space.identity_key, parent, f->tape->ids + i * b, b, key);
        parent = key;
    }
    return OK;
}

/* Key of the first n blocks, once there are keys. */
static const uint8_t *key_behind(const struct find *f, size_t n)
{
    return n ? f->keys + (n - 1) * HASH_BYTES : f->root;
}

/* The key that a tip for the first `position` tokens of this tape must have, behind the block
 * with this key. */
static void tip_key(const struct find *f, uint64_t position, const uint8_t *block,
                    uint8_t out[HASH_BYTES])
{
    uint8_t shape[HASH_BYTES];
    uint64_t rest = position % f->st->block_tokens;
    identity_shape(f->st->space.identity_key, &f->tape->view, position, NULL, shape);
    identity_tip(f->st->space.identity_key, block, f->tape->ids + (position - rest),
                 (uint32_t)rest, shape, out);
}

/* ---- choosing ---------------------------------------------------------------------------- */

/* Takes a chain over if it restores more than the best so far, or as much and the tip, too. */
static void offer(struct find *f, struct head_chain *c, enum head_source source)
{
    bool tip_more = c->tip.x.id && !f->best.tip.x.id;
    if (c->position < f->best.position || (c->position == f->best.position && !tip_more))
        return;
    head_chain_fini(&f->best);
    f->best = *c;
    f->source = source;
    memset(c, 0, sizeof *c);
}

/* A session never changes the bytes it was computed on: what others left may only go on from
 * its own last full block. */
static bool goes_on(const struct find *f, const struct head_chain *c)
{
    const struct chain_piece *own = NULL;
    for (size_t i = 0; i < f->best.n_pieces; i++)
        if (f->best.pieces[i].kind == PIECE_BLOCK &&
            f->best.pieces[i].used == f->best.pieces[i].last)
            own = &f->best.pieces[i];
    if (!own)
        return f->best.n_pieces == 0 || chain_lineage(&f->best) == 0;
    for (size_t i = 0; i < c->n_pieces; i++)
        if (c->pieces[i].kind == PIECE_BLOCK && c->pieces[i].last == own->last)
            return memcmp(c->pieces[i].x.digest, own->x.digest, HASH_BYTES) == 0;
    return false;
}

/* Whether every full block of a chain has the key that this tape wants there. */
static bool keys_match(const struct find *f, const struct head_chain *c)
{
    for (size_t i = 0; i < c->n_pieces; i++) {
        const struct chain_piece *p = &c->pieces[i];
        if (p->kind == PIECE_BLOCK && p->used == p->last &&
            memcmp(p->key, key_behind(f, (size_t)(p->last / f->st->block_tokens)),
                   HASH_BYTES) != 0)
            return false;
    }
    return true;
}

/* Adds the tip to an own chain that ends exactly where it stands, if it is this tape's. */
static enum err add_tip(struct find *f, struct head_chain *c, int64_t id, struct error *e)
{
    struct tip_row tip;
    uint8_t key[HASH_BYTES];
    enum err rc = id ? tip_read(f->st, id, &tip, e) : ERR_NOTFOUND;
    if (rc)
        return rc == ERR_NOTFOUND || rc == ERR_CORRUPT ? OK : rc;
    if (tip.x.damaged || tip.x.layout != f->layout || tip.position != c->position)
        return OK;
    const struct chain_piece *last;
    if (full_blocks(f, c, &last) != tip.position / f->st->block_tokens)
        return OK;
    tip_key(f, tip.position, last ? last->key : f->root, key);
    if (memcmp(key, tip.key, sizeof key) == 0)
        c->tip = tip;
    return OK;
}

/* ---- the session's own heads ------------------------------------------------------------- */

static enum err try_own(struct find *f, int age, enum head_want want, struct error *e)
{
    struct head_row head;
    bool found;
    enum err rc = head_row_read(f->st, f->session, age, &head, &found, e);
    if (rc || !found || head.layout != f->layout)
        return rc;
    AUTO(head_chain) struct head_chain c = {0};
    uint64_t end = head.position < f->position ? head.position : f->position;
    if ((rc = chain_load(f->st, f->layout, head.block, head.tail, end, &c, e)))
        return rc;
    if ((rc = add_tip(f, &c, head.tip, e)))
        return rc;
    if (want == HEAD_TIP && !c.tip.x.id)
        return OK;
    offer(f, &c, age == 0 ? HEAD_OWN : HEAD_OLDER);
    return OK;
}

/* ---- what others left -------------------------------------------------------------------- */

static enum err try_tip_at(struct find *f, uint64_t position, struct error *e)
{
    uint8_t key[HASH_BYTES];
    struct tip_row tip;
    bool found;
    tip_key(f, position, key_behind(f, (size_t)(position / f->st->block_tokens)), key);
    enum err rc = tip_find(f->st, f->layout, key, f->l->numerics, &tip, &found, e);
    if (rc || !found)
        return rc;
    AUTO(head_chain) struct head_chain c = {0};
    if ((rc = chain_load(f->st, f->layout, tip.block, tip.tail, position, &c, e)))
        return rc;
    if (c.position != position || tip.position != position || !keys_match(f, &c) ||
        !goes_on(f, &c))
        return OK;
    c.tip = tip;
    offer(f, &c, HEAD_SHARED);
    return OK;
}

/* Tips stand where segments end, and at the position itself. */
static enum err try_tips(struct find *f, struct error *e)
{
    enum err rc = need_keys(f, e);
    if (!rc)
        rc = try_tip_at(f, f->position, e);
    size_t tries = 0;
    for (size_t i = f->tape->view.n_segments; i-- > 0 && !rc && tries < MAX_TIP_TRIES;) {
        uint64_t end = f->tape->segments[i].start;
        if (end == 0 || end >= f->position)
            continue;
        if (end <= f->best.position)
            break;
        tries++;
        rc = try_tip_at(f, end, e);
    }
    return rc;
}

/* The chain that ends in one of the blocks with the key of the first n; *exact: no replays. */
static enum err try_blocks_at(struct find *f, size_t n, bool only_exact, bool *found,
                              struct error *e)
{
    struct block_row rows[MAX_VARIANTS];
    size_t n_rows;
    uint64_t position = (uint64_t)n * f->st->block_tokens;
    *found = false;
    enum err rc = block_find(f->st, f->layout, key_behind(f, n), f->l->numerics, rows,
                             MAX_VARIANTS, &n_rows, e);
    for (size_t i = 0; i < n_rows && !rc && !*found; i++) {
        AUTO(head_chain) struct head_chain c = {0};
        if ((rc = chain_load(f->st, f->layout, rows[i].x.id, 0, position, &c, e)))
            return rc;
        *found = c.position == position && keys_match(f, &c) && goes_on(f, &c) &&
                 !(only_exact && chain_lineage(&c));
        if (*found)
            offer(f, &c, HEAD_SHARED);
    }
    return rc;
}

/* The longest chain of blocks: exact ones if there are any, else any. Behind a replay the rows
 * of this session are its own. */
static enum err try_blocks(struct find *f, struct error *e)
{
    uint64_t most = f->tape->view.n_marks ? f->tape->marks[0].at : f->position;
    if (most > f->position)
        most = f->position;
    enum err rc = need_keys(f, e);
    if (rc)
        return rc;
    for (int only_exact = 1; only_exact >= 0; only_exact--)
        for (size_t n = (size_t)(most / f->st->block_tokens);
             n * f->st->block_tokens > f->best.position; n--) {
            bool found;
            rc = try_blocks_at(f, n, only_exact, &found, e);
            if (rc || found)
                return rc;
        }
    return OK;
}

/* ---- the call ---------------------------------------------------------------------------- */

/* Nothing could be offered that is better. */
static bool has_all(const struct find *f)
{
    return f->best.position == f->position && f->best.tip.x.id;
}

static enum err search(struct find *f, enum head_want want, struct error *e)
{
    enum err rc = layout_find(f->st, f->l, &f->layout, f->root, e);
    if (rc || !f->layout)
        return rc;
    if ((rc = try_own(f, 0, want, e)) || has_all(f) || (rc = try_own(f, 1, want, e)))
        return rc;
    if (f->best.position < f->position && want == HEAD_TIP)
        return try_tips(f, e);
    return f->best.position < f->position ? try_blocks(f, e) : OK;
}

/* Bytes that a restore of the chain reads. */
static uint64_t bytes_of(const struct head_chain *c)
{
    uint64_t pages = c->tip.x.id ? c->tip.x.place.pages : 0;
    for (size_t i = 0; i < c->n_pieces; i++)
        pages += c->pieces[i].x.place.pages;
    return pages * EXTENT_PAGE;
}

static enum err make_plan(struct find *f, struct head_plan **out, struct error *e)
{
    struct head_plan *p = calloc(1, sizeof *p);
    struct head_chain *c = calloc(1, sizeof *c);
    if (!p || !c) {
        free(p);
        free(c);
        return err_set(e, ERR_NOMEM, "find state: out of memory");
    }
    *c = f->best;
    memset(&f->best, 0, sizeof f->best);
    p->chain = c;
    p->n_tokens = c->position;
    p->source = p->n_tokens ? f->source : HEAD_NONE;
    p->has_tip = c->tip.x.id != 0;
    p->inside_segment = p->has_tip && c->tip.inside;
    p->digest_rows = p->has_tip ? c->tip.digest_rows : 0;
    memcpy(p->digest, c->tip.x.digest, sizeof p->digest);
    p->lineage = chain_lineage(c);
    chain_numerics(c, p->numerics);
    p->same_numerics = strcmp(p->numerics, f->l->numerics) == 0;
    p->n_bytes = bytes_of(c);
    p->ids = f->tape->ids;
    p->strand = f->tape->strand;
    p->n_changes = db_changes(&f->st->db);
    p->n_collections = f->st->n_collections;
    *out = p;
    return OK;
}

enum err head_find_on(struct store *st, const char *session, const struct state_layout *layout,
                      const struct tape *tape, uint64_t position, enum head_want want,
                      struct head_plan **out, struct error *e)
{
    struct session_row row;
    AUTO(find) struct find f = {.st = st, .l = layout, .tape = tape};
    enum err rc = head_check_layout(st, layout, e);
    if (rc || (rc = session_row_need(st, session, &row, e)))
        return rc;
    f.session = row.num;
    f.position = position < tape->view.n_ids ? position : tape->view.n_ids;
    st->replay_tokens = layout->replay_tokens;
    if ((rc = search(&f, want, e)) || (rc = make_plan(&f, out, e)))
        return rc;
    pin_add(st, (*out)->chain);
    return OK;
}

enum err head_find(struct store *st, const char *session, const struct state_layout *layout,
                   uint64_t position, enum head_want want, struct head_plan **out,
                   struct error *e)
{
    AUTO(tape) struct tape tape = {0};
    AUTO(strand_path) struct strand_path path = {0};
    struct session_row row;
    enum err rc = head_check_layout(st, layout, e);
    if (rc || (rc = session_row_need(st, session, &row, e)))
        return rc;
    if ((rc = strand_path_load(st, row.strand, &path, e)) ||
        (rc = tape_load_path(st, &path, true, &tape, e)))
        return session_note(st, session, rc);
    if (!(rc = head_find_on(st, session, layout, &tape, position, want, out, e)))
        (*out)->own_ids = TAKE(tape.ids);
    return rc;
}
