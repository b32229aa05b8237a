/* Eviction: what goes, in which order, and what a resume finds afterwards, compared with a
 * model of its own that knows nothing of catalogs, heaps and packs. */
#include "base/fault.h"
#include "sessions/gc.h"
#include "sessions/hold.h"
#include "sessions/space.h"
#include "tests/support/state_fixture.h"
#include "tests/support/store_fixture.h"
#include "tests/support/test.h"

#define BLOCK 16u
#define DAY_MS (24ull * 3600 * 1000)

static void with_quota(struct state_world *w, uint64_t bytes)
{
    w->f.options.quota_bytes = bytes;
    store_fixture_reopen(&w->f);
}

static struct space space_of(struct state_world *w)
{
    struct space s;
    struct error e;
    assert_ok(space_read(w->f.st, &s, &e), &e);
    return s;
}

/* What the daemon does behind a state commit. */
static void make_room(struct state_world *w, struct gc_report *r)
{
    struct gc *g;
    struct error e;
    assert_ok(gc_begin(w->f.st, GC_EVICT, &g, &e), &e);
    for (bool done = false; !done;)
        assert_ok(gc_step(g, &done, &e), &e);
    if (r)
        *r = *gc_so_far(g);
    gc_end(g);
}

/* Restores as the daemon chooses: by the tip, or by rows where they reach further than a replay
 * costs. Tokens that came back. */
static uint64_t resume(struct state_world *w, const char *id)
{
    struct head_restored r;
    struct head_plan plan;
    struct error e;
    assert_ok(state_restore(w->f.st, id, &w->l, TAPE_END, HEAD_ROWS, &plan, &r, &e), &e);
    assert_int_equal(r.n_tokens, plan.n_tokens);
    assert_int_equal(r.extents_damaged, 0);
    return r.n_tokens;
}

static uint64_t state_position(struct state_world *w, const char *id)
{
    struct error e;
    AUTO(session_info) struct session_info s = {0};
    assert_ok(session_find(w->f.st, id, &s, &e), &e);
    return s.state_position;
}

/* ---- the model --------------------------------------------------------------------------- */

/* One extent: it stands on the one before it. Sessions of the model share nothing. */
struct thing {
    double tokens, bytes;
    uint64_t begin, end; /* tokens of the session */
    uint64_t born;
    bool is_tip, is_old; /* only the head before this one needs it */
};

struct model_session {
    struct thing things[64]; /* chain, then tips */
    size_t n;
    double uses;
    uint64_t used_ms, saved;
};

struct model {
    struct model_session s[16];
    size_t n;
    uint64_t quota, overhead, tick;
};

static double worth(const struct model_session *s, const struct thing *t, uint64_t now)
{
    double faded = s->uses;
    for (uint64_t at = s->used_ms; at < now; at += DAY_MS)
        faded /= 2; /* the test moves time in whole days */
    return t->is_old ? 0 : faded * t->tokens / t->bytes;
}

/* A tail carries what is in the same block, a block all that is behind it. */
static bool stands_on(const struct thing *x, const struct thing *t)
{
    uint64_t at = x->is_tip ? x->end : x->begin;
    if (x == t || t->is_tip || at < t->end)
        return false;
    return t->end % BLOCK == 0 || at / BLOCK == t->begin / BLOCK;
}

static bool is_leaf(const struct model_session *s, const struct thing *t)
{
    for (size_t i = 0; i < s->n; i++)
        if (stands_on(&s->things[i], t))
            return false;
    return true;
}

static double model_used(const struct model *m)
{
    double n = (double)m->overhead;
    for (size_t i = 0; i < m->n; i++)
        for (size_t k = 0; k < m->s[i].n; k++)
            n += m->s[i].things[k].bytes;
    return n;
}

static void model_remove(struct model_session *s, size_t k)
{
    memmove(&s->things[k], &s->things[k + 1], (--s->n - k) * sizeof s->things[0]);
}

/* The least worth leaf of all, until what is used is low enough. */
static void model_evict(struct model *m, double low, size_t keep, uint64_t now)
{
    while (model_used(m) > low) {
        struct model_session *from = NULL;
        size_t which = 0;
        for (size_t i = 0; i < m->n; i++)
            for (size_t k = 0; k < m->s[i].n; k++) {
                struct model_session *s = &m->s[i];
                struct thing *t = &s->things[k];
                if ((i == keep && !t->is_old) || !is_leaf(s, t))
                    continue;
                double mine = worth(s, t, now);
                double best = from ? worth(from, &from->things[which], now) : 0;
                bool older =
                    from && mine <= best && mine >= best && t->born < from->things[which].born;
                if (!from || mine < best || older) {
                    from = s;
                    which = k;
                }
            }
        if (!from)
            return;
        model_remove(from, which);
    }
}

