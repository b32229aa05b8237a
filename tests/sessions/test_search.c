/* Full-text search: what is said is found, by words, in the session that shows it, in its
 * newest version; what is gone is gone; secrets do not show; and a damaged index costs nobody
 * anything but the time to make it again. */
#include <jansson.h>
#include <sqlite3.h>

#include "base/fault.h"
#include "base/fs.h"
#include "sessions/gc.h"
#include "sessions/search.h"
#include "sessions/store_internal.h"
#include "tests/support/store_fixture.h"
#include "tests/support/test.h"

struct search_test {
    struct store_fixture f;
    char id[SESSION_ID_CAP];
};

static int setup(void **state)
{
    static struct search_test t;
    struct error e;
    store_fixture_init(&t.f, false);
    assert_ok(store_fixture_open(&t.f, &e), &e);
    fixture_session(&t.f, "alpha", t.id);
    *state = &t;
    return 0;
}

static int teardown(void **state)
{
    store_fixture_fini(&((struct search_test *)*state)->f);
    return 0;
}

static enum err say_json(struct search_test *t, const char *session, const char *item,
                         const char *kind, const char *json, struct error *e)
{
    struct tape_event ev = {
        .type = "item", .item = item, .kind = kind, .json = json, .position = TAPE_END};
    struct tape_commit c = {.session = session, .events = &ev, .n_events = 1};
    return tape_commit(t->f.st, &c, NULL, e);
}

static void say(struct search_test *t, const char *session, const char *item, const char *text)
{
    char json[4096];
    struct error e;
    snprintf(json, sizeof json, "{\"item\":{\"id\":\"%s\",\"text\":\"%s\"}}", item, text);
    assert_ok(say_json(t, session, item, "user", json, &e), &e);
}

/* Hits as "name@seq:snippet\n". */
struct hits {
    char text[8192];
    size_t n;
    bool more;
};

static bool take_hit(void *user, const struct search_hit *h)
{
    struct hits *x = user;
    size_t n = strlen(x->text);
    x->n++;
    snprintf(x->text + n, sizeof x->text - n, "%s@%llu:%s\n", h->name,
             (unsigned long long)h->seq, h->snippet);
    return true;
}

static enum err find_in(struct search_test *t, const char *text, const char *session,
                        uint32_t limit, struct hits *out, struct error *e)
{
    memset(out, 0, sizeof *out);
    struct search_query q = {.text = text, .session = session, .limit = limit};
    return search_run(t->f.st, &q, take_hit, out, &out->more, e);
}

static void expect(struct search_test *t, const char *text, const char *want)
{
    struct hits h;
    struct error e;
    assert_ok(find_in(t, text, NULL, 0, &h, &e), &e);
    assert_string_equal(h.text, want);
}

static void words_are_found(void **state)
{
    struct search_test *t = *state;
    say(t, t->id, "i1", "The nightly Import failed: ÜBER limit");
    say(t, t->id, "i2", "it ran again");
    expect(t, "import", "alpha@1:The nightly Import failed: ÜBER limit\n");
    expect(t, "uber IMPORT", "alpha@1:The nightly Import failed: ÜBER limit\n");
    expect(t, "imp*", "alpha@1:The nightly Import failed: ÜBER limit\n");
    expect(t, "\"import failed\"", "alpha@1:The nightly Import failed: ÜBER limit\n");
    expect(t, "\"failed import\"", "");
    expect(t, "import again", "");
    expect(t, "imp", "");
}

/* What the model called is found as well as what was said. */
static void calls_are_found(void **state)
{
    struct search_test *t = *state;
    struct error e;
    assert_ok(
        say_json(t, t->id, "c1", "tool_call",
                 "{\"item\":{\"name\":\"run\",\"arguments\":{\"command\":\"make lint\"}}}", &e),
        &e);
    expect(t, "lint run", "alpha@1:run {\"command\":\"make lint\"}\n");
}

/* An item says what it said last. */
static void the_newest_version_counts(void **state)
{
    struct search_test *t = *state;
    say(t, t->id, "i1", "draft words");
    say(t, t->id, "i1", "final words");
    expect(t, "words", "alpha@2:final words\n");
    expect(t, "draft", "");
}

