/* The tape commit and what is read back: gaps refused, everything or nothing, damage found. */
#include "tests/support/store_fixture.h"

#include <sqlite3.h>

#include "base/fault.h"
#include "tests/support/test.h"

struct tape_test {
    struct store_fixture f;
    char id[SESSION_ID_CAP];
};

static int setup(void **state)
{
    static struct tape_test t;
    struct error e;
    store_fixture_init(&t.f, false);
    assert_ok(store_fixture_open(&t.f, &e), &e);
    fixture_session(&t.f, "s", t.id);
    *state = &t;
    return 0;
}

static int teardown(void **state)
{
    struct tape_test *t = *state;
    fault_disarm();
    store_fixture_fini(&t->f);
    return 0;
}

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

/* ---- ids and segments -------------------------------------------------------------------- */

static void ids_come_back(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    static const uint64_t sizes[] = {1, 510, 1, 1, 511, 512, 513, 1, 4096, 3, 10000};
    uint32_t next = 7;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_ok(fixture_append(t->f.st, t->id, next, sizes[i], SEGMENT_INPUT, &e), &e);
        next += (uint32_t)sizes[i];
    }
    store_fixture_reopen(&t->f);
    AUTO(tape) struct tape tape = {0};
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    assert_int_equal(tape.view.n_ids, next - 7);
    assert_int_equal(tape.view.n_segments, sizeof sizes / sizeof sizes[0]);
    for (uint32_t i = 0; i < tape.view.n_ids; i++)
        assert_int_equal(tape.ids[i], i + 7);
    uint32_t some[700];
    for (uint64_t from = 400; from < 700; from += 7) {
        assert_ok(tape_read_ids(t->f.st, t->id, from, from + 700, some, &e), &e);
        assert_int_equal(some[0], from + 7);
        assert_int_equal(some[699], from + 706);
    }
    assert_int_equal(tape_read_ids(t->f.st, t->id, 0, next, some, &e), ERR_INVAL);
    assert_int_equal(tape_read_ids(t->f.st, t->id, 5, 4, some, &e), ERR_INVAL);
}

/* One segment record without ids. */
static enum err put_segment(struct tape_test *t, uint64_t start, uint64_t len,
                            enum segment_kind kind, bool open, struct error *e)
{
    struct tape_segment s = {.seg = {start, len, kind, PREFILL_FULL}, .open = open};
    struct tape_commit c = {.session = t->id, .segments = &s, .n_segments = 1};
    return tape_commit(t->f.st, &c, NULL, e);
}

static enum err put_ids(struct tape_test *t, uint64_t position, uint64_t n, struct error *e)
{
    uint32_t ids[64] = {1, 2, 3};
    struct tape_commit c = {.session = t->id, .position = position, .ids = ids, .n_ids = n};
    return tape_commit(t->f.st, &c, NULL, e);
}

static void open_segments_grow_and_end(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    assert_int_equal(put_ids(t, 0, 3, &e), ERR_INVAL); /* no segment to be in */
    assert_int_equal(put_segment(t, 3, 0, SEGMENT_GENERATED, true, &e), ERR_INVAL);
    assert_ok(put_segment(t, 0, 0, SEGMENT_GENERATED, true, &e), &e);
    assert_ok(put_ids(t, 0, 3, &e), &e);
    assert_ok(put_ids(t, 3, 4, &e), &e);
    assert_int_equal(put_ids(t, 3, 4, &e), ERR_CONFLICT);
    AUTO(tape) struct tape tape = {0};
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    assert_int_equal(tape.view.n_segments, 1);
    assert_true(tape.tape_segments[0].open);
    assert_int_equal(tape.segments[0].len, 7);
    assert_int_equal(put_segment(t, 7, 0, SEGMENT_INPUT, true, &e), ERR_INVAL);
    assert_int_equal(put_segment(t, 0, 6, SEGMENT_GENERATED, false, &e), ERR_INVAL);
    assert_int_equal(put_segment(t, 0, 8, SEGMENT_GENERATED, false, &e), ERR_INVAL);
    assert_int_equal(put_segment(t, 0, 7, SEGMENT_INPUT, false, &e), ERR_INVAL);
    assert_ok(put_segment(t, 0, 7, SEGMENT_GENERATED, false, &e), &e);
    assert_int_equal(put_segment(t, 0, 0, SEGMENT_GENERATED, true, &e), ERR_INVAL);
    assert_int_equal(put_ids(t, 7, 1, &e), ERR_INVAL);
    /* One that ends with nothing in it never was. */
    assert_ok(put_segment(t, 7, 0, SEGMENT_GENERATED, true, &e), &e);
    assert_ok(put_segment(t, 7, 0, SEGMENT_GENERATED, false, &e), &e);
    tape_fini(&tape);
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    assert_int_equal(tape.view.n_segments, 1);
}

