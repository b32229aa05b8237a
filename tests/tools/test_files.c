/* read_file, list_dir, grep, write_file, edit: behaviour and errors. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "tests/support/toolrun.h"

static struct toolrun t;

static int setup(void **state)
{
    (void)state;
    toolrun_open(&t, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    toolrun_close(&t);
    return 0;
}

static void put(const char *name, const void *data, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", t.ws, name);
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_int_equal(write(fd, data, n), (ssize_t)n);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static void assert_file(const char *name, const char *want)
{
    char path[256], text[4096];
    snprintf(path, sizeof path, "%s/%s", t.ws, name);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof text - 1);
    assert_true(n >= 0);
    text[n] = '\0';
    assert_string_equal(text, want);
}

/* The call must succeed with exactly this text. */
static void gives(const char *name, const char *arguments, const char *want)
{
    struct tool_result r;
    toolrun_call(&t, name, arguments, &r);
    assert_string_equal(buf_str(&r.text), want);
    assert_false(r.is_error);
    assert_int_equal(r.end, TOOL_EXITED);
    tool_result_fini(&r);
}

/* The call must fail, saying `part`. */
static void fails(const char *name, const char *arguments, const char *part)
{
    struct tool_result r;
    toolrun_call(&t, name, arguments, &r);
    if (!strstr(buf_str(&r.text), part))
        fail_msg("%s: \"%s\" lacks \"%s\"", name, buf_str(&r.text), part);
    assert_true(r.is_error);
    tool_result_fini(&r);
}

static void test_read_file(void **state)
{
    (void)state;
    put_text("a.txt", "one\ntwo\nthree\nfour");
    put_text("empty", "");
    gives("read_file", "{'path': 'a.txt'}", "one\ntwo\nthree\nfour");
    gives("read_file", "{'path': './/a.txt'}", "one\ntwo\nthree\nfour");
    gives("read_file", "{'path': 'a.txt', 'offset': 2, 'limit': 2}", "two\nthree\n");
    gives("read_file", "{'path': 'a.txt', 'offset': 4}", "four");
    gives("read_file", "{'path': 'a.txt', 'limit': 1}", "one\n");
    gives("read_file", "{'path': 'a.txt', 'offset': 3, 'limit': 9223372036854775807}",
          "three\nfour");
    gives("read_file", "{'path': 'empty'}", "");
    fails("read_file", "{'path': 'a.txt', 'offset': 5}", "has 4 lines, line 5 was asked for");
    fails("read_file", "{'path': 'none'}", "none: No such file");
    fails("read_file", "{'path': '.'}", "a folder; use list_dir");
    fails("read_file", "{'path': 'a.txt\\u0000b'}", "NUL");
    char absolute[256];
    snprintf(absolute, sizeof absolute, "{'path': '%s/a.txt', 'limit': 1}", t.ws);
    gives("read_file", absolute, "one\n");
}

static void test_read_file_special(void **state)
{
    (void)state;
    char fifo[256];
    snprintf(fifo, sizeof fifo, "%s/fifo", t.ws);
    assert_int_equal(mkfifo(fifo, 0644), 0);
    fails("read_file", "{'path': 'fifo'}", "not a regular file"); /* and does not hang */
    struct tool_result r;
    put("bytes", "a\0b\033[31m\xff\n", 10);
    toolrun_call(&t, "read_file", "{'path': 'bytes'}", &r);
    assert_int_equal(r.text.len, 10);
    assert_memory_equal(r.text.data, "a\0b\033[31m\xff\n", 10);
    tool_result_fini(&r);
}

static void test_list_dir(void **state)
{
    (void)state;
    char path[256];
    put_text("b.txt", "12345");
    snprintf(path, sizeof path, "%s/dir", t.ws);
    mkdir(path, 0755);
    put_text("dir/inner", "x");
    put_text("new\nline", "");
    snprintf(path, sizeof path, "%s/link", t.ws);
    assert_int_equal(symlink("b.txt", path), 0);
    gives("list_dir", "{}", "b.txt\t5\ndir/\nlink -> b.txt\nnew\\x0aline\t0\n");
    gives("list_dir", "{'path': '.', 'depth': 2}",
          "b.txt\t5\ndir/\ndir/inner\t1\nlink -> b.txt\nnew\\x0aline\t0\n");
    gives("list_dir", "{'path': 'dir'}", "inner\t1\n");
    fails("list_dir", "{'path': 'b.txt'}", "b.txt: Not a directory");
    fails("list_dir", "{'path': 'nowhere'}", "No such file");
}

