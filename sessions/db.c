#include "sessions/db.h"

#include <errno.h>
#include <string.h>

#include "base/crypto.h"
#include "base/fault.h"
#include "sessions/vfs.h"

/* What the system said about a failed file operation, as far as a caller can act on it. */
static enum err code_of_errno(int sys, enum err otherwise)
{
    switch (sys) {
    case ENOSPC:
    case EDQUOT:
        return ERR_LIMIT;
    case EACCES:
    case EPERM:
    case EROFS:
        return ERR_DENIED;
    default:
        return otherwise;
    }
}

enum err db_error(struct db *db, int sqlite_rc, struct error *e, const char *what)
{
    static const struct {
        int sqlite;
        enum err code;
    } map[] = {
        {SQLITE_NOMEM, ERR_NOMEM},     {SQLITE_FULL, ERR_LIMIT},
        {SQLITE_TOOBIG, ERR_LIMIT},    {SQLITE_BUSY, ERR_BUSY},
        {SQLITE_LOCKED, ERR_BUSY},     {SQLITE_CORRUPT, ERR_CORRUPT},
        {SQLITE_NOTADB, ERR_CORRUPT},  {SQLITE_CONSTRAINT, ERR_CONFLICT},
        {SQLITE_READONLY, ERR_DENIED}, {SQLITE_PERM, ERR_DENIED},
        {SQLITE_AUTH, ERR_DENIED},     {SQLITE_CANTOPEN, ERR_IO},
    };
    enum err code = ERR_IO;
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++)
        if (map[i].sqlite == (sqlite_rc & 0xff))
            code = map[i].code;
    const char *text = db->handle ? sqlite3_errmsg(db->handle) : sqlite3_errstr(sqlite_rc);
    int sys = code == ERR_IO ? vfs_errno() : 0;
    if (!sys)
        return err_set(e, code, "%s: %s", what, text);
    code = code_of_errno(sys, code);
    err_sys(e, sys, "%s: %s", what, text);
    if (e)
        e->code = code;
    return code;
}

uint64_t db_changes(const struct db *db)
{
    return (uint64_t)sqlite3_total_changes64(db->handle);
}

enum err db_exec(struct db *db, const char *sql, struct error *e)
{
    if (fault_point("db.exec"))
        return err_sys(e, EIO, "database");
    int rc = sqlite3_exec(db->handle, sql, NULL, NULL, NULL);
    return rc ? db_error(db, rc, e, "database") : OK;
}

enum err db_open(struct db *db, const char *path, struct error *e)
{
    memset(db, 0, sizeof *db);
    enum err code = vfs_register(e);
    if (code)
        return code;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    int rc = sqlite3_open_v2(path, &db->handle, flags, VFS_NAME);
    if (rc) {
        code = db_error(db, rc, e, path);
        db_close(db);
        return code;
    }
    sqlite3_extended_result_codes(db->handle, 1);
    /* EXCLUSIVE: no second connection can checkpoint, and the WAL index stays out of a file. */
    code = db_exec(db,
                   "PRAGMA locking_mode = EXCLUSIVE;"
                   "PRAGMA journal_mode = WAL;"
                   "PRAGMA synchronous = FULL;"
                   "PRAGMA cell_size_check = ON;"
                   "PRAGMA trusted_schema = OFF;"
                   "PRAGMA temp_store = MEMORY;",
                   e);
    if (code) {
        /* Of these statements: a header that no SQLite has written. */
        if (sqlite3_errcode(db->handle) == SQLITE_ERROR)
            code = err_set(e, ERR_CORRUPT, "database: %s", sqlite3_errmsg(db->handle));
        db_close(db);
        return err_wrap(e, code, "%s", path);
    }
    return OK;
}

void db_close(struct db *db)
{
    for (size_t i = 0; i < db->n_statements; i++)
        sqlite3_finalize(db->statements[i].handle);
    db->n_statements = 0;
    sqlite3_close(db->handle);
    db->handle = NULL;
    db->watch = NULL;
    crypto_wipe(db->row_key, sizeof db->row_key);
}

