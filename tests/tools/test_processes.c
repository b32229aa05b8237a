/* Runs of commands: how they end, what they leave behind, what they print. Each case that
 * matters for killing is tried with PID namespaces, without them, and with full access. */
#include "tests/support/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"
#include "tests/support/toolrun.h"
#include "tools/reap.h"

static struct toolrun t;

/* The ways in which a run's processes are held together. */
static const char *const no_namespaces[] = {"namespaces", NULL};
static const char *const nothing[] = {"namespaces", "cgroup", NULL};
static const struct {
    const char *name;
    const char *const *without;
    enum tool_mode mode;
} ways[] = {{"namespaces", NULL, TOOL_MODE_WORKSPACE_WRITE},
            {"no namespaces", no_namespaces, TOOL_MODE_WORKSPACE_WRITE},
            {"neither namespaces nor cgroup", nothing, TOOL_MODE_READ_ONLY},
            {"full access without cgroup", nothing, TOOL_MODE_FULL_ACCESS}};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

static void open_way(int way, struct tools_config c)
{
    c.without = ways[way].without;
    toolrun_open(&t, &c);
    t.mode = ways[way].mode;
}

static void assert_text(const struct tool_result *r, const char *want)
{
    assert_string_equal(buf_str(&r->text), want);
}

/* A command line that runs `sleep 1000` under a name of its own. */
static const char *marked(const char *format, char marker[40], char out[256])
{
    static int n;
    char sleeper[80];
    snprintf(marker, 40, "agentd-mark-%d-%d", (int)getpid(), n++);
    snprintf(sleeper, sizeof sleeper, "bash -c 'exec -a %s sleep 1000'", marker);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the formats are the literals below */
    snprintf(out, 256, format, sleeper);
#pragma GCC diagnostic pop
    return out;
}

/* openai/codex PR #5258, dimetron/pi-go #92, earendil-works/pi #9460, nugget/thane-ai-agent
 * #1169: grandchildren hold the pipes, ignore TERM, leave by setsid or double fork. */
static void test_grandchildren_end_with_the_command(void **state)
{
    static const char *const commands[] = {
        "%s & echo hi", "(trap '' TERM HUP INT; %s) & echo hi", "setsid %s & echo hi",
        "( ( setsid %s & ) & ) ; sleep 0.1; echo hi",
        "( setsid nohup %s >/dev/null 2>&1 & ) ; sleep 0.1; echo hi"};
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        open_way(way, (struct tools_config){0});
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
            char marker[40], command[256];
            struct tool_result r;
            toolrun_bash(&t, marked(commands[i], marker, command), &r);
            if (strncmp(buf_str(&r.text), "hi\n", 3) != 0 || r.end != TOOL_EXITED)
                fail_msg("%s: %s: %s", ways[way].name, command, buf_str(&r.text));
            assert_false(r.is_error);
            assert_true(r.n_killed >= 1);
            assert_true(r.duration_ms < 5000);
            assert_int_equal(toolrun_count_processes(marker), 0);
            tool_result_fini(&r);
        }
        toolrun_close(&t);
    }
}

static void test_time_limit_kills_all(void **state)
{
    static const char *const commands[] = {
        "echo begun; trap '' TERM INT HUP; %s",
        "echo begun; setsid -w bash -c \"trap '' TERM; while :; do sleep 1; done\" %s",
        "echo begun; while :; do ( setsid sleep 3 & ) ; sleep 0.02; done; %s"};
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        open_way(way, (struct tools_config){.timeout_ms = 250});
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
            char marker[40], command[256];
            struct tool_result r;
            toolrun_bash(&t, marked(commands[i], marker, command), &r);
            /* On a busy machine the time may be over before the command prints. */
            assert_non_null(
                strstr(buf_str(&r.text), "[timed out after 250 ms and was killed]\n"));
            assert_int_equal(r.end, TOOL_TIMED_OUT);
            assert_true(r.is_error);
            assert_true(r.duration_ms >= 250 && r.duration_ms < 5000);
            assert_int_equal(toolrun_count_processes(marker), 0);
            tool_result_fini(&r);
        }
        toolrun_close(&t);
    }
}

static void test_own_time_limit_and_its_maximum(void **state)
{
    (void)state;
    struct tool_result r;
    toolrun_open(&t, &(struct tools_config){.max_timeout_ms = 300});
    toolrun_call(&t, "run", "{'command': 'sleep 100', 'timeout_ms': 80}", &r);
    assert_text(&r, "[timed out after 80 ms and was killed]\n");
    tool_result_fini(&r);
    toolrun_call(&t, "run", "{'command': 'sleep 100', 'timeout_ms': 86400000}", &r);
    assert_text(&r, "[timed out after 300 ms and was killed]\n");
    tool_result_fini(&r);
    toolrun_close(&t);
}

