/* base/fs: durable replacement under every failure, caps, locks, standard places. */
#include "tests/support/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fs.h"
#include "tests/support/tempdir.h"

static char dir[TEMPDIR_BYTES];

static int make_dir(void **state)
{
    (void)state;
    tempdir_make(dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    tempdir_remove(dir);
    return 0;
}

static const char *in_dir(const char *name)
{
    static char path[FS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void test_mkdir_p(void **state)
{
    (void)state;
    struct error e = {0};
    struct stat st;
    mode_t old = umask(0);
    assert_ok(fs_mkdir_p(in_dir("a/b/c"), &e), &e);
    assert_ok(fs_mkdir_p(in_dir("a/b/c"), &e), &e);
    assert_ok(fs_mkdir_p(in_dir("a/b/d/"), &e), &e);
    assert_ok(fs_mkdir_p(in_dir("a//e"), &e), &e);
    umask(old);
    assert_int_equal(stat(in_dir("a/b"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(stat(in_dir("a/e"), &st), 0);
    assert_ok(fs_write_atomic(in_dir("file"), "x", 1, 0600, &e), &e);
    assert_int_equal(fs_mkdir_p(in_dir("file"), &e), ERR_CONFLICT);
    assert_true(fs_mkdir_p(in_dir("file/below"), &e) != OK);
    char deep[FS_PATH_BYTES + 10];
    memset(deep, 'x', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    assert_int_equal(fs_mkdir_p(deep, &e), ERR_LIMIT);
}

static void assert_content(const char *name, const char *want)
{
    struct error e = {0};
    AUTO(buf) struct buf b = BUF_INIT(1 << 20);
    assert_ok(fs_read_file(in_dir(name), &b, &e), &e);
    assert_string_equal(buf_str(&b), want);
}

static size_t count_entries(void)
{
    DIR *d = opendir(dir);
    size_t n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

/* Whatever fails: the old content or the new one, and no temporary file stays behind. */
static void test_write_atomic_under_faults(void **state)
{
    (void)state;
    struct error e = {0};
    assert_ok(fs_write_atomic(in_dir("f"), "old", 3, 0640, &e), &e);
    size_t n_before = count_entries();
    uint64_t n = 1;
    for (;; n++) {
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = fs_write_atomic(in_dir("f"), "newer", 5, 0600, &e);
        if (!fault_disarm()) {
            assert_ok(rc, &e);
            break;
        }
        assert_true(rc == ERR_IO || rc == ERR_LIMIT);
        /* The last step is the fsync of the folder: by then the new file stands there. */
        assert_content("f", n < 5 ? "old" : "newer");
        assert_int_equal(count_entries(), n_before);
    }
    assert_int_equal(n, 7);
    assert_content("f", "newer");
    struct stat st;
    assert_int_equal(stat(in_dir("f"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(fs_write_atomic("/nonexistent/x", "", 0, 0600, &e), ERR_NOTFOUND);
}

static void test_read_caps(void **state)
{
    (void)state;
    struct error e = {0};
    assert_ok(fs_write_atomic(in_dir("ten"), "0123456789", 10, 0600, &e), &e);
    AUTO(buf) struct buf exact = BUF_INIT(10), small = BUF_INIT(9), empty = BUF_INIT(0);
    assert_ok(fs_read_file(in_dir("ten"), &exact, &e), &e);
    assert_string_equal(buf_str(&exact), "0123456789");
    assert_int_equal(fs_read_file(in_dir("ten"), &small, &e), ERR_LIMIT);
    assert_int_equal(small.len, 0);
    assert_non_null(strstr(e.msg, "/ten: more than 9 bytes"));
    assert_int_equal(fs_read_file(in_dir("ten"), &empty, &e), ERR_LIMIT);
    assert_ok(fs_read_file("/dev/null", &empty, &e), &e);
    assert_int_equal(fs_read_file(in_dir("none"), &empty, &e), ERR_NOTFOUND);
    assert_int_equal(fs_read_file(dir, &exact, &e), ERR_IO);
    AUTO(buf) struct buf proc = BUF_INIT(1 << 20);
    assert_ok(fs_read_file("/proc/self/status", &proc, &e), &e);
    assert_memory_equal(proc.data, "Name:", 5);
}

static void assert_line(FILE *f, struct buf *line, const char *want, size_t n)
{
    struct error e = {0};
    assert_ok(fs_read_line(f, line, &e), &e);
    assert_int_equal(line->len, n);
    assert_memory_equal(buf_str(line), want, n);
}

static void test_read_line(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO(buf) struct buf line = BUF_INIT(5);
    assert_ok(fs_write_atomic(in_dir("lines"), "four\n\n\0x\n12345678\n", 18, 0600, &e), &e);
    AUTO_FILE FILE *f = fopen(in_dir("lines"), "re");
    assert_line(f, &line, "four\n", 5);
    assert_line(f, &line, "\n", 1);
    assert_line(f, &line, "\0x\n", 3);
    assert_int_equal(fs_read_line(f, &line, &e), ERR_LIMIT);
    assert_true(ftell(f) <= 5 + 1 + 3 + 5 + 1); /* the rest was not read */
    assert_line(f, &line, "78\n", 3);
    assert_line(f, &line, "", 0);
    assert_line(f, &line, "", 0);
    /* A line that never ends costs no more than what it may have. */
    AUTO_FILE FILE *zero = fopen("/dev/zero", "re");
    AUTO(buf) struct buf capped = BUF_INIT(1 << 20);
    assert_int_equal(fs_read_line(zero, &capped, &e), ERR_LIMIT);
    /* A folder opens as a stream and fails at the first byte. */
    AUTO_FILE FILE *folder = fopen(dir, "re");
    assert_int_equal(fs_read_line(folder, &line, &e), ERR_IO);
    assert_ok(fs_write_atomic(in_dir("open"), "end", 3, 0600, &e), &e);
    AUTO_FILE FILE *open_end = fopen(in_dir("open"), "re");
    assert_line(open_end, &line, "end", 3);
    assert_line(open_end, &line, "", 0);
}

static void test_read_from_a_slow_pipe(void **state)
{
    (void)state;
    struct error e = {0};
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < 1000; i++)
            if (fs_write(fds[1], "pipe", "0123456789abcdef", 16, NULL))
                _exit(1);
        _exit(0);
    }
    close(fds[1]);
    AUTO(buf) struct buf b = BUF_INIT(1 << 20);
    assert_ok(fs_read_fd(fds[0], "pipe", &b, &e), &e);
    close(fds[0]);
    assert_int_equal(b.len, 16000);
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

static void test_positional(void **state)
{
    (void)state;
    struct error e = {0};
    char back[8] = "";
    AUTO_FD int fd = open(in_dir("p"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_ok(fs_pwrite(fd, "p", "abcdef", 6, 100, &e), &e);
    assert_ok(fs_sync(fd, "p", &e), &e);
    assert_ok(fs_pread(fd, "p", back, 3, 102, &e), &e);
    assert_string_equal(back, "cde");
    assert_int_equal(fs_pread(fd, "p", back, 8, 102, &e), ERR_FORMAT);
    assert_string_equal(e.msg, "read p at 102: 4 bytes, want 8");
    fault_arm(FAULT_FAIL, "fs.write", 1);
    assert_int_equal(fs_pwrite(fd, "p", "x", 1, 0, &e), ERR_LIMIT);
    assert_true(fault_disarm());
    assert_int_equal(fs_pread(-1, "none", back, 1, 0, &e), ERR_IO);
}

static void test_lock(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO_FD int fd = -1;
    int second = -1;
    assert_ok(fs_lock(in_dir("lock"), &fd, &e), &e);
    assert_int_equal(fs_lock(in_dir("lock"), &second, &e), ERR_BUSY);
    assert_int_equal(second, -1);
    close(TAKE_FD(fd));
    assert_ok(fs_lock(in_dir("lock"), &fd, &e), &e);
    assert_int_equal(symlink("/etc/passwd", in_dir("link")), 0);
    assert_true(fs_lock(in_dir("link"), &second, &e) != OK);
}

static void test_network_file_systems(void **state)
{
    (void)state;
    struct error e = {0};
    bool network = true;
    const char *name = NULL;
    assert_ok(fs_is_network("/proc", &network, &name, &e), &e);
    assert_false(network);
    assert_string_equal(name, "local");
    assert_int_equal(fs_is_network("/nonexistent", &network, NULL, &e), ERR_NOTFOUND);
}

/* What is no file waits for nobody and is not opened. */
static void test_regular(void **state)
{
    static const char *const NO_FILES[] = {"a-folder", "a-pipe", "a-socket", "to-a-pipe"};
    struct error e = {0};
    int fd = -1;
    (void)state;
    assert_ok(fs_write_atomic(in_dir("a-file"), "x", 1, 0600, &e), &e);
    assert_int_equal(mkdir(in_dir("a-folder"), 0700), 0);
    assert_int_equal(mkfifo(in_dir("a-pipe"), 0600), 0);
    assert_int_equal(symlink("a-pipe", in_dir("to-a-pipe")), 0);
    assert_int_equal(symlink("a-file", in_dir("to-a-file")), 0);
    assert_int_equal(mknod(in_dir("a-socket"), S_IFSOCK | 0600, 0), 0);
    alarm(20); /* a hang ends the test */
    for (size_t i = 0; i < sizeof NO_FILES / sizeof NO_FILES[0]; i++)
        for (int mode = 0; mode < 3; mode++) {
            static const int MODES[] = {O_RDONLY, O_WRONLY, O_RDWR};
            e = (struct error){0};
            assert_int_equal(fs_open_regular(in_dir(NO_FILES[i]), MODES[mode], &fd, &e),
                             ERR_FORMAT);
            assert_non_null(strstr(e.msg, "is no file"));
            assert_int_equal(fd, -1);
        }
    alarm(0);
    assert_int_equal(fs_open_regular(in_dir("nothing"), O_RDONLY, &fd, &e), ERR_NOTFOUND);
    assert_int_equal(fs_open_regular(in_dir("to-a-file"), O_RDONLY | O_NOFOLLOW, &fd, &e),
                     ERR_IO);
    assert_int_equal(fd, -1);
    assert_ok(fs_open_regular(in_dir("to-a-file"), O_RDONLY, &fd, &e), &e);
    close(fd);
    assert_ok(fs_open_regular(in_dir("a-file"), O_RDWR | O_NOFOLLOW, &fd, &e), &e);
    close(fd);
}

static void test_places(void **state)
{
    (void)state;
    struct error e = {0};
    char path[FS_PATH_BYTES], small[8];
    setenv("HOME", "/home/x", 1);
    setenv("XDG_DATA_HOME", "/data", 1);
    setenv("XDG_CACHE_HOME", "relative", 1);
    unsetenv("XDG_STATE_HOME");
    setenv("XDG_CONFIG_HOME", "", 1);
    setenv("XDG_RUNTIME_DIR", "/run/r", 1);
    static const struct {
        enum fs_place place;
        const char *want;
    } cases[] = {
        {FS_DATA, "/data/agentd/a"},
        {FS_CACHE, "/home/x/.cache/agentd/a"},
        {FS_STATE, "/home/x/.local/state/agentd/a"},
        {FS_CONFIG, "/home/x/.config/agentd/a"},
        {FS_RUNTIME, "/run/r/agentd/a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(fs_place_path(cases[i].place, "agentd/a", path, sizeof path, &e), &e);
        assert_string_equal(path, cases[i].want);
    }
    assert_int_equal(fs_place_path(FS_DATA, "agentd/a", small, sizeof small, &e), ERR_LIMIT);
    unsetenv("XDG_RUNTIME_DIR");
    assert_ok(fs_place_path(FS_RUNTIME, "agentd/a", path, sizeof path, &e), &e);
    assert_true(strncmp(path, "/run/user/", 10) == 0 ||
                strcmp(path, "/home/x/.local/state/agentd/a") == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mkdir_p),
        cmocka_unit_test(test_write_atomic_under_faults),
        cmocka_unit_test(test_read_caps),
        cmocka_unit_test(test_read_line),
        cmocka_unit_test(test_read_from_a_slow_pipe),
        cmocka_unit_test(test_positional),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_network_file_systems),
        cmocka_unit_test(test_regular),
        cmocka_unit_test(test_places),
    };
    return !!cmocka_run_group_tests(tests, make_dir, remove_dir);
}
