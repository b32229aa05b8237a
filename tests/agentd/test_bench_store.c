/* agentd bench store as a command, on a small geometry: that it measures what it says, that the
 * limits can be missed, and that nothing is left behind. agentd key as a command. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "agentd/bench_store.h"
#include "agentd/verbs.h"
#include "base/fs.h"
#include "base/spawn.h"
#include "sessions/keys.h"
#include "tests/support/build_folder.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#define NO_PASSPHRASE ((struct keys_passphrase){0})

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

/* Runs agentd; its exit code. stdout is appended to out. */
static int agentd(const char *const *argv, struct buf *out)
{
    char path[128];
    struct error e = {0};
    struct spawn child = SPAWN_INIT;
    int status = -1;
    snprintf(path, sizeof path, "%s/out", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    struct spawn_fd fds[] = {{fd, 1}};
    struct spawn_options o = {.argv = argv, .fds = fds, .n_fds = 1, .die_with_parent = true};
    assert_ok(spawn_start(&o, &child, &e), &e);
    close(fd);
    assert_ok(spawn_wait(&child, 60000, &status, &e), &e);
    spawn_fini(&child);
    assert_ok(fs_read_file(path, out, &e), &e);
    assert_int_equal(unlink(path), 0);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static bool is_empty(const char *path)
{
    DIR *d = opendir(path);
    size_t n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n == 2;
}

static double figure(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static json_t *bench(const char *encrypt, const char *more, const char *value)
{
    const char *const argv[] = {"agentd",    "bench", "store",   "--geometry", "small",
                                "--tokens",  "70000", "--pairs", "3",          "--json",
                                "--encrypt", encrypt, "--dir",   dir,          more,
                                value,       NULL};
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    assert_int_equal(agentd(argv, &out), EXIT_DONE);
    json_t *j = json_loads(buf_str(&out), 0, NULL);
    assert_non_null(j);
    assert_true(is_empty(dir));
    return j;
}

static void a_restore_is_measured(void **state)
{
    (void)state;
    for (int sealed = 0; sealed < 2; sealed++) {
        json_t *j = bench(sealed ? "on" : "off", NULL, NULL);
        assert_int_equal(json_is_true(json_object_get(j, "encrypt")), sealed);
        /* 27 bytes of planes a token, 4 of ids, headers and padding. */
        double read = figure(j, "read_bytes");
        assert_true(read > 70000 * 31.0 && read < 70000 * 50.0);
        assert_true(figure(j, "stored_bytes") >= read * 0.9);
        const json_t *pairs = json_object_get(j, "pairs"), *p;
        assert_int_equal(json_array_size(pairs), 3);
        size_t i;
        json_array_foreach(pairs, i, p) {
            assert_true(figure(p, "raw_bytes_per_s") > 0);
            assert_true(figure(p, "first_ms") <= figure(p, "whole_ms"));
            double rate = read / (figure(p, "whole_ms") / 1e3);
            double said = figure(p, "restore_bytes_per_s");
            assert_true(said > rate * 0.99 && said < rate * 1.01);
        }
        const json_t *lines = json_object_get(j, "lines");
        assert_int_equal(json_array_size(lines), 2);
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(lines, 0), "name")),
            sealed ? "restore_of_min_raw_and_cipher" : "restore_of_raw");
        json_decref(j);
    }
}

static void appends_are_counted(void **state)
{
    (void)state;
    json_t *j = bench("off", "--appends", "20");
    assert_true(figure(j, "row_bytes") == 875 * 27.0);
    assert_true(figure(j, "tokens") == 70000 + 20 * 875);
    assert_true(figure(j, "most_tail_bytes") >= figure(j, "row_bytes"));
    assert_true(figure(j, "tail_bytes") <= figure(j, "most_tail_bytes"));
    assert_true(figure(j, "tip_bytes") > 20000 && figure(j, "tip_bytes") < 30000);
    assert_true(figure(j, "live_bytes_per_token") > 27);
    json_decref(j);
}

/* A small geometry is mostly padding: the limits of the real one are not met, and --gate says
 * so. */
static void limits_can_be_missed(void **state)
{
    (void)state;
    const char *const argv[] = {"agentd", "bench",  "store",    "--geometry", "small",
                                "--dir",  dir,      "--tokens", "3000",       "--appends",
                                "3",      "--gate", NULL};
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    assert_int_equal(agentd(argv, &out), EXIT_FAILED);
    assert_non_null(strstr(buf_str(&out), "NOT MET"));
    assert_true(is_empty(dir));
}

static void what_cannot_be_measured(void **state)
{
    (void)state;
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    assert_int_equal(agentd((const char *const[]){"agentd", "bench", "cpu", NULL}, &out),
                     EXIT_USAGE);
    assert_int_equal(agentd((const char *const[]){"agentd", "bench", NULL}, &out), EXIT_USAGE);
    assert_int_equal(
        agentd((const char *const[]){"agentd", "bench", "store", "--geometry", "v9", NULL},
               &out),
        EXIT_USAGE);
}

