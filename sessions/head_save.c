/* The state commit: extents written -> fdatasync -> one transaction with catalog rows and head.
 */
#include <stdlib.h>
#include <string.h>

#include "sessions/head_internal.h"
#include "sessions/hold.h"
#include "sessions/identity.h"
#include "sessions/le.h"
#include "sessions/schema.h"
#include "sessions/space_internal.h"
#include "sessions/strand.h"
#include "sessions/tape.h"
#include "sessions/tape_internal.h"

#define MAX_DROPPED 512

/* A state commit on its way. */
struct save {
    struct store *st;
    const struct head_save *s;
    const struct state_layout *l;
    struct session_row session;
    struct tape tape;        /* segments and marks */
    uint32_t *ids;           /* of the tokens [ids_from, s->to) */
    uint64_t ids_from;       /* beginning of the block that s->from is in */
    struct head_chain chain; /* tokens [0, s->from) as they are stored */
    uint64_t commit, now;
    int64_t layout;
    bool layout_is_new;
    uint8_t root[HASH_BYTES];

    /* The end of the chain as it grows. */
    uint64_t at;                     /* tokens that are in extents */
    int64_t block, tail;             /* what the chain ends in */
    int64_t full_block;              /* last block that counts whole */
    uint8_t full_key[HASH_BYTES];    /* its key; the root if there is none */
    uint8_t full_digest[HASH_BYTES]; /* its digest */
    uint8_t digest[HASH_BYTES];      /* of what the chain ends in */

    /* What the transaction is going to write. */
    struct block_row *blocks;
    size_t n_blocks;
    int64_t next_block;
    struct tail_row new_tail; /* x.id 0: none */
    struct tip_row new_tip;
    struct head_receipt receipt;

    /* What must not be evicted to make room for it. */
    uint64_t left; /* bytes it is going to write at most */
    int64_t *kept; /* blocks it goes on from or has found */
    size_t n_kept;
    int64_t kept_tail, kept_tip;
};

static void save_fini(struct save *v)
{
    tape_fini(&v->tape);
    free(v->ids);
    head_chain_fini(&v->chain);
    free(v->blocks);
    free(v->kept);
}

/* ---- where the new rows go --------------------------------------------------------------- */

static enum err load_tape(struct save *v, struct error *e)
{
    const struct head_save *s = v->s;
    AUTO(strand_path) struct strand_path path = {0};
    enum err rc = strand_path_load(v->st, v->session.strand, &path, e);
    if (rc)
        return rc;
    if (s->to > path.length || s->from > s->to)
        return err_set(e, ERR_INVAL, "state from %llu to %llu: the tape has %llu tokens",
                       (unsigned long long)s->from, (unsigned long long)s->to,
                       (unsigned long long)path.length);
    if ((rc = tape_load_path(v->st, &path, false, &v->tape, e)))
        return rc;
    if (v->tape.damaged)
        return err_set(e, ERR_CORRUPT, "session %s: its tape is damaged", s->session);
    v->ids_from = s->from - s->from % v->st->block_tokens;
    v->ids = malloc((size_t)(s->to - v->ids_from + 1) * sizeof *v->ids);
    if (!v->ids)
        return err_set(e, ERR_NOMEM, "state: out of memory");
    return strand_read_ids(v->st, &path, v->ids_from, s->to, v->ids, NULL, e);
}

/* The session's newest chain, cut to the rows that stay. */
static enum err load_chain(struct save *v, struct error *e)
{
    const struct head_save *s = v->s;
    if (s->from == 0)
        return OK;
    struct head_row head;
    bool found;
    enum err rc = head_row_read(v->st, v->session.num, 0, &head, &found, e);
    if (rc)
        return rc;
    if (!found || head.layout != v->layout)
        return err_set(e, ERR_CORRUPT, "session %s has no state of this model before %llu",
                       s->session, (unsigned long long)s->from);
    if (head.position < s->from)
        return err_set(e, ERR_INVAL, "state from %llu: what is saved ends at %llu",
                       (unsigned long long)s->from, (unsigned long long)head.position);
    v->kept_tip = head.tip;
    if ((rc = chain_load(v->st, v->layout, head.block, head.tail, s->from, &v->chain, e)))
        return rc;
    if (v->chain.position < s->from) {
        v->receipt.retry_from = v->chain.position - v->chain.position % v->st->block_tokens;
        return err_set(e, ERR_CORRUPT, "state before %llu is damaged at %llu",
                       (unsigned long long)s->from, (unsigned long long)v->chain.position);
    }
    return OK;
}

