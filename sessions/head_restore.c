/* Restoring state: headers and token ids, then tip and index planes, then the main planes.
 *
 * All of it is one list of reads. It begins with what nothing can be checked without: the
 * header page of each extent and the token ids behind it, in one read (their place follows from
 * the layout; where a header says something else, they are read again). When a header is in,
 * the reads of its tip or index planes are put behind the list; when all are, those of the main
 * planes, each extent's regions behind each other as they lie on disk. So the reads never
 * pause, and the session can begin when everything but main planes is through.
 *
 * A read that fails, or whose tags or ids do not match, shortens the prefix to the tokens
 * before its extent, and sets it aside. What is behind is read all the same: the tokens come
 * back to the store under the same keys once they are computed again, and a save shares what it
 * finds there, so every bad extent of the chain has to be set aside now: then it is written
 * anew. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/aio.h"
#include "sessions/hold.h"
#include "sessions/late_internal.h"
#include "sessions/pin.h"
#include "sessions/reader.h"
#include "sessions/strand.h"
#include "sessions/tape.h"
#include "sessions/tape_internal.h"

/* The beginning of one extent: its header, and the token ids behind it. */
struct beginning {
    struct head_want_extent want;
    const uint32_t *ids; /* what the tape has there; NULL: a tip */
    uint64_t n_ids;
    bool again; /* sound, but longer than what was read */
};

struct restore {
    struct store *st;
    const struct head_restore *h;
    const struct head_chain *chain;
    const uint32_t *ids;         /* of the tape */
    uint32_t *own_ids;           /* the same, unless they are the plan's */
    struct head_extent *extents; /* n_pieces + 1: the last is the tip's */
    bool *failed;                /* of each piece */
    uint64_t good;               /* tokens before the first that failed */
    bool tip_good;
    struct beginning *begin; /* of each */
    struct reader_job *jobs; /* room for all that there can be: they do not move */
    size_t n_jobs, cap_jobs;
    size_t n_late;       /* pieces, from the first on, whose main planes stay behind */
    struct late *late;   /* who has them */
    size_t headers_left; /* that are not through; then */
    size_t first_left;   /* jobs that the engine waits for, headers included */
    uint64_t t0, done, total;
    struct head_restored out;
    bool cancelled;
};

static void restore_fini(struct restore *r)
{
    late_unref(r->late);
    free(r->own_ids);
    for (size_t i = 0; r->extents && i <= r->chain->n_pieces; i++)
        head_extent_fini(&r->extents[i]);
    free(r->extents);
    free(r->failed);
    free(r->begin);
    free(r->jobs);
}

/* ---- places ------------------------------------------------------------------------------ */

static bool is_tip(const struct restore *r, size_t piece)
{
    return piece == r->chain->n_pieces;
}

static struct head_want_extent want_of(const struct restore *r, size_t piece)
{
    if (!is_tip(r, piece))
        return head_want_of(&r->chain->pieces[piece]);
    const struct tip_row *t = &r->chain->tip;
    return (struct head_want_extent){t->x.place, EXTENT_TIP, t->position, t->position,
                                     t->x.digest};
}

/* The place of a piece's row has not changed since it was found: another save may have let go
 * of it in between. Where nothing at all was written since, nothing has to be looked up. */
static bool is_current(struct restore *r, size_t piece)
{
    struct extent_row now;
    if (r->h->plan->n_changes == db_changes(&r->st->db))
        return true;
    if (is_tip(r, piece)) {
        struct tip_row t;
        if (tip_read(r->st, r->chain->tip.x.id, &t, NULL))
            return false;
        now = t.x;
    } else if (r->chain->pieces[piece].kind == PIECE_BLOCK) {
        struct block_row b;
        if (block_read(r->st, r->chain->pieces[piece].x.id, &b, NULL))
            return false;
        now = b.x;
    } else {
        struct tail_row t;
        if (tail_read(r->st, r->chain->pieces[piece].x.id, &t, NULL))
            return false;
        now = t.x;
    }
    struct head_want_extent w = want_of(r, piece);
    return !now.damaged && now.place.pack == w.place.pack && now.place.off == w.place.off &&
           memcmp(now.digest, w.digest, HASH_BYTES) == 0;
}

