/* Writing packs: one is open at a time, extents go behind each other, sealed when it is full.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/aio.h"
#include "base/fault.h"
#include "sessions/le.h"
#include "sessions/pack.h"
#include "sessions/pack_internal.h"
#include "sessions/scan.h"
#include "sessions/schema.h"

#define WRITE_PIECE (1u << 20)

/* ---- killing ----------------------------------------------------------------------------- */

static bool is_killed(const struct packs *p, int64_t id)
{
    for (size_t i = 0; i < p->n_killed; i++)
        if (p->killed[i] == id)
            return true;
    return false;
}

static void close_writer(struct pack_writer *w)
{
    if (w->row.id)
        close(w->fd);
    memset(w, 0, sizeof *w);
    w->fd = -1;
}

void pack_close_writer(struct store *st)
{
    close_writer(&st->packs->writer);
}

/* After a failed write or fsync: what is committed stays readable, nothing is ever added. */
static void kill_writer(struct store *st)
{
    struct packs *p = st->packs;
    struct pack_row row = p->writer.row;
    if (!row.id)
        return;
    if (p->n_killed < PACK_MAX_KILLED)
        p->killed[p->n_killed++] = row.id;
    st->seen.packs_killed++;
    close_writer(&p->writer);
    row.state = PACK_DEAD;
    /* Should the row not take it, the next start trusts what is committed, as it may. */
    if (row.length)
        (void)!pack_row_write(st, &row, NULL);
}

/* A full disk leaves no doubt about what was written before, and kills nothing. */
static enum err write_failed(struct store *st, enum err rc)
{
    if (rc != ERR_LIMIT)
        kill_writer(st);
    return rc;
}

/* ---- opening ----------------------------------------------------------------------------- */

static enum err next_number(struct store *st, int64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, "SELECT ifnull(max(id), 0) + 1 FROM packs", e);
    bool row = false;
    if (!rc && !(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0);
    return rc;
}

/* Makes a file that is not there yet: leftovers keep their names. */
static enum err make_file(struct store *st, struct pack_writer *w, struct error *e)
{
    int64_t id;
    enum err rc = next_number(st, &id, e);
    if (rc)
        return rc;
    if (fault_point("pack.create"))
        return err_sys(e, ENOSPC, "make pack %lld", (long long)id);
    for (;; id++) {
        char path[FS_PATH_BYTES];
        if (id > 99999999)
            return err_set(e, ERR_LIMIT, "no pack number left");
        if ((rc = pack_path(st, id, path, sizeof path, e)))
            return rc;
        if (is_killed(st->packs, id) || access(path, F_OK) == 0)
            continue;
        rc = pack_open_fd(st, path, O_RDWR | O_CREAT | O_EXCL, &w->fd, &w->direct, e);
        if (!rc)
            w->row.id = id;
        return rc;
    }
}

/* A file of which nothing was ever committed. */
static void drop_new_file(struct store *st)
{
    char path[FS_PATH_BYTES];
    int64_t id = st->packs->writer.row.id;
    close_writer(&st->packs->writer);
    if (!pack_path(st, id, path, sizeof path, NULL))
        unlink(path);
}

static enum err begin_pack(struct store *st, struct error *e)
{
    struct pack_writer *w = &st->packs->writer;
    memset(w, 0, sizeof *w);
    enum err rc = make_file(st, w, e);
    if (rc)
        return rc;
    crypto_random(w->row.uuid, sizeof w->row.uuid);
    w->row.space = st->space.id;
    w->row.state = PACK_OPEN;
    struct pack_super s = {.number = (uint64_t)w->row.id,
                           .created_ms = store_now_ms(st),
                           .block_tokens = st->block_tokens};
    memcpy(s.uuid, w->row.uuid, sizeof s.uuid);
    memcpy(s.store, st->uuid, sizeof s.store);
    memcpy(s.space, st->space.uuid, sizeof s.space);
    snprintf(s.space_name, sizeof s.space_name, "%s", st->space.name);
    memcpy(s.wrapped, st->space.wrapped, sizeof s.wrapped);
    s.algorithm = st->space.algorithm;
    _Alignas(EXTENT_PAGE) uint8_t page[EXTENT_PAGE];
    pack_super_encode(&s, st->superblock_key, page);
    if ((rc = fs_pwrite(w->fd, "pack", page, sizeof page, 0, e))) {
        drop_new_file(st);
        return rc;
    }
    w->end = EXTENT_PAGE;
    w->dirty = true;
    st->used_bytes += EXTENT_PAGE;
    return OK;
}