static void find_ends(struct save *v)
{
    v->at = v->s->from;
    chain_ends(&v->chain, &v->block, &v->tail);
    memcpy(v->full_key, v->root, sizeof v->full_key);
    for (size_t i = 0; i < v->chain.n_pieces; i++) {
        const struct chain_piece *p = &v->chain.pieces[i];
        memcpy(v->digest, p->x.digest, sizeof v->digest);
        if (p->kind == PIECE_BLOCK && p->used == p->last) {
            v->full_block = p->x.id;
            memcpy(v->full_key, p->key, sizeof v->full_key);
            memcpy(v->full_digest, p->x.digest, sizeof v->full_digest);
        }
    }
}

/* ---- building extents -------------------------------------------------------------------- */

static void begin_extent(struct save *v, struct extent *x, enum extent_kind kind,
                         uint64_t first, uint64_t last)
{
    *x = (struct extent){
        .kind = kind,
        .algorithm = v->st->space.algorithm,
        .first = first,
        .last = last,
        .commit = v->commit,
        .written_ms = v->now,
        .lineage = v->s->lineage,
        .block_tokens = v->st->block_tokens,
        .tip_bytes = v->l->tip_bytes,
    };
    crypto_random(x->nonce, sizeof x->nonce);
    memcpy(x->root, v->root, sizeof x->root);
    memcpy(x->key, v->full_key, sizeof x->key);
    memcpy(x->parent, v->full_key, sizeof x->parent);
    memcpy(x->before, v->digest, sizeof x->before);
    memcpy(x->fingerprint, v->l->fingerprint, sizeof x->fingerprint);
    memcpy(x->session, v->session.id, sizeof v->session.id);
    snprintf(x->numerics, sizeof x->numerics, "%s", v->l->numerics);
}

static uint8_t *region_at(struct save *v, const struct extent_region *r)
{
    return (uint8_t *)v->st->extent.p + (size_t)r->page * EXTENT_PAGE;
}

/* Memory for an extent that is laid out; all padding is 0. */
static enum err make_room(struct save *v, const struct extent *x, struct error *e)
{
    enum err rc = page_buffer_need(&v->st->extent, (size_t)x->pages * EXTENT_PAGE, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < x->n_regions; i++) {
        const struct extent_region *r = &x->regions[i];
        size_t padded = (size_t)extent_pages(r->bytes) * EXTENT_PAGE;
        memset(region_at(v, r) + r->bytes, 0, padded - r->bytes);
    }
    return OK;
}

/* Copies what the caller gave of rows [first / ratio, last / ratio) to where they belong. */
static void copy_given(struct save *v, const struct extent *x, uint64_t first)
{
    const struct head_save *s = v->s;
    for (uint32_t i = 0; i < x->n_regions; i++) {
        const struct extent_region *r = &x->regions[i];
        if (r->what != REGION_INDEX && r->what != REGION_MAIN)
            continue;
        uint64_t row0 = first / r->ratio, row1 = x->last / r->ratio;
        uint64_t skip = row0 - x->first / r->ratio, given = s->from / r->ratio;
        if (row1 > row0)
            memcpy(region_at(v, r) + skip * r->row_bytes,
                   (const uint8_t *)s->plane[r->plane] + (row0 - given) * r->row_bytes,
                   (size_t)((row1 - row0) * r->row_bytes));
    }
    if (x->last > x->first)
        memcpy(region_at(v, &x->regions[0]), v->ids + (x->first - v->ids_from),
               (size_t)(x->last - x->first) * 4);
}