static void digests_are_added_later(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    assert_ok(fixture_append(t->f.st, t->id, 0, 40, SEGMENT_INPUT, &e), &e);
    assert_ok(fixture_append(t->f.st, t->id, 0, 9, SEGMENT_GENERATED, &e), &e);
    struct tape_segment s = {.seg = {0, 40, SEGMENT_INPUT, PREFILL_CED},
                             .has_digest = true,
                             .digest = {1, 2, 3},
                             .n_rows = 40};
    struct tape_commit c = {.session = t->id, .segments = &s, .n_segments = 1};
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
    AUTO(tape) struct tape tape = {0};
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    assert_true(tape.tape_segments[0].has_digest);
    assert_int_equal(tape.tape_segments[0].digest[2], 3);
    assert_int_equal(tape.tape_segments[0].n_rows, 40);
    assert_false(tape.tape_segments[1].has_digest);
}

static void marks_come_back(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    assert_ok(fixture_append(t->f.st, t->id, 0, 40, SEGMENT_INPUT, &e), &e);
    struct replay_mark m[] = {{20, 12}, {40, 32}};
    struct tape_commit c = {.session = t->id, .marks = m, .n_marks = 2};
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
    m[0].at = 41;
    assert_int_equal(tape_commit(t->f.st, &c, NULL, &e), ERR_INVAL);
    AUTO(tape) struct tape tape = {0};
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    assert_int_equal(tape.view.n_marks, 2);
    assert_int_equal(tape.marks[0].at, 20);
    assert_int_equal(tape.marks[1].from, 32);
}

/* ---- events and items -------------------------------------------------------------------- */

struct seen {
    size_t n;
    uint64_t first, last;
    char text[256];
    size_t stop_after;
};

static bool see(void *user, const struct tape_event *ev)
{
    struct seen *s = user;
    size_t len = strlen(s->text);
    if (!s->n++)
        s->first = ev->seq;
    s->last = ev->seq;
    snprintf(s->text + len, sizeof s->text - len, "%s=%s ", ev->item ? ev->item : "-",
             ev->json ? ev->json : "-");
    return s->n != s->stop_after;
}

static void put_event(struct tape_test *t, const char *item, const char *json)
{
    struct error e;
    struct tape_event ev = {.type = "item", .item = item, .json = json, .position = TAPE_END};
    struct tape_commit c = {.session = t->id, .events = &ev, .n_events = 1};
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
}

