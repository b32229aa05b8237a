/* Restoring state: headers, token ids, index planes and tip first, then the main planes.
 *
 * Every read goes through one list of jobs. A job whose bytes can land where the engine wants
 * them (whole pages, page-aligned, all of them used) is read there; the others go through a
 * bounce buffer. A job that fails, or whose tags or ids do not match, shortens the prefix to
 * the tokens before its extent. What is behind is read all the same: the tokens come back to
 * the store under the same keys once they are computed again, and a save shares what it finds
 * there, so every damaged extent of the chain has to be set aside now. */
#include <stdlib.h>
#include <string.h>

#include "base/aio.h"
#include "sessions/head_internal.h"
#include "sessions/hold.h"
#include "sessions/strand.h"
#include "sessions/tape.h"
#include "sessions/tape_internal.h"

/* Fewer than packs may be open: a read in flight must not lose its descriptor. */
#define MAX_IN_FLIGHT 32u
_Static_assert(MAX_IN_FLIGHT < PACK_MAX_OPEN, "reads in flight keep their packs open");

#define MAX_BYTES_IN_FLIGHT (32u << 20)
#define MAX_BOUNCES 16u

/* One read: a region of an extent, or (region NULL) its header. */
struct job {
    size_t piece; /* index in the chain; n_pieces: the tip */
    const struct extent_region *region;
    uint64_t off;
    size_t n;     /* bytes, whole pages */
    uint8_t *dst; /* where the used bytes belong */
    size_t n_used;
    int bounce; /* buffer it is read to; -1: straight to dst */
};

struct job_list {
    struct job *jobs;
    size_t n, cap;
};

struct restore {
    struct store *st;
    const struct head_restore *h;
    const struct head_chain *chain;
    uint32_t *ids;               /* of the tape */
    struct head_extent *extents; /* n_pieces + 1: the last is the tip's */
    bool *failed;                /* of each piece */
    uint64_t good;               /* tokens before the first that failed */
    bool tip_good;
    struct job_list jobs;
    struct page_buffer bounces;
    size_t bounce_bytes;
    uint32_t free_bounces; /* bit i: buffer i is free */
    uint64_t done, total;
    struct head_restored out;
    bool cancelled;
};

