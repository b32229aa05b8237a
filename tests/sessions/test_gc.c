/* What no head leads to is given back, what one leads to stays; and a purge leaves no trace. */
#include <dirent.h>

#include "base/fault.h"
#include "base/fs.h"
#include "sessions/gc.h"
#include "sessions/space.h"
#include "tests/support/state_fixture.h"
#include "tests/support/store_fixture.h"
#include "tests/support/test.h"

#define RUN 16

/* A session with n tokens and their state, saved in steps, and an event with `text`. */
static void fill(struct state_world *w, const char *name, uint32_t first, uint64_t n,
                 const char *text, char id[SESSION_ID_CAP])
{
    struct error e;
    fixture_session(&w->f, name, id);
    for (uint64_t at = 0; at < n; at += 25) {
        uint64_t step = n - at < 25 ? n - at : 25;
        assert_ok(fixture_append(w->f.st, id, first + (uint32_t)at, step, SEGMENT_INPUT, &e),
                  &e);
        assert_ok(state_save(w->f.st, id, &w->l, at, at + step, true, NULL, &e), &e);
    }
    struct tape_event ev = {.position = TAPE_END, .type = "item", .item = "i", .json = text};
    struct tape_commit c = {.session = id, .events = &ev, .n_events = 1};
    assert_ok(tape_commit(w->f.st, &c, NULL, &e), &e);
}

static void restores(struct state_world *w, const char *id, uint64_t n)
{
    struct head_restored r;
    struct error e;
    assert_ok(state_restore(w->f.st, id, &w->l, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
    assert_int_equal(r.n_tokens, n);
    assert_true(r.has_tip);
}

static void count(struct state_world *w, uint64_t *blocks, uint64_t *rest)
{
    struct store_counters c;
    store_count(w->f.st, &c);
    *blocks = c.blocks;
    *rest = c.tails + c.tips;
}

static void live_state_stays(void **state)
{
    struct state_world *w = *state;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP], fork[SESSION_ID_CAP];
    struct gc_report r;
    struct error e;
    fill(w, "a", 100, 200, "{}", a);
    fill(w, "b", 9000, 130, "{}", b);
    struct session_fork f = {.parent = a, .name = "fork"};
    assert_ok(session_fork(w->f.st, &f, fork, &e), &e);
    assert_ok(gc_run(w->f.st, &r, &e), &e);
    assert_int_equal(r.blocks, 0);
    /* The fork holds all that its parent had, but for the older head. */
    assert_ok(session_delete(w->f.st, a, &e), &e);
    assert_ok(gc_run(w->f.st, &r, &e), &e);
    restores(w, fork, 200);
    restores(w, b, 130);
    uint64_t blocks, rest, blocks_after, rest_after;
    count(w, &blocks, &rest);
    assert_ok(session_delete(w->f.st, b, &e), &e);
    assert_ok(gc_run(w->f.st, &r, &e), &e);
    assert_int_equal(r.blocks, 130 / 16);
    assert_true(r.extents > 0);
    assert_true(r.bytes >= (r.blocks + r.tails + r.tips) * 2 * 4096);
    count(w, &blocks_after, &rest_after);
    assert_int_equal(blocks_after, blocks - r.blocks);
    assert_true(rest_after < rest);
    store_fixture_reopen(&w->f);
    restores(w, fork, 200);
    struct store_counters c;
    store_count(w->f.st, &c);
    assert_int_equal(c.extents_damaged + c.rows_dropped + c.extents_adopted, 0);
    assert_ok(gc_run(w->f.st, &r, &e), &e);
    assert_int_equal(r.extents, 0);
}

/* ---- purge ------------------------------------------------------------------------------- */

static void look_into(const char *path, const uint8_t *what, size_t n, bool wanted, int *seen)
{
    AUTO(buf) struct buf b = BUF_INIT(1u << 30);
    struct error e;
    assert_ok(fs_read_file(path, &b, &e), &e);
    for (size_t at = 0; at + RUN <= n; at += RUN) {
        bool there = b.len && memmem(b.data, b.len, what + at, RUN);
        *seen += there;
        if (there && !wanted)
            fail_msg("%s still holds bytes %zu of what was purged", path, at);
    }
}

/* How many aligned runs of 16 bytes are in the files of the store. */
static int scan(struct state_world *w, const void *what, size_t n, bool wanted)
{
    const char *const folders[] = {"data", "packs", "state"};
    int seen = 0;
    for (size_t i = 0; i < 3; i++) {
        char dir[160], path[420];
        snprintf(dir, sizeof dir, "%s/%s", w->f.dir, folders[i]);
        DIR *d = opendir(dir);
        assert_non_null(d);
        for (struct dirent *x; (x = readdir(d));) {
            snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
            if (x->d_type == DT_REG)
                look_into(path, what, n, wanted, &seen);
        }
        closedir(d);
    }
    return seen;
}

static void a_purge_leaves_no_trace(void **state)
{
    struct state_world *w = *state;
    static const char secret[] = "{\"text\":\"the quick brown fox jumps over the lazy dog\"}";
    static const char other[] =
        "{\"text\":\"pack my box with five dozen liquor jugs, please\"}";
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP];
    struct gc_report r;
    struct error e;
    uint32_t ids[700], kept[300];
    for (uint32_t i = 0; i < 700; i++)
        ids[i] = 70000 + i;
    for (uint32_t i = 0; i < 300; i++)
        kept[i] = 5000 + i;
    fill(w, "kept", 5000, 300, other, b);
    fill(w, "gone", 70000, 700, secret, a);
    assert_true(scan(w, secret, sizeof secret - 1, true) > 0);
    assert_true(scan(w, ids, sizeof ids, true) > 0);
    assert_ok(session_delete(w->f.st, a, &e), &e);
    assert_ok(gc_purge(w->f.st, &r, &e), &e);
    assert_int_equal(r.blocks, 700 / 16);
    scan(w, secret, sizeof secret - 1, false);
    scan(w, ids, sizeof ids, false);
    /* The scan can see, and the other session is whole. */
    assert_true(scan(w, other, sizeof other - 1, true) > 0);
    assert_true(scan(w, kept, sizeof kept, true) > 0);
    restores(w, b, 300);
    store_fixture_reopen(&w->f);
    scan(w, ids, sizeof ids, false);
    restores(w, b, 300);
}

