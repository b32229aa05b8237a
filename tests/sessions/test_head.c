/* State commits and restores: bytes equal at every position, sharing, forks, rewinds, space. */
#include <sqlite3.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "sessions/strand.h"
#include "sessions/tape.h"
#include "tests/support/state_fixture.h"
#include "tests/support/test.h"

struct head_test {
    struct store_fixture f;
    struct state_layout l;
    char id[SESSION_ID_CAP];
};

static struct head_test *begin(enum layout_shape shape, uint64_t pack_bytes)
{
    static struct head_test t;
    struct error e;
    store_fixture_init(&t.f, shape == LAYOUT_PAGES);
    t.f.options.pack_bytes = pack_bytes;
    assert_ok(store_fixture_open(&t.f, &e), &e);
    state_layout_make(&t.l, shape);
    fixture_session(&t.f, "s", t.id);
    return &t;
}

static int setup(void **state)
{
    *state = begin(LAYOUT_ODD, 0);
    return 0;
}

static int setup_tip(void **state)
{
    *state = begin(LAYOUT_TIP, 0);
    return 0;
}

static int setup_pages(void **state)
{
    *state = begin(LAYOUT_PAGES, 0);
    return 0;
}

static int setup_small_packs(void **state)
{
    *state = begin(LAYOUT_ODD, 200000);
    return 0;
}

static int setup_buffered(void **state)
{
    struct head_test *t = begin(LAYOUT_ODD, 0);
    t->f.options.no_direct_io = true;
    store_fixture_reopen(&t->f);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct head_test *t = *state;
    fault_disarm();
    store_fixture_fini(&t->f);
    return 0;
}

static void append(struct head_test *t, const char *id, uint32_t first, uint64_t n)
{
    struct error e;
    assert_ok(fixture_append(t->f.st, id, first, n, SEGMENT_INPUT, &e), &e);
}

static void save(struct head_test *t, const char *id, uint64_t from, uint64_t to)
{
    struct error e;
    assert_ok(state_save(t->f.st, id, &t->l, from, to, true, NULL, &e), &e);
}

/* Restores what is wanted and checks how much came. */
static void restore(struct head_test *t, const char *id, uint64_t position, enum head_want want,
                    uint64_t n, bool tip, enum head_source source)
{
    struct error e;
    struct head_plan plan;
    struct head_restored r;
    assert_ok(state_restore(t->f.st, id, &t->l, position, want, &plan, &r, &e), &e);
    assert_int_equal(plan.n_tokens, n);
    assert_int_equal(r.n_tokens, n);
    assert_int_equal(r.has_tip, tip);
    assert_int_equal(plan.source, source);
    assert_int_equal(r.extents_damaged, 0);
    if (tip)
        assert_int_equal(plan.digest_rows, n);
    if (n)
        assert_int_equal(r.bytes_read > 0, true);
}

static void nothing_is_found_in_a_new_store(void **state)
{
    struct head_test *t = *state;
    restore(t, t->id, TAPE_END, HEAD_TIP, 0, false, HEAD_NONE);
    append(t, t->id, 0, 40);
    restore(t, t->id, TAPE_END, HEAD_ROWS, 0, false, HEAD_NONE);
}

/* A session that grows by uneven steps: after each one all of it comes back, in this process
 * and in the next. */
static void dynamo_6032_every_step_comes_back(void **state)
{
    struct head_test *t = *state;
    static const uint64_t steps[] = {1, 1, 5, 9, 1, 15, 16, 17, 31, 32, 33, 3, 100, 7, 250};
    uint64_t at = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        append(t, t->id, (uint32_t)(i * 1000), steps[i]);
        save(t, t->id, at, at + steps[i]);
        at += steps[i];
        restore(t, t->id, TAPE_END, HEAD_TIP, at, true, HEAD_OWN);
        store_fixture_reopen(&t->f);
        restore(t, t->id, TAPE_END, HEAD_TIP, at, true, HEAD_OWN);
    }
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.blocks, at / 16);
    assert_int_equal(c.tips, 2);
    assert_true(c.tails <= 16);
    assert_int_equal(c.extents_damaged + c.rows_dropped + c.bytes_truncated, 0);
}