void db_keep_wal(struct db *db)
{
    sqlite3_db_config(db->handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
}

static struct db_statement *find_statement(struct db *db, const char *sql)
{
    for (size_t i = 0; i < db->n_statements; i++)
        if (db->statements[i].sql == sql)
            return &db->statements[i];
    return NULL;
}

static enum err prepare(struct query *q, struct db *db, const char *sql, unsigned flags,
                        struct error *e)
{
    if (fault_point("db.prepare"))
        return err_set(e, ERR_NOMEM, "database: prepare");
    int rc = sqlite3_prepare_v3(db->handle, sql, -1, flags, &q->handle, NULL);
    /* Our statements fit our tables: one that does not meets tables that are not ours. */
    if (rc == SQLITE_ERROR)
        return err_set(e, ERR_CORRUPT, "database: its tables are damaged: %s",
                       sqlite3_errmsg(db->handle));
    if (rc)
        return db_error(db, rc, e, "database: prepare");
    q->db = db;
    return OK;
}

enum err query_init(struct query *q, struct db *db, const char *sql, struct error *e)
{
    memset(q, 0, sizeof *q);
    struct db_statement *slot = find_statement(db, sql);
    if (slot && !slot->busy) {
        slot->busy = true;
        q->db = db;
        q->slot = slot;
        q->handle = slot->handle;
        return OK;
    }
    enum err rc = prepare(q, db, sql, SQLITE_PREPARE_PERSISTENT, e);
    if (!rc && !slot && db->n_statements < DB_MAX_STATEMENTS) {
        q->slot = &db->statements[db->n_statements++];
        *q->slot = (struct db_statement){sql, q->handle, true};
    }
    return rc;
}

enum err query_init_once(struct query *q, struct db *db, const char *sql, struct error *e)
{
    memset(q, 0, sizeof *q);
    return prepare(q, db, sql, 0, e);
}

void query_fini(struct query *q)
{
    if (!q->handle)
        return;
    if (q->slot) {
        sqlite3_reset(q->handle);
        sqlite3_clear_bindings(q->handle);
        q->slot->busy = false;
    } else {
        sqlite3_finalize(q->handle);
    }
    q->handle = NULL;
}

/* A value in a tag: its type, its length, its bytes. */
static void hash_value(struct hash *h, int type, const void *p, size_t n)
{
    uint8_t t = (uint8_t)type;
    hash_add(h, &t, 1);
    hash_field(h, p, n);
}

static void hash_int(struct hash *h, int64_t v)
{
    uint8_t t = SQLITE_INTEGER;
    hash_add(h, &t, 1);
    hash_u64le(h, (uint64_t)v);
}

static void bound(struct query *q, int rc)
{
    if (rc && !q->bind_rc)
        q->bind_rc = rc;
}

void query_int(struct query *q, int64_t v)
{
    if (q->tagging)
        hash_int(&q->hash, v);
    bound(q, sqlite3_bind_int64(q->handle, ++q->n_bound, v));
}

void query_uint(struct query *q, uint64_t v)
{
    if (v > INT64_MAX)
        bound(q, SQLITE_TOOBIG);
    query_int(q, (int64_t)v);
}

void query_text(struct query *q, const char *s)
{
    if (q->tagging)
        hash_value(&q->hash, s ? SQLITE_TEXT : SQLITE_NULL, s, s ? strlen(s) : 0);
    bound(q, s ? sqlite3_bind_text(q->handle, ++q->n_bound, s, -1, SQLITE_STATIC)
               : sqlite3_bind_null(q->handle, ++q->n_bound));
}

void query_blob(struct query *q, const void *p, size_t n)
{
    if (q->tagging)
        hash_value(&q->hash, p ? SQLITE_BLOB : SQLITE_NULL, p, p ? n : 0);
    bound(q, p ? sqlite3_bind_blob64(q->handle, ++q->n_bound, p, n, SQLITE_STATIC)
               : sqlite3_bind_null(q->handle, ++q->n_bound));
}

void query_tagged(struct query *q, const char *table)
{
    q->tagging = true;
    hash_init(&q->hash, q->db->row_key, HASH_TAG_BYTES);
    hash_field(&q->hash, table, strlen(table));
}

enum err query_step(struct query *q, bool *row, struct error *e)
{
    if (q->bind_rc)
        return db_error(q->db, q->bind_rc, e, "database: bind");
    if (fault_point("db.step"))
        return err_sys(e, EIO, "database");
    int rc = sqlite3_step(q->handle);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return db_error(q->db, rc, e, "database");
    *row = rc == SQLITE_ROW;
    return OK;
}

enum err query_run(struct query *q, struct error *e)
{
    bool row = true;
    enum err rc = OK;
    while (row && !rc)
        rc = query_step(q, &row, e);
    return rc;
}

enum err query_put(struct query *q, struct error *e)
{
    uint8_t tag[HASH_TAG_BYTES];
    hash_final(&q->hash, tag);
    q->tagging = false;
    query_blob(q, tag, sizeof tag);
    return query_run(q, e);
}

int64_t row_int(const struct query *q, int col)
{
    return sqlite3_column_int64(q->handle, col);
}

uint64_t row_uint(const struct query *q, int col)
{
    int64_t v = sqlite3_column_int64(q->handle, col);
    return v < 0 ? 0 : (uint64_t)v;
}

const char *row_text(const struct query *q, int col)
{
    return (const char *)sqlite3_column_text(q->handle, col);
}

const void *row_blob(const struct query *q, int col, size_t *n_out)
{
    /* The order of the two calls matters to SQLite. An empty blob comes as NULL. */
    const void *p = sqlite3_column_blob(q->handle, col);
    *n_out = (size_t)sqlite3_column_bytes(q->handle, col);
    if (!p && sqlite3_column_type(q->handle, col) == SQLITE_BLOB)
        return "";
    return p;
}

enum err row_bytes(const struct query *q, int col, void *dst, size_t n, struct error *e)
{
    size_t have;
    const void *p = row_blob(q, col, &have);
    if (!p || have != n)
        return err_set(e, ERR_CORRUPT, "database: column %s: %zu bytes, want %zu",
                       sqlite3_column_name(q->handle, col), have, n);
    memcpy(dst, p, n);
    return OK;
}

enum err row_above(const struct query *q, int col, int64_t last, struct error *e)
{
    if (row_int(q, col) > last)
        return OK;
    return err_set(e, ERR_CORRUPT, "database: column %s: %lld comes behind %lld",
                   sqlite3_column_name(q->handle, col), (long long)row_int(q, col),
                   (long long)last);
}

static void hash_column(struct hash *h, const struct query *q, int col)
{
    int type = sqlite3_column_type(q->handle, col);
    size_t n = 0;
    if (type == SQLITE_INTEGER) {
        hash_int(h, row_int(q, col));
        return;
    }
    const void *p = NULL;
    if (type == SQLITE_TEXT) {
        p = row_text(q, col);
        n = (size_t)sqlite3_column_bytes(q->handle, col);
    } else if (type == SQLITE_BLOB) {
        p = row_blob(q, col, &n);
    }
    hash_value(h, type, p, n);
}

void query_column(struct query *q, const struct query *from, int col)
{
    if (q->tagging)
        hash_column(&q->hash, from, col);
    bound(q,
          sqlite3_bind_value(q->handle, ++q->n_bound, sqlite3_column_value(from->handle, col)));
}

enum err row_check(struct query *q, const char *table, struct error *e)
{
    return row_check_first(q, table, sqlite3_column_count(q->handle) - 1, e);
}

enum err row_check_first(struct query *q, const char *table, int n_columns, struct error *e)
{
    struct hash h;
    hash_init(&h, q->db->row_key, HASH_TAG_BYTES);
    hash_field(&h, table, strlen(table));
    for (int col = 0; col < n_columns; col++)
        hash_column(&h, q, col);
    uint8_t want[HASH_TAG_BYTES];
    hash_final(&h, want);
    size_t n;
    const void *have = row_blob(q, n_columns, &n);
    if (have && n == sizeof want && crypto_equal(have, want, n))
        return OK;
    q->db->rows_damaged++;
    const char *first = row_text(q, 0);
    return err_set(e, ERR_CORRUPT, "database: %s %s: the row's tag does not match", table,
                   first ? first : "NULL");
}

bool row_later_take(const struct query *q, const void *blob, struct row_later *out)
{
    static const int types[] = {SQLITE_INTEGER, SQLITE_INTEGER, SQLITE_BLOB, SQLITE_BLOB};
    size_t n_blob, n_tag;
    if (sqlite3_column_count(q->handle) != 4)
        return false;
    for (int col = 0; col < 4; col++)
        if (sqlite3_column_type(q->handle, col) != types[col])
            return false;
    (void)row_blob(q, 2, &n_blob);
    const void *tag = row_blob(q, 3, &n_tag);
    if (!tag || n_tag != sizeof out->tag)
        return false;
    *out = (struct row_later){
        .key = {row_int(q, 0), row_int(q, 1)}, .blob = blob, .n_blob = n_blob};
    memcpy(out->tag, tag, n_tag);
    return true;
}

bool row_later_holds(const struct row_later *r, const uint8_t row_key[HASH_KEY_BYTES],
                     const char *table)
{
    struct hash h;
    uint8_t want[HASH_TAG_BYTES];
    hash_init(&h, row_key, HASH_TAG_BYTES);
    hash_field(&h, table, strlen(table));
    hash_int(&h, r->key[0]);
    hash_int(&h, r->key[1]);
    hash_value(&h, SQLITE_BLOB, r->blob, r->n_blob);
    hash_final(&h, want);
    return crypto_equal(r->tag, want, sizeof want);
}

void db_note_index(struct db *db)
{
    int code = sqlite3_extended_errcode(db->handle);
    db->index_damaged |= code == SQLITE_CORRUPT_VTAB || (code & 0xff) == SQLITE_CONSTRAINT ||
                         (code & 0xff) == SQLITE_ERROR;
}

static bool wal_has_moved(const struct db *db)
{
    sqlite3_file *wal = NULL;
    int moved = 0;
    return sqlite3_file_control(db->handle, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal) ==
               SQLITE_OK &&
           wal && wal->pMethods &&
           wal->pMethods->xFileControl(wal, SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK &&
           moved;
}

/* In WAL mode SQLite writes on into a file that was removed or replaced under it, and whatever
 * is acknowledged then is gone with the process. What such a -wal holds goes into the database,
 * and another is begun. */
static enum err check_in_place(struct db *db, struct error *e)
{
    int moved = 0;
    const char *path = sqlite3_db_filename(db->handle, "main");
    if (sqlite3_file_control(db->handle, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK &&
        moved)
        return err_set(e, ERR_IO, "database: %.200s was removed or replaced while it is open",
                       path);
    if (!wal_has_moved(db))
        return OK;
    enum err rc = db_exec(db, "PRAGMA journal_mode = DELETE; PRAGMA journal_mode = WAL", e);
    if (!rc && wal_has_moved(db))
        rc = err_set(e, ERR_IO, "database: it was not begun again");
    return rc ? err_wrap(e, rc, "%.200s-wal was removed while it is open", path) : OK;
}

enum err txn_begin(struct txn *t, struct db *db, struct error *e)
{
    t->db = NULL;
    enum err rc = check_in_place(db, e);
    if (rc)
        return rc;
    if (fault_point("db.begin"))
        return err_sys(e, EIO, "database: begin");
    rc = db_exec(db, "BEGIN IMMEDIATE", e);
    if (rc)
        return rc;
    t->db = db;
    if (db->watch)
        db->watch->began(db->watch_user);
    return OK;
}

enum err txn_commit(struct txn *t, struct error *e)
{
    if (fault_point("db.commit"))
        return err_sys(e, EIO, "database: commit");
    struct db *db = t->db;
    enum err rc = db->watch ? db->watch->ends(db->watch_user, e) : OK;
    if (rc)
        return rc;
    if ((rc = db_exec(db, "COMMIT", e))) {
        db_note_index(db); /* FTS5 writes its part now */
        return rc;
    }
    t->db = NULL;
    if (db->watch)
        db->watch->ended(db->watch_user);
    return OK;
}

void txn_fini(struct txn *t)
{
    /* After some errors (disk full, out of memory) SQLite has rolled back by itself. */
    if (t->db && !sqlite3_get_autocommit(t->db->handle))
        sqlite3_exec(t->db->handle, "ROLLBACK", NULL, NULL, NULL);
    t->db = NULL;
}
