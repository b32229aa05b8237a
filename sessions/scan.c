#include "sessions/scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "sessions/catalog.h"
#include "sessions/identity.h"
#include "sessions/pack_internal.h"
#include "sessions/pack_rewrite.h"
#include "sessions/schema.h"

/* ---- the folder -------------------------------------------------------------------------- */

struct number_list {
    int64_t *ids;
    size_t n;
    uint64_t n_junk; /* names that are no pack's */
};

static void number_list_fini(struct number_list *l)
{
    free(l->ids);
}

static int by_number(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* "00000012.pack" -> 12; 0 for any other name. */
static int64_t number_of(const char *name)
{
    int64_t id = 0;
    for (int i = 0; i < 8; i++) {
        if (name[i] < '0' || name[i] > '9')
            return 0;
        id = id * 10 + (name[i] - '0');
    }
    return strcmp(name + 8, ".pack") == 0 ? id : 0;
}

static enum err add_number(struct number_list *l, int64_t id, struct error *e)
{
    if (l->n % 64 == 0) {
        int64_t *grown = realloc(l->ids, (l->n + 64) * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "packs folder: out of memory");
        l->ids = grown;
    }
    l->ids[l->n++] = id;
    return OK;
}

/* Numbers of all files that are named like packs, ascending. */
static enum err list_folder(struct store *st, struct number_list *out, struct error *e)
{
    DIR *dir = fault_point("scan.folder") ? (errno = EIO, NULL) : opendir(st->packs_dir);
    if (!dir)
        return err_sys(e, errno, "open %s", st->packs_dir);
    enum err rc = OK;
    for (struct dirent *d; !rc && (d = readdir(dir));) {
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        int64_t id = number_of(d->d_name);
        if (id)
            rc = add_number(out, id, e);
        else
            out->n_junk++;
    }
    closedir(dir);
    if (out->n)
        qsort(out->ids, out->n, sizeof *out->ids, by_number);
    return rc;
}

/* A pack file and its superblock. Anything but a regular file with a good superblock is
 * ERR_FORMAT, ERR_CORRUPT, ERR_NOTFOUND, ERR_DENIED or ERR_IO: not a pack we can use. */
static enum err open_pack(struct store *st, int64_t id, int flags, int *fd, uint64_t *size,
                          struct pack_super *super, struct error *e)
{
    char path[FS_PATH_BYTES];
    uint64_t n_bytes;
    AUTO_FD int f = -1;
    enum err rc = pack_path(st, id, path, sizeof path, e);
    if (rc || (rc = fs_open_regular(path, flags | O_NOFOLLOW, &f, e)) ||
        (rc = fs_size(f, path, &n_bytes, e)))
        return rc;
    if ((rc = pack_read_super(st, f, super, e)))
        return err_wrap(e, rc, "%s", path);
    *size = n_bytes;
    *fd = TAKE_FD(f);
    return OK;
}

static bool is_unusable(enum err rc)
{
    return rc == ERR_FORMAT || rc == ERR_CORRUPT || rc == ERR_NOTFOUND || rc == ERR_DENIED ||
           rc == ERR_IO;
}

enum err scan_namespace(struct store *st, bool *found, struct error *e)
{
    AUTO(number_list) struct number_list l = {0};
    enum err rc = list_folder(st, &l, e);
    *found = false;
    for (size_t i = 0; i < l.n && !rc && !*found; i++) {
        struct pack_super super;
        AUTO_FD int fd = -1;
        uint64_t size;
        if (open_pack(st, l.ids[i], O_RDONLY, &fd, &size, &super, NULL) ||
            strcmp(super.space_name, st->space.name) != 0 ||
            super.block_tokens != st->block_tokens)
            continue;
        memcpy(st->space.uuid, super.space, sizeof super.space);
        memcpy(st->space.wrapped, super.wrapped, sizeof super.wrapped);
        *found = namespace_unwrap(st, &st->space, NULL) == OK;
    }
    return rc;
}

/* Overwritten before it is unlinked: the name may be gone long before the blocks are. A damaged
 * superblock holds the wrapped key still, so its tag is not asked for. */
static enum err erase_pack(struct store *st, int64_t id, bool *erased, struct error *e)
{
    _Alignas(EXTENT_PAGE) uint8_t page[EXTENT_PAGE];
    char path[FS_PATH_BYTES];
    AUTO_FD int fd = -1;
    enum err rc = pack_path(st, id, path, sizeof path, e);
    if (rc)
        return rc;
    *erased = !fs_open_regular(path, O_RDWR | O_NOFOLLOW, &fd, NULL) &&
              !fs_pread(fd, path, page, sizeof page, 0, NULL) &&
              pack_super_is_of(page, st->space.uuid);
    if (!*erased)
        return OK;
    memset(page, 0, sizeof page);
    if ((rc = fs_pwrite(fd, path, page, sizeof page, 0, e)) || (rc = fs_sync(fd, path, e)))
        return rc;
    if (fault_point("scan.unlink") || unlink(path))
        return err_sys(e, errno ? errno : EIO, "unlink %s", path);
    return OK;
}

enum err scan_erase(struct store *st, uint64_t *n, struct error *e)
{
    AUTO(number_list) struct number_list l = {0};
    enum err rc = list_folder(st, &l, e);
    pack_forget_all(st);
    for (size_t i = 0; i < l.n && !rc; i++) {
        bool erased;
        rc = erase_pack(st, l.ids[i], &erased, e);
        *n += !rc && erased;
    }
    return rc ? rc : fs_sync_dir(st->packs_dir, e);
}

/* ---- commits that the database does not know --------------------------------------------- */

/* Whether the database has lost commits, from the newest number that was seen in a pack. One
 * more than it knows is that of a commit that was cut, unless its -wal is gone. */
static bool is_older(const struct store *st, uint64_t known, uint64_t newest)
{
    return newest > known + !st->seen.wal_lost;
}

/* Extents behind what the database knows, on their way into the counters or the catalog. */
struct adopt {
    struct store *st;
    int64_t pack;
    int fd;
    uint64_t known;  /* number of the database's last state commit */
    uint64_t newest; /* highest number seen */
    uint64_t n_damaged;
    bool into_catalog;
};

/* The layout that an extent was made for. False if its regions are no whole plane table. */
static bool layout_of(const struct extent *x, struct state_layout *l)
{
    memset(l, 0, sizeof *l);
    memcpy(l->fingerprint, x->fingerprint, sizeof l->fingerprint);
    l->tip_bytes = x->tip_bytes;
    l->n_planes = x->n_regions - 1;
    for (uint32_t i = 1; i < x->n_regions; i++) {
        const struct extent_region *r = &x->regions[i];
        if (r->plane >= l->n_planes || l->planes[r->plane].ratio || !r->ratio)
            return false;
        struct plane_spec *p = &l->planes[r->plane];
        memcpy(p->name, r->name, sizeof p->name);
        p->kind = r->what == REGION_INDEX ? PLANE_INDEX : PLANE_MAIN;
        p->row_bytes = r->row_bytes;
        p->ratio = r->ratio;
    }
    return true;
}

/* Id of the layout an extent belongs to, added if it is new. *id 0: not one of ours. */
static enum err find_layout(struct store *st, const struct extent *x, int64_t *id,
                            struct error *e)
{
    struct state_layout l;
    uint8_t root[HASH_BYTES], spec[IDENTITY_SPEC_BYTES(STATE_MAX_PLANES)];
    *id = 0;
    if (!x->n_regions || !layout_of(x, &l))
        return OK;
    enum err rc = layout_find(st, &l, id, root, e);
    if (rc == ERR_CONFLICT || memcmp(root, x->root, sizeof root) != 0)
        return OK;
    if (rc || *id)
        return rc;
    identity_spec(&l, spec);
    if ((rc = layout_next_id(st, id, e)))
        return rc;
    return layout_add(st, *id, l.fingerprint, spec, IDENTITY_SPEC_BYTES(l.n_planes), root, e);
}

/* The block with this key whose digest begins so. *id 0: none. */
static enum err find_block(struct store *st, int64_t layout, const uint8_t key[HASH_BYTES],
                           const uint8_t *digest, size_t n_digest, int64_t *id, struct error *e)
{
    struct block_row rows[8];
    size_t n;
    *id = 0;
    enum err rc = block_find(st, layout, key, "", rows, 8, &n, e);
    for (size_t i = 0; i < n && !rc && !*id; i++)
        if (memcmp(rows[i].x.digest, digest, n_digest) == 0)
            *id = rows[i].x.id;
    return rc;
}

/* Gives a block that the database does not know its row. Parents come first in a pack, and
 * packs in the order they were made. One without a parent cannot be reached and stays where it
 * is; so does one that is not whole, because nothing says that its bytes ever were synced: it
 * must not be shared by a save that has the same rows in hand. */
static enum err adopt_block(struct adopt *a, const struct extent *x, uint64_t off,
                            struct error *e)
{
    struct block_row r = {.depth = x->first / a->st->block_tokens,
                          .used_ms = store_now_ms(a->st)};
    int64_t known;
    enum err rc = find_layout(a->st, x, &r.x.layout, e);
    if (rc || !r.x.layout || x->block_tokens != a->st->block_tokens)
        return rc;
    if ((rc = find_block(a->st, r.x.layout, x->key, x->digest, HASH_BYTES, &known, e)) || known)
        return rc;
    if (r.depth && ((rc = find_block(a->st, r.x.layout, x->parent, x->before, sizeof x->before,
                                     &r.parent, e)) ||
                    !r.parent))
        return rc;
    if ((rc = pack_check_extent(a->fd, x, off, &a->st->space.keys, e)) == ERR_CORRUPT) {
        a->n_damaged++;
        return OK;
    }
    if (rc || (rc = catalog_next_id(a->st, CATALOG_BLOCKS, &r.x.id, e)))
        return rc;
    memcpy(r.key, x->key, sizeof r.key);
    memcpy(r.x.digest, x->digest, sizeof r.x.digest);
    memcpy(r.x.numerics, x->numerics, sizeof r.x.numerics);
    r.x.lineage = x->lineage;
    r.x.commit = x->commit;
    r.x.place = (struct pack_place){a->pack, off, x->pages};
    a->st->seen.extents_adopted++;
    return block_write(a->st, &r, e);
}

static enum err see_extent(void *user, const struct extent *x, uint64_t off, struct error *e)
{
    struct adopt *a = user;
    if (x->kind == EXTENT_LIST)
        return OK;
    if (x->commit > a->newest)
        a->newest = x->commit;
    if (!a->into_catalog)
        return OK;
    if (is_older(a->st, a->known, x->commit))
        store_note_lost(a->st, x->session);
    return x->kind == EXTENT_BLOCK ? adopt_block(a, x, off, e) : OK;
}

static enum err walk(struct adopt *a, int fd, const uint8_t *uuid, uint64_t from, uint64_t to,
                     struct error *e)
{
    struct pack_walk w = {
        .header_key = a->st->space.keys.header, .uuid = uuid, .fn = see_extent, .user = a};
    enum err rc = pack_walk(&w, fd, from, to, e);
    if (!rc && a->into_catalog)
        a->n_damaged += w.n_damaged;
    return rc;
}

/* Walks [from, to) of a pack and puts its blocks into the catalog, the pack's row first. */
static enum err adopt_range(struct store *st, struct adopt *a, int fd,
                            const struct pack_row *row, uint64_t from, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &st->db, e);
    if (rc || (rc = pack_row_write(st, row, e)))
        return rc;
    a->into_catalog = true;
    a->fd = fd;
    rc = walk(a, fd, row->uuid, from, row->length, e);
    return rc ? rc : txn_commit(&t, e);
}

