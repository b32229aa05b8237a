/* agentctl doctor: what it says of this machine is so, and what is wrong is said and is exit
 * code 1. */
#include "tests/support/test.h"

#include <dirent.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include "agentd/verbs.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"
#include "tests/support/fenced.h"
#include "tests/support/tempdir.h"
#include "tests/support/toolrun.h"
#include "tools/tools.h"

#define SPEED "--speed", "2M"

static json_t *report; /* of the last look() */

/* Exit code of doctor --json with these arguments more. */
static int look(const char *a, const char *b)
{
    const char *argv[] = {"doctor", "--json", SPEED, a, b, NULL};
    const struct agentctl_ran *r = agentctl_run(argv);
    json_decref(report);
    report = json_loads(r->out, 0, NULL);
    if (!report)
        fail_msg("exit code %d: %s%s", r->code, r->out, r->err);
    const char *ok = json_is_true(json_object_get(report, "ok")) ? "0" : "1";
    assert_int_equal(r->code, *ok - '0');
    return r->code;
}

static const json_t *line(const char *name)
{
    json_t *l;
    size_t i;
    json_array_foreach(json_object_get(report, "lines"), i, l) {
        if (!strcmp(json_string_value(json_object_get(l, "name")), name))
            return l;
    }
    fail_msg("no line %s", name);
    return NULL;
}

static const char *field(const char *name, const char *what)
{
    const char *s = json_string_value(json_object_get(line(name), what));
    return s ? s : "";
}

static const char *status(const char *name)
{
    return field(name, "status");
}

/* With nothing else wrong: some containers let nobody confine a process. */
static int sound(void)
{
    return strcmp(status("sandbox"), "ok") ? EXIT_FAILED : EXIT_DONE;
}

static void look_sound(const char *a, const char *b)
{
    int code = look(a, b);
    assert_int_equal(code, sound());
}

static size_t n_entries(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void test_a_sound_machine(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], packs[128];
    tempdir_make(dir);
    snprintf(packs, sizeof packs, "%s/packs", dir);
    assert_int_equal(mkdir(packs, 0700), 0);
    look_sound("--store", dir);
    assert_string_equal(field("sqlite", "version"), sqlite3_libversion());
    assert_int_equal(json_array_size(json_object_get(line("sqlite"), "options")) > 5, 1);
    assert_string_equal(field("packs", "path"), packs);
    assert_string_equal(status("database"), "ok");
    assert_string_not_equal(status("database.room"), "fail");
    assert_int_equal(strncmp(field("cpu", "numerics"), "cpu-", 4), 0);
    assert_true(json_integer_value(json_object_get(line("memory"), "bytes")) > 0);
    assert_true(json_real_value(json_object_get(line("speed"), "mbPerSecond")) > 0);
    assert_string_equal(status("model"), "ok");
    /* The counts are those of the lines; the file that was measured with is gone. */
    json_int_t sum = json_integer_value(json_object_get(report, "nOk")) +
                     json_integer_value(json_object_get(report, "nWarn"));
    assert_int_equal(json_array_size(json_object_get(report, "lines")), sum + sound());
    assert_int_equal(n_entries(packs), 2);
    const struct agentctl_ran *r = AGENTCTL("doctor", SPEED, "--store", dir);
    assert_int_equal(r->code, sound());
    assert_has(r->out, "\nok    sqlite ");
    assert_has(r->out, sound() ? " 1 failed\n" : " 0 failed\n");
    tempdir_remove(dir);
}

/* The layers are what the launcher reports to the daemon. */
static void test_the_sandbox_is_the_launchers(void **state)
{
    (void)state;
    char name[64];
    json_auto_t *layers = NULL;
    struct toolrun t;
    struct error e;
    const char *layer;
    json_t *v;
    toolrun_open(&t, NULL);
    enum err rc = tools_probe(t.tools, TOOL_MODE_WORKSPACE_WRITE, t.ws, &layers, &e);
    assert_int_equal(look("--store", t.ws), rc ? EXIT_FAILED : EXIT_DONE);
    assert_string_equal(status("sandbox"), rc ? "fail" : "ok");
    json_object_foreach(layers, layer, v) {
        snprintf(name, sizeof name, "sandbox.%.40s", layer);
        assert_string_equal(field(name, "text"), json_string_value(v));
    }
    toolrun_close(&t);
}