static void events_have_no_gaps(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    static const uint8_t raw[] = {0, 0xff, 0, 1};
    struct tape_event ev[3] = {
        {.type = "item", .item = "a", .kind = "user", .turn = "t1", .json = "1"},
        {.type = "state", .json = "2"},
        {.type = "item", .item = "b", .bytes = raw, .n_bytes = sizeof raw},
    };
    struct tape_commit c = {.session = t->id, .events = ev, .n_events = 3};
    struct tape_receipt r;
    assert_ok(tape_commit(t->f.st, &c, &r, &e), &e);
    assert_int_equal(r.first_seq, 1);
    assert_int_equal(r.last_seq, 3);
    assert_ok(tape_commit(t->f.st, &c, &r, &e), &e);
    assert_int_equal(r.first_seq, 4);
    struct seen s = {0};
    assert_ok(tape_events(t->f.st, t->id, 0, 0, see, &s, &e), &e);
    assert_int_equal(s.n, 6);
    s = (struct seen){0};
    assert_ok(tape_events(t->f.st, t->id, 2, 3, see, &s, &e), &e);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.first, 3);
    s = (struct seen){.stop_after = 2};
    assert_ok(tape_events(t->f.st, t->id, 1, 0, see, &s, &e), &e);
    assert_int_equal(s.last, 3);
    s = (struct seen){0};
    assert_ok(tape_events(t->f.st, t->id, 6, 0, see, &s, &e), &e);
    assert_int_equal(s.n, 0);
    meddle(&t->f, "DELETE FROM events WHERE seq = 4");
    s = (struct seen){0};
    assert_int_equal(tape_events(t->f.st, t->id, 0, 0, see, &s, &e), ERR_CORRUPT);
    assert_int_equal(s.n, 3);
    AUTO(session_info) struct session_info info = {0};
    assert_ok(session_find(t->f.st, t->id, &info, &e), &e);
    assert_true(info.damaged);
}

static void items_are_their_newest_event(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    put_event(t, "a", "1");
    put_event(t, "b", "1");
    put_event(t, "a", "2");
    put_event(t, NULL, "x");
    char child[SESSION_ID_CAP], parent[SESSION_ID_CAP];
    struct session_fork k = {.parent = t->id, .at_seq = 2, .name = "child"};
    assert_ok(session_fork(t->f.st, &k, child, &e), &e);
    memcpy(parent, t->id, sizeof parent);
    memcpy(t->id, child, sizeof child);
    put_event(t, "c", "1");
    put_event(t, "b", "3");
    struct seen s = {0};
    assert_ok(tape_items(t->f.st, parent, see, &s, &e), &e);
    assert_string_equal(s.text, "a=2 b=1 ");
    s = (struct seen){0};
    assert_ok(tape_items(t->f.st, child, see, &s, &e), &e);
    assert_string_equal(s.text, "a=1 b=3 c=1 ");
    s = (struct seen){0};
    assert_ok(tape_events(t->f.st, child, 0, 0, see, &s, &e), &e);
    assert_int_equal(s.n, 4);
    assert_int_equal(s.last, 4);
}

/* ---- calls ------------------------------------------------------------------------------- */

struct calls {
    size_t n;
    enum call_status last;
    char result[32];
    bool ingested;
};

static bool see_call(void *user, const struct tape_call *c)
{
    struct calls *s = user;
    s->n++;
    s->last = c->status;
    s->ingested = c->ingested;
    snprintf(s->result, sizeof s->result, "%.*s", (int)c->n_result,
             c->result ? (const char *)c->result : "");
    return true;
}

static enum err put_call(struct tape_test *t, struct tape_call call, struct error *e)
{
    struct tape_commit c = {.session = t->id, .calls = &call, .n_calls = 1};
    return tape_commit(t->f.st, &c, NULL, e);
}

static void calls_have_one_outcome(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    struct tape_call c = {.id = "c1", .status = CALL_STARTED};
    assert_int_equal(put_call(t, c, &e), ERR_INVAL);
    c.turn = "t1";
    c.name = "run";
    c.arguments = "{\"command\":\"ls\"}";
    assert_ok(put_call(t, c, &e), &e);
    struct calls s = {0};
    store_fixture_reopen(&t->f);
    assert_ok(tape_calls(t->f.st, t->id, NULL, true, see_call, &s, &e), &e);
    assert_int_equal(s.n, 1);
    struct tape_call done = {.id = "c1", .status = CALL_DONE, .result = "ok", .n_result = 2};
    assert_ok(put_call(t, done, &e), &e);
    assert_ok(
        put_call(t, (struct tape_call){.id = "c1", .status = CALL_DONE, .ingested = true}, &e),
        &e);
    assert_int_equal(
        put_call(t, (struct tape_call){.id = "c1", .status = CALL_INTERRUPTED}, &e),
        ERR_CONFLICT);
    c.turn = "t2";
    assert_int_equal(put_call(t, c, &e), ERR_CONFLICT);
    s = (struct calls){0};
    assert_ok(tape_calls(t->f.st, t->id, NULL, true, see_call, &s, &e), &e);
    assert_int_equal(s.n, 0);
    assert_ok(tape_calls(t->f.st, t->id, "t1", false, see_call, &s, &e), &e);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.last, CALL_DONE);
    assert_string_equal(s.result, "ok");
    assert_true(s.ingested);
    c.id = "c 2";
    assert_int_equal(put_call(t, c, &e), ERR_INVAL);
}