static void restore_fini(struct restore *r)
{
    free(r->ids);
    for (size_t i = 0; r->extents && i <= r->chain->n_pieces; i++)
        head_extent_fini(&r->extents[i]);
    free(r->extents);
    free(r->failed);
    free(r->jobs.jobs);
    page_buffer_fini(&r->bounces);
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
 * of it in between. */
static bool is_current(struct restore *r, size_t piece)
{
    struct extent_row now;
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

/* What was read cannot be trusted: it is set aside, so that nobody finds it again. */
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

static enum err add_job(struct restore *r, struct job job, struct error *e)
{
    struct job_list *l = &r->jobs;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        struct job *grown = realloc(l->jobs, cap * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "restore: out of memory");
        l->jobs = grown;
        l->cap = cap;
    }
    l->jobs[l->n++] = job;
    return OK;
}

static enum err add_region(struct restore *r, size_t piece, const struct extent_region *region,
                           uint8_t *dst, size_t n_used, struct error *e)
{
    struct job job = {.piece = piece, .region = region, .dst = dst, .n_used = n_used};
    job.off = want_of(r, piece).place.off + (uint64_t)region->page * EXTENT_PAGE;
    job.n = (size_t)extent_pages(region->bytes) * EXTENT_PAGE;
    job.bounce = dst && n_used == job.n && (uintptr_t)dst % EXTENT_PAGE == 0 ? -1 : 0;
    return n_used ? add_job(r, job, e) : OK;
}

/* Rows of one plane that count, of every piece. */
static enum err add_plane(struct restore *r, uint32_t plane, struct error *e)
{
    const struct plane_spec *spec = &r->h->layout->planes[plane];
    enum err rc = OK;
    for (size_t i = 0; i < r->chain->n_pieces && !rc; i++) {
        const struct chain_piece *p = &r->chain->pieces[i];
        if (!is_wanted(r, i))
            continue;
        const struct extent_region *region = head_region(&r->extents[i].x, spec);
        uint64_t rows = extent_rows(p->first, p->used, spec->ratio);
        if (!region || region->bytes < rows * spec->row_bytes) {
            spoil(r, i);
            continue;
        }
        uint8_t *dst = r->h->dst->plane[plane];
        rc = add_region(r, i, region, dst + p->first / spec->ratio * spec->row_bytes,
                        (size_t)(rows * spec->row_bytes), e);
    }
    return rc;
}

static enum err add_planes(struct restore *r, enum plane_kind kind, struct error *e)
{
    enum err rc = OK;
    for (uint32_t i = 0; i < r->h->layout->n_planes && !rc; i++)
        if (r->h->layout->planes[i].kind == kind)
            rc = add_plane(r, i, e);
    return rc;
}

/* ---- running jobs ------------------------------------------------------------------------ */

/* Bounce buffers for the largest job that needs one. */
static enum err need_bounces(struct restore *r, struct error *e)
{
    size_t most = 0;
    for (size_t i = 0; i < r->jobs.n; i++)
        if (r->jobs.jobs[i].bounce >= 0 && r->jobs.jobs[i].n > most)
            most = r->jobs.jobs[i].n;
    if (!most)
        return OK;
    uint32_t n = MAX_BOUNCES;
    while (n > 1 && n * most > 2 * (size_t)MAX_BYTES_IN_FLIGHT)
        n--;
    r->bounce_bytes = most;
    r->free_bounces = (uint32_t)((1ull << n) - 1);
    return page_buffer_need(&r->bounces, n * most, e);
}

static uint8_t *bounce_at(const struct restore *r, int i)
{
    return (uint8_t *)r->bounces.p + (size_t)i * r->bounce_bytes;
}

static bool is_ids(const struct job *j)
{
    return j->region && j->region->what == REGION_IDS;
}

/* The bytes of a job have arrived at `data`: are they what they should be? */
static bool accept(struct restore *r, const struct job *j, uint8_t *data)
{
    const struct head_extent *h = &r->extents[j->piece];
    if (extent_open(&h->x, h->header, j->region, &r->st->space.keys, data, NULL))
        return false;
    if (is_ids(j)) {
        const struct chain_piece *p = &r->chain->pieces[j->piece];
        return memcmp(data, r->ids + p->first, (size_t)(p->used - p->first) * 4) == 0;
    }
    if (j->bounce >= 0)
        memcpy(j->dst, data, j->n_used);
    return true;
}

static void finish(struct restore *r, struct job *j, const struct aio_done *d)
{
    uint8_t *data = j->bounce >= 0 ? bounce_at(r, j->bounce) : j->dst;
    r->out.bytes_read += d->bytes;
    r->done += j->n;
    if (is_wanted(r, j->piece)) {
        /* An error of the device may pass; wrong or missing bytes do not. */
        if (d->sys)
            shorten(r, j->piece);
        else if (d->bytes != j->n || !accept(r, j, data))
            spoil(r, j->piece);
    }
    if (j->bounce >= 0)
        r->free_bounces |= 1u << j->bounce;
}

/* Starts job j. *started false: no buffer is free now. ERR_CORRUPT and others of pack_open: its
 * pack cannot be read. */
static enum err start(struct restore *r, struct job *j, bool *started, struct error *e)
{
    const struct pack_file *f;
    enum err rc = pack_open(r->st, want_of(r, j->piece).place.pack, &f, e);
    *started = false;
    if (rc)
        return rc;
    uint8_t *to = j->dst;
    if (j->bounce >= 0) {
        if (!r->free_bounces)
            return OK;
        j->bounce = __builtin_ctz(r->free_bounces);
        to = bounce_at(r, j->bounce);
    }
    if ((rc = aio_read(r->st->aio, f->fd, j->off, to, j->n, j, e)))
        return rc;
    if (j->bounce >= 0)
        r->free_bounces &= ~(1u << j->bounce);
    *started = true;
    return OK;
}

static enum err reap(struct restore *r, enum head_stage stage, size_t *bytes, struct error *e)
{
    struct aio_done done[MAX_IN_FLIGHT];
    size_t n;
    enum err rc = aio_wait(r->st->aio, 1, done, MAX_IN_FLIGHT, &n, e);
    for (size_t i = 0; i < n && !rc; i++) {
        struct job *j = done[i].user;
        *bytes -= j->n;
        finish(r, j, &done[i]);
    }
    if (!rc && r->h->progress && !r->h->progress(r->h->user, stage, r->done, r->total))
        r->cancelled = true;
    return rc;
}

/* Runs the list to its end and empties it. */
static enum err run_jobs(struct restore *r, enum head_stage stage, struct error *e)
{
    enum err rc = need_bounces(r, e);
    size_t in_flight = 0, next = 0;
    while (!rc && (next < r->jobs.n || aio_in_flight(r->st->aio))) {
        struct job *j = next < r->jobs.n ? &r->jobs.jobs[next] : NULL;
        bool started = false;
        if (j && (r->cancelled || !is_wanted(r, j->piece))) {
            r->done += j->n;
            next++;
            continue;
        }
        if (j && aio_in_flight(r->st->aio) < MAX_IN_FLIGHT && aio_room(r->st->aio) &&
            (!in_flight || in_flight + j->n <= MAX_BYTES_IN_FLIGHT)) {
            rc = start(r, j, &started, e);
            if (head_is_damage(rc)) {
                shorten(r, j->piece);
                rc = OK;
                continue;
            }
        }
        if (started) {
            in_flight += j->n;
            next++;
        } else if (!rc) {
            rc = reap(r, stage, &in_flight, e);
        }
    }
    /* Nothing of ours may be in flight when the memory goes. */
    while (rc && aio_in_flight(r->st->aio))
        if (reap(r, stage, &in_flight, NULL))
            break;
    r->jobs.n = 0;
    if (!rc && r->cancelled)
        rc = err_set(e, ERR_CANCELLED, "restore: cancelled");
    return rc;
}

/* ---- stages ------------------------------------------------------------------------------ */

/* Headers: small, and nothing can be checked without them. */
static enum err open_extents(struct restore *r, struct error *e)
{
    size_t n = r->chain->n_pieces;
    r->extents = calloc(n + 1, sizeof *r->extents);
    r->failed = calloc(n + 1, sizeof *r->failed);
    if (!r->extents || !r->failed)
        return err_set(e, ERR_NOMEM, "restore: out of memory");
    for (size_t i = 0; i <= n; i++) {
        if (!is_wanted(r, i))
            continue;
        struct head_want_extent want = want_of(r, i);
        if (!is_current(r, i)) {
            shorten(r, i);
            continue;
        }
        enum err rc = head_extent_open(r->st, &want, &r->extents[i], e);
        if (rc && !head_is_damage(rc))
            return rc;
        if (rc == ERR_IO)
            shorten(r, i);
        else if (rc)
            spoil(r, i);
        else
            r->out.bytes_read += (uint64_t)r->extents[i].x.header_pages * EXTENT_PAGE;
    }
    r->done = r->out.bytes_read;
    return OK;
}

static enum err add_first_stage(struct restore *r, struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < r->chain->n_pieces && !rc; i++) {
        const struct head_extent *x = &r->extents[i];
        if (!is_wanted(r, i))
            continue;
        if (x->x.regions[0].what != REGION_IDS ||
            x->x.regions[0].bytes != (x->x.last - x->x.first) * 4)
            spoil(r, i);
        else
            rc = add_region(r, i, &x->x.regions[0], NULL, (size_t)x->x.regions[0].bytes, e);
    }
    if (!rc)
        rc = add_planes(r, PLANE_INDEX, e);
    size_t tip = r->chain->n_pieces;
    if (!rc && r->tip_good) {
        const struct extent_region *region = &r->extents[tip].x.regions[0];
        if (region->what != REGION_TIP || region->bytes != r->h->layout->tip_bytes)
            spoil(r, tip);
        else
            rc = add_region(r, tip, region, r->h->tip, (size_t)region->bytes, e);
    }
    return rc;
}

