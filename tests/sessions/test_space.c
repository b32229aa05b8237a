/* What sessions share takes room once: prefixes, forks at saved heads and inside blocks. */
#include "sessions/gc.h"
#include "sessions/space.h"
#include "tests/support/state_fixture.h"
#include "tests/support/store_fixture.h"
#include "tests/support/test.h"

#include <sys/stat.h>

#define PREFIX 20000u
#define SESSIONS 200u
#define FORKS 1000u
#define FORK_PREFIX 5000u

struct world {
    struct store_fixture f;
    struct state_layout l;
};

static int setup(void **state)
{
    struct error e;
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    store_fixture_init(&w->f, false);
    w->f.options.block_tokens = 2048;
    assert_ok(store_fixture_open(&w->f, &e), &e);
    state_layout_make(&w->l, LAYOUT_ODD);
    if (w->l.n_planes) {
        /* Narrow rows: what is shared is counted in tokens. */
        state_layout_make(&w->l, LAYOUT_TIP);
        w->l.n_planes = 2;
        w->l.planes[0] = (struct plane_spec){"L0.kv", PLANE_MAIN, 32, 1};
        w->l.planes[1] = (struct plane_spec){"L0.index", PLANE_INDEX, 8, 2};
    }
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

static struct space space_of(struct world *w)
{
    struct space s;
    struct error e;
    assert_ok(space_read(w->f.st, &s, &e), &e);
    return s;
}

static struct store_counters count(struct world *w)
{
    struct store_counters c;
    store_count(w->f.st, &c);
    return c;
}

static void restores(struct world *w, const char *id, uint64_t n, bool tip)
{
    struct head_restored r;
    struct error e;
    enum head_want want = tip ? HEAD_TIP : HEAD_ROWS;
    assert_ok(state_restore(w->f.st, id, &w->l, TAPE_END, want, NULL, &r, &e), &e);
    assert_int_equal(r.n_tokens, n);
    if (tip)
        assert_true(r.has_tip);
}

/* 200 sessions begin with the same 20,000 tokens and go on each on its own. */
static void a_shared_prefix_is_stored_once(void **state)
{
    struct world *w = *state;
    char id[SESSION_ID_CAP] = "", first[SESSION_ID_CAP] = "";
    struct head_receipt r;
    struct error e;
    uint64_t prefix_blocks = PREFIX / 2048, written = 0, own = 0;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%u", i);
        fixture_session(&w->f, name, id);
        assert_ok(fixture_append(w->f.st, id, 100, PREFIX, SEGMENT_INPUT, &e), &e);
        assert_ok(fixture_append(w->f.st, id, 1000000 + 1000 * i, 50, SEGMENT_INPUT, &e), &e);
        assert_ok(state_save(w->f.st, id, &w->l, 0, PREFIX + 50, true, &r, &e), &e);
        assert_int_equal(r.blocks_shared, i ? prefix_blocks : 0);
        assert_int_equal(r.blocks_new, i ? 0 : prefix_blocks);
        if (i)
            own += r.bytes_written;
        else
            memcpy(first, id, sizeof id);
        written += r.bytes_written;
    }
    assert_int_equal(count(w).blocks, prefix_blocks);
    assert_int_equal(count(w).tails, SESSIONS);
    struct space s = space_of(w);
    assert_int_equal(s.live, written);
    /* Each of the others: its tail and tip. */
    struct head_receipt alone = r;
    assert_int_equal(own, (SESSIONS - 1) * alone.bytes_written);
    print_message("%u sessions over a prefix of %u tokens: %llu blocks, %llu kB in all, "
                  "%llu kB of them for each session's own 50 tokens and tip\n",
                  SESSIONS, PREFIX, (unsigned long long)prefix_blocks,
                  (unsigned long long)s.used / 1000, (unsigned long long)own / 1000);
    restores(w, first, PREFIX + 50, true);
    restores(w, id, PREFIX + 50, true);
}

/* Bytes of the database and its WAL. */
static uint64_t db_bytes(struct world *w)
{
    char wal[160];
    struct stat a, b = {0};
    snprintf(wal, sizeof wal, "%s-wal", w->f.db);
    store_fixture_reopen(&w->f); /* checkpoints */
    assert_int_equal(stat(w->f.db, &a), 0);
    (void)!stat(wal, &b);
    return (uint64_t)(a.st_size + b.st_size);
}

