#include "tools/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"
#include "tools/body.h"
#include "tools/cgroup.h"
#include "tools/privileges.h"
#include "tools/reap.h"
#include "tools/sandbox.h"
#include "tools/scratch.h"

#define MESSAGE_BYTES 8192
#define NAMESPACES (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC)

struct supervisor {
    const struct launch *l;
    struct sandbox_plan plan;
    struct cgroup cgroup;
    char scratch[SCRATCH_PATH_BYTES];
    int signals; /* signalfd */
    int sock;    /* to the child; -1 once it hung up */
    pid_t child;
    int status;        /* wait status of the tool's own process */
    bool has_status;   /* it is known */
    bool killed;       /* on request */
    uint32_t n_killed; /* left-overs */
    json_t *layers;
    json_t *refused;    /* why nothing ran */
    json_t *namespaces; /* why the namespaces of this attempt did not work */
};

/* ---- the child ---- */

static void send_json(int sock, json_t *message)
{
    AUTO_FREE char *text = json_dumps(message, JSON_COMPACT);
    json_decref(message);
    /* The parent reads at once; should it be gone, PR_SET_PDEATHSIG ends this process. */
    if (text && send(sock, text, strlen(text), MSG_NOSIGNAL) < 0)
        _exit(125);
}

/* Waits for the parent's word: 'p' try whether a fork fails now, 'g' go on under a cgroup
 * limit, 'n' go on without. */
static char await_order(int sock)
{
    char order = 0;
    while (recv(sock, &order, 1, 0) == 1 && order == 'p') {
        char answer = limits_refuse_fork() ? 'y' : 'n';
        if (send(sock, &answer, 1, MSG_NOSIGNAL) != 1)
            break;
    }
    if (order != 'g' && order != 'n')
        _exit(125);
    return order;
}

/* Process 1 of the PID namespace: waits for the tool, adopts orphans, ends the rest, reports.
 */
static _Noreturn void init_main(int sock, pid_t tool)
{
    int status = 0;
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    for (;;) {
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid == tool || (pid < 0 && errno == ECHILD))
            break;
    }
    uint32_t n_killed = reap_namespace();
    send_json(sock, json_pack("{s:i, s:i}", "status", status, "killed", (int)n_killed));
    _exit(0);
}

static void default_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    for (int sig = 1; sig < NSIG; sig++)
        signal(sig, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void refuse(int sock, json_t *layers, const struct error *e)
{
    send_json(sock, json_pack("{s:s, s:o}", "refused", e->msg, "layers", layers));
    _exit(126);
}

/* The process that becomes the tool. */
static _Noreturn void tool_main(const struct launch *l, struct sandbox_plan *plan, int sock,
                                json_t *layers)
{
    struct error e = {0};
    setsid();
    if (sandbox_restrict(l, plan, layers, &e))
        refuse(sock, layers, &e);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of user clears it */
    const char *folder = launch_fetches(l) ? "/" : l->workspace; /* it needs none */
    if (chdir(folder) != 0) {
        err_sys(&e, errno, "workspace %s", folder);
        refuse(sock, layers, &e);
    }
    send_json(sock, json_pack("{s:o}", "layers", layers));
    close(sock);
    default_signals();
    bool sandboxed = l->mode != TOOL_MODE_FULL_ACCESS;
    struct body b = {l, sandbox_tmp(plan), sandboxed ? sandbox_tmp(plan) : plan->notes};
    _exit(body_main(&b));
}

static _Noreturn void child_main(const struct launch *l, struct sandbox_plan *plan, int sock)
{
    struct error e = {0};
    close(LAUNCH_STATUS_FD); /* the supervisor's alone: nobody else can forge a report */
    close(LAUNCH_CONTROL_FD);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    plan->cgroup_limit = await_order(sock) == 'g';
    limits_prefer_oom();
    json_t *layers = json_object();
    if (!plan->namespaces)
        tool_main(l, plan, sock, layers);
    if (sandbox_namespaces(l, plan, layers, &e)) {
        send_json(sock, json_pack("{s:s}", "namespaces", e.msg));
        _exit(1);
    }
    prctl(PR_SET_DUMPABLE, 0); /* a tool of the same user may not look into process 1 */
    pid_t tool = fork();
    if (tool < 0) {
        err_sys(&e, errno, "fork");
        refuse(sock, layers, &e);
    }
    if (tool == 0)
        tool_main(l, plan, sock, layers);
    init_main(sock, tool);
}

/* ---- starting it ---- */

static bool write_proc(pid_t pid, const char *file, const char *text)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

/* Root maps every id it has onto itself, anybody else its own one. */
static bool write_map(pid_t pid, const char *file, unsigned own)
{
    char path[40], text[1024];
    size_t len = 0;
    if (geteuid() != 0) {
        snprintf(text, sizeof text, "%u %u 1\n", own, own);
        return write_proc(pid, file, text);
    }
    snprintf(path, sizeof path, "/proc/self/%s", file);
    AUTO_FILE FILE *f = fopen(path, "re");
    unsigned long inside, outside, count;
    while (f && len < sizeof text && fscanf(f, "%lu %lu %lu", &inside, &outside, &count) == 3)
        len += (size_t)snprintf(text + len, sizeof text - len, "%lu %lu %lu\n", inside, inside,
                                count);
    return len > 0 && len < sizeof text && write_proc(pid, file, text);
}

static bool map_users(pid_t pid)
{
    if (geteuid() != 0 && !write_proc(pid, "setgroups", "deny"))
        return false;
    return write_map(pid, "uid_map", geteuid()) && write_map(pid, "gid_map", getegid());
}

/* Puts the child into the cgroup and sees whether a limit of 1 stops it from forking. */
static bool limit_by_cgroup(struct supervisor *s)
{
    char answer = 0;
    cgroup_add(&s->cgroup, s->child);
    if (!cgroup_limit(&s->cgroup, 1) || send(s->sock, "p", 1, MSG_NOSIGNAL) != 1 ||
        recv(s->sock, &answer, 1, 0) != 1)
        return false;
    /* One more for process 1 of the namespace. */
    return cgroup_limit(&s->cgroup, s->l->max_processes + 1) && answer == 'y';
}

/* Clones the child and tells it to go on. False with the reason in s->namespaces or s->refused.
 */
static bool start_child(struct supervisor *s, unsigned long flags)
{
    int pair[2];
    s->plan.namespaces = flags & CLONE_NEWPID;
    s->plan.user_namespace = flags & CLONE_NEWUSER;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        s->refused = json_sprintf("socketpair: %s", strerror(errno));
        return false;
    }
    s->child = (pid_t)syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, 0UL);
    if (s->child == 0) {
        close(pair[0]);
        child_main(s->l, &s->plan, pair[1]);
    }
    int saved = errno;
    close(pair[1]);
    s->sock = pair[0];
    if (s->child < 0) {
        json_t **why = flags ? &s->namespaces : &s->refused;
        *why = json_sprintf("clone: %s", strerror(saved));
        return false;
    }
    if (s->plan.user_namespace && !map_users(s->child)) {
        s->namespaces = json_sprintf("user map: %s", strerror(errno));
        kill(s->child, SIGKILL);
        return true; /* the loop reaps it */
    }
    const char *order = limit_by_cgroup(s) ? "g" : "n";
    if (send(s->sock, order, 1, MSG_NOSIGNAL) != 1)
        kill(s->child, SIGKILL);
    return true;
}