/* The row of the pack to go on with. *found false: none. */
static enum err find_open_row(struct store *st, struct pack_row *out, bool *found,
                              struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " PACK_COLS ", tag FROM packs WHERE namespace = ?"
                             " AND state = ? ORDER BY id DESC",
                             e);
    if (rc)
        return rc;
    query_int(&q, st->space.id);
    query_int(&q, PACK_OPEN);
    *found = false;
    for (bool row = true; !*found;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        /* A damaged row is passed over: its pack is only read. */
        if (!pack_row_take(&q, out, NULL))
            *found = !is_killed(st->packs, out->id);
    }
    return OK;
}

/* Opens the pack of a row for writing and cuts off what was never committed. */
static enum err reopen_pack(struct store *st, const struct pack_row *row, struct error *e)
{
    struct pack_writer *w = &st->packs->writer;
    char path[FS_PATH_BYTES];
    enum err rc = pack_path(st, row->id, path, sizeof path, e);
    if (rc)
        return rc;
    AUTO_FD int fd = -1;
    bool direct;
    struct pack_super super;
    if ((rc = pack_open_fd(st, path, O_RDWR, &fd, &direct, e)) ||
        (rc = pack_read_super(st, fd, &super, e)))
        return rc;
    if (memcmp(super.uuid, row->uuid, sizeof row->uuid) != 0)
        return err_set(e, ERR_CORRUPT, "pack %lld: another pack stands in its place",
                       (long long)row->id);
    if (fault_point("pack.truncate"))
        return err_sys(e, EIO, "truncate %s", path);
    if (ftruncate(fd, (off_t)row->length))
        return err_sys(e, errno, "truncate %s", path);
    *w = (struct pack_writer){
        .row = *row, .fd = TAKE_FD(fd), .direct = direct, .named = true, .end = row->length};
    return OK;
}

static enum err open_writer(struct store *st, struct error *e)
{
    if (st->packs->writer.row.id)
        return OK;
    struct pack_row row;
    bool found;
    enum err rc = find_open_row(st, &row, &found, e);
    if (rc)
        return rc;
    if (!found)
        return begin_pack(st, e);
    rc = reopen_pack(st, &row, e);
    /* Whatever is wrong with that one, a new one may do. */
    if (rc && rc != ERR_NOMEM && rc != ERR_LIMIT) {
        if (!is_killed(st->packs, row.id) && st->packs->n_killed < PACK_MAX_KILLED)
            st->packs->killed[st->packs->n_killed++] = row.id;
        return begin_pack(st, e);
    }
    return rc;
}

enum err pack_check_removed(struct store *st, struct error *e)
{
    const struct pack_writer *w = &st->packs->writer;
    struct stat sb;
    uint64_t n;
    if (!w->row.id || fstat(w->fd, &sb) || sb.st_nlink > 0)
        return OK;
    kill_writer(st);
    enum err rc = scan_removed(st, &n, e);
    /* What a restore has planned may be in there. */
    st->n_collections++;
    return rc;
}

/* ---- writing ----------------------------------------------------------------------------- */

/* Hands out what is complete; the first failure is kept. */
static enum err reap(struct store *st, uint32_t min, int *sys, struct error *e)
{
    struct aio_done done[16];
    size_t n;
    enum err rc = aio_wait(st->aio, min, done, 16, &n, e);
    for (size_t i = 0; !rc && i < n; i++)
        if (done[i].sys && !*sys)
            *sys = done[i].sys;
    return rc;
}