/* ---- turns ------------------------------------------------------------------------------- */

struct turns {
    size_t n;
    char last[TAPE_ID_CAP], params[64], ledger[64];
    uint64_t forced_next;
};

static bool see_turn(void *user, const char *session, const struct tape_turn *turn)
{
    struct turns *s = user;
    assert_int_equal(strlen(session), 26);
    s->n++;
    snprintf(s->last, sizeof s->last, "%s", turn->id);
    snprintf(s->params, sizeof s->params, "%s", turn->params);
    snprintf(s->ledger, sizeof s->ledger, "%s", turn->ledger);
    s->forced_next = turn->forced_next;
    return true;
}

static void a_repeated_message_gets_the_first_receipt(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    put_event(t, "x", "1");
    uint32_t ids[] = {1, 2, 3};
    struct tape_segment seg = {.seg = {0, 3, SEGMENT_INPUT, PREFILL_CED}};
    struct tape_event ev = {.type = "item", .item = "i", .position = TAPE_END};
    struct tape_turn turn = {.id = "t1", .client_message = "m1", .params = "{\"p\":1}"};
    struct tape_commit c = {.session = t->id,
                            .ids = ids,
                            .n_ids = 3,
                            .segments = &seg,
                            .n_segments = 1,
                            .events = &ev,
                            .n_events = 1,
                            .turn = &turn,
                            .state = "prefill"};
    struct tape_receipt r;
    assert_ok(tape_commit(t->f.st, &c, &r, &e), &e);
    assert_false(r.duplicate);
    assert_int_equal(r.first_seq, 2);
    turn.id = "t2";
    assert_ok(tape_commit(t->f.st, &c, &r, &e), &e);
    assert_true(r.duplicate);
    assert_string_equal(r.turn, "t1");
    assert_int_equal(r.turn_seq, 2);
    assert_int_equal(r.length, 3);
    assert_int_equal(fixture_length(t->f.st, t->id), 3);
    struct turns s = {0};
    assert_ok(tape_unfinished(t->f.st, NULL, see_turn, &s, &e), &e);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.params, "{\"p\":1}");
}

static void turns_go_on_after_a_restart(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    struct tape_turn turn = {.id = "t1", .params = "{\"forced\":[1]}", .ledger = "{\"a\":1}"};
    struct tape_commit c = {.session = t->id, .turn = &turn};
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
    turn = (struct tape_turn){.id = "t1", .forced_next = 4, .step = 2, .state = "tool"};
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
    store_fixture_reopen(&t->f);
    struct turns s = {0};
    assert_ok(tape_unfinished(t->f.st, t->id, see_turn, &s, &e), &e);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.forced_next, 4);
    assert_string_equal(s.params, "{\"forced\":[1]}");
    assert_string_equal(s.ledger, "{\"a\":1}");
    turn.finished = true;
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
    s = (struct turns){0};
    assert_ok(tape_unfinished(t->f.st, NULL, see_turn, &s, &e), &e);
    assert_int_equal(s.n, 0);
    assert_ok(tape_turn(t->f.st, t->id, NULL, see_turn, &s, &e), &e);
    assert_string_equal(s.last, "t1");
    assert_int_equal(tape_turn(t->f.st, t->id, "t9", see_turn, &s, &e), ERR_NOTFOUND);
    turn = (struct tape_turn){.id = "t2"};
    assert_int_equal(tape_commit(t->f.st, &c, NULL, &e), ERR_INVAL); /* no params */
}

