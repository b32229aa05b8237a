/* A daemon whose state is encrypted under a passphrase: killed, resumed exactly, refused. */
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/fs.h"
#include "base/spawn.h"
#include "tests/support/build_folder.h"
#include "tests/support/daemon.h"
#include "tests/support/test.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"

static json_int_t figure(const json_t *o, const char *object, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(o, object), key));
}

static void put(const char *path, const char *text)
{
    struct error e;
    assert_ok(fs_write_atomic(path, text, strlen(text), 0600, &e), &e);
}

/* The exit code of a daemon that is not to come up. */
static int refused(const struct daemon_fixture *d, const char *passphrase_file)
{
    char script[200];
    struct error e;
    struct spawn child = SPAWN_INIT;
    int status = -1;
    snprintf(script, sizeof script, "script:%s", d->script);
    const char *argv[] = {
        "agentd",        "serve",   "--engine",
        script,          "--store", d->store,
        "--socket",      d->socket, passphrase_file ? "--passphrase-file" : NULL,
        passphrase_file, NULL};
    struct spawn_options o = {.argv = argv, .die_with_parent = true};
    assert_ok(spawn_start(&o, &child, &e), &e);
    assert_ok(spawn_wait(&child, 20000, &status, &e), &e);
    spawn_fini(&child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void an_encrypted_session_comes_back(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], right[200], wrong[200];
    assert_int_equal(build_folder_use(), 0);
    daemon_make(&d, SAY("one") SAY("two"));
    snprintf(right, sizeof right, "%s/right", d.dir);
    snprintf(wrong, sizeof wrong, "%s/wrong", d.dir);
    put(right, "correct horse\n");
    put(wrong, "correct hors\n");
    d.extra[0] = "--encrypt";
    d.extra[1] = "on";
    d.extra[2] = "--passphrase-file";
    d.extra[3] = right;
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    daemon_prompt(c, id, "first");
    json_decref(daemon_wait(c, id));
    daemon_wait_saved(c);
    client_free(c);
    daemon_kill(&d);

    assert_int_equal(refused(&d, NULL), 6);
    assert_int_equal(refused(&d, wrong), 6);
    /* Nothing was damaged by that; and the store remembers that it encrypts. */
    d.extra[0] = "--passphrase-file";
    d.extra[1] = right;
    d.extra[2] = NULL;
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    daemon_prompt(c, id, "second");
    json_t *a = daemon_wait(c, id);
    assert_string_equal(json_string_value(json_object_get(a, "text")), "two");
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(a, "resume"), "mode")), "exact");
    assert_true(figure(a, "ledger", "restored") > 0);
    assert_int_equal(figure(a, "ledger", "recomputed"), 0);
    /* Both times of a resume are told: to the first usable state, and to all of it. */
    const json_t *ms = json_object_get(json_object_get(a, "resume"), "ms");
    double first = json_number_value(json_object_get(ms, "index"));
    double whole = json_number_value(json_object_get(ms, "read"));
    assert_true(first > 0 && first <= whole);
    json_t *v = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    assert_true(json_is_true(json_object_get(v, "equal")));
    json_decref(v);
    json_decref(a);
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_encrypted_session_comes_back),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