/* Covered by the chain that is left. */
static uint64_t model_restored(const struct model_session *s)
{
    uint64_t end = 0;
    for (size_t i = 0; i < s->n; i++)
        if (!s->things[i].is_tip && s->things[i].end > end)
            end = s->things[i].end;
    return end;
}

static double pages(double n)
{
    return (double)(((uint64_t)n + 4095) / 4096 * 4096);
}

/* A page of header, the ids and five planes, each from a page on. */
static double rows_bytes(uint64_t first, uint64_t last)
{
    double n = (double)(last - first);
    double half = (double)(last / 2 - first / 2), quarter = (double)(last / 4 - first / 4);
    return 4096 + pages(n * 4) + pages(half * 72) + pages(half * 17) + pages(n * 1300) +
           pages(n * 3) + pages(quarter * 9);
}

static double tip_bytes(void)
{
    return 4096 + pages(5003);
}

/* What the session writes to get from `at` to `to`: a block for each that it completes, the
 * rows of a tail before included; then a tail and a tip. */
static size_t model_new(uint64_t at, uint64_t to, uint64_t tick, struct thing *out)
{
    uint64_t whole = to / BLOCK * BLOCK;
    size_t n = 0;
    at = at / BLOCK < whole / BLOCK ? at / BLOCK * BLOCK : at;
    for (; at < whole; at += BLOCK)
        out[n++] = (struct thing){.tokens = BLOCK,
                                  .bytes = rows_bytes(at, at + BLOCK),
                                  .begin = at,
                                  .end = at + BLOCK};
    if (to > at)
        out[n++] = (struct thing){
            .tokens = (double)(to - at), .bytes = rows_bytes(at, to), .begin = at, .end = to};
    out[n++] = (struct thing){.tokens = to < 10 ? (double)to : 10,
                              .bytes = tip_bytes(),
                              .begin = to,
                              .end = to,
                              .is_tip = true};
    for (size_t i = 0; i < n; i++)
        out[i].born = tick;
    return n;
}

/* The new head does not need some of what the one before did, and nobody what that one alone
 * needed. */
static void model_age(struct model_session *s, uint64_t to)
{
    uint64_t whole = to / BLOCK * BLOCK;
    for (size_t k = s->n; k-- > 0;) {
        struct thing *t = &s->things[k];
        if (t->is_old)
            model_remove(s, k);
        else
            t->is_old = t->is_tip || (t->end % BLOCK && whole > t->end / BLOCK * BLOCK);
    }
}

/* The session goes on from what was restored to `to`; what it needs for that is made room for
 * first, and what it goes on from stays. */
static void model_save(struct model *m, size_t i, uint64_t to, uint64_t now)
{
    struct model_session *s = &m->s[i];
    struct thing more[32];
    double bytes = 0;
    size_t n = model_new(model_restored(s), to, ++m->tick, more);
    for (size_t k = 0; k < n; k++)
        bytes += more[k].bytes;
    model_evict(m, (double)m->quota - bytes, i, now);
    model_age(s, to);
    memcpy(&s->things[s->n], more, n * sizeof more[0]);
    s->n += n;
    for (uint64_t t = s->used_ms; t && t < now; t += DAY_MS)
        s->uses /= 2;
    s->uses++;
    s->used_ms = now;
    s->saved = to;
}

/* ---- against it -------------------------------------------------------------------------- */

#define SESSIONS 10
#define FIRST 100u /* tokens of a first turn */

/* One turn of a session: what is there comes back, the rest is computed, and all is saved. */
static void turn(struct state_world *w, struct model *m, size_t i, const char *id,
                 uint64_t *relost, uint64_t *wanted)
{
    struct error e;
    uint64_t length = fixture_length(w->f.st, id), saved = state_position(w, id);
    uint64_t got = length ? resume(w, id) : 0;
    *relost = saved - got;
    *wanted = m->s[i].saved - model_restored(&m->s[i]);
    assert_int_equal(got, model_restored(&m->s[i]));
    uint64_t n = length ? 5 + 9 * (m->tick % 3) : FIRST; /* within a block, and across */
    assert_ok(
        fixture_append(w->f.st, id, (uint32_t)(1000 * (i + 1) + length), n, SEGMENT_INPUT, &e),
        &e);
    assert_ok(state_save(w->f.st, id, &w->l, got, length + n, true, NULL, &e), &e);
    model_save(m, i, length + n, (uint64_t)atomic_load(&w->f.clock.wall_ms));
}