/* ---- packs the database knows ------------------------------------------------------------ */

static enum err drop_rows(struct store *st, const char *sql, int64_t pack, uint64_t end,
                          uint64_t *n, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, pack);
    query_uint(&q, end);
    if (!(rc = query_run(&q, e)))
        *n += (uint64_t)sqlite3_changes(st->db.handle);
    return rc;
}

/* Drops the rows of extents that do not lie whole in the first `end` bytes of a pack. */
static enum err drop_past(struct store *st, int64_t pack, uint64_t end, struct error *e)
{
    uint64_t *n = &st->seen.rows_dropped;
    enum err rc = drop_rows(st, "DELETE FROM blocks WHERE pack = ? AND off + pages * 4096 > ?",
                            pack, end, n, e);
    if (!rc)
        rc = drop_rows(st, "DELETE FROM tails WHERE pack = ? AND off + pages * 4096 > ?", pack,
                       end, n, e);
    if (!rc)
        rc = drop_rows(st, "DELETE FROM tips WHERE pack = ? AND off + pages * 4096 > ?", pack,
                       end, n, e);
    return rc;
}

/* A pack that is shorter than what was committed (end 0: gone) is only read from now on. */
static enum err shorten(struct store *st, struct pack_row row, uint64_t end, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &st->db, e);
    if (rc || (rc = drop_past(st, row.id, end, e)))
        return rc;
    if (end) {
        row.length = end;
        row.state = PACK_DEAD;
        rc = pack_row_write(st, &row, e);
    } else {
        /* No loss by itself: gc removes an empty pack's file before its row. */
        uint64_t n = 0;
        rc = drop_rows(st, "DELETE FROM packs WHERE id = ? AND id > ?", row.id, 0, &n, e);
    }
    return rc ? rc : txn_commit(&t, e);
}

