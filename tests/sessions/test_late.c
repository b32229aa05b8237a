/* Main planes that stay in the packs: what comes later is what was saved, or nothing comes, and
 * what is damaged is set aside. */
#include <dirent.h>
#include <sqlite3.h>
#include <unistd.h>

#include "base/fault.h"
#include "sessions/gc.h"
#include "sessions/late.h"
#include "tests/support/state_fixture.h"
#include "tests/support/store_harm.h"
#include "tests/support/test.h"

#define N 75 /* four blocks of 16, and 11 tokens of tails */

struct late_test {
    struct store_fixture f;
    struct state_layout l;
    char id[SESSION_ID_CAP];
    uint32_t ids[N];
    struct state_image want, got;
    struct late *late;
};

static int begin(void **state, enum layout_shape shape, bool sealed)
{
    static struct late_test t;
    struct error e;
    t = (struct late_test){0};
    store_fixture_init(&t.f, shape == LAYOUT_PAGES);
    t.f.options.encrypt = sealed ? STORE_ENCRYPT_ON : STORE_ENCRYPT_OFF;
    assert_ok(store_fixture_open(&t.f, &e), &e);
    state_layout_make(&t.l, shape);
    fixture_session(&t.f, "s", t.id);
    for (uint32_t i = 0; i < N; i++)
        t.ids[i] = 100 + i;
    assert_ok(fixture_append(t.f.st, t.id, 100, N, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(t.f.st, t.id, &t.l, 0, 40, true, NULL, &e), &e);
    assert_ok(state_save(t.f.st, t.id, &t.l, 40, N, true, NULL, &e), &e);
    state_image_make(&t.want, &t.l, t.ids, N);
    *state = &t;
    return 0;
}

static int setup(void **state)
{
    return begin(state, LAYOUT_ODD, false);
}

static int setup_pages(void **state)
{
    return begin(state, LAYOUT_PAGES, false);
}

static int setup_sealed(void **state)
{
    return begin(state, LAYOUT_ODD, true);
}

static int teardown(void **state)
{
    struct late_test *t = *state;
    fault_disarm();
    late_unref(t->late);
    state_image_fini(&t->want);
    state_image_fini(&t->got);
    store_fixture_fini(&t->f);
    return 0;
}

/* Restores with main planes left behind: how many tokens. */
static uint64_t restore(struct late_test *t)
{
    struct head_plan *plan;
    struct head_restored r;
    struct error e;
    assert_ok(head_find(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, &plan, &e), &e);
    state_image_fini(&t->got);
    state_image_blank(&t->got, &t->l, N);
    late_unref(t->late);
    t->late = NULL;
    struct head_restore h = {.session = t->id,
                             .layout = &t->l,
                             .plan = plan,
                             .dst = &t->got.regions,
                             .tip = t->got.tip,
                             .late = &t->late};
    assert_ok(head_restore(t->f.st, &h, &r, &e), &e);
    head_plan_free(plan);
    return r.n_tokens;
}

static enum err rows(struct late_test *t, uint32_t plane, uint64_t first, uint64_t n, void *dst,
                     struct error *e)
{
    struct state_fetch f = late_fetch(t->late);
    enum err rc = f.rows(f.ctx, plane, first, n, dst, e);
    f.close(f.ctx);
    return rc;
}

/* Rows [0, n) of every main plane, fetched `step` at a time, to where they belong. */
static void fetch_all(struct late_test *t, uint64_t step)
{
    struct error e;
    for (uint32_t p = 0; p < t->l.n_planes; p++) {
        const struct plane_spec *s = &t->l.planes[p];
        uint64_t n = state_rows(s, late_tokens(t->late));
        for (uint64_t at = 0; at < n && s->kind == PLANE_MAIN; at += step)
            assert_ok(rows(t, p, at, n - at < step ? n - at : step,
                           (uint8_t *)t->got.regions.plane[p] + at * s->row_bytes, &e),
                      &e);
    }
}

/* Index planes, tip and tails are there at once, main rows of blocks when they are asked for.
 */
static void what_comes_late_is_what_was_saved(void **state)
{
    struct late_test *t = *state;
    static const uint64_t steps[] = {1, 3, 7, 1000};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_int_equal(restore(t), N);
        assert_non_null(t->late);
        assert_int_equal(late_tokens(t->late), 64);
        assert_memory_equal(t->got.tip, t->want.tip, (size_t)t->l.tip_bytes);
        for (uint32_t p = 0; p < t->l.n_planes; p++) {
            const struct plane_spec *s = &t->l.planes[p];
            size_t skip = s->kind == PLANE_MAIN ? state_rows(s, 64) * s->row_bytes : 0;
            const uint8_t *got = t->got.regions.plane[p], *want = t->want.regions.plane[p];
            for (size_t k = 0; k < skip; k++)
                assert_int_equal(got[k], 0xee); /* not read */
            assert_memory_equal(got + skip, want + skip,
                                state_rows(s, N) * s->row_bytes - skip);
        }
        fetch_all(t, steps[i]);
        state_image_equal(&t->want, &t->got, N);
        assert_false(late_is_damaged(t->late));
    }
}