/* Every position of a session saved token by token is found again as a prefix of rows. */
static void every_position_can_be_rewound_to(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 75);
    uint64_t saved = 0;
    for (uint64_t to = 1; to <= 75; saved = to, to += to % 5 + 1)
        save(t, t->id, saved, to);
    struct session_fork k = {.parent = t->id};
    for (uint64_t p = 75; p > 0; p--) {
        char id[SESSION_ID_CAP], name[24];
        snprintf(name, sizeof name, "f%d", (int)p);
        k.name = name;
        assert_ok(session_fork(t->f.st, &k, id, &e), &e);
        struct head_plan plan;
        struct head_restored r;
        assert_ok(state_restore(t->f.st, id, &t->l, p, HEAD_ROWS, &plan, &r, &e), &e);
        assert_int_equal(r.n_tokens, p < saved ? p : saved);
        /* And it can go on from there. */
        assert_ok(state_save(t->f.st, id, &t->l, r.n_tokens, 75, true, NULL, &e), &e);
        restore(t, id, TAPE_END, HEAD_TIP, 75, true, HEAD_OWN);
    }
}

static void the_previous_generation_is_kept(void **state)
{
    struct head_test *t = *state;
    append(t, t->id, 0, 20);
    append(t, t->id, 100, 20);
    append(t, t->id, 200, 20);
    save(t, t->id, 0, 20);
    save(t, t->id, 20, 40);
    restore(t, t->id, 39, HEAD_TIP, 20, true, HEAD_OLDER);
    /* Now that one is the newest, and the other one still fits the tape. */
    restore(t, t->id, 20, HEAD_TIP, 20, true, HEAD_OWN);
    restore(t, t->id, TAPE_END, HEAD_TIP, 40, true, HEAD_OLDER);
    save(t, t->id, 40, 60);
    restore(t, t->id, TAPE_END, HEAD_TIP, 60, true, HEAD_OWN);
}

static void sessions_with_the_same_tokens_share(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 100);
    append(t, t->id, 500, 30);
    save(t, t->id, 0, 100);
    save(t, t->id, 100, 130);
    struct store_counters before, after;
    store_count(t->f.st, &before);
    for (int i = 0; i < 20; i++) {
        char id[SESSION_ID_CAP], name[24];
        snprintf(name, sizeof name, "other-%d", i);
        fixture_session(&t->f, name, id);
        append(t, id, 0, 100);
        append(t, id, 9000 + (uint32_t)i, 8);
        /* The tip at 100 of the other session is ours: same ids, same segments. */
        restore(t, id, TAPE_END, HEAD_TIP, 100, true, HEAD_SHARED);
        restore(t, id, 99, HEAD_ROWS, 99, false, HEAD_OWN);
        struct head_receipt r;
        assert_ok(state_save(t->f.st, id, &t->l, 99, 108, true, &r, &e), &e);
        restore(t, id, TAPE_END, HEAD_TIP, 108, true, HEAD_OWN);
    }
    store_count(t->f.st, &after);
    assert_int_equal(after.blocks, before.blocks);
    assert_int_equal(before.blocks, 8);
}

static void the_same_blocks_are_stored_once(void **state)
{
    struct head_test *t = *state;
    struct error e;
    char id[SESSION_ID_CAP];
    append(t, t->id, 0, 100);
    save(t, t->id, 0, 100);
    fixture_session(&t->f, "other", id);
    append(t, id, 0, 100);
    struct head_receipt r;
    assert_ok(state_save(t->f.st, id, &t->l, 0, 50, true, &r, &e), &e);
    assert_int_equal(r.blocks_shared, 3);
    assert_int_equal(r.blocks_new, 0);
    assert_ok(state_save(t->f.st, id, &t->l, 50, 100, true, &r, &e), &e);
    assert_int_equal(r.blocks_shared, 3);
    assert_int_equal(r.blocks_new, 0);
    restore(t, id, TAPE_END, HEAD_TIP, 100, true, HEAD_OWN);
}

/* A tip holds windows, which depend on how the tokens were cut into segments; rows do not. */
static void other_segments_share_rows_but_no_tip(void **state)
{
    struct head_test *t = *state;
    char id[SESSION_ID_CAP];
    append(t, t->id, 0, 64);
    save(t, t->id, 0, 64);
    fixture_session(&t->f, "other", id);
    append(t, id, 0, 30);
    append(t, id, 30, 34);
    restore(t, id, TAPE_END, HEAD_TIP, 0, false, HEAD_NONE);
    restore(t, id, TAPE_END, HEAD_ROWS, 64, false, HEAD_SHARED);
}