/* Bytes behind what was committed: the leftovers of a commit that did not happen, and cut off;
 * unless they are several commits, which the database must have lost. */
static enum err check_behind(struct store *st, struct pack_row *row, int fd, uint64_t size,
                             uint64_t known, uint64_t *newest, struct error *e)
{
    struct adopt a = {.st = st, .pack = row->id, .known = known};
    enum err rc = walk(&a, fd, row->uuid, row->length, size, e);
    if (rc)
        return rc;
    if (is_older(st, known, a.newest)) {
        if (a.newest > *newest)
            *newest = a.newest;
        uint64_t from = row->length;
        row->length = size / EXTENT_PAGE * EXTENT_PAGE;
        row->state = PACK_SEALED;
        rc = adopt_range(st, &a, fd, row, from, e);
        st->seen.extents_damaged += a.n_damaged;
        return rc;
    }
    if (row->state != PACK_OPEN)
        return OK;
    if (fault_point("scan.truncate") || ftruncate(fd, (off_t)row->length))
        return OK; /* it is cut again before anything is written to it */
    st->seen.bytes_truncated += size - row->length;
    return OK;
}

static enum err check_known(struct store *st, struct pack_row row, uint64_t known,
                            uint64_t *newest, struct error *e)
{
    struct pack_super super;
    AUTO_FD int fd = -1;
    uint64_t size;
    struct error why;
    enum err rc = open_pack(st, row.id, O_RDWR, &fd, &size, &super, &why);
    if (!rc && memcmp(super.uuid, row.uuid, sizeof row.uuid) != 0)
        rc = ERR_CORRUPT;
    if (rc == ERR_NOTFOUND)
        return shorten(st, row, 0, e);
    if (is_unusable(rc)) {
        /* Its rows stay: every read will say what is wrong, and the file may come back. */
        st->seen.packs_refused++;
        return OK;
    }
    if (rc)
        return err_wrap(e, err_set(e, rc, "%s", why.msg), "scan packs");
    st->seen.packs++;
    st->seen.pack_bytes += size;
    if (size < row.length)
        return shorten(st, row, size / EXTENT_PAGE * EXTENT_PAGE, e);
    return size > row.length ? check_behind(st, &row, fd, size, known, newest, e) : OK;
}

