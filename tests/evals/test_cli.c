/* agentd-evals and `agentctl eval`, as a script would use them. */
#include "tests/support/build_folder.h"
#include "tests/support/test.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/spawn.h"

#define MODEL "tests/evals/tokenizer_small"

static char folder[] = "/tmp/agentd-evals-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? build_folder_use() : -1;
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const files[] = {"contexts.jsonl",
                                        "samples.jsonl",
                                        "suite.json",
                                        "answers.jsonl",
                                        "scores.jsonl",
                                        "results.json",
                                        "niah_multikey_3-2048.jsonl"};
    for (const char *name = "ab"; *name; name++) {
        char path[FS_PATH_BYTES];
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(path, sizeof path, "%s/%c/%s", folder, *name, files[i]);
            unlink(path);
        }
        snprintf(path, sizeof path, "%s/%c", folder, *name);
        rmdir(path);
    }
    return rmdir(folder);
}

/* Runs a command line, `@` in which is the folder; its output and errors go to out. */
static int run(const char *line, struct buf *out)
{
    char words[1024], *save = NULL;
    const char *argv[32];
    size_t argc = 0, n = 0;
    for (; *line && n < sizeof words - sizeof folder; line++)
        n += (size_t)snprintf(words + n, sizeof words - n, *line == '@' ? "%s" : "%.1s",
                              *line == '@' ? folder : line);
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    argv[argc] = NULL;
    AUTO_FD int fd = memfd_create("output", MFD_CLOEXEC);
    const struct spawn_fd fds[] = {{fd, 1}, {fd, 2}};
    const struct spawn_options o = {.argv = argv, .fds = fds, .n_fds = 2};
    struct spawn child = SPAWN_INIT;
    struct error e = {0};
    int status = 0;
    assert_ok(spawn_start(&o, &child, &e), &e);
    assert_ok(spawn_wait(&child, 50000, &status, &e), &e);
    spawn_fini(&child);
    assert_true(WIFEXITED(status));
    buf_clear(out);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_ok(fs_read_fd(fd, "output", out, &e), &e);
    return WEXITSTATUS(status);
}

static void expect(const char *line, int code, const char *text)
{
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    int have = run(line, &out);
    if (have != code || !strstr(buf_str(&out), text))
        fail_msg("%s: exit %d, want %d with \"%s\"\n%s", line, have, code, text, buf_str(&out));
}

static void usage_and_lists(void **state)
{
    (void)state;
    expect("agentd-evals help", 0, "gen");
    expect("agentd-evals", 2, "usage");
    expect("agentd-evals no-such", 2, "unknown verb");
    expect("agentd-evals list", 0, "needle-session");
    expect("agentd-evals gen --help", 0, "--lengths");
    expect("agentctl eval list", 0, "niah_multikey_2");
    expect("agentctl eval", 2, "usage");
    expect("agentctl eval no-such", 2, "agentd-evals: unknown verb");
    expect("agentctl help", 0, "eval");
}

static void wrong_command_lines(void **state)
{
    (void)state;
    expect("agentd-evals gen no-such -m " MODEL " -o @/a", 4, "no suite \"no-such\"");
    expect("agentd-evals gen latent-list -o @/a", 2, "--model");
    expect("agentd-evals gen latent-list -m " MODEL " -o @/a -l 100", 2, "512..4M");
    expect("agentd-evals gen latent-list -m " MODEL " -o @/a -l x", 2, "512..4M");
    expect("agentd-evals gen ruler -m " MODEL " -o @/a -l 2K --tasks qa", 2, "core six");
    expect("agentd-evals gen latent-list -m @/none -o @/a", 4, "tokenizer.json");
    expect("agentd-evals score @/none", 4, "suite.json");
}

static void write_answers(const char *text)
{
    char path[FS_PATH_BYTES];
    struct error e = {0};
    snprintf(path, sizeof path, "%s/a/answers.jsonl", folder);
    assert_ok(fs_write_atomic(path, text, strlen(text), 0600, &e), &e);
}

static void from_suite_to_scores(void **state)
{
    (void)state;
    expect("agentctl eval gen latent-list -m " MODEL " -o @/a -l 2K,4096 --questions 2", 0,
           "2 contexts, 4 samples");
    expect("agentctl eval gen latent-list -m " MODEL " -o @/a", 5, "finished suite");
    write_answers("{\"id\": \"latent-list/state/2048/0\", \"text\": \"Final Answer: [1]\"}\n");
    expect("agentctl eval score @/a", 10, "3 of 4 samples have no answer");
    write_answers("{\"id\": \"latent-list/state/2048/9\", \"text\": \"Final Answer: [1]\"}\n");
    expect("agentctl eval score @/a", 11, "no sample of the suite");
    write_answers("{\"id\": 5}\n");
    expect("agentctl eval score @/a", 8, "\"id\"");
    write_answers("{\"id\": \"latent-list/state/2048/0\", \"text\": \"x\"}\n"
                  "{\"id\": \"latent-list/state/2048/1\", \"text\": \"x\"}\n"
                  "{\"id\": \"latent-list/state/4096/0\", \"text\": \"x\"}\n"
                  "{\"id\": \"latent-list/state/4096/1\", \"text\": \"x\"}\n");
    expect("agentctl eval score @/a --json", 0, "\"unparsable\": 2");
}

static void ruler_needs_no_lists_for_uuids(void **state)
{
    (void)state;
    expect("agentd-evals gen ruler -m " MODEL " -o @/b -l 2048 -n 3 --tasks niah_multikey_3", 0,
           "3 contexts, 3 samples");
    char path[FS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/b/niah_multikey_3-2048.jsonl", folder);
    assert_int_equal(access(path, R_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_and_lists),
        cmocka_unit_test(wrong_command_lines),
        cmocka_unit_test(from_suite_to_scores),
        cmocka_unit_test(ruler_needs_no_lists_for_uuids),
    };
    return !!cmocka_run_group_tests(tests, set_up, tear_down);
}
