/* Sessions: names, prefixes, forks by reference, deletion, damage, who may open a store. */
#include "tests/support/store_fixture.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

static int setup(void **state)
{
    static struct store_fixture f;
    struct error e;
    store_fixture_init(&f, false);
    assert_ok(store_fixture_open(&f, &e), &e);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    store_fixture_fini(*state);
    return 0;
}

/* Runs SQL on the database of a closed store, behind its back. */
static void meddle(struct store_fixture *f, const char *sql)
{
    store_close(f->st);
    f->st = NULL;
    sqlite3 *db;
    char *why = NULL;
    assert_int_equal(sqlite3_open(f->db, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    assert_true(sqlite3_changes(db) > 0);
    sqlite3_close(db);
    struct error e;
    assert_ok(store_fixture_open(f, &e), &e);
}

static void makes_and_finds(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char id[SESSION_ID_CAP];
    fixture_session(f, "brisk-otter", id);
    store_fixture_reopen(f);
    AUTO(session_info) struct session_info a = {0};
    assert_ok(session_find(f->st, id, &a, &e), &e);
    assert_string_equal(a.name, "brisk-otter");
    assert_string_equal(a.cwd, "/home/me");
    assert_string_equal(a.config, "{\"seed\":1}");
    assert_string_equal(a.state, "idle");
    assert_int_equal(a.created_ms, 1700000000000);
    assert_int_equal(a.n_tokens, 0);
    assert_false(a.damaged);
    const char *keys[] = {"brisk-otter", "brisk", id};
    for (size_t i = 0; i < 3; i++) {
        AUTO(session_info) struct session_info b = {0};
        assert_ok(session_find(f->st, keys[i], &b, &e), &e);
        assert_string_equal(b.id, id);
    }
    char prefix[11];
    snprintf(prefix, sizeof prefix, "%.10s", id);
    for (size_t i = 0; prefix[i]; i++)
        if (prefix[i] >= 'A')
            prefix[i] = (char)(prefix[i] + 32);
    AUTO(session_info) struct session_info c = {0};
    assert_ok(session_find(f->st, prefix, &c, &e), &e);
}

static void agent_os_678_refuses_bad_names(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    static const char *const bad[] = {
        "",
        "Upper",
        "../etc",
        "a b",
        "-x",
        ".x",
        "a/b",
        "\xc3\xa4",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaa"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct session_new s = {.name = bad[i]};
        assert_int_equal(session_new(f->st, &s, NULL, &e), ERR_INVAL);
    }
    struct session_new s = {.name = "ok", .id = "../../../etc/passwd"};
    assert_int_equal(session_new(f->st, &s, NULL, &e), ERR_INVAL);
}

static void conflicts_leave_the_first(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP];
    fixture_session(f, "one", a);
    fixture_session(f, "two", b);
    struct session_new s = {.name = "one"};
    assert_int_equal(session_new(f->st, &s, NULL, &e), ERR_CONFLICT);
    s = (struct session_new){.name = "three", .id = a};
    assert_int_equal(session_new(f->st, &s, NULL, &e), ERR_CONFLICT);
    assert_int_equal(session_rename(f->st, b, "one", &e), ERR_CONFLICT);
    assert_ok(session_rename(f->st, b, "deux", &e), &e);
    AUTO(session_info) struct session_info x = {0};
    assert_ok(session_find(f->st, "one", &x, &e), &e);
    assert_string_equal(x.id, a);
    assert_int_equal(session_find(f->st, "two", &x, &e), ERR_NOTFOUND);
}

static void ambiguous_keys_list_the_candidates(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char id[SESSION_ID_CAP], prefix[7];
    fixture_session(f, "otter-a", id);
    fixture_session(f, "otter-b", id);
    AUTO(session_info) struct session_info x = {0};
    assert_int_equal(session_find(f->st, "otter", &x, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.msg, "otter-a"));
    assert_non_null(strstr(e.msg, "otter-b"));
    snprintf(prefix, sizeof prefix, "%.6s", id);
    assert_int_equal(session_find(f->st, prefix, &x, &e), ERR_NOTFOUND);
    assert_int_equal(session_find(f->st, "", &x, &e), ERR_NOTFOUND);
    assert_int_equal(session_find(f->st, "%", &x, &e), ERR_NOTFOUND);
}

struct listed {
    size_t n, damaged;
    char names[64];
};

static bool note(void *user, const struct session_info *s)
{
    struct listed *l = user;
    size_t len = strlen(l->names);
    l->n++;
    l->damaged += s->damaged;
    snprintf(l->names + len, sizeof l->names - len, "%s ", s->name);
    return true;
}

static void lists_the_last_used_first(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP];
    fixture_session(f, "a", a);
    fake_clock_advance(&f->clock, 10);
    fixture_session(f, "b", b);
    fake_clock_advance(&f->clock, 10);
    assert_ok(session_set_state(f->st, a, "idle", "cancelled", &e), &e);
    struct listed l = {0};
    assert_ok(session_list(f->st, note, &l, &e), &e);
    assert_string_equal(l.names, "a b ");
}