static enum err write_at(struct store *st, uint64_t off, const uint8_t *bytes, size_t n,
                         struct error *e)
{
    struct pack_writer *w = &st->packs->writer;
    int sys = 0;
    enum err rc = OK;
    for (size_t at = 0; at < n && !rc && !sys;) {
        size_t piece = n - at < WRITE_PIECE ? n - at : WRITE_PIECE;
        if (!aio_room(st->aio)) {
            rc = reap(st, 1, &sys, e);
            continue;
        }
        rc = aio_write(st->aio, w->fd, off + at, bytes + at, piece, NULL, e);
        at += piece;
    }
    /* Whatever happened: nothing of ours may be in flight when bytes is reused. */
    while (aio_in_flight(st->aio)) {
        enum err wait = reap(st, 1, &sys, rc ? NULL : e);
        if (wait)
            return rc ? rc : wait;
    }
    if (!rc && sys)
        rc = err_sys(e, sys, "write pack %lld at %llu", (long long)w->row.id,
                     (unsigned long long)off);
    return rc;
}

enum err pack_write(struct store *st, const struct pack_place *p, const void *bytes,
                    struct error *e)
{
    struct pack_writer *w = &st->packs->writer;
    size_t n = (size_t)p->pages * EXTENT_PAGE;
    w->dirty = true;
    w->end = p->off + n;
    enum err rc = write_at(st, p->off, bytes, n, e);
    return rc ? write_failed(st, rc) : OK;
}

static enum err sync_writer(struct store *st, struct error *e)
{
    struct pack_writer *w = &st->packs->writer;
    enum err rc = OK;
    if (w->dirty && (rc = fs_sync(w->fd, "pack", e))) {
        kill_writer(st);
        return rc;
    }
    if (w->dirty && !w->direct)
        posix_fadvise(w->fd, (off_t)w->row.length, 0, POSIX_FADV_DONTNEED);
    w->dirty = false;
    if (!w->named && (rc = fs_sync_dir(st->packs_dir, e))) {
        kill_writer(st);
        return rc;
    }
    w->named = true;
    return OK;
}

/* ---- sealing ----------------------------------------------------------------------------- */

static enum err add_entry(void *user, const struct extent *x, uint64_t off, struct error *e)
{
    uint8_t entry[PACK_LIST_BYTES] = {0};
    le_put64(entry, off);
    le_put32(entry + 8, x->pages);
    le_put32(entry + 12, (uint32_t)x->kind);
    le_put64(entry + 16, x->first);
    le_put64(entry + 24, x->last);
    le_put64(entry + 32, x->commit);
    memcpy(entry + 40, x->key, 32);
    memcpy(entry + 72, x->digest, 32);
    return buf_add(user, entry, sizeof entry, e);
}

/* Entries of all extents in [EXTENT_PAGE, w->end). */
static enum err list_extents(struct store *st, struct buf *out, struct error *e)
{
    struct pack_writer *w = &st->packs->writer;
    char path[FS_PATH_BYTES];
    enum err rc = pack_path(st, w->row.id, path, sizeof path, e);
    if (rc)
        return rc;
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, errno, "open %s", path);
    struct pack_walk walk = {
        .header_key = st->space.keys.header, .uuid = w->row.uuid, .fn = add_entry, .user = out};
    return pack_walk(&walk, fd, EXTENT_PAGE, w->end, e);
}

/* List extent and trailer page as one aligned buffer. */
static enum err write_list(struct store *st, const struct buf *list, struct error *e)
{
    struct pack_writer *w = &st->packs->writer;
    struct extent x = {.kind = EXTENT_LIST,
                       .algorithm = st->space.algorithm,
                       .written_ms = store_now_ms(st),
                       .block_tokens = st->block_tokens};
    enum err rc = extent_plan_one(&x, REGION_LIST, list->len, e);
    if (rc)
        return rc;
    crypto_random(x.nonce, sizeof x.nonce);
    size_t n = ((size_t)x.pages + 1) * EXTENT_PAGE;
    void *mem;
    if ((rc = aio_buffer_new(n, &mem, e)))
        return rc;
    uint8_t *bytes = mem, *trailer = bytes + n - EXTENT_PAGE;
    if (list->len)
        memcpy(bytes + (size_t)x.regions[0].page * EXTENT_PAGE, list->data, list->len);
    extent_seal(&x, &st->space.keys, w->row.uuid, w->end, bytes);
    pack_trailer_encode(w->row.uuid, st->space.keys.header, w->end, trailer);
    rc = write_at(st, w->end, bytes, n, e);
    st->used_bytes += n;
    aio_buffer_free(mem, n);
    w->end += n;
    w->dirty = true;
    return rc ? write_failed(st, rc) : OK;
}