static void a_tip_inside_a_segment_is_no_tip_behind_it(void **state)
{
    struct head_test *t = *state;
    struct error e;
    char id[SESSION_ID_CAP];
    append(t, t->id, 0, 100);
    struct tape_event ev = {.type = "item", .position = 32};
    struct tape_commit c = {.session = t->id, .events = &ev, .n_events = 1};
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
    save(t, t->id, 0, 32);
    struct head_plan plan;
    struct head_restored r;
    assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, &plan, &r, &e), &e);
    assert_int_equal(r.n_tokens, 32);
    assert_true(plan.inside_segment);
    /* In a fork at 32 the segment ends there, and layers above the last source have to run. */
    struct session_fork k = {.parent = t->id, .at_seq = 1, .name = "fork"};
    assert_ok(session_fork(t->f.st, &k, id, &e), &e);
    restore(t, id, TAPE_END, HEAD_TIP, 0, false, HEAD_NONE);
    restore(t, id, TAPE_END, HEAD_ROWS, 32, false, HEAD_OWN);
    /* And saying otherwise is a mistake of the caller. */
    struct head_save s = {.session = t->id, .layout = &t->l, .from = 32, .to = 32, .tip = "x"};
    assert_int_equal(head_save(t->f.st, &s, NULL, &e), ERR_INVAL);
}

/* After a checkpoint, which closing does. */
static off_t database_size(struct head_test *t)
{
    struct stat sb;
    store_fixture_reopen(&t->f);
    assert_int_equal(stat(t->f.db, &sb), 0);
    return sb.st_size;
}

static uint64_t packs_size(struct head_test *t)
{
    struct store_counters c;
    store_count(t->f.st, &c);
    return c.pack_bytes;
}

static void a_fork_at_a_saved_point_writes_no_extent(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 70);
    save(t, t->id, 0, 70);
    uint64_t size = packs_size(t);
    off_t rows = database_size(t);
    for (int i = 0; i < 100; i++) {
        char id[SESSION_ID_CAP], name[24];
        snprintf(name, sizeof name, "f%d", i);
        struct session_fork k = {.parent = t->id, .name = name};
        assert_ok(session_fork(t->f.st, &k, id, &e), &e);
        restore(t, id, TAPE_END, HEAD_TIP, 70, true, HEAD_OWN);
    }
    assert_int_equal(packs_size(t), size);
    assert_true(database_size(t) - rows < 100 * 4096);
}

/* What tips and tails leave behind is given back to the file system. */
static void old_generations_are_punched(void **state)
{
    struct head_test *t = *state;
    struct stat sb;
    char path[256];
    for (uint64_t at = 0; at < 300; at++) {
        append(t, t->id, (uint32_t)at, 1);
        save(t, t->id, at, at + 1);
    }
    store_fixture_reopen(&t->f);
    snprintf(path, sizeof path, "%s/00000001.pack", t->f.packs);
    assert_int_equal(stat(path, &sb), 0);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.tips, 2);
    /* 18 blocks of 9 pages at most, two tips, and the tails behind the last block. */
    assert_true(sb.st_size > 2000 * 4096);
    assert_true(sb.st_blocks * 512 < 500 * 4096);
    restore(t, t->id, TAPE_END, HEAD_TIP, 300, true, HEAD_OWN);
}

/* A fork inside a block refers to the parent's block and copies nothing; it goes on with a
 * tail, and its next full block is its own. */
static void a_fork_inside_a_block(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 41);
    struct tape_event ev = {.type = "item", .position = TAPE_END};
    struct tape_commit c = {.session = t->id, .events = &ev, .n_events = 1};
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
    append(t, t->id, 41, 59);
    save(t, t->id, 0, 41);
    save(t, t->id, 41, 100);
    char id[SESSION_ID_CAP];
    struct session_fork k = {.parent = t->id, .at_seq = 1, .name = "fork"};
    assert_ok(session_fork(t->f.st, &k, id, &e), &e);
    assert_ok(session_delete(t->f.st, t->id, &e), &e);
    store_fixture_reopen(&t->f);
    restore(t, id, TAPE_END, HEAD_ROWS, 41, true, HEAD_OLDER);
    append(t, id, 7000, 3);
    save(t, id, 41, 44);
    restore(t, id, TAPE_END, HEAD_TIP, 44, true, HEAD_OWN);
    append(t, id, 8000, 40);
    save(t, id, 44, 84);
    restore(t, id, TAPE_END, HEAD_TIP, 84, true, HEAD_OWN);
    store_fixture_reopen(&t->f);
    restore(t, id, 50, HEAD_ROWS, 50, false, HEAD_OWN);
}

