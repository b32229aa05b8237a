/* A daemon and the files of its model: digests remembered between starts, an end while they are
 * hashed, a shard that is cut short under it. */
#include "tests/support/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agentd/bus_error.h"
#include "agentd/verbs.h"
#include "base/auto.h"
#include "base/fs.h"
#include "tests/support/daemon.h"

#define MODEL "tests/golden/a_tiny/model"
#define HOLE "268435456" /* 256 MiB: about a quarter second of hashing */

static void copy_file(const char *from, const char *to, const char *name)
{
    AUTO(buf) struct buf text = BUF_INIT(16 << 20);
    struct error e = {0};
    char path[192];
    snprintf(path, sizeof path, "%s/%s", from, name);
    assert_ok(fs_read_file(path, &text, &e), &e);
    snprintf(path, sizeof path, "%s/%s", to, name);
    assert_ok(fs_write_atomic(path, text.data, text.len, 0600, &e), &e);
}

/* A daemon of a copy of the model, in `model`. */
static void make(struct daemon_fixture *d, char model[128])
{
    static const char *const NAMES[] = {"config.json", "tokenizer.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    daemon_make(d, "");
    snprintf(model, 128, "%s/model", d->dir);
    assert_int_equal(mkdir(model, 0700), 0);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        copy_file(MODEL, model, NAMES[i]);
    d->model = model;
    nap(150); /* what was written within the last tick of a clock is not remembered */
}

/* How often the log so far says it. */
static int n_said(const struct daemon_fixture *d, const char *what)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    int n = 0;
    if (fs_read_file(d->log, &text, NULL))
        return 0;
    for (const char *p = buf_str(&text); (p = strstr(p, what)); p++)
        n++;
    return n;
}

static void start_and_stop(struct daemon_fixture *d)
{
    daemon_start(d, NULL);
    assert_int_equal(daemon_stop(d), 0);
}

static void test_remembered(void **state)
{
    struct daemon_fixture d;
    char model[128], cache[192], path[192];
    (void)state;
    make(&d, model);
    start_and_stop(&d);
    assert_int_equal(n_said(&d, "hashed weights: 0.0 GB"), 1);
    start_and_stop(&d);
    assert_int_equal(n_said(&d, "hashing weights"), 1);
    d.extra[0] = "--verify-weights";
    start_and_stop(&d);
    assert_int_equal(n_said(&d, "hashed weights: 0.0 GB"), 2);
    /* Somewhere else, where nothing can be. */
    snprintf(cache, sizeof cache, "%s/config.json", model);
    d.extra[0] = "--digest-cache";
    d.extra[1] = cache;
    start_and_stop(&d);
    assert_int_equal(n_said(&d, "digests of model.safetensors are not remembered"), 1);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
    d.extra[0] = NULL;
    start_and_stop(&d);
    assert_int_equal(n_said(&d, "hashed weights"), 4);
    daemon_remove(&d);
}

/* ---- an end while it hashes ---------------------------------------------------------------
 */

/* Adds a shard of holes to the copy: vision, which is skipped, and hashed. */
static void add_hole(const char *model)
{
    static const char header[] = "{\"vision.hole\":{\"dtype\":\"U8\",\"shape\":[" HOLE
                                 "],\"data_offsets\":[0," HOLE "]}}";
    const uint8_t length[8] = {sizeof header - 1};
    json_error_t why;
    char path[192];
    snprintf(path, sizeof path, "%s/hole.safetensors", model);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, length, 8), 8);
    assert_int_equal(write(fd, header, sizeof header - 1), sizeof header - 1);
    assert_int_equal(ftruncate(fd, 8 + (off_t)sizeof header - 1 + atol(HOLE)), 0);
    close(fd);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", model);
    json_auto_t *index = json_load_file(path, 0, &why);
    json_object_set_new(json_object_get(index, "weight_map"), "vision.hole",
                        json_string("hole.safetensors"));
    assert_int_equal(json_dump_file(index, path, 0), 0);
    nap(150);
}

/* Starts it without waiting for an answer. */
static void launch(struct daemon_fixture *d)
{
    const char *build = getenv("AGENTD_BUILD");
    char binary[256];
    snprintf(binary, sizeof binary, "%s/agentd", build ? build : "build");
    d->pid = fork();
    if (d->pid)
        return;
    int fd = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(fd, 2);
    signal(SIGINT, SIG_DFL);
    execl(binary, "agentd", "serve", "--model", d->model, "--socket", d->socket, "--store",
          d->store, "--buffered", "--block-tokens", "64", "--threads", "1", (char *)NULL);
    _exit(127);
}

static void test_interrupted(void **state)
{
    struct daemon_fixture d;
    char model[128];
    (void)state;
    make(&d, model);
    add_hole(model);
    launch(&d);
    for (int ms = 0; ms < 20000 && !n_said(&d, "hashing weights"); ms += 2)
        nap(2);
    kill(d.pid, SIGINT);
    int status = daemon_wait_death(&d);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGINT);
    assert_int_equal(n_said(&d, "serving at"), 0);
    assert_int_equal(n_said(&d, "hashed weights"), 0);
    start_and_stop(&d); /* and goes on as if nothing had been */
    assert_int_equal(n_said(&d, "hashed weights: 0.3 GB"), 1);
    start_and_stop(&d);
    assert_int_equal(n_said(&d, "hashing weights: 0.3 GB whose digests"), 2);
    daemon_remove(&d);
}