static void test_cancel(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        char marker[40], command[256];
        struct tool_result r;
        open_way(way, (struct tools_config){0});
        struct tool_run *run = toolrun_start_bash(&t, marked("echo on; %s", marker, command));
        struct pollfd p = {tool_run_fds(run).out_fd, POLLIN, 0};
        assert_int_equal(poll(&p, 1, 10000), 1);
        tool_run_cancel(run, toolrun_now_ms());
        tool_run_cancel(run, toolrun_now_ms());
        toolrun_finish(run, 5000, &r);
        assert_text(&r, "on\n[cancelled]\n");
        assert_int_equal(r.end, TOOL_CANCELLED);
        assert_int_equal(toolrun_count_processes(marker), 0);
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

/* Cancelled before the launcher has even begun, and freed without being waited for. */
static void test_cancel_early_and_free(void **state)
{
    (void)state;
    struct tool_result r;
    char marker[40], command[256];
    toolrun_open(&t, NULL);
    struct tool_run *run = toolrun_start(&t, "run", "{'command': 'echo never; sleep 1000'}");
    tool_run_cancel(run, toolrun_now_ms());
    toolrun_finish(run, 5000, &r);
    assert_int_equal(r.end, TOOL_CANCELLED);
    tool_result_fini(&r);
    run = toolrun_start_bash(&t, marked("%s", marker, command));
    uint64_t begin = toolrun_now_ms();
    tool_run_free(run);
    assert_true(toolrun_now_ms() - begin < 5000);
    assert_int_equal(toolrun_count_processes(marker), 0);
    toolrun_close(&t);
}

static void await_process(const char *name)
{
    for (int i = 0; i < 1000 && !toolrun_find_process(name); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    assert_true(toolrun_find_process(name) > 0);
}

/* NousResearch/hermes-agent #81880: kill -9 of the daemon must end its tools. */
static void test_daemon_killed(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        char marker[40], command[256];
        open_way(way, (struct tools_config){0});
        marked("( setsid %s & ); sleep 1000", marker, command);
        fflush(NULL);
        pid_t daemon = fork();
        if (daemon == 0) {
            struct tool_run *run = toolrun_start_bash(&t, command);
            struct pollfd p = {tool_run_fds(run).pidfd, POLLIN, 0};
            poll(&p, 1, 20000);
            _exit(1);
        }
        await_process(marker);
        kill(daemon, SIGKILL);
        waitpid(daemon, NULL, 0);
        assert_int_equal(toolrun_count_processes(marker), 0);
        toolrun_close(&t);
    }
}

/* The child of this process that is a launcher. */
static pid_t find_launcher(void)
{
    DIR *dir = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *d; !found && (d = readdir(dir));) {
        pid_t pid = (pid_t)strtol(d->d_name, NULL, 10);
        if (pid > 0 && reap_parent(pid) == getpid())
            found = pid;
    }
    closedir(dir);
    return found;
}

/* The launcher itself is killed (by the kernel's out-of-memory killer, say): the run ends as
 * lost and the namespace takes the tool along. */
static void test_launcher_killed(void **state)
{
    (void)state;
    struct tool_result r;
    char marker[40], command[256];
    struct error e;
    json_t *layers;
    toolrun_open(&t, NULL);
    assert_ok(tools_probe(t.tools, t.mode, t.ws, &layers, &e), &e);
    bool namespaces =
        !strcmp(json_string_value(json_object_get(layers, "pid_namespace")), "yes");
    json_decref(layers);
    struct tool_run *run =
        toolrun_start_bash(&t, marked("echo on; ( setsid %s & ); sleep 1000", marker, command));
    await_process(marker);
    pid_t launcher = find_launcher();
    assert_true(launcher > 0);
    kill(launcher, SIGKILL);
    toolrun_finish(run, 5000, &r);
    assert_int_equal(r.end, TOOL_LOST);
    assert_true(r.is_error);
    assert_text(&r, "on\n[the launcher died; what the tool did is unknown]\n");
    if (namespaces)
        assert_int_equal(toolrun_count_processes(marker), 0);
    else if (toolrun_find_process(marker) > 0)
        kill(toolrun_find_process(marker), SIGKILL);
    tool_result_fini(&r);
    toolrun_close(&t);
}

/* A bomb that stops by itself at 2,000, run only when a probe has shown that the limit binds.
 */
