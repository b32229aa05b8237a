#include "sessions/pack_rewrite.h"

#include <stdlib.h>
#include <string.h>

#include "sessions/pack_internal.h"
#include "sessions/whole.h"

#define STEP_BYTES (2u << 20)
#define STEP_MOVES 64

#define LIVE_OF                                                                                \
    "(SELECT pack, off, pages, id, 0 AS kind FROM blocks UNION ALL"                            \
    " SELECT pack, off, pages, id, 1 FROM tails UNION ALL"                                     \
    " SELECT pack, off, pages, id, 2 FROM tips)"

enum err pack_rewrite_next(struct store *st, int64_t after, int64_t *pack, bool *found,
                           struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db,
        "SELECT p.id, p.length,"
        " (SELECT ifnull(sum(pages), 0) FROM blocks WHERE pack = p.id) +"
        " (SELECT ifnull(sum(pages), 0) FROM tails WHERE pack = p.id) +"
        " (SELECT ifnull(sum(pages), 0) FROM tips WHERE pack = p.id)"
        " FROM packs p WHERE p.namespace = ?1 AND p.id > ?2 AND p.state != ?3 ORDER BY p.id",
        e);
    if (rc)
        return rc;
    query_int(&q, st->space.id);
    query_int(&q, after);
    query_int(&q, PACK_OPEN);
    for (;;) {
        if ((rc = query_step(&q, found, e)) || !*found || (rc = row_above(&q, 0, after, e)))
            return rc;
        uint64_t live = row_uint(&q, 2) * EXTENT_PAGE;
        *pack = row_int(&q, 0);
        if (live && 2 * live < row_uint(&q, 1))
            return OK;
    }
}

/* ---- one extent -------------------------------------------------------------------------- */

/* Copies one extent to the open pack. *moved false: it is unusable, and stays. */
static enum err move_one(struct store *st, struct whole *m, bool *moved, struct error *e)
{
    enum err rc = whole_load(st, m, NULL);
    *moved = false;
    if (rc || whole_row(m)->damaged)
        return rc == ERR_NOMEM ? err_set(e, rc, "rewrite: out of memory") : OK;
    AUTO(head_extent) struct head_extent h = {0};
    if ((rc = whole_read(st, m, &h, e))) {
        if (!head_is_damage(rc))
            return rc;
        return rc == ERR_IO ? OK : catalog_set_aside(st, m->kind, m->id, e);
    }
    const uint8_t *uuid;
    struct pack_place to;
    if ((rc = pack_room(st, whole_row(m)->place.pages, &to, &uuid, e)))
        return rc;
    extent_move(st->extent.p, (size_t)h.x.header_pages * EXTENT_PAGE, &st->space.keys, uuid,
                to.off);
    if ((rc = pack_write(st, &to, st->extent.p, e)))
        return rc;
    whole_row(m)->place = to;
    *moved = true;
    return OK;
}

/* ---- a step ------------------------------------------------------------------------------ */

/* Extents of the pack that begin at or behind *at, as far as a step goes. */
static enum err list_moves(struct store *st, int64_t pack, uint64_t *at, struct whole *moves,
                           size_t *n, bool *done, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT off, pages, id, kind FROM " LIVE_OF
                             " WHERE pack = ?1 AND off >= ?2 ORDER BY off LIMIT ?3",
                             e);
    if (rc)
        return rc;
    query_int(&q, pack);
    query_uint(&q, *at);
    query_int(&q, STEP_MOVES);
    uint64_t bytes = 0;
    *n = 0;
    *done = false;
    for (bool row = true; *n < STEP_MOVES && bytes < STEP_BYTES;) {
        if ((rc = query_step(&q, &row, e)))
            return rc;
        if (!row) {
            *done = true;
            return OK;
        }
        moves[(*n)++] =
            (struct whole){.kind = (enum catalog_table)row_int(&q, 3), .id = row_int(&q, 2)};
        bytes += row_uint(&q, 1) * EXTENT_PAGE;
        *at = row_uint(&q, 0) + 1;
    }
    return OK;
}

