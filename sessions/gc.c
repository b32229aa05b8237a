#include "sessions/gc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "sessions/migrate.h"
#include "sessions/pack_internal.h"
#include "sessions/schema.h"

#define ZERO_BYTES (256u << 10)

/* Tips, tails and blocks that heads lead to. A loop among damaged rows ends, because UNION
 * keeps each id once. */
#define LIVE_TIPS "SELECT tip FROM heads"
#define LIVE                                                                                   \
    "WITH RECURSIVE t(id) AS (SELECT tail FROM heads UNION SELECT tail FROM tips WHERE id IN " \
    "(" LIVE_TIPS ") UNION SELECT prev FROM tails JOIN t ON tails.id = t.id),"                 \
    " b(id) AS (SELECT block FROM heads UNION SELECT block FROM tips WHERE id IN (" LIVE_TIPS  \
    ") UNION SELECT block FROM tails WHERE id IN (SELECT id FROM t)"                           \
    " UNION SELECT parent FROM blocks JOIN b ON blocks.id = b.id) "

/* ---- rows -------------------------------------------------------------------------------- */

static enum err drop(struct store *st, const char *sql, uint64_t *n, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (!rc)
        rc = query_run(&q, e);
    if (!rc)
        *n = (uint64_t)sqlite3_changes64(st->db.handle);
    return rc;
}

/* Blocks first: which ones live is told by rows that go after them. */
static enum err drop_rows(struct store *st, struct gc_report *r, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &st->db, e);
    if (rc ||
        (rc = drop(st, LIVE "DELETE FROM blocks WHERE id NOT IN (SELECT id FROM b)", &r->blocks,
                   e)) ||
        (rc = drop(st, LIVE "DELETE FROM tails WHERE id NOT IN (SELECT id FROM t)", &r->tails,
                   e)) ||
        (rc = drop(st, "DELETE FROM tips WHERE id NOT IN (" LIVE_TIPS ")", &r->tips, e)))
        return rc;
    return txn_commit(&t, e);
}

/* ---- bytes ------------------------------------------------------------------------------- */

struct sweep {
    struct store *st;
    const struct pack_row *pack;
    int fd;
    uint8_t *zeros;
    struct gc_report *report;
};

static enum err has_row(const struct sweep *s, uint64_t off, bool *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &s->st->db,
                             "SELECT EXISTS(SELECT 1 FROM blocks WHERE pack = ?1 AND off = ?2)"
                             " OR EXISTS(SELECT 1 FROM tails WHERE pack = ?1 AND off = ?2)"
                             " OR EXISTS(SELECT 1 FROM tips WHERE pack = ?1 AND off = ?2)",
                             e);
    if (rc)
        return rc;
    query_int(&q, s->pack->id);
    query_uint(&q, off);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0) != 0;
    return rc;
}

/* Overwritten first: a punched hole reads as zeros, but not every file system has holes. */
static enum err wipe(const struct sweep *s, uint64_t off, uint64_t n, struct error *e)
{
    enum err rc = OK;
    for (uint64_t done = 0; done < n && !rc; done += ZERO_BYTES) {
        size_t piece = n - done < ZERO_BYTES ? (size_t)(n - done) : ZERO_BYTES;
        rc = fs_pwrite(s->fd, "pack", s->zeros, piece, off + done, e);
    }
    if (!rc)
        rc = fs_sync(s->fd, "pack", e);
    if (!rc)
        (void)!fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off,
                         (off_t)n);
    return rc;
}

static enum err sweep_one(void *user, const struct extent *x, uint64_t off, struct error *e)
{
    struct sweep *s = user;
    bool live = true;
    enum err rc = x->kind == EXTENT_LIST ? OK : has_row(s, off, &live, e);
    if (rc || live)
        return rc;
    uint64_t n = (uint64_t)x->pages * EXTENT_PAGE;
    s->report->extents++;
    s->report->bytes += n;
    return wipe(s, off, n, e);
}

static enum err sweep_pack(struct sweep *s, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = pack_path(s->st, s->pack->id, path, sizeof path, e);
    if (rc)
        return rc;
    AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);
    /* A pack whose file is gone holds nothing. */
    if (fd < 0)
        return errno == ENOENT ? OK : err_sys(e, errno, "open %s", path);
    s->fd = fd;
    struct pack_walk w = {.header_key = s->st->space.keys.header,
                          .uuid = s->pack->uuid,
                          .fn = sweep_one,
                          .user = s};
    return pack_walk(&w, fd, EXTENT_PAGE, s->pack->length, e);
}

/* The pack with the smallest number above `after`. */
static enum err next_pack(struct store *st, int64_t after, struct pack_row *out, bool *found,
                          struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " PACK_COLS ", tag FROM packs WHERE namespace = ?"
                             " AND id > ? ORDER BY id LIMIT 1",
                             e);
    if (rc)
        return rc;
    query_int(&q, st->space.id);
    query_int(&q, after);
    rc = query_step(&q, found, e);
    return rc || !*found ? rc : pack_row_take(&q, out, e);
}

static enum err sweep_all(struct store *st, struct gc_report *report, struct error *e)
{
    AUTO_FREE uint8_t *zeros = calloc(1, ZERO_BYTES);
    if (!zeros)
        return err_set(e, ERR_NOMEM, "gc: out of memory");
    struct pack_row pack = {0};
    struct sweep s = {.st = st, .pack = &pack, .zeros = zeros, .report = report};
    for (;;) {
        bool found;
        enum err rc = next_pack(st, pack.id, &pack, &found, e);
        if (rc || !found || (rc = sweep_pack(&s, e)))
            return rc;
    }
}

/* ---- the whole --------------------------------------------------------------------------- */

enum err gc_run(struct store *st, struct gc_report *out, struct error *e)
{
    struct gc_report r = {0};
    enum err rc = drop_rows(st, &r, e);
    st->n_collections++;
    if (!rc)
        rc = db_exec(&st->db, "PRAGMA wal_checkpoint(TRUNCATE)", e);
    if (!rc)
        rc = sweep_all(st, &r, e);
    if (rc)
        return err_wrap(e, rc, "gc");
    *out = r;
    return OK;
}

enum err gc_purge(struct store *st, struct gc_report *out, struct error *e)
{
    enum err rc = gc_run(st, out, e);
    if (!rc)
        rc = migrate_drop_copies(&st->db, e);
    /* Free pages, and free room in pages, hold old bytes: only a new file has none. */
    if (!rc && !(rc = db_exec(&st->db, "VACUUM", e)))
        rc = db_exec(&st->db, "PRAGMA wal_checkpoint(TRUNCATE)", e);
    return rc ? err_wrap(e, rc, "purge") : OK;
}
