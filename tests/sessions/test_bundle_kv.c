/* Bundles that carry model state: taken where it was written under the same master key or is
 * trusted, left out where it is another model's or another store's, refused where it
 * contradicts itself. What was taken is checked byte by byte against what the token ids say. */
#include <jansson.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fault.h"
#include "base/fs.h"
#include "sessions/bundle.h"
#include "tests/support/bundle_fixture.h"
#include "tests/support/state_fixture.h"
#include "tests/support/test.h"

#define TOKENS 75

struct world {
    struct store_fixture a, b; /* from, to */
    struct state_layout l;
    char file[160], id[SESSION_ID_CAP];
};

/* same_key: the second store has the master key of the first. */
static struct world *make(enum layout_shape shape, bool same_key)
{
    struct error e;
    struct world *w = calloc(1, sizeof *w);
    char from[256], to[256];
    assert_non_null(w);
    store_fixture_init(&w->a, false);
    store_fixture_init(&w->b, false);
    assert_ok(store_fixture_open(&w->a, &e), &e);
    if (same_key) {
        AUTO(buf) struct buf key = BUF_INIT(4096);
        snprintf(from, sizeof from, "%s/master.key", w->a.state);
        snprintf(to, sizeof to, "%s/master.key", w->b.state);
        assert_ok(fs_mkdir_p(w->b.state, &e), &e);
        assert_ok(fs_read_file(from, &key, &e), &e);
        assert_ok(fs_write_atomic(to, key.data, key.len, 0600, &e), &e);
    }
    assert_ok(store_fixture_open(&w->b, &e), &e);
    snprintf(w->file, sizeof w->file, "%s/one.bundle", w->a.dir);
    state_layout_make(&w->l, shape);
    fixture_session(&w->a, "otter", w->id);
    assert_ok(fixture_append(w->a.st, w->id, 0, TOKENS, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(w->a.st, w->id, &w->l, 0, 40, true, NULL, &e), &e);
    assert_ok(state_save(w->a.st, w->id, &w->l, 40, TOKENS, true, NULL, &e), &e);
    return w;
}

static void end(struct world *w)
{
    store_fixture_fini(&w->a);
    store_fixture_fini(&w->b);
    free(w);
}

static void export(struct world *w)
{
    struct error e;
    struct bundle_exported out;
    struct bundle_export x = {.session = w->id, .path = w->file, .layout = &w->l};
    assert_ok(bundle_export(w->a.st, &x, &out, &e), &e);
    assert_int_equal(out.kv_tokens, TOKENS);
}

static enum err import(struct world *w, const struct state_layout *l, bool trust,
                       struct bundle_imported *out, struct error *e)
{
    struct bundle_import m = {.path = w->file, .cwd = "/", .layout = l, .trust_kv = trust};
    return bundle_import(w->b.st, &m, out, e);
}

/* Tokens that come back; every byte of them is checked. */
static uint64_t restored(struct world *w, const char *id, bool *tip)
{
    struct error e;
    struct head_restored r;
    assert_ok(state_restore(w->b.st, id, &w->l, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
    *tip = r.has_tip;
    return r.n_tokens;
}

static void state_goes_along(void **state)
{
    (void)state;
    const enum layout_shape shapes[] = {LAYOUT_ODD, LAYOUT_PAGES, LAYOUT_TIP};
    for (int i = 0; i < 6; i++) {
        struct world *w = make(shapes[i / 2], i % 2 == 0);
        struct bundle_imported in;
        struct error e;
        bool tip;
        export(w);
        /* Another key: only if it is trusted. */
        assert_ok(import(w, &w->l, i % 2 != 0, &in, &e), &e);
        assert_string_equal(in.kv_note, "");
        assert_int_equal(in.kv_tokens, TOKENS);
        assert_int_equal(restored(w, in.id, &tip), TOKENS);
        assert_true(tip);
        /* The session goes on from there. */
        assert_ok(fixture_append(w->b.st, in.id, 500, 20, SEGMENT_INPUT, &e), &e);
        assert_ok(state_save(w->b.st, in.id, &w->l, TOKENS, TOKENS + 20, true, NULL, &e), &e);
        assert_int_equal(restored(w, in.id, &tip), TOKENS + 20);
        end(w);
    }
}

/* What is left out is said, and nothing of it is served. */
static void left_out(struct world *w, const struct state_layout *l, const char *why)
{
    struct bundle_imported in;
    struct error e;
    bool tip;
    assert_ok(import(w, l, false, &in, &e), &e);
    assert_int_equal(in.kv_tokens, 0);
    if (!strstr(in.kv_note, why))
        fail_msg("\"%s\", want \"%s\"", in.kv_note, why);
    assert_int_equal(restored(w, in.id, &tip), 0);
    assert_int_equal(fixture_length(w->b.st, in.id), TOKENS);
}

static void foreign_state_is_left_out(void **state)
{
    (void)state;
    struct world *w = make(LAYOUT_ODD, false);
    export(w);
    left_out(w, &w->l, "master key");
    left_out(w, NULL, "another model");
    struct state_layout other = w->l;
    other.fingerprint[3] ^= 1;
    left_out(w, &other, "another model");
    other = w->l;
    if (other.n_planes)
        other.planes[0].row_bytes++;
    else
        other.tip_bytes++;
    left_out(w, &other, "another model");
    end(w);
}

/* Nobody without the key can say that these rows are of these tokens. */
static void a_bundle_without_state_says_nothing(void **state)
{
    (void)state;
    struct world *w = make(LAYOUT_ODD, true);
    struct bundle_imported in;
    struct bundle_exported out;
    struct error e;
    struct bundle_export x = {.session = w->id, .path = w->file};
    assert_ok(bundle_export(w->a.st, &x, &out, &e), &e);
    assert_int_equal(out.kv_tokens, 0);
    assert_ok(import(w, &w->l, true, &in, &e), &e);
    assert_int_equal(in.kv_tokens, 0);
    assert_string_equal(in.kv_note, "");
    x.redact = true;
    x.layout = &w->l;
    assert_int_equal(bundle_export(w->a.st, &x, &out, &e), ERR_INVAL);
    end(w);
}

/* ---- changed bundles --------------------------------------------------------------------- */

/* The members of a bundle, to be changed and written again with hashes that are right. */
struct members {
    struct buf tar, session;
    struct bundle_member m[16];
    char names[16][100];
    size_t n;
    json_t *json;
};

static void members_read(struct world *w, struct members *x)
{
    *x = (struct members){.tar = BUF_INIT(1 << 26), .session = BUF_INIT(1 << 20)};
    bundle_inflate(w->file, &x->tar);
    for (size_t at = 0; at + 512 < x->tar.len && x->tar.data[at];) {
        size_t n = strtoul((char *)x->tar.data + at + 124, NULL, 8);
        if (at) {
            assert_true(x->n < 16);
            snprintf(x->names[x->n], 100, "%s", (char *)x->tar.data + at);
            x->m[x->n] = (struct bundle_member){x->names[x->n], x->tar.data + at + 512, n};
            x->n++;
        }
        at += 512 + (n + 511) / 512 * 512;
    }
    x->json = json_loadb(x->m[0].bytes, x->m[0].n, 0, NULL);
    assert_non_null(x->json);
}

static void members_fini(struct members *x)
{
    buf_fini(&x->tar);
    buf_fini(&x->session);
    json_decref(x->json);
}

static int by_name(const void *a, const void *b)
{
    const struct bundle_member *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static void members_write(struct world *w, struct members *x)
{
    struct error e;
    char *text = json_dumps(x->json, JSON_COMPACT);
    buf_clear(&x->session);
    assert_ok(buf_add_str(&x->session, text, &e), &e);
    free(text);
    x->m[0].bytes = x->session.data;
    x->m[0].n = x->session.len;
    qsort(x->m + 3, x->n - 3, sizeof x->m[0], by_name);
    bundle_write_members(w->file, x->m, x->n);
}

static json_t *state_of(struct members *x)
{
    return json_object_get(x->json, "state");
}

static void refused(struct world *w, const char *why)
{
    struct bundle_imported in;
    struct error e;
    struct store_counters before, after;
    store_count(w->b.st, &before);
    for (int trust = 0; trust < 2; trust++) {
        enum err rc = import(w, &w->l, trust, &in, &e);
        if (rc != ERR_FORMAT || !strstr(e.msg, why))
            fail_msg("code %d, \"%s\", want \"%s\"", (int)rc, e.msg, why);
    }
    store_count(w->b.st, &after);
    assert_memory_equal(&before, &after, sizeof before);
}

/* One field of the state set to something else; the rest is as it was written. */
static void with_field(struct world *w, const char *field, json_t *v, const char *why)
{
    AUTO(members) struct members x;
    export(w);
    members_read(w, &x);
    json_object_set_new(state_of(&x), field, v);
    members_write(w, &x);
    refused(w, why);
}

static void state_that_contradicts_itself_is_refused(void **state)
{
    (void)state;
    struct world *w = make(LAYOUT_ODD, true);
    AUTO(members) struct members x;
    char name[100];
    with_field(w, "position", json_integer(TOKENS + 1), "the tape has");
    /* Without rows there are no parts, and nothing but the tag says how far a tip goes. */
    if (w->l.n_planes)
        with_field(w, "position", json_integer(TOKENS - 16), "bytes, its rows");
    with_field(w, "position", json_integer(0), "position");
    with_field(w, "partTokens", json_integer(0), "partTokens");
    if (w->l.n_planes) {
        with_field(w, "partTokens", json_integer(16), "parts for");
        with_field(w, "parts", json_array(), "parts of state");
    }
    with_field(w, "parts", json_pack("[s]", "00"), w->l.n_planes ? "want a hash" : "parts for");
    with_field(w, "tag", json_string("00"), "tag");
    with_field(w, "tip", json_string("11"), "tip");
    with_field(w, "numerics", json_string("a class with a name that is too long"), "numerics");
    with_field(w, "planes", json_string("0"), "planes");
    with_field(w, "fingerprint", json_null(), "fingerprint");
    /* A part that is not there; one that nobody names. */
    export(w);
    members_read(w, &x);
    size_t n = w->l.n_planes ? 5 : 4; /* one part, if there are rows; one tip */
    assert_int_equal(x.n, n);
    x.n = n - 1;
    members_write(w, &x);
    refused(w, "state");
    export(w);
    members_fini(&x);
    members_read(w, &x);
    bundle_blob_name("y", 1, name);
    snprintf(x.names[n], 100, "kv/%.80s", name + strlen("blobs/"));
    x.m[n] = (struct bundle_member){x.names[n], "y", 1};
    x.n = n + 1;
    members_write(w, &x);
    refused(w, "parts of state");
    json_object_del(x.json, "state");
    members_write(w, &x);
    refused(w, "parts of state");
    end(w);
}

/* Rows (or, without any, the tip) that were changed, with hashes put right: the tag no longer
 * holds. */
static void changed_state_is_left_out(void **state)
{
    (void)state;
    struct world *w = make(LAYOUT_ODD, true);
    AUTO(members) struct members x;
    struct hash h;
    uint8_t hash[HASH_BYTES];
    char hex[HEX_CHARS(HASH_BYTES)];
    export(w);
    members_read(w, &x);
    json_t *parts = json_object_get(state_of(&x), "parts");
    const char *part = json_string_value(w->l.n_planes ? json_array_get(parts, 0)
                                                       : json_object_get(state_of(&x), "tip"));
    assert_non_null(part);
    for (size_t i = 3; i < x.n; i++) {
        if (strcmp(x.names[i] + 3, part) != 0)
            continue;
        ((uint8_t *)(uintptr_t)x.m[i].bytes)[7] ^= 1;
        hash_init(&h, NULL, HASH_BYTES);
        hash_add(&h, x.m[i].bytes, x.m[i].n);
        hash_final(&h, hash);
        hex_encode(hash, sizeof hash, hex);
        snprintf(x.names[i], 100, "kv/%s", hex);
        x.m[i].name = x.names[i];
    }
    if (w->l.n_planes)
        json_array_set_new(parts, 0, json_string(hex));
    else
        json_object_set_new(state_of(&x), "tip", json_string(hex));
    members_write(w, &x);
    left_out(w, &w->l, "master key");
    /* The same rows and tip for other tokens. */
    export(w);
    members_fini(&x);
    members_read(w, &x);
    ((uint8_t *)(uintptr_t)x.m[2].bytes)[0] ^= 1;
    members_write(w, &x);
    left_out(w, &w->l, "master key");
    /* And for the same tokens in other segments. */
    export(w);
    members_fini(&x);
    members_read(w, &x);
    json_t *segment = json_array_get(json_object_get(x.json, "segments"), 0);
    json_object_set_new(segment, "mode", json_string("full"));
    members_write(w, &x);
    left_out(w, &w->l, "master key");
    end(w);
}

/* An export is a look: the session's own head goes on as it was. */
static void the_exported_head_stays(void **state)
{
    (void)state;
    struct world *w = make(LAYOUT_ODD, true);
    struct error e;
    export(w);
    assert_ok(fixture_append(w->a.st, w->id, 700, 9, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(w->a.st, w->id, &w->l, TOKENS, TOKENS + 9, true, NULL, &e), &e);
    end(w);
}

static void every_failure(void **state)
{
    (void)state;
    struct world *w = make(LAYOUT_ODD, true);
    struct bundle_imported in;
    struct error e;
    bool tip;
    uint64_t short_of = 0;
    for (uint64_t n = 1;; n++) {
        struct bundle_export x = {.session = w->id, .path = w->file, .layout = &w->l};
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = bundle_export(w->a.st, &x, NULL, &e);
        if (!fault_disarm()) {
            assert_ok(rc, &e);
            break;
        }
    }
    export(w);
    for (uint64_t n = 1;; n++) {
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = import(w, &w->l, false, &in, &e);
        bool clean = !fault_disarm();
        if (!rc) {
            /* All of it and right, or said to be missing. */
            uint64_t have = restored(w, in.id, &tip);
            assert_true(in.kv_tokens == 0 || (in.kv_tokens == TOKENS && have == TOKENS));
            short_of += in.kv_note[0] != 0;
            assert_true(in.kv_tokens || in.kv_note[0]);
            assert_ok(session_delete(w->b.st, in.id, &e), &e);
        }
        if (clean) {
            assert_int_equal(rc, OK);
            assert_int_equal(in.kv_tokens, TOKENS);
            break;
        }
    }
    assert_true(short_of > 5);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_goes_along),
        cmocka_unit_test(foreign_state_is_left_out),
        cmocka_unit_test(a_bundle_without_state_says_nothing),
        cmocka_unit_test(state_that_contradicts_itself_is_refused),
        cmocka_unit_test(changed_state_is_left_out),
        cmocka_unit_test(the_exported_head_stays),
        cmocka_unit_test(every_failure),
    };
    return !!run_with_both_shapes(tests);
}