/* Reads the rows of a piece that counts for block x, and puts them where they belong. */
static enum err gather_piece(struct save *v, const struct extent *x,
                             const struct chain_piece *p, struct error *e)
{
    struct head_want_extent want = head_want_of(p);
    AUTO(head_extent) struct head_extent h = {0};
    enum err rc = head_extent_open(v->st, &want, &h, e);
    for (uint32_t i = 1; i < x->n_regions && !rc; i++) {
        const struct extent_region *r = &x->regions[i];
        const struct extent_region *from = head_region(&h.x, &v->l->planes[r->plane]);
        uint64_t row0 = p->first / r->ratio, n = extent_rows(p->first, p->used, r->ratio);
        if (!from || from->bytes < n * r->row_bytes)
            return err_set(e, ERR_CORRUPT, "extent lacks plane %.23s", r->name);
        if (n == 0)
            continue;
        if (!(rc = head_extent_read(v->st, &want, &h, from, e)))
            memcpy(region_at(v, r) + (row0 - x->first / r->ratio) * r->row_bytes,
                   v->st->scratch.p, (size_t)(n * r->row_bytes));
    }
    return rc;
}

/* The rows of block x that were saved before: from tails and the block they are behind. */
static enum err gather(struct save *v, const struct extent *x, struct error *e)
{
    for (size_t i = 0; i < v->chain.n_pieces; i++) {
        const struct chain_piece *p = &v->chain.pieces[i];
        if (p->first < x->first)
            continue;
        enum err rc = gather_piece(v, x, p, e);
        if (!head_is_damage(rc)) {
            if (rc)
                return rc;
            continue;
        }
        v->receipt.retry_from = x->first;
        if (rc != ERR_IO)
            (void)!head_set_aside(v->st, p, NULL);
        return e->code = ERR_CORRUPT;
    }
    return OK;
}

/* The digest of what lies in the buffer, behind `before`. */
static void digest_rows(struct save *v, const struct extent *x, const uint8_t *before,
                        uint8_t out[HASH_BYTES])
{
    struct hash h;
    uint8_t first[8];
    le_put64(first, x->first);
    hash_init(&h, v->st->space.digest_key, HASH_BYTES);
    hash_field(&h, "digest", 6);
    hash_field(&h, before, HASH_BYTES);
    hash_field(&h, first, sizeof first);
    for (uint32_t i = 0; i < x->n_regions; i++)
        hash_field(&h, region_at(v, &x->regions[i]), (size_t)x->regions[i].bytes);
    hash_final(&h, out);
}

/* ---- room -------------------------------------------------------------------------------- */

static enum err keep_block(struct save *v, int64_t id, struct error *e)
{
    int64_t *grown = realloc(v->kept, (v->n_kept + 1) * sizeof *grown);
    if (!grown)
        return err_set(e, ERR_NOMEM, "state: out of memory");
    v->kept = grown;
    v->kept[v->n_kept++] = id;
    return OK;
}

/* What all extents take if no block of them is there already. */
static enum err plan_room(struct save *v, struct error *e)
{
    uint64_t at = v->at, b = v->st->block_tokens, to = v->s->to;
    struct extent x = {.kind = EXTENT_BLOCK, .first = at - at % b};
    enum err rc = OK;
    if (at / b < to / b) {
        x.last = x.first + b;
        rc = extent_plan_rows(&x, v->l, e);
        v->left += (to / b - at / b) * x.pages * EXTENT_PAGE;
        at = to - to % b;
    }
    if (!rc && at < to) {
        x = (struct extent){.kind = EXTENT_TAIL, .first = at, .last = to};
        rc = extent_plan_rows(&x, v->l, e);
        v->left += (uint64_t)x.pages * EXTENT_PAGE;
    }
    if (!rc && v->s->tip) {
        x = (struct extent){.kind = EXTENT_TIP, .first = to, .last = to};
        rc = extent_plan_one(&x, REGION_TIP, v->l->tip_bytes, e);
        v->left += (uint64_t)x.pages * EXTENT_PAGE;
    }
    return rc || !v->block ? rc : keep_block(v, v->block, e);
}

/* An extent of so many pages is not going to be written any more. */
static void less_left(struct save *v, uint32_t pages)
{
    uint64_t n = (uint64_t)pages * EXTENT_PAGE;
    v->left -= n < v->left ? n : v->left;
}

static enum err admit(struct save *v, uint32_t pages, struct error *e)
{
    const struct evict_keep keep = {v->kept, v->n_kept, v->kept_tail, v->kept_tip};
    return space_admit(v->st, (uint64_t)pages * EXTENT_PAGE, v->left, &keep, e);
}