/* ---- damage ------------------------------------------------------------------------------ */

static void a_damaged_chunk_cuts_the_tape(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    assert_ok(fixture_append(t->f.st, t->id, 0, 700, SEGMENT_INPUT, &e), &e);
    assert_ok(fixture_append(t->f.st, t->id, 700, 700, SEGMENT_GENERATED, &e), &e);
    meddle(&t->f, "UPDATE tape SET ids = zeroblob(2048) WHERE chunk = 1");
    AUTO(tape) struct tape tape = {0};
    assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
    assert_true(tape.damaged);
    assert_int_equal(tape.view.n_ids, 512);
    assert_int_equal(tape.view.n_segments, 1);
    assert_int_equal(tape.segments[0].len, 512);
    uint32_t ids[512];
    assert_ok(tape_read_ids(t->f.st, t->id, 0, 512, ids, &e), &e);
    assert_int_equal(tape_read_ids(t->f.st, t->id, 100, 513, ids, &e), ERR_CORRUPT);
    assert_int_equal(fixture_append(t->f.st, t->id, 0, 1, SEGMENT_INPUT, &e), ERR_CORRUPT);
}

/* Every tagged table that a commit writes: a changed column is found on the next read. */
static void swapped_rows_are_found(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    assert_ok(fixture_append(t->f.st, t->id, 0, 512, SEGMENT_INPUT, &e), &e);
    assert_ok(fixture_append(t->f.st, t->id, 9000, 512, SEGMENT_INPUT, &e), &e);
    /* Two whole rows, each with its own valid tag, in each other's place. */
    meddle(&t->f, "UPDATE tape SET chunk = 1 - chunk + 100;"
                  "UPDATE tape SET chunk = chunk - 100;");
    uint32_t ids[8];
    assert_int_equal(tape_read_ids(t->f.st, t->id, 0, 8, ids, &e), ERR_CORRUPT);
}

/* ---- faults ------------------------------------------------------------------------------ */

static enum err scripted(struct tape_test *t, struct error *e)
{
    uint32_t ids[600] = {1};
    struct tape_segment seg = {.seg = {0, 600, SEGMENT_INPUT, PREFILL_CED}};
    struct tape_event ev[2] = {{.type = "item", .item = "i", .position = TAPE_END},
                               {.type = "state"}};
    struct tape_call call = {
        .id = "c", .turn = "t1", .name = "run", .arguments = "{}", .status = CALL_STARTED};
    struct tape_turn turn = {.id = "t1", .client_message = "m", .params = "{}"};
    struct tape_commit c = {.session = t->id,
                            .ids = ids,
                            .n_ids = 600,
                            .segments = &seg,
                            .n_segments = 1,
                            .events = ev,
                            .n_events = 2,
                            .calls = &call,
                            .n_calls = 1,
                            .turn = &turn,
                            .state = "tool"};
    return tape_commit(t->f.st, &c, NULL, e);
}

static void every_failure_leaves_all_or_nothing(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    uint64_t n = 1;
    for (;; n++) {
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = scripted(t, &e);
        bool clean = !fault_disarm();
        if (clean)
            assert_ok(rc, &e);
        if (rc == OK)
            break; /* what fails behind the commit, the witness of it, undoes nothing */
        if (n % 4 == 0)
            store_fixture_reopen(&t->f);
        assert_int_equal(fixture_length(t->f.st, t->id), 0);
        struct seen s = {0};
        assert_ok(tape_events(t->f.st, t->id, 0, 0, see, &s, &e), &e);
        assert_int_equal(s.n, 0);
        struct calls calls = {0};
        assert_ok(tape_calls(t->f.st, t->id, NULL, false, see_call, &calls, &e), &e);
        assert_int_equal(calls.n, 0);
    }
    assert_true(n > 10);
    struct seen s = {0};
    struct calls calls = {0};
    assert_int_equal(fixture_length(t->f.st, t->id), 600);
    assert_ok(tape_events(t->f.st, t->id, 0, 0, see, &s, &e), &e);
    assert_int_equal(s.n, 2);
    assert_ok(tape_calls(t->f.st, t->id, NULL, false, see_call, &calls, &e), &e);
    assert_int_equal(calls.n, 1);
}