/* ---- packs it does not ------------------------------------------------------------------- */

/* Counts what is damaged in a pack that was walked: its list knows best, where it has one. */
static enum err count_damage(struct adopt *a, int fd, const uint8_t *uuid, uint64_t size,
                             struct error *e)
{
    const struct store_namespace *space = &a->st->space;
    uint64_t n = a->n_damaged;
    enum err rc = pack_check_list(fd, uuid, &space->keys, size, &n, e);
    if (rc && rc != ERR_NOTFOUND && rc != ERR_CORRUPT)
        return rc;
    a->st->seen.extents_damaged += n + (rc == ERR_CORRUPT);
    return OK;
}

static enum err check_unknown(struct store *st, int64_t id, uint64_t known, uint64_t *newest,
                              struct error *e)
{
    struct pack_super super;
    AUTO_FD int fd = -1;
    uint64_t size;
    enum err rc = open_pack(st, id, O_RDONLY, &fd, &size, &super, NULL);
    if (rc == ERR_FORMAT || rc == ERR_DENIED) {
        st->seen.junk_files++;
        return OK;
    }
    if (rc || memcmp(super.space, st->space.uuid, sizeof super.space) != 0 ||
        super.number != (uint64_t)id) {
        st->seen.packs_refused++;
        return OK;
    }
    struct adopt a = {.st = st, .pack = id, .known = known};
    struct pack_row row = {.id = id,
                           .space = st->space.id,
                           .state = PACK_SEALED,
                           .length = size / EXTENT_PAGE * EXTENT_PAGE};
    memcpy(row.uuid, super.uuid, sizeof row.uuid);
    if ((rc = adopt_range(st, &a, fd, &row, EXTENT_PAGE, e)))
        return rc;
    /* Of the last commit, which was cut, anything may be missing: that is no damage. */
    if (is_older(st, known, a.newest) && (rc = count_damage(&a, fd, row.uuid, size, e)))
        return rc;
    if (a.newest > *newest)
        *newest = a.newest;
    st->seen.packs++;
    st->seen.pack_bytes += size;
    return OK;
}

