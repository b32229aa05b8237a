/* Bundles: what goes out comes back, equal to the byte; and what is hostile stays out. */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/redact.h"
#include "sessions/archive.h"
#include "sessions/bundle.h"
#include "tests/support/bundle_fixture.h"
#include "tests/support/store_fixture.h"
#include "tests/support/test.h"

#define CANARY "correct horse battery"
#define SECRET "ghp_0123456789abcdefghij0123456789abcdef"

struct world {
    struct store_fixture a, b; /* from, to */
    char file[160], again[160];
    char id[SESSION_ID_CAP];
};

static void commit(struct store *st, const struct tape_commit *c)
{
    struct error e;
    assert_ok(tape_commit(st, c, NULL, &e), &e);
}

/* A session with everything a bundle can hold: two turns, calls with results, exact bytes, a
 * mark, a digest; the second turn and a call of it are in the middle of something. */
static void fill(struct world *w)
{
    struct store *st = w->a.st;
    struct error e;
    uint32_t ids[700];
    struct session_new s = {.name = "otter",
                            .cwd = "/home/me/secret-project",
                            .config =
                                "{\"approve\":\"auto\",\"seed\":7,\"system\":\"be kind\"}"};
    assert_ok(session_new(st, &s, w->id, &e), &e);
    for (uint32_t i = 0; i < 700; i++)
        ids[i] = 1000 + i;
    struct tape_segment input = {.seg = {0, 600, SEGMENT_INPUT, PREFILL_CED}};
    struct tape_turn one = {.id = "turn1", .client_message = "m1", .params = "{\"a\":1}"};
    struct tape_event prompt = {.position = 600,
                                .turn = "turn1",
                                .type = "item",
                                .item = "i1",
                                .kind = "user",
                                .json = "{\"text\":\"token " SECRET " \\u00fc\","
                                        "\"password\":\"" CANARY "\"}"};
    struct tape_commit c = {.session = w->id, .ids = ids, .n_ids = 600};
    c.segments = &input, c.n_segments = 1, c.turn = &one, c.events = &prompt, c.n_events = 1;
    commit(st, &c);
    w->a.clock.wall_ms += 1000;
    struct tape_segment run = {.seg = {600, 0, SEGMENT_GENERATED, PREFILL_CED}, .open = true};
    struct tape_call call = {.id = "c1", .turn = "turn1", .item = "i2", .name = "shell"};
    call.arguments = "{\"cmd\": \"echo  hi\"}", call.status = CALL_STARTED;
    c = (struct tape_commit){.session = w->id, .position = 600, .ids = ids + 600, .n_ids = 50};
    c.segments = &run, c.n_segments = 1, c.calls = &call, c.n_calls = 1;
    commit(st, &c);
    w->a.clock.wall_ms += 1000;
    run.open = false, run.seg.len = 50, run.has_digest = true, run.n_rows = 50;
    memset(run.digest, 0x5a, sizeof run.digest);
    call.status = CALL_DONE, call.result = "hi\n\xff", call.n_result = 4;
    call.ingested = true;
    struct tape_event events[2] = {
        {.position = 650, .turn = "turn1", .type = "item", .item = "i2", .kind = "tool_call"},
        {.position = 650, .turn = "turn1", .type = "item", .item = "i3", .kind = "assistant"}};
    events[1].json = "{\"text\":\"h\"}", events[1].bytes = "\xff\0h", events[1].n_bytes = 3;
    one.finished = true, one.state = "idle", one.reason = "end", one.ledger = "{\"n\":3}";
    one.params = NULL;
    c = (struct tape_commit){.session = w->id, .segments = &run, .n_segments = 1};
    c.calls = &call, c.n_calls = 1, c.events = events, c.n_events = 2, c.turn = &one;
    commit(st, &c);
    struct replay_mark mark = {650, 500};
    struct tape_turn two = {.id = "turn2", .params = "{}", .state = "running"};
    run = (struct tape_segment){.seg = {650, 0, SEGMENT_GENERATED, PREFILL_CED}, .open = true};
    call = (struct tape_call){.id = "c2", .turn = "turn2", .name = "shell", .arguments = "{"};
    call.status = CALL_STARTED;
    c = (struct tape_commit){.session = w->id, .position = 650, .ids = ids + 650, .n_ids = 50};
    c.segments = &run, c.n_segments = 1, c.marks = &mark, c.n_marks = 1, c.turn = &two;
    c.calls = &call, c.n_calls = 1, c.state = "generating";
    commit(st, &c);
}