/* Some failures have a way round (a refused ring, bytes that are cut off later). */
static void opening_survives_every_failure(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    assert_ok(scripted(t, &e), &e);
    size_t refused = 0;
    for (uint64_t n = 1;; n++) {
        store_close(t->f.st);
        t->f.st = NULL;
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = store_fixture_open(&t->f, &e);
        bool failed = fault_disarm();
        refused += rc != OK;
        if (rc) {
            assert_null(t->f.st);
            assert_ok(store_fixture_open(&t->f, &e), &e);
        }
        assert_int_equal(fixture_length(t->f.st, t->id), 600);
        if (!failed)
            break;
    }
    assert_true(refused > 10);
}

static void founding_survives_every_failure(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    size_t refused = 0;
    for (uint64_t n = 1;; n++) {
        store_close(t->f.st);
        t->f.st = NULL;
        remove_tree(t->f.dir);
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = store_fixture_open(&t->f, &e);
        bool failed = fault_disarm();
        refused += rc != OK;
        if (rc)
            assert_ok(store_fixture_open(&t->f, &e), &e);
        fixture_session(&t->f, "s", t->id);
        if (!failed)
            break;
    }
    assert_true(refused > 20);
}

/* A fork that was computed again from the start adds the digest of a segment of its parent's
 * while a run of its own is open: that is no second open segment, and changes nothing. */
static void a_fork_may_add_a_shared_digest(void **state)
{
    struct tape_test *t = *state;
    struct error e;
    char fork[SESSION_ID_CAP];
    uint32_t id = 9;
    assert_ok(fixture_append(t->f.st, t->id, 0, 20, SEGMENT_INPUT, &e), &e);
    assert_ok(fixture_append(t->f.st, t->id, 50, 10, SEGMENT_GENERATED, &e), &e);
    struct session_fork k = {.parent = t->id, .name = "fork"};
    assert_ok(session_fork(t->f.st, &k, fork, &e), &e);
    struct tape_segment segments[2] = {
        {.seg = {30, 0, SEGMENT_GENERATED, PREFILL_CED}, .open = true},
        {.seg = {20, 10, SEGMENT_GENERATED, PREFILL_CED}, .has_digest = true, .n_rows = 10}};
    struct tape_commit c = {
        .session = fork, .position = 30, .segments = segments, .n_segments = 1};
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
    c = (struct tape_commit){.session = fork,
                             .position = 30,
                             .ids = &id,
                             .n_ids = 1,
                             .segments = &segments[1],
                             .n_segments = 1};
    assert_ok(tape_commit(t->f.st, &c, NULL, &e), &e);
    AUTO(tape) struct tape tape = {0};
    assert_ok(tape_load(t->f.st, fork, &tape, &e), &e);
    assert_int_equal(tape.view.n_ids, 31);
    assert_int_equal(tape.view.n_segments, 3);
    assert_true(tape.tape_segments[2].open);
    /* One that is nobody's is still refused. */
    segments[1].seg.len = 11;
    assert_int_equal(tape_commit(t->f.st, &c, NULL, &e), ERR_CONFLICT);
    c.n_ids = 0;
    assert_int_equal(tape_commit(t->f.st, &c, NULL, &e), ERR_INVAL);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(ids_come_back),
        T(open_segments_grow_and_end),
        T(digests_are_added_later),
        T(a_fork_may_add_a_shared_digest),
        T(marks_come_back),
        T(events_have_no_gaps),
        T(items_are_their_newest_event),
        T(calls_have_one_outcome),
        T(a_repeated_message_gets_the_first_receipt),
        T(turns_go_on_after_a_restart),
        T(a_damaged_chunk_cuts_the_tape),
        T(swapped_rows_are_found),
        T(every_failure_leaves_all_or_nothing),
        T(opening_survives_every_failure),
        T(founding_survives_every_failure),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
