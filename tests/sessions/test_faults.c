/* Every read, write, fsync, commit and allocation of saving, finding and restoring fails in
 * turn, until a clean pass: never a wrong byte, never a lost acknowledgement, and the store
 * reopens. */
#include "base/fault.h"
#include "tests/support/state_fixture.h"
#include "tests/support/test.h"

struct fault_test {
    struct store_fixture f;
    struct state_layout l;
    char id[SESSION_ID_CAP];
};

static int setup(void **state)
{
    static struct fault_test t;
    struct error e;
    store_fixture_init(&t.f, false);
    assert_ok(store_fixture_open(&t.f, &e), &e);
    state_layout_make(&t.l, LAYOUT_ODD);
    fixture_session(&t.f, "s", t.id);
    *state = &t;
    return 0;
}

static int setup_small_packs(void **state)
{
    setup(state);
    struct fault_test *t = *state;
    t->f.options.pack_bytes = 100000;
    store_fixture_reopen(&t->f);
    return 0;
}

static int teardown(void **state)
{
    fault_disarm();
    store_fixture_fini(&((struct fault_test *)*state)->f);
    return 0;
}

static void append(struct fault_test *t, uint32_t first, uint64_t n)
{
    struct error e;
    assert_ok(fixture_append(t->f.st, t->id, first, n, SEGMENT_INPUT, &e), &e);
}

static uint64_t restored(struct fault_test *t)
{
    struct error e;
    struct head_restored r;
    assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
    return r.n_tokens;
}

/* The caller's part of a save is made before the fault is armed. */
struct prepared {
    struct tape tape;
    struct state_image image;
    struct head_save save;
};

static void prepare(struct fault_test *t, struct prepared *p, uint64_t from, uint64_t to)
{
    struct error e;
    memset(p, 0, sizeof *p);
    assert_ok(tape_load(t->f.st, t->id, &p->tape, &e), &e);
    state_image_make(&p->image, &t->l, p->tape.ids, to);
    p->save = (struct head_save){.session = t->id,
                                 .layout = &t->l,
                                 .from = from,
                                 .to = to,
                                 .tip = p->image.tip,
                                 .digest_rows = to};
    for (uint32_t i = 0; i < t->l.n_planes; i++)
        p->save.plane[i] = (uint8_t *)p->image.regions.plane[i] +
                           from / t->l.planes[i].ratio * t->l.planes[i].row_bytes;
}

static void prepared_fini(struct prepared *p)
{
    tape_fini(&p->tape);
    state_image_fini(&p->image);
}

/* A fork at the saved 21 tokens, with 42 more of its own, is used for one try. */
static void fork_at_21(struct fault_test *t, const char *base, uint64_t n)
{
    struct error e;
    char name[32];
    snprintf(name, sizeof name, "try-%d", (int)n);
    struct session_fork k = {.parent = base, .name = name};
    assert_ok(session_fork(t->f.st, &k, t->id, &e), &e);
    append(t, (uint32_t)n * 1000, 42);
}

/* A save that fails leaves the head as it was; the next one goes through. */
static void saving(void **state)
{
    struct fault_test *t = *state;
    struct error e;
    char base[SESSION_ID_CAP];
    struct prepared p;
    append(t, 0, 21);
    prepare(t, &p, 0, 21);
    assert_ok(head_save(t->f.st, &p.save, NULL, &e), &e);
    prepared_fini(&p);
    memcpy(base, t->id, sizeof base);
    uint64_t refused = 0, n = 1;
    for (bool clean = false; !clean; n++) {
        fork_at_21(t, base, n);
        prepare(t, &p, 21, 63);
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = head_save(t->f.st, &p.save, NULL, &e);
        clean = !fault_disarm();
        if (rc) {
            refused++;
            assert_false(clean);
            assert_true(e.msg[0] != '\0');
            if (n % 16 == 0)
                store_fixture_reopen(&t->f);
            assert_int_equal(restored(t), 21);
            assert_ok(head_save(t->f.st, &p.save, NULL, &e), &e);
        }
        prepared_fini(&p);
        assert_int_equal(restored(t), 63);
        assert_ok(session_delete(t->f.st, t->id, &e), &e);
    }
    assert_true(refused > 30);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.extents_damaged, 0);
    memcpy(t->id, base, sizeof base);
    store_fixture_reopen(&t->f);
    assert_int_equal(restored(t), 21);
}

/* From the n-th on, everything of one kind fails: a disk that is full, or gone. */
static void a_disk_that_stays_bad(void **state)
{
    struct fault_test *t = *state;
    struct error e;
    static const char *const kinds[] = {"aio.write", "fs.sync", "fs.write",     "pack.create",
                                        "db.commit", "db.step", "pack.truncate"};
    append(t, 0, 40);
    struct prepared p;
    prepare(t, &p, 0, 40);
    assert_ok(head_save(t->f.st, &p.save, NULL, &e), &e);
    prepared_fini(&p);
    uint64_t at = 40;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (uint64_t n = 1; n < 4; n++) {
            append(t, (uint32_t)(1000 * (i + 1) + 100 * n), 40);
            prepare(t, &p, at, at + 40);
            fault_arm(FAULT_FAIL_FROM, kinds[i], n);
            enum err rc = head_save(t->f.st, &p.save, NULL, &e);
            enum err again = rc ? head_save(t->f.st, &p.save, NULL, &e) : OK;
            bool failed = fault_disarm();
            if (rc)
                assert_true(failed);
            if (rc && again) {
                assert_int_equal(restored(t), at);
                assert_ok(head_save(t->f.st, &p.save, NULL, &e), &e);
            }
            prepared_fini(&p);
            at += 40;
            assert_int_equal(restored(t), at);
            store_fixture_reopen(&t->f);
            assert_int_equal(restored(t), at);
        }
}