/* ---- watching it ---- */

static void read_message(struct supervisor *s)
{
    char text[MESSAGE_BYTES];
    ssize_t n = recv(s->sock, text, sizeof text, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) { /* the tool was executed, or the child died: its wait status tells */
        close(s->sock);
        s->sock = -1;
        return;
    }
    json_t *m = json_loadb(text, (size_t)n, 0, NULL);
    json_t *part;
    if ((part = json_object_get(m, "namespaces")))
        s->namespaces = json_incref(part);
    if ((part = json_object_get(m, "refused")))
        s->refused = json_incref(part);
    if ((part = json_object_get(m, "layers")))
        json_object_update(s->layers, part);
    if ((part = json_object_get(m, "status"))) {
        s->status = (int)json_integer_value(part);
        s->has_status = true;
        s->n_killed += (uint32_t)json_integer_value(json_object_get(m, "killed"));
    }
    json_decref(m);
}

static void kill_all(struct supervisor *s)
{
    s->killed = true;
    kill(s->child, SIGKILL);
    cgroup_kill(&s->cgroup);
}

/* Reaps what ended; true when the child did. */
static bool reap_ready(struct supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            kill_all(s);
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
        if (pid <= 0)
            return pid < 0 && errno == ECHILD;
        if (pid != s->child)
            continue;
        while (s->sock >= 0) { /* its last words */
            struct pollfd p = {s->sock, POLLIN, 0};
            if (poll(&p, 1, 0) <= 0)
                break;
            read_message(s);
        }
        if (!s->plan.namespaces) {
            s->status = status;
            s->has_status = true;
        }
        return true;
    }
}

static void watch(struct supervisor *s)
{
    struct pollfd p[3] = {{s->signals, POLLIN, 0}, {LAUNCH_CONTROL_FD, POLLIN, 0}};
    for (;;) {
        p[2] = (struct pollfd){s->sock, POLLIN, 0};
        if (poll(p, 3, -1) < 0)
            continue;
        if (p[1].revents) { /* nothing is ever written: it hung up */
            p[1].fd = -1;
            kill_all(s);
        }
        if (p[2].revents)
            read_message(s);
        if (p[0].revents && reap_ready(s))
            return;
    }
}

/* One attempt to run the tool with these namespaces; false when they do not work here and
 * nothing ran. */
static bool attempt(struct supervisor *s, unsigned long flags)
{
    json_decref(s->namespaces);
    s->namespaces = NULL;
    s->sock = -1;
    s->has_status = false;
    if (start_child(s, flags))
        watch(s);
    if (s->sock >= 0)
        close(s->sock);
    return !s->namespaces || s->killed;
}