/* ---- failing ----------------------------------------------------------------------------- */

static void shorten(struct restore *r, size_t piece)
{
    if (is_tip(r, piece)) {
        r->tip_good = false;
        return;
    }
    r->failed[piece] = true;
    if (r->chain->pieces[piece].first < r->good)
        r->good = r->chain->pieces[piece].first;
}

/* What was read cannot be trusted, or cannot be read: it is set aside, so that nobody finds it
 * again, and is written anew once its rows are computed. */
static void spoil(struct restore *r, size_t piece)
{
    shorten(r, piece);
    r->out.extents_damaged++;
    if (is_tip(r, piece))
        (void)!catalog_set_aside(r->st, CATALOG_TIPS, r->chain->tip.x.id, NULL);
    else
        (void)!head_set_aside(r->st, &r->chain->pieces[piece], NULL);
}

static bool is_wanted(const struct restore *r, size_t piece)
{
    return is_tip(r, piece) ? r->tip_good : !r->failed[piece];
}

/* ---- jobs -------------------------------------------------------------------------------- */

/* Everything but main planes. */
static bool is_first(const struct reader_job *j)
{
    return !j->region || j->region->what != REGION_MAIN;
}

static void add_job(struct restore *r, const struct reader_job *job)
{
    assert(r->n_jobs < r->cap_jobs);
    r->first_left += is_first(job);
    r->jobs[r->n_jobs++] = *job;
}

/* Jobs that a region of so many bytes becomes. */
static size_t count_pieces(uint64_t n_bytes)
{
    return (size_t)((n_bytes + READER_PIECE - 1) / READER_PIECE);
}

static size_t count_jobs(const struct restore *r)
{
    const struct state_layout *l = r->h->layout;
    size_t n = 1 + count_pieces(l->tip_bytes) + r->chain->n_pieces;
    for (size_t i = 0; i < r->chain->n_pieces; i++)
        for (uint32_t k = 0; k < l->n_planes; k++) {
            const struct chain_piece *p = &r->chain->pieces[i];
            n += count_pieces(extent_rows(p->first, p->used, l->planes[k].ratio) *
                              l->planes[k].row_bytes);
        }
    return n;
}

/* The first n_used bytes of a region. */
static void add_region(struct restore *r, size_t piece, const struct extent_region *region,
                       uint8_t *dst, uint64_t n_used)
{
    struct pack_place place = want_of(r, piece).place;
    uint64_t padded = extent_pages(region->bytes) * EXTENT_PAGE;
    for (uint64_t at = 0; at < n_used; at += READER_PIECE) {
        uint64_t n = padded - at < READER_PIECE ? padded - at : READER_PIECE;
        const struct reader_job job = {
            .owner = piece,
            .pack = place.pack,
            .off = place.off + (uint64_t)region->page * EXTENT_PAGE + at,
            .n = (size_t)n,
            .dst = dst + at,
            .n_used = (size_t)(n_used - at < n ? n_used - at : n),
            .open = reader_open_region,
            .h = &r->extents[piece],
            .region = region,
            .chunk = (uint32_t)(at / EXTENT_CHUNK),
            .n_chunks = (uint32_t)((n + EXTENT_CHUNK - 1) / EXTENT_CHUNK),
        };
        add_job(r, &job);
    }
}

/* Rows that count of one plane in one piece. */
static void add_rows(struct restore *r, size_t piece, uint32_t plane)
{
    const struct chain_piece *p = &r->chain->pieces[piece];
    const struct plane_spec *spec = &r->h->layout->planes[plane];
    const struct extent_region *region = head_region(&r->extents[piece].x, spec);
    uint64_t rows = extent_rows(p->first, p->used, spec->ratio);
    if (!region || region->bytes < rows * spec->row_bytes) {
        spoil(r, piece);
        return;
    }
    uint8_t *dst = r->h->dst->plane[plane];
    if (rows)
        add_region(r, piece, region, dst + p->first / spec->ratio * spec->row_bytes,
                   rows * spec->row_bytes);
}

static void add_planes(struct restore *r, size_t piece, enum plane_kind kind)
{
    for (uint32_t k = 0; k < r->h->layout->n_planes && is_wanted(r, piece); k++)
        if (r->h->layout->planes[k].kind == kind)
            add_rows(r, piece, k);
}

