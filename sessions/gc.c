#include "sessions/gc.h"

#include <stdlib.h>

#include "sessions/evict.h"
#include "sessions/migrate.h"
#include "sessions/pack_rewrite.h"
#include "sessions/search.h"
#include "sessions/space.h"
#include "sessions/sweep.h"

/* A run goes through these in order; a mode leaves some out. */
enum phase {
    PHASE_LOAD,    /* the catalog, as a picture */
    PHASE_GARBAGE, /* rows that no head leads to */
    PHASE_EVICT,   /* rows of the least valuable, if space is short */
    PHASE_SETTLE,  /* the database file knows */
    PHASE_SWEEP,   /* bytes */
    PHASE_REWRITE, /* packs under half live */
    PHASE_RESETTLE,
    PHASE_REMOVE, /* packs that nothing is in */
    PHASE_INDEX,  /* the search index anew */
    PHASE_SCRUB,  /* the database file anew; one step, however long it takes */
    PHASE_FOLD,   /* what that has written to the -wal, into it */
    PHASE_DONE
};

struct gc {
    struct store *st;
    enum gc_mode mode;
    enum phase phase;
    struct evict evict;
    uint64_t goal; /* bytes to free in all; 0: not known yet */
    struct sweep sweep;
    size_t next_touched;
    int64_t last_pack; /* swept or rewritten last */
    int64_t moving;    /* pack that is being rewritten; 0: none */
    uint64_t moving_at;
    bool renewing; /* the search index */
    struct gc_report report;
};

enum err gc_begin(struct store *st, enum gc_mode mode, struct gc **out, struct error *e)
{
    struct space s;
    /* What was let go of long ago still counts as used. */
    if (mode != GC_EVICT || space_is_short(st))
        pack_flush_freed(st);
    enum err rc = mode == GC_EVICT ? space_read(st, &s, e) : OK;
    if (rc)
        return rc;
    struct gc *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "gc: out of memory");
    g->st = st;
    g->mode = mode;
    g->phase = mode == GC_EVICT && !space_is_short(st) ? PHASE_DONE : PHASE_LOAD;
    evict_init(&g->evict, st);
    g->evict.ignore_plans = mode == GC_PURGE;
    g->sweep = (struct sweep){.st = st, .overwrite = mode == GC_PURGE};
    *out = g;
    return OK;
}

void gc_end(struct gc *g)
{
    if (!g)
        return;
    /* A run that failed there leaves no half an index. If this fails, too, the next start does
     * it. */
    if (g->renewing && g->st->search_is_partial)
        (void)!search_rebuild(g->st, NULL);
    evict_fini(&g->evict);
    free(g);
}

const struct gc_report *gc_so_far(const struct gc *g)
{
    return &g->report;
}

/* ---- phases ------------------------------------------------------------------------------ */

static void go_on(struct gc *g)
{
    g->phase++;
    if (g->phase == PHASE_GARBAGE && g->mode == GC_EVICT)
        g->phase++;
    if (g->phase == PHASE_EVICT && g->mode == GC_PURGE)
        g->phase++;
    if (g->phase == PHASE_INDEX && g->mode != GC_PURGE)
        g->phase = PHASE_DONE;
    g->last_pack = 0;
}

static enum err load(struct gc *g, struct error *e)
{
    enum err rc = forest_step(&g->evict.forest, e);
    if (!rc && g->evict.forest.phase == FOREST_READY)
        go_on(g);
    return rc;
}

static void take_counts(struct gc *g)
{
    const struct gc_report *r = &g->evict.report;
    g->report.blocks = r->blocks;
    g->report.tails = r->tails;
    g->report.tips = r->tips;
    g->report.evicted = r->evicted;
}

static enum err garbage(struct gc *g, struct error *e)
{
    bool done;
    enum err rc = evict_garbage(&g->evict, &done, e);
    take_counts(g);
    if (!rc && done)
        go_on(g);
    return rc;
}

/* What has to be freed in all for the low watermark, what garbage has freed included. */
static enum err set_goal(struct gc *g, struct error *e)
{
    struct space s;
    enum err rc = space_read(g->st, &s, e);
    uint64_t used = s.used;
    if (g->st->no_holes) /* then it counts what the catalog names, and that is gone already */
        used += g->evict.freed;
    if (!rc && s.quota && used > g->evict.freed &&
        used - g->evict.freed > s.quota / 100 * SPACE_HIGH)
        g->goal = used - s.quota / 100 * SPACE_LOW;
    return rc;
}

static enum err evict(struct gc *g, struct error *e)
{
    bool done = true;
    enum err rc = g->goal ? OK : set_goal(g, e);
    if (!rc && g->goal > g->evict.freed)
        rc = evict_leaves(&g->evict, g->goal, &done, e);
    take_counts(g);
    if (!rc && done)
        go_on(g);
    return rc;
}

static enum err settle(struct gc *g, struct error *e)
{
    pack_flush_freed(g->st);
    enum err rc = db_exec(&g->st->db, "PRAGMA wal_checkpoint(TRUNCATE)", e);
    if (!rc)
        go_on(g);
    return rc;
}

/* The next pack to sweep: all of them, or those that something went from. */
static enum err next_pack(struct gc *g, bool *found, struct error *e)
{
    struct pack_row row;
    *found = g->mode == GC_EVICT && g->next_touched < g->evict.n_packs;
    g->sweep.at = 0;
    if (*found)
        g->sweep.pack = g->evict.packs[g->next_touched++];
    if (g->mode == GC_EVICT)
        return OK;
    enum err rc = sweep_next_pack(g->st, g->last_pack, &row, found, e);
    if (!rc && *found)
        g->last_pack = g->sweep.pack = row.id;
    return rc;
}

