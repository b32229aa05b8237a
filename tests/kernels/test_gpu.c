/* The programs of check-gpu and bench-gpu, where there is no GPU: on the emulated library they
 * do all that they do on a device, in small. */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "kernels/cuda.h"
#include "tests/gpu/mirror.h"
#include "tests/support/fenced.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#define EXIT_NO_DEVICE 3

extern char **environ;

static char dir[TEMPDIR_BYTES], *out;

static int setup(void **state)
{
    (void)state;
    tempdir_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(out);
    out = NULL;
    tempdir_remove(dir);
    return 0;
}

/* Path of a program of this build. */
static const char *program(const char *name)
{
    static char path[256];
    const char *build = getenv("AGENTD_BUILD");
    (void)snprintf(path, sizeof path, "%s/%s", build ? build : "build", name);
    return path;
}

/* Exit status of a command line; its stdout, and stderr with both, is in `out`. */
static int run(const char *const argv[8], bool both)
{
    char path[TEMPDIR_BYTES + 8], *args[8];
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    struct error e = {0};
    posix_spawn_file_actions_t files;
    pid_t child;
    int status = -1;
    memcpy(args, argv, sizeof args);
    (void)snprintf(path, sizeof path, "%s/out", dir);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (both)
        posix_spawn_file_actions_adddup2(&files, 1, 2);
    else
        posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawn(&child, args[0], &files, NULL, args, environ);
    posix_spawn_file_actions_destroy(&files);
    assert_int_equal(rc, 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_ok(fs_read_file(path, &text, &e), &e);
    free(out);
    out = strdup(buf_str(&text));
    assert_non_null(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_bench(void **state)
{
    (void)state;
    size_t n = 0, n_layers = 0, n_resumes = 0;
    const char *argv[8] = {program("gpu/bench_gpu"),
                           "--library",
                           emulated_library(),
                           "--small",
                           "--folder",
                           dir,
                           NULL};
    assert_int_equal(run(argv, false), 0);
    for (char *rest = out, *line; (line = strtok_r(rest, "\n", &rest));) {
        json_auto_t *j = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        const char *what = json_string_value(json_object_get(j, "what"));
        assert_non_null(j);
        n++;
        if (what && !strcmp(what, "layer")) {
            assert_true(json_number_value(json_object_get(j, "us")) > 0);
            assert_true(json_number_value(json_object_get(j, "floor_us")) > 0);
            n_layers++;
        }
        if (what && !strncmp(what, "resume", 6)) {
            assert_true(json_integer_value(json_object_get(j, "device_bytes")) >=
                        json_integer_value(json_object_get(j, "bytes")));
            n_resumes++;
        }
    }
    assert_int_equal(n_layers, 5);
    assert_int_equal(n_resumes, 2);
    assert_true(n > 50);
}

/* cuBLAS is looked up, timed beside ours, and found out: the stand-in adds a row in company in
 * another order than alone. */
static void test_bench_cublas(void **state)
{
    (void)state;
    size_t n_alone = 0, n_company = 0;
    char folder[256];
    (void)snprintf(folder, sizeof folder, "%s", program("tests/standin"));
    const char *argv[8] = {program("gpu/bench_gpu"),
                           "--library",
                           emulated_library(),
                           "--small",
                           "--folder",
                           dir,
                           NULL};
    setenv("LD_LIBRARY_PATH", folder, 1);
    assert_int_equal(run(argv, false), 0);
    unsetenv("LD_LIBRARY_PATH");
    for (char *rest = out, *line; (line = strtok_r(rest, "\n", &rest));) {
        json_auto_t *j = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        const char *what = json_string_value(json_object_get(j, "what"));
        const char *shape = json_string_value(json_object_get(j, "shape"));
        json_int_t moved = json_integer_value(json_object_get(j, "cublas_moved"));
        if (!what || strcmp(what, "dense product") != 0)
            continue;
        assert_true(json_number_value(json_object_get(j, "cublas_bf16_us")) > 0);
        assert_true(json_number_value(json_object_get(j, "ours_fp8_us")) > 0);
        if (!strncmp(shape, "1 token,", 8)) {
            assert_int_equal(moved, 0);
            n_alone++;
        } else {
            assert_true(moved > 0);
            n_company++;
        }
    }
    assert_int_equal(n_alone, 3);
    assert_int_equal(n_company, 3);
}

/* Without a device both say so, with a status of its own. */
static void test_no_device(void **state)
{
    (void)state;
    const char *bench[8] = {program("gpu/bench_gpu"), "--library", "/nonexistent.so", NULL};
    assert_int_equal(run(bench, true), EXIT_NO_DEVICE);
    assert_non_null(strstr(out, "/nonexistent.so"));
    const char *wrong[8] = {program("gpu/bench_gpu"), "--nothing", NULL};
    assert_int_equal(run(wrong, true), 2);
    const char *build = getenv("AGENTD_BUILD");
    const char *check[8] = {"tests/gpu/run", build ? build : "build", "/nonexistent.so", NULL};
    setenv("GPU_TESTS", "kernels/test_rows", 1);
    assert_int_equal(run(check, true), EXIT_NO_DEVICE);
    unsetenv("GPU_TESTS");
    assert_null(strstr(out, "passed"));
}

/* The tests of the ops, through the mirror that a real device stands behind. */
static void test_mirrored(void **state)
{
    (void)state;
    static const char *const names[] = {"tests/kernels/test_rows", "tests/kernels/test_moe"};
    setenv("AGENTD_TEST_GPU", emulated_library(), 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *argv[8] = {program(names[i]), NULL};
        if (run(argv, true))
            fail_msg("%s behind the mirror: %s", names[i], out);
    }
    unsetenv("AGENTD_TEST_GPU");
}

/* What an op writes beside an array does not go unseen. */
static void bad_scale(struct kernels *k, const struct k_scale *a)
{
    const float x = 1;
    k->copy_in(k, a->x + a->n, &x, sizeof x);
}

static void test_mirror_sees(void **state)
{
    (void)state;
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        struct kernels device = {0}, k = {0};
        float x[4] = {1, 2, 3, 4};
        (void)!freopen("/dev/null", "w", stderr);
        (void)signal(SIGABRT, SIG_DFL);
        if (kernels_cuda(&device, emulated_library(), 0, NULL))
            _exit(1);
        device.scale = bad_scale;
        if (mirror_open(&k, &device, NULL))
            _exit(1);
        k.scale(&k, &(struct k_scale){x, 4, 1, K_EXACT});
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bench), cmocka_unit_test(test_bench_cublas),
        cmocka_unit_test(test_no_device), cmocka_unit_test(test_mirrored),
        cmocka_unit_test(test_mirror_sees)};
    return !!cmocka_run_group_tests(tests, setup, teardown);
}
