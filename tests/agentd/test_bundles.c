/* Bundles through the daemon: a session that works, one that was resumed and one that was
 * imported leave as the same bytes; what is hostile is refused with its exit code, and no file
 * of the store changes. */
#include <ftw.h>
#include <time.h>
#include <unistd.h>

#include "agentd/verbs.h"
#include "base/fs.h"
#include "base/hash.h"
#include "tests/support/agentctl.h"
#include "tests/support/bundle_fixture.h"
#include "tests/support/daemon.h"
#include "tests/support/test.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"
#define CALL(command)                                                                          \
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke name=\\\"run\\\">\\n" \
    "<｜DSML｜ parameter name=\\\"command\\\" string=\\\"true\\\">" command                    \
    "</｜DSML｜ parameter>\\n</｜DSML｜ invoke>\\n</｜DSML｜ calls>" EOS "\"}\n"

static void make(struct daemon_fixture *d, const char *script)
{
    daemon_make(d, script);
    daemon_start(d, NULL);
    setenv("AGENTD_SOCKET", d->socket, 1);
}

static void wait_for(const char *state)
{
    while (!strstr(AGENTCTL("ps")->out, state))
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void export(const char *name, const char *file)
{
    const struct agentctl_ran *r = AGENTCTL("export", name, "-o", file);
    if (r->code)
        fail_msg("export %s: %s", name, r->err);
}

/* The session's bundle, then that of its import, then that of the import's. */
static void check_imports(const struct daemon_fixture *d, const char *name, const char *bundle)
{
    char copy[64], file[256], last[256];
    snprintf(last, sizeof last, "%s", bundle);
    for (int i = 0; i < 2; i++) {
        snprintf(copy, sizeof copy, "%s.copy%d", name, i);
        snprintf(file, sizeof file, "%s/%s", d->work, copy);
        const struct agentctl_ran *r = AGENTCTL("import", last, "-n", copy, "-C", d->work);
        if (r->code)
            fail_msg("import %s: %s", last, r->err);
        export(copy, file);
        bundles_same(bundle, file);
        snprintf(last, sizeof last, "%s", file);
    }
}

static void test_opencode_38157_claude_code_43144_running_resumed_imported(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char before[256], after[256], resumed[256], running[256];
    make(&d, CALL("printf 'a\\\\tb\\\\377'") SAY("It said so.") SAY("Still.") CALL("sleep 600")
                 SAY("late"));
    snprintf(before, sizeof before, "%s/before", d.work);
    snprintf(after, sizeof after, "%s/after", d.work);
    snprintf(resumed, sizeof resumed, "%s/resumed", d.work);
    snprintf(running, sizeof running, "%s/running", d.work);
    assert_int_equal(AGENTCTL("run", "-n", "one", "-C", d.work, "--tools", "run", "--approve",
                              "auto", "Say something")
                         ->code,
                     EXIT_DONE);
    /* In memory, and after a kill from what was durable. */
    export("one", before);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    export("one", after);
    bundles_same(before, after);
    check_imports(&d, "one", before);
    /* Resumed: its state came back from the store. */
    assert_int_equal(AGENTCTL("send", "one", "Really?")->code, EXIT_DONE);
    assert_has(AGENTCTL("show", "one")->out, "resume:");
    export("one", resumed);
    assert_int_equal(AGENTCTL("rename", "one", "first")->code, EXIT_DONE);
    check_imports(&d, "first", resumed);
    /* In the middle of a turn, in the middle of a call. */
    AGENTCTL("send", "-d", "first", "More?");
    wait_for("tool");
    export("first", running);
    assert_int_equal(AGENTCTL("rename", "first", "last")->code, EXIT_DONE);
    check_imports(&d, "last", running);
    assert_has(AGENTCTL("ps")->out, "last ");
    daemon_remove(&d);
}

/* ---- files of a store ---------------------------------------------------------------- */

static struct hash *tree;

static int add_to_tree(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)ftw;
    AUTO(buf) struct buf b = BUF_INIT(256 << 20);
    struct error e;
    hash_field(tree, path, strlen(path));
    if (type == FTW_F) {
        assert_ok(fs_read_file(path, &b, &e), &e);
        hash_field(tree, buf_str(&b), b.len);
    }
    return 0;
}