/* Ten in turn under a quota for three: no resume fails, and what is lost is what the model
 * loses. */
static void ds4_174_ten_sessions_in_room_for_three(void **state)
{
    struct state_world *w = *state;
    char ids[SESSIONS][SESSION_ID_CAP];
    struct model *m = calloc(1, sizeof *m);
    uint64_t lost = 0, whole = 0, turns = 0;
    m->n = SESSIONS;
    /* A quota for three as they are in the middle of the run. */
    m->quota = (uint64_t)(3 * (rows_bytes(0, BLOCK) * 12 + 2 * tip_bytes()));
    m->overhead = 4096; /* the pack's first page */
    with_quota(w, m->quota);
    for (size_t i = 0; i < SESSIONS; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%zu", i);
        fixture_session(&w->f, name, ids[i]);
    }
    for (size_t round = 0; round < 8; round++)
        for (size_t k = 0; k < SESSIONS; k++) {
            /* One session is used every time: it must not be the one that loses. */
            size_t i = k % 3 == 2 ? 0 : k;
            uint64_t relost, wanted;
            fake_clock_advance(&w->f.clock, DAY_MS);
            uint64_t now = (uint64_t)atomic_load(&w->f.clock.wall_ms);
            turn(w, m, i, ids[i], &relost, &wanted);
            assert_int_equal(relost, wanted);
            assert_true(space_of(w).used <= m->quota);
            make_room(w, NULL);
            if (model_used(m) > (double)(m->quota / 100 * SPACE_HIGH))
                model_evict(m, (double)(m->quota / 100 * SPACE_LOW), SIZE_MAX, now);
            assert_int_equal(space_of(w).live + m->overhead, (uint64_t)model_used(m));
            lost += relost;
            whole += relost == 0;
            turns++;
        }
    print_message("%llu turns of %d sessions, quota of %llu kB: %llu without a loss, %llu "
                  "tokens relost, each as the model has it\n",
                  (unsigned long long)turns, SESSIONS, (unsigned long long)m->quota / 1000,
                  (unsigned long long)whole, (unsigned long long)lost);
    assert_true(lost > 0 && whole > 10);
    store_fixture_reopen(&w->f);
    for (size_t i = 0; i < SESSIONS; i++)
        if (m->s[i].saved)
            assert_int_equal(resume(w, ids[i]), model_restored(&m->s[i]));
    free(m);
}

/* ---- single cases ------------------------------------------------------------------------ */