static void test_process_bomb(void **state)
{
    (void)state;
    int n_tried = 0;
    for (int way = 0; way < N_WAYS; way++) {
        struct error e;
        json_t *layers;
        open_way(way, (struct tools_config){.max_processes = 40});
        assert_ok(tools_probe(t.tools, t.mode, t.ws, &layers, &e), &e);
        const char *limit = json_string_value(json_object_get(layers, "pids_limit"));
        bool in_force = limit && strncmp(limit, "none", 4) != 0;
        json_decref(layers);
        assert_true(in_force || t.mode == TOOL_MODE_FULL_ACCESS);
        if (in_force) {
            struct tool_result r;
            unsigned ok = 0, failed = 0;
            toolrun_bash(&t,
                         "perl -e 'for (1..2000) { my $p = fork; if (!defined $p) { $f++ } "
                         "elsif (!$p) { setpgrp; sleep 30; exit } else { $n++ } } "
                         "print \"$n $f\\n\"'",
                         &r);
            assert_int_equal(sscanf(buf_str(&r.text), "%u %u", &ok, &failed), 2);
            /* RLIMIT_NPROC of a plain user without a namespace counts the user's others, too,
             * and those come and go. */
            assert_true(ok > 10 && ok <= (toolrun_is_plain_user() ? 400 : 40));
            assert_int_equal(ok + failed, 2000);
            assert_true(r.n_killed >= ok);
            assert_true(r.duration_ms < 10000);
            tool_result_fini(&r);
            n_tried++;
        }
        toolrun_close(&t);
    }
    assert_true(n_tried >= 3);
}

static void test_exit_status_and_signals(void **state)
{
    (void)state;
    struct tool_result r;
    toolrun_open(&t, NULL);
    toolrun_bash(&t, "echo out; echo err >&2; exit 7", &r);
    assert_text(&r, "out\nerr\n[exit status 7]\n");
    assert_int_equal(r.exit_status, 7);
    assert_int_equal(r.end, TOOL_EXITED);
    assert_true(r.is_error);
    tool_result_fini(&r);
    toolrun_bash(&t, "printf cut; kill -SEGV $$", &r);
    assert_text(&r, "cut\n[killed by signal 11: Segmentation fault]\n");
    assert_int_equal(r.end, TOOL_SIGNALLED);
    tool_result_fini(&r);
    toolrun_bash(&t, "no-such-command", &r);
    assert_int_equal(r.exit_status, 127);
    tool_result_fini(&r);
    toolrun_bash(&t, "kill -9 $PPID; kill -TERM $PPID; kill -KILL -1; echo alive", &r);
    assert_true(r.end == TOOL_EXITED || r.end == TOOL_SIGNALLED);
    tool_result_fini(&r);
    toolrun_close(&t);
}

/* What a command starts with: no input, its folder, a clean environment, three descriptors. */
static void test_surroundings(void **state)
{
    (void)state;
    struct tool_result r;
    char want[160];
    setenv("AGENTD_TEST_SECRET", "canary", 1);
    toolrun_open(&t, NULL);
    toolrun_bash(&t, "cat; read x || echo no input; pwd", &r);
    snprintf(want, sizeof want, "no input\n%s\n", t.ws);
    assert_text(&r, want);
    tool_result_fini(&r);
    toolrun_bash(&t, "env | cut -d= -f1 | sort | tr '\\n' ' '", &r);
    assert_text(&r,
                "AGENTD_SANDBOX GIT_PAGER HOME LANG PAGER PATH PWD SHELL SHLVL TERM TMPDIR _ ");
    tool_result_fini(&r);
    int held = open("/dev/null", O_RDONLY); /* without close-on-exec, on purpose */
    toolrun_bash(
        &t, "exec perl -e 'for (0..1023) { print \"$_ \" if -e \"/proc/self/fd/$_\" }'", &r);
    close(held);
    assert_text(&r, "0 1 2 ");
    tool_result_fini(&r);
    toolrun_bash(&t, "touch $HOME/h $TMPDIR/t && echo fine; [ -t 0 ] || : > /dev/tty", &r);
    assert_int_equal(strncmp(buf_str(&r.text), "fine\n", 5), 0);
    tool_result_fini(&r);
    toolrun_close(&t);
    unsetenv("AGENTD_TEST_SECRET");
}

static void test_bytes_are_kept(void **state)
{
    (void)state;
    struct tool_result r;
    toolrun_open(&t, NULL);
    toolrun_bash(&t, "printf 'a\\0b\\033[31m\\377\\r\\n\\n'", &r);
    assert_int_equal(r.text.len, 12);
    assert_memory_equal(r.text.data, "a\0b\033[31m\377\r\n\n", 12);
    assert_int_equal(r.output_bytes, 12);
    assert_false(r.truncated);
    assert_null(r.spill_path);
    tool_result_fini(&r);
    toolrun_close(&t);
}