/* The main planes of a piece stay where they are, if they are all there. */
static void leave_planes(struct restore *r, size_t piece)
{
    const struct chain_piece *p = &r->chain->pieces[piece];
    for (uint32_t k = 0; k < r->h->layout->n_planes && is_wanted(r, piece); k++) {
        const struct plane_spec *spec = &r->h->layout->planes[k];
        if (spec->kind != PLANE_MAIN)
            continue;
        const struct extent_region *region = head_region(&r->extents[piece].x, spec);
        uint64_t bytes = extent_rows(p->first, p->used, spec->ratio) * spec->row_bytes;
        if (!region || region->bytes < bytes)
            spoil(r, piece);
        else
            r->total -= extent_pages(bytes) * EXTENT_PAGE;
    }
}

static void add_tip(struct restore *r)
{
    size_t tip = r->chain->n_pieces;
    const struct extent_region *region = &r->extents[tip].x.regions[0];
    if (region->what == REGION_TIP && region->bytes == r->h->layout->tip_bytes)
        add_region(r, tip, region, r->h->tip, region->bytes);
    else
        spoil(r, tip);
}

/* ---- headers and ids --------------------------------------------------------------------- */

/* Whether the ids region, at `data`, is what the tape says. */
static enum err check_ids(const struct beginning *b, const struct head_extent *h,
                          const struct extent_keys *k, uint8_t *data)
{
    enum err rc = extent_open(&h->x, h->header, &h->x.regions[0], k, data, NULL);
    if (!rc && memcmp(data, b->ids, (size_t)b->n_ids * 4) != 0)
        rc = ERR_CORRUPT;
    return rc;
}

static bool has_ids(const struct head_extent *h)
{
    return h->x.regions[0].what == REGION_IDS &&
           h->x.regions[0].bytes == (h->x.last - h->x.first) * 4;
}

static enum err open_beginning(struct reader_job *j, uint8_t *data)
{
    struct beginning *b = j->context; /* the job's own until it is through */
    size_t n = (size_t)extent_header_pages(data) * EXTENT_PAGE;
    if (!n || n > (size_t)b->want.place.pages * EXTENT_PAGE)
        return ERR_CORRUPT;
    b->again = n > j->n;
    if (b->again)
        return OK;
    if (!(j->h->header = malloc(n)))
        return ERR_NOMEM;
    memcpy(j->h->header, data, n);
    enum err rc = extent_decode(data, n, j->keys->header, j->uuid, j->off, &j->h->x, NULL);
    if (rc || (rc = head_extent_check(&j->h->x, &b->want, NULL)))
        return rc;
    if (!b->ids)
        return OK;
    if (!has_ids(j->h))
        return ERR_CORRUPT;
    const struct extent_region *ids = &j->h->x.regions[0];
    size_t end = (size_t)(ids->page + extent_pages(ids->bytes)) * EXTENT_PAGE;
    b->again = end > j->n;
    return b->again ? OK : check_ids(b, j->h, j->keys, data + (size_t)ids->page * EXTENT_PAGE);
}

/* The same without haste. */
static enum err open_again(struct restore *r, size_t piece)
{
    const struct beginning *b = &r->begin[piece];
    struct head_extent *h = &r->extents[piece];
    head_extent_fini(h);
    enum err rc = head_extent_open(r->st, &b->want, h, NULL);
    if (rc || !b->ids)
        return rc;
    if (!has_ids(h))
        return ERR_CORRUPT;
    if ((rc = head_extent_read(r->st, &b->want, h, &h->x.regions[0], NULL)))
        return rc;
    return memcmp(r->st->scratch.p, b->ids, (size_t)b->n_ids * 4) ? ERR_CORRUPT : OK;
}

/* Pages that an extent of this store begins with: header and ids. */
static uint32_t pages_before_rows(const struct restore *r, size_t piece)
{
    struct head_want_extent want = want_of(r, piece);
    struct extent x = {.first = want.first, .last = want.last};
    enum err rc = is_tip(r, piece)
                      ? extent_plan_one(&x, REGION_TIP, r->h->layout->tip_bytes, NULL)
                      : extent_plan_rows(&x, r->h->layout, NULL);
    uint32_t pages = x.header_pages;
    if (!is_tip(r, piece))
        pages += (uint32_t)extent_pages(x.regions[0].bytes);
    return rc || pages > want.place.pages ? 1 : pages;
}