/* A plan for blocks of somebody else, who is purged before it is used. */
static void stale_plans_are_made_again(void **state)
{
    struct state_world *w = *state;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP];
    struct head_plan *plan;
    struct gc_report r;
    struct error e;
    fill(w, "first", 100, 64, "{}", a);
    fixture_session(&w->f, "second", b);
    assert_ok(fixture_append(w->f.st, b, 100, 64, SEGMENT_INPUT, &e), &e);
    assert_ok(head_find(w->f.st, b, &w->l, TAPE_END, HEAD_ROWS, &plan, &e), &e);
    assert_int_equal(plan->n_tokens, 64);
    assert_int_equal(plan->source, HEAD_SHARED);
    assert_ok(session_delete(w->f.st, a, &e), &e);
    assert_ok(gc_purge(w->f.st, &r, &e), &e);
    struct state_image room;
    struct head_restored got;
    state_image_blank(&room, &w->l, 64);
    struct head_restore h = {.session = b, .layout = &w->l, .plan = plan, .dst = &room.regions};
    assert_ok(head_restore(w->f.st, &h, &got, &e), &e);
    assert_int_equal(got.n_tokens, 0);
    assert_int_equal(got.extents_damaged, 0);
    state_image_fini(&room);
    head_plan_free(plan);
}

/* Whatever fails, the other session is whole, and the next run finishes. */
static void every_failure(void **state)
{
    struct state_world *w = *state;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP];
    struct gc_report r;
    struct error e;
    /* Every point in turn takes a minute; in the short run, one of seven. */
    uint64_t step = getenv("AGENTD_SLOW") ? 1 : 7;
    fill(w, "kept", 5000, 50, "{}", b);
    for (uint64_t n = 1;; n += step) {
        fill(w, "gone", 70000, 20, "{\"text\":\"abcdefghijklmnopqrst\"}", a);
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = session_delete(w->f.st, a, &e);
        bool gone = !rc;
        if (gone)
            rc = gc_purge(w->f.st, &r, &e);
        bool clean = !fault_disarm();
        if (clean)
            assert_ok(rc, &e);
        restores(w, b, 50);
        if (!gone)
            assert_ok(session_delete(w->f.st, a, &e), &e);
        assert_ok(gc_purge(w->f.st, &r, &e), &e);
        scan(w, "abcdefghijklmnop", 16, false);
        if (clean)
            break;
    }
}

/* ---- steps ------------------------------------------------------------------------------- */