static void what_cannot_be_asked_for(void **state)
{
    struct late_test *t = *state;
    uint8_t row[4096];
    struct error e;
    assert_int_equal(restore(t), N);
    for (uint32_t p = 0; p < t->l.n_planes; p++) {
        uint64_t n = state_rows(&t->l.planes[p], 64);
        bool is_main = t->l.planes[p].kind == PLANE_MAIN;
        assert_int_equal(rows(t, p, 0, 1, row, &e), is_main ? OK : ERR_INVAL);
        assert_int_equal(rows(t, p, n, 1, row, &e), ERR_INVAL);
        assert_int_equal(rows(t, p, 1, n, row, &e), ERR_INVAL);
        assert_int_equal(rows(t, p, UINT64_MAX, 2, row, &e), ERR_INVAL);
        assert_int_equal(rows(t, p, 1, UINT64_MAX, row, &e), ERR_INVAL);
    }
    assert_int_equal(rows(t, t->l.n_planes, 0, 1, row, &e), ERR_INVAL);
    assert_false(late_is_damaged(t->late));
}

/* A flipped bit of a block is found when its rows are asked for, and not before; once it is set
 * aside, a restore goes no further. */
static void damage_is_found_late(void **state)
{
    struct late_test *t = *state;
    uint8_t all[64 * 4096];
    struct error e;
    uint32_t n;
    harm_main_rows(t->f.st, 32, 48);
    assert_int_equal(restore(t), N);
    assert_int_equal(late_tokens(t->late), 64);
    uint64_t per_block = state_rows(&t->l.planes[0], 16);
    assert_ok(rows(t, 0, 0, 2 * per_block, all, &e), &e);
    assert_memory_equal(all, t->want.regions.plane[0],
                        2 * per_block * t->l.planes[0].row_bytes);
    harm_main_rows(t->f.st, 48, 64); /* which nobody asks for */
    assert_false(late_is_damaged(t->late));
    assert_ok(late_set_aside(t->f.st, t->late, &n, &e), &e);
    assert_int_equal(n, 0);
    assert_int_equal(rows(t, 0, 0, 3 * per_block, all, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.msg, "tokens 32 to 48"));
    assert_int_equal(rows(t, 0, 2 * per_block, 1, all, NULL), ERR_CORRUPT); /* it stays so */
    assert_true(late_is_damaged(t->late));
    assert_ok(late_set_aside(t->f.st, t->late, &n, &e), &e);
    assert_int_equal(n, 2); /* all that are bad */
    assert_ok(late_set_aside(t->f.st, t->late, &n, &e), &e);
    assert_int_equal(n, 0); /* not twice */
    struct head_restored r;
    assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_ROWS, NULL, &r, &e), &e);
    assert_int_equal(r.n_tokens, 40); /* the head before has a tail there */
    /* Computed again and saved, it is as good as before. */
    assert_ok(state_save(t->f.st, t->id, &t->l, 40, N, true, NULL, &e), &e);
    assert_int_equal(restore(t), N);
    fetch_all(t, 5);
    state_image_equal(&t->want, &t->got, N);
}

/* A device that fails once is asked again; one that fails twice does not have the rows. */
static void a_device_that_fails(void **state)
{
    struct late_test *t = *state;
    uint8_t row[4096];
    struct error e;
    assert_int_equal(restore(t), N);
    fault_arm(FAULT_FAIL, "fs.read", 1);
    assert_ok(rows(t, 0, 0, 1, row, &e), &e);
    assert_true(fault_disarm());
    assert_false(late_is_damaged(t->late));
    for (int i = 0; i < 2; i++) {
        fault_arm(FAULT_FAIL_FROM, "fs.read", 1);
        assert_int_equal(rows(t, 0, state_rows(&t->l.planes[0], 16), 1, row, &e), ERR_IO);
        fault_disarm();
    }
    assert_true(late_is_damaged(t->late));
}

static void each_pack(struct late_test *t, bool cut)
{
    char path[512];
    DIR *dir = opendir(t->f.packs);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (strstr(e->d_name, ".pack")) {
            snprintf(path, sizeof path, "%s/%s", t->f.packs, e->d_name);
            assert_int_equal(cut ? truncate(path, 4096) : unlink(path), 0);
        }
    closedir(dir);
}

/* Files that are removed and a store that is closed take nothing away; a file that is cut does.
 */
static void files_that_go(void **state)
{
    struct late_test *t = *state;
    assert_int_equal(restore(t), N);
    each_pack(t, false);
    store_close(t->f.st);
    t->f.st = NULL;
    fetch_all(t, 2);
    state_image_equal(&t->want, &t->got, N);
}

static void files_that_are_cut(void **state)
{
    struct late_test *t = *state;
    uint8_t row[4096];
    struct error e;
    assert_int_equal(restore(t), N);
    each_pack(t, true);
    assert_int_equal(rows(t, 0, 0, 1, row, &e), ERR_CORRUPT);
    assert_true(late_is_damaged(t->late));
}

