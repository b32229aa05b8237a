/* fsck finds every damage that is made here, mends what can be mended, and says so; a second
 * look finds nothing that the first has mended. */
#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include "sessions/fsck.h"
#include "sessions/gc.h"
#include "tests/support/state_fixture.h"
#include "tests/support/store_fixture.h"
#include "tests/support/test.h"

#define TOKENS 200u

struct world {
    struct store_fixture f;
    struct state_layout l;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP], fork[SESSION_ID_CAP];
    char seen[16384]; /* what fsck said */
};

static void commit_item(struct world *w, const char *id, const char *json)
{
    struct error e;
    struct tape_event ev = {.position = TAPE_END, .type = "item", .item = "i", .json = json};
    struct tape_turn t = {.id = "t1",
                          .params = "{}",
                          .state = "idle",
                          .reason = "end",
                          .ledger = "{}",
                          .finished = true};
    struct tape_call call = {.id = "c1",
                             .turn = "t1",
                             .name = "run",
                             .arguments = "{}",
                             .status = CALL_DONE,
                             .result = "r",
                             .n_result = 1};
    struct tape_commit c = {
        .session = id, .events = &ev, .n_events = 1, .turn = &t, .calls = &call, .n_calls = 1};
    assert_ok(tape_commit(w->f.st, &c, NULL, &e), &e);
}

static void fill(struct world *w, const char *name, uint32_t first, char id[SESSION_ID_CAP])
{
    struct error e;
    fixture_session(&w->f, name, id);
    for (uint64_t at = 0; at < TOKENS; at += 50) {
        assert_ok(fixture_append(w->f.st, id, first + (uint32_t)at, 50, SEGMENT_INPUT, &e), &e);
        assert_ok(state_save(w->f.st, id, &w->l, at, at + 50, true, NULL, &e), &e);
    }
    commit_item(w, id, "{\"text\":\"quick brown fox\"}");
}

static int setup(void **state)
{
    struct error e;
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    store_fixture_init(&w->f, false);
    assert_ok(store_fixture_open(&w->f, &e), &e);
    state_layout_make(&w->l, LAYOUT_ODD);
    fill(w, "a", 100, w->a);
    fill(w, "b", 9000, w->b);
    struct session_fork f = {.parent = w->a, .name = "fork"};
    assert_ok(session_fork(w->f.st, &f, w->fork, &e), &e);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    store_fixture_fini(&w->f);
    free(w);
    return 0;
}

static void see(void *user, const struct fsck_finding *f)
{
    struct world *w = user;
    size_t n = strlen(w->seen);
    snprintf(w->seen + n, sizeof w->seen - n, "%s: %s; %s%s\n", f->kind, f->what, f->action,
             f->repaired ? " (done)" : "");
}

static struct fsck_report look(struct world *w, bool repair)
{
    struct fsck_report r;
    struct error e;
    w->seen[0] = '\0';
    assert_ok(fsck_run(w->f.st, repair, see, w, &r, &e), &e);
    return r;
}

/* Runs SQL on the closed database. */
static void change(struct world *w, const char *sql)
{
    sqlite3 *db;
    char *why = NULL;
    store_close(w->f.st);
    w->f.st = NULL;
    assert_int_equal(sqlite3_open(w->f.db, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why))
        fail_msg("%s: %s", sql, why);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    struct error e;
    assert_ok(store_fixture_open(&w->f, &e), &e);
}

static uint64_t resume(struct world *w, const char *id)
{
    struct head_restored r;
    struct error e;
    assert_ok(state_restore(w->f.st, id, &w->l, TAPE_END, HEAD_ROWS, NULL, &r, &e), &e);
    assert_int_equal(r.extents_damaged, 0);
    return r.n_tokens;
}

static void expect(struct world *w, const char *part)
{
    if (!strstr(w->seen, part))
        fail_msg("fsck did not say \"%s\" but:\n%s", part, w->seen);
}