static void no_query_is_an_error_of_the_index(void **state)
{
    static const char *const queries[] = {
        "a AND b", "a OR",  "NOT a",   "NEAR(a b)", "text:a", "a*b*", "\"open", "a\"b\"c",
        "^a",      "a + b", "{a b}:c", "(a",        "-a",     "é*",   "a;DROP", "'a'--",
    };
    struct search_test *t = *state;
    struct hits h;
    struct error e;
    char long_query[SEARCH_QUERY_MAX + 2];
    say(t, t->id, "i1", "nothing of that");
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++)
        assert_ok(find_in(t, queries[i], NULL, 0, &h, &e), &e);
    assert_int_equal(find_in(t, "", NULL, 0, &h, &e), ERR_INVAL);
    assert_int_equal(find_in(t, " \t\"\" * -", NULL, 0, &h, &e), ERR_INVAL);
    memset(long_query, 'a', sizeof long_query);
    long_query[sizeof long_query - 1] = 0;
    assert_int_equal(find_in(t, long_query, NULL, 0, &h, &e), ERR_INVAL);
    assert_int_equal(find_in(t, "a", "01ARZ3NDEKTSV4RRFFQ69G5FAV", 0, &h, &e), ERR_NOTFOUND);
    assert_int_equal(find_in(t, "a", NULL, SEARCH_MAX_HITS + 1, &h, &e), ERR_INVAL);
    assert_ok(find_in(t, "nothing", NULL, 0, &h, &e), &e);
    assert_int_equal(h.n, 1);
}

static void a_limit_says_that_there_is_more(void **state)
{
    struct search_test *t = *state;
    struct hits h;
    struct error e;
    char item[16];
    for (int i = 0; i < 60; i++) {
        snprintf(item, sizeof item, "i%d", i);
        say(t, t->id, item, "again");
    }
    assert_ok(find_in(t, "again", NULL, 0, &h, &e), &e);
    assert_int_equal(h.n, 50);
    assert_true(h.more);
    assert_ok(find_in(t, "again", NULL, 60, &h, &e), &e);
    assert_int_equal(h.n, 60);
    assert_false(h.more);
}

/* ---- sessions ---------------------------------------------------------------------------- */

static void fork_at(struct search_test *t, uint64_t seq, char id[SESSION_ID_CAP])
{
    struct error e;
    struct session_fork f = {.parent = t->id, .at_seq = seq, .name = "beta"};
    assert_ok(session_fork(t->f.st, &f, id, &e), &e);
}

static void forks_show_what_they_share(void **state)
{
    struct search_test *t = *state;
    struct hits h;
    struct error e;
    char fork[SESSION_ID_CAP];
    say(t, t->id, "i1", "shared words");
    say(t, t->id, "i2", "late words");
    fork_at(t, 1, fork);
    say(t, fork, "i3", "own words");
    expect(t, "shared", "alpha@1:shared words\n");
    assert_ok(find_in(t, "words", fork, 0, &h, &e), &e);
    assert_non_null(strstr(h.text, "beta@1:shared words\n"));
    assert_non_null(strstr(h.text, "beta@2:own words\n"));
    assert_int_equal(h.n, 2);
    /* The fork's own version of a shared item hides the older one there, and only there. */
    say(t, fork, "i1", "other words");
    assert_ok(find_in(t, "shared", fork, 0, &h, &e), &e);
    assert_int_equal(h.n, 0);
    expect(t, "shared", "alpha@1:shared words\n");
    /* What only the fork holds any more is the fork's. */
    assert_ok(session_delete(t->f.st, t->id, &e), &e);
    expect(t, "late", "");
    expect(t, "shared", "");
    expect(t, "other", "beta@3:other words\n");
}

static void a_rewound_session_keeps_its_log_elsewhere(void **state)
{
    struct search_test *t = *state;
    struct hits h;
    struct error e;
    say(t, t->id, "i1", "first thought");
    say(t, t->id, "i2", "second thought");
    struct session_cut c = {.id = t->id, .at_seq = 1, .keep_name = "alpha.1"};
    assert_ok(session_cut(t->f.st, &c, NULL, &e), &e);
    expect(t, "first", "alpha@1:first thought\n");
    expect(t, "second", "alpha.1@2:second thought\n");
    assert_ok(find_in(t, "second", t->id, 0, &h, &e), &e);
    assert_int_equal(h.n, 0);
}

static bool file_has(const char *path, const char *word)
{
    AUTO(buf) struct buf b = BUF_INIT(64 << 20);
    struct error e;
    enum err rc = fs_read_file(path, &b, &e);
    return rc == OK && memmem(b.data, b.len, word, strlen(word)) != NULL;
}