/* Every byte of every file of the store. */
static void hash_store(const struct daemon_fixture *d, uint8_t out[HASH_BYTES])
{
    struct hash h;
    tree = &h;
    hash_init(&h, NULL, HASH_BYTES);
    nftw(d->store, add_to_tree, 16, FTW_PHYS);
    hash_final(&h, out);
}

/* The state commit of the turn follows its end. */
static void settle(const struct daemon_fixture *d)
{
    uint8_t last[HASH_BYTES], now[HASH_BYTES] = {0};
    do {
        memcpy(last, now, sizeof last);
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        hash_store(d, now);
    } while (memcmp(last, now, sizeof last) != 0);
}

/* ---- with state ------------------------------------------------------------------- */

/* Sends a prompt; what its ledger says was restored and computed again. */
static void go_on(const char *name, json_int_t *restored, json_int_t *again)
{
    assert_int_equal(AGENTCTL("send", name, "And now?")->code, EXIT_DONE);
    json_auto_t *w = json_loads(AGENTCTL("wait", "--json", name)->out, 0, NULL);
    const json_t *ledger = json_object_get(w, "ledger");
    assert_non_null(ledger);
    *restored = json_integer_value(json_object_get(ledger, "restored"));
    *again = json_integer_value(json_object_get(ledger, "recomputed"));
}

static void test_state_goes_along(void **state)
{
    (void)state;
    struct daemon_fixture d, other;
    char file[256];
    json_int_t restored, again;
    make(&d, SAY("one") SAY("two"));
    snprintf(file, sizeof file, "%s/with", d.work);
    assert_int_equal(AGENTCTL("run", "-n", "a", "-C", d.work, "--tools", "", "hi")->code,
                     EXIT_DONE);
    json_auto_t *s = json_loads(AGENTCTL("show", "--json", "a")->out, 0, NULL);
    json_int_t tokens = json_integer_value(json_object_get(s, "tokens"));
    settle(&d);
    const struct agentctl_ran *r = AGENTCTL("export", "a", "--with-kv", "-o", file);
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "with the state of ");
    assert_int_equal(AGENTCTL("export", "a", "--with-kv", "--redact", "-o", file)->code,
                     EXIT_USAGE);
    /* The same master key. */
    r = AGENTCTL("import", file, "-n", "b", "-C", d.work);
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->err, "with the state of ");
    go_on("b", &restored, &again);
    assert_int_equal(restored, tokens);
    assert_int_equal(again, 0);
    assert_int_equal(AGENTCTL("verify", "b")->code, EXIT_DONE);
    /* Another store: left out, said, computed again; taken if it is trusted. */
    make(&other, SAY("one") SAY("two"));
    r = AGENTCTL("import", file, "-n", "c", "-C", other.work);
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->err, "left out and will be computed again: ");
    go_on("c", &restored, &again);
    assert_int_equal(restored, 0);
    assert_int_equal(again, tokens);
    r = AGENTCTL("import", file, "-n", "e", "-C", other.work, "--trust-kv");
    assert_int_equal(r->code, EXIT_DONE);
    go_on("e", &restored, &again);
    assert_int_equal(restored, tokens);
    assert_int_equal(AGENTCTL("verify", "e")->code, EXIT_DONE);
    daemon_remove(&other);
    daemon_remove(&d);
}

/* ---- hostile ---------------------------------------------------------------------- */

static void check_refused(const struct daemon_fixture *d, const char *file, const char *why)
{
    uint8_t before[HASH_BYTES], after[HASH_BYTES];
    hash_store(d, before);
    const struct agentctl_ran *r = AGENTCTL("import", file, "-C", d->work);
    if (r->code != EXIT_CORRUPT || !strstr(r->err, why) || r->out[0])
        fail_msg("want \"%s\", exit code %d: %s%s", why, r->code, r->out, r->err);
    hash_store(d, after);
    assert_memory_equal(before, after, sizeof before);
}

