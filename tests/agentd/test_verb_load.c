/* agentd load as a command: the report of a good checkpoint, and of one that cannot run. */
#include <fcntl.h>
#include <sys/wait.h>

#include <jansson.h>

#include "agentd/verbs.h"
#include "base/fs.h"
#include "base/spawn.h"
#include "tests/support/build_folder.h"
#include "tests/support/fenced.h"
#include "tests/support/full_size.h"
#include "tests/support/golden.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

static char dir[TEMPDIR_BYTES];

static int setup(void **state)
{
    (void)state;
    tempdir_make(dir);
    return build_folder_use();
}

static int teardown(void **state)
{
    (void)state;
    tempdir_remove(dir);
    return 0;
}

/* `agentd load -m model [json]`: its exit code; what it writes is appended to out. */
static int load_with(const char *model, const char *json, const char *backend,
                     const char *library, struct buf *out)
{
    const char *argv[] = {"agentd", "load",           "-m",    model, json,
                          backend,  "--cuda-library", library, NULL};
    char path[128];
    struct error e = {0};
    struct spawn child = SPAWN_INIT;
    int status = -1;
    snprintf(path, sizeof(path), "%s/out", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    struct spawn_fd fds[] = {{fd, 1}};
    struct spawn_options o = {.argv = argv, .fds = fds, .n_fds = 1, .die_with_parent = true};
    assert_ok(spawn_start(&o, &child, &e), &e);
    close(fd);
    assert_ok(spawn_wait(&child, 60000, &status, &e), &e);
    spawn_fini(&child);
    assert_ok(fs_read_file(path, out, &e), &e);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int load(const char *model, const char *json, struct buf *out)
{
    return load_with(model, json, "--backend=cpu", "", out);
}

static json_int_t number(const json_t *j, const char *object, const char *key)
{
    const json_t *v = json_object_get(object ? json_object_get(j, object) : j, key);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static void test_good(void **state)
{
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    (void)state;
    assert_int_equal(load(GOLDEN "a_tiny/model", "--json", &out), EXIT_DONE);
    json_t *j = json_loads(buf_str(&out), JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    assert_int_equal(json_array_size(json_object_get(j, "kinds")), 6);
    assert_int_equal(number(j, "parameters", "backbone"), 2805136);
    assert_int_equal(number(j, "parameters", "engram"), 48768);
    assert_int_equal(number(j, NULL, "n_problems"), 0);
    assert_true(json_is_true(json_object_get(j, "runs")));
    json_decref(j);
    buf_clear(&out);
    assert_int_equal(load(GOLDEN "a_tiny/model", NULL, &out), EXIT_DONE);
    assert_non_null(strstr(buf_str(&out), "draft-experts  mapped         48"));
}

/* What goes where on a device, and why; without one, what is missing. */
static void test_device(void **state)
{
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    (void)state;
    assert_int_equal(
        load_with(GOLDEN "a_tiny/model", "--json", "--backend=cuda", emulated_library(), &out),
        EXIT_DONE);
    json_auto_t *j = json_loads(buf_str(&out), JSON_REJECT_DUPLICATES, NULL);
    const json_t *device = json_object_get(j, "device");
    const json_t *list = json_object_get(device, "placement");
    assert_string_equal(json_string_value(json_object_get(device, "name")), "emulated device");
    assert_int_equal(json_array_size(list), 4);
    const json_t *experts = json_array_get(list, 1);
    assert_string_equal(json_string_value(json_object_get(experts, "what")), "routed experts");
    assert_string_equal(json_string_value(json_object_get(experts, "where")), "device");
    assert_int_equal(number(experts, NULL, "bytes"), number(experts, NULL, "of_bytes"));
    assert_true(json_is_true(json_object_get(device, "graphs")));
    buf_clear(&out);
    setenv("AGENTD_EMULATED_DEVICE_BYTES", "100000", 1);
    assert_int_equal(
        load_with(GOLDEN "a_tiny/model", "--json", "--backend=cuda", emulated_library(), &out),
        EXIT_LIMIT);
    unsetenv("AGENTD_EMULATED_DEVICE_BYTES");
    assert_int_equal(
        load_with(GOLDEN "a_tiny/model", "--json", "--backend=cuda", "/nonexistent.so", &out),
        EXIT_MODEL);
}

static void test_full_size(void **state)
{
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    char model[128];
    struct error e = {0};
    struct full_size_options o = {.out = model};
    (void)state;
    snprintf(model, sizeof(model), "%s/model", dir);
    assert_ok(full_size_make(&o, &e), &e);
    assert_int_equal(load(model, NULL, &out), EXIT_LIMIT);
    assert_non_null(strstr(buf_str(&out),
                           "backbone  551.88B parameters, active 16.13B in decode, "
                           "8.28B in prefill\nengram    196.61B"));
    assert_non_null(strstr(buf_str(&out), "draft     14.23B"));
    assert_non_null(strstr(buf_str(&out), "vision    0.49B parameters, skipped"));
    buf_clear(&out);
    o.leave_out = "layers.7.attn.wkv.weight";
    assert_ok(full_size_make(&o, &e), &e);
    assert_int_equal(load(model, "--json", &out), EXIT_MODEL);
    json_t *j = json_loads(buf_str(&out), JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    assert_int_equal(number(j, NULL, "n_problems"), 1);
    assert_true(json_is_false(json_object_get(j, "runs")));
    const json_t *problem = json_array_get(json_object_get(j, "problems"), 0);
    assert_string_equal(json_string_value(json_object_get(problem, "kind")), "missing");
    json_decref(j);
}

static void test_nothing_there(void **state)
{
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    (void)state;
    assert_int_equal(load("/nonexistent", NULL, &out), EXIT_NOTFOUND);
    assert_int_equal(out.len, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_good, setup, teardown),
        cmocka_unit_test_setup_teardown(test_device, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_size, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_there, setup, teardown),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