/* ---- the scan ---------------------------------------------------------------------------- */

/* The row of the first pack above `above`. */
static enum err next_row(struct store *st, int64_t above, struct pack_row *out, bool *found,
                         struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &st->db,
                   "SELECT " PACK_COLS ", tag FROM packs WHERE id > ? ORDER BY id LIMIT 1", e);
    if (rc)
        return rc;
    query_int(&q, above);
    if ((rc = query_step(&q, found, e)) || !*found)
        return rc;
    /* State can be computed again; what lies behind the damage is not looked at. */
    if (row_above(&q, 0, above, NULL)) {
        st->db.rows_damaged++;
        *found = false;
        return OK;
    }
    out->id = row_int(&q, 0);
    /* A damaged row: nothing is known about its pack. */
    if (pack_row_take(&q, out, NULL))
        out->state = 0;
    return OK;
}

static enum err scan_known(struct store *st, uint64_t known, uint64_t *newest, struct error *e)
{
    struct pack_row row = {0};
    for (int64_t above = 0;; above = row.id) {
        bool found;
        enum err rc = next_row(st, above, &row, &found, e);
        if (rc || !found)
            return rc;
        if (!row.state)
            st->seen.packs_refused++;
        else if (row.state == PACK_LEAVING)
            rc = pack_remove(st, row.id, e);
        else
            rc = check_known(st, row, known, newest, e);
        if (rc)
            return rc;
    }
}

static enum err scan_unknown(struct store *st, uint64_t known, uint64_t *newest,
                             struct error *e)
{
    AUTO(number_list) struct number_list l = {0};
    enum err rc = list_folder(st, &l, e);
    st->seen.junk_files += l.n_junk;
    for (size_t i = 0; i < l.n && !rc; i++) {
        struct pack_row row;
        rc = pack_row_read(st, l.ids[i], &row, NULL);
        if (rc == ERR_NOTFOUND)
            rc = check_unknown(st, l.ids[i], known, newest, e);
        else if (rc == ERR_CORRUPT)
            rc = OK; /* counted already */
        else if (rc)
            rc = err_set(e, rc, "scan packs: database");
    }
    return rc;
}

enum err scan_packs(struct store *st, struct error *e)
{
    uint64_t known, newest = 0;
    enum err rc = meta_read(st, "state_commit", &known, sizeof known, e);
    if (rc || (rc = scan_known(st, known, &newest, e)) ||
        (rc = scan_unknown(st, known, &newest, e)))
        return rc;
    if (newest <= known)
        return OK;
    if (is_older(st, known, newest))
        st->seen.commits_lost = newest - known;
    /* Numbers are never used twice. */
    return meta_write(st, "state_commit", &newest, sizeof newest, e);
}

enum err scan_removed(struct store *st, uint64_t *n, struct error *e)
{
    struct pack_row row = {0};
    *n = 0;
    for (int64_t above = 0;; above = row.id) {
        bool found;
        char path[FS_PATH_BYTES];
        struct stat sb;
        enum err rc = next_row(st, above, &row, &found, e);
        if (rc || !found || (rc = pack_path(st, row.id, path, sizeof path, e)))
            return rc;
        if (!row.state || lstat(path, &sb) == 0 || errno != ENOENT)
            continue;
        pack_forget(st, row.id);
        if ((rc = shorten(st, row, 0, e)))
            return rc;
        ++*n;
    }
}
