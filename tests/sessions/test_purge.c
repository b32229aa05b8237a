/* After a purge no file of the store holds any 16 bytes of what the session said, was told,
 * called, or of its tokens: at any alignment, in the database, its WAL, packs, keys, anything.
 * Sessions beside it, before and after it in every file, keep theirs. */
#include <dirent.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "sessions/gc.h"
#include "sessions/search.h"
#include "tests/support/state_fixture.h"
#include "tests/support/store_fixture.h"
#include "tests/support/test.h"

#define RUN 16u
#define TABLE (1u << 20)

/* Every run of 16 bytes of what must be gone, hashed. */
struct runs {
    uint64_t hash[TABLE];
    uint64_t n, seen;
};

static uint64_t hash_of(const uint8_t *p)
{
    uint64_t a, b;
    memcpy(&a, p, 8);
    memcpy(&b, p + 8, 8);
    uint64_t h = (a * 0x9e3779b97f4a7c15u) ^ (b + 0x7f4a7c15u);
    h *= 0xff51afd7ed558ccdu;
    return (h ^ (h >> 31)) | 1;
}

static void add(struct runs *r, const void *text, size_t n)
{
    const uint8_t *p = text;
    for (size_t at = 0; at + RUN <= n; at++) {
        uint64_t h = hash_of(p + at);
        size_t i = h % TABLE;
        while (r->hash[i] && r->hash[i] != h)
            i = (i + 1) % TABLE;
        r->hash[i] = h;
        r->n++;
    }
    assert_true(r->n < TABLE / 2);
}

static bool has(const struct runs *r, const uint8_t *p)
{
    uint64_t h = hash_of(p);
    size_t i = h % TABLE;
    while (r->hash[i] && r->hash[i] != h)
        i = (i + 1) % TABLE;
    return r->hash[i] == h;
}

/* ---- the scan ---------------------------------------------------------------------------- */

static uint64_t scan_file(struct runs *r, const char *path)
{
    AUTO(buf) struct buf b = BUF_INIT(1u << 30);
    struct error e;
    uint64_t n = 0;
    assert_ok(fs_read_file(path, &b, &e), &e);
    for (size_t at = 0; at + RUN <= b.len; at++)
        n += has(r, (const uint8_t *)b.data + at);
    r->seen += b.len;
    return n;
}

/* Places in all files below a folder where one of the runs stands; the first is named. */
static uint64_t scan(struct runs *r, const char *folder, char *where, size_t cap)
{
    uint64_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d));) {
        char path[420];
        struct stat sb;
        if (x->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, x->d_name);
        assert_int_equal(lstat(path, &sb), 0);
        uint64_t here = S_ISDIR(sb.st_mode)   ? scan(r, path, where, cap)
                        : S_ISREG(sb.st_mode) ? scan_file(r, path)
                                              : 0;
        if (here && !n && !S_ISDIR(sb.st_mode))
            snprintf(where, cap, "%s", path);
        n += here;
    }
    closedir(d);
    return n;
}

/* ---- sessions ---------------------------------------------------------------------------- */

struct world {
    struct store_fixture f;
    struct state_layout l;
};