/* What moved to another pack is not set aside there. */
static void a_moved_extent_is_not_set_aside(void **state)
{
    struct late_test *t = *state;
    uint8_t row[4096];
    struct error e;
    uint32_t n;
    assert_int_equal(restore(t), N);
    store_close(t->f.st);
    each_pack(t, true); /* and what the rows of the catalog mean from now on is elsewhere */
    sqlite3 *db;
    assert_int_equal(sqlite3_open(t->f.db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "DELETE FROM blocks", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_ok(store_fixture_open(&t->f, &e), &e);
    assert_ok(state_save(t->f.st, t->id, &t->l, 0, N, true, NULL, &e), &e);
    assert_int_equal(rows(t, 0, 0, 1, row, &e), ERR_CORRUPT);
    assert_ok(late_set_aside(t->f.st, t->late, &n, &e), &e);
    assert_int_equal(n, 0);
    assert_int_equal(restore(t), N);
    fetch_all(t, 9);
    state_image_equal(&t->want, &t->got, N);
}

/* Nothing holds extents for who may want them late: what was evicted is missed, never another
 * state's bytes, and is computed again. */
static void what_is_evicted_is_missed(void **state)
{
    struct late_test *t = *state;
    struct gc *g;
    struct error e;
    uint32_t n;
    size_t n_missed = 0;
    uint8_t row[4096];
    assert_int_equal(restore(t), N);
    t->f.options.quota_bytes = 1;
    store_fixture_reopen(&t->f);
    assert_ok(gc_begin(t->f.st, GC_EVICT, &g, &e), &e);
    for (bool done = false; !done;)
        assert_ok(gc_step(g, &done, &e), &e);
    assert_true(gc_so_far(g)->evicted > 0);
    gc_end(g);
    t->f.options.quota_bytes = 0;
    store_fixture_reopen(&t->f);
    /* Others come into their place. */
    char other[SESSION_ID_CAP];
    fixture_session(&t->f, "other", other);
    assert_ok(fixture_append(t->f.st, other, 7000, N, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(t->f.st, other, &t->l, 0, N, true, NULL, &e), &e);
    for (uint32_t p = 0; p < t->l.n_planes; p++) {
        const struct plane_spec *s = &t->l.planes[p];
        for (uint64_t at = 0; at < state_rows(s, 64) && s->kind == PLANE_MAIN; at++) {
            enum err rc = rows(t, p, at, 1, row, &e);
            n_missed += rc == ERR_CORRUPT;
            if (!rc)
                assert_memory_equal(
                    row, (uint8_t *)t->want.regions.plane[p] + at * s->row_bytes, s->row_bytes);
            else
                assert_int_equal(rc, ERR_CORRUPT);
        }
    }
    fprintf(stderr, "%zu rows missed\n", n_missed);
    assert_true(n_missed > 0);
    assert_true(late_is_damaged(t->late));
    assert_ok(late_set_aside(t->f.st, t->late, &n, &e), &e);
    assert_int_equal(n, 0); /* nothing that is there is bad */
    assert_ok(state_save(t->f.st, t->id, &t->l, 0, N, true, NULL, &e), &e);
    assert_int_equal(restore(t), N);
    fetch_all(t, 3);
    state_image_equal(&t->want, &t->got, N);
}

/* Rows that are at hand are not left to a copy of them that is bad, whoever it belongs to. */
static void a_save_shares_nothing_bad(void **state)
{
    struct late_test *t = *state;
    struct head_receipt r;
    struct error e;
    char twin[SESSION_ID_CAP];
    fixture_session(&t->f, "twin", twin);
    assert_ok(fixture_append(t->f.st, twin, 100, N, SEGMENT_INPUT, &e), &e);
    harm_main_rows(t->f.st, 16, 48);
    assert_ok(state_save(t->f.st, twin, &t->l, 0, N, true, &r, &e), &e);
    assert_int_equal(r.blocks_shared, 2);
    assert_int_equal(r.blocks_new, 2);
    assert_int_equal(restore(t), N);
    fetch_all(t, 7);
    state_image_equal(&t->want, &t->got, N);
    assert_ok(state_save(t->f.st, twin, &t->l, 0, N, true, &r, &e), &e);
    assert_int_equal(r.blocks_shared, 4);
}

#define T(fn, s) cmocka_unit_test_setup_teardown(fn, s, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(what_comes_late_is_what_was_saved, setup),
        T(what_comes_late_is_what_was_saved, setup_pages),
        T(what_comes_late_is_what_was_saved, setup_sealed),
        T(what_cannot_be_asked_for, setup),
        T(damage_is_found_late, setup),
        T(damage_is_found_late, setup_pages),
        T(damage_is_found_late, setup_sealed),
        T(a_device_that_fails, setup),
        T(files_that_go, setup),
        T(files_that_are_cut, setup),
        T(a_moved_extent_is_not_set_aside, setup),
        T(a_save_shares_nothing_bad, setup),
        T(a_save_shares_nothing_bad, setup_sealed),
        T(what_is_evicted_is_missed, setup),
        T(what_is_evicted_is_missed, setup_pages),
        T(what_is_evicted_is_missed, setup_sealed),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