static enum err sweep(struct gc *g, struct error *e)
{
    bool found = true, done;
    enum err rc = g->sweep.pack ? OK : next_pack(g, &found, e);
    if (rc)
        return rc;
    if (!found) {
        go_on(g);
        return OK;
    }
    return sweep_step(&g->sweep, &g->report, &done, e);
}

static enum err rewrite(struct gc *g, struct error *e)
{
    bool found = true, done = false;
    enum err rc = OK;
    if (!g->moving) {
        if ((rc = pack_rewrite_next(g->st, g->last_pack, &g->moving, &found, e)))
            return rc;
        g->moving_at = 0;
    }
    /* What moves is there twice until its old pack goes. */
    const struct store *st = g->st;
    if (!found || (st->quota_bytes && st->used_bytes + PACK_REWRITE_BYTES > st->quota_bytes)) {
        g->moving = 0;
        go_on(g);
        return OK;
    }
    rc = pack_rewrite_step(g->st, g->moving, &g->moving_at, &g->report, &done, e);
    /* No room for what moves: then it stays where it is. */
    if (rc == ERR_LIMIT) {
        g->moving = 0;
        go_on(g);
        return OK;
    }
    if (rc || !done)
        return rc;
    g->report.packs_rewritten++;
    g->last_pack = g->moving;
    g->moving = 0;
    return OK;
}

static enum err remove_packs(struct gc *g, struct error *e)
{
    struct space s;
    bool done;
    enum err rc = pack_remove_empty(g->st, &g->last_pack, &g->report, &done, e);
    if (rc || !done)
        return rc;
    if (!(rc = space_read(g->st, &s, e)))
        go_on(g);
    return rc;
}

static enum err renew_index(struct gc *g, struct error *e)
{
    bool done;
    enum err rc = g->renewing ? OK : migrate_drop_copies(&g->st->db, e);
    g->renewing = true;
    if (rc || (rc = search_renew(g->st, &done, e)))
        return err_wrap(e, rc, "purge");
    if (done) {
        g->renewing = false;
        go_on(g);
    }
    return OK;
}

/* Free pages, and free room in pages, hold old bytes: only a new file has none. */
static enum err scrub(struct gc *g, struct error *e)
{
    enum err rc = db_exec(&g->st->db, "VACUUM", e);
    if (rc)
        return err_wrap(e, rc, "purge");
    go_on(g);
    return OK;
}

enum err gc_step(struct gc *g, bool *done, struct error *e)
{
    static enum err (*const phases[])(struct gc *, struct error *) = {
        [PHASE_LOAD] = load,       [PHASE_GARBAGE] = garbage,     [PHASE_EVICT] = evict,
        [PHASE_SETTLE] = settle,   [PHASE_SWEEP] = sweep,         [PHASE_REWRITE] = rewrite,
        [PHASE_RESETTLE] = settle, [PHASE_REMOVE] = remove_packs, [PHASE_INDEX] = renew_index,
        [PHASE_SCRUB] = scrub,     [PHASE_FOLD] = settle,
    };
    enum err rc = g->phase == PHASE_DONE ? OK : phases[g->phase](g, e);
    *done = g->phase == PHASE_DONE;
    return rc ? err_wrap(e, rc, "gc") : OK;
}

/* ---- whole runs -------------------------------------------------------------------------- */

static enum err run(struct store *st, enum gc_mode mode, struct gc_report *out, struct error *e)
{
    struct gc *g;
    enum err rc = gc_begin(st, mode, &g, e);
    if (rc)
        return rc;
    for (bool done = false; !done && !rc;)
        rc = gc_step(g, &done, e);
    if (!rc && out)
        *out = g->report;
    gc_end(g);
    return rc;
}

enum err gc_run(struct store *st, struct gc_report *out, struct error *e)
{
    return run(st, GC_COLLECT, out, e);
}

enum err gc_purge(struct store *st, struct gc_report *out, struct error *e)
{
    return run(st, GC_PURGE, out, e);
}

/* ---- a namespace ------------------------------------------------------------------------- */

static enum err first_session(struct store *st, char id[SESSION_ID_CAP], bool *found,
                              struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db, "SELECT id FROM sessions WHERE namespace = ? ORDER BY num LIMIT 1", e);
    if (rc)
        return rc;
    query_int(&q, st->space.id);
    if (!(rc = query_step(&q, found, e)) && *found)
        snprintf(id, SESSION_ID_CAP, "%s", row_text(&q, 0) ? row_text(&q, 0) : "");
    return rc;
}

enum err gc_drop_namespace(struct store *st, gc_gone_fn *gone, void *user, uint64_t *n_sessions,
                           uint64_t *n_packs, struct error *e)
{
    uint64_t n = 0;
    for (;; n++) {
        char id[SESSION_ID_CAP];
        bool found;
        enum err rc = first_session(st, id, &found, e);
        if (rc)
            return err_wrap(e, rc, "drop namespace %s", st->space.name);
        if (!found)
            break;
        if (gone)
            gone(user, id);
        if ((rc = session_delete(st, id, e)))
            return err_wrap(e, rc, "drop namespace %s", st->space.name);
    }
    enum err rc = search_rebuild(st, e);
    if (rc || (rc = namespace_erase(st, n_packs, e)))
        return rc;
    *n_sessions = n;
    return OK;
}