static void ds4_805_another_model_finds_nothing(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 40);
    save(t, t->id, 0, 40);
    struct state_layout other = t->l;
    other.fingerprint[7] ^= 1;
    struct head_plan *plan;
    assert_ok(head_find(t->f.st, t->id, &other, TAPE_END, HEAD_ROWS, &plan, &e), &e);
    assert_int_equal(plan->n_tokens, 0);
    head_plan_free(plan);
    /* The same fingerprint with other planes, or another tip, is nobody's. */
    other = t->l;
    other.planes[0].row_bytes = 71;
    other.tip_bytes += !t->l.n_planes;
    assert_int_equal(head_find(t->f.st, t->id, &other, TAPE_END, HEAD_ROWS, &plan, &e),
                     ERR_CONFLICT);
    memset(other.fingerprint, 0, sizeof other.fingerprint);
    assert_int_equal(head_find(t->f.st, t->id, &other, TAPE_END, HEAD_ROWS, &plan, &e),
                     ERR_UNSUPPORTED);
    /* A change of model begins anew, and what the old one left stays for it. */
    other = t->l;
    other.fingerprint[7] ^= 1;
    assert_ok(state_save(t->f.st, t->id, &other, 0, 40, true, NULL, &e), &e);
    struct head_restored r;
    assert_ok(state_restore(t->f.st, t->id, &other, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
    assert_int_equal(r.n_tokens, 40);
    restore(t, t->id, TAPE_END, HEAD_TIP, 40, true, HEAD_OLDER);
}

static void another_numerics_class_is_used_and_said(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 40);
    save(t, t->id, 0, 40);
    struct state_layout other = t->l;
    snprintf(other.numerics, sizeof other.numerics, "cpu-avx2/1");
    struct head_plan plan;
    struct head_restored r;
    assert_ok(state_restore(t->f.st, t->id, &other, TAPE_END, HEAD_TIP, &plan, &r, &e), &e);
    assert_int_equal(r.n_tokens, 40);
    assert_false(plan.same_numerics);
    assert_string_equal(plan.numerics, "ref/1");
    assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, &plan, &r, &e), &e);
    assert_true(plan.same_numerics);
}

static void positions_are_checked(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 40);
    struct head_receipt r = {0};
    struct head_save s = {.session = t->id, .layout = &t->l, .from = 0, .to = 41};
    assert_int_equal(head_save(t->f.st, &s, NULL, &e), ERR_INVAL);
    if (t->l.n_planes) {
        s.to = 20; /* no rows given */
        assert_int_equal(head_save(t->f.st, &s, NULL, &e), ERR_INVAL);
        assert_int_equal(state_save(t->f.st, t->id, &t->l, 10, 40, true, &r, &e), ERR_CORRUPT);
        assert_int_equal(r.retry_from, 0);
    }
    save(t, t->id, 0, 20);
    assert_int_equal(state_save(t->f.st, t->id, &t->l, 21, 40, true, &r, &e), ERR_INVAL);
    restore(t, t->id, TAPE_END, HEAD_TIP, 20, true, HEAD_OWN);
}

/* Rows behind a position are replaced for this session: from < what was saved. */
static void saving_again_from_further_back(void **state)
{
    struct head_test *t = *state;
    append(t, t->id, 0, 90);
    save(t, t->id, 0, 37);
    save(t, t->id, 37, 60);
    save(t, t->id, 21, 64);
    restore(t, t->id, TAPE_END, HEAD_TIP, 64, true, HEAD_OWN);
    save(t, t->id, 0, 90);
    restore(t, t->id, TAPE_END, HEAD_TIP, 90, true, HEAD_OWN);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.blocks, 5);
}