static int setup(void **state)
{
    struct error e;
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    store_fixture_init(&w->a, false);
    store_fixture_init(&w->b, false);
    assert_ok(store_fixture_open(&w->a, &e), &e);
    assert_ok(store_fixture_open(&w->b, &e), &e);
    snprintf(w->file, sizeof w->file, "%s/one.bundle", w->a.dir);
    snprintf(w->again, sizeof w->again, "%s/two.bundle", w->a.dir);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    store_fixture_fini(&w->a);
    store_fixture_fini(&w->b);
    free(w);
    return 0;
}

static void export(struct store *st, const char *id, const char *path)
{
    struct error e;
    struct bundle_export x = {.session = id, .path = path};
    struct bundle_exported done;
    assert_ok(bundle_export(st, &x, &done, &e), &e);
    assert_true(done.bytes > 0);
}

static enum err import(struct world *w, const char *path, struct bundle_imported *out,
                       struct error *e)
{
    struct bundle_import m = {.path = path, .cwd = "/home/you"};
    return bundle_import(w->b.st, &m, out, e);
}

static size_t n_files(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ---- round trips ------------------------------------------------------------------------- */

static void round_trip(void **state)
{
    struct world *w = *state;
    struct bundle_imported in;
    struct error e;
    fill(w);
    export(w->a.st, w->id, w->file);
    assert_ok(import(w, w->file, &in, &e), &e);
    assert_string_equal(in.name, "otter");
    assert_string_equal(in.origin, w->id);
    assert_string_not_equal(in.id, w->id);
    assert_int_equal(in.tokens, 700);
    assert_int_equal(in.events, 3);
    assert_int_equal(in.turns, 2);
    assert_int_equal(in.calls, 2);
    assert_int_equal(in.blobs, 2);
    AUTO(session_info) struct session_info s = {0};
    assert_ok(session_find(w->b.st, in.id, &s, &e), &e);
    assert_string_equal(s.cwd, "/home/you");
    assert_string_equal(s.config, "{\"approve\":\"ask\",\"seed\":7,\"system\":\"be kind\"}");
    assert_string_equal(s.state, "idle");
    assert_string_equal(s.reason, "cancelled");
    store_fixture_reopen(&w->b);
    export(w->b.st, in.id, w->again);
    bundles_same(w->file, w->again);
}

static bool no_turn(void *user, const char *session, const struct tape_turn *t)
{
    (void)user, (void)session, (void)t;
    fail_msg("an imported turn wants to go on");
    return false;
}

static bool look_at_call(void *user, const struct tape_call *c)
{
    int *n = user;
    bool first = strcmp(c->id, "c1") == 0;
    assert_int_equal(c->status, first ? CALL_DONE : CALL_INTERRUPTED);
    assert_string_equal(c->arguments, first ? "{\"cmd\": \"echo  hi\"}" : "{");
    if (first)
        assert_int_equal(c->ended_ms - c->created_ms, 1000);
    ++*n;
    return true;
}

static void nothing_runs(void **state)
{
    struct world *w = *state;
    struct bundle_imported in;
    struct error e;
    int calls = 0;
    fill(w);
    export(w->a.st, w->id, w->file);
    assert_ok(import(w, w->file, &in, &e), &e);
    assert_ok(tape_unfinished(w->b.st, NULL, no_turn, NULL, &e), &e);
    assert_ok(tape_calls(w->b.st, in.id, NULL, false, look_at_call, &calls, &e), &e);
    assert_int_equal(calls, 2);
    /* The tape goes on behind its end. */
    assert_ok(fixture_append(w->b.st, in.id, 1, 10, SEGMENT_INPUT, &e), &e);
}

static void running_equals_resumed(void **state)
{
    struct world *w = *state;
    fill(w);
    export(w->a.st, w->id, w->file);
    store_fixture_reopen(&w->a);
    w->a.clock.wall_ms += 5000;
    export(w->a.st, w->id, w->again);
    bundles_same(w->file, w->again);
}

/* What happens between the steps of an export is not in it: prompts, a rewind, a new name, even
 * the end of the session, as long as another keeps what it had. */
static void an_export_is_of_its_beginning(void **state)
{
    struct world *w = *state;
    struct error e;
    struct bundle_exporter *x;
    struct bundle_exported out;
    char other[SESSION_ID_CAP];
    fill(w);
    export(w->a.st, w->id, w->file);
    struct bundle_export b = {.session = w->id, .path = w->again};
    const uint32_t ids[2] = {1, 2};
    const struct tape_commit more = {.session = w->id, .position = 700, .ids = ids, .n_ids = 2};
    assert_ok(bundle_export_begin(w->a.st, &b, &x, &e), &e);
    bool done = false;
    for (int step = 0; !done; step++) {
        struct tape_event ev = {.type = "item", .item = "late", .position = TAPE_END};
        if (step < 2)
            commit(w->a.st,
                   &(struct tape_commit){.session = w->id, .events = &ev, .n_events = 1});
        if (step == 0)
            assert_ok(tape_commit(w->a.st, &more, NULL, &e), &e);
        if (step == 1) {
            struct session_cut cut = {.id = w->id, .at_seq = 1, .keep_name = "kept"};
            assert_ok(session_cut(w->a.st, &cut, other, &e), &e);
            assert_ok(session_delete(w->a.st, w->id, &e), &e);
        }
        assert_ok(bundle_export_step(x, &done, &e), &e);
    }
    bundle_export_end(x, &out);
    assert_int_equal(out.tokens, 700);
    assert_int_equal(out.events, 3);
    bundles_same(w->file, w->again);
    /* Without anybody who keeps it there is nothing to go on with. */
    fixture_session(&w->a, "short", w->id);
    struct tape_event said = {.type = "item", .item = "i", .position = TAPE_END};
    commit(w->a.st, &(struct tape_commit){.session = w->id, .events = &said, .n_events = 1});
    assert_ok(bundle_export_begin(w->a.st, &b, &x, &e), &e);
    assert_ok(session_delete(w->a.st, w->id, &e), &e);
    enum err rc = OK;
    for (done = false; !rc && !done;)
        rc = bundle_export_step(x, &done, &e);
    bundle_export_end(x, NULL);
    assert_int_equal(rc, ERR_NOTFOUND);
    assert_non_null(strstr(e.msg, "deleted meanwhile"));
    /* One that is given up leaves nothing. */
    size_t before = n_files(w->a.dir);
    b.session = other;
    assert_ok(bundle_export_begin(w->a.st, &b, &x, &e), &e);
    assert_ok(bundle_export_step(x, &done, &e), &e);
    bundle_export_end(x, NULL);
    assert_int_equal(n_files(w->a.dir), before);
}

/* A long session takes many short steps. */
static void steps_are_short(void **state)
{
    struct world *w = *state;
    struct error e;
    struct bundle_exporter *x;
    static char big[64 << 10];
    size_t steps = 0;
    fixture_session(&w->a, "long", w->id);
    memset(big, 'x', sizeof big);
    for (int i = 0; i < 200; i++) {
        struct tape_event ev = {
            .type = "state", .bytes = big, .n_bytes = sizeof big, .position = TAPE_END};
        big[i] = 'y';
        commit(w->a.st, &(struct tape_commit){.session = w->id, .events = &ev, .n_events = 1});
    }
    struct bundle_export b = {.session = w->id, .path = w->file};
    assert_ok(bundle_export_begin(w->a.st, &b, &x, &e), &e);
    for (bool done = false; !done; steps++)
        assert_ok(bundle_export_step(x, &done, &e), &e);
    bundle_export_end(x, NULL);
    assert_true(steps >= 8); /* 13 MB spooled, and 13 MB written, 4 MiB a step */
}

static void forks_bring_their_history(void **state)
{
    struct world *w = *state;
    struct bundle_imported in;
    struct error e;
    char fork[SESSION_ID_CAP];
    fill(w);
    struct session_fork f = {.parent = w->id, .at_seq = 2, .name = "fork"};
    assert_ok(session_fork(w->a.st, &f, fork, &e), &e);
    assert_ok(fixture_append(w->a.st, fork, 5000, 600, SEGMENT_INPUT, &e), &e);
    export(w->a.st, fork, w->file);
    assert_ok(import(w, w->file, &in, &e), &e);
    assert_int_equal(in.tokens, 1250);
    export(w->b.st, in.id, w->again);
    bundles_same(w->file, w->again);
}

/* The log of a compacted session has events at places of a tape that is kept elsewhere. In its
 * import, too, they lead to no tokens: not to those that were said later at these places. */
static void compacted_sessions_keep_their_log(void **state)
{
    struct world *w = *state;
    struct bundle_imported in;
    struct error e;
    fill(w);
    struct session_cut cut = {.id = w->id, .restart = true, .keep_name = "kept"};
    assert_ok(session_cut(w->a.st, &cut, NULL, &e), &e);
    assert_ok(fixture_append(w->a.st, w->id, 7000, 2000, SEGMENT_INPUT, &e), &e);
    struct tape_event ev = {.type = "item", .item = "new", .position = TAPE_END};
    commit(w->a.st, &(struct tape_commit){.session = w->id, .events = &ev, .n_events = 1});
    export(w->a.st, w->id, w->file);
    assert_ok(import(w, w->file, &in, &e), &e);
    assert_int_equal(in.tokens, 2000);
    assert_int_equal(in.events, 4);
    export(w->b.st, in.id, w->again);
    bundles_same(w->file, w->again);
    struct session_fork f = {.parent = in.id, .at_seq = 3, .name = "early"};
    assert_int_equal(session_fork(w->b.st, &f, NULL, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.msg, "gone"));
    f.at_seq = 4;
    assert_ok(session_fork(w->b.st, &f, NULL, &e), &e);
    /* And once more, from a store that never had the tokens. */
    assert_ok(
        session_cut(w->b.st,
                    &(struct session_cut){.id = in.id, .restart = true, .keep_name = "kept"},
                    NULL, &e),
        &e);
    export(w->b.st, in.id, w->file);
    assert_ok(import(w, w->file, &in, &e), &e);
    assert_int_equal(in.tokens, 0);
    export(w->b.st, in.id, w->again);
    bundles_same(w->file, w->again);
}

static void empty_and_twice(void **state)
{
    struct world *w = *state;
    struct bundle_imported in;
    struct error e;
    fixture_session(&w->a, "empty", w->id);
    export(w->a.st, w->id, w->file);
    assert_ok(import(w, w->file, &in, &e), &e);
    assert_string_equal(in.name, "empty");
    assert_ok(import(w, w->file, &in, &e), &e);
    assert_string_equal(in.name, "empty-2");
    struct bundle_import m = {.path = w->file, .name = "empty", .cwd = "/"};
    assert_int_equal(bundle_import(w->b.st, &m, &in, &e), ERR_CONFLICT);
    m.name = "../x";
    assert_int_equal(bundle_import(w->b.st, &m, &in, &e), ERR_INVAL);
}

static bool count_session(void *user, const struct session_info *s)
{
    (void)s;
    ++*(int *)user;
    return true;
}

static int n_sessions(struct store *st)
{
    struct error e;
    int n = 0;
    assert_ok(session_list(st, count_session, &n, &e), &e);
    return n;
}

static void dry_run_changes_nothing(void **state)
{
    struct world *w = *state;
    struct bundle_imported in;
    struct error e;
    fill(w);
    export(w->a.st, w->id, w->file);
    struct bundle_import m = {.path = w->file, .cwd = "/", .dry_run = true};
    assert_ok(bundle_import(w->b.st, &m, &in, &e), &e);
    assert_string_equal(in.id, "");
    assert_int_equal(in.tokens, 700);
    assert_int_equal(n_sessions(w->b.st), 0);
}

static void claude_code_86707_paperclip_8047_redacted_is_for_reading(void **state)
{
    struct world *w = *state;
    AUTO(buf) struct buf tar = BUF_INIT(1 << 26);
    struct bundle_imported in;
    struct error e;
    size_t n;
    fill(w);
    struct bundle_export x = {.session = w->id, .path = w->file, .redact = true};
    struct bundle_exported done;
    assert_ok(bundle_export(w->a.st, &x, &done, &e), &e);
    assert_int_equal(done.redacted, 2);
    assert_int_equal(done.tokens, 0);
    bundle_inflate(w->file, &tar);
    assert_null(memmem(tar.data, tar.len, SECRET, strlen(SECRET)));
    assert_null(memmem(tar.data, tar.len, CANARY, strlen(CANARY)));
    assert_non_null(memmem(tar.data, tar.len, REDACT_MARK, strlen(REDACT_MARK)));
    assert_non_null(bundle_member_of(&tar, "tape.u32", &n));
    assert_int_equal(n, 0);
    assert_int_equal(import(w, w->file, &in, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "redacted"));
}

static void files_are_private_and_whole(void **state)
{
    struct world *w = *state;
    struct stat sb;
    struct error e;
    fill(w);
    export(w->a.st, w->id, w->file);
    assert_int_equal(stat(w->file, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    struct bundle_export x = {.session = w->id, .path = "/nowhere/at/all"};
    assert_int_equal(bundle_export(w->a.st, &x, NULL, &e), ERR_NOTFOUND);
    x.session = "01HZZZZZZZZZZZZZZZZZZZZZZZ";
    assert_int_equal(bundle_export(w->a.st, &x, NULL, &e), ERR_NOTFOUND);
}

/* ---- hostile bundles --------------------------------------------------------------------- */

/* Every byte of every file below a folder, and their names. */
static struct hash *tree;
static int add_to_tree(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)ftw;
    AUTO(buf) struct buf b = BUF_INIT(64 << 20);
    struct error e;
    hash_field(tree, path, strlen(path));
    if (type == FTW_F) {
        assert_ok(fs_read_file(path, &b, &e), &e);
        hash_field(tree, buf_str(&b), b.len);
    }
    return 0;
}

static void hash_tree(const char *dir, uint8_t out[HASH_BYTES])
{
    struct hash h;
    tree = &h;
    hash_init(&h, NULL, HASH_BYTES);
    nftw(dir, add_to_tree, 16, FTW_PHYS);
    hash_final(&h, out);
}

/* Refused with a reason that holds `why`; every file of the store is as it was. */
static void refused(struct world *w, const char *what, const char *why)
{
    struct bundle_imported in;
    struct error e = {0};
    uint8_t before[HASH_BYTES], after[HASH_BYTES];
    hash_tree(w->b.dir, before);
    enum err rc = import(w, w->file, &in, &e);
    if (rc != ERR_FORMAT || !strstr(e.msg, why))
        fail_msg("%s: code %d, \"%s\", want \"%s\"", what, (int)rc, e.msg, why);
    assert_int_equal(n_sessions(w->b.st), 0);
    hash_tree(w->b.dir, after);
    assert_memory_equal(before, after, sizeof before);
}

static const uint8_t tape_bytes[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0};
static const char items_text[] =
    "{\"seq\":1,\"t\":5,\"position\":4,\"type\":\"item\",\"item\":\"i1\",\"kind\":\"user\","
    "\"data\":{\"text\":\"hi\"}}\n";

/* A good bundle in parts, for a test to spoil one of. */
struct parts {
    struct buf session, manifest;
    struct bundle_member m[8];
    size_t n;
};

static void parts_init(struct parts *p)
{
    *p = (struct parts){.session = BUF_INIT(1 << 20), .manifest = BUF_INIT(1 << 20), .n = 3};
    bundle_session_text(4, &p->session);
    p->m[0] = (struct bundle_member){"session.json", p->session.data, p->session.len};
    p->m[1] = (struct bundle_member){"items.jsonl", items_text, sizeof items_text - 1};
    p->m[2] = (struct bundle_member){"tape.u32", tape_bytes, sizeof tape_bytes};
    bundle_manifest_text(p->m, p->n, &p->manifest);
}

static void parts_fini(struct parts *p)
{
    buf_fini(&p->session);
    buf_fini(&p->manifest);
}

static void good_by_hand(void **state)
{
    struct world *w = *state;
    AUTO(parts) struct parts p;
    struct bundle_imported in;
    struct error e;
    parts_init(&p);
    bundle_write(w->file, buf_str(&p.manifest), p.m, p.n);
    assert_ok(import(w, w->file, &in, &e), &e);
    assert_int_equal(in.tokens, 4);
}

/* The manifest with one text in place of another, before good members. */
static void spoil_manifest(struct world *w, const char *from, const char *to, const char *why)
{
    AUTO(parts) struct parts p;
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    struct error e;
    parts_init(&p);
    const char *all = buf_str(&p.manifest), *at = strstr(all, from);
    assert_non_null(at);
    assert_ok(buf_add(&text, all, (size_t)(at - all), &e), &e);
    assert_ok(buf_add_str(&text, to, &e), &e);
    assert_ok(buf_add_str(&text, at + strlen(from), &e), &e);
    bundle_write(w->file, buf_str(&text), p.m, p.n);
    refused(w, to, why);
}

static void bad_manifests(void **state)
{
    struct world *w = *state;
    spoil_manifest(w, "agentd-bundle", "other", "format is other");
    spoil_manifest(w, "\"version\":1", "\"version\":2", "version 2");
    spoil_manifest(w, "\"version\":1", "\"version\":0", "version");
    spoil_manifest(w, "01HZZZ", "../../", "no ULID");
    spoil_manifest(w, "\"name\":\"otter\"", "\"name\":\"../../etc/x\"", "session name");
    spoil_manifest(w, "\"otter\"", "\"ot\\u0000er\"", "manifest");
    spoil_manifest(w, "\"redacted\":false", "\"redacted\":true", "redacted");
    spoil_manifest(w, "{\"format\"", "{\"version\":1,\"format\"", "manifest");
    spoil_manifest(w, "\"name\":\"items.jsonl\"", "\"name\":\"/etc/passwd\"", "want items");
    spoil_manifest(w, "\"bytes\":16", "\"bytes\":12", "stands where");
    spoil_manifest(w, "\"bytes\":16", "\"bytes\":17", "a tape of 17 bytes");
    spoil_manifest(w, "\"bytes\":16", "\"bytes\":-1", "bytes");
    spoil_manifest(w, "\"bytes\":16", "\"bytes\":1000000000000", "too much");
    spoil_manifest(w, "\"files\":[", "\"files\":[[],", "name");
    spoil_manifest(w, "\"files\":[", "\"files\":\"", "manifest");
}

static void bad_hashes_and_members(void **state)
{
    struct world *w = *state;
    AUTO(parts) struct parts p;
    uint8_t other[16] = {9};
    parts_init(&p);
    p.m[2].bytes = other;
    bundle_write(w->file, buf_str(&p.manifest), p.m, p.n);
    refused(w, "wrong hash", "not what its hash says");
    p.m[2].bytes = tape_bytes;
    bundle_write(w->file, buf_str(&p.manifest), p.m, 2);
    refused(w, "member missing", "not a ustar");
    p.m[3] = p.m[2];
    bundle_write(w->file, buf_str(&p.manifest), p.m, 4);
    refused(w, "member twice", "does not name");
    p.m[2].name = "../../tape.u32";
    bundle_write(w->file, buf_str(&p.manifest), p.m, 3);
    refused(w, "a path", "stands where");
    p.m[2].name = "tape.u32";
    p.m[3] = (struct bundle_member){"blobs/../../../x", "x", 1};
    bundle_write_members(w->file, p.m, 4);
    refused(w, "a path as blob", "no name of a member");
    p.m[3].name = "kv/0000000000000000000000000000000000000000000000000000000000000000";
    bundle_write_members(w->file, p.m, 4);
    refused(w, "state of another name", "not named by its hash");
    p.m[3].name = "keys/0000000000000000000000000000000000000000000000000000000000000000";
    bundle_write_members(w->file, p.m, 4);
    refused(w, "foreign member", "no name of a member");
    char name[100];
    bundle_blob_name("x", 1, name);
    p.m[3].name = p.m[4].name = name;
    p.m[4].bytes = "x", p.m[4].n = 1;
    bundle_write_members(w->file, p.m, 5);
    refused(w, "blob twice", "there twice");
    p.m[3].bytes = "y";
    bundle_write_members(w->file, p.m, 4);
    refused(w, "blob of another name", "not named by its hash");
}

/* The good bundle's archive with bytes changed before it is compressed. */
static void spoil_archive(struct world *w, size_t at, const char *bytes, size_t n, bool mend,
                          const char *why)
{
    AUTO(parts) struct parts p;
    AUTO(buf) struct buf tar = BUF_INIT(1 << 24);
    parts_init(&p);
    bundle_write(w->file, buf_str(&p.manifest), p.m, p.n);
    bundle_inflate(w->file, &tar);
    memcpy(tar.data + at, bytes, n);
    if (mend) {
        unsigned sum = 8 * ' ';
        uint8_t *h = tar.data + at / 512 * 512;
        for (size_t i = 0; i < 512; i++)
            sum += i < 148 || i >= 156 ? h[i] : 0;
        snprintf((char *)h + 148, 8, "%06o", sum);
    }
    bundle_write_frame(w->file, tar.data, tar.len);
    refused(w, why, why);
}

static void agentscope_6976_bad_archives(void **state)
{
    struct world *w = *state;
    spoil_archive(w, 257, "ustar ", 6, true, "not a ustar");
    spoil_archive(w, 0, "Manifest", 8, true, "begins with");
    spoil_archive(w, 3, "x", 1, false, "checksum");
    spoil_archive(w, 156, "2", 1, true, "a link, a folder");
    spoil_archive(w, 156, "1", 1, true, "a link, a folder");
    spoil_archive(w, 156, "5", 1, true, "a link, a folder");
    spoil_archive(w, 156, "x", 1, true, "a link, a folder");
    spoil_archive(w, 157, "/etc/passwd", 11, true, "a link, a folder");
    spoil_archive(w, 345, "/etc", 4, true, "name is too long");
    spoil_archive(w, 124, "77777777777", 11, true, "manifest of");
    spoil_archive(w, 124, "-0000000001", 11, true, "makes no sense");
    spoil_archive(w, 124, "\x80\0\0\0\0\0\0\0\0\0\x01\x00", 12, true, "makes no sense");
    spoil_archive(w, 124, "00000000000", 11, true, "manifest of 0");
}

static void bad_frames(void **state)
{
    struct world *w = *state;
    AUTO(parts) struct parts p;
    AUTO(buf) struct buf file = BUF_INIT(1 << 24);
    struct error e;
    parts_init(&p);
    bundle_write(w->file, buf_str(&p.manifest), p.m, p.n);
    assert_ok(fs_read_file(w->file, &file, &e), &e);
    for (size_t n = 0; n < file.len; n++) {
        assert_ok(fs_write_atomic(w->file, file.data, n, 0600, &e), &e);
        refused(w, "cut off", "bundle");
    }
    assert_ok(buf_add_byte(&file, 0, &e), &e);
    assert_ok(fs_write_atomic(w->file, file.data, file.len, 0600, &e), &e);
    refused(w, "a byte behind", "behind its end");
    assert_ok(fs_write_atomic(w->file, "plain text, no frame", 20, 0600, &e), &e);
    refused(w, "text", "not a zstd frame");
    unlink(w->file);
    assert_int_equal(mkdir(w->file, 0700), 0);
    refused(w, "folder", "is no file");
    rmdir(w->file);
    assert_int_equal(mkfifo(w->file, 0600), 0);
    refused(w, "pipe", "is no file");
}

/* A frame of a few kilobytes that inflates to a gigabyte of zeros, at any place. */
static void bombs(void **state)
{
    struct world *w = *state;
    AUTO(parts) struct parts p;
    size_t n = 1u << 28;
    AUTO_FREE uint8_t *zeros = calloc(1, n);
    assert_non_null(zeros);
    parts_init(&p);
    bundle_write_frame(w->file, zeros, n);
    refused(w, "zeros", "not a ustar");
    p.m[3] = (struct bundle_member){"bomb", zeros, n};
    bundle_write(w->file, buf_str(&p.manifest), p.m, 4);
    refused(w, "a bomb behind", "does not name");
    p.m[2].bytes = zeros, p.m[2].n = n;
    bundle_write(w->file, buf_str(&p.manifest), p.m, 3);
    refused(w, "a bomb as tape", "stands where");
    char name[100];
    bundle_blob_name(zeros, n, name);
    parts_fini(&p);
    parts_init(&p);
    p.m[3] = (struct bundle_member){name, zeros, n};
    bundle_write_members(w->file, p.m, 4);
    refused(w, "a bomb as blob", "too much");
}

/* session.json or items.jsonl with one text in place of another; hashes are right. */
static void spoil_text(struct world *w, int member, const char *from, const char *to,
                       const char *why)
{
    AUTO(parts) struct parts p;
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    struct error e;
    parts_init(&p);
    const char *all = p.m[member].bytes, *at = strstr(all, from);
    assert_non_null(at);
    assert_ok(buf_add(&text, all, (size_t)(at - all), &e), &e);
    assert_ok(buf_add_str(&text, to, &e), &e);
    assert_ok(buf_add_str(&text, at + strlen(from), &e), &e);
    p.m[member].bytes = text.data, p.m[member].n = text.len;
    bundle_write_members(w->file, p.m, p.n);
    refused(w, to, why);
}

static void bad_contents(void **state)
{
    struct world *w = *state;
    spoil_text(w, 0, "\"tokens\":4", "\"tokens\":5", "5 tokens");
    spoil_text(w, 0, "\"len\":4", "\"len\":3", "segments end at 3");
    spoil_text(w, 0, "\"len\":4", "\"len\":9", "past the tape");
    spoil_text(w, 0, "\"start\":0,\"len\":4", "\"start\":1,\"len\":3", "begins at 0");
    spoil_text(w, 0, "\"input\"", "\"magic\"", "kind");
    spoil_text(w, 0, "\"ced\"", "\"x\"", "segment 0");
    spoil_text(w, 0, "\"ced\"", "\"ced\",\"digest\":\"00\",\"rows\":1", "segment 0");
    spoil_text(w, 0, "\"marks\":[]", "\"marks\":[{\"at\":9,\"from\":0}]", "replay mark");
    spoil_text(w, 0, "\"config\":{", "\"config\":[{", "session.json");
    spoil_text(
        w, 0, "\"turns\":[]",
        "\"turns\":[{\"id\":\"t\",\"params\":\"{}\",\"ledger\":\"{}\",\"state\":\"idle\","
        "\"reason\":\"\",\"step\":0,\"forcedNext\":0,\"firstSeq\":9,\"createdMs\":1}]",
        "no event is its first");
    spoil_text(w, 0, "\"turns\":[]", "\"turns\":[],\"restarts\":[2]", "no such event");
    spoil_text(w, 0, "\"turns\":[]", "\"turns\":[],\"restarts\":[1,1]", "no such event");
    spoil_text(w, 0, "\"turns\":[]", "\"turns\":[],\"restarts\":[1,0]", "no such event");
    spoil_text(w, 0, "\"turns\":[]", "\"turns\":[],\"restarts\":[\"1\"]", "in order");
    spoil_text(w, 0, "\"turns\":[]", "\"turns\":[],\"restarts\":{}", "restarts");
    spoil_text(w, 0, "\"turns\":[]",
               "\"turns\":[{\"id\":\"t\",\"params\":\"nonsense\",\"firstSeq\":1}]", "params");
    spoil_text(
        w, 0, "\"turns\":[]",
        "\"turns\":[{\"id\":\"t\",\"params\":\"{}\",\"ledger\":\"{}\",\"state\":\"idle\","
        "\"reason\":\"a reason that is far too long for one\",\"step\":0,"
        "\"forcedNext\":0,\"firstSeq\":1,\"createdMs\":1}]",
        "at most");
    spoil_text(w, 0, "\"calls\":[]",
               "\"calls\":[{\"id\":\"c\",\"turn\":\"t\",\"name\":\"n\",\"arguments\":\"\","
               "\"step\":0,\"index\":0,\"status\":\"waiting\",\"isError\":false,"
               "\"ingested\":false,\"createdMs\":1,\"endedMs\":1}]",
               "outcome");
    spoil_text(w, 1, "\"seq\":1", "\"seq\":2", "has seq 2");
    spoil_text(w, 1, "\"position\":4", "\"position\":5", "position 5");
    spoil_text(w, 1, "\"item\":\"i1\"", "\"item\":\"a b\"", "item id");
    spoil_text(w, 1, "\"data\":{\"text\":\"hi\"}", "\"data\":[]", "want an object");
    spoil_text(w, 1, "\"data\"", "\"blob\":\"00\",\"data\"", "line 1");
    spoil_text(w, 1, "}\n", "}", "line 1");
    spoil_text(w, 1, "\"kind\":\"user\"", "\"kind\":\"a kind that is far too long for one\"",
               "at most");
}

static enum err no_config(const char *config, struct error *e)
{
    return err_set(e, ERR_CORRUPT, "%.10s is not for us", config);
}

static void callers_refuse_configurations(void **state)
{
    struct world *w = *state;
    AUTO(parts) struct parts p;
    struct bundle_imported in;
    struct error e;
    parts_init(&p);
    bundle_write_members(w->file, p.m, p.n);
    struct bundle_import m = {.path = w->file, .cwd = "/", .check_config = no_config};
    assert_int_equal(bundle_import(w->b.st, &m, &in, &e), ERR_FORMAT);
    assert_int_equal(n_sessions(w->b.st), 0);
}

/* ---- faults ------------------------------------------------------------------------------ */

static void every_failure(void **state)
{
    struct world *w = *state;
    struct bundle_imported in;
    struct error e;
    fill(w);
    export(w->a.st, w->id, w->file);
    for (uint64_t n = 1;; n++) {
        struct bundle_export x = {.session = w->id, .path = w->again};
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = bundle_export(w->a.st, &x, NULL, &e);
        if (!fault_disarm()) {
            assert_ok(rc, &e);
            break;
        }
        if (rc)
            assert_true(rc == ERR_IO || rc == ERR_NOMEM || rc == ERR_LIMIT);
    }
    bundles_same(w->file, w->again);
    for (uint64_t n = 1;; n++) {
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = import(w, w->file, &in, &e);
        if (!fault_disarm()) {
            assert_ok(rc, &e);
            break;
        }
        if (rc)
            assert_int_equal(n_sessions(w->b.st), 0);
        else
            assert_ok(session_delete(w->b.st, in.id, &e), &e);
    }
    assert_int_equal(n_sessions(w->b.st), 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(round_trip),
        T(nothing_runs),
        T(running_equals_resumed),
        T(an_export_is_of_its_beginning),
        T(steps_are_short),
        T(forks_bring_their_history),
        T(compacted_sessions_keep_their_log),
        T(empty_and_twice),
        T(dry_run_changes_nothing),
        T(claude_code_86707_paperclip_8047_redacted_is_for_reading),
        T(files_are_private_and_whole),
        T(good_by_hand),
        T(bad_manifests),
        T(bad_hashes_and_members),
        T(agentscope_6976_bad_archives),
        T(bad_frames),
        T(bombs),
        T(bad_contents),
        T(callers_refuse_configurations),
        T(every_failure),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