/* Found, found again, mended, gone. */
static void found_and_mended(struct world *w, const char *kind)
{
    struct fsck_report r = look(w, false);
    assert_true(r.found > 0);
    assert_int_equal(r.repaired, 0);
    expect(w, kind);
    assert_int_equal(look(w, false).found, r.found);
    r = look(w, true);
    assert_true(r.found > 0);
    assert_int_equal(r.repaired, r.found);
    expect(w, "(done)");
    r = look(w, false);
    if (r.found)
        fail_msg("still found:\n%s", w->seen);
}

/* ---- whole ------------------------------------------------------------------------------- */

static void a_whole_store(void **state)
{
    struct world *w = *state;
    struct gc_report g;
    struct error e;
    struct fsck_report r = look(w, false);
    if (r.found)
        fail_msg("found:\n%s", w->seen);
    assert_int_equal(r.sessions, 3);
    assert_int_equal(r.tokens, 3 * TOKENS);
    struct store_counters c;
    store_count(w->f.st, &c);
    assert_int_equal(r.extents, c.blocks + c.tails + c.tips);
    assert_true(r.rows > 40 && r.bytes > 100000 && r.packs == 1);
    /* Garbage is no damage. */
    assert_ok(session_delete(w->f.st, w->b, &e), &e);
    r = look(w, false);
    assert_int_equal(r.found, 0);
    assert_true(r.unreferenced >= TOKENS / 16);
    assert_ok(gc_run(w->f.st, &g, &e), &e);
    assert_int_equal(look(w, false).unreferenced, 0);
    assert_int_equal(look(w, true).repaired, 0);
    assert_int_equal(resume(w, w->a), TOKENS);
}

/* ---- bytes ------------------------------------------------------------------------------- */

static void flip(struct world *w, uint64_t off)
{
    char path[160];
    uint8_t b;
    snprintf(path, sizeof path, "%s/00000001.pack", w->f.packs);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &b, 1, (off_t)off) == 1);
    b ^= 0x10;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)off), 1);
    close(fd);
}

