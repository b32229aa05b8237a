/* What hangs on what, and the bytes of it. */
#include <stdlib.h>
#include <string.h>

#include "sessions/fsck_internal.h"
#include "sessions/pack_internal.h"
#include "sessions/schema.h"
#include "sessions/sweep.h"
#include "sessions/whole.h"

#define STEP_BYTES (8u << 20)
#define STEP_EXTENTS 64

static const char *const kind_names[] = {
    [CATALOG_BLOCKS] = "block", [CATALOG_TAILS] = "tail", [CATALOG_TIPS] = "tip"};

/* ---- the graph --------------------------------------------------------------------------- */

static enum err set_aside(struct fsck *f, const struct node *x, struct error *e)
{
    if (!f->repair)
        return OK;
    enum err rc = catalog_set_aside(f->st, x->kind, x->id, e);
    return rc == ERR_CORRUPT || rc == ERR_NOTFOUND ? OK : rc;
}

/* A row that names a parent which is not there: all of it that a session needs is lost. */
static enum err check_parents(struct fsck *f, struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < f->forest.n && !rc; i++) {
        const struct node *x = &f->forest.nodes[i];
        bool lost = (x->tail && forest_find(&f->forest, CATALOG_TAILS, x->tail) < 0) ||
                    (!x->tail && x->block && x->parent < 0);
        f->report.unreferenced += !x->n_holders;
        if (!lost || !x->n_holders || x->damaged)
            continue;
        fsck_say(f, "extent", "set aside", "%s %lld hangs on what is not there",
                 kind_names[x->kind], (long long)x->id);
        rc = set_aside(f, x, e);
    }
    return rc;
}

enum err fsck_graph(struct fsck *f, bool *done, struct error *e)
{
    enum err rc = forest_step(&f->forest, e);
    *done = f->forest.phase == FOREST_READY;
    if (rc == ERR_CORRUPT) {
        fsck_say(f, "database", "none", "%.120s; what hangs on what is not looked at",
                 e ? e->msg : "damaged");
        *done = true;
        return OK;
    }
    return rc || !*done ? rc : check_parents(f, e);
}

/* ---- heads ------------------------------------------------------------------------------- */

/* What the head means of what is there. */
static enum err mend_head(struct fsck *f, struct head_row *h, struct error *e)
{
    AUTO(head_chain) struct head_chain c = {0};
    enum err rc = chain_load(f->st, h->layout, h->block, h->tail, h->position, &c, e);
    if (rc)
        return rc;
    chain_ends(&c, &h->block, &h->tail);
    if (h->tip && forest_find(&f->forest, CATALOG_TIPS, h->tip) < 0)
        h->tip = 0;
    return head_row_write(f->st, h, e);
}

static enum err check_head(struct fsck *f, struct head_row *h, struct error *e)
{
    const char *lost = NULL;
    if (h->block && forest_find(&f->forest, CATALOG_BLOCKS, h->block) < 0)
        lost = "a block";
    if (h->tail && forest_find(&f->forest, CATALOG_TAILS, h->tail) < 0)
        lost = "a tail";
    if (h->tip && forest_find(&f->forest, CATALOG_TIPS, h->tip) < 0)
        lost = "a tip";
    if (!lost)
        return OK;
    fsck_say(f, "head", "means what is there",
             "head %llu of session %lld means %s that is gone",
             (unsigned long long)h->generation, (long long)h->session, lost);
    return f->repair ? mend_head(f, h, e) : OK;
}

/* The heads of one session. */
enum err fsck_heads(struct fsck *f, bool *done, struct error *e)
{
    int64_t session;
    {
        AUTO(query) struct query q = {0};
        enum err rc = query_init(
            &q, &f->st->db, "SELECT ifnull(min(session), 0) FROM heads WHERE session > ?", e);
        if (rc)
            return rc;
        query_int(&q, f->at);
        bool row = false;
        if ((rc = query_step(&q, &row, e)))
            return rc;
        session = row_int(&q, 0);
    }
    *done = session <= f->at;
    f->at = session;
    for (int age = 0; age < 2 && !*done; age++) {
        struct head_row h;
        bool found;
        enum err rc = head_row_read(f->st, session, age, &h, &found, e);
        if (rc || (found && (rc = check_head(f, &h, e))))
            return rc;
    }
    return OK;
}