static enum err restore_all(struct restore *r, struct error *e)
{
    uint64_t t0 = clock_mono_ns(r->st->clock);
    enum err rc;
    r->total = r->h->plan->n_bytes;
    if ((rc = open_extents(r, e)) || (rc = add_first_stage(r, e)) ||
        (rc = run_jobs(r, HEAD_STAGE_INDEX, e)))
        return rc;
    r->out.index_ns = clock_mono_ns(r->st->clock) - t0;
    if ((rc = add_planes(r, PLANE_MAIN, e)) || (rc = run_jobs(r, HEAD_STAGE_MAIN, e)))
        return rc;
    r->out.total_ns = clock_mono_ns(r->st->clock) - t0;
    return OK;
}

/* ---- the head afterwards ----------------------------------------------------------------- */

static bool is_same_head(const struct head_row *h, bool found, const struct head_chain *c,
                         int64_t block, int64_t tail)
{
    return found && h->layout == c->layout && h->position == c->position && h->block == block &&
           h->tail == tail && (!c->tip.x.id || h->tip == c->tip.x.id);
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
    if (rc || is_same_head(&old, found, c, head.block, head.tail))
        return rc;
    head.position = c->position;
    head.tip = c->tip.x.id;
    head.lineage = chain_lineage(c);
    chain_numerics(c, head.numerics);
    AUTO(txn) struct txn t = {0};
    if ((rc = meta_read(r->st, "state_commit", &head.commit, sizeof head.commit, e)) ||
        (rc = txn_begin(&t, &r->st->db, e)) ||
        (rc = head_row_push(r->st, &head, dropped, 64, &n_dropped, e)) ||
        (rc = hold_touch(r->st, session, e)) ||
        (rc = txn_commit(&t, e)))
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
    enum err rc = strand_path_load(r->st, strand, &path, e);
    if (rc)
        return rc;
    if (path.length < n)
        return err_set(e, ERR_INVAL, "restore of %llu tokens: the tape has %llu",
                       (unsigned long long)n, (unsigned long long)path.length);
    r->ids = malloc((size_t)(n + 1) * sizeof *r->ids);
    if (!r->ids)
        return err_set(e, ERR_NOMEM, "restore: out of memory");
    return strand_read_ids(r->st, &path, 0, n, r->ids, NULL, e);
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
    AUTO(restore) struct restore r = {.st = st, .h = h, .chain = h->plan->chain};
    r.good = r.chain->position;
    r.tip_good = h->plan->has_tip && h->tip && r.chain->tip.x.id;
    enum err rc = check_call(h, e);
    if (rc || (rc = session_row_sound(st, h->session, &row, e)))
        return rc;
    if ((rc = load_ids(&r, row.strand, e)))
        return session_note(st, h->session, rc);
    if ((rc = restore_all(&r, e)) || (rc = cut_chain(&r, &cut, e)) ||
        (cut.position && (rc = adopt(&r, row.num, &cut, e))))
        return err_wrap(e, rc, "restore");
    r.out.n_tokens = cut.position;
    r.out.has_tip = cut.tip.x.id != 0;
    *out = r.out;
    return OK;
}

enum err head_restore(struct store *st, const struct head_restore *h, struct head_restored *out,
                      struct error *e)
{
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
    head_plan_free(plan);
    return rc;
}