static void test_what_is_wrong_is_said(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], file[128], below[160];
    tempdir_make(dir);
    assert_int_equal(look("--model", dir), EXIT_FAILED);
    assert_string_equal(status("model"), "fail");
    assert_non_null(strstr(field("model", "text"), "config.json"));
    look_sound("--model", "tests/golden/a_tiny/model");
    assert_string_equal(status("model"), "ok");
    /* A file stands where the store's folder should. */
    snprintf(file, sizeof file, "%s/file", dir);
    snprintf(below, sizeof below, "%s/store", file);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(look("--store", below), EXIT_FAILED);
    assert_string_equal(status("database"), "fail");
    assert_string_equal(status("packs"), "fail");
    /* A socket path that no socket can have. */
    char longer[300];
    memset(longer, 'x', sizeof longer);
    longer[0] = '/';
    longer[sizeof longer - 1] = 0;
    assert_int_equal(look("--socket", longer), EXIT_FAILED);
    assert_string_equal(status("socket"), "fail");
    assert_int_equal(AGENTCTL("doctor", "--store", "no/such/folder")->code, EXIT_NOTFOUND);
    assert_int_equal(AGENTCTL("doctor", "--nonsense")->code, EXIT_USAGE);
    tempdir_remove(dir);
}

static void test_what_is_slower_is_a_warning(void **state)
{
    (void)state;
    setenv("AGENTD_FAULT", "fail:aio.ring:1", 1);
    look_sound("--store", "/tmp");
    assert_string_equal(field("io", "backend"), "threads");
    assert_string_equal(status("io"), "warn");
    /* A disk that cannot be read is more than that. */
    setenv("AGENTD_FAULT", "fail:aio.read:1", 1);
    assert_int_equal(look("--store", "/tmp"), EXIT_FAILED);
    assert_string_equal(status("speed"), "fail");
    unsetenv("AGENTD_FAULT");
}

static void test_the_daemon(void **state)
{
    (void)state;
    struct daemon_fixture d;
    daemon_make(&d, "{\"text\":\"ok\"}\n");
    daemon_start(&d, NULL);
    setenv("AGENTD_STORE", d.store, 1);
    look_sound("--socket", d.socket);
    assert_string_equal(status("socket"), "ok");
    assert_string_equal(field("socket", "path"), d.socket);
    assert_string_equal(field("database", "path"), d.store); /* as serve takes it */
    daemon_kill(&d);
    look_sound("--socket", d.socket);
    assert_string_equal(status("socket"), "warn");
    unsetenv("AGENTD_STORE");
    daemon_remove(&d);
    json_decref(report);
    report = NULL;
}

/* A GPU that is there is named; one that is not is no fault, unless `serve` is to use it. */
static void test_gpu(void **state)
{
    (void)state;
    look("--cuda-library", emulated_library());
    assert_string_equal(status("gpu"), "ok");
    assert_string_equal(field("gpu", "numerics"), "cuda-emulated/1");
    assert_string_equal(field("gpu", "device"), "emulated device");
    assert_true(json_integer_value(json_object_get(line("gpu"), "freeBytes")) > 0);
    look("--cuda-library", "/nonexistent.so");
    assert_string_equal(status("gpu"), "ok");
    assert_non_null(strstr(field("gpu", "text"), "not used"));
    setenv("AGENTD_BACKEND", "cuda", 1);
    assert_int_equal(look("--cuda-library", "/nonexistent.so"), EXIT_FAILED);
    assert_string_equal(status("gpu"), "fail");
    unsetenv("AGENTD_BACKEND");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_a_sound_machine),
        cmocka_unit_test(test_the_sandbox_is_the_launchers),
        cmocka_unit_test(test_what_is_wrong_is_said),
        cmocka_unit_test(test_what_is_slower_is_a_warning),
        cmocka_unit_test(test_the_daemon),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