static void add_beginning(struct restore *r, size_t piece)
{
    struct beginning *b = &r->begin[piece];
    if (!is_wanted(r, piece))
        return;
    if (!is_current(r, piece)) {
        shorten(r, piece);
        return;
    }
    b->want = want_of(r, piece);
    if (!is_tip(r, piece)) {
        const struct chain_piece *p = &r->chain->pieces[piece];
        b->ids = r->ids + p->first;
        b->n_ids = p->used - p->first;
    }
    const struct reader_job job = {
        .owner = piece,
        .pack = b->want.place.pack,
        .off = b->want.place.off,
        .n = (size_t)pages_before_rows(r, piece) * EXTENT_PAGE,
        .open = open_beginning,
        .h = &r->extents[piece],
        .context = b,
    };
    r->headers_left++;
    add_job(r, &job);
}

/* ---- running jobs ------------------------------------------------------------------------ */

static bool job_wanted(void *user, const struct reader_job *j)
{
    const struct restore *r = user;
    return !r->cancelled && is_wanted(r, j->owner);
}

/* A pack that cannot be opened says nothing about what is in it: the file may come back. */
static void failed(struct restore *r, size_t piece, enum err rc)
{
    if (!is_wanted(r, piece))
        return;
    if (rc == ERR_NOTFOUND || rc == ERR_NOMEM)
        shorten(r, piece);
    else
        spoil(r, piece);
}

/* A header is through: what stands behind it can be read. */
static void header_finished(struct restore *r, struct reader_job *j)
{
    enum err rc = j->rc;
    if (!rc && r->begin[j->owner].again)
        rc = open_again(r, j->owner);
    if (rc && rc != ERR_CANCELLED)
        failed(r, j->owner, rc);
    if (!rc && is_tip(r, j->owner))
        add_tip(r);
    else if (!rc)
        add_planes(r, j->owner, PLANE_INDEX);
    if (--r->headers_left == 0)
        for (size_t i = 0; i < r->chain->n_pieces && !r->cancelled; i++) {
            if (i < r->n_late)
                leave_planes(r, i);
            else
                add_planes(r, i, PLANE_MAIN);
        }
}

static void job_finished(void *user, struct reader_job *j)
{
    struct restore *r = user;
    r->done += j->n;
    if (j->open == open_beginning)
        header_finished(r, j);
    else if (j->rc && j->rc != ERR_CANCELLED)
        failed(r, j->owner, j->rc);
    else if (!j->rc && !is_tip(r, j->owner) && r->h->dst->landed)
        r->h->dst->landed(r->h->dst->ctx, j->dst, j->n_used);
    if (is_first(j) && --r->first_left == 0)
        r->out.index_ns = clock_mono_ns(r->st->clock) - r->t0;
}

static void tell(void *user)
{
    struct restore *r = user;
    enum head_stage stage = r->first_left ? HEAD_STAGE_INDEX : HEAD_STAGE_MAIN;
    if (r->h->progress && !r->h->progress(r->h->user, stage, r->done, r->total))
        r->cancelled = true;
}

static enum err make_lists(struct restore *r, struct error *e)
{
    size_t n = r->chain->n_pieces + 1;
    r->cap_jobs = count_jobs(r);
    r->extents = calloc(n, sizeof *r->extents);
    r->failed = calloc(n, sizeof *r->failed);
    r->begin = calloc(n, sizeof *r->begin);
    r->jobs = calloc(r->cap_jobs, sizeof *r->jobs);
    if (!r->extents || !r->failed || !r->begin || !r->jobs)
        return err_set(e, ERR_NOMEM, "restore: out of memory");
    return OK;
}