/* Namespaces of the tool: one that fetches stays in the network. */
static unsigned long namespaces_of(const struct launch *l)
{
    return launch_fetches(l) ? NAMESPACES & ~(unsigned long)CLONE_NEWNET : NAMESPACES;
}

static void run_attempts(struct supervisor *s)
{
    unsigned long spaces = namespaces_of(s->l);
    bool root = geteuid() == 0;
    bool none = s->l->mode == TOOL_MODE_FULL_ACCESS || launch_is_without(s->l, "namespaces");
    bool user = !none && !launch_is_without(s->l, "user_namespace");
    char why[256] = "not asked for";
    if (user && attempt(s, spaces | CLONE_NEWUSER))
        return;
    if (s->namespaces)
        snprintf(why, sizeof why, "%s", json_string_value(s->namespaces));
    if (!none && root && attempt(s, spaces))
        return;
    sandbox_note(s->layers, "user_namespace", "none: %s", why);
    sandbox_note(s->layers, "pid_namespace", "none: %s", why);
    sandbox_note(s->layers, "mounts", "none: %s", why);
    attempt(s, 0);
}

/* ---- before and after ---- */

static const char *describe_cgroup(const struct cgroup *g)
{
    if (g->v2[0])
        return g->pids[0] ? "own group, kill and limit of processes" : "own group, kill";
    return g->pids[0] ? "own group, limit of processes" : "none: not delegated";
}

static void prepare(struct supervisor *s)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    s->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    signal(SIGPIPE, SIG_IGN); /* a daemon that is gone does not keep us from cleaning up */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    s->layers = json_pack("{s:s, s:s}", "mode", tool_mode_name(s->l->mode), "process_group",
                          "own session; all descendants are killed at the end");
    s->plan.user = geteuid();
    s->plan.spare_uid = privileges_spare_uid();
    s->plan.user_threads = s->plan.user == 0 ? 0 : limits_count_user(s->plan.user);
    if (!launch_is_without(s->l, "cgroup"))
        cgroup_open(&s->cgroup);
    sandbox_note(s->layers, "cgroup", "%s", describe_cgroup(&s->cgroup));
    struct error e;
    if (scratch_make(s->scratch, &e))
        s->refused = json_string(e.msg);
    s->plan.notes = s->scratch;
    s->plan.scratch = s->l->mode == TOOL_MODE_FULL_ACCESS ? NULL : s->scratch;
}

/* Where the shell said it was at its end. What it wrote may be anything, and it may not be the
 * one that wrote it: whoever uses it has to be as careful as with a `cd` of the tool. */
static json_t *read_cwd(const struct supervisor *s)
{
    char path[SCRATCH_PATH_BYTES + sizeof BODY_CWD_FILE + 1], text[PATH_MAX + 1];
    struct stat st;

    snprintf(path, sizeof path, "%s/" BODY_CWD_FILE, s->scratch);
    AUTO_FD int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
        return NULL;
    ssize_t n = read(fd, text, sizeof text);
    if (n < 2 || n > PATH_MAX || text[0] != '/' || text[n - 1] != '\n' ||
        memchr(text, '\0', (size_t)n))
        return NULL;
    return json_stringn(text, (size_t)n - 1); /* NULL: not UTF-8, and so not carried over */
}

static void report(struct supervisor *s)
{
    const char *end = "lost";
    int status = 0;
    if (s->killed) {
        end = "killed";
    } else if (s->refused) {
        end = "refused";
    } else if (s->has_status && WIFEXITED(s->status)) {
        end = "exited";
        status = WEXITSTATUS(s->status);
    } else if (s->has_status && WIFSIGNALED(s->status)) {
        end = "signalled";
        status = WTERMSIG(s->status);
    }
    const char *message = json_string_value(s->refused);
    json_t *line = json_pack("{s:s, s:i, s:i, s:s, s:O, s:o*}", "end", end, "status", status,
                             "killed", (int)s->n_killed, "message", message ? message : "",
                             "layers", s->layers, "cwd", read_cwd(s));
    AUTO_FREE char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    if (text)
        dprintf(LAUNCH_STATUS_FD, "%s\n", text);
}

int supervise(const struct launch *l)
{
    struct supervisor s = {.l = l, .sock = -1, .child = -1};
    struct error e = {0};
    prepare(&s);
    if (!s.refused && sandbox_check(l, &e))
        s.refused = json_string(e.msg);
    if (!s.refused)
        run_attempts(&s);
    cgroup_kill(&s.cgroup);
    if (!reap_descendants(-1, &s.status, &s.n_killed))
        sandbox_note(s.layers, "left_over", "some processes could not be killed");
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    if (!cgroup_close(&s.cgroup))
        sandbox_note(s.layers, "cgroup", "could not be removed");
    report(&s);
    if (s.scratch[0])
        scratch_remove(s.scratch);
    json_decref(s.layers);
    json_decref(s.refused);
    json_decref(s.namespaces);
    close(s.signals);
    return 0;
}
