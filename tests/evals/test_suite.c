/* Reading a suite: lines have a limit, and the files are those of suite.json. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fs.h"
#include "evals/suite.h"
#include "tests/support/tempdir.h"

#define MAX_CHILD_BYTES ((rlim_t)1 << 30)

static const uint8_t tokenizer[HASH_BYTES] = {9};

static const char *in(const char *dir, const char *name)
{
    static char path[FS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_text(const char *dir, const char *name, const char *text)
{
    struct error e = {0};
    assert_ok(fs_write_atomic(in(dir, name), text, strlen(text), 0600, &e), &e);
}

/* ---- lines ------------------------------------------------------------------------------ */

static enum err count(void *user, json_t *object, struct error *e)
{
    (void)object, (void)e;
    ++*(unsigned *)user;
    return OK;
}

static void lines_and_what_is_none(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES];
    unsigned n = 0;
    struct error e = {0};
    tempdir_make(dir);
    write_text(dir, "open", "{}\n\n \t\r\n{\"a\": 1}\n{\"end\": \"without newline\"}");
    assert_ok(suite_read_lines(in(dir, "open"), count, &n, &e), &e);
    assert_int_equal(n, 3);
    write_text(dir, "cut", "{}\n{\"end\": \"wit");
    assert_int_equal(suite_read_lines(in(dir, "cut"), count, &n, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "cut:2:"));
    write_text(dir, "none", "");
    n = 0;
    assert_ok(suite_read_lines(in(dir, "none"), count, &n, &e), &e);
    assert_int_equal(n, 0);
    assert_int_equal(suite_read_lines(in(dir, "no-such"), count, &n, &e), ERR_NOTFOUND);
    tempdir_remove(dir);
}

/* {} and then a line of n_bytes zeros, which the disk has no block for; ended or not. */
static void write_long_line(const char *path, uint64_t n_bytes, bool ended)
{
    int fd = -1;
    struct error e = {0};
    assert_ok(fs_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600, &fd, &e), &e);
    assert_ok(fs_pwrite(fd, path, "{}\n", 3, 0, &e), &e);
    assert_ok(fs_truncate(fd, path, 3 + n_bytes, &e), &e);
    if (ended)
        assert_ok(fs_pwrite(fd, path, "\n", 1, 3 + n_bytes - 1, &e), &e);
    close(fd);
}

/* In a process that may have little memory: getline() would want all that the line has. */
static enum err read_in_child(const char *path, char says[ERR_MSG_BYTES])
{
    struct {
        enum err rc;
        char msg[ERR_MSG_BYTES];
    } end = {0};
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        unsigned n = 0;
        struct error e = {0};
        struct rusage used;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they map terabytes */
        const struct rlimit most = {MAX_CHILD_BYTES, MAX_CHILD_BYTES};
        if (setrlimit(RLIMIT_AS, &most))
            _exit(1);
#endif
        end.rc = suite_read_lines(path, count, &n, &e);
        memcpy(end.msg, e.msg, sizeof end.msg);
        getrusage(RUSAGE_SELF, &used);
        const bool ok = n == 1 && (rlim_t)used.ru_maxrss * 1024 < MAX_CHILD_BYTES &&
                        write(ends[1], &end, sizeof end) == (ssize_t)sizeof end;
        _exit(!ok);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &end, sizeof end), sizeof end);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    memcpy(says, end.msg, ERR_MSG_BYTES);
    return end.rc;
}

static void a_line_without_end(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], says[ERR_MSG_BYTES];
    const char *const limit = "lines:2: a line of more than 268435456 bytes";
    tempdir_make(dir);
    /* As long as a line may be, its newline included: it is read, and is no JSON. */
    write_long_line(in(dir, "lines"), SUITE_MAX_LINE_BYTES, true);
    assert_int_equal(read_in_child(in(dir, "lines"), says), ERR_FORMAT);
    assert_non_null(strstr(says, "lines:2:"));
    write_long_line(in(dir, "lines"), SUITE_MAX_LINE_BYTES + 1, true);
    assert_int_equal(read_in_child(in(dir, "lines"), says), ERR_LIMIT);
    assert_non_null(strstr(says, limit));
    write_long_line(in(dir, "lines"), (uint64_t)8 << 30, false);
    assert_int_equal(read_in_child(in(dir, "lines"), says), ERR_LIMIT);
    assert_non_null(strstr(says, limit));
    tempdir_remove(dir);
}