static enum err restore_all(struct restore *r, struct error *e)
{
    r->total = r->h->plan->n_bytes;
    enum err rc = make_lists(r, e);
    if (rc)
        return rc;
    add_beginning(r, r->chain->n_pieces);
    for (size_t i = 0; i < r->chain->n_pieces; i++)
        add_beginning(r, i);
    struct reader reader = {.st = r->st,
                            .jobs = r->jobs,
                            .n_jobs = &r->n_jobs,
                            .n_bytes = r->total,
                            .wanted = job_wanted,
                            .finished = job_finished,
                            .progress = tell,
                            .user = r};
    rc = reader_run(&reader, e);
    r->out.bytes_read = reader.bytes_read;
    if (!rc && r->cancelled)
        rc = err_set(e, ERR_CANCELLED, "restore: cancelled");
    r->out.total_ns = clock_mono_ns(r->st->clock) - r->t0;
    return rc;
}

/* ---- what stays behind -------------------------------------------------------------------

 * Rows of whole blocks, in no more packs than may be kept open; what is in tails is brought. */
static size_t count_late(const struct restore *r)
{
    int64_t packs[LATE_MAX_PACKS];
    size_t n = 0, n_packs = 0;
    for (; r->h->late && n < r->chain->n_pieces; n++) {
        const struct chain_piece *p = &r->chain->pieces[n];
        size_t i = 0;
        if (p->kind != PIECE_BLOCK || p->used != p->last)
            break;
        while (i < n_packs && packs[i] != p->x.place.pack)
            i++;
        if (i == LATE_MAX_PACKS)
            break;
        packs[i] = p->x.place.pack;
        n_packs += i == n_packs;
    }
    return n;
}

/* Of the blocks that were restored. */
static enum err keep_late(struct restore *r, struct error *e)
{
    size_t n = 0;
    while (n < r->n_late && r->chain->pieces[n].used <= r->good)
        n++;
    enum err rc = n ? late_new(r->st, r->h->layout, n, &r->late, e) : OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = late_add(r->st, r->late, &r->chain->pieces[i], &r->extents[i], e);
    return rc;
}

/* ---- the head afterwards ----------------------------------------------------------------- */

static bool is_same_head(const struct head_row *h, bool found, const struct head_row *now,
                         int64_t tip)
{
    return found && h->layout == now->layout && h->position == now->position &&
           h->block == now->block && h->tail == now->tail && (!tip || h->tip == tip);
}

/* The position that the head has from now on. What was there and was evicted or set aside since
 * still counts: whoever computes it again can say so. */
static enum err saved_position(struct store *st, const struct head_row *old,
                               const struct head_chain *c, uint64_t *out, struct error *e)
{
    *out = c->position;
    if (old->layout != c->layout || old->position <= c->position)
        return OK;
    AUTO(head_chain) struct head_chain have = {0};
    enum err rc = chain_load(st, old->layout, old->block, old->tail, old->position, &have, e);
    if (!rc && have.position <= c->position)
        *out = old->position;
    return rc;
}

/* Makes what was restored the session's head, unless it is already. */
static enum err adopt(struct restore *r, int64_t session, struct head_chain *c, struct error *e)
{
    struct pack_place dropped[64];
    size_t n_dropped = 0;
    struct head_row old, head = {.session = session, .layout = c->layout};
    bool found;
    chain_ends(c, &head.block, &head.tail);
    enum err rc = head_row_read(r->st, session, 0, &old, &found, e);
    head.position = c->position;
    if (!rc && found)
        rc = saved_position(r->st, &old, c, &head.position, e);
    if (rc || is_same_head(&old, found, &head, c->tip.x.id))
        return rc;
    head.tip = c->tip.x.id;
    head.lineage = chain_lineage(c);
    chain_numerics(c, head.numerics);
    AUTO(txn) struct txn t = {0};
    if ((rc = meta_read(r->st, "state_commit", &head.commit, sizeof head.commit, e)) ||
        (rc = txn_begin(&t, &r->st->db, e)) ||
        (rc = head_row_push(r->st, &head, dropped, 64, &n_dropped, e)) ||
        (rc = hold_touch(r->st, session, e)) || (rc = txn_commit(&t, e)))
        return rc;
    for (size_t i = 0; i < n_dropped; i++)
        pack_free(r->st, &dropped[i]);
    return OK;
}