/* Seals the extent in the buffer and writes it to the open pack. */
static enum err write_extent(struct save *v, const struct extent *x, struct extent_row *row,
                             struct error *e)
{
    struct store *st = v->st;
    const uint8_t *uuid;
    enum err rc = admit(v, x->pages, e);
    if (rc || (rc = pack_room(st, x->pages, &row->place, &uuid, e)))
        return rc;
    less_left(v, x->pages);
    extent_seal(x, &st->space.keys, uuid, row->place.off, st->extent.p);
    if ((rc = pack_write(st, &row->place, st->extent.p, e)))
        return rc;
    row->layout = v->layout;
    row->lineage = x->lineage;
    row->commit = x->commit;
    memcpy(row->digest, x->digest, sizeof row->digest);
    snprintf(row->numerics, sizeof row->numerics, "%s", x->numerics);
    uint64_t n = (uint64_t)x->pages * EXTENT_PAGE;
    v->receipt.bytes_written += n;
    v->receipt.bytes_tail += x->kind == EXTENT_TAIL ? n : 0;
    v->receipt.bytes_tip += x->kind == EXTENT_TIP ? n : 0;
    return OK;
}

/* ---- blocks, tail, tip ------------------------------------------------------------------- */

static enum err add_block_row(struct save *v, const struct block_row *r, struct error *e)
{
    struct block_row *grown = realloc(v->blocks, (v->n_blocks + 1) * sizeof *grown);
    if (!grown)
        return err_set(e, ERR_NOMEM, "state: out of memory");
    v->blocks = grown;
    v->blocks[v->n_blocks++] = *r;
    return OK;
}

/* Whether every byte of a stored block is there: who shares one has no other copy, and the rows
 * are at hand now. Reading costs no more than the writing that it saves. ERR_NOMEM. */
static enum err is_whole(struct save *v, const struct extent *x, const struct extent_row *row,
                         bool *out, struct error *e)
{
    const struct head_want_extent want = {.place = row->place,
                                          .digest = row->digest,
                                          .kind = EXTENT_BLOCK,
                                          .first = x->first,
                                          .last = x->last};
    AUTO(head_extent) struct head_extent h = {0};
    enum err rc = head_extent_open(v->st, &want, &h, e);
    for (uint32_t i = 0; i < h.x.n_regions && !rc; i++)
        rc = head_extent_read(v->st, &want, &h, &h.x.regions[i], e);
    *out = rc == OK;
    return rc == ERR_NOMEM ? rc : OK;
}

/* Finds the block's row, or makes it. Equal digests mean equal bytes from the first token on.
 * So one that is stored is shared; one that was set aside, or whose parent is, or that is not
 * to be had any more, is mended for all who refer to it. */
static enum err store_block(struct save *v, const struct extent *x, int64_t *id,
                            struct error *e)
{
    struct block_row r;
    bool found = false;
    enum err rc = OK;
    if (!v->layout_is_new)
        rc = block_find_same(v->st, v->layout, x->key, x->digest, &r, &found, e);
    if (rc)
        return rc;
    bool usable = found && !r.x.damaged;
    if (usable && (rc = pack_is_there(v->st, r.x.place.pack, &usable, e)))
        return rc;
    if (usable && (rc = is_whole(v, x, &r.x, &usable, e)))
        return rc;
    if (usable) {
        less_left(v, r.x.place.pages);
        if ((rc = keep_block(v, r.x.id, e)))
            return rc;
    }
    v->receipt.blocks_shared += usable;
    v->receipt.blocks_new += !usable;
    if (!found) {
        r = (struct block_row){.x = {.id = v->next_block++},
                               .depth = x->first / v->st->block_tokens};
        memcpy(r.key, x->key, sizeof r.key);
    }
    *id = r.x.id;
    if (usable && r.parent == v->full_block)
        return OK;
    r.parent = v->full_block;
    r.used_ms = v->now;
    r.x.damaged = false;
    if (!usable && (rc = write_extent(v, x, &r.x, e)))
        return rc;
    return add_block_row(v, &r, e);
}

