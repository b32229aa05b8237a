/* Every column of every row of every tagged table is changed in turn, behind the store's back.
 * What is read afterwards is what was written, or is refused and flagged; never something else.
 */
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fs.h"
#include "tests/support/store_transcript.h"
#include "tests/support/test.h"

struct rows_test {
    struct store_fixture f;
    struct store_sample s;
};

static int setup(void **state)
{
    static struct rows_test t;
    struct error e;
    store_fixture_init(&t.f, false);
    assert_ok(store_fixture_open(&t.f, &e), &e);
    *state = &t;
    return 0;
}

static int teardown(void **state)
{
    store_fixture_fini(&((struct rows_test *)*state)->f);
    return 0;
}

/* ---- changing columns -------------------------------------------------------------------- */

static void run_sql(struct rows_test *t, const char *sql)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(t->f.db, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_close(db);
}

struct column {
    char table[32], name[32], type[16];
};

/* Changes one column of the n-th row; false: there is no such row, or an index forbids it. */
static bool change(struct rows_test *t, const struct column *c, int row)
{
    char sql[512], value[96];
    sqlite3 *db;
    if (strcmp(c->type, "INTEGER") == 0)
        snprintf(value, sizeof value, "%.31s + 1", c->name);
    else if (strcmp(c->type, "TEXT") == 0)
        snprintf(value, sizeof value, "%.31s || 'x'", c->name);
    else
        snprintf(value, sizeof value, "CAST(x'01' || substr(%.31s, 2) AS BLOB)", c->name);
    /* Every row's tag is its own. */
    snprintf(sql, sizeof sql,
             "UPDATE OR IGNORE %.31s SET %.31s = %s"
             " WHERE tag = (SELECT tag FROM %.31s ORDER BY tag LIMIT 1 OFFSET %d)",
             c->table, c->name, value, c->table, row);
    assert_int_equal(sqlite3_open(t->f.db, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    bool changed = sqlite3_changes(db) > 0;
    sqlite3_close(db);
    return changed;
}

static size_t list_columns(struct rows_test *t, struct column *out, size_t cap)
{
    sqlite3 *db;
    sqlite3_stmt *q;
    size_t n = 0;
    assert_int_equal(sqlite3_open(t->f.db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db,
                                        "SELECT m.name, c.name, c.type FROM sqlite_schema m,"
                                        " pragma_table_info(m.name) c WHERE m.type = 'table'"
                                        " AND m.name NOT LIKE 'sqlite_%'"
                                        " AND m.name NOT LIKE 'search%'", /* test_search */
                                        -1, &q, NULL),
                     SQLITE_OK);
    while (sqlite3_step(q) == SQLITE_ROW) {
        assert_true(n < cap);
        snprintf(out[n].table, 32, "%s", (const char *)sqlite3_column_text(q, 0));
        snprintf(out[n].name, 32, "%s", (const char *)sqlite3_column_text(q, 1));
        snprintf(out[n].type, 16, "%s", (const char *)sqlite3_column_text(q, 2));
        n++;
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

static void copy_file(const char *from, const char *to)
{
    char buf[65536];
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    assert_non_null(in);
    assert_non_null(out);
    for (size_t n; (n = fread(buf, 1, sizeof buf, in)) > 0;)
        fwrite(buf, 1, n, out);
    fclose(in);
    fclose(out);
}

static void every_changed_column_is_noticed(void **state)
{
    struct rows_test *t = *state;
    static struct transcript want, got;
    static struct column columns[256];
    char saved[256], wal[256];
    store_sample_make(t->f.st, &t->s);
    store_close(t->f.st);
    t->f.st = NULL;
    snprintf(saved, sizeof saved, "%s/saved.db", t->f.dir);
    snprintf(wal, sizeof wal, "%s-wal", t->f.db);
    copy_file(t->f.db, saved);
    transcript_read(&t->f, &t->s, &want);
    assert_false(want.refused);
    size_t n = list_columns(t, columns, 256), changed = 0, flagged = 0;
    for (size_t i = 0; i < n; i++)
        for (int row = 0; row < 4; row++) {
            char what[96];
            unlink(wal);
            copy_file(saved, t->f.db);
            if (!change(t, &columns[i], row))
                continue;
            snprintf(what, sizeof what, "%.31s.%.31s row %d", columns[i].table, columns[i].name,
                     row);
            changed++;
            transcript_read(&t->f, &t->s, &got);
            assert_true(got.rc == OK || got.rc == ERR_CORRUPT);
            flagged += transcript_compare(&want, &got, what);
        }
    assert_true(changed > 250);
    assert_true(flagged > 100); /* the others are of rows that only shorten a restore */
}

/* A deleted row is noticed where its absence would show. */
static void a_deleted_row_is_noticed(void **state)
{
    struct rows_test *t = *state;
    static struct transcript want, got;
    char saved[256], wal[256];
    static const char *const sql[] = {
        "DELETE FROM meta WHERE key = 'block_tokens'",
        "DELETE FROM configs WHERE session = 1",
        "DELETE FROM strands WHERE id = 1",
        "DELETE FROM tape WHERE strand = 2",
        "DELETE FROM segments WHERE strand = 1",
        "DELETE FROM events WHERE seq = 1",
        "DELETE FROM params",
    };
    store_sample_make(t->f.st, &t->s);
    store_close(t->f.st);
    t->f.st = NULL;
    snprintf(saved, sizeof saved, "%s/saved.db", t->f.dir);
    snprintf(wal, sizeof wal, "%s-wal", t->f.db);
    copy_file(t->f.db, saved);
    transcript_read(&t->f, &t->s, &want);
    for (size_t i = 0; i < sizeof sql / sizeof sql[0]; i++) {
        unlink(wal);
        copy_file(saved, t->f.db);
        run_sql(t, sql[i]);
        transcript_read(&t->f, &t->s, &got);
        if (i == 0 && got.refused)
            continue;
        if (!transcript_compare(&want, &got, sql[i]))
            fail_msg("%s: not noticed", sql[i]);
    }
}

/* Bytes of the database file, SQLite's own structures included, which have no tags: a page that
 * lost its rows must not look like a session that never had them. */
static void flipped_bytes_of_the_file(void **state)
{
    struct rows_test *t = *state;
    static struct transcript want, got;
    char wal[256];
    struct error e;
    AUTO(buf) struct buf file = BUF_INIT(1 << 24);
    store_sample_make(t->f.st, &t->s);
    store_close(t->f.st);
    t->f.st = NULL;
    snprintf(wal, sizeof wal, "%s-wal", t->f.db);
    assert_ok(fs_read_file(t->f.db, &file, &e), &e);
    transcript_read(&t->f, &t->s, &want);
    assert_false(want.refused);
    size_t stride = getenv("AGENTD_SLOW") ? 23 : 397, n = 0, flagged = 0;
    for (size_t i = 0; i < file.len; i += stride, n++) {
        char what[64];
        uint8_t mask = (uint8_t)(1u << i % 8);
        file.data[i] ^= mask;
        unlink(wal);
        assert_ok(fs_write_atomic(t->f.db, file.data, file.len, 0600, &e), &e);
        file.data[i] ^= mask;
        transcript_read(&t->f, &t->s, &got);
        snprintf(what, sizeof what, "byte %zu of page %zu", i % 4096, i / 4096 + 1);
        flagged += transcript_compare(&want, &got, what);
    }
    fprintf(stderr, "%zu bytes of the database flipped, %zu refused or flagged\n", n, flagged);
    assert_true(flagged > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_changed_column_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_deleted_row_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(flipped_bytes_of_the_file, setup, teardown),
    };
    return !!run_with_both_shapes(tests);
}