static void codex_38341_damaged_rows_are_listed(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP];
    fixture_session(f, "good", a);
    fixture_session(f, "bad", b);
    meddle(f, "UPDATE sessions SET state = 'x' || char(27) || '[2J' WHERE name = 'bad'");
    struct listed l = {0};
    assert_ok(session_list(f->st, note, &l, &e), &e);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.damaged, 1);
    AUTO(session_info) struct session_info s = {0};
    assert_ok(session_find(f->st, "bad", &s, &e), &e);
    assert_true(s.damaged);
    assert_string_equal(s.state, "x?[2J");
    assert_int_equal(session_set_state(f->st, b, "idle", NULL, &e), ERR_CORRUPT);
    assert_int_equal(fixture_append(f->st, b, 0, 1, SEGMENT_INPUT, &e), ERR_CORRUPT);
    assert_ok(fixture_append(f->st, a, 0, 1, SEGMENT_INPUT, &e), &e);
    assert_ok(session_delete(f->st, b, &e), &e);
}

static void damaged_config_is_not_served(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char a[SESSION_ID_CAP];
    fixture_session(f, "a", a);
    meddle(f, "UPDATE configs SET config = '{\"approve\":\"never\"}'");
    AUTO(session_info) struct session_info s = {0};
    assert_ok(session_find(f->st, "a", &s, &e), &e);
    assert_true(s.damaged);
    assert_string_equal(s.config, "{}");
}

static void load(struct store *st, const char *id, struct tape *t)
{
    struct error e;
    assert_ok(tape_load(st, id, t, &e), &e);
}

