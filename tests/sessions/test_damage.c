/* What people and machines do to a store from outside: its -wal removed while nothing ran, its
 * packs removed while it is open, a clock that goes back, a disk that is full in the middle of
 * a transaction. Each is noticed, said with the right code, and costs nothing else. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "tests/support/state_fixture.h"
#include "tests/support/test.h"

struct damage_test {
    struct store_fixture f;
    struct state_layout l;
    char id[SESSION_ID_CAP], other[SESSION_ID_CAP];
};

static int setup(void **state)
{
    static struct damage_test t;
    struct error e;
    store_fixture_init(&t.f, false);
    assert_ok(store_fixture_open(&t.f, &e), &e);
    state_layout_make(&t.l, LAYOUT_ODD);
    fixture_session(&t.f, "one", t.id);
    fixture_session(&t.f, "other", t.other);
    *state = &t;
    return 0;
}

static int teardown(void **state)
{
    fault_disarm();
    store_fixture_fini(&((struct damage_test *)*state)->f);
    return 0;
}

static void append(struct damage_test *t, const char *id, uint32_t first, uint64_t n)
{
    struct error e;
    assert_ok(fixture_append(t->f.st, id, first, n, SEGMENT_INPUT, &e), &e);
}

static void save(struct damage_test *t, const char *id, uint64_t from)
{
    struct error e;
    assert_ok(state_save(t->f.st, id, &t->l, from, fixture_length(t->f.st, id), true, NULL, &e),
              &e);
}

static uint64_t restored(struct damage_test *t, const char *id)
{
    struct error e;
    struct head_restored r;
    assert_ok(state_restore(t->f.st, id, &t->l, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
    return r.n_tokens;
}

static struct store_counters counters(struct damage_test *t)
{
    struct store_counters c;
    store_count(t->f.st, &c);
    return c;
}

/* ---- the -wal ---------------------------------------------------------------------------- */

static void remove_wal(struct damage_test *t)
{
    char path[160];
    snprintf(path, sizeof path, "%s-wal", t->f.db);
    assert_int_equal(unlink(path), 0);
}