static enum err push_touched(struct packs *p, const struct pack_row *row, struct error *e)
{
    if (p->n_touched == p->cap_touched) {
        size_t cap = p->cap_touched ? p->cap_touched * 2 : 8;
        struct pack_row *grown = realloc(p->touched, cap * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "packs: out of memory");
        p->touched = grown;
        p->cap_touched = cap;
    }
    p->touched[p->n_touched++] = *row;
    return OK;
}

static enum err seal(struct store *st, struct error *e)
{
    struct pack_writer *w = &st->packs->writer;
    AUTO(buf) struct buf list = BUF_INIT(64u << 20);
    if (fault_point("pack.seal"))
        return err_sys(e, EIO, "seal pack %lld", (long long)w->row.id);
    enum err rc = list_extents(st, &list, e);
    if (rc || (rc = write_list(st, &list, e)) || (rc = sync_writer(st, e)))
        return rc;
    struct pack_row row = w->row;
    row.state = PACK_SEALED;
    row.length = w->end;
    if ((rc = push_touched(st->packs, &row, e)))
        return rc;
    close_writer(w);
    return begin_pack(st, e);
}

enum err pack_room(struct store *st, uint32_t pages, struct pack_place *out,
                   const uint8_t **uuid_out, struct error *e)
{
    struct pack_writer *w = &st->packs->writer;
    enum err rc = open_writer(st, e);
    if (rc)
        return rc;
    uint64_t n = (uint64_t)pages * EXTENT_PAGE;
    if (w->end > EXTENT_PAGE && w->end + n > st->pack_bytes && (rc = seal(st, e)))
        return rc;
    *out = (struct pack_place){w->row.id, w->end, pages};
    *uuid_out = w->row.uuid;
    return OK;
}

/* ---- the commit's end -------------------------------------------------------------------- */

enum err pack_sync(struct store *st, struct error *e)
{
    return st->packs->writer.row.id ? sync_writer(st, e) : OK;
}

enum err pack_note(struct store *st, struct error *e)
{
    struct packs *p = st->packs;
    enum err rc = OK;
    for (size_t i = 0; i < p->n_touched && !rc; i++)
        rc = pack_row_write(st, &p->touched[i], e);
    if (rc || !p->writer.row.id || p->writer.end == p->writer.row.length)
        return rc;
    struct pack_row row = p->writer.row;
    row.length = p->writer.end;
    return pack_row_write(st, &row, e);
}

void pack_done(struct store *st)
{
    st->packs->n_touched = 0;
    st->packs->writer.row.length = st->packs->writer.end;
}

void pack_undo(struct store *st)
{
    struct packs *p = st->packs;
    p->n_touched = 0;
    struct pack_writer *w = &p->writer;
    if (!w->row.id || w->end == w->row.length)
        return;
    if (!w->row.length) {
        drop_new_file(st);
        return;
    }
    /* Should this fail, the pack is cut when it is opened again, from its row. */
    (void)!ftruncate(w->fd, (off_t)w->row.length);
    close_writer(w);
}

/* ---- giving space back ------------------------------------------------------------------- */

static void punch(const struct store *st, const struct pack_place *p)
{
    char path[FS_PATH_BYTES];
    if (pack_path(st, p->pack, path, sizeof path, NULL))
        return;
    AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);
    /* Not every file system can; the space is then found when the pack is rewritten. */
    if (fd >= 0)
        (void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->off,
                         (off_t)p->pages * EXTENT_PAGE);
}

void pack_flush_freed(struct store *st)
{
    if (!st->n_freed || db_exec(&st->db, "PRAGMA wal_checkpoint(TRUNCATE)", NULL))
        return;
    for (size_t i = 0; i < st->n_freed; i++)
        punch(st, &st->freed[i]);
    st->n_freed = 0;
    st->freed_bytes = 0;
}

void pack_free(struct store *st, const struct pack_place *p)
{
    if (st->n_freed == STORE_MAX_FREED || st->freed_bytes > STORE_FREED_BYTES)
        pack_flush_freed(st);
    if (st->n_freed == STORE_MAX_FREED)
        return;
    st->freed[st->n_freed++] = *p;
    st->freed_bytes += (uint64_t)p->pages * EXTENT_PAGE;
}