static void forks_share_by_reference(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP], c[SESSION_ID_CAP];
    fixture_session(f, "a", a);
    assert_ok(fixture_append(f->st, a, 0, 1500, SEGMENT_INPUT, &e), &e);
    struct tape_event ev = {.type = "item", .item = "i1", .kind = "user", .position = TAPE_END};
    struct tape_commit one = {.session = a, .events = &ev, .n_events = 1};
    assert_ok(tape_commit(f->st, &one, NULL, &e), &e);
    assert_ok(fixture_append(f->st, a, 5000, 700, SEGMENT_GENERATED, &e), &e);
    ev.item = "i2";
    ev.position = 1800; /* in the middle of the generated segment */
    assert_ok(tape_commit(f->st, &one, NULL, &e), &e);
    ev.item = "i3";
    ev.position = TAPE_END;
    assert_ok(tape_commit(f->st, &one, NULL, &e), &e);

    struct session_fork k = {.parent = a, .at_seq = 2, .name = "b"};
    assert_ok(session_fork(f->st, &k, b, &e), &e);
    k = (struct session_fork){.parent = b, .at_seq = 1, .name = "c"};
    assert_ok(session_fork(f->st, &k, c, &e), &e);
    assert_ok(fixture_append(f->st, b, 9000, 40, SEGMENT_INPUT, &e), &e);
    assert_ok(fixture_append(f->st, a, 7000, 40, SEGMENT_INPUT, &e), &e);

    AUTO(tape) struct tape ta = {0}, tb = {0}, tc = {0};
    load(f->st, a, &ta);
    load(f->st, b, &tb);
    load(f->st, c, &tc);
    assert_int_equal(ta.view.n_ids, 2240);
    assert_int_equal(tb.view.n_ids, 1840);
    assert_int_equal(tc.view.n_ids, 1500);
    assert_memory_equal(ta.ids, tb.ids, 1800 * 4);
    assert_int_equal(tb.ids[1799], 5299);
    assert_int_equal(tb.ids[1800], 9000);
    assert_int_equal(tb.view.n_segments, 3);
    assert_int_equal(tb.segments[1].start, 1500);
    assert_int_equal(tb.segments[1].len, 300);
    assert_int_equal(tb.segments[2].start, 1800);
    assert_false(tb.tape_segments[1].open);

    k = (struct session_fork){.parent = "01ARZ3NDEKTSV4RRFFQ69G5FAV", .name = "ghost"};
    assert_int_equal(session_fork(f->st, &k, NULL, &e), ERR_NOTFOUND);
    k = (struct session_fork){.parent = a, .at_seq = 99, .name = "ghost"};
    assert_int_equal(session_fork(f->st, &k, NULL, &e), ERR_NOTFOUND);
    AUTO(session_info) struct session_info s = {0};
    assert_int_equal(session_find(f->st, "ghost", &s, &e), ERR_NOTFOUND);
}

static int64_t count(struct store_fixture *f, const char *sql)
{
    store_close(f->st);
    f->st = NULL;
    sqlite3 *db;
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_open(f->db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    struct error e;
    assert_ok(store_fixture_open(f, &e), &e);
    return n;
}

static void deletion_keeps_what_forks_need(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP], c[SESSION_ID_CAP];
    fixture_session(f, "a", a);
    for (uint32_t i = 0; i < 4; i++) {
        assert_ok(fixture_append(f->st, a, i * 1000, 600, SEGMENT_INPUT, &e), &e);
        struct tape_event ev = {.type = "item", .item = "i", .position = TAPE_END};
        struct tape_commit one = {.session = a, .events = &ev, .n_events = 1};
        assert_ok(tape_commit(f->st, &one, NULL, &e), &e);
    }
    struct session_fork k = {.parent = a, .at_seq = 2, .name = "b"};
    assert_ok(session_fork(f->st, &k, b, &e), &e);
    assert_ok(fixture_append(f->st, b, 9000, 600, SEGMENT_INPUT, &e), &e);
    k = (struct session_fork){.parent = b, .name = "c"};
    assert_ok(session_fork(f->st, &k, c, &e), &e);
    AUTO(tape) struct tape before = {0}, after = {0};
    load(f->st, c, &before);
    assert_int_equal(before.view.n_ids, 1800);

    assert_ok(session_delete(f->st, a, &e), &e);
    assert_int_equal(count(f, "SELECT count(*) FROM strands"), 3);
    assert_int_equal(count(f, "SELECT max(length) FROM strands WHERE parent = 0"), 1200);
    assert_int_equal(count(f, "SELECT count(*) FROM events"), 2);
    assert_ok(session_delete(f->st, b, &e), &e);
    store_fixture_reopen(f);
    load(f->st, c, &after);
    assert_false(after.damaged);
    assert_int_equal(after.view.n_ids, 1800);
    assert_memory_equal(before.ids, after.ids, 1800 * 4);
    assert_int_equal(after.view.n_segments, 3);
    tape_fini(&after);

    assert_ok(session_delete(f->st, c, &e), &e);
    static const char *const empty[] = {"strands", "tape",  "segments", "events",
                                        "configs", "heads", "sessions"};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        char sql[64];
        snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", empty[i]);
        assert_int_equal(count(f, sql), 0);
    }
}