static off_t file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? st.st_size : -1;
}

static void test_big_output(void **state)
{
    (void)state;
    struct tool_result r;
    toolrun_open(&t, &(struct tools_config){.output_bytes = 1000});
    toolrun_bash(&t, "echo first; head -c 50000000 /dev/zero | tr '\\0' x; echo; echo last",
                 &r);
    assert_false(r.is_error);
    assert_true(r.truncated);
    assert_int_equal(r.output_bytes, 50000012);
    assert_true(r.text.len < 1300);
    assert_int_equal(strncmp(buf_str(&r.text), "first\nxxx", 9), 0);
    assert_string_equal(buf_str(&r.text) + r.text.len - 7, "x\nlast\n");
    tool_result_fini(&r);
    toolrun_close(&t);
}

static void test_spill_file(void **state)
{
    (void)state;
    struct tool_result r;
    char path[160], arguments[256];
    toolrun_open(&t, &(struct tools_config){.output_bytes = 1000});
    toolrun_bash(&t, "seq 1 2000", &r);
    snprintf(path, sizeof path, "%s/0.out", t.spill);
    assert_string_equal(r.spill_path, path);
    assert_int_equal(file_size(path), 8893);
    assert_non_null(strstr(buf_str(&r.text), path));
    assert_non_null(strstr(buf_str(&r.text), "[... 7893 bytes left out; all 8893 are in "));
    assert_int_equal(strncmp(buf_str(&r.text), "1\n2\n3\n", 6), 0);
    assert_string_equal(buf_str(&r.text) + r.text.len - 10, "1999\n2000\n");
    tool_result_fini(&r);
    /* The model can read it, and cannot change it. */
    snprintf(arguments, sizeof arguments, "{'path': '%s', 'offset': 1234, 'limit': 1}", path);
    toolrun_call(&t, "read_file", arguments, &r);
    assert_text(&r, "1234\n");
    tool_result_fini(&r);
    snprintf(arguments, sizeof arguments, "{'path': '%s', 'content': ''}", path);
    toolrun_call(&t, "write_file", arguments, &r);
    assert_true(r.is_error);
    tool_result_fini(&r);
    /* One that exists is never written over. */
    t.n_calls = 0;
    toolrun_bash(&t, "seq 1 3000", &r);
    assert_null(r.spill_path);
    assert_non_null(strstr(buf_str(&r.text), "could not be stored: File exists"));
    assert_int_equal(file_size(path), 8893);
    tool_result_fini(&r);
    toolrun_close(&t);
}

static void test_output_limit(void **state)
{
    (void)state;
    struct tool_result r;
    toolrun_open(&t, &(struct tools_config){.max_output_bytes = 1 << 20, .output_bytes = 1000});
    toolrun_bash(&t, "yes", &r);
    assert_int_equal(r.end, TOOL_OUTPUT_LIMIT);
    assert_int_equal(r.output_bytes, 1 << 20);
    assert_true(r.duration_ms < 5000);
    assert_non_null(strstr(buf_str(&r.text), "[killed: wrote more than 1048576 bytes]\n"));
    tool_result_fini(&r);
    toolrun_close(&t);
}

/* A cut never leaves half a character, and what was handed out early is a prefix of the result.
 */
static void test_fresh_bytes_and_characters(void **state)
{
    (void)state;
    toolrun_open(&t, &(struct tools_config){.output_bytes = 1001});
    for (int shift = 0; shift < 4; shift++) {
        char arguments[200];
        AUTO(buf) struct buf fresh = BUF_INIT(1 << 20);
        struct tool_result r;
        snprintf(arguments, sizeof arguments,
                 "{'command': 'head -c %d /dev/zero; for i in {1..999}; do printf 𝄞€; done'}",
                 shift);
        struct tool_run *run = toolrun_start(&t, "run", arguments);
        while (!tool_run_step(run, toolrun_now_ms(), &fresh)) {
            struct tool_run_fds fds = tool_run_fds(run);
            struct pollfd p[] = {{fds.out_fd, POLLIN, 0}, {fds.pidfd, POLLIN, 0}};
            poll(p, 2, 20000);
        }
        tool_run_take(run, &r);
        tool_run_free(run);
        assert_true(r.truncated && fresh.len >= 490 && fresh.len <= 500);
        assert_memory_equal(r.text.data, fresh.data, fresh.len);
        json_t *text =
            json_stringn((const char *)r.text.data + shift, r.text.len - (size_t)shift);
        assert_non_null(text); /* jansson takes valid UTF-8 only */
        json_decref(text);
        tool_result_fini(&r);
    }
    toolrun_close(&t);
}