/* Planes of V4.1-Flash: 890 bytes a token. */
static void flash_layout(struct state_layout *l)
{
    state_layout_make(l, LAYOUT_TIP);
    l->tip_bytes = 2920000;
    l->n_planes = 8;
    for (uint32_t i = 0; i < 8; i++) {
        struct plane_spec *p = &l->planes[i];
        bool main = i < 4;
        snprintf(p->name, sizeof p->name, "L%u.%s", i % 4, main ? "kv" : "index");
        *p = (struct plane_spec){.kind = main ? PLANE_MAIN : PLANE_INDEX,
                                 .row_bytes = main ? 288 : 68,
                                 .ratio = i % 4 == 3 ? 1 : 2};
        snprintf(p->name, sizeof p->name, "L%u.%s", i % 4, main ? "kv" : "index");
    }
}

static int by_ns(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* A commit that comes while a run is under way waits for the step that is, and no more. */
static void time_steps(struct state_world *w, enum gc_mode mode, const char *what)
{
    enum { CAP = 1 << 16 };
    uint64_t *ns = calloc(CAP, sizeof *ns), sum = 0;
    size_t n = 0;
    struct gc *g;
    struct error e;
    assert_ok(gc_begin(w->f.st, mode, &g, &e), &e);
    for (bool done = false; !done;) {
        uint64_t t0 = clock_mono_ns(clock_real());
        assert_ok(gc_step(g, &done, &e), &e);
        ns[n < CAP ? n : CAP - 1] = clock_mono_ns(clock_real()) - t0;
        sum += ns[n++];
        assert_true(n < CAP);
    }
    qsort(ns, n, sizeof *ns, by_ns);
    const struct gc_report *r = gc_so_far(g);
    print_message(
        "%s: %zu steps, %.1f ms in all, median %.2f, 99 %% %.1f, longest %.1f ms; "
        "%llu MB given back, %llu MB moved, %llu packs removed\n",
        what, n, (double)sum / 1e6, (double)ns[n / 2] / 1e6, (double)ns[n * 99 / 100] / 1e6,
        (double)ns[n - 1] / 1e6, (unsigned long long)r->bytes / 1000000,
        (unsigned long long)r->bytes_moved / 1000000, (unsigned long long)r->packs_removed);
    gc_end(g);
    free(ns);
}

static void no_step_is_long(void **state)
{
    struct state_world *w = *state;
    bool slow = getenv("AGENTD_SLOW") != NULL;
    uint32_t n = slow ? 100 : 6, tokens = 4096 + 700;
    char ids[100][SESSION_ID_CAP], name[16];
    struct error e;
    store_fixture_fini(&w->f);
    store_fixture_init(&w->f, slow); /* a real disk, for the figure */
    w->f.options.block_tokens = 2048;
    w->f.options.pack_bytes = 32u << 20;
    assert_ok(store_fixture_open(&w->f, &e), &e);
    flash_layout(&w->l);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "s%u", i);
        fixture_session(&w->f, name, ids[i]);
        assert_ok(fixture_append(w->f.st, ids[i], 100000 * (i + 1), tokens, SEGMENT_INPUT, &e),
                  &e);
        assert_ok(state_save(w->f.st, ids[i], &w->l, 0, tokens, true, NULL, &e), &e);
    }
    for (uint32_t i = 0; i < n; i++)
        if (i % 5)
            assert_ok(session_delete(w->f.st, ids[i], &e), &e);
    time_steps(w, GC_COLLECT, "collect");
    struct space s;
    assert_ok(space_read(w->f.st, &s, &e), &e);
    uint64_t quota = s.used * 100 / 92;
    w->f.options.quota_bytes = quota;
    store_fixture_reopen(&w->f);
    time_steps(w, GC_EVICT, "evict");
    assert_ok(space_read(w->f.st, &s, &e), &e);
    assert_true(s.used <= quota / 100 * SPACE_LOW);
    assert_ok(session_delete(w->f.st, ids[0], &e), &e);
    time_steps(w, GC_PURGE, "purge, the last step writes the database anew");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(live_state_stays, state_world_setup,
                                        state_world_teardown),
        cmocka_unit_test_setup_teardown(a_purge_leaves_no_trace, state_world_setup,
                                        state_world_teardown),
        cmocka_unit_test_setup_teardown(stale_plans_are_made_again, state_world_setup,
                                        state_world_teardown),
        cmocka_unit_test_setup_teardown(every_failure, state_world_setup, state_world_teardown),
        cmocka_unit_test_setup_teardown(no_step_is_long, state_world_setup,
                                        state_world_teardown),
    };
    return !!run_with_both_shapes(tests);
}