/* A failed fsync ends the pack: its file is never written again. */
static void a_failed_fsync_kills_the_pack(void **state)
{
    struct fault_test *t = *state;
    struct error e;
    struct prepared p;
    append(t, 0, 40);
    prepare(t, &p, 0, 40);
    assert_ok(head_save(t->f.st, &p.save, NULL, &e), &e);
    prepared_fini(&p);
    append(t, 100, 40);
    prepare(t, &p, 40, 80);
    fault_arm(FAULT_FAIL, "fs.sync", 1);
    assert_int_equal(head_save(t->f.st, &p.save, NULL, &e), ERR_IO);
    assert_true(fault_disarm());
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.packs_killed, 1);
    assert_ok(head_save(t->f.st, &p.save, NULL, &e), &e);
    prepared_fini(&p);
    store_count(t->f.st, &c);
    assert_int_equal(c.packs, 2);
    assert_int_equal(restored(t), 80);
    store_fixture_reopen(&t->f);
    append(t, 200, 40);
    prepare(t, &p, 80, 120);
    assert_ok(head_save(t->f.st, &p.save, NULL, &e), &e);
    prepared_fini(&p);
    store_count(t->f.st, &c);
    assert_int_equal(c.packs, 2);
    assert_int_equal(restored(t), 120);
}

/* What a restore hands over is right, however it fails; and the next one has everything. */
static void dynamo_15079_restoring(void **state)
{
    struct fault_test *t = *state;
    struct error e;
    uint64_t at = 0;
    for (uint32_t i = 0; i < 4; i++) {
        append(t, i * 100, 27);
        struct prepared p;
        prepare(t, &p, at, at + 27);
        assert_ok(head_save(t->f.st, &p.save, NULL, &e), &e);
        prepared_fini(&p);
        at += 27;
    }
    AUTO(tape) struct tape tape = {0};
    AUTO(state_image) struct state_image want = {0};
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    state_image_make(&want, &t->l, tape.ids, at);
    uint64_t refused = 0, shorter = 0;
    bool clean = false;
    for (uint64_t n = 1; !clean; n++) {
        AUTO(state_image) struct state_image got = {0};
        state_image_blank(&got, &t->l, at);
        struct head_plan *plan = NULL;
        struct head_restored r = {0};
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = head_find(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, &plan, &e);
        if (!rc && plan->n_tokens) {
            struct head_restore h = {.session = t->id,
                                     .layout = &t->l,
                                     .plan = plan,
                                     .dst = &got.regions,
                                     .tip = got.tip};
            rc = head_restore(t->f.st, &h, &r, &e);
        }
        clean = !fault_disarm();
        head_plan_free(plan);
        refused += rc != OK;
        if (!rc) {
            shorter += r.n_tokens < at;
            state_image_equal(&want, &got, r.n_tokens);
            if (r.has_tip)
                assert_memory_equal(want.tip, got.tip, (size_t)t->l.tip_bytes);
        }
        /* A device that failed once said nothing about the bytes. */
        struct store_counters c;
        store_count(t->f.st, &c);
        assert_int_equal(c.extents_damaged, 0);
        assert_int_equal(c.sessions_damaged, 0);
        assert_int_equal(restored(t), at);
    }
    assert_true(refused > 10);
    /* A read that fails once is asked again: only headers without memory shorten. */
    assert_true(shorter > 0);
}

/* Forks, deletes and renames: all or nothing. */
static void forking_and_deleting(void **state)
{
    struct fault_test *t = *state;
    struct error e;
    struct prepared p;
    append(t, 0, 40);
    prepare(t, &p, 0, 40);
    assert_ok(head_save(t->f.st, &p.save, NULL, &e), &e);
    prepared_fini(&p);
    bool clean = false;
    for (uint64_t n = 1; !clean; n++) {
        struct session_fork k = {.parent = t->id, .name = "fork"};
        char id[SESSION_ID_CAP];
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = session_fork(t->f.st, &k, id, &e);
        clean = !fault_disarm();
        AUTO(session_info) struct session_info s = {0};
        if (rc) {
            assert_int_equal(session_find(t->f.st, "fork", &s, &e), ERR_NOTFOUND);
            assert_ok(session_fork(t->f.st, &k, id, &e), &e);
        }
        fault_arm(FAULT_FAIL, NULL, n);
        rc = session_delete(t->f.st, id, &e);
        clean &= !fault_disarm();
        if (rc)
            assert_ok(session_delete(t->f.st, id, &e), &e);
        assert_int_equal(session_find(t->f.st, "fork", &s, &e), ERR_NOTFOUND);
        assert_int_equal(fixture_length(t->f.st, t->id), 40);
    }
    assert_int_equal(restored(t), 40);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.sessions, 1);
    assert_int_equal(c.sessions_damaged, 0);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
#define U(fn, s) cmocka_unit_test_setup_teardown(fn, s, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(saving),
        U(saving, setup_small_packs),
        T(a_disk_that_stays_bad),
        U(a_disk_that_stays_bad, setup_small_packs),
        T(a_failed_fsync_kills_the_pack),
        T(dynamo_15079_restoring),
        T(forking_and_deleting),
    };
    return !!run_with_both_shapes(tests);
}