/* ---- files that change under it -----------------------------------------------------------
 */

/* A daemon whose session has had a turn. */
static struct client *with_a_turn(struct daemon_fixture *d, char model[128], char id[27])
{
    make(d, model);
    daemon_start(d, NULL);
    struct client *c = daemon_connect(d, NULL, NULL);
    daemon_session(d, c, "{\"tools\": [], \"maxTokens\": 4, \"temperature\": 0}", id);
    daemon_prompt(c, id, "hello");
    json_decref(daemon_wait(c, id));
    return c;
}

/* How the turn of a message ends. */
static void expect_turn(struct client *c, const char *id, const char *message,
                        const char *reason)
{
    daemon_prompt(c, id, message);
    json_auto_t *answer = daemon_wait(c, id);
    assert_string_equal(json_string_value(json_object_get(answer, "reason")), reason);
}

static void cut_short(const char *path)
{
    assert_int_equal(truncate(path, 1 << 20), 0);
}

static void write_in_place(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "\1\2\3\4", 4, 1 << 20), 4);
    close(fd);
}

/* Turns end with an error that names the shard; the daemon goes on with everything that needs
 * no weights, and what is saved is good for the next one. */
static void expect_refusal(void (*harm)(const char *path), const char *says)
{
    struct daemon_fixture d;
    char model[128], path[192], id[27];
    struct client *c = with_a_turn(&d, model, id);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    harm(path);
    expect_turn(c, id, "and again", "failed");
    assert_int_equal(n_said(&d, says), 1);
    expect_turn(c, id, "once more", "failed"); /* from a restore */
    assert_int_equal(n_said(&d, says), 2);
    assert_int_equal(n_said(&d, "set aside"), 0);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    /* With the file as it was the session is there, with its state. */
    copy_file(MODEL, model, "model.safetensors");
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    expect_turn(c, id, "hello again", "length");
    assert_int_equal(n_said(&d, "mode=exact"), 1);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

static void test_overwritten(void **state)
{
    (void)state;
    expect_refusal(write_in_place, "model.safetensors: written to while it was in use");
}

static void test_cut_short(void **state)
{
    (void)state;
    expect_refusal(cut_short, "model.safetensors: changed while it was in use, from ");
}

/* In the middle of a product there is nothing to go on from. */
static void test_bus_error(void **state)
{
    struct daemon_fixture d;
    char model[128], path[192], says[256];
    (void)state;
    make(&d, model);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    pid_t pid = fork();
    if (!pid) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        int log = open(d.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        const volatile char *map = mmap(NULL, 2 << 20, PROT_READ, MAP_PRIVATE, fd, 0);
        dup2(log, 2);
        bus_error_report();
        (void)!truncate(path, 1 << 20);
        _exit(map[(2 << 20) - 1] & 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    snprintf(says, sizeof says, "bus error in %s: it was cut short", path);
    assert_int_equal(n_said(&d, says), 1);
    /* The next one says what is wrong with it. */
    launch(&d);
    status = daemon_wait_death(&d);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EXIT_MODEL);
    assert_true(n_said(&d, "model.safetensors: tensor ") && n_said(&d, " data bytes"));
    daemon_remove(&d);
}

static void test_find_mapping(void **state)
{
    static const char maps[] =
        "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus daemon\n"
        "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
        "7fffb2c0d000-7fffb2c2e000 rw-p 00000000 00:00 0           [stack]\n"
        "7f1000000000-7f8000000000 r--p 00000000 08:02 7    /m/a-1.safetensors\n";
    static const struct {
        unsigned long address;
        const char *path;
    } CASES[] = {{0x400000, "/usr/bin/dbus daemon"},
                 {0x451fff, "/usr/bin/dbus daemon"},
                 {0x452000, ""},
                 {0x7f0000000800, ""},
                 {0x7fffb2c0d000, ""},
                 {0x7f7fffffffff, "/m/a-1.safetensors"},
                 {0, ""}};
    char out[32];
    int fd[2];
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assert_int_equal(pipe(fd), 0);
        assert_int_equal(write(fd[1], maps, sizeof maps - 1), sizeof maps - 1);
        close(fd[1]);
        bus_error_find(fd[0], CASES[i].address, out, sizeof out);
        close(fd[0]);
        assert_string_equal(out, CASES[i].path);
    }
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(write(fd[1], maps, sizeof maps - 1), sizeof maps - 1);
    close(fd[1]);
    bus_error_find(fd[0], 0x400000, out, 9);
    assert_string_equal(out, "/usr/bin");
    close(fd[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remembered),  cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_overwritten), cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_bus_error),   cmocka_unit_test(test_find_mapping),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