static void packs_are_sealed_and_go_on(void **state)
{
    struct head_test *t = *state;
    for (uint64_t at = 0; at < 400; at += 25) {
        append(t, t->id, (uint32_t)at, 25);
        save(t, t->id, at, at + 25);
        if (at % 50 == 0)
            store_fixture_reopen(&t->f);
    }
    restore(t, t->id, TAPE_END, HEAD_TIP, 400, true, HEAD_OWN);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_true(c.packs > 3);
    assert_int_equal(c.junk_files + c.packs_refused + c.bytes_truncated, 0);
}

static void dropping_a_head(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 40);
    save(t, t->id, 0, 40);
    assert_ok(head_drop(t->f.st, t->id, &e), &e);
    restore(t, t->id, TAPE_END, HEAD_ROWS, 32, false, HEAD_SHARED);
    save(t, t->id, 32, 40);
    restore(t, t->id, TAPE_END, HEAD_TIP, 40, true, HEAD_OWN);
}

static bool stop(void *user, enum head_stage stage, uint64_t done, uint64_t total)
{
    (void)stage;
    assert_true(done <= total);
    return --*(int *)user > 0;
}

static void a_restore_can_be_cancelled(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 2000);
    save(t, t->id, 0, 2000);
    struct head_plan *plan;
    assert_ok(head_find(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, &plan, &e), &e);
    AUTO(state_image) struct state_image got = {0};
    state_image_blank(&got, &t->l, 2000);
    int left = 1;
    struct head_restore h = {.session = t->id,
                             .layout = &t->l,
                             .plan = plan,
                             .dst = &got.regions,
                             .tip = got.tip,
                             .progress = stop,
                             .user = &left};
    struct head_restored r;
    assert_int_equal(head_restore(t->f.st, &h, &r, &e), ERR_CANCELLED);
    left = 1 << 30;
    assert_ok(head_restore(t->f.st, &h, &r, &e), &e);
    assert_int_equal(r.n_tokens, 2000);
    head_plan_free(plan);
}

/* Bytes written stay near what the rows are: the geometry of the large model, scaled down. */
static void omlx_1675_appends_cost_what_they_are(void **state)
{
    struct head_test *t = *state;
    struct error e;
    (void)state;
    append(t, t->id, 0, 1600);
    uint64_t written = 0;
    for (uint64_t at = 0; at < 1600; at += 16) {
        struct head_receipt r;
        assert_ok(state_save(t->f.st, t->id, &t->l, at, at + 16, false, &r, &e), &e);
        written += r.bytes_written;
        assert_int_equal(r.blocks_new, 1);
    }
    /* A block of LAYOUT_PAGES: 4 + 1 + 5 pages of rows, a page of ids, a header. */
    assert_int_equal(written, 100 * 12 * 4096);
}

/* Rows for a deep resume, though there is a tip: it was of no use to the engine. */
static void a_tip_may_be_left_behind(void **state)
{
    struct head_test *t = *state;
    struct error e;
    append(t, t->id, 0, 40);
    save(t, t->id, 0, 40);
    struct head_plan *plan;
    assert_ok(head_find(t->f.st, t->id, &t->l, TAPE_END, HEAD_ROWS, &plan, &e), &e);
    assert_true(plan->has_tip);
    AUTO(state_image) struct state_image got = {0};
    state_image_blank(&got, &t->l, 40);
    struct head_restore h = {
        .session = t->id, .layout = &t->l, .plan = plan, .dst = &got.regions};
    struct head_restored r;
    assert_ok(head_restore(t->f.st, &h, &r, &e), &e);
    assert_int_equal(r.n_tokens, 40);
    assert_false(r.has_tip);
    head_plan_free(plan);
    restore(t, t->id, TAPE_END, HEAD_TIP, 40, true, HEAD_OWN);
}

/* Rows behind a replay are exact for nobody: others take exact ones, however short; the session
 * itself keeps its own. */