/* A compacted fork needs less of the strand it left than that strand has of its own. */
static void a_compacted_fork_outlives_what_it_left(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP], keep[SESSION_ID_CAP], c[SESSION_ID_CAP];
    fixture_session(f, "a", a);
    assert_ok(fixture_append(f->st, a, 0, 600, SEGMENT_INPUT, &e), &e);
    struct session_fork k = {.parent = a, .name = "b"};
    assert_ok(session_fork(f->st, &k, b, &e), &e);
    assert_ok(fixture_append(f->st, b, 900, 50, SEGMENT_INPUT, &e), &e);
    struct session_cut cut = {.id = b, .restart = true, .keep_name = "keep"};
    assert_ok(session_cut(f->st, &cut, keep, &e), &e);
    assert_ok(session_delete(f->st, keep, &e), &e);
    store_fixture_reopen(f);
    AUTO(tape) struct tape t = {0};
    load(f->st, b, &t);
    assert_false(t.damaged);
    assert_int_equal(t.view.n_ids, 0);
    assert_ok(fixture_append(f->st, b, 70, 5, SEGMENT_INPUT, &e), &e);
    k = (struct session_fork){.parent = b, .name = "c"};
    assert_ok(session_fork(f->st, &k, c, &e), &e);
    assert_ok(session_delete(f->st, a, &e), &e);
    store_fixture_reopen(f);
    assert_int_equal(fixture_length(f->st, c), 5);
    assert_int_equal(fixture_length(f->st, b), 5);
}

static void a_thousand_forks_are_small(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char a[SESSION_ID_CAP], name[32];
    fixture_session(f, "a", a);
    assert_ok(fixture_append(f->st, a, 0, 20000, SEGMENT_INPUT, &e), &e);
    int64_t pages = count(f, "SELECT page_count FROM pragma_page_count");
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "fork-%d", i);
        struct session_fork k = {.parent = a, .name = name};
        assert_ok(session_fork(f->st, &k, NULL, &e), &e);
    }
    int64_t more = count(f, "SELECT page_count FROM pragma_page_count") - pages;
    assert_true(more * 4096 < 1000 * 4096);
}

static void a_deep_line_of_forks(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char id[SESSION_ID_CAP], name[32];
    fixture_session(f, "f0", id);
    for (uint32_t i = 0; i < 200; i++) {
        assert_ok(fixture_append(f->st, id, i * 10, 7, SEGMENT_INPUT, &e), &e);
        snprintf(name, sizeof name, "f%u", i + 1);
        char parent[SESSION_ID_CAP];
        memcpy(parent, id, sizeof parent);
        struct session_fork k = {.parent = parent, .name = name};
        assert_ok(session_fork(f->st, &k, id, &e), &e);
    }
    AUTO(tape) struct tape t = {0};
    load(f->st, id, &t);
    assert_int_equal(t.view.n_ids, 1400);
    for (uint32_t i = 0; i < 1400; i++)
        assert_int_equal(t.ids[i], i / 7 * 10 + i % 7);
}

static void only_one_opens(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    struct store *second = NULL;
    assert_int_equal(store_open(&second, &f->options, &e), ERR_BUSY);
    assert_non_null(strstr(e.msg, "in use"));
    pid_t pid = fork();
    if (pid == 0)
        _exit(store_open(&second, &f->options, NULL) == ERR_BUSY ? 0 : 1);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* As somebody who is not root, on packs that cannot be written. */
static void folders_must_be_writable(void **state)
{
    struct store_fixture *f = *state;
    struct error e = {0};
    int status;
    store_close(f->st);
    f->st = NULL;
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0) {
            execlp("chown", "chown", "-R", "65534", f->dir, NULL);
            _exit(127);
        }
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(chmod(f->packs, 0500), 0);
    pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 && setresuid(65534, 65534, 65534))
            _exit(1);
        bool said =
            store_open(&f->st, &f->options, &e) == ERR_DENIED && strstr(e.msg, f->packs);
        _exit(said ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(chmod(f->packs, 0700), 0);
}