static void test_grep(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/src", t.ws);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/.git", t.ws);
    mkdir(path, 0755);
    put_text("src/a.c", "int main(void)\n{\n    return 42;\n}\n");
    put_text("src/b.h", "int mainly;\nno newline at MAIN");
    put_text(".git/x", "main\n");
    put("bin", "main\0main\n", 10);
    gives("grep", "{'pattern': 'main\\\\('}", "src/a.c:1:int main(void)\n");
    gives("grep", "{'pattern': 'main(', 'fixed': true}", "src/a.c:1:int main(void)\n");
    gives("grep", "{'pattern': 'main', 'include': '*.h'}", "src/b.h:1:int mainly;\n");
    gives("grep", "{'pattern': 'main', 'include': 'src/*.c'}", "src/a.c:1:int main(void)\n");
    gives("grep", "{'pattern': 'MAIN', 'fixed': true, 'ignore_case': true, 'path': 'src/b.h'}",
          "src/b.h:1:int mainly;\nsrc/b.h:2:no newline at MAIN\n");
    gives("grep", "{'pattern': '^(main|no).*$', 'ignore_case': true, 'path': 'src'}",
          "src/b.h:2:no newline at MAIN\n");
    gives("grep", "{'pattern': 'int', 'max_matches': 1}",
          "src/a.c:1:int main(void)\n[stopped after 1 lines in 2 files]\n");
    gives("grep", "{'pattern': 'absent'}", "[no match in 3 files]\n");
    fails("grep", "{'pattern': '('}", "pattern: ");
    fails("grep", "{'pattern': 'x', 'path': 'nowhere'}", "No such file");
}

/* A line longer than the window is searched in pieces, and only its start is shown. */
static void test_grep_long_line(void **state)
{
    (void)state;
    size_t n = 3 << 20;
    AUTO_FREE char *line = malloc(n);
    memset(line, 'a', n);
    memcpy(line + n - 8, "needle\nz", 8);
    put("long", line, n);
    struct tool_result r;
    toolrun_call(&t, "grep", "{'pattern': 'needle', 'fixed': true}", &r);
    assert_true(r.text.len < 600);
    assert_int_equal(strncmp(buf_str(&r.text), "long:1:aaa", 10), 0);
    assert_non_null(strstr(buf_str(&r.text), " bytes more]\n"));
    tool_result_fini(&r);
}

/* Expressions that would take gigabytes or minutes to compile; common ones are not mistaken. */
static void test_grep_hostile_patterns(void **state)
{
    (void)state;
    put_text("x", "aaaa 2026-11-30 12:00\n");
    fails("grep", "{'pattern': '((((a{1,200}){1,200}){1,200}){1,200}){1,200}'}", "too large");
    fails("grep", "{'pattern': '((a{250}){250}){250}'}", "too large");
    fails("grep",
          "{'pattern': '(((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((('}",
          "too large");
    fails("grep", "{'pattern': 'a{99999999999}'}", "pattern: ");
    gives("grep", "{'pattern': '^a{4} ([0-9]{4}(-[0-9]{2}){2}) []x0-9:]{5}$'}",
          "x:1:aaaa 2026-11-30 12:00\n");
    gives("grep", "{'pattern': '(a|b)+\\\\{', 'path': 'x'}", "[no match in 1 files]\n");
}

