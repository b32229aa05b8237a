#include "sessions/migrate.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "sessions/schema.h"
#include "sessions/vfs.h"

/* A table as it was up to a version: its columns, and for each of today's columns, in order,
 * what it is made of. The entry with the lowest version that is not below the database's
 * counts; a table without one has not changed, or is new. */
struct old_table {
    int64_t until;
    const char *name;
    const char *had;
    const char *becomes;
};

static const struct old_table old_tables[] = {
    {2, "sessions",
     "num, id, name, namespace, strand, parent, forked_at, state, reason, damaged, created,"
     " updated, n_turns, n_unfinished, n_calls, n_open",
     /* What a rewind or a compaction has kept looks like a fork there. */
     "num, id, name, namespace, strand, parent, forked_at,"
     " CASE parent WHEN '' THEN 'new' ELSE 'fork' END, state, reason, damaged, created, "
     "updated,"
     " n_turns, n_unfinished, n_calls, n_open"},
};

static const struct old_table *find_old(const char *name, int64_t version)
{
    const struct old_table *found = NULL;
    for (size_t i = 0; i < sizeof old_tables / sizeof old_tables[0]; i++) {
        const struct old_table *o = &old_tables[i];
        if (o->until >= version && !strcmp(o->name, name) &&
            (!found || o->until < found->until))
            found = o;
    }
    return found;
}

/* ---- the copy ---------------------------------------------------------------------------- */

static enum err copy_path(struct db *db, int64_t version, char out[FS_PATH_BYTES],
                          struct error *e)
{
    return fs_path(out, FS_PATH_BYTES, e, "%s.v%lld", sqlite3_db_filename(db->handle, "main"),
                   (long long)version);
}

/* Through SQLite, which knows what of the database is still in its log. */
static enum err copy_pages(struct db *db, const char *path, struct error *e)
{
    struct db copy = {0};
    int rc = sqlite3_open_v2(path, &copy.handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
                             VFS_NAME);
    sqlite3_backup *b = NULL;
    if (!rc && !(b = sqlite3_backup_init(copy.handle, "main", db->handle, "main")))
        rc = sqlite3_errcode(copy.handle);
    if (b) {
        sqlite3_backup_step(b, -1);
        rc = sqlite3_backup_finish(b);
    }
    enum err code = rc ? db_error(&copy, rc, e, path) : OK;
    sqlite3_close(copy.handle);
    return code;
}

static enum err keep_copy(struct db *db, int64_t version, struct error *e)
{
    char path[FS_PATH_BYTES], tmp[FS_PATH_BYTES], folder[FS_PATH_BYTES];
    enum err rc = copy_path(db, version, path, e);
    if (rc || (rc = fs_path(tmp, sizeof tmp, e, "%s.tmp", path)) ||
        (rc =
             fs_path(folder, sizeof folder, e, "%.*s", (int)(strrchr(path, '/') - path), path)))
        return rc;
    unlink(tmp);
    /* SQLite has synced the file at its end. */
    if (!(rc = copy_pages(db, tmp, e)) && rename(tmp, path))
        rc = err_sys(e, errno, "rename %s", tmp);
    if (!rc)
        rc = fs_sync_dir(folder, e);
    if (rc)
        unlink(tmp);
    return rc ? err_wrap(e, rc, "the copy that is kept of the database") : OK;
}

enum err migrate_drop_copies(struct db *db, struct error *e)
{
    char path[FS_PATH_BYTES];
    for (int64_t v = 1; v < SCHEMA_VERSION; v++) {
        enum err rc = copy_path(db, v, path, e);
        if (rc)
            return rc;
        if (unlink(path) && errno != ENOENT)
            return err_sys(e, errno, "remove %s", path);
    }
    return OK;
}

/* ---- tables ------------------------------------------------------------------------------ */

