/* What a tool cannot reach: by path, by link, by renaming, over the network, through sockets.
 * Every case is tried with all layers, and with each one left out that the rest must make up
 * for. */
#include "tests/support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/auto.h"
#include "tests/support/toolrun.h"
#include "tools/confined.h"
#include "tools/landlock.h"

static struct toolrun t;

static const char *const no_namespaces[] = {"namespaces", NULL};
static const char *const no_cgroup[] = {"cgroup", NULL};
static const char *const neither[] = {"cgroup", "namespaces", NULL};
static const char *const no_landlock[] = {"landlock", NULL};
static const char *const old_mounts[] = {"landlock", "mount_setattr", NULL};
static const struct {
    const char *name;
    const char *const *without;
} ways[] = {{"all layers", NULL},         {"no namespaces", no_namespaces},
            {"no cgroup", no_cgroup},     {"no cgroup, no namespaces", neither},
            {"no Landlock", no_landlock}, {"no Landlock, no mount_setattr", old_mounts}};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

static void open_way(int way)
{
    toolrun_open(&t, &(struct tools_config){.without = ways[way].without});
}

/* Opens a way, unless this machine has not what the rest must make up for: in a container
 * without mount namespaces, commands without Landlock are refused, or run as a user who owns
 * nothing (test_with_next_to_nothing). The first way always counts. */
static bool try_way(int way)
{
    json_t *layers = NULL;
    open_way(way);
    bool refused = tools_probe(t.tools, t.mode, t.ws, &layers, NULL) != OK;
    bool bare = json_object_get(layers, "files");
    json_decref(layers);
    if (way == 0 || !(refused || bare))
        return true;
    toolrun_close(&t);
    return false;
}

static void put(const char *path, const char *text, mode_t mode)
{
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

/* The path of something in the test's folder. */
static const char *at(const char *name)
{
    static char path[4][160];
    static unsigned n;
    char *p = path[n++ % 4];
    snprintf(p, 160, "%s/%s", t.dir, name);
    return p;
}

static void assert_lacks(const struct tool_result *r, int way, const char *part)
{
    if (memmem(r->text.data, r->text.len, part, strlen(part)))
        fail_msg("%s: \"%s\" holds \"%s\"", ways[way].name, buf_str(&r->text), part);
}

static void assert_holds(const struct tool_result *r, int way, const char *part)
{
    if (!memmem(r->text.data, r->text.len, part, strlen(part)))
        fail_msg("%s: \"%s\" lacks \"%s\"", ways[way].name, buf_str(&r->text), part);
}

/* ---- file tools ---- */

static void assert_denied(const char *tool, const char *arguments)
{
    struct tool_result r;
    toolrun_call(&t, tool, arguments, &r);
    assert_true(r.is_error);
    assert_lacks(&r, 0, "SECRETKEY");
    if (!strstr(buf_str(&r.text), "outside") &&
        !strstr(buf_str(&r.text), "may not be followed") && !strstr(buf_str(&r.text), "ot a "))
        fail_msg("%s %s: %s", tool, arguments, buf_str(&r.text));
    tool_result_fini(&r);
}

static void test_paths_outside(void **state)
{
    (void)state;
    char arguments[512];
    open_way(0);
    assert_int_equal(symlink("../secret", at("ws/folder")), 0);
    assert_int_equal(symlink("../secret/key", at("ws/key")), 0);
    assert_int_equal(symlink("/etc/passwd", at("ws/passwd")), 0);
    assert_int_equal(symlink("/proc/self/root", at("ws/magic")), 0);
    const char *const paths[] = {
        "../secret/key", "/etc/passwd",      "folder/key",          "key",
        "passwd",        "magic/etc/passwd", "./a/../../secret/key"};
    const char *const calls[][2] = {
        {"read_file", "{'path': '%s'}"},
        {"grep", "{'pattern': '.', 'path': '%s'}"},
        {"list_dir", "{'path': '%s/..'}"},
        {"write_file", "{'path': '%s', 'content': 'x'}"},
        {"edit", "{'path': '%s', 'old_string': 'S', 'new_string': 'x'}"}};
    mkdir(at("ws/a"), 0755);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        for (size_t k = 0; k < sizeof calls / sizeof calls[0]; k++) {
            if (!strcmp(calls[k][0], "write_file") && !strncmp(paths[i], "/etc", 4))
                continue; /* below */
            const char *hole = strstr(calls[k][1], "%s");
            snprintf(arguments, sizeof arguments, "%.*s%s%s", (int)(hole - calls[k][1]),
                     calls[k][1], paths[i], hole + 2);
            assert_denied(calls[k][0], arguments);
        }
    }
    snprintf(arguments, sizeof arguments, "{'path': '%s', 'content': 'x'}", at("outside"));
    assert_denied("write_file", arguments);
    assert_int_equal(access(at("outside"), F_OK), -1);
    /* The folder beside whose name begins alike is outside, too. */
    mkdir(at("ws2"), 0755);
    snprintf(arguments, sizeof arguments, "{'path': '%s'}", at("ws2"));
    assert_denied("list_dir", arguments);
    toolrun_close(&t);
}