static void a_purge_leaves_no_word(void **state)
{
    struct search_test *t = *state;
    struct gc_report r;
    struct error e;
    char wal[160], other[SESSION_ID_CAP];
    snprintf(wal, sizeof wal, "%s-wal", t->f.db);
    fixture_session(&t->f, "beta", other);
    say(t, other, "i1", "zanzibar stays");
    say(t, t->id, "i1", "xylophonically");
    say(t, t->id, "i1", "quintessential");
    assert_ok(session_delete(t->f.st, t->id, &e), &e);
    expect(t, "quintessential", "");
    assert_ok(gc_purge(t->f.st, &r, &e), &e);
    const char *const gone[] = {"xylophonically", "quintessential", "ylophonically"};
    for (size_t i = 0; i < 3; i++) {
        assert_false(file_has(t->f.db, gone[i]));
        assert_false(file_has(wal, gone[i]));
    }
    assert_true(file_has(t->f.db, "zanzibar"));
    expect(t, "zanzibar", "beta@1:zanzibar stays\n");
}

/* A strand that is cut down to what a fork needs shows the versions of that time. */
static void what_was_hidden_comes_back(void **state)
{
    struct search_test *t = *state;
    struct error e;
    char fork[SESSION_ID_CAP];
    say(t, t->id, "i1", "early version");
    fork_at(t, 1, fork);
    say(t, t->id, "i1", "late version");
    expect(t, "version", "alpha@2:late version\n");
    assert_ok(session_delete(t->f.st, t->id, &e), &e);
    expect(t, "version", "beta@1:early version\n");
    assert_ok(search_check(t->f.st, &e), &e);
}

/* ---- made again in steps ----------------------------------------------------------------- */

