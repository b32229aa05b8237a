#include "sessions/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "sessions/le.h"
#include "sessions/pack_internal.h"
#include "sessions/schema.h"

#define ZERO_BYTES (256u << 10)
#define STEP_BYTES (8u << 20) /* overwritten in a step */
#define STEP_HOLES 64u

/* A step on one pack. */
struct stretch {
    struct sweep *s;
    struct gc_report *r;
    int fd;
    uint8_t *zeros;
    uint64_t n_bytes, n_holes;
};

/* Overwritten first: a punched hole reads as zeros, but the device may keep the bytes. */
static enum err wipe(struct stretch *t, uint64_t from, uint64_t to, struct error *e)
{
    enum err rc = OK;
    if (!t->zeros && !(t->zeros = calloc(1, ZERO_BYTES)))
        return err_set(e, ERR_NOMEM, "gc: out of memory");
    for (uint64_t at = from; at < to && !rc; at += ZERO_BYTES) {
        size_t piece = to - at < ZERO_BYTES ? (size_t)(to - at) : ZERO_BYTES;
        rc = fs_pwrite(t->fd, "pack", t->zeros, piece, at, e);
    }
    return rc ? rc : fs_sync(t->fd, "pack", e);
}

static enum err give_back(struct stretch *t, uint64_t from, uint64_t to, struct error *e)
{
    enum err rc = t->s->overwrite ? wipe(t, from, to, e) : OK;
    if (rc)
        return rc;
    if (fault_point("pack.punch"))
        return err_sys(e, EIO, "punch pack %lld", (long long)t->s->pack);
    if (fallocate(t->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                  (off_t)(to - from))) {
        if (errno != EOPNOTSUPP)
            return err_sys(e, errno, "punch pack %lld", (long long)t->s->pack);
        t->s->st->no_holes = true; /* rewriting the pack gives the room back */
    }
    t->r->bytes += to - from;
    return OK;
}

static bool is_tired(const struct stretch *t)
{
    return t->n_bytes >= STEP_BYTES || t->n_holes >= STEP_HOLES;
}

/* What is not a hole yet in [s->at, to), which no row names. */
static enum err free_stretch(struct stretch *t, uint64_t to, struct error *e)
{
    bool counted = false;
    while (t->s->at < to && !is_tired(t)) {
        off_t from = lseek(t->fd, (off_t)t->s->at, SEEK_DATA);
        if (from < 0 && errno != ENXIO)
            return err_sys(e, errno, "pack %lld", (long long)t->s->pack);
        if (from < 0 || (uint64_t)from >= to)
            break;
        off_t hole = lseek(t->fd, from, SEEK_HOLE);
        uint64_t end = hole < 0 || (uint64_t)hole > to ? to : (uint64_t)hole;
        if (t->s->overwrite && end - (uint64_t)from > STEP_BYTES)
            end = (uint64_t)from + STEP_BYTES;
        enum err rc = give_back(t, (uint64_t)from, end, e);
        if (rc)
            return rc;
        t->s->at = end;
        t->n_bytes += t->s->overwrite ? end - (uint64_t)from : 0;
        t->n_holes++;
        t->r->extents += !counted;
        counted = true;
    }
    if (!is_tired(t))
        t->s->at = to;
    return OK;
}

/* Where the list of a sealed pack begins; its length, if it has none. */
static uint64_t list_begins(int fd, const struct pack_row *row)
{
    uint8_t page[EXTENT_PAGE];
    uint64_t end = row->length - EXTENT_PAGE;
    if (row->state != PACK_SEALED || row->length < 2 * EXTENT_PAGE ||
        fs_pread(fd, "pack", page, sizeof page, end, NULL) ||
        memcmp(page, PACK_TRAILER_MAGIC, 8) != 0)
        return row->length;
    /* Its tag is of the pack's namespace, whose key may not be here; a wrong list costs room.
     */
    uint64_t off = le_take64(page + 8);
    return off >= EXTENT_PAGE && off < end ? off : row->length;
}

/* The stretches between rows, from s->at to `end`. */
static enum err free_between(struct stretch *t, uint64_t end, struct error *e)
{
    struct sweep *s = t->s;
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &s->st->db,
        "SELECT off, pages FROM (SELECT off, pages FROM blocks WHERE pack = ?1 UNION ALL"
        " SELECT off, pages FROM tails WHERE pack = ?1 UNION ALL"
        " SELECT off, pages FROM tips WHERE pack = ?1) WHERE off + pages * 4096 > ?2"
        " ORDER BY off",
        e);
    if (rc)
        return rc;
    query_int(&q, s->pack);
    query_uint(&q, s->at);
    for (bool row = true; !is_tired(t);) {
        if ((rc = query_step(&q, &row, e)))
            return rc;
        uint64_t next = row ? row_uint(&q, 0) : end;
        if (next > end)
            next = end;
        if (next > s->at && (rc = free_stretch(t, next, e)))
            return rc;
        if (!row)
            return OK;
        uint64_t behind = row_uint(&q, 0) + row_uint(&q, 1) * EXTENT_PAGE;
        if (!is_tired(t) && behind > s->at)
            s->at = behind;
    }
    return OK;
}

static enum err sweep_file(struct sweep *s, const struct pack_row *row, struct gc_report *r,
                           bool *done, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = pack_path(s->st, row->id, path, sizeof path, e);
    if (rc)
        return rc;
    AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? OK : err_sys(e, errno, "open %s", path);
    struct stretch t = {.s = s, .r = r, .fd = fd};
    uint64_t end = list_begins(fd, row);
    rc = free_between(&t, end, e);
    free(t.zeros);
    *done = s->at >= end;
    return rc;
}

enum err sweep_step(struct sweep *s, struct gc_report *r, bool *done, struct error *e)
{
    struct pack_row row;
    enum err rc = pack_row_read(s->st, s->pack, &row, e);
    *done = true;
    /* Of a damaged row nothing is known: its file is left as it is. */
    if (rc == ERR_NOTFOUND || rc == ERR_CORRUPT) {
        s->pack = 0;
        return OK;
    }
    if (s->at < EXTENT_PAGE)
        s->at = EXTENT_PAGE;
    if (!rc)
        rc = sweep_file(s, &row, r, done, e);
    if (*done)
        s->pack = 0;
    return rc;
}

enum err sweep_packs(struct store *st, const int64_t *packs, size_t n, struct error *e)
{
    struct gc_report r = {0};
    enum err rc = db_exec(&st->db, "PRAGMA wal_checkpoint(TRUNCATE)", e);
    for (size_t i = 0; i < n && !rc; i++) {
        struct sweep s = {.st = st, .pack = packs[i]};
        for (bool done = false; !done && !rc;)
            rc = sweep_step(&s, &r, &done, e);
    }
    return rc;
}

enum err sweep_next_pack(struct store *st, int64_t after, struct pack_row *out, bool *found,
                         struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db, "SELECT " PACK_COLS ", tag FROM packs WHERE id > ? ORDER BY id", e);
    if (rc)
        return rc;
    query_int(&q, after);
    for (;;) {
        if ((rc = query_step(&q, found, e)) || !*found || (rc = row_above(&q, 0, after, e)))
            return rc;
        if (pack_row_take(&q, out, NULL) == OK)
            return OK;
    }
}
