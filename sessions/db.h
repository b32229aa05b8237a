/* SQLite as this folder uses it: one connection, cached statements, tagged rows, transactions.
 *
 * A query binds its parameters in order and is stepped; binding errors are kept and come out of
 * the next step. A tagged row is written by a statement whose parameters are the row's columns
 * in order and then its tag:
 *
 *     AUTO(query) struct query q = {0};
 *     if ((rc = query_init(&q, db, "INSERT OR REPLACE INTO marks VALUES(?,?,?,?)", e)))
 *         return rc;
 *     query_tagged(&q, "marks");
 *     query_int(&q, strand); query_int(&q, at); query_int(&q, from);
 *     return query_put(&q, e);
 *
 * and read by one that selects the same columns in the same order, the tag last; row_check()
 * then says whether table, primary key and content are what was written. Tags are
 * BLAKE2b-128 under a key of the store over table name, column types and values, each with its
 * length. Belongs to the store's thread.
 *
 * Fault points: db.prepare, db.step (reads and writes), db.begin, db.commit; those of fs in
 * every access to the file. */
#ifndef SESSIONS_DB_H
#define SESSIONS_DB_H

#include <stdbool.h>
#include <stdint.h>

#include <sqlite3.h>

#include "base/auto.h"
#include "base/err.h"
#include "base/hash.h"

#define DB_MAX_STATEMENTS 160

struct db_statement {
    const char *sql; /* the literal it was made from: compared by address */
    sqlite3_stmt *handle;
    bool busy;
};

/* Told of every transaction of txn_begin: it has begun; it is about to be committed (inside it
 * still; an error keeps it from that); it is durable. */
struct db_watch {
    void (*began)(void *user);
    enum err (*ends)(void *user, struct error *e);
    void (*ended)(void *user);
};

struct db {
    sqlite3 *handle;
    const struct db_watch *watch; /* NULL: nobody */
    void *watch_user;
    uint8_t row_key[HASH_KEY_BYTES]; /* of the row tags; set before the first tagged row */
    bool index_damaged;              /* the search index was (search.h) */
    uint64_t rows_damaged;           /* tags that did not match, since opening */
    size_t n_statements;
    struct db_statement statements[DB_MAX_STATEMENTS];
};

/* Opens (makes, 0600) path for this connection alone, through vfs.h, in WAL mode with
 * synchronous=FULL.
 * ERR_CORRUPT: not a database. ERR_BUSY: another process has it open. */
NODISCARD enum err db_open(struct db *db, const char *path, struct error *e);
/* Checkpoints and closes; fine on one that never opened. */
void db_close(struct db *db);
/* db_close will leave the -wal as it is. */
void db_keep_wal(struct db *db);

/* Runs statements without parameters (schema, pragmas). */
NODISCARD enum err db_exec(struct db *db, const char *sql, struct error *e);

/* Rows written so far through this connection, the only one: equal numbers mean equal rows. */
uint64_t db_changes(const struct db *db);

/* What SQLite says, as one of our codes, with its message behind ours. */
enum err db_error(struct db *db, int sqlite_rc, struct error *e, const char *what);

/* Sets index_damaged if the last call failed as only a damaged search index lets it fail: FTS5
 * says so, or cannot open its tables, or meets a row of its own. After a statement that used
 * the index, or a COMMIT. */
void db_note_index(struct db *db);

struct query {
    struct db *db;
    sqlite3_stmt *handle;
    struct db_statement *slot; /* NULL: its own, finalized at the end */
    int n_bound;
    int bind_rc;
    bool tagging;
    struct hash hash;
};

/* sql is a string literal: prepared once, then reused. */
NODISCARD enum err query_init(struct query *q, struct db *db, const char *sql, struct error *e);
/* The same for SQL that was put together: prepared for this query alone. */
NODISCARD enum err query_init_once(struct query *q, struct db *db, const char *sql,
                                   struct error *e);
void query_fini(struct query *q);

/* Bind the next parameter. Text and bytes must live until the query is stepped. NULL pointers
 * are SQL NULL; an empty blob is not. */
void query_int(struct query *q, int64_t v);
void query_uint(struct query *q, uint64_t v); /* <= INT64_MAX */
void query_text(struct query *q, const char *s);
void query_blob(struct query *q, const void *p, size_t n);
/* Binds column col of the row that `from` stands on, whatever its type. */
void query_column(struct query *q, const struct query *from, int col);
/* What is bound from here on belongs to a row of this table. */
void query_tagged(struct query *q, const char *table);

/* *row: whether there is one. */
NODISCARD enum err query_step(struct query *q, bool *row, struct error *e);
/* Steps to the end; for statements that give no rows. */
NODISCARD enum err query_run(struct query *q, struct error *e);
/* Binds the tag of what was bound since query_tagged, and runs. */
NODISCARD enum err query_put(struct query *q, struct error *e);

/* Columns of the row the query stands on; borrowed until the next step. */
int64_t row_int(const struct query *q, int col);
uint64_t row_uint(const struct query *q, int col);
const char *row_text(const struct query *q, int col); /* NULL for NULL */
const void *row_blob(const struct query *q, int col, size_t *n_out);
/* The blob of column col if it has exactly n bytes, copied to dst; else ERR_CORRUPT. */
NODISCARD enum err row_bytes(const struct query *q, int col, void *dst, size_t n,
                             struct error *e);
/* For walks in steps, each behind the last key of the one before: ERR_CORRUPT unless the key in
 * column col is above that. A damaged page gives rows out of order, and the walk had no end. */
NODISCARD enum err row_above(const struct query *q, int col, int64_t last, struct error *e);
/* Compares the tag in the last column with that of the columns before it. ERR_CORRUPT names
 * table and first column; counted. */
NODISCARD enum err row_check(struct query *q, const char *table, struct error *e);

/* The same for a row of n columns and its tag that stand in front of others. */
NODISCARD enum err row_check_first(struct query *q, const char *table, int n, struct error *e);

/* A row's tag to be checked later: of a row of two integers, one blob, and the tag. */
struct row_later {
    int64_t key[2];
    const void *blob; /* the caller's copy */
    size_t n_blob;
    uint8_t tag[HASH_TAG_BYTES];
};
/* Of the row that q stands on, whose blob has been copied to `blob`. False: the row does not
 * look like that: row_check() knows what is wrong with it. */
bool row_later_take(const struct query *q, const void *blob, struct row_later *out);
/* Whether the tag matches. Any thread. */
bool row_later_holds(const struct row_later *r, const uint8_t row_key[HASH_KEY_BYTES],
                     const char *table);

/* A transaction that is rolled back unless it was committed. They do not nest. */
struct txn {
    struct db *db;
};
NODISCARD enum err txn_begin(struct txn *t, struct db *db, struct error *e);
/* Durable when OK; rolled back otherwise. */
NODISCARD enum err txn_commit(struct txn *t, struct error *e);
void txn_fini(struct txn *t);

#endif
