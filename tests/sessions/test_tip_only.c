/* A model with a tip and no planes (a fixed-size recurrence): what is particular to it when
 * room is short. All other tests of state run with this layout, too (state_fixture.h). */
#include "sessions/gc.h"
#include "sessions/space.h"
#include "tests/support/state_fixture.h"
#include "tests/support/test.h"

#define SESSIONS 10

struct tip_test {
    struct store_fixture f;
    struct state_layout l;
    char ids[SESSIONS][SESSION_ID_CAP];
};

static int setup(void **state)
{
    static struct tip_test t;
    struct error e;
    store_fixture_init(&t.f, false);
    assert_ok(store_fixture_open(&t.f, &e), &e);
    state_layout_make(&t.l, LAYOUT_TIP);
    for (int i = 0; i < SESSIONS; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        fixture_session(&t.f, name, t.ids[i]);
    }
    *state = &t;
    return 0;
}

static int teardown(void **state)
{
    store_fixture_fini(&((struct tip_test *)*state)->f);
    return 0;
}

static uint64_t restored(struct tip_test *t, int i)
{
    struct error e;
    struct head_restored r;
    assert_ok(state_restore(t->f.st, t->ids[i], &t->l, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
    assert_true(r.n_tokens == 0 || r.has_tip);
    return r.n_tokens;
}

static enum err turn(struct tip_test *t, int i, struct head_receipt *r, struct error *e)
{
    uint64_t from = restored(t, i);
    assert_ok(fixture_append(t->f.st, t->ids[i], (uint32_t)(100 * i), 30, SEGMENT_INPUT, e), e);
    return state_save(t->f.st, t->ids[i], &t->l, from, fixture_length(t->f.st, t->ids[i]), true,
                      r, e);
}

static uint64_t used(struct tip_test *t)
{
    struct error e;
    struct space s;
    assert_ok(space_read(t->f.st, &s, &e), &e);
    return s.used;
}

static void collect(struct tip_test *t)
{
    struct error e;
    struct gc_report r;
    assert_ok(gc_run(t->f.st, &r, &e), &e);
}

/* However long a session is, a turn writes a tip and the ids that are new. */
static void a_turn_writes_one_tip(void **state)
{
    struct tip_test *t = *state;
    struct error e;
    struct head_receipt first, r;
    assert_ok(turn(t, 0, &first, &e), &e);
    for (int k = 0; k < 20; k++) {
        assert_ok(turn(t, 0, &r, &e), &e);
        assert_true(r.bytes_written <= first.bytes_written + 4 * 4096);
    }
    assert_int_equal(restored(t, 0), 21 * 30);
}

/* Ten in turn in room for a few: what is there is whole, and nothing takes more. */
static void ten_sessions_in_room_for_three(void **state)
{
    struct tip_test *t = *state;
    struct error e;
    int kept = 0, lost = 0;
    t->f.options.quota_bytes = 700000;
    store_fixture_reopen(&t->f);
    for (int k = 0; k < 60; k++) {
        int i = k % 2 ? 0 : k / 2 % SESSIONS;
        uint64_t n = fixture_length(t->f.st, t->ids[i]), got = restored(t, i);
        assert_true(got == 0 || got == n);
        kept += n && got == n;
        lost += n && got == 0;
        assert_ok(turn(t, i, NULL, &e), &e);
        assert_int_equal(restored(t, i), n + 30);
        assert_true(used(t) <= t->f.options.quota_bytes);
    }
    assert_true(kept > 10 && lost > 5);
    store_fixture_reopen(&t->f);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.extents_damaged + c.rows_damaged + c.rows_dropped, 0);
}

static void a_quota_smaller_than_a_tip(void **state)
{
    struct tip_test *t = *state;
    struct error e;
    t->f.options.quota_bytes = 20000;
    store_fixture_reopen(&t->f);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(turn(t, 1, NULL, &e), ERR_LIMIT);
        assert_int_equal(fixture_length(t->f.st, t->ids[1]), 30 * (k + 1));
        assert_int_equal(restored(t, 1), 0);
    }
}

/* Most of each pack goes: what is left moves, and the files go. */
static void packs_are_rewritten(void **state)
{
    struct tip_test *t = *state;
    struct error e;
    struct store_counters before, after;
    t->f.options.pack_bytes = 150000;
    store_fixture_reopen(&t->f);
    for (int i = 0; i < SESSIONS; i++)
        assert_ok(turn(t, i, NULL, &e), &e);
    store_count(t->f.st, &before);
    for (int i = 1; i < SESSIONS; i++)
        if (i % 4)
            assert_ok(session_delete(t->f.st, t->ids[i], &e), &e);
    collect(t);
    store_count(t->f.st, &after);
    assert_true(after.packs < before.packs);
    store_fixture_reopen(&t->f);
    for (int i = 0; i < SESSIONS; i += 4)
        assert_int_equal(restored(t, i), 30);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_turn_writes_one_tip),
        T(ten_sessions_in_room_for_three),
        T(a_quota_smaller_than_a_tip),
        T(packs_are_rewritten),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