static void test_links_inside(void **state)
{
    (void)state;
    struct tool_result r;
    open_way(0);
    mkdir(at("ws/real"), 0755);
    put(at("ws/real/file"), "inside\n", 0644);
    assert_int_equal(symlink("real", at("ws/alias")), 0);
    toolrun_call(&t, "read_file", "{'path': 'alias/file'}", &r);
    assert_string_equal(buf_str(&r.text), "inside\n");
    tool_result_fini(&r);
    toolrun_call(&t, "read_file", "{'path': 'alias/../real/file'}", &r);
    assert_string_equal(buf_str(&r.text), "inside\n");
    tool_result_fini(&r);
    toolrun_close(&t);
}

/* ---- the same by name while another thread renames ---- */

struct race {
    const char *ws;
    atomic_bool stop;
};

static void *swap_folder(void *arg)
{
    struct race *r = arg;
    char d[160], real[160], link[160];
    snprintf(d, sizeof d, "%s/d", r->ws);
    snprintf(real, sizeof real, "%s/d.real", r->ws);
    snprintf(link, sizeof link, "%s/d.link", r->ws);
    while (!atomic_load(&r->stop)) {
        rename(d, real);
        rename(link, d);
        rename(d, link);
        rename(real, d);
    }
    return NULL;
}

static enum err open_walking(const struct confined *c, const char *path, int *fd)
{
    AUTO_FD int dir = open(c->workspace, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return confined_walk(dir, path, O_RDONLY, 0, fd, NULL);
}

static void test_rename_race(void **state)
{
    (void)state;
    int n_inside = 0, n_refused = 0;
    open_way(0);
    mkdir(at("ws/d"), 0755);
    put(at("ws/d/key"), "inside", 0644);
    assert_int_equal(symlink("../secret", at("ws/d.link")), 0);
    assert_int_equal(chmod(t.secret, 0755), 0);
    struct confined c = {t.ws, NULL};
    struct race race = {.ws = t.ws};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, swap_folder, &race), 0);
    uint64_t begin = toolrun_now_ms();
    for (int i = 0; i < 20000 && toolrun_now_ms() - begin < 2000; i++) {
        int fd;
        char text[32] = "";
        enum err rc = i % 2 ? open_walking(&c, "d/key", &fd)
                            : confined_open(&c, "d/key", O_RDONLY, 0, &fd, NULL);
        if (rc) {
            n_refused++;
            continue;
        }
        n_inside++;
        assert_true(read(fd, text, sizeof text - 1) >= 0);
        close(fd);
        assert_string_equal(text, "inside");
    }
    atomic_store(&race.stop, true);
    pthread_join(thread, NULL);
    assert_true(n_inside > 100 && n_refused > 100); /* the race did take place */
    toolrun_close(&t);
}