/* The plan's chain as far as it was restored. */
static enum err cut_chain(const struct restore *r, struct head_chain *out, struct error *e)
{
    *out = *r->chain;
    out->pieces = malloc((out->n_pieces + 1) * sizeof *out->pieces);
    if (!out->pieces)
        return err_set(e, ERR_NOMEM, "restore: out of memory");
    if (out->n_pieces)
        memcpy(out->pieces, r->chain->pieces, out->n_pieces * sizeof *out->pieces);
    if (!r->tip_good)
        memset(&out->tip, 0, sizeof out->tip);
    chain_cut(out, r->good);
    return OK;
}

/* ---- the call ---------------------------------------------------------------------------- */

static enum err load_ids(struct restore *r, int64_t strand, struct error *e)
{
    AUTO(strand_path) struct strand_path path = {0};
    uint64_t n = r->chain->position;
    r->ids = r->h->plan->ids;
    /* What is on a strand stays what it is; a rewind goes to another one. */
    if (strand == r->h->plan->strand)
        return OK;
    enum err rc = strand_path_load(r->st, strand, &path, e);
    if (rc)
        return rc;
    if (path.length < n)
        return err_set(e, ERR_INVAL, "restore of %llu tokens: the tape has %llu",
                       (unsigned long long)n, (unsigned long long)path.length);
    r->ids = r->own_ids = malloc((size_t)(n + 1) * sizeof *r->own_ids);
    if (!r->own_ids)
        return err_set(e, ERR_NOMEM, "restore: out of memory");
    return strand_read_ids(r->st, &path, 0, n, r->own_ids, NULL, e);
}

static enum err check_call(const struct head_restore *h, struct error *e)
{
    const struct head_chain *c = h->plan->chain;
    if (h->dst->n_tokens < c->position)
        return err_set(e, ERR_INVAL, "restore of %llu tokens into room for %llu",
                       (unsigned long long)c->position, (unsigned long long)h->dst->n_tokens);
    for (uint32_t i = 0; i < h->layout->n_planes; i++)
        if (!h->dst->plane[i] && state_rows(&h->layout->planes[i], c->position))
            return err_set(e, ERR_INVAL, "restore: no room for plane %.23s",
                           h->layout->planes[i].name);
    return OK;
}

static enum err restore_plan(struct store *st, const struct head_restore *h,
                             struct head_restored *out, struct error *e)
{
    struct session_row row;
    AUTO(head_chain) struct head_chain cut = {0};
    AUTO(restore)
    struct restore r = {
        .st = st, .h = h, .chain = h->plan->chain, .t0 = clock_mono_ns(st->clock)};
    r.good = r.chain->position;
    r.tip_good = h->plan->has_tip && h->tip && r.chain->tip.x.id;
    enum err rc = check_call(h, e);
    if (rc || (rc = session_row_sound(st, h->session, &row, e)))
        return rc;
    if ((rc = load_ids(&r, row.strand, e)))
        return session_note(st, h->session, rc);
    r.n_late = count_late(&r);
    if ((rc = restore_all(&r, e)) || (rc = keep_late(&r, e)) || (rc = cut_chain(&r, &cut, e)) ||
        (cut.position && !h->keep_head && (rc = adopt(&r, row.num, &cut, e))))
        return err_wrap(e, rc, "restore");
    r.out.n_tokens = cut.position;
    r.out.has_tip = cut.tip.x.id != 0;
    if (h->late)
        *h->late = TAKE(r.late);
    *out = r.out;
    return OK;
}

enum err head_restore(struct store *st, const struct head_restore *h, struct head_restored *out,
                      struct error *e)
{
    pin_drop(st, h->plan->chain);
    if (h->plan->n_collections == st->n_collections)
        return restore_plan(st, h, out, e);
    /* What the plan means may have been given back since: look again, for no more than it. */
    struct head_plan *plan = NULL;
    struct head_restore again = *h;
    enum err rc = head_find(st, h->session, h->layout, h->plan->n_tokens,
                            h->plan->has_tip ? HEAD_TIP : HEAD_ROWS, &plan, e);
    again.plan = plan;
    if (!rc)
        rc = restore_plan(st, &again, out, e);
    if (plan)
        pin_drop(st, plan->chain);
    head_plan_free(plan);
    return rc;
}