/* The comparison at the end of a run notices one wrong byte. */
static void wrong_bytes_are_noticed(void **state)
{
    (void)state;
    struct error e;
    struct state_layout l;
    struct bench_room room;
    bench_layout(BENCH_V41_FLASH, &l);
    assert_int_equal(l.n_planes, 8);
    double bytes = 0;
    for (uint32_t p = 0; p < l.n_planes; p++)
        bytes += (double)l.planes[p].row_bytes / l.planes[p].ratio;
    assert_true(bytes == 890);
    assert_ok(bench_room_new(&room, &l, 5000, &e), &e);
    bench_room_fill(&room, &l, 0, 5000);
    assert_ok(bench_room_check(&room, &l, 5000, &e), &e);
    ((uint8_t *)room.regions.plane[3])[68 * 2000 + 5] ^= 1;
    assert_int_equal(bench_room_check(&room, &l, 5000, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.msg, "L8.index: row 2000"));
    ((uint8_t *)room.regions.plane[3])[68 * 2000 + 5] ^= 1;
    ((uint8_t *)room.tip)[l.tip_bytes - 1] ^= 1;
    assert_int_equal(bench_room_check(&room, &l, 5000, &e), ERR_CORRUPT);
    /* Rows made in pieces, at odd places, are the same rows. */
    uint8_t whole[68 * 40], part[68 * 40];
    bench_rows(&l, 1, 0, 40, whole);
    bench_rows(&l, 1, 0, 13, part);
    bench_rows(&l, 1, 13, 27, part + 68 * 13);
    assert_memory_equal(whole, part, sizeof whole);
    bench_room_fini(&room);
}

static void medians(void **state)
{
    (void)state;
    assert_true(bench_median((double[]){3, 1, 2}, 3) == 2);
    assert_true(bench_median((double[]){4, 1, 2, 3}, 4) == 2.5);
    struct bench_line least = {"a", 0.84, 0.85, true}, most = {"b", 0.26, 0.25, false};
    assert_false(bench_line_met(&least) || bench_line_met(&most));
    least.value = 0.85, most.value = 0.25;
    assert_true(bench_line_met(&least) && bench_line_met(&most));
}

/* ---- agentd key -------------------------------------------------------------------------- */

static void put(const char *path, const char *text)
{
    struct error e;
    assert_ok(fs_write_atomic(path, text, strlen(text), 0600, &e), &e);
}

static int key(const char *what, const char *file, const char *old, const char *fresh,
               struct buf *out)
{
    const char *argv[16] = {"agentd",   "key", what,       "--key-file", file,
                            "--passes", "1",   "--memory", "1"};
    size_t n = 9;
    if (old) {
        argv[n++] = "--passphrase-file";
        argv[n++] = old;
    }
    if (fresh) {
        argv[n++] = "--new-passphrase-file";
        argv[n++] = fresh;
    }
    out->len = 0;
    return agentd(argv, out);
}

static void a_passphrase_by_command(void **state)
{
    (void)state;
    struct error e;
    char file[128], a[128], b[128], empty[128];
    uint8_t master[CRYPTO_KEY_BYTES], got[CRYPTO_KEY_BYTES];
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    snprintf(file, sizeof file, "%s/k", dir);
    snprintf(a, sizeof a, "%s/a", dir);
    snprintf(b, sizeof b, "%s/b", dir);
    snprintf(empty, sizeof empty, "%s/empty", dir);
    put(a, "first line\r\nsecond\n");
    put(b, "other");
    put(empty, "\nsecond");
    assert_int_equal(key("show", file, NULL, NULL, &out), EXIT_NOTFOUND);
    assert_ok(keys_make(file, NO_PASSPHRASE, CRYPTO_COST_MIN, master, &e), &e);
    assert_int_equal(key("show", file, NULL, NULL, &out), EXIT_DONE);
    assert_non_null(strstr(buf_str(&out), "plain"));
    assert_int_equal(key("wrap", file, NULL, NULL, &out), EXIT_USAGE);
    assert_int_equal(key("wrap", file, NULL, empty, &out), EXIT_USAGE);
    assert_int_equal(key("wrap", file, NULL, a, &out), EXIT_DONE);
    assert_non_null(strstr(buf_str(&out), "1 passes over 1 MiB"));
    const struct keys_passphrase pass = {"first line", 10};
    assert_ok(keys_read(file, pass, got, &e), &e);
    assert_memory_equal(got, master, sizeof master);
    assert_int_equal(key("wrap", file, b, a, &out), EXIT_DENIED);
    assert_int_equal(key("unwrap", file, NULL, NULL, &out), EXIT_DENIED);
    assert_int_equal(key("wrap", file, a, b, &out), EXIT_DONE);
    assert_int_equal(key("unwrap", file, b, NULL, &out), EXIT_DONE);
    assert_ok(keys_read(file, NO_PASSPHRASE, got, &e), &e);
    assert_memory_equal(got, master, sizeof master);
    assert_int_equal(key("burn", file, NULL, NULL, &out), EXIT_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_restore_is_measured, setup, teardown),
        cmocka_unit_test_setup_teardown(appends_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(limits_can_be_missed, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_measured, setup, teardown),
        cmocka_unit_test(wrong_bytes_are_noticed),
        cmocka_unit_test(medians),
        cmocka_unit_test_setup_teardown(a_passphrase_by_command, setup, teardown),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