/* Runs `fn` on an open store in a process that then dies. */
static void in_a_process_that_dies(struct damage_test *t, void (*fn)(struct damage_test *t))
{
    store_close(t->f.st);
    t->f.st = NULL;
    pid_t pid = fork();
    if (pid == 0) {
        if (store_fixture_open(&t->f, NULL))
            _exit(1);
        fn(t);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void open_again(struct damage_test *t)
{
    struct error e;
    assert_ok(store_fixture_open(&t->f, &e), &e);
}

static void nothing(struct damage_test *t)
{
    (void)t;
}

static void append_only(struct damage_test *t)
{
    append(t, t->id, 100, 20);
}

static void append_and_save(struct damage_test *t)
{
    append(t, t->id, 100, 20);
    save(t, t->id, 20);
}

static void name_lost(void *user, const char *id)
{
    snprintf(user, SESSION_ID_CAP, "%s", id);
}

static void grow_both(struct damage_test *t)
{
    append(t, t->id, 0, 20);
    save(t, t->id, 0);
    append(t, t->other, 0, 30);
    save(t, t->other, 0);
}

static void check_both(struct damage_test *t, uint64_t n)
{
    assert_int_equal(fixture_length(t->f.st, t->id), n);
    assert_int_equal(restored(t, t->id), n);
    assert_int_equal(fixture_length(t->f.st, t->other), 30);
    assert_int_equal(restored(t, t->other), 30);
    assert_int_equal(counters(t).extents_damaged + counters(t).rows_damaged, 0);
}

/* A process that dies leaves a -wal, even where it wrote nothing: no false alarm. */
static void a_death_is_no_loss(void **state)
{
    struct damage_test *t = *state;
    grow_both(t);
    in_a_process_that_dies(t, nothing);
    open_again(t);
    assert_false(counters(t).wal_lost);
    check_both(t, 20);
    in_a_process_that_dies(t, append_and_save);
    open_again(t);
    assert_false(counters(t).wal_lost);
    check_both(t, 40);
}

/* One state commit, and the tape under it: noticed, and the session is named. */
static void a_lost_turn_is_named(void **state)
{
    struct damage_test *t = *state;
    char lost[SESSION_ID_CAP] = "";
    grow_both(t);
    in_a_process_that_dies(t, append_and_save);
    remove_wal(t);
    open_again(t);
    assert_true(counters(t).wal_lost);
    assert_int_equal(counters(t).commits_lost, 1);
    store_lost_sessions(t->f.st, name_lost, lost);
    assert_string_equal(lost, t->id);
    check_both(t, 20);
    /* It is said once, and the store goes on. */
    append_and_save(t);
    store_fixture_reopen(&t->f);
    assert_false(counters(t).wal_lost);
    assert_int_equal(counters(t).commits_lost, 0);
    check_both(t, 40);
}

/* A tape commit without state leaves no trace in any pack: noticed and named all the same. */
static void a_lost_tape_commit_is_noticed(void **state)
{
    struct damage_test *t = *state;
    char lost[SESSION_ID_CAP] = "";
    grow_both(t);
    in_a_process_that_dies(t, append_only);
    remove_wal(t);
    open_again(t);
    assert_true(counters(t).wal_lost);
    assert_int_equal(counters(t).commits_lost, 0);
    assert_int_equal(counters(t).tape_commits_lost, 1);
    store_lost_sessions(t->f.st, name_lost, lost);
    assert_string_equal(lost, t->id);
    check_both(t, 20);
    store_fixture_reopen(&t->f);
    assert_int_equal(counters(t).tape_commits_lost, 0);
}

static void rename_it(struct damage_test *t)
{
    struct error e;
    assert_ok(session_rename(t->f.st, t->id, "two", &e), &e);
}

static void configure_it(struct damage_test *t)
{
    struct error e;
    assert_ok(session_configure(t->f.st, t->id, "{\"seed\":2}", &e), &e);
}

static void delete_it(struct damage_test *t)
{
    struct error e;
    assert_ok(session_delete(t->f.st, t->id, &e), &e);
}

static void add_another(struct damage_test *t)
{
    struct error e;
    struct session_new s = {.id = "01HF7YAT00000000000000000A", .name = "new"};
    assert_ok(session_new(t->f.st, &s, NULL, &e), &e);
}

/* Whatever was acknowledged of a session, not its tape alone. */
static void every_lost_change_is_named(void **state)
{
    struct damage_test *t = *state;
    static const struct {
        void (*change)(struct damage_test *t);
        bool is_new;
    } changes[] = {
        {rename_it, false}, {configure_it, false}, {delete_it, false}, {add_another, true}};
    grow_both(t);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char lost[SESSION_ID_CAP] = "";
        in_a_process_that_dies(t, changes[i].change);
        remove_wal(t);
        open_again(t);
        assert_true(counters(t).wal_lost);
        assert_int_equal(counters(t).tape_commits_lost, 1);
        store_lost_sessions(t->f.st, name_lost, lost);
        assert_string_equal(lost, changes[i].is_new ? "01HF7YAT00000000000000000A" : t->id);
        check_both(t, 20);
    }
}

/* In a child: nothing may be asserted. */
static void append_without_wal(struct damage_test *t, const char *id)
{
    char path[160];
    snprintf(path, sizeof path, "%s-wal", t->f.db);
    if (unlink(path) || fixture_append(t->f.st, id, 200, 20, SEGMENT_INPUT, NULL))
        _exit(2);
}

static void lose_it_on_the_way(struct damage_test *t)
{
    append_and_save(t);
    append_without_wal(t, t->id);
    append(t, t->other, 200, 20);
    append_without_wal(t, t->other);
}

/* Removed under an open store, it takes nothing along: what it held goes into the database, and
 * what comes after that into a new one. */
static void a_wal_removed_while_open(void **state)
{
    struct damage_test *t = *state;
    char lost[SESSION_ID_CAP] = "";
    grow_both(t);
    in_a_process_that_dies(t, lose_it_on_the_way);
    open_again(t);
    store_lost_sessions(t->f.st, name_lost, lost);
    assert_string_equal(lost, "");
    assert_false(counters(t).wal_lost);
    assert_int_equal(fixture_length(t->f.st, t->id), 60);
    assert_int_equal(restored(t, t->id), 40);
    assert_int_equal(fixture_length(t->f.st, t->other), 70);
    assert_int_equal(restored(t, t->other), 30);
}

/* An open that fails half-way has told nobody: the next one does. */
static void a_failed_open_does_not_hide_the_loss(void **state)
{
    struct damage_test *t = *state;
    struct error e;
    grow_both(t);
    in_a_process_that_dies(t, append_and_save);
    remove_wal(t);
    for (uint64_t n = 1;; n++) {
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = store_fixture_open(&t->f, &e);
        bool fired = fault_disarm();
        if (rc) {
            assert_true(fired);
            continue;
        }
        assert_true(counters(t).wal_lost);
        assert_int_equal(counters(t).tape_commits_lost, 1);
        break;
    }
    check_both(t, 20);
}

/* A -wal that is there is never called lost, however an open or a close fails. */
static void a_failed_open_is_no_loss(void **state)
{
    struct damage_test *t = *state;
    struct error e;
    grow_both(t);
    in_a_process_that_dies(t, append_and_save);
    bool clean = false;
    for (uint64_t n = 1; !clean; n++) {
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = store_fixture_open(&t->f, &e);
        clean = !fault_disarm();
        if (rc)
            open_again(t);
        assert_false(counters(t).wal_lost);
        assert_int_equal(counters(t).commits_lost, 0);
        assert_int_equal(fixture_length(t->f.st, t->id), 40);
        /* The close fails at some point, too. */
        fault_arm(FAULT_FAIL, NULL, n);
        store_close(t->f.st);
        t->f.st = NULL;
        clean = !fault_disarm() && clean;
    }
    open_again(t);
    assert_false(counters(t).wal_lost);
    check_both(t, 40);
}

/* ---- packs removed under an open store --------------------------------------------------- */

static void remove_packs(struct damage_test *t)
{
    for (int i = 1; i < 9; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/%08d.pack", t->f.packs, i);
        unlink(path);
    }
}

/* What the daemon does (saver.c): rows that cannot be read back are given again. */
static void save_again(struct damage_test *t, const char *id, uint64_t from)
{
    struct error e;
    struct head_receipt r = {0};
    uint64_t to = fixture_length(t->f.st, id);
    enum err rc = state_save(t->f.st, id, &t->l, from, to, true, &r, &e);
    if (rc == ERR_CORRUPT)
        rc = state_save(t->f.st, id, &t->l, r.retry_from, to, true, &r, &e);
    assert_ok(rc, &e);
}

/* What is saved from then on does not go into files that nobody can find again. */
static void packs_removed_while_open(void **state)
{
    struct damage_test *t = *state;
    grow_both(t);
    assert_int_equal(restored(t, t->id), 20);
    remove_packs(t);
    append(t, t->id, 100, 20);
    save_again(t, t->id, 20);
    assert_int_equal(counters(t).packs_killed, 1);
    append(t, t->id, 200, 20);
    save_again(t, t->id, 40);
    assert_int_equal(restored(t, t->id), 60);
    store_fixture_reopen(&t->f);
    assert_int_equal(restored(t, t->id), 60);
    /* What was in the removed files alone is gone: computed again, and saved as ever. */
    assert_int_equal(fixture_length(t->f.st, t->other), 30);
    assert_int_equal(restored(t, t->other), 0);
    save_again(t, t->other, 0);
    store_fixture_reopen(&t->f);
    check_both(t, 60);
}

/* ---- clock and disk ---------------------------------------------------------------------- */

static void a_clock_that_goes_back(void **state)
{
    struct damage_test *t = *state;
    struct error e;
    grow_both(t);
    static const int64_t moments[] = {1600000000000, 0, -5000, 1700000000000, 4102444800000};
    for (size_t i = 0; i < sizeof moments / sizeof moments[0]; i++) {
        char id[SESSION_ID_CAP], name[16];
        uint64_t at = fixture_length(t->f.st, t->id);
        fake_clock_set_wall(&t->f.clock, moments[i]);
        append(t, t->id, (uint32_t)(1000 * i), 10);
        save(t, t->id, at);
        snprintf(name, sizeof name, "new-%zu", i);
        fixture_session(&t->f, name, id);
        store_fixture_reopen(&t->f);
        AUTO(session_info) struct session_info s = {0};
        assert_ok(session_find(t->f.st, id, &s, &e), &e);
        assert_string_equal(s.name, name);
        check_both(t, at + 10);
    }
    assert_int_equal(counters(t).sessions, 7);
    assert_int_equal(counters(t).commits_lost, 0);
}

/* The disk is full from the n-th write of a commit on, for a while: the commit is refused as a
 * limit, nothing that was acknowledged is lost, and it goes through once there is room. */
static void a_full_disk_in_a_transaction(void **state)
{
    struct damage_test *t = *state;
    struct error e;
    grow_both(t);
    uint64_t refused = 0;
    bool clean = false;
    for (uint64_t n = 1; !clean; n++) {
        uint64_t at = fixture_length(t->f.st, t->id);
        fault_use_errno(ENOSPC);
        fault_arm(FAULT_FAIL_FROM, "fs.write", n);
        enum err rc = fixture_append(t->f.st, t->id, 7, 700, SEGMENT_INPUT, &e);
        enum err again =
            rc ? fixture_append(t->f.st, t->id, 7, 700, SEGMENT_INPUT, &e) : ERR_LIMIT;
        clean = !fault_disarm();
        if (rc) {
            assert_int_equal(rc, ERR_LIMIT);
            assert_int_equal(again, ERR_LIMIT);
            assert_int_equal(fixture_length(t->f.st, t->id), at);
            if (n % 2)
                store_fixture_reopen(&t->f);
            append(t, t->id, 7, 700);
            refused++;
        }
        assert_int_equal(fixture_length(t->f.st, t->id), at + 700);
    }
    assert_true(refused > 3);
    assert_int_equal(restored(t, t->other), 30);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_death_is_no_loss),
        T(a_lost_turn_is_named),
        T(a_lost_tape_commit_is_noticed),
        T(every_lost_change_is_named),
        T(a_wal_removed_while_open),
        T(a_failed_open_does_not_hide_the_loss),
        T(a_failed_open_is_no_loss),
        T(packs_removed_while_open),
        T(a_clock_that_goes_back),
        T(a_full_disk_in_a_transaction),
    };
    return !!run_with_both_shapes(tests);
}