static void test_write_file(void **state)
{
    (void)state;
    char path[256];
    struct stat st;
    gives("write_file", "{'path': 'deep/er/f', 'content': 'hello'}",
          "created deep/er/f (5 bytes)\n");
    assert_file("deep/er/f", "hello");
    snprintf(path, sizeof path, "%s/deep/er/f", t.ws);
    assert_int_equal(chmod(path, 0750), 0);
    gives("write_file", "{'path': 'deep/er/f', 'content': ''}",
          "replaced deep/er/f (0 bytes)\n");
    assert_file("deep/er/f", "");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0750);
    gives("write_file", "{'path': 'nul', 'content': 'a\\u0000b'}", "created nul (3 bytes)\n");
    gives("list_dir", "{}", "deep/\nnul\t3\n");
    fails("write_file", "{'path': 'deep', 'content': 'x'}", "a folder");
    fails("write_file", "{'path': 'deep/..', 'content': 'x'}", "not the name of a file");
    fails("write_file", "{'path': 'deep/er/f/g', 'content': 'x'}", "Not a directory");
    gives("list_dir", "{'path': 'deep/er'}", "f\t0\n"); /* no temporary file is left */
}

static void test_write_through_links(void **state)
{
    (void)state;
    char from[256], to[256];
    put_text("real", "old");
    snprintf(from, sizeof from, "%s/sym", t.ws);
    assert_int_equal(symlink("real", from), 0);
    gives("write_file", "{'path': 'sym', 'content': 'by link'}", "replaced sym (7 bytes)\n");
    assert_file("real", "by link");
    snprintf(from, sizeof from, "%s/real", t.ws);
    snprintf(to, sizeof to, "%s/hard", t.ws);
    assert_int_equal(link(from, to), 0);
    gives("edit", "{'path': 'hard', 'old_string': 'link', 'new_string': 'name'}",
          "replaced 1 occurrence in hard, first at line 1\n");
    assert_file("real", "by name");
}

static void test_edit(void **state)
{
    (void)state;
    put_text("e", "alpha\nbeta\nbeta\naaa\n");
    fails("edit", "{'path': 'e', 'old_string': 'beta', 'new_string': 'x'}", "occurs 2 times");
    fails("edit", "{'path': 'e', 'old_string': 'aa', 'new_string': 'x'}", "occurs 2 times");
    fails("edit", "{'path': 'e', 'old_string': 'gamma', 'new_string': 'x'}", "does not occur");
    fails("edit", "{'path': 'e', 'old_string': 'beta', 'new_string': 'beta'}", "the same");
    fails("edit", "{'path': 'f', 'old_string': 'a', 'new_string': 'b'}", "No such file");
    assert_file("e", "alpha\nbeta\nbeta\naaa\n");
    gives("edit", "{'path': 'e', 'old_string': 'beta\\naaa', 'new_string': ''}",
          "replaced 1 occurrence in e, first at line 3\n");
    assert_file("e", "alpha\nbeta\n\n");
    gives("edit", "{'path': 'e', 'old_string': 'a', 'new_string': 'A', 'replace_all': true}",
          "replaced 3 occurrences in e, first at line 1\n");
    assert_file("e", "AlphA\nbetA\n\n");
}

static void test_read_only_mode(void **state)
{
    (void)state;
    struct tool_result r;
    put_text("r", "text");
    t.mode = TOOL_MODE_READ_ONLY;
    gives("read_file", "{'path': 'r'}", "text");
    fails("write_file", "{'path': 'r', 'content': 'x'}", "read-only");
    fails("edit", "{'path': 'r', 'old_string': 'text', 'new_string': 'x'}", "read-only");
    toolrun_bash(&t, "echo x > r || echo refused; echo y > $TMPDIR/y && cat $TMPDIR/y", &r);
    assert_non_null(strstr(buf_str(&r.text), "refused\ny\n"));
    assert_file("r", "text");
    tool_result_fini(&r);
}

static int group(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_file_special, setup, teardown),
        cmocka_unit_test_setup_teardown(test_list_dir, setup, teardown),
        cmocka_unit_test_setup_teardown(test_grep, setup, teardown),
        cmocka_unit_test_setup_teardown(test_grep_long_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_grep_hostile_patterns, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_through_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_edit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_only_mode, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return toolrun_as_both(group);
}