/* ---- digests ---------------------------------------------------------------------------- */

static void write_suite(const char *dir)
{
    struct suite_writer w = {0};
    struct error e = {0};
    AUTO(wordlist) struct wordlist answers = WORDLIST_INIT;
    const struct suite_sample s = {.id = "s/t/1024/0",
                                   .context = "s/t/1024/c0",
                                   .question = "q",
                                   .n_question = 1,
                                   .answer_prefix = "",
                                   .answers = &answers,
                                   .metric = SUITE_ALL_MATCH,
                                   .max_tokens = 1,
                                   .depth = -1};
    assert_ok(wordlist_add(&answers, "a", 1, &e), &e);
    assert_ok(suite_writer_open(&w, dir, "s", 1, 1, tokenizer, &e), &e);
    assert_ok(suite_add_context(&w, s.context, 1024, "text", 4, &e), &e);
    assert_ok(suite_add_sample(&w, &s, &e), &e);
    assert_ok(suite_writer_finish(&w, &e), &e);
    suite_writer_fini(&w);
}

static enum err check(const char *dir, struct error *e)
{
    json_auto_t *suite = NULL;
    enum err rc = suite_load(dir, &suite, e);
    return rc ? rc : suite_check(dir, suite, e);
}

/* One byte of a file is turned, and turned back. Both digests are named, in whatever folder. */
static void turn_a_byte(const char *dir, const char *file, const char *field)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 16);
    json_auto_t *suite = NULL;
    uint8_t digest[HASH_BYTES];
    char hex[HEX_CHARS(HASH_BYTES)];
    struct error e = {0};
    assert_ok(fs_read_file(in(dir, file), &text, &e), &e);
    text.data[text.len / 2] ^= 1;
    assert_ok(fs_write_atomic(in(dir, file), text.data, text.len, 0600, &e), &e);
    hash_bytes(NULL, text.data, text.len, digest);
    hex_encode(digest, sizeof digest, hex);
    assert_int_equal(check(dir, &e), ERR_CONFLICT);
    assert_non_null(strstr(e.msg, file));
    assert_non_null(strstr(e.msg, hex));
    assert_ok(suite_load(dir, &suite, &e), &e);
    const char *old = json_string_value(json_object_get(suite, field));
    assert_int_equal(check(dir, &e), ERR_CONFLICT);
    assert_non_null(strstr(e.msg, old));
    text.data[text.len / 2] ^= 1;
    assert_ok(fs_write_atomic(in(dir, file), text.data, text.len, 0600, &e), &e);
    assert_ok(check(dir, &e), &e);
}

static void a_file_that_was_changed(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], deep[TEMPDIR_BYTES + 250];
    struct error e = {0};
    tempdir_make(dir);
    snprintf(deep, sizeof deep, "%s/%0240d", dir, 0);
    write_suite(deep);
    assert_ok(check(deep, &e), &e);
    turn_a_byte(deep, "contexts.jsonl", "contexts");
    turn_a_byte(deep, "samples.jsonl", "samples");
    assert_int_equal(unlink(in(deep, "contexts.jsonl")), 0);
    assert_int_equal(check(deep, &e), ERR_NOTFOUND);
    tempdir_remove(dir);
}

static void what_suite_json_may_lack(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES];
    struct error e = {0};
    tempdir_make(dir);
    write_text(dir, "samples.jsonl", "");
#define EMPTY "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"
    write_text(dir, "suite.json", "{\"format\": 1, \"samples\": \"" EMPTY "\"}");
    assert_ok(check(dir, &e), &e);
    write_text(dir, "suite.json",
               "{\"format\": 1, \"samples\": \"" EMPTY "\", \"contexts\": 5}");
    assert_int_equal(check(dir, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "suite.json: \"contexts\""));
    write_text(dir, "suite.json", "{\"format\": 1, \"contexts\": \"" EMPTY "\"}");
    assert_int_equal(check(dir, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "suite.json: \"samples\""));
    write_text(dir, "suite.json", "{\"format\": 1, \"samples\": \"\"}");
    assert_int_equal(check(dir, &e), ERR_CONFLICT);
    tempdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_and_what_is_none),
        cmocka_unit_test(a_line_without_end),
        cmocka_unit_test(a_file_that_was_changed),
        cmocka_unit_test(what_suite_json_may_lack),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