/* A session with n tokens and their state. */
static void fill(struct state_world *w, const char *name, uint32_t first, uint64_t n,
                 char id[SESSION_ID_CAP])
{
    struct error e;
    fixture_session(&w->f, name, id);
    assert_ok(fixture_append(w->f.st, id, first, n, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(w->f.st, id, &w->l, 0, n, true, NULL, &e), &e);
}

static uint64_t size_of(uint64_t n)
{
    struct thing t[64];
    double bytes = 0;
    size_t k = model_new(0, n, 0, t);
    while (k-- > 0)
        bytes += t[k].bytes;
    return (uint64_t)bytes;
}

/* What can never fit is refused, and costs nobody anything; the session goes on without. */
static void ds4_157_a_quota_smaller_than_one_object(void **state)
{
    struct state_world *w = *state;
    char small[SESSION_ID_CAP], large[SESSION_ID_CAP];
    struct error e;
    with_quota(w, size_of(40) * 5 / 4);
    fill(w, "small", 100, 40, small);
    fixture_session(&w->f, "large", large);
    for (uint32_t turn = 0; turn < 3; turn++) {
        assert_ok(fixture_append(w->f.st, large, 9000 + 200 * turn, 200, SEGMENT_INPUT, &e),
                  &e);
        assert_int_equal(
            state_save(w->f.st, large, &w->l, 0, 200ull * (turn + 1), true, NULL, &e),
            ERR_LIMIT);
        assert_non_null(strstr(e.msg, "quota"));
        assert_int_equal(fixture_length(w->f.st, large), 200 * (turn + 1));
        assert_int_equal(resume(w, large), 0);
        assert_int_equal(resume(w, small), 40);
        make_room(w, NULL);
    }
    with_quota(w, 1);
    assert_ok(fixture_append(w->f.st, large, 1, 3, SEGMENT_INPUT, &e), &e);
    assert_int_equal(state_save(w->f.st, large, &w->l, 0, 3, true, NULL, &e), ERR_LIMIT);
    make_room(w, NULL);
    with_quota(w, 0);
    assert_ok(state_save(w->f.st, large, &w->l, 0, 603, true, NULL, &e), &e);
    assert_int_equal(resume(w, large), 603);
}

/* Everything else goes before a pinned session; and then writes are refused. */
static void what_is_pinned_stays(void **state)
{
    struct state_world *w = *state;
    char pinned[SESSION_ID_CAP], id[SESSION_ID_CAP];
    struct error e;
    with_quota(w, 4 * size_of(100));
    fill(w, "pinned", 100, 100, pinned);
    assert_ok(hold_pin(w->f.st, pinned, true, &e), &e);
    for (uint32_t i = 0; i < 12; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%u", i);
        fake_clock_advance(&w->f.clock, DAY_MS);
        fill(w, name, 1000 * (i + 1), 100, id);
        make_room(w, NULL);
        assert_int_equal(resume(w, pinned), 100);
        assert_int_equal(resume(w, id), 100);
    }
    store_fixture_reopen(&w->f);
    assert_int_equal(resume(w, pinned), 100);
    assert_ok(hold_pin(w->f.st, pinned, false, &e), &e);
    for (uint32_t i = 20; i < 24; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%u", i);
        fake_clock_advance(&w->f.clock, DAY_MS);
        fill(w, name, 1000 * (i + 1), 100, id);
        make_room(w, NULL);
    }
    assert_true(resume(w, pinned) < 100);
    assert_int_equal(state_position(w, pinned), 100); /* it is known what was lost */
}

/* Between looking and reading, room is made over and over; what was found comes back. */
static void ds4_447_what_a_restore_has_found_stays(void **state)
{
    struct state_world *w = *state;
    char a[SESSION_ID_CAP], id[SESSION_ID_CAP];
    struct head_plan *plan;
    struct head_restored got;
    struct state_image room;
    struct error e;
    with_quota(w, 4 * size_of(100));
    fill(w, "a", 100, 100, a);
    assert_ok(head_find(w->f.st, a, &w->l, TAPE_END, HEAD_ROWS, &plan, &e), &e);
    for (uint32_t i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%u", i);
        fake_clock_advance(&w->f.clock, 1000);
        fill(w, name, 1000 * (i + 1), 100, id);
        make_room(w, NULL);
    }
    state_image_blank(&room, &w->l, plan->n_tokens);
    struct head_restore h = {.session = a, .layout = &w->l, .plan = plan, .dst = &room.regions};
    assert_ok(head_restore(w->f.st, &h, &got, &e), &e);
    assert_int_equal(got.n_tokens, 100);
    state_image_fini(&room);
    head_plan_free(plan);
    /* A plan that nobody reads holds for a minute. */
    assert_ok(head_find(w->f.st, a, &w->l, TAPE_END, HEAD_ROWS, &plan, &e), &e);
    head_plan_free(plan);
    for (uint32_t i = 10; i < 18; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%u", i);
        fake_clock_advance(&w->f.clock, 3 * DAY_MS);
        fill(w, name, 1000 * (i + 1), 100, id);
        make_room(w, NULL);
    }
    assert_true(resume(w, a) < 100);
}

/* Of two branches the unused one goes, down to what they share. */
static void a_shared_prefix_is_worth_all_its_uses(void **state)
{
    struct state_world *w = *state;
    char a[SESSION_ID_CAP], fork[SESSION_ID_CAP];
    struct error e;
    fill(w, "a", 100, 96, a);
    struct session_fork f = {.parent = a, .name = "fork"};
    assert_ok(session_fork(w->f.st, &f, fork, &e), &e);
    assert_ok(fixture_append(w->f.st, fork, 5000, 64, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(w->f.st, fork, &w->l, 96, 160, true, NULL, &e), &e);
    assert_ok(fixture_append(w->f.st, a, 7000, 64, SEGMENT_INPUT, &e), &e);
    for (int i = 0; i < 4; i++) {
        fake_clock_advance(&w->f.clock, DAY_MS);
        assert_ok(state_save(w->f.st, a, &w->l, i ? 160 : 96, 160, true, NULL, &e), &e);
    }
    uint64_t all = space_of(w).live;
    with_quota(w, all * 100 / 91); /* just above the high watermark: a seventh of it goes */
    make_room(w, NULL);
    assert_int_equal(resume(w, a), 160);
    assert_true(resume(w, fork) >= 96 && resume(w, fork) < 160);
}

/* ---- packs ------------------------------------------------------------------------------- */

static uint64_t n_packs(struct state_world *w)
{
    struct store_counters c;
    store_count(w->f.st, &c);
    return c.packs;
}

/* Small packs, most of whose sessions go: what lives is moved, and the files go. */
static void packs_under_half_live_are_rewritten(void **state)
{
    struct state_world *w = *state;
    char ids[24][SESSION_ID_CAP];
    struct gc_report r;
    struct error e;
    w->f.options.pack_bytes = 400u << 10;
    store_fixture_reopen(&w->f);
    for (uint32_t i = 0; i < 24; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%u", i);
        fill(w, name, 1000 * (i + 1), 100, ids[i]);
    }
    uint64_t before = n_packs(w);
    assert_true(before > 12);
    for (uint32_t i = 0; i < 24; i++)
        if (i % 6)
            assert_ok(session_delete(w->f.st, ids[i], &e), &e);
    assert_ok(gc_run(w->f.st, &r, &e), &e);
    assert_true(r.packs_removed > 0 && r.packs_rewritten > 0 && r.bytes_moved > 0);
    assert_true(n_packs(w) < before / 2);
    struct space s = space_of(w);
    assert_true(s.used <= 2 * s.live);
    for (int again = 0; again < 2; again++) {
        for (uint32_t i = 0; i < 24; i += 6)
            assert_int_equal(resume(w, ids[i]), 100);
        store_fixture_reopen(&w->f);
    }
    struct store_counters c;
    store_count(w->f.st, &c);
    assert_int_equal(c.extents_damaged + c.rows_dropped + c.extents_adopted + c.packs_refused,
                     0);
    assert_ok(gc_run(w->f.st, &r, &e), &e);
    assert_int_equal(r.extents + r.packs_rewritten + r.packs_removed, 0);
}

/* Whatever fails in the middle, what lives comes back, and the next run finishes. */
static void every_failure(void **state)
{
    struct state_world *w = *state;
    char kept[SESSION_ID_CAP], id[SESSION_ID_CAP];
    struct gc_report r;
    struct error e;
    uint64_t step = getenv("AGENTD_SLOW") ? 1 : 9;
    w->f.options.pack_bytes = 128u << 10;
    store_fixture_reopen(&w->f);
    fill(w, "kept", 100, 20, kept);
    for (uint64_t n = 1;; n += step) {
        for (uint32_t i = 0; i < 4; i++) {
            fill(w, "gone", 70000, 20, id);
            assert_ok(session_delete(w->f.st, id, &e), &e);
            uint64_t length = fixture_length(w->f.st, kept);
            assert_ok(state_save(w->f.st, kept, &w->l, length - 2, length, true, NULL, &e), &e);
        }
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = gc_run(w->f.st, &r, &e);
        bool clean = !fault_disarm();
        if (clean)
            assert_ok(rc, &e);
        assert_int_equal(resume(w, kept), fixture_length(w->f.st, kept));
        store_fixture_reopen(&w->f);
        assert_int_equal(resume(w, kept), fixture_length(w->f.st, kept));
        assert_ok(gc_run(w->f.st, &r, &e), &e);
        assert_int_equal(resume(w, kept), fixture_length(w->f.st, kept));
        if (clean)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_pinned_stays, state_world_setup,
                                        state_world_teardown),
        cmocka_unit_test_setup_teardown(ds4_447_what_a_restore_has_found_stays,
                                        state_world_setup, state_world_teardown),
        cmocka_unit_test_setup_teardown(every_failure, state_world_setup, state_world_teardown),
    };
    /* These are about rows. The first counts to the byte: a disk counts the file system's own
     * tables of a pack with many holes as part of the pack, and no model knows how large they
     * are. */
    const struct CMUnitTest with_planes[] = {
        cmocka_unit_test_setup_teardown(ds4_174_ten_sessions_in_room_for_three,
                                        state_world_setup_in_memory, state_world_teardown),
        cmocka_unit_test_setup_teardown(ds4_157_a_quota_smaller_than_one_object,
                                        state_world_setup, state_world_teardown),
        cmocka_unit_test_setup_teardown(a_shared_prefix_is_worth_all_its_uses,
                                        state_world_setup, state_world_teardown),
        cmocka_unit_test_setup_teardown(packs_under_half_live_are_rewritten, state_world_setup,
                                        state_world_teardown),
    };
    int failed = run_with_both_shapes(tests);
    return !!(failed + cmocka_run_group_tests(with_planes, NULL, NULL));
}