/* Every word of the index with its places, its rows, and what it counts. */
static void dump_index(struct search_test *t, struct buf *out)
{
    sqlite3 *db = t->f.st->db.handle;
    struct error e;
    sqlite3_stmt *q;
    buf_clear(out);
    assert_int_equal(sqlite3_exec(db,
                                  "CREATE VIRTUAL TABLE IF NOT EXISTS temp.words"
                                  " USING fts5vocab(main, search, instance)",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    static const char sql[] =
        "SELECT * FROM (SELECT term || ' ' || doc || ' ' || offset FROM words"
        " ORDER BY term, doc, offset)"
        " UNION ALL SELECT * FROM (SELECT 'row ' || id FROM search_docsize ORDER BY id)"
        " UNION ALL SELECT 'sums ' || hex(block) FROM search_data WHERE id = 1";
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    while (sqlite3_step(q) == SQLITE_ROW) {
        assert_ok(buf_add_str(out, (const char *)sqlite3_column_text(q, 0), &e), &e);
        assert_ok(buf_add_str(out, "\n", &e), &e);
    }
    assert_int_equal(sqlite3_finalize(q), SQLITE_OK);
}

static uint32_t draw(uint64_t *seed, uint32_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % below;
}

static void say_something(struct search_test *t, const char *session, uint64_t *seed)
{
    char item[16], text[64];
    snprintf(item, sizeof item, "i%u", draw(seed, 60));
    snprintf(text, sizeof text, "word%u and word%u", draw(seed, 400), draw(seed, 400));
    say(t, session, item, text);
}

/* What may happen to a store between two steps. */
static void do_something(struct search_test *t, char ids[][SESSION_ID_CAP], size_t *n,
                         uint64_t *seed)
{
    char name[40];
    struct error e;
    size_t i = draw(seed, (uint32_t)*n);
    switch (draw(seed, 8)) {
    case 0:
        snprintf(name, sizeof name, "f%zu-%u", *n, draw(seed, 1u << 30));
        struct session_fork f = {.parent = ids[i], .at_seq = draw(seed, 40) + 1, .name = name};
        if (*n < 12 && !session_fork(t->f.st, &f, ids[*n], &e))
            ++*n;
        break;
    case 1:
        if (*n < 3)
            break;
        assert_ok(session_delete(t->f.st, ids[i], &e), &e);
        memmove(ids[i], ids[--*n], SESSION_ID_CAP);
        break;
    default:
        say_something(t, ids[i], seed);
        break;
    }
}

/* In steps with anything in between, it is what it is when it is made in one. */
static void made_again_in_steps(void **state)
{
    struct search_test *t = *state;
    char ids[12][SESSION_ID_CAP];
    size_t n = 3;
    struct error e;
    struct hits h;
    AUTO(buf) struct buf steps = BUF_INIT(1 << 24);
    AUTO(buf) struct buf whole = BUF_INIT(1 << 24);
    memcpy(ids[0], t->id, SESSION_ID_CAP);
    fixture_session(&t->f, "two", ids[1]);
    fixture_session(&t->f, "three", ids[2]);
    uint64_t seed = 7;
    for (int i = 0; i < 300; i++)
        say_something(t, ids[draw(&seed, 3)], &seed);
    for (int round = 0; round < (getenv("AGENTD_SLOW") ? 200 : 12); round++) {
        size_t n_steps = 0;
        for (bool done = false; !done; n_steps++) {
            assert_ok(search_renew(t->f.st, &done, &e), &e);
            if (!done)
                assert_int_equal(find_in(t, "and", NULL, 0, &h, &e), ERR_BUSY);
            for (int k = 0; k < 4; k++)
                do_something(t, ids, &n, &seed);
            if (round % 4 == 3 && n_steps == 3)
                break; /* left there: the next start ends it */
        }
        assert_true(n_steps >= 3);
        if (round % 4 == 3)
            store_fixture_reopen(&t->f);
        dump_index(t, &steps);
        assert_ok(search_rebuild(t->f.st, &e), &e);
        dump_index(t, &whole);
        assert_true(whole.len > 100);
        assert_string_equal(buf_str(&steps), buf_str(&whole));
        assert_ok(find_in(t, "and", NULL, 0, &h, &e), &e);
        assert_true(h.n > 0);
    }
}

/* ---- snippets ---------------------------------------------------------------------------- */

static void claude_code_86707_secrets_do_not_show(void **state)
{
    struct search_test *t = *state;
    struct hits h;
    struct error e;
    char text[1024];
    const char key[] = "AKIAIOSFODNN7EXAMPLE";
    /* At every distance from where a snippet is cut. */
    for (int gap = 0; gap < 220; gap += 7) {
        snprintf(text, sizeof text, "%s%*s needle%*s %s", key, gap, ".", gap, ".", key);
        say(t, t->id, "i1", text);
        assert_ok(find_in(t, "needle", NULL, 0, &h, &e), &e);
        assert_int_equal(h.n, 1);
        assert_non_null(strstr(h.text, "needle"));
        for (size_t i = 0; i + 8 <= strlen(key); i++) {
            char part[9];
            snprintf(part, sizeof part, "%.8s", key + i);
            assert_null(strstr(h.text, part));
        }
    }
}

static void snippets_are_cut_on_characters(void **state)
{
    struct search_test *t = *state;
    struct hits h;
    struct error e;
    char text[2048];
    for (int shift = 0; shift < 4; shift++) {
        size_t n = (size_t)snprintf(text, sizeof text, "%.*s", shift, "abcd");
        for (int i = 0; i < 100; i++)
            n += (size_t)snprintf(text + n, sizeof text - n, "ü€");
        n += (size_t)snprintf(text + n, sizeof text - n, "\\n\\t needle ");
        for (int i = 0; i < 200; i++)
            n += (size_t)snprintf(text + n, sizeof text - n, "ü€");
        say(t, t->id, "i1", text);
        assert_ok(find_in(t, "needle", NULL, 0, &h, &e), &e);
        assert_int_equal(h.n, 1);
        json_auto_t *whole = json_string(h.text);
        assert_non_null(whole); /* it is UTF-8 */
        assert_non_null(strstr(h.text, "€ needle ü"));
    }
}

/* ---- damage ------------------------------------------------------------------------------ */

static void run_sql(struct search_test *t, const char *sql)
{
    sqlite3 *db;
    store_close(t->f.st);
    t->f.st = NULL;
    assert_int_equal(sqlite3_open(t->f.db, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    store_fixture_reopen(&t->f);
}

/* Searching again and again ends with the right answer. */
static void expect_in_the_end(struct search_test *t, const char *text, size_t want)
{
    struct hits h;
    struct error e;
    enum err rc = find_in(t, text, NULL, 0, &h, &e);
    if (rc == ERR_BUSY)
        rc = find_in(t, text, NULL, 0, &h, &e);
    assert_ok(rc, &e);
    assert_int_equal(h.n, want);
}

static void damage_stops_nobody(void **state)
{
    static const char *const damage[] = {
        "UPDATE search_data SET block = zeroblob(length(block))",
        "UPDATE search_data SET block = randomblob(length(block)) WHERE id > 10",
        "UPDATE search_data SET block = x'ff' WHERE id = 10",
        "DELETE FROM search_data WHERE id > 10",
        "DELETE FROM search_data",
        "DELETE FROM search_idx",
        "UPDATE search_config SET v = 77",
        "DELETE FROM search_config",
    };
    struct search_test *t = *state;
    struct error e;
    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        char item[32], fork[SESSION_ID_CAP];
        AUTO(session_info) struct session_info s = {0};
        for (int k = 0; k < 20; k++) {
            snprintf(item, sizeof item, "i%d.%d", (int)i, k);
            say(t, t->id, item, "common word");
        }
        run_sql(t, damage[i]);
        /* Commits, changes of an item and deletions go through. */
        for (int k = 0; k < 20; k++) {
            snprintf(item, sizeof item, "i%d.%d", (int)i, k);
            say(t, t->id, item, "changed word");
        }
        fork_at(t, 1, fork);
        say(t, fork, "f", "forked");
        assert_ok(session_delete(t->f.st, fork, &e), &e);
        assert_ok(session_find(t->f.st, t->id, &s, &e), &e);
        assert_false(s.damaged);
        assert_ok(search_rebuild(t->f.st, &e), &e);
        expect_in_the_end(t, "changed", i + 1 < 3 ? 20 * (i + 1) : 50);
        expect_in_the_end(t, "forked", 0);
    }
}

/* Searching alone meets damage, too, and mends it. */
static void a_search_mends(void **state)
{
    struct search_test *t = *state;
    struct store_counters c;
    struct error e;
    say(t, t->id, "i1", "needle");
    assert_ok(search_check(t->f.st, &e), &e);
    run_sql(t, "DELETE FROM search_data WHERE id > 10");
    assert_int_equal(search_check(t->f.st, &e), ERR_CORRUPT);
    expect_in_the_end(t, "needle", 1);
    assert_ok(search_check(t->f.st, &e), &e);
    store_count(t->f.st, &c);
    assert_int_equal(c.indexes_rebuilt, 1);
    assert_int_equal(c.rows_damaged, 0);
}

/* Whatever fails while the index is made again, none is left that knows less and looks whole.
 */
static void mending_that_fails(void **state)
{
    struct search_test *t = *state;
    struct hits h;
    bool failed = true;
    say(t, t->id, "i1", "needle");
    for (uint64_t n = 1; failed; n++) {
        run_sql(t, "DELETE FROM search_data WHERE id > 10");
        fault_arm(FAULT_FAIL, NULL, n);
        (void)!find_in(t, "needle", NULL, 0, &h, NULL);
        failed = fault_disarm();
        store_fixture_reopen(&t->f);
        expect_in_the_end(t, "needle", 1);
    }
}

/* A database from before there was an index gets one that knows what was said before. */
static void a_migration_fills_it(void **state)
{
    struct search_test *t = *state;
    say(t, t->id, "i1", "draft");
    say(t, t->id, "i1", "final");
    run_sql(t, "DROP TABLE search; DROP INDEX events_search; DROP VIEW search_source;"
               "PRAGMA user_version = 3;");
    expect(t, "final", "alpha@2:final\n");
    expect(t, "draft", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(words_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(calls_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(the_newest_version_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(no_query_is_an_error_of_the_index, setup, teardown),
        cmocka_unit_test_setup_teardown(a_limit_says_that_there_is_more, setup, teardown),
        cmocka_unit_test_setup_teardown(forks_show_what_they_share, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rewound_session_keeps_its_log_elsewhere, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_was_hidden_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_purge_leaves_no_word, setup, teardown),
        cmocka_unit_test_setup_teardown(made_again_in_steps, setup, teardown),
        cmocka_unit_test_setup_teardown(claude_code_86707_secrets_do_not_show, setup, teardown),
        cmocka_unit_test_setup_teardown(snippets_are_cut_on_characters, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_stops_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_search_mends, setup, teardown),
        cmocka_unit_test_setup_teardown(mending_that_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(a_migration_fills_it, setup, teardown),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