static void replayed_rows_are_not_preferred(void **state)
{
    struct head_test *t = *state;
    struct error e;
    char a[SESSION_ID_CAP], b[SESSION_ID_CAP];
    AUTO(tape) struct tape tape = {0};
    AUTO(state_image) struct state_image image = {0};
    append(t, t->id, 0, 80);
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    state_image_make(&image, &t->l, tape.ids, 80);
    struct head_save s = {.session = t->id, .layout = &t->l, .to = 80, .lineage = 1};
    for (uint32_t p = 0; p < t->l.n_planes; p++) {
        s.plane[p] = image.regions.plane[p];
        ((uint8_t *)image.regions.plane[p])[0] ^= 1; /* its rows are its own */
    }
    assert_ok(head_save(t->f.st, &s, NULL, &e), &e);
    fixture_session(&t->f, "exact", a);
    append(t, a, 0, 80);
    save(t, a, 0, 48);
    fixture_session(&t->f, "new", b);
    append(t, b, 0, 80);
    restore(t, b, TAPE_END, HEAD_ROWS, 48, false, HEAD_SHARED);
    struct head_plan *plan;
    assert_ok(head_find(t->f.st, t->id, &t->l, TAPE_END, HEAD_ROWS, &plan, &e), &e);
    assert_int_equal(plan->n_tokens, 80);
    assert_int_equal(plan->source, HEAD_OWN);
    assert_int_equal(plan->lineage, 1);
    head_plan_free(plan);
    /* The exact session does not go on with the other's bytes. */
    assert_ok(head_find(t->f.st, a, &t->l, TAPE_END, HEAD_ROWS, &plan, &e), &e);
    assert_int_equal(plan->n_tokens, 48);
    assert_int_equal(plan->lineage, 0);
    head_plan_free(plan);
}

/* The search trusts the keys of the session's own blocks; the restore compares the ids. */
static void ids_decide_what_an_own_head_restores(void **state)
{
    struct head_test *t = *state;
    struct error e;
    struct head_plan *plan;
    struct head_restored got;
    AUTO(tape) struct tape tape = {0};
    AUTO(state_image) struct state_image image = {0};
    append(t, t->id, 0, 44);
    save(t, t->id, 0, 40);
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    tape.ids[20] ^= 1; /* under a tag that is right */
    assert_ok(strand_write_chunk(t->f.st, tape.strand, 0, tape.ids, 44, &e), &e);
    assert_ok(head_find_on(t->f.st, t->id, &t->l, &tape, 40, HEAD_TIP, &plan, &e), &e);
    assert_int_equal(plan->source, HEAD_OWN);
    assert_ptr_equal(plan->ids, tape.ids);
    state_image_blank(&image, &t->l, 40);
    const struct head_restore h = {.session = t->id,
                                   .layout = &t->l,
                                   .plan = plan,
                                   .dst = &image.regions,
                                   .tip = image.tip};
    assert_ok(head_restore(t->f.st, &h, &got, &e), &e);
    assert_int_equal(got.n_tokens, 16);
    assert_false(got.has_tip);
    head_plan_free(plan);
}