static void options_are_checked(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    store_close(f->st);
    f->st = NULL;
    f->options.block_tokens = 32;
    assert_int_equal(store_fixture_open(f, &e), ERR_INVAL);
    f->options.block_tokens = 24;
    assert_int_equal(store_fixture_open(f, &e), ERR_INVAL);
    f->options.block_tokens = 0;
    assert_ok(store_fixture_open(f, &e), &e);
    assert_int_equal(store_block_tokens(f->st), 16);
}

static void files_are_private(void **state)
{
    struct store_fixture *f = *state;
    struct stat sb;
    char path[160];
    static const char *const files[] = {"data/agentd.db", "data/agentd.db-wal",
                                        "state/master.key", "data/agentd.db.lock"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, files[i]);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_mode & 0777, 0600);
    }
    static const char *const folders[] = {"data", "state", "packs"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, folders[i]);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_mode & 0777, 0700);
    }
}

static void the_master_key_belongs(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char path[160];
    snprintf(path, sizeof path, "%s/master.key", f->state);
    store_close(f->st);
    f->st = NULL;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(store_fixture_open(f, &e), ERR_CORRUPT);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "0123456789abcdef0123456789abcdef", 32), 32);
    close(fd);
    assert_int_equal(store_fixture_open(f, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.msg, "master key"));
}

static void newer_schema_is_refused(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    store_close(f->st);
    f->st = NULL;
    sqlite3 *db;
    assert_int_equal(sqlite3_open(f->db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL), 0);
    sqlite3_close(db);
    assert_int_equal(store_fixture_open(f, &e), ERR_UNSUPPORTED);
}

static void garbage_is_not_a_database(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    store_close(f->st);
    f->st = NULL;
    FILE *out = fopen(f->db, "w");
    for (int i = 0; i < 5000; i++)
        fputs("not a database ", out);
    fclose(out);
    assert_int_equal(store_fixture_open(f, &e), ERR_CORRUPT);
}

/* Nothing is acknowledged into a file that is no longer there. */
static void a_removed_database_takes_nothing(void **state)
{
    struct store_fixture *f = *state;
    struct error e;
    char id[SESSION_ID_CAP], away[160];
    fixture_session(f, "before", id);
    snprintf(away, sizeof away, "%s-away", f->db);
    assert_int_equal(rename(f->db, away), 0);
    const struct session_new s = {.name = "after", .cwd = "/", .config = "{}"};
    assert_int_equal(session_new(f->st, &s, NULL, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "removed or replaced"));
    assert_int_equal(fixture_append(f->st, id, 1, 5, SEGMENT_INPUT, &e), ERR_IO);
    assert_int_equal(rename(away, f->db), 0);
    assert_ok(fixture_append(f->st, id, 1, 5, SEGMENT_INPUT, &e), &e);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(makes_and_finds),
        T(agent_os_678_refuses_bad_names),
        T(conflicts_leave_the_first),
        T(ambiguous_keys_list_the_candidates),
        T(lists_the_last_used_first),
        T(codex_38341_damaged_rows_are_listed),
        T(damaged_config_is_not_served),
        T(forks_share_by_reference),
        T(deletion_keeps_what_forks_need),
        T(a_compacted_fork_outlives_what_it_left),
        T(a_thousand_forks_are_small),
        T(a_deep_line_of_forks),
        T(only_one_opens),
        T(folders_must_be_writable),
        T(options_are_checked),
        T(files_are_private),
        T(the_master_key_belongs),
        T(newer_schema_is_refused),
        T(garbage_is_not_a_database),
        T(a_removed_database_takes_nothing),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
