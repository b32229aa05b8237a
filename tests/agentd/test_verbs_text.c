/* agentd tokenize, detokenize, render, parse: through the binary, as a script would use them.
 */
#include "tests/support/build_folder.h"
#include "tests/support/test.h"

#include <jansson.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/spawn.h"

#define MODEL GOLDEN "e_encoding"
#define MAX_OUT (1u << 22)

static int set_up(void **state)
{
    (void)state;
    return build_folder_use();
}

struct result {
    int code;
    struct buf out, err;
};

static void result_fini(struct result *r)
{
    buf_fini(&r->out);
    buf_fini(&r->err);
}

static int file_with(const void *bytes, size_t n)
{
    struct error e = {0};
    int fd = memfd_create("stdio", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_ok(fs_write(fd, "stdin", bytes, n, &e), &e);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

static void read_back(int fd, struct buf *out)
{
    struct error e = {0};
    buf_init(out, MAX_OUT);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_ok(fs_read_fd(fd, "output", out, &e), &e);
    assert_ok(buf_reserve(out, 1, &e), &e);
}

/* Runs `agentd ARGS`, words of which are parted by single spaces. */
static struct result run(const char *args, const void *in, size_t n)
{
    char words[512];
    const char *argv[16] = {"agentd"};
    size_t argc = 1;
    snprintf(words, sizeof words, "%s", args);
    char *save = NULL;
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    AUTO_FD int fd_in = file_with(in, n);
    AUTO_FD int fd_out = file_with("", 0);
    AUTO_FD int fd_err = file_with("", 0);
    struct spawn_fd fds[] = {{fd_in, 0}, {fd_out, 1}, {fd_err, 2}};
    struct spawn_options o = {.argv = argv, .fds = fds, .n_fds = 3};
    struct spawn child = SPAWN_INIT;
    struct error e = {0};
    int status = 0;
    assert_ok(spawn_start(&o, &child, &e), &e);
    assert_ok(spawn_wait(&child, 50000, &status, &e), &e);
    assert_true(WIFEXITED(status));
    struct result r = {.code = WEXITSTATUS(status)};
    read_back(fd_out, &r.out);
    read_back(fd_err, &r.err);
    return r;
}

static void assert_run(const char *args, const char *in, int code, const char *out)
{
    AUTO(result) struct result r = run(args, in, strlen(in));
    if (r.code != code || strcmp(buf_str(&r.out), out))
        fail_msg("agentd %s: exit %d\n%s%s", args, r.code, buf_str(&r.out), buf_str(&r.err));
    if (code)
        assert_true(r.err.len > 0);
}

static void test_tokenize(void **state)
{
    (void)state;
    assert_run("tokenize -m " MODEL, "Hello</think>", 0,
               "75\n376\n111\n114\n63\n50\n119\n107\n260\n110\n65\n");
    assert_run("tokenize --model=" MODEL " --special", "Hello</think>", 0,
               "75\n376\n111\n114\n502\n");
    assert_run("tokenize -m " MODEL, "", 0, "");
    assert_run("detokenize -m " MODEL, "75 376\n111\t114\n502", 0, "Hello</think>");
    assert_run("detokenize -m " MODEL, "75\nx\n", 1, "");
    assert_run("detokenize -m " MODEL, "511\n512\n", 1, "");
}

/* Every byte value, there and back. */
static void test_bytes_come_back(void **state)
{
    (void)state;
    uint8_t all[512];
    for (int i = 0; i < 512; i++)
        all[i] = (uint8_t)(i < 256 ? i : 511 - i);
    AUTO(result) struct result ids = run("tokenize -m " MODEL, all, sizeof all);
    assert_int_equal(ids.code, 0);
    AUTO(result) struct result back = run("detokenize -m " MODEL, ids.out.data, ids.out.len);
    assert_int_equal(back.code, 0);
    assert_int_equal(back.out.len, sizeof all);
    assert_memory_equal(back.out.data, all, sizeof all);
}

static void test_usage(void **state)
{
    (void)state;
    assert_run("tokenise", "", 2, "");
    assert_run("tokenize", "", 2, "");
    assert_run("tokenize -m " MODEL " x", "", 2, "");
    assert_run("parse -m " MODEL, "", 2, "");
    assert_run("parse -m " MODEL " --thinking-mode maybe", "", 2, "");
    assert_run("parse -m " MODEL " --thinking-mode chat --chunk 0", "", 2, "");
    assert_run("tokenize -m " GOLDEN "nowhere", "", 4, "");
    assert_run("--version", "", 0, "agentd 0.1.0\n");
    AUTO(result) struct result help = run("render --help", "", 0);
    assert_int_equal(help.code, 0);
    assert_non_null(strstr(buf_str(&help.out), "--model"));
}

static void test_render(void **state)
{
    (void)state;
    json_auto_t *root = json_load_file(MODEL "/cases.json", 0, NULL);
    const json_t *cases = json_object_get(root, "encode");
    assert_int_equal(json_array_size(cases), 19);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        AUTO_FREE char *in = json_dumps(c, 0);
        AUTO(result) struct result r = run("render -m " MODEL, in, strlen(in));
        assert_int_equal(r.code, 0);
        json_auto_t *out = json_loads(buf_str(&r.out), 0, NULL);
        const char *want = json_string_value(json_object_get(c, "expected"));
        assert_string_equal(json_string_value(json_object_get(out, "text")), want);
        AUTO(result)
        struct result ids = run("tokenize --special -m " MODEL, want, strlen(want));
        const char *line = buf_str(&ids.out);
        const json_t *list = json_object_get(out, "ids");
        for (size_t k = 0; k < json_array_size(list); k++) {
            char *end;
            assert_int_equal(strtol(line, &end, 10),
                             json_integer_value(json_array_get(list, k)));
            line = end + 1;
        }
        assert_int_equal(*line, 0);
    }
    assert_run("render -m " MODEL, "{\"messages\": []}", 1, "");
    assert_run("render -m " MODEL, "{", 1, "");
    assert_run("render -m " MODEL,
               "{\"messages\": [{\"role\": \"user\"}], \"thinking_mode\": \"x\"}", 1, "");
}

static void test_parse(void **state)
{
    (void)state;
    json_auto_t *root = json_load_file(MODEL "/cases.json", 0, NULL);
    const json_t *cases = json_object_get(root, "parse");
    assert_int_equal(json_array_size(cases), 6);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *in = json_string_value(json_object_get(c, "completion"));
        char args[200];
        snprintf(args, sizeof args, "parse -m " MODEL " --strict --thinking-mode %s",
                 json_string_value(json_object_get(c, "thinking_mode")));
        AUTO(result) struct result r = run(args, in, strlen(in));
        if (json_is_true(json_object_get(c, "error"))) {
            assert_int_equal(r.code, 1);
            assert_int_equal(r.out.len, 0);
            continue;
        }
        assert_int_equal(r.code, 0);
        json_auto_t *out = json_loads(buf_str(&r.out), 0, NULL);
        assert_int_equal(json_object_size(json_object_get(out, "problems")), 0);
        assert_int_equal(json_object_del(out, "problems"), 0);
        assert_true(json_equal(out, json_object_get(c, "expected")));
    }
    static const char lenient[] =
        "{\"role\": \"assistant\", \"content\": \"a�\", \"reasoning_content\": "
        "\"\", \"tool_calls\": [{\"type\": \"function\", \"function\": "
        "{\"name\": \"f\", \"arguments\": \"{}\"}}], \"problems\": "
        "{\"bare_invoke\": 1}}\n";
    static const char output[] = "a\xff<｜DSML｜ invoke name=\"f\"></｜DSML｜ invoke>";
    assert_run("parse -m " MODEL " --thinking-mode chat", output, 0, lenient);
    assert_run("parse -m " MODEL " --thinking-mode chat --chunk 1", output, 0, lenient);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenize), cmocka_unit_test(test_bytes_come_back),
        cmocka_unit_test(test_usage),    cmocka_unit_test(test_render),
        cmocka_unit_test(test_parse),
    };
    return !!cmocka_run_group_tests(tests, set_up, NULL);
}