static void meddle(struct head_test *t, const char *sql)
{
    store_close(t->f.st);
    t->f.st = NULL;
    sqlite3 *db;
    assert_int_equal(sqlite3_open(t->f.db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_true(sqlite3_changes(db) > 0);
    sqlite3_close(db);
    struct error e;
    assert_ok(store_fixture_open(&t->f, &e), &e);
}

static void a_tape_chunk_is_rebuilt_from_state(void **state)
{
    struct head_test *t = *state;
    struct error e;
    char id[SESSION_ID_CAP];
    append(t, t->id, 0, 700);
    append(t, t->id, 5000, 500);
    save(t, t->id, 0, 700);
    save(t, t->id, 700, 1200);
    struct session_fork k = {.parent = t->id, .name = "fork"};
    assert_ok(session_fork(t->f.st, &k, id, &e), &e);
    append(t, id, 9000, 10);
    meddle(t, "UPDATE tape SET ids = zeroblob(2048) WHERE chunk = 1");
    AUTO(tape) struct tape tape = {0};
    assert_ok(tape_load(t->f.st, id, &tape, &e), &e);
    assert_false(tape.damaged);
    assert_int_equal(tape.view.n_ids, 1210);
    for (uint32_t i = 0; i < 1200; i++)
        assert_int_equal(tape.ids[i], i < 700 ? i : i - 700 + 5000);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.chunks_rebuilt, 1);
    assert_int_equal(c.sessions_damaged, 0);
    /* The one an append needs, and one that is gone. */
    meddle(t, "DELETE FROM tape WHERE chunk = 2 AND strand = 1");
    append(t, t->id, 100, 3);
    restore(t, t->id, TAPE_END, HEAD_TIP, 1200, true, HEAD_OWN);
    /* Its first tokens are in no block: only up to the damage. */
    meddle(t, "UPDATE tape SET ids = zeroblob(40) WHERE strand = 2");
    tape_fini(&tape);
    assert_ok(tape_load(t->f.st, id, &tape, &e), &e);
    assert_true(tape.damaged);
    assert_int_equal(tape.view.n_ids, 1200);
}

/* So long that tags are checked on other threads: the same is found, repaired, and cut off. */
static void a_long_tape_is_rebuilt_from_state(void **state)
{
    struct head_test *t = *state;
    struct error e;
    const uint32_t n = 700 * STRAND_CHUNK_IDS + 100, n_saved = 4 * STRAND_CHUNK_IDS;
    append(t, t->id, 0, n);
    save(t, t->id, 0, n_saved);
    meddle(t, "UPDATE tape SET ids = zeroblob(2048) WHERE chunk IN (1, 3);"
              "UPDATE tape SET chunk = 9000 WHERE chunk = 200;"
              "UPDATE tape SET ids = substr(ids, 1, 100) WHERE chunk = 2");
    AUTO(tape) struct tape tape = {0};
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    assert_true(tape.damaged);
    assert_int_equal(tape.view.n_ids, 200 * STRAND_CHUNK_IDS); /* none is saved from there on */
    meddle(t, "UPDATE tape SET chunk = 200 WHERE chunk = 9000;"
              "UPDATE tape SET chunk = 10900 - chunk WHERE chunk IN (300, 600);"
              "UPDATE tape SET chunk = chunk - 10000 WHERE chunk > 9000;"
              "UPDATE tape SET ids = zeroblob(2048) WHERE chunk = 1");
    tape_fini(&tape);
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    assert_true(tape.damaged);
    assert_int_equal(tape.view.n_ids, 300 * STRAND_CHUNK_IDS); /* where two were exchanged */
    for (uint32_t i = 0; i < tape.view.n_ids; i++)
        assert_int_equal(tape.ids[i], i);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.chunks_rebuilt, 1);
    assert_true(c.rows_damaged >= 2);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
#define U(fn, s) cmocka_unit_test_setup_teardown(fn, s, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(nothing_is_found_in_a_new_store),
        T(dynamo_6032_every_step_comes_back),
        U(dynamo_6032_every_step_comes_back, setup_tip),
        U(dynamo_6032_every_step_comes_back, setup_pages),
        U(dynamo_6032_every_step_comes_back, setup_small_packs),
        U(dynamo_6032_every_step_comes_back, setup_buffered),
        T(every_position_can_be_rewound_to),
        U(every_position_can_be_rewound_to, setup_pages),
        T(the_previous_generation_is_kept),
        U(the_previous_generation_is_kept, setup_tip),
        T(sessions_with_the_same_tokens_share),
        U(sessions_with_the_same_tokens_share, setup_pages),
        U(sessions_with_the_same_tokens_share, setup_tip),
        T(the_same_blocks_are_stored_once),
        T(other_segments_share_rows_but_no_tip),
        T(a_tip_inside_a_segment_is_no_tip_behind_it),
        T(a_fork_at_a_saved_point_writes_no_extent),
        U(a_fork_at_a_saved_point_writes_no_extent, setup_tip),
        T(old_generations_are_punched),
        T(a_fork_inside_a_block),
        U(a_fork_inside_a_block, setup_pages),
        T(ds4_805_another_model_finds_nothing),
        T(another_numerics_class_is_used_and_said),
        T(positions_are_checked),
        T(saving_again_from_further_back),
        U(packs_are_sealed_and_go_on, setup_small_packs),
        T(dropping_a_head),
        T(a_tip_may_be_left_behind),
        U(a_tip_may_be_left_behind, setup_tip),
        T(ids_decide_what_an_own_head_restores),
        T(a_tape_chunk_is_rebuilt_from_state),
        U(a_tape_chunk_is_rebuilt_from_state, setup_tip),
        T(a_long_tape_is_rebuilt_from_state),
        T(a_restore_can_be_cancelled),
        U(omlx_1675_appends_cost_what_they_are, setup_pages),
    };
    /* These are about rows. */
    const struct CMUnitTest with_planes[] = {
        T(replayed_rows_are_not_preferred),
    };
    int failed = run_with_both_shapes(tests);
    return !!(failed + cmocka_run_group_tests(with_planes, NULL, NULL));
}