/* Completes the block that v->at is in. */
static enum err put_block(struct save *v, struct error *e)
{
    uint64_t first = v->at - v->at % v->st->block_tokens;
    struct extent x;
    begin_extent(v, &x, EXTENT_BLOCK, first, first + v->st->block_tokens);
    identity_block(v->st->space.identity_key, v->full_key, v->ids + (first - v->ids_from),
                   v->st->block_tokens, x.key);
    memcpy(x.before, v->full_digest, sizeof x.before);
    enum err rc = extent_plan_rows(&x, v->l, e);
    if (rc || (rc = make_room(v, &x, e)))
        return rc;
    if (v->at > first) {
        if ((rc = gather(v, &x, e)))
            return rc;
        for (size_t i = 0; i < v->chain.n_pieces; i++)
            if (v->chain.pieces[i].first >= first && v->chain.pieces[i].x.lineage > x.lineage)
                x.lineage = v->chain.pieces[i].x.lineage;
    }
    copy_given(v, &x, v->at);
    digest_rows(v, &x, v->full_digest, x.digest);
    int64_t id;
    if ((rc = store_block(v, &x, &id, e)))
        return rc;
    v->block = v->full_block = id;
    v->tail = 0;
    v->at = x.last;
    memcpy(v->full_key, x.key, sizeof v->full_key);
    memcpy(v->full_digest, x.digest, sizeof v->full_digest);
    memcpy(v->digest, x.digest, sizeof v->digest);
    return OK;
}

/* The rows behind the last full block. */
static enum err put_tail(struct save *v, struct error *e)
{
    struct extent x;
    begin_extent(v, &x, EXTENT_TAIL, v->at, v->s->to);
    enum err rc = extent_plan_rows(&x, v->l, e);
    if (rc || (rc = make_room(v, &x, e)))
        return rc;
    copy_given(v, &x, v->at);
    digest_rows(v, &x, v->digest, x.digest);
    struct tail_row r = {.block = v->block, .prev = v->tail, .first = x.first, .last = x.last};
    if ((rc = catalog_next_id(v->st, CATALOG_TAILS, &r.x.id, e)) ||
        (rc = write_extent(v, &x, &r.x, e)))
        return rc;
    v->new_tail = r;
    v->tail = r.x.id;
    v->at = x.last;
    return OK;
}

static enum err put_tip(struct save *v, struct error *e)
{
    const struct head_save *s = v->s;
    uint8_t shape[HASH_BYTES];
    bool inside;
    identity_shape(v->st->space.identity_key, &v->tape.view, s->to, &inside, shape);
    if (inside != s->inside_segment)
        return err_set(e, ERR_INVAL, "tip at %llu: the tape says it is %s an input segment",
                       (unsigned long long)s->to, inside ? "inside" : "not inside");
    struct extent x;
    begin_extent(v, &x, EXTENT_TIP, s->to, s->to);
    x.inside_segment = inside;
    x.digest_rows = s->digest_rows;
    memcpy(x.segment_digest, s->digest, sizeof x.segment_digest);
    memcpy(x.digest, s->digest, sizeof x.digest);
    uint64_t rest = s->to % v->st->block_tokens;
    /* Only what is behind the last full block; those ids are all in v->ids. */
    identity_tip(v->st->space.identity_key, v->full_key, v->ids + (s->to - rest - v->ids_from),
                 (uint32_t)rest, shape, x.key);
    enum err rc = extent_plan_one(&x, REGION_TIP, v->l->tip_bytes, e);
    if (rc || (rc = make_room(v, &x, e)))
        return rc;
    memcpy(region_at(v, &x.regions[0]), s->tip, (size_t)v->l->tip_bytes);
    struct tip_row r = {.position = s->to,
                        .inside = inside,
                        .block = v->block,
                        .tail = v->tail,
                        .digest_rows = s->digest_rows};
    memcpy(r.key, x.key, sizeof r.key);
    if ((rc = catalog_next_id(v->st, CATALOG_TIPS, &r.x.id, e)) ||
        (rc = write_extent(v, &x, &r.x, e)))
        return rc;
    v->new_tip = r;
    return OK;
}

static enum err put_extents(struct save *v, struct error *e)
{
    enum err rc = catalog_next_id(v->st, CATALOG_BLOCKS, &v->next_block, e);
    uint64_t whole = v->s->to - v->s->to % v->st->block_tokens;
    while (!rc && v->at < whole)
        rc = put_block(v, e);
    if (!rc && v->at < v->s->to)
        rc = put_tail(v, e);
    if (!rc && v->s->tip)
        rc = put_tip(v, e);
    return rc ? rc : pack_sync(v->st, e);
}

/* ---- the transaction --------------------------------------------------------------------- */