static enum err commit_moves(struct store *st, const struct whole *moves, size_t n,
                             struct error *e)
{
    AUTO(txn) struct txn t = {0};
    enum err rc = pack_sync(st, e);
    if (rc || (rc = txn_begin(&t, &st->db, e)))
        return rc;
    for (size_t i = 0; i < n && !rc; i++)
        rc = whole_store(st, &moves[i], e);
    if (rc || (rc = pack_note(st, e)))
        return rc;
    return txn_commit(&t, e);
}

enum err pack_rewrite_step(struct store *st, int64_t pack, uint64_t *at, struct gc_report *r,
                           bool *done, struct error *e)
{
    struct whole *moves = malloc(STEP_MOVES * sizeof *moves);
    if (!moves)
        return err_set(e, ERR_NOMEM, "rewrite: out of memory");
    size_t n, n_moved = 0;
    uint64_t bytes = 0;
    enum err rc = list_moves(st, pack, at, moves, &n, done, e);
    for (size_t i = 0; i < n && !rc; i++) {
        bool moved;
        rc = move_one(st, &moves[i], &moved, e);
        if (rc || !moved)
            continue;
        bytes += (uint64_t)whole_row(&moves[i])->place.pages * EXTENT_PAGE;
        if (n_moved != i)
            moves[n_moved] = moves[i];
        n_moved++;
    }
    if (!rc && n_moved)
        rc = commit_moves(st, moves, n_moved, e);
    free(moves);
    if (rc) {
        pack_undo(st);
        return rc;
    }
    if (n_moved) {
        pack_done(st);
        st->n_collections++;
    }
    r->bytes_moved += bytes;
    st->used_bytes += bytes;
    return OK;
}

/* ---- removing ---------------------------------------------------------------------------- */

static enum err next_empty(struct store *st, int64_t after, int64_t *pack, bool *found,
                           struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT id FROM packs p WHERE id > ?1 AND state != ?2"
                             " AND NOT EXISTS(SELECT 1 FROM blocks WHERE pack = p.id)"
                             " AND NOT EXISTS(SELECT 1 FROM tails WHERE pack = p.id)"
                             " AND NOT EXISTS(SELECT 1 FROM tips WHERE pack = p.id)"
                             " ORDER BY id LIMIT 1",
                             e);
    if (rc)
        return rc;
    query_int(&q, after);
    query_int(&q, PACK_OPEN);
    if ((rc = query_step(&q, found, e)) || !*found || (rc = row_above(&q, 0, after, e)))
        return rc;
    *pack = row_int(&q, 0);
    return OK;
}

static enum err drop_row(struct store *st, int64_t pack, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, "DELETE FROM packs WHERE id = ?", e);
    if (rc)
        return rc;
    query_int(&q, pack);
    return query_run(&q, e);
}

enum err pack_remove(struct store *st, int64_t pack, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = pack_path(st, pack, path, sizeof path, e);
    if (rc)
        return rc;
    pack_forget(st, pack);
    rc = fs_unlink(path, e);
    if ((rc && rc != ERR_NOTFOUND) || (rc = fs_sync_dir(st->packs_dir, e)))
        return rc;
    return drop_row(st, pack, e);
}

/* A file without a row would be adopted, and a row without a file is a loss: so the row says
 * first what is going on. */
static enum err mark_leaving(struct store *st, int64_t pack, bool *marked, struct error *e)
{
    struct pack_row row;
    enum err rc = pack_row_read(st, pack, &row, e);
    *marked = !rc;
    if (rc)
        return rc == ERR_CORRUPT ? OK : rc;
    row.state = PACK_LEAVING;
    return pack_row_write(st, &row, e);
}

enum err pack_remove_empty(struct store *st, int64_t *after, struct gc_report *r, bool *done,
                           struct error *e)
{
    bool found, marked = false;
    enum err rc = next_empty(st, *after, after, &found, e);
    *done = !found;
    if (rc || !found || (rc = mark_leaving(st, *after, &marked, e)))
        return rc;
    if (marked && (rc = pack_remove(st, *after, e)))
        return rc;
    r->packs_removed += marked;
    return OK;
}