static enum err exec_format(struct db *db, struct error *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static enum err exec_format(struct db *db, struct error *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *sql = sqlite3_vmprintf(fmt, ap);
    va_end(ap);
    enum err rc = sql ? db_exec(db, sql, e) : err_set(e, ERR_NOMEM, "migrate: out of memory");
    sqlite3_free(sql);
    return rc;
}

static enum err query_format(struct query *q, struct db *db, struct error *e, const char *fmt,
                             ...) __attribute__((format(printf, 4, 5)));
static enum err query_format(struct query *q, struct db *db, struct error *e, const char *fmt,
                             ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *sql = sqlite3_vmprintf(fmt, ap);
    va_end(ap);
    enum err rc =
        sql ? query_init_once(q, db, sql, e) : err_set(e, ERR_NOMEM, "migrate: out of memory");
    sqlite3_free(sql);
    return rc;
}

static int n_columns(const char *list)
{
    int n = 1;
    for (const char *p = list; *p; p++)
        n += *p == ',';
    return n;
}

/* One row of the old table into the new one. read: had ..., tag, becomes ... */
static enum err copy_row(struct query *read, const struct old_table *o, struct query *put,
                         struct error *e)
{
    int n_had = n_columns(o->had), n = sqlite3_column_count(read->handle);
    bool damaged = row_check_first(read, o->name, n_had, NULL) != OK;
    put->n_bound = 0;
    query_tagged(put, o->name);
    for (int col = n_had + 1; col < n; col++)
        query_column(put, read, col);
    enum err rc;
    if (damaged) {
        put->tagging = false;
        query_column(put, read, n_had);
        rc = query_run(put, e);
    } else {
        rc = query_put(put, e);
    }
    sqlite3_reset(put->handle);
    return rc;
}

static enum err copy_rows(struct db *db, const struct old_table *o, struct error *e)
{
    AUTO(query) struct query read = {0};
    AUTO(query) struct query put = {0};
    enum err rc = query_format(&read, db, e, "SELECT %s, tag, %s FROM old_%s", o->had,
                               o->becomes, o->name);
    if (rc)
        return rc;
    char marks[256] = "?";
    int n = sqlite3_column_count(read.handle) - n_columns(o->had);
    for (int i = 1; i < n; i++)
        strncat(marks, ",?", sizeof marks - strlen(marks) - 1);
    rc = query_format(&put, db, e, "INSERT INTO %s VALUES(%s)", o->name, marks);
    for (bool row = true; !rc;)
        if ((rc = query_step(&read, &row, e)) || !row || (rc = copy_row(&read, o, &put, e)))
            break;
    return rc;
}

static enum err rebuild(struct db *db, const struct schema_table *t, const struct old_table *o,
                        struct error *e)
{
    enum err rc = exec_format(db, e, "ALTER TABLE %s RENAME TO old_%s", t->name, t->name);
    if (rc || (rc = db_exec(db, t->create, e)) || (rc = copy_rows(db, o, e)))
        return err_wrap(e, rc, "table %s", t->name);
    return exec_format(db, e, "DROP TABLE old_%s", t->name);
}

static enum err has_table(struct db *db, const char *name, bool *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, db, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?", e);
    if (rc)
        return rc;
    query_text(&q, name);
    bool row;
    if (!(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0) > 0;
    return rc;
}

/* *is_new: the old database had none. */
static enum err migrate_table(struct db *db, const struct schema_table *t, int64_t from,
                              bool *is_new, struct error *e)
{
    const struct old_table *o = find_old(t->name, from);
    bool there = true;
    enum err rc = o ? rebuild(db, t, o, e) : has_table(db, t->name, &there, e);
    *is_new = !there;
    return rc || there ? rc : db_exec(db, t->create, e);
}

/* All of them are made again at the end: an index may have changed where its table has not. */
static enum err drop_indexes(struct db *db, struct error *e)
{
    for (;;) {
        AUTO(query) struct query q = {0};
        bool row = false;
        enum err rc = query_init_once(&q, db,
                                      "SELECT name FROM sqlite_schema WHERE type = 'index'"
                                      " AND sql IS NOT NULL LIMIT 1",
                                      e);
        if (rc || (rc = query_step(&q, &row, e)) || !row)
            return rc;
        char name[64];
        snprintf(name, sizeof name, "%s", row_text(&q, 0));
        query_fini(&q);
        if ((rc = exec_format(db, e, "DROP INDEX %s", name)))
            return rc;
    }
}

static enum err migrate_all(struct db *db, int64_t from, struct error *e)
{
    size_t n;
    const struct schema_table *tables = schema_tables(&n);
    bool is_new[64] = {false};
    assert(n <= sizeof is_new);
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, db, e);
    if (!rc)
        rc = drop_indexes(db, e);
    for (size_t i = 0; i < n && !rc; i++)
        rc = migrate_table(db, &tables[i], from, &is_new[i], e);
    if (!rc)
        rc = schema_finish(db, e);
    for (size_t i = 0; i < n && !rc; i++)
        if (is_new[i] && tables[i].fill)
            rc = db_exec(db, tables[i].fill, e);
    return rc ? rc : txn_commit(&t, e);
}

enum err migrate(struct db *db, int64_t from, struct error *e)
{
    enum err rc = keep_copy(db, from, e);
    /* A view goes on meaning the table by its name when the old one is renamed. */
    if (!rc)
        rc = db_exec(db, "PRAGMA legacy_alter_table = ON", e);
    if (!rc && !(rc = migrate_all(db, from, e)))
        rc = db_exec(db, "PRAGMA legacy_alter_table = OFF", e);
    return rc ? err_wrap(e, rc, "migrate from version %lld to %d", (long long)from,
                         SCHEMA_VERSION)
              : OK;
}