/* A fork at a saved head is rows; after a step it has a tail and a tip of its own. */
static void forks_at_a_saved_head(void **state)
{
    struct world *w = *state;
    char parent[SESSION_ID_CAP], (*forks)[SESSION_ID_CAP] = calloc(FORKS, SESSION_ID_CAP);
    struct head_receipt r;
    struct error e;
    fixture_session(&w->f, "parent", parent);
    assert_ok(fixture_append(w->f.st, parent, 100, FORK_PREFIX, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(w->f.st, parent, &w->l, 0, FORK_PREFIX, true, NULL, &e), &e);
    uint64_t before = db_bytes(w), packs = space_of(w).used;
    struct store_counters had = count(w);
    for (uint32_t i = 0; i < FORKS; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%u", i);
        struct session_fork f = {.parent = parent, .name = name};
        assert_ok(session_fork(w->f.st, &f, forks[i], &e), &e);
    }
    uint64_t each = (db_bytes(w) - before) / FORKS;
    assert_true(each < 4096);
    struct store_counters has = count(w);
    assert_int_equal(has.blocks + has.tails + has.tips, had.blocks + had.tails + had.tips);
    assert_int_equal(space_of(w).used, packs);
    uint64_t most = 0;
    for (uint32_t i = 0; i < FORKS; i++) {
        assert_ok(fixture_append(w->f.st, forks[i], 900000 + 100 * i, 30, SEGMENT_INPUT, &e),
                  &e);
        assert_ok(
            state_save(w->f.st, forks[i], &w->l, FORK_PREFIX, FORK_PREFIX + 30, true, &r, &e),
            &e);
        assert_int_equal(r.blocks_new + r.blocks_shared, 0);
        most = r.bytes_written > most ? r.bytes_written : most;
    }
    has = count(w);
    assert_int_equal(has.blocks, had.blocks);
    assert_int_equal(has.tails, had.tails + FORKS);
    assert_int_equal(has.tips, had.tips + FORKS);
    print_message("%u forks at a saved head of %u tokens: %llu bytes each, no extent; after a "
                  "step of 30 tokens %llu bytes each in one tail and one tip\n",
                  FORKS, FORK_PREFIX, (unsigned long long)each, (unsigned long long)most);
    struct gc_report g;
    assert_ok(gc_run(w->f.st, &g, &e), &e);
    restores(w, parent, FORK_PREFIX, true);
    restores(w, forks[0], FORK_PREFIX + 30, true);
    restores(w, forks[FORKS - 1], FORK_PREFIX + 30, true);
    free(forks);
}

/* In the middle of a block, and of a tail: all rows before it come back, nothing is written. */
static void a_fork_inside_a_block(void **state)
{
    struct world *w = *state;
    char parent[SESSION_ID_CAP], fork[SESSION_ID_CAP];
    struct error e;
    static const uint64_t at[] = {1, 2047, 2048, 2049, 5000, 4095, 9001};
    fixture_session(&w->f, "parent", parent);
    uint64_t n = 0;
    for (size_t i = 0; i < sizeof at / sizeof *at + 1; i++) {
        /* An event at each of them: what a fork leaves at. */
        uint64_t next = UINT64_MAX;
        for (size_t k = 0; k < sizeof at / sizeof *at; k++)
            next = at[k] > n && at[k] < next ? at[k] : next;
        next = next == UINT64_MAX ? 9500 : next;
        assert_ok(
            fixture_append(w->f.st, parent, 100 + (uint32_t)n, next - n, SEGMENT_INPUT, &e),
            &e);
        n = next;
        struct tape_event ev = {
            .position = TAPE_END, .type = "item", .item = "i", .json = "{}"};
        struct tape_commit c = {.session = parent, .events = &ev, .n_events = 1};
        assert_ok(tape_commit(w->f.st, &c, NULL, &e), &e);
    }
    assert_ok(state_save(w->f.st, parent, &w->l, 0, n, true, NULL, &e), &e);
    uint64_t packs = space_of(w).used;
    static const uint64_t sorted[] = {1, 2047, 2048, 2049, 4095, 5000, 9001};
    for (size_t i = 0; i < sizeof sorted / sizeof *sorted; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%zu", i);
        struct session_fork f = {.parent = parent, .at_seq = i + 1, .name = name};
        assert_ok(session_fork(w->f.st, &f, fork, &e), &e);
        assert_int_equal(fixture_length(w->f.st, fork), sorted[i]);
        restores(w, fork, sorted[i], false);
    }
    assert_int_equal(space_of(w).used, packs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_shared_prefix_is_stored_once, setup, teardown),
        cmocka_unit_test_setup_teardown(forks_at_a_saved_head, setup, teardown),
        cmocka_unit_test_setup_teardown(a_fork_inside_a_block, setup, teardown),
    };
    return !!run_with_both_shapes(tests);
}