/* Words that no other session uses. */
static void say(char *out, size_t cap, const char *who, uint32_t n)
{
    /* One that is longer than a run: the search index has it as a word. */
    size_t at = (size_t)snprintf(out, cap, "%s%08u%s%u%s ", who, n * 104729, who, n, who);
    for (uint32_t i = 0; at + 32 < cap && i < 40; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s-%u-%u ", who, n * 7919 % 10007, i * 31);
}

/* A session with turns, calls with results, items, raw bytes, marks of words, and state saved
 * again and again; everything that is its own goes into r. */
static void fill(struct world *w, const char *who, uint32_t first, uint32_t turns,
                 struct runs *r, char id[SESSION_ID_CAP])
{
    struct error e;
    fixture_session(&w->f, who, id);
    for (uint32_t t = 0; t < turns; t++) {
        uint32_t ids[61];
        char text[1200], json[1400], arguments[1400], turn[16], item[16], call[16];
        for (uint32_t i = 0; i < 61; i++)
            ids[i] = first + t * 1000 + i * 13;
        say(text, sizeof text, who, t);
        snprintf(json, sizeof json, "{\"item\":{\"text\":\"%s\"}}", text);
        snprintf(arguments, sizeof arguments, "{\"command\":\"echo %s\"}", text);
        snprintf(turn, sizeof turn, "t%u", t);
        snprintf(item, sizeof item, "i%u", t / 2); /* half of them replace an earlier one */
        snprintf(call, sizeof call, "c%u", t);
        uint64_t at = fixture_length(w->f.st, id);
        struct tape_segment seg = {.seg = {at, 61, SEGMENT_INPUT, PREFILL_CED}};
        struct tape_event ev = {.position = TAPE_END,
                                .type = "item",
                                .item = item,
                                .kind = "user",
                                .json = json,
                                .bytes = text,
                                .n_bytes = strlen(text)};
        struct tape_turn tu = {.id = turn,
                               .params = json,
                               .state = "idle",
                               .reason = "end",
                               .ledger = "{}",
                               .finished = true};
        struct tape_call ca = {.id = call,
                               .turn = turn,
                               .name = "run",
                               .arguments = arguments,
                               .status = CALL_DONE,
                               .result = text,
                               .n_result = strlen(text)};
        struct tape_commit c = {.session = id,
                                .position = at,
                                .ids = ids,
                                .n_ids = 61,
                                .segments = &seg,
                                .n_segments = 1,
                                .events = &ev,
                                .n_events = 1,
                                .turn = &tu,
                                .calls = &ca,
                                .n_calls = 1};
        assert_ok(tape_commit(w->f.st, &c, NULL, &e), &e);
        assert_ok(state_save(w->f.st, id, &w->l, at, at + 61, true, NULL, &e), &e);
        if (!r)
            continue;
        add(r, ids, sizeof ids);
        add(r, text, strlen(text));
    }
}

static struct runs *runs_new(void)
{
    struct runs *r = calloc(1, sizeof *r);
    assert_non_null(r);
    return r;
}

static bool is_hit(void *user, const struct search_hit *hit)
{
    (void)hit;
    return ++*(int *)user < 100;
}

static int hits(struct world *w, const char *word)
{
    int n = 0;
    struct error e;
    struct search_query q = {.text = word};
    assert_ok(search_run(w->f.st, &q, is_hit, &n, NULL, &e), &e);
    return n;
}

static void purge_one_of_many(bool encrypt)
{
    struct world *w = calloc(1, sizeof *w);
    struct runs *gone = runs_new(), *kept = runs_new();
    char secret[SESSION_ID_CAP], id[SESSION_ID_CAP], where[420] = "?";
    struct gc_report report;
    struct head_restored got;
    struct error e;
    store_fixture_init(&w->f, false);
    w->f.options.pack_bytes = 1u << 20; /* several packs, sealed ones, too */
    w->f.options.encrypt = encrypt ? STORE_ENCRYPT_ON : STORE_ENCRYPT_OFF;
    assert_ok(store_fixture_open(&w->f, &e), &e);
    state_layout_make(&w->l, LAYOUT_ODD);
    fill(w, "before", 1000000, 12, kept, id);
    fill(w, "secret", 2000000, 24, gone, secret);
    fill(w, "after", 3000000, 12, kept, id);
    assert_true(scan(gone, w->f.dir, where, sizeof where) > 1000);
    assert_true(hits(w, "secret") > 0);
    assert_ok(session_delete(w->f.st, secret, &e), &e);
    assert_ok(gc_purge(w->f.st, &report, &e), &e);
    for (int again = 0; again < 2; again++) {
        uint64_t n = scan(gone, w->f.dir, where, sizeof where);
        if (n)
            fail_msg("%llu places still hold what was purged, one in %s", (unsigned long long)n,
                     where);
        store_fixture_reopen(&w->f);
    }
    print_message(
        "%s: %llu runs of 16 bytes gone from %llu kB of files (%llu extents purged)\n",
        encrypt ? "encrypted" : "plain", (unsigned long long)gone->n,
        (unsigned long long)gone->seen / 2000, (unsigned long long)report.extents);
    /* The scan can see; and the others are whole. */
    assert_true(scan(kept, w->f.dir, where, sizeof where) > 1000);
    assert_int_equal(hits(w, "secret"), 0);
    assert_true(hits(w, "before") > 0);
    assert_ok(state_restore(w->f.st, id, &w->l, TAPE_END, HEAD_TIP, NULL, &got, &e), &e);
    assert_int_equal(got.n_tokens, 12 * 61);
    store_fixture_fini(&w->f);
    free(gone);
    free(kept);
    free(w);
}

static void nothing_is_left(void **state)
{
    (void)state;
    purge_one_of_many(false);
}

static void nothing_is_left_encrypted(void **state)
{
    (void)state;
    purge_one_of_many(true);
}

/* What a fork needs stays; what only the deleted one had goes. */
static void a_fork_keeps_its_part(void **state)
{
    (void)state;
    struct world *w = calloc(1, sizeof *w);
    struct runs *shared = runs_new(), *own = runs_new();
    char parent[SESSION_ID_CAP], fork[SESSION_ID_CAP], where[420] = "?";
    struct gc_report report;
    struct head_restored got;
    struct error e;
    store_fixture_init(&w->f, false);
    assert_ok(store_fixture_open(&w->f, &e), &e);
    state_layout_make(&w->l, LAYOUT_ODD);
    fill(w, "parent", 1000000, 6, shared, parent);
    struct session_fork f = {.parent = parent, .name = "fork"};
    assert_ok(session_fork(w->f.st, &f, fork, &e), &e);
    uint32_t ids[80];
    for (uint32_t i = 0; i < 80; i++)
        ids[i] = 5000000 + i;
    add(own, ids, sizeof ids);
    assert_ok(fixture_append(w->f.st, parent, 5000000, 80, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(w->f.st, parent, &w->l, 366, 446, true, NULL, &e), &e);
    assert_ok(session_delete(w->f.st, parent, &e), &e);
    assert_ok(gc_purge(w->f.st, &report, &e), &e);
    if (scan(own, w->f.dir, where, sizeof where))
        fail_msg("what only the parent had is still in %s", where);
    assert_true(scan(shared, w->f.dir, where, sizeof where) > 100);
    assert_ok(state_restore(w->f.st, fork, &w->l, TAPE_END, HEAD_TIP, NULL, &got, &e), &e);
    assert_int_equal(got.n_tokens, 366);
    store_fixture_fini(&w->f);
    free(shared);
    free(own);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(nothing_is_left_encrypted),
        cmocka_unit_test(a_fork_keeps_its_part),
    };
    return !!run_with_both_shapes(tests);
}
