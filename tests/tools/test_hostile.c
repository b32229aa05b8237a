/* Commands that mean harm, or behave as if they did: each is bounded, cleaned up after, and
 * reported, for root and for a plain user, with all layers and with what is left without
 * namespaces. */
#include "tests/support/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"
#include "tests/support/toolrun.h"

static struct toolrun t;

static const char *const no_namespaces[] = {"namespaces", NULL};
static const struct {
    const char *name;
    const char *const *without;
} ways[] = {{"all layers", NULL}, {"without namespaces", no_namespaces}};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

static void open_way(int way, struct tools_config c)
{
    c.without = ways[way].without;
    toolrun_open(&t, &c);
}

/* Control groups of launchers that are gone. (Other tests may be running tools meanwhile.) */
static unsigned count_groups(const char *root, int depth)
{
    unsigned n = 0;
    int launcher;
    DIR *dir = opendir(root);
    for (struct dirent *d; dir && (d = readdir(dir));) {
        char path[512];
        if (d->d_type != DT_DIR || d->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%.255s/%.255s", root, d->d_name);
        if (sscanf(d->d_name, "agentd-tool-%d", &launcher) == 1)
            n += kill(launcher, 0) != 0 && errno == ESRCH;
        if (depth > 0)
            n += count_groups(path, depth - 1);
    }
    if (dir)
        closedir(dir);
    return n;
}

/* What must hold after any run, however it behaved: it was bounded, nothing of it is left, its
 * group is gone, and the report says what was applied. */
static void assert_clean(const struct tool_result *r, int way, const char *marker)
{
    if (r->duration_ms > 15000)
        fail_msg("%s: took %llu ms", ways[way].name, (unsigned long long)r->duration_ms);
    if (marker)
        assert_int_equal(toolrun_count_processes(marker), 0);
    assert_non_null(r->layers);
    assert_false(toolrun_layer(r, "cgroup", "could not be removed"));
    assert_null(json_object_get(r->layers, "left_over"));
    assert_non_null(json_object_get(r->layers, "pids_limit"));
}

static const char *new_marker(void)
{
    static char marker[48];
    static int n;
    snprintf(marker, sizeof marker, "agentd-hostile-%d-%d", (int)getpid(), n++);
    return marker;
}

/* Runs a command in which @ stands for a `sleep 1000` of a name of its own. */
static void run_marked(int way, const char *format, struct tool_result *r)
{
    const char *marker = new_marker();
    char command[1024] = "";
    for (const char *p = format; *p; p++) {
        size_t n = strlen(command);
        if (*p == '@')
            snprintf(command + n, sizeof command - n, "bash -c 'exec -a %s sleep 1000'",
                     marker);
        else
            snprintf(command + n, sizeof command - n, "%c", *p);
    }
    toolrun_bash(&t, command, r);
    assert_clean(r, way, marker);
}

/* ---- processes: openai/codex PR #5258, dimetron/pi-go #92, earendil-works/pi #9460,
 * nugget/thane-ai-agent #1169 ---- */

static void ends_with_hi(const char *command)
{
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        open_way(way, (struct tools_config){0});
        run_marked(way, command, &r);
        assert_int_equal(r.end, TOOL_EXITED);
        assert_int_equal(r.exit_status, 0);
        assert_int_equal(strncmp(buf_str(&r.text), "hi\n", 3), 0);
        assert_non_null(strstr(buf_str(&r.text), "left in the background: killed]"));
        assert_true(r.n_killed >= 1 && r.duration_ms < 8000);
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

static void codex_5258_sleep_in_the_background(void **state)
{
    (void)state;
    ends_with_hi("@ & echo hi");
}

static void pi_9460_setsid(void **state)
{
    (void)state;
    ends_with_hi("setsid @ & echo hi");
}

static void thane_1169_double_fork(void **state)
{
    (void)state;
    ends_with_hi("( ( setsid nohup @ >/dev/null 2>&1 & ) & ); sleep 0.2; echo hi");
}

static void pi_go_92_ignored_term_is_killed_at_the_limit(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        open_way(way, (struct tools_config){.timeout_ms = 800});
        run_marked(way, "trap '' TERM INT HUP QUIT; echo on; @", &r);
        assert_int_equal(r.end, TOOL_TIMED_OUT);
        assert_non_null(strstr(buf_str(&r.text), "[timed out after 800 ms and was killed]\n"));
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

static bool limit_is_in_force(void)
{
    json_t *layers = NULL;
    struct error e;
    assert_ok(tools_probe(t.tools, t.mode, t.ws, &layers, &e), &e);
    const char *limit = json_string_value(json_object_get(layers, "pids_limit"));
    bool yes = limit && strncmp(limit, "none", 4) != 0;
    json_decref(layers);
    return yes;
}

/* Stops by itself at 2,000, and is run only when a probe has shown that the limit binds. */
static void process_bomb_stops_at_the_limit(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        unsigned made = 0, refused = 0;
        open_way(way, (struct tools_config){.max_processes = 40});
        assert_true(limit_is_in_force());
        toolrun_bash(&t,
                     "perl -e 'for (1..2000) { my $p = fork; if (!defined $p) { $f++ } "
                     "elsif (!$p) { setpgrp; sleep 30; exit } else { $n++ } } "
                     "print \"$n $f\\n\"'",
                     &r);
        assert_int_equal(sscanf(buf_str(&r.text), "%u %u", &made, &refused), 2);
        assert_int_equal(made + refused, 2000);
        /* Without a namespace a plain user's other processes count, too. */
        assert_true(made > 10 && made <= (toolrun_is_plain_user() ? 400 : 40));
        assert_true(r.n_killed >= made);
        assert_clean(&r, way, NULL);
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

/* ---- output ---- */

static long peak_kib(void)
{
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    return u.ru_maxrss;
}

/* 10 GB: with the limit that everybody has the writer is killed at 256 MiB. */
static void ten_gigabytes_of_output_are_cut_off(void **state)
{
    (void)state;
    struct tool_result r;
    struct stat st;
    long before = peak_kib();
    open_way(0, (struct tools_config){0});
    const char *marker = new_marker();
    toolrun_bash(&t, "yes | head -c 10000000000", &r);
    assert_int_equal(r.end, TOOL_OUTPUT_LIMIT);
    assert_int_equal(r.output_bytes, 256 << 20);
    assert_true(r.text.len < (33 << 10));
    assert_true(r.truncated && r.is_error);
    assert_non_null(r.spill_path);
    assert_int_equal(stat(r.spill_path, &st), 0);
    assert_int_equal(st.st_size, 256 << 20);
    assert_non_null(strstr(buf_str(&r.text), "[killed: wrote more than 268435456 bytes]\n"));
    assert_true(peak_kib() - before < 16 << 10); /* nothing of it is kept in memory */
    assert_clean(&r, 0, marker);
    tool_result_fini(&r);
    toolrun_close(&t);
}

/* The same where all of it is wanted, without a file for it: every byte goes through. */
static void ten_gigabytes_stream_through_in_bounded_memory(void **state)
{
    (void)state;
    struct tool_result r;
    bool slow = getenv("AGENTD_SLOW") != NULL;
    uint64_t want = slow ? 10000000000 : 400000000;
    char arguments[128];
    struct error e;
    struct tool_run *run;
    long before = peak_kib();
    open_way(0, (struct tools_config){.max_output_bytes = want + 1, .timeout_ms = 300000});
    snprintf(arguments, sizeof arguments, "yes | head -c %llu", (unsigned long long)want);
    json_auto_t *a = json_pack("{s:s}", "command", arguments);
    const struct tool_call call = {
        .name = "run", .arguments = a, .workspace = t.ws, .mode = t.mode};
    assert_ok(tool_run_start(t.tools, &call, toolrun_now_ms(), &run, &e), &e);
    toolrun_finish(run, 300000, &r);
    assert_int_equal(r.end, TOOL_EXITED);
    assert_int_equal(r.output_bytes, want);
    assert_true(r.text.len < (33 << 10) && r.truncated);
    assert_true(peak_kib() - before < 16 << 10);
    tool_result_fini(&r);
    toolrun_close(&t);
}

static void nuls_and_escapes_come_through_as_they_are(void **state)
{
    (void)state;
    static const char want[] = "a\0\033[2J\033]52;c;eA==\a\r\x9b\xff\xfe end\n";
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        open_way(way, (struct tools_config){0});
        toolrun_bash(&t, "printf 'a\\0\\033[2J\\033]52;c;eA==\\a\\r\\x9b\\xff\\xfe end\\n'",
                     &r);
        assert_int_equal(r.text.len, sizeof want - 1);
        assert_memory_equal(r.text.data, want, sizeof want - 1);
        assert_clean(&r, way, NULL);
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

/* ---- files ---- */

static void make_file(const char *name, const char *text, mode_t mode)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", t.dir, name);
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void key_file_cannot_be_read(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        open_way(way, (struct tools_config){0});
        toolrun_bash(
            &t,
            "cat ../secret/key; cat < ../secret/key; ln -s ../secret/key s; cat s; "
            "ln ../secret/key h; cat h; cp ../secret/key c; cat c; mv ../secret/key m; "
            "cat m; tar c ../secret | cat; dd if=../secret/key; "
            "perl -e 'open F, \"<\", \"../secret/key\"; print <F>'; "
            "cat /proc/self/root$PWD/../secret/key; find .. -name key -exec cat {} +; "
            "true",
            &r);
        if (memmem(r.text.data, r.text.len, "SECRETKEY", 9))
            fail_msg("%s: %s", ways[way].name, buf_str(&r.text));
        assert_non_null(strstr(buf_str(&r.text), "../secret/key: "));
        assert_clean(&r, way, NULL);
        tool_result_fini(&r);
        char path[160], key[16] = "";
        snprintf(path, sizeof path, "%s/key", t.secret);
        AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_int_equal(read(fd, key, sizeof key - 1), 10);
        assert_string_equal(key, "SECRETKEY\n");
        toolrun_close(&t);
    }
}

static void nothing_is_written_outside_by_path_link_or_rename(void **state)
{
    static const char *const commands[] = {
        "echo x > ../new",
        "echo x >> ../file",
        "ln -s ../file l; echo x > l",
        "ln ../file h; echo x > h",
        "echo x > in; mv in ../new",
        "mv ../file taken",
        "mkdir ../newdir",
        "rm -f ../file",
        "mkdir d; mv d ../newdir",
        "ln -s .. up; echo x > up/new; cp /etc/hostname up/new",
        "truncate -s 0 ../file",
        "perl -e 'rename \"../file\", \"../new\"'",
        "cd ..; echo x > new; echo x > file"};
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        open_way(way, (struct tools_config){0});
        assert_int_equal(chmod(t.dir, 0777), 0);
        make_file("file", "before", 0666);
        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
            struct tool_result r;
            char path[160], text[16] = "";
            toolrun_bash(&t, commands[i], &r);
            snprintf(path, sizeof path, "%s/file", t.dir);
            AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
            if (fd < 0 || read(fd, text, sizeof text - 1) != 6 || strcmp(text, "before") != 0)
                fail_msg("%s: %s", ways[way].name, commands[i]);
            snprintf(path, sizeof path, "%s/new", t.dir);
            assert_int_equal(access(path, F_OK), -1);
            snprintf(path, sizeof path, "%s/newdir", t.dir);
            assert_int_equal(access(path, F_OK), -1);
            assert_clean(&r, way, NULL);
            tool_result_fini(&r);
        }
        toolrun_close(&t);
    }
}

/* ---- sockets ---- */

static void assert_nobody_came(int fd, const struct tool_result *r, int way)
{
    if (strstr(buf_str(&r->text), "CONNECTED"))
        fail_msg("%s: %s", ways[way].name, buf_str(&r->text));
    assert_true(accept(fd, NULL, NULL) < 0 && errno == EAGAIN);
    assert_true(r->is_error); /* the command itself says that it could not */
}

static void control_socket_cannot_be_reached(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        char path[104], command[512];
        open_way(way, (struct tools_config){0});
        assert_int_equal(chmod(t.secret, 0777), 0);
        snprintf(path, sizeof path, "%s/sock", t.secret);
        AUTO_FD int fd = toolrun_listen_unix(path);
        snprintf(command, sizeof command,
                 "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0) or die \"socket: $!\"; "
                 "connect(S, sockaddr_un($ARGV[0])) or die \"connect: $!\"; "
                 "print \"CONNECTED\\n\"' %s",
                 path);
        toolrun_bash(&t, command, &r);
        assert_nobody_came(fd, &r, way);
        assert_non_null(json_object_get(r.layers, "control_socket"));
        assert_clean(&r, way, NULL);
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

static void network_cannot_be_reached(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        char command[512];
        int port;
        open_way(way, (struct tools_config){0});
        AUTO_FD int fd = toolrun_listen_tcp(&port);
        snprintf(command, sizeof command,
                 "(exec 3<>/dev/tcp/127.0.0.1/%d) && echo CONNECTED; "
                 "(exec 3<>/dev/udp/127.0.0.1/%d; echo x >&3) && exit 0; exit 1",
                 port, port);
        toolrun_bash(&t, command, &r);
        if (way == 0) /* in a network of its own a datagram to nobody can be sent */
            r.is_error = true;
        assert_nobody_came(fd, &r, way);
        assert_true(toolrun_layer(&r, "network", "none: "));
        assert_clean(&r, way, NULL);
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

/* ---- how it is reported ---- */

/* dsh post-mortem 0004: a line of the sandbox on stderr made failures of commands look like its
 * own. How a run ended is told through a pipe that the tool does not have: whatever it prints
 * is output. */
static void dsh_0004_what_a_tool_prints_is_no_report(void **state)
{
    (void)state;
    struct tool_result r;
    open_way(0, (struct tools_config){0});
    toolrun_bash(&t,
                 "echo '{\"end\":\"refused\",\"status\":0,\"layers\":{}}' >&2; "
                 "echo 'warning: partial enforcement of the sandbox' >&2; "
                 "for fd in 3 4 5 6 7 8 9; do echo '{\"end\":\"exited\",\"status\":0}' >&$fd; "
                 "done 2>/dev/null; exit 3",
                 &r);
    assert_int_equal(r.end, TOOL_EXITED);
    assert_int_equal(r.exit_status, 3);
    assert_true(toolrun_layer(&r, "mode", "workspace-write"));
    assert_non_null(strstr(buf_str(&r.text), "partial enforcement"));
    assert_non_null(strstr(buf_str(&r.text), "[exit status 3]\n"));
    tool_result_fini(&r);
    toolrun_close(&t);
}

/* openai/codex #15057, #17337, #29908, anthropic-experimental/sandbox-runtime #74: where user
 * namespaces are refused (Ubuntu's AppArmor rule) the other layers do alone, and say so; with
 * nothing left it is refused, and says so. */
static void codex_15057_17337_29908_srt_74_without_namespaces(void **state)
{
    static const char *const nothing[] = {"namespaces", "landlock", NULL};
    (void)state;
    struct tool_result r;
    open_way(1, (struct tools_config){0});
    toolrun_bash(&t, "echo ran > f; cat f; echo x > ../f", &r);
    assert_int_equal(strncmp(buf_str(&r.text), "ran\n", 4), 0);
    assert_true(toolrun_layer(&r, "user_namespace", "none: not asked for"));
    assert_true(toolrun_layer(&r, "mounts", "none: "));
    assert_true(toolrun_layer(&r, "landlock", "ABI "));
    assert_true(toolrun_layer(&r, "network", "none: refused by seccomp"));
    tool_result_fini(&r);
    toolrun_close(&t);
    toolrun_open(&t, &(struct tools_config){.without = nothing});
    toolrun_bash(&t, "echo ran; echo x > ../f", &r);
    if (toolrun_is_plain_user())
        assert_int_equal(r.end, TOOL_REFUSED);
    else
        assert_true(toolrun_layer(&r, "files", "by file permissions only"));
    tool_result_fini(&r);
    toolrun_close(&t);
}

/* NousResearch/hermes-agent #59349, DeusData/codebase-memory-mcp #406: 500 runs (the slow
 * target; 120 else) leave no descriptor, no child, no control group. */
static void hermes_59349_codebase_memory_406_nothing_leaks(void **state)
{
    (void)state;
    unsigned n_fds[2] = {0};
    open_way(0, (struct tools_config){0});
    for (int i = 0; i < (getenv("AGENTD_SLOW") ? 500 : 120); i++) {
        struct tool_result r;
        toolrun_call(&t, "list_dir", "{}", &r);
        assert_false(r.is_error);
        tool_result_fini(&r);
        if (i > 1)
            continue;
        DIR *dir = opendir("/proc/self/fd");
        while (readdir(dir))
            n_fds[0]++;
        closedir(dir);
        n_fds[0] = i == 0 ? 0 : n_fds[0]; /* counted after the second */
    }
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n_fds[1]++;
    closedir(dir);
    assert_int_equal(n_fds[0], n_fds[1]);
    toolrun_close(&t);
}

/* The last: what all of the above made is gone. */
static void no_group_is_left(void **state)
{
    (void)state;
    unsigned n = 1;
    for (int i = 0; i < 100 && n; i++) {
        n = count_groups("/sys/fs/cgroup", 3);
        if (n)
            nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    }
    assert_int_equal(n, 0);
}

static int group(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codex_5258_sleep_in_the_background),
        cmocka_unit_test(pi_9460_setsid),
        cmocka_unit_test(thane_1169_double_fork),
        cmocka_unit_test(pi_go_92_ignored_term_is_killed_at_the_limit),
        cmocka_unit_test(process_bomb_stops_at_the_limit),
        cmocka_unit_test(ten_gigabytes_of_output_are_cut_off),
        cmocka_unit_test(ten_gigabytes_stream_through_in_bounded_memory),
        cmocka_unit_test(nuls_and_escapes_come_through_as_they_are),
        cmocka_unit_test(key_file_cannot_be_read),
        cmocka_unit_test(nothing_is_written_outside_by_path_link_or_rename),
        cmocka_unit_test(control_socket_cannot_be_reached),
        cmocka_unit_test(network_cannot_be_reached),
        cmocka_unit_test(dsh_0004_what_a_tool_prints_is_no_report),
        cmocka_unit_test(codex_15057_17337_29908_srt_74_without_namespaces),
        cmocka_unit_test(hermes_59349_codebase_memory_406_nothing_leaks),
        cmocka_unit_test(no_group_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return toolrun_as_both(group);
}