/* Offsets and lengths of all extents, from the catalog. */
static size_t places(struct world *w, uint64_t *off, uint64_t *bytes, size_t cap)
{
    sqlite3 *db;
    sqlite3_stmt *s;
    size_t n = 0;
    store_close(w->f.st);
    assert_int_equal(sqlite3_open(w->f.db, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(db,
                           "SELECT off, pages FROM blocks UNION ALL SELECT off, "
                           "pages FROM tails UNION ALL SELECT off, pages FROM tips",
                           -1, &s, NULL),
        SQLITE_OK);
    while (sqlite3_step(s) == SQLITE_ROW && n < cap) {
        off[n] = (uint64_t)sqlite3_column_int64(s, 0);
        bytes[n++] = (uint64_t)sqlite3_column_int64(s, 1) * 4096;
    }
    sqlite3_finalize(s);
    sqlite3_close(db);
    struct error e;
    assert_ok(store_fixture_open(&w->f, &e), &e);
    return n;
}

/* One bit in each extent in turn, at another place in each. */
static void a_bit_in_every_extent(void **state)
{
    struct world *w = *state;
    uint64_t off[128], bytes[128];
    size_t n = places(w, off, bytes, 128);
    assert_true(n > 24);
    for (size_t i = 0; i < n; i++) {
        uint64_t at = off[i] + i * 7919 % bytes[i];
        /* Behind the tags of a header, nothing is meant: the header's own tag covers it. */
        flip(w, at);
        struct fsck_report r = look(w, false);
        if (r.found != 1)
            fail_msg("bit at %llu of extent %zu: found %llu\n%s", (unsigned long long)at, i,
                     (unsigned long long)r.found, w->seen);
        expect(w, "extent: ");
        flip(w, at);
    }
    assert_int_equal(look(w, false).found, 0);
    flip(w, off[5] + bytes[5] / 2);
    flip(w, off[n - 1] + 4096);
    found_and_mended(w, "extent: ");
    assert_true(resume(w, w->a) < TOKENS || resume(w, w->b) < TOKENS);
    store_fixture_reopen(&w->f);
    assert_int_equal(look(w, false).found, 0);
}

/* ---- rows -------------------------------------------------------------------------------- */

static void rows_without_content_go(void **state)
{
    struct world *w = *state;
    change(w, "UPDATE blocks SET lineage = lineage + 1 WHERE id = 3");
    found_and_mended(w, "row: blocks 3");
    assert_int_equal(resume(w, w->a), 2 * 16);
    change(w, "UPDATE tips SET position = position + 1 WHERE id = (SELECT max(id) FROM tips)");
    found_and_mended(w, "row: tips");
    change(w, "UPDATE heads SET generation = generation + 2 WHERE session = 2 AND slot = 0");
    found_and_mended(w, "row: heads 2");
    change(w, "UPDATE holds SET uses = 77 WHERE session = 1");
    found_and_mended(w, "row: holds 1");
    assert_true(resume(w, w->b) > 0);
}

static void what_hangs_on_nothing(void **state)
{
    struct world *w = *state;
    change(w, "DELETE FROM blocks WHERE id = 5");
    found_and_mended(w, "hangs on what is not there");
    assert_int_equal(resume(w, w->a), 4 * 16);
    change(w, "DELETE FROM tips");
    found_and_mended(w, "head: ");
    assert_int_equal(resume(w, w->b), TOKENS);
}

static void rows_of_nobody(void **state)
{
    struct world *w = *state;
    change(w, "DELETE FROM sessions WHERE num = 2; DELETE FROM configs WHERE session = 2");
    found_and_mended(w, "orphan: ");
    struct gc_report g;
    struct error e;
    assert_ok(gc_run(w->f.st, &g, &e), &e);
    assert_true(g.blocks >= TOKENS / 16);
    assert_int_equal(resume(w, w->a), TOKENS);
    assert_int_equal(look(w, false).sessions, 2);
}

/* What readers need and nobody can make again is said, and served up to there. */
static void codex_38552_content_that_is_lost(void **state)
{
    struct world *w = *state;
    change(w, "UPDATE events SET json = '{}' WHERE strand = 1");
    struct fsck_report r = look(w, true);
    assert_true(r.found > r.repaired);
    expect(w, "row: events");
    expect(w, "session ");
    change(w, "DELETE FROM calls WHERE session = 2");
    look(w, false);
    expect(w, w->b);
    assert_true(look(w, true).found > 0); /* and every time */
}

/* A chunk of the tape comes back from beside the state; then nothing is damaged. */
static void a_tape_chunk(void **state)
{
    struct world *w = *state;
    struct error e;
    change(w, "UPDATE tape SET ids = zeroblob(length(ids)) WHERE strand = 2 AND chunk = 0");
    struct fsck_report r = look(w, true);
    assert_true(r.found > 0);
    expect(w, "made again from the ids beside its state");
    r = look(w, true); /* takes the mark off, if one was made */
    assert_int_equal(look(w, false).found, 0);
    uint32_t ids[TOKENS];
    assert_ok(tape_read_ids(w->f.st, w->b, 0, TOKENS, ids, &e), &e);
    for (uint32_t i = 0; i < TOKENS; i++)
        assert_int_equal(ids[i], 9000 + i);
}

static void a_mark_without_a_reason(void **state)
{
    struct world *w = *state;
    struct error e;
    AUTO(session_info) struct session_info s = {0};
    change(w, "UPDATE tape SET ids = zeroblob(length(ids)) WHERE strand = 2; DELETE FROM heads"
              " WHERE session = 2");
    look(w, false);
    expect(w, "its tape is damaged");
    assert_ok(session_find(w->f.st, w->b, &s, &e), &e);
    assert_true(s.damaged);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_whole_store, setup, teardown),
        cmocka_unit_test_setup_teardown(a_bit_in_every_extent, setup, teardown),
        cmocka_unit_test_setup_teardown(rows_without_content_go, setup, teardown),
        cmocka_unit_test_setup_teardown(what_hangs_on_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(rows_of_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(codex_38552_content_that_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(a_tape_chunk, setup, teardown),
        cmocka_unit_test_setup_teardown(a_mark_without_a_reason, setup, teardown),
    };
    return !!run_with_both_shapes(tests);
}