static void test_walk_without_openat2(void **state)
{
    (void)state;
    struct error e;
    int fd;
    open_way(0);
    mkdir(at("ws/d"), 0755);
    put(at("ws/d/f"), "x", 0644);
    assert_int_equal(symlink("d", at("ws/l")), 0);
    AUTO_FD int dir = open(t.ws, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_ok(confined_walk(dir, "d//f", O_RDONLY, 0, &fd, &e), &e);
    close(fd);
    assert_ok(confined_walk(dir, ".", O_RDONLY | O_DIRECTORY, 0, &fd, &e), &e);
    close(fd);
    assert_int_equal(confined_walk(dir, "d/../d/f", O_RDONLY, 0, &fd, &e), ERR_DENIED);
    assert_int_equal(confined_walk(dir, "l/f", O_RDONLY, 0, &fd, &e), ERR_DENIED);
    assert_int_equal(confined_walk(dir, "l", O_RDONLY, 0, &fd, &e), ERR_DENIED);
    assert_int_equal(confined_walk(dir, "d/none", O_RDONLY, 0, &fd, &e), ERR_NOTFOUND);
    toolrun_close(&t);
}

/* ---- commands ---- */

static void test_key_file(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        if (!try_way(way))
            continue;
        toolrun_bash(
            &t,
            "cat ../secret/key; ls -la ../secret; cp -r ../secret . ; ln ../secret/key k; "
            "cat k; ln -s ../secret/key s; cat s; find .. -name key -exec cat {} +; "
            "cat /proc/*/root$PWD/../secret/key /proc/*/cwd/../secret/key; cat /etc/shadow "
            "/etc/gshadow; true",
            &r);
        assert_int_equal(r.end, TOOL_EXITED);
        assert_lacks(&r, way, "root:");
        assert_lacks(&r, way, "SECRETKEY");
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

static void test_writing_outside(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        struct stat st;
        if (!try_way(way))
            continue;
        mkdir(at("open"), 0755);
        put(at("open/file"), "before", 0644);
        if (geteuid() != 0)
            assert_int_equal(chmod(t.dir, 0777), 0);
        assert_int_equal(chmod(at("open"), 0777), 0);
        assert_int_equal(chmod(at("open/file"), 0666), 0);
        toolrun_bash(
            &t,
            "echo in > inside; echo x > ../open/new; echo x > ../open/file; : > ../open/file;"
            "mv inside ../open/moved; mv ../open/file .; ln ../open/file hard; "
            "echo x >> hard; ln -s ../open/file soft; echo x >> soft; rm -f ../open/file; "
            "mkdir ../open/d; truncate -s 0 ../open/file; touch ../spill/x; "
            "chmod 0 ../open/file; touch -d 2001-01-01 ../open/file; echo done; cat inside",
            &r);
        assert_holds(&r, way, "done\nin\n");
        /* Its owner may chmod it: only read-only mounts, or not being the owner, stop that. */
        bool modes =
            toolrun_layer(&r, "mounts", "private; read-only") || !toolrun_is_plain_user();
        AUTO_FD int fd = open(at("open/file"), O_RDONLY | O_CLOEXEC);
        char text[16] = "";
        if (fd < 0 || read(fd, text, sizeof text - 1) < 0 || strcmp(text, "before") != 0) {
            if (modes || fd >= 0)
                fail_msg("%s: the file now holds \"%s\"", ways[way].name, text);
        }
        assert_int_equal(access(at("open/new"), F_OK), -1);
        assert_int_equal(access(at("open/moved"), F_OK), -1);
        assert_int_equal(access(at("open/d"), F_OK), -1);
        assert_int_equal(access(at("spill/x"), F_OK), -1);
        assert_int_equal(stat(at("open/file"), &st), 0);
        if (modes) {
            assert_int_equal(st.st_mode & 07777, 0666);
            assert_true(st.st_mtime > 1500000000);
        }
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

/* The workspace can be used for what it is for. */
static void test_writing_inside(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        if (!try_way(way))
            continue;
        put(at("ws/old"), "old\n", 0644);
        toolrun_bash(
            &t,
            "set -e; echo new >> old; cat old; mkdir -p a/b; mv old a/b/; ln a/b/old l; "
            "rm l; mkfifo p; echo '#!/bin/sh' > s; echo 'echo ran' >> s; "
            "chmod +x s; ./s; rm -r a; echo t > $TMPDIR/x; cat $TMPDIR/x; echo z > /dev/null",
            &r);
        if (strcmp(buf_str(&r.text), "old\nnew\nran\nt\n") != 0)
            fail_msg("%s: %s", ways[way].name, buf_str(&r.text));
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

/* ---- sockets ---- */

/* perl -e: connects to a unix socket and says CONNECTED, or why not. */
#define CONNECT_UNIX                                                                           \
    "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0) or die \"socket: $!\"; connect(S, "  \
    "sockaddr_un($ARGV[0])) or die \"connect: $!\"; print \"CONNECTED\\n\"' "

static void test_control_socket(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        char command[512];
        if (!try_way(way))
            continue;
        assert_int_equal(chmod(t.secret, 0777), 0);
        AUTO_FD int fd = toolrun_listen_unix(at("secret/sock"));
        assert_int_equal(chmod(at("secret/sock"), 0777), 0);
        snprintf(command, sizeof command, CONNECT_UNIX "%s", at("secret/sock"));
        toolrun_bash(&t, command, &r);
        assert_lacks(&r, way, "CONNECTED");
        assert_true(accept(fd, NULL, NULL) < 0 && errno == EAGAIN);
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

/* Where the socket cannot be hidden (full access), its owner recognises the peer. */
static void test_control_socket_with_full_access(void **state)
{
    (void)state;
    char command[512];
    struct ucred peer;
    socklen_t n = sizeof peer;
    struct tool_result r;
    open_way(0);
    t.mode = TOOL_MODE_FULL_ACCESS;
    AUTO_FD int fd = toolrun_listen_unix(at("sock"));
    snprintf(command, sizeof command, "( setsid " CONNECT_UNIX "%s; ) ; sleep 0.2", at("sock"));
    struct tool_run *run = toolrun_start_bash(&t, command);
    AUTO_FD int connected = -1;
    for (int i = 0; i < 500 && connected < 0; i++) {
        connected = accept(fd, NULL, NULL);
        usleep(10000);
    }
    assert_true(connected >= 0);
    assert_int_equal(getsockopt(connected, SOL_SOCKET, SO_PEERCRED, &peer, &n), 0);
    assert_true(tools_owns_pid(peer.pid, getpid()));
    toolrun_finish(run, 10000, &r);
    assert_holds(&r, 0, "CONNECTED");
    tool_result_fini(&r);
    toolrun_close(&t);
}

static void test_network(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        char command[512];
        int port;
        if (!try_way(way))
            continue;
        AUTO_FD int fd = toolrun_listen_tcp(&port);
        snprintf(
            command, sizeof command,
            "(echo > /dev/tcp/127.0.0.1/%d) && echo CONNECTED; "
            "(echo > /dev/udp/127.0.0.1/%d) ; (echo > /dev/tcp/10.0.0.1/80) && echo CONNECTED; "
            "perl -MSocket -e 'print socket(S, 40, SOCK_STREAM, 0) ? \"VSOCK\" : \"no\", "
            "\"\\n\"'",
            port, port);
        toolrun_bash(&t, command, &r);
        assert_lacks(&r, way, "CONNECTED");
        assert_lacks(&r, way, "VSOCK");
        assert_true(accept(fd, NULL, NULL) < 0 && errno == EAGAIN);
        assert_true(toolrun_layer(&r, "network", "none: "));
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

/* ---- the layers themselves ---- */

static void test_no_way_out_of_the_layers(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct tool_result r;
        if (!try_way(way))
            continue;
        toolrun_bash(
            &t,
            "unshare -Ur true && echo ESCAPED user; unshare -m true && echo ESCAPED mount; "
            "umount ../secret && echo ESCAPED umount; "
            "mount -t tmpfs none . && echo ESCAPED tmpfs; chroot / true && echo ESCAPED root; "
            "mount -o remount,rw / && echo ESCAPED remount; nsenter -t 1 -m true && echo "
            "ESCAPED nsenter; mknod dev b 259 0 && echo ESCAPED mknod; "
            "(echo 1 > /proc/sys/kernel/core_pattern) && echo ESCAPED sysctl; "
            "(echo $$ > /sys/fs/cgroup/cgroup.procs) && echo ESCAPED cgroup; "
            "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\\n'",
            &r);
        assert_lacks(&r, way, "ESCAPED");
        assert_holds(&r, way, "NoNewPrivs:\t1Seccomp:\t2");
        tool_result_fini(&r);
        toolrun_close(&t);
    }
}

/* It fails closed: with too little left, a plain user's commands are refused and say why;
 * nothing runs. Root's run as a user who owns nothing. The file tools need neither. */
static void test_with_next_to_nothing(void **state)
{
    (void)state;
    static const char *const without[] = {"landlock", "namespaces", NULL};
    struct tool_result r;
    struct error e;
    json_t *layers;
    toolrun_open(&t, &(struct tools_config){.without = without});
    toolrun_bash(&t, "echo ran; touch ran; touch ../ran; cat ../secret/key", &r);
    assert_int_equal(access(at("ws/ran"), F_OK), -1);
    assert_int_equal(access(at("ran"), F_OK), -1);
    assert_lacks(&r, 0, "SECRETKEY");
    enum err rc = tools_probe(t.tools, TOOL_MODE_WORKSPACE_WRITE, t.ws, &layers, &e);
    if (toolrun_is_plain_user()) {
        assert_int_equal(r.end, TOOL_REFUSED);
        assert_true(r.is_error);
        assert_holds(&r, 0,
                     "refused by the sandbox, nothing ran: nothing can confine writes here");
        assert_int_equal(rc, ERR_DENIED);
        assert_non_null(strstr(e.msg, "nothing can confine writes"));
    } else {
        assert_holds(&r, 0, "ran\n");
        assert_true(toolrun_layer(&r, "files", "by file permissions only"));
        assert_ok(rc, &e);
        json_decref(layers);
    }
    tool_result_fini(&r);
    toolrun_call(&t, "write_file", "{'path': 'f', 'content': 'x'}", &r);
    assert_false(r.is_error);
    tool_result_fini(&r);
    assert_denied("read_file", "{'path': '../secret/key'}");
    assert_ok(tools_probe(t.tools, TOOL_MODE_FULL_ACCESS, t.ws, &layers, &e), &e);
    json_decref(layers);
    toolrun_close(&t);
}

/* A workspace that is not below /tmp: the tool's /tmp is its own, and goes away. */
static void test_private_tmp(void **state)
{
    (void)state;
    struct tool_result r;
    char workspace[] = "/var/tmp/agentd-ws.XXXXXX";
    assert_non_null(mkdtemp(workspace));
    open_way(0);
    json_t *arguments = json_pack("{s:s}", "command",
                                  "touch /tmp/agentd-x w; echo /tmp/*; echo $HOME $TMPDIR; ls");
    struct tool_call call = {.name = "run",
                             .arguments = arguments,
                             .workspace = workspace,
                             .mode = TOOL_MODE_WORKSPACE_WRITE};
    struct tool_run *run;
    struct error e;
    assert_ok(tool_run_start(t.tools, &call, toolrun_now_ms(), &run, &e), &e);
    json_decref(arguments);
    toolrun_finish(run, 10000, &r);
    bool own =
        toolrun_layer(&r, "mounts", "private; read-only outside the workspace; own /tmp");
    if (own)
        assert_string_equal(buf_str(&r.text), "/tmp/agentd-x\n/tmp /tmp\nw\n");
    else /* a machine without mount namespaces */
        assert_true(toolrun_layer(&r, "mounts", "none"));
    assert_int_equal(access("/tmp/agentd-x", F_OK), -1);
    tool_result_fini(&r);
    toolrun_close(&t);
    char file[64];
    snprintf(file, sizeof file, "%s/w", workspace);
    unlink(file);
    assert_int_equal(rmdir(workspace), 0);
}

static void test_workspaces_that_cannot_be(void **state)
{
    (void)state;
    struct tool_result r;
    struct error e;
    open_way(0);
    json_t *arguments = json_pack("{s:s}", "command", "true");
    const struct {
        const char *workspace, *says;
    } bad[] = {{"relative", "not an absolute path of a folder"},
               {"/etc/passwd", "not an absolute path of a folder"},
               {"/no/such/folder", "not an absolute path of a folder"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct tool_call call = {
            .name = "run", .arguments = arguments, .workspace = bad[i].workspace};
        struct tool_run *run = NULL;
        assert_int_equal(tool_run_start(t.tools, &call, 0, &run, &e), ERR_INVAL);
        assert_non_null(strstr(e.msg, bad[i].says));
    }
    const char *const refused[] = {"/", t.secret};
    for (size_t i = 0; i < 2; i++) {
        struct tool_call call = {.name = "run",
                                 .arguments = arguments,
                                 .workspace = refused[i],
                                 .mode = TOOL_MODE_WORKSPACE_WRITE};
        struct tool_run *run;
        assert_ok(tool_run_start(t.tools, &call, toolrun_now_ms(), &run, &e), &e);
        toolrun_finish(run, 10000, &r);
        assert_int_equal(r.end, TOOL_REFUSED);
        tool_result_fini(&r);
    }
    json_decref(arguments);
    toolrun_close(&t);
}

static int group(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths_outside),
        cmocka_unit_test(test_links_inside),
        cmocka_unit_test(test_rename_race),
        cmocka_unit_test(test_walk_without_openat2),
        cmocka_unit_test(test_key_file),
        cmocka_unit_test(test_writing_outside),
        cmocka_unit_test(test_writing_inside),
        cmocka_unit_test(test_control_socket),
        cmocka_unit_test(test_control_socket_with_full_access),
        cmocka_unit_test(test_network),
        cmocka_unit_test(test_no_way_out_of_the_layers),
        cmocka_unit_test(test_with_next_to_nothing),
        cmocka_unit_test(test_private_tmp),
        cmocka_unit_test(test_workspaces_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return toolrun_as_both(group);
}