/* A good bundle's members, of which each test spoils something. */
static const uint8_t tape_bytes[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0};
static const char items_text[] =
    "{\"seq\":1,\"t\":5,\"position\":4,\"type\":\"item\",\"item\":\"i1\",\"kind\":\"user\","
    "\"data\":{\"item\":{\"id\":\"i1\",\"kind\":\"user\",\"text\":\"hi\"}}}\n";

struct parts {
    struct buf session, manifest;
    struct bundle_member m[5];
};

static void parts_fini(struct parts *p)
{
    buf_fini(&p->session);
    buf_fini(&p->manifest);
}

static void parts_init(struct parts *p)
{
    *p = (struct parts){.session = BUF_INIT(1 << 20), .manifest = BUF_INIT(1 << 20)};
    bundle_session_text(4, &p->session);
    p->m[0] = (struct bundle_member){"session.json", p->session.data, p->session.len};
    p->m[1] = (struct bundle_member){"items.jsonl", items_text, sizeof items_text - 1};
    p->m[2] = (struct bundle_member){"tape.u32", tape_bytes, sizeof tape_bytes};
    bundle_manifest_text(p->m, 3, &p->manifest);
}

/* One kind each; tests/sessions/test_bundle.c has all of them. */
static void test_agent_os_678_xagent_420_hostile_bundles(void **state)
{
    (void)state;
    struct daemon_fixture d;
    AUTO(parts) struct parts p;
    AUTO(buf) struct buf b = BUF_INIT(1 << 24);
    AUTO_FREE uint8_t *zeros = calloc(1, 1 << 26);
    char file[256], name[100];
    make(&d, SAY("fine"));
    snprintf(file, sizeof file, "%s/bad", d.work);
    assert_int_equal(AGENTCTL("run", "-n", "one", "-C", d.work, "--tools", "", "hi")->code,
                     EXIT_DONE);
    parts_init(&p);
    settle(&d);
    /* Paths and links. */
    p.m[3] = (struct bundle_member){"../../../../tmp/x", "x", 1};
    bundle_write_members(file, p.m, 4);
    check_refused(&d, file, "no name of a member");
    p.m[3].name = "/etc/passwd";
    bundle_write_members(file, p.m, 4);
    check_refused(&d, file, "no name of a member");
    bundle_write(file, buf_str(&p.manifest), p.m, 3);
    bundle_inflate(file, &b);
    b.data[156] = '2';
    memcpy(b.data + 157, "/etc/passwd", 11);
    bundle_write_frame(file, b.data, b.len);
    check_refused(&d, file, "checksum");
    assert_int_equal(unlink(file), 0);
    assert_int_equal(symlink("/dev/zero", file), 0);
    check_refused(&d, file, "is no file");
    unlink(file);
    /* Bombs. */
    bundle_write_frame(file, zeros, 1 << 26);
    check_refused(&d, file, "not a ustar");
    bundle_blob_name(zeros, 1 << 26, name);
    p.m[3] = (struct bundle_member){name, zeros, 1 << 26};
    bundle_write_members(file, p.m, 4);
    check_refused(&d, file, "too much");
    /* Truncated. */
    bundle_write(file, buf_str(&p.manifest), p.m, 3);
    assert_int_equal(truncate(file, 200), 0);
    check_refused(&d, file, "bundle");
    /* Duplicated names. */
    bundle_blob_name("x", 1, name);
    p.m[3] = p.m[4] = (struct bundle_member){name, "x", 1};
    bundle_write_members(file, p.m, 5);
    check_refused(&d, file, "there twice");
    /* Wrong hashes. */
    p.m[2].bytes = "0123456789abcdef";
    bundle_write(file, buf_str(&p.manifest), p.m, 3);
    check_refused(&d, file, "not what its hash says");
    p.m[2].bytes = tape_bytes;
    /* Future versions. */
    char *version = strstr((char *)p.manifest.data, "\"version\":1");
    assert_non_null(version);
    version[10] = '9';
    bundle_write(file, (const char *)p.manifest.data, p.m, 3);
    check_refused(&d, file, "version 9");
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opencode_38157_claude_code_43144_running_resumed_imported),
        cmocka_unit_test(test_state_goes_along),
        cmocka_unit_test(test_agent_os_678_xagent_420_hostile_bundles),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