/* ---- bytes ------------------------------------------------------------------------------- */

/* Another extent has some of the same pages. */
static enum err overlaps(struct fsck *f, const struct pack_place *p, bool *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &f->st->db,
        "SELECT (SELECT count(*) FROM blocks WHERE pack = ?1 AND off < ?3 AND off + pages * "
        "4096"
        " > ?2 AND off > ?2 - 4294967296) + (SELECT count(*) FROM tails WHERE pack = ?1 AND off"
        " < ?3 AND off + pages * 4096 > ?2 AND off > ?2 - 4294967296) + (SELECT count(*) FROM"
        " tips WHERE pack = ?1 AND off < ?3 AND off + pages * 4096 > ?2 AND off > ?2 -"
        " 4294967296)",
        e);
    if (rc)
        return rc;
    query_int(&q, p->pack);
    query_uint(&q, p->off);
    query_uint(&q, p->off + (uint64_t)p->pages * EXTENT_PAGE);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0) > 1;
    return rc;
}

static enum err check_extent(struct fsck *f, const struct node *x, struct error *e)
{
    struct whole w = {.kind = x->kind, .id = x->id};
    AUTO(head_extent) struct head_extent h = {0};
    struct error why = {0};
    bool twice = false;
    enum err rc = whole_load(f->st, &w, &why);
    if (rc == ERR_NOTFOUND || rc == ERR_CORRUPT) /* gone meanwhile; or a row's finding */
        return OK;
    if (rc)
        return err_set(e, rc, "%s", why.msg);
    f->report.extents++;
    f->report.bytes += node_bytes(x);
    if (whole_row(&w)->damaged)
        return OK; /* set aside already: nobody uses it */
    if ((rc = overlaps(f, &whole_row(&w)->place, &twice, e)))
        return rc;
    rc = whole_read(f->st, &w, &h, &why);
    if (rc && !head_is_damage(rc))
        return err_set(e, rc, "%s", why.msg);
    if (rc || twice)
        fsck_say(f, "extent", "set aside: its tokens are computed again", "%s %lld: %.120s",
                 kind_names[x->kind], (long long)x->id,
                 rc ? why.msg : "another extent has some of its pages");
    return rc || twice ? set_aside(f, x, e) : OK;
}

enum err fsck_extents(struct fsck *f, bool *done, struct error *e)
{
    uint64_t until = f->report.bytes + STEP_BYTES;
    enum err rc = OK;
    for (int n = 0; (size_t)f->at < f->forest.n && n < STEP_EXTENTS; n++) {
        if (f->report.bytes >= until)
            break;
        if ((rc = check_extent(f, &f->forest.nodes[f->at++], e)))
            return rc;
    }
    *done = (size_t)f->at == f->forest.n;
    return OK;
}

/* ---- files ------------------------------------------------------------------------------- */

enum err fsck_packs(struct fsck *f, bool *done, struct error *e)
{
    struct pack_row row;
    const struct pack_file *file;
    struct error why = {0};
    uint64_t size = 0;
    bool found;
    enum err rc = sweep_next_pack(f->st, f->at, &row, &found, e);
    *done = !found;
    if (rc || !found)
        return rc;
    f->at = row.id;
    f->report.packs++;
    if (row.state == PACK_LEAVING)
        return OK;
    rc = pack_open(f->st, row.id, &file, &why);
    if (!rc)
        rc = fs_size(file->fd, "pack", &size, &why);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "%s", why.msg);
    if (rc)
        fsck_say(f, "pack", "none", "%.150s", why.msg);
    else if (size < row.length)
        fsck_say(f, "pack", "none", "pack %lld has %llu bytes, %llu were committed",
                 (long long)row.id, (unsigned long long)size, (unsigned long long)row.length);
    return OK;
}
