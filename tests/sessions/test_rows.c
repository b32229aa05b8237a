/* Every column of every row of every tagged table is changed in turn, behind the store's back.
 * What is read afterwards is what was written, or is refused and flagged; never something else.
 */
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fs.h"
#include "tests/support/store_sample.h"
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

/* ---- a transcript of everything that can be read ----------------------------------------- */

struct part {
    char text[4096];
    bool flagged; /* refused or shortened: not all of it may be there */
};

enum { INFO, TAPE, EVENTS, ITEMS, CALLS, TURNS, UNFINISHED, N_PARTS };

struct transcript {
    struct part parts[2][N_PARTS];
    bool refused; /* the store did not open */
    enum err rc;  /* and why */
};

static void add(struct part *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct part *p, const char *fmt, ...)
{
    va_list ap;
    size_t n = strlen(p->text);
    va_start(ap, fmt);
    vsnprintf(p->text + n, sizeof p->text - n, fmt, ap);
    va_end(ap);
}

static bool see_event(void *user, const struct tape_event *ev)
{
    add(user, "[%llu %llu %s %s %s %s %s %zu %.*s]", (unsigned long long)ev->seq,
        (unsigned long long)ev->position, ev->turn ? ev->turn : "-", ev->type,
        ev->item ? ev->item : "-", ev->kind ? ev->kind : "-", ev->json ? ev->json : "-",
        ev->n_bytes, (int)ev->n_bytes, ev->bytes ? (const char *)ev->bytes : "");
    return true;
}

static bool see_call(void *user, const struct tape_call *c)
{
    add(user, "[%s %s %s %s %s %u %u %s %d %d %.*s %s %llu %llu %llu]", c->id, c->turn,
        c->item ? c->item : "-", c->name, c->arguments, c->step, c->index,
        call_status_name(c->status), c->is_error, c->ingested, (int)c->n_result,
        c->result ? (const char *)c->result : "", c->spill ? c->spill : "-",
        (unsigned long long)c->spill_bytes, (unsigned long long)c->created_ms,
        (unsigned long long)c->ended_ms);
    return true;
}

static bool see_turn(void *user, const char *session, const struct tape_turn *t)
{
    add(user, "[%s %s %s %s %llu %u %s %s %s %d %llu]", session, t->id,
        t->client_message ? t->client_message : "-", t->params,
        (unsigned long long)t->forced_next, t->step, t->state, t->reason, t->ledger,
        t->finished, (unsigned long long)t->first_seq);
    return true;
}

static void read_tape(struct store *st, const char *id, struct part *p)
{
    AUTO(tape) struct tape t = {0};
    p->flagged = tape_load(st, id, &t, NULL) != OK || t.damaged;
    for (size_t i = 0; i < t.view.n_segments; i++) {
        const struct tape_segment *s = &t.tape_segments[i];
        /* Cut where the damage is, a segment keeps its beginning and kind. */
        add(p, "%llu:%d:%d ", (unsigned long long)s->seg.start, (int)s->seg.kind,
            (int)s->seg.mode);
        for (uint64_t k = s->seg.start; k < s->seg.start + s->seg.len; k++)
            add(p, "%u ", t.ids[k]);
        if (!p->flagged)
            add(p, "%d%d%u%llu;", s->open, s->has_digest, s->digest[0],
                (unsigned long long)s->n_rows);
    }
    if (!p->flagged)
        for (size_t i = 0; i < t.view.n_marks; i++)
            add(p, "m%llu-%llu", (unsigned long long)t.marks[i].at,
                (unsigned long long)t.marks[i].from);
}

static void read_session(struct store *st, const char *id, struct part *parts)
{
    AUTO(session_info) struct session_info s = {0};
    parts[TURNS].flagged = tape_turn(st, id, NULL, see_turn, &parts[TURNS], NULL) != OK;
    parts[UNFINISHED].flagged =
        tape_unfinished(st, id, see_turn, &parts[UNFINISHED], NULL) != OK;
    parts[CALLS].flagged = tape_calls(st, id, NULL, false, see_call, &parts[CALLS], NULL) != OK;
    parts[EVENTS].flagged = tape_events(st, id, 0, 0, see_event, &parts[EVENTS], NULL) != OK;
    parts[ITEMS].flagged = tape_items(st, id, see_event, &parts[ITEMS], NULL) != OK;
    read_tape(st, id, &parts[TAPE]);
    /* Last: reading has marked what is damaged. */
    parts[INFO].flagged = session_find(st, id, &s, NULL) != OK || s.damaged;
    if (!parts[INFO].flagged)
        add(&parts[INFO], "%s %s %s %s %s %s %s %llu %llu %llu %llu", s.id, s.name, s.parent,
            s.state, s.reason, s.cwd, s.config, (unsigned long long)s.forked_at,
            (unsigned long long)s.n_tokens, (unsigned long long)s.last_seq,
            (unsigned long long)s.created_ms);
}

static void read_everything(struct rows_test *t, struct transcript *out)
{
    struct error e;
    memset(out, 0, sizeof *out);
    out->rc = store_fixture_open(&t->f, &e);
    out->refused = out->rc != OK;
    if (out->refused)
        return;
    read_session(t->f.st, t->s.id, out->parts[0]);
    read_session(t->f.st, t->s.fork, out->parts[1]);
    for (int i = 0; i < 2; i++) {
        /* Checks itself that every byte it hands over is right. */
        struct head_restored r;
        (void)!state_restore(t->f.st, i ? t->s.fork : t->s.id, &t->s.l, TAPE_END, HEAD_TIP,
                             NULL, &r, &e);
    }
    store_close(t->f.st);
    t->f.st = NULL;
}

/* Everything is as it was, or says that it is not and shows no more than the beginning. */
static bool compare(const struct transcript *want, const struct transcript *got,
                    const char *what)
{
    bool flagged = got->refused;
    for (int s = 0; s < 2 && !got->refused; s++)
        for (int i = 0; i < N_PARTS; i++) {
            const struct part *a = &want->parts[s][i], *b = &got->parts[s][i];
            size_t n = strlen(b->text);
            flagged |= b->flagged && !a->flagged; /* a fork has no turns in any case */
            if (strncmp(a->text, b->text, n) != 0 || (!b->flagged && strlen(a->text) != n))
                fail_msg("%s: session %d part %d: \"%s\" instead of \"%s\"", what, s, i,
                         b->text, a->text);
        }
    return flagged;
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
    read_everything(t, &want);
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
            read_everything(t, &got);
            assert_true(got.rc == OK || got.rc == ERR_CORRUPT);
            flagged += compare(&want, &got, what);
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
    read_everything(t, &want);
    for (size_t i = 0; i < sizeof sql / sizeof sql[0]; i++) {
        unlink(wal);
        copy_file(saved, t->f.db);
        run_sql(t, sql[i]);
        read_everything(t, &got);
        if (i == 0 && got.refused)
            continue;
        if (!compare(&want, &got, sql[i]))
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
    read_everything(t, &want);
    assert_false(want.refused);
    size_t stride = getenv("AGENTD_SLOW") ? 23 : 397, n = 0, flagged = 0;
    for (size_t i = 0; i < file.len; i += stride, n++) {
        char what[64];
        uint8_t mask = (uint8_t)(1u << i % 8);
        file.data[i] ^= mask;
        unlink(wal);
        assert_ok(fs_write_atomic(t->f.db, file.data, file.len, 0600, &e), &e);
        file.data[i] ^= mask;
        read_everything(t, &got);
        snprintf(what, sizeof what, "byte %zu of page %zu", i % 4096, i / 4096 + 1);
        flagged += compare(&want, &got, what);
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