static unsigned count_entries(const char *folder, const char *prefix)
{
    unsigned n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *d; (d = readdir(dir));)
        n += !strncmp(d->d_name, prefix, strlen(prefix));
    closedir(dir);
    return n;
}

/* NousResearch/hermes-agent #59349: 328 pidfds leaked. */
static void test_nothing_leaks_over_200_runs(void **state)
{
    (void)state;
    toolrun_open(&t, NULL);
    unsigned fds = count_entries("/proc/self/fd", "");
    for (int i = 0; i < 200; i += 4) {
        struct tool_run *runs[4];
        struct tool_result r;
        for (int k = 0; k < 4; k++)
            runs[k] = toolrun_start(&t, "run", "{'command': 'echo x'}");
        for (int k = 0; k < 4; k++) {
            toolrun_finish(runs[k], 20000, &r);
            assert_text(&r, "x\n");
            tool_result_fini(&r);
        }
    }
    assert_int_equal(count_entries("/proc/self/fd", ""), fds);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    toolrun_close(&t);
}

/* Scratch folders go with their runs, whatever is in them, and those of killed launchers at the
 * next start. */
static void test_scratch_folders(void **state)
{
    (void)state;
    struct tool_result r;
    char dead[64], alive[64];
    for (int way = 0; way < 3; way++) {
        open_way(way, (struct tools_config){0});
        t.mode = TOOL_MODE_WORKSPACE_WRITE;
        toolrun_bash(
            &t,
            "cd $TMPDIR && mkdir -p a/b/c && touch a/b/c/f && ln -s / a/root && mkfifo p && "
            "chmod 0 a/b/c && chmod 500 a/b && stat -c %i .",
            &r);
        assert_false(r.is_error);
        ino_t scratch = (ino_t)strtoull(buf_str(&r.text), NULL, 10);
        DIR *dir = opendir("/tmp");
        for (struct dirent *d; (d = readdir(dir));)
            assert_false(d->d_ino == scratch);
        closedir(dir);
        tool_result_fini(&r);
        toolrun_close(&t);
    }
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    snprintf(dead, sizeof dead, "/tmp/agentd-tool.%d.abcdef", (int)child);
    snprintf(alive, sizeof alive, "/tmp/agentd-tool.%d.abcdef", (int)getpid());
    assert_int_equal(mkdir(dead, 0700), 0);
    assert_int_equal(mkdir(alive, 0700), 0);
    toolrun_open(&t, NULL);
    toolrun_close(&t);
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(rmdir(alive), 0);
}

static void test_owns_pid(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            pause();
            _exit(0);
        }
        if (write(fds[1], &grandchild, sizeof grandchild) < 0)
            _exit(1);
        pause();
        _exit(0);
    }
    pid_t grandchild;
    assert_int_equal(read(fds[0], &grandchild, sizeof grandchild), sizeof grandchild);
    assert_true(tools_owns_pid(child, getpid()));
    assert_true(tools_owns_pid(grandchild, getpid()));
    assert_false(tools_owns_pid(getppid(), getpid()));
    assert_false(tools_owns_pid(1, getpid()));
    assert_false(tools_owns_pid(0, getpid()));
    kill(grandchild, SIGKILL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_true(tools_owns_pid(child, getpid())); /* gone counts as one */
    close(fds[0]);
    close(fds[1]);
}

static int group(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grandchildren_end_with_the_command),
        cmocka_unit_test(test_time_limit_kills_all),
        cmocka_unit_test(test_own_time_limit_and_its_maximum),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_early_and_free),
        cmocka_unit_test(test_daemon_killed),
        cmocka_unit_test(test_launcher_killed),
        cmocka_unit_test(test_process_bomb),
        cmocka_unit_test(test_exit_status_and_signals),
        cmocka_unit_test(test_surroundings),
        cmocka_unit_test(test_bytes_are_kept),
        cmocka_unit_test(test_big_output),
        cmocka_unit_test(test_spill_file),
        cmocka_unit_test(test_output_limit),
        cmocka_unit_test(test_fresh_bytes_and_characters),
        cmocka_unit_test(test_nothing_leaks_over_200_runs),
        cmocka_unit_test(test_scratch_folders),
        cmocka_unit_test(test_owns_pid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return toolrun_as_both(group);
}