static enum err put_rows(struct save *v, struct error *e)
{
    struct store *st = v->st;
    enum err rc = OK;
    if (v->layout_is_new) {
        uint8_t spec[IDENTITY_SPEC_BYTES(STATE_MAX_PLANES)];
        identity_spec(v->l, spec);
        rc = layout_add(st, v->layout, v->l->fingerprint, spec,
                        IDENTITY_SPEC_BYTES(v->l->n_planes), v->root, e);
    }
    for (size_t i = 0; i < v->n_blocks && !rc; i++)
        rc = block_write(st, &v->blocks[i], e);
    if (!rc && v->new_tail.x.id)
        rc = tail_write(st, &v->new_tail, e);
    if (!rc && v->new_tip.x.id)
        rc = tip_write(st, &v->new_tip, e);
    if (!rc)
        rc = pack_note(st, e);
    return rc ? rc : meta_write(st, "state_commit", &v->commit, sizeof v->commit, e);
}

static enum err commit_rows(struct save *v, struct pack_place *dropped, size_t *n,
                            struct error *e)
{
    struct head_row head = {
        .session = v->session.num,
        .layout = v->layout,
        .position = v->s->to,
        .block = v->block,
        .tail = v->tail,
        .tip = v->new_tip.x.id,
        .lineage = chain_lineage(&v->chain),
        .commit = v->commit,
    };
    if (v->s->lineage > head.lineage)
        head.lineage = v->s->lineage;
    snprintf(head.numerics, sizeof head.numerics, "%s", v->l->numerics);
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &v->st->db, e);
    if (rc || (rc = put_rows(v, e)) ||
        (rc = head_row_push(v->st, &head, dropped, MAX_DROPPED, n, e)) ||
        (rc = hold_touch(v->st, v->session.num, e)))
        return rc;
    return txn_commit(&t, e);
}

/* ---- the call ---------------------------------------------------------------------------- */

static enum err check_call(struct save *v, struct error *e)
{
    const struct head_save *s = v->s;
    enum err rc = head_check_layout(v->st, s->layout, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < s->layout->n_planes; i++)
        if (!s->plane[i] && extent_rows(s->from, s->to, s->layout->planes[i].ratio))
            return err_set(e, ERR_INVAL, "plane %.23s: no rows given",
                           s->layout->planes[i].name);
    if (s->tip && !s->layout->tip_bytes)
        return err_set(e, ERR_INVAL, "a tip, but the layout has none");
    return OK;
}

static enum err prepare(struct save *v, struct error *e)
{
    struct store *st = v->st;
    enum err rc = check_call(v, e);
    if (rc || (rc = session_row_sound(st, v->s->session, &v->session, e)))
        return rc;
    if ((rc = load_tape(v, e)))
        return session_note(st, v->s->session, rc);
    if ((rc = layout_find(st, v->l, &v->layout, v->root, e)) ||
        (rc = meta_read(st, "state_commit", &v->commit, sizeof v->commit, e)))
        return rc;
    v->commit++;
    if ((rc = load_chain(v, e)))
        return rc;
    v->layout_is_new = !v->layout;
    if (v->layout_is_new && (rc = layout_next_id(st, &v->layout, e)))
        return rc;
    find_ends(v);
    v->kept_tail = v->tail;
    return plan_room(v, e);
}

enum err head_save(struct store *st, const struct head_save *s, struct head_receipt *r,
                   struct error *e)
{
    struct pack_place dropped[MAX_DROPPED];
    size_t n_dropped = 0;
    struct error mine;
    e = e ? e : &mine;
    st->replay_tokens = s->layout->replay_tokens;
    AUTO(save) struct save v = {.st = st, .s = s, .l = s->layout, .now = store_now_ms(st)};
    enum err rc = pack_check_removed(st, e);
    if (!rc)
        rc = prepare(&v, e);
    if (!rc) {
        rc = put_extents(&v, e);
        if (!rc)
            rc = commit_rows(&v, dropped, &n_dropped, e);
        if (rc)
            pack_undo(st);
    }
    if (rc) {
        if (r)
            r->retry_from = v.receipt.retry_from;
        return err_wrap(e, rc, "save state");
    }
    pack_done(st);
    for (size_t i = 0; i < n_dropped; i++)
        pack_free(st, &dropped[i]);
    v.receipt.position = s->to;
    v.receipt.commit = v.commit;
    if (r)
        *r = v.receipt;
    return OK;
}
