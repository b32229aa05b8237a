#include "base/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"

#define STACK_BYTES (64u << 10)
#define MAX_TARGET_FD 1023

/* Code of the child, which runs on our memory until it execs: no allocation, no locks, and bare
 * system calls only, because the wrappers of sanitizers keep books in memory that is the
 * parent's. */
#define CHILD_CODE __attribute__((no_sanitize_address, no_sanitize_thread))

extern char **environ;

enum err spawn_find(const char *name, char *out, size_t cap, struct error *e)
{
    if (!*name || strchr(name, '/'))
        return err_set(e, ERR_INVAL, "binary \"%.60s\": want a plain name", name);
    char folder[FS_PATH_BYTES];
    const char *libexec = getenv("AGENTD_LIBEXEC");
    if (libexec && *libexec) {
        enum err rc = fs_path(folder, sizeof folder, e, "%s", libexec);
        if (rc)
            return rc;
    } else {
        ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
        if (n < 0)
            return err_sys(e, errno, "read /proc/self/exe");
        folder[n] = '\0';
        *strrchr(folder, '/') = '\0';
    }
    enum err rc = fs_path(out, cap, e, "%s/%s", folder, name);
    if (rc)
        return rc;
    if (access(out, X_OK) < 0)
        return err_sys(e, errno, "binary %s", out);
    return OK;
}

/* What the child reads and the parent reads back; both live in one memory. */
struct child {
    const struct spawn_options *o;
    const char *path;
    pid_t parent;
    int first_spare;    /* above every target, 0..2 included */
    const char *failed; /* the step that failed, or NULL */
    int sys;
};

CHILD_CODE static bool step(struct child *c, long result, const char *what)
{
    if (result >= 0)
        return true;
    c->sys = errno;
    c->failed = what;
    return false;
}

CHILD_CODE static bool reset_signals(struct child *c)
{
    /* The kernel's struct sigaction, all zero: default action, no flags, empty mask. */
    const uint64_t standard[4] = {0};
    for (int sig = 1; sig <= 64; sig++)
        if (sig != SIGKILL && sig != SIGSTOP &&
            !step(c, syscall(SYS_rt_sigaction, sig, standard, NULL, 8), "sigaction"))
            return false;
    return true;
}

CHILD_CODE static bool map_fds(struct child *c)
{
    const struct spawn_options *o = c->o;
    long spare[SPAWN_MAX_FDS];
    /* First all sources out of the way, so that no target overwrites one. */
    for (size_t i = 0; i < o->n_fds; i++) {
        spare[i] = syscall(SYS_fcntl, o->fds[i].from, F_DUPFD_CLOEXEC, c->first_spare);
        if (!step(c, spare[i], "dup"))
            return false;
    }
    long low = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC);
    if (!step(c, low, "open /dev/null"))
        return false;
    long null = syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, c->first_spare);
    if (!step(c, null, "dup"))
        return false;
    for (long fd = 0; fd < 3; fd++)
        if (!step(c, syscall(SYS_dup3, null, fd, 0), "dup3"))
            return false;
    for (size_t i = 0; i < o->n_fds; i++)
        if (!step(c, syscall(SYS_dup3, spare[i], o->fds[i].to, 0), "dup3"))
            return false;
    return true;
}

CHILD_CODE static bool close_others(struct child *c)
{
    const unsigned cloexec = 1u << 2; /* CLOSE_RANGE_CLOEXEC */
    if (!step(c, syscall(SYS_close_range, 3u, ~0u, cloexec), "close_range"))
        return false;
    for (size_t i = 0; i < c->o->n_fds; i++)
        if (c->o->fds[i].to > 2 &&
            !step(c, syscall(SYS_fcntl, c->o->fds[i].to, F_SETFD, 0), "fcntl"))
            return false;
    return true;
}

CHILD_CODE static bool prepare(struct child *c)
{
    const struct spawn_options *o = c->o;
    if (o->new_group && !step(c, syscall(SYS_setpgid, 0, 0), "setpgid"))
        return false;
    if (o->die_with_parent && !step(c, syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL), "prctl"))
        return false;
    /* The parent may have died before the line above: then nobody would send the signal. */
    if (o->die_with_parent && syscall(SYS_getppid) != c->parent)
        return false;
    return reset_signals(c) && map_fds(c) && close_others(c) &&
           (!o->cwd || step(c, syscall(SYS_chdir, o->cwd), "chdir"));
}

CHILD_CODE static int run_child(void *arg)
{
    struct child *c = arg;
    const uint64_t none = 0;
    if (prepare(c) &&
        step(c, syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8), "sigprocmask"))
        step(c,
             syscall(SYS_execve, c->path, c->o->argv,
                     c->o->envp ? (const void *)c->o->envp : (const void *)environ),
             "exec");
    syscall(SYS_exit_group, 127);
    return 127;
}

/* clone as vfork does it: we stand still until the child has become the other program or ended.
 * Signals are blocked meanwhile: a handler would run in the child, on our memory. */
static enum err clone_child(struct child *c, struct spawn *out, struct error *e)
{
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return err_sys(e, errno, "start %s", c->path);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    int pidfd = -1;
    pid_t pid = clone(run_child, stack + STACK_BYTES,
                      CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, c, &pidfd);
    int sys = errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    munmap(stack, STACK_BYTES);
    if (pid < 0)
        return err_sys(e, sys, "start %s", c->path);
    *out = (struct spawn){pid, pidfd};
    return OK;
}

enum err spawn_become(const char *const *argv, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = spawn_find(argv[0], path, sizeof path, e);
    if (rc)
        return rc;
    execv(path, (char *const *)(uintptr_t)argv);
    return err_sys(e, errno, "start %s", path);
}

enum err spawn_start(const struct spawn_options *o, struct spawn *out, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = spawn_find(o->argv[0], path, sizeof path, e);
    if (rc)
        return rc;
    struct child c = {.o = o, .path = path, .parent = getpid(), .first_spare = 3};
    if (o->n_fds > SPAWN_MAX_FDS)
        return err_set(e, ERR_INVAL, "start %s: %zu descriptors, at most %d", path, o->n_fds,
                       SPAWN_MAX_FDS);
    for (size_t i = 0; i < o->n_fds; i++) {
        int to = o->fds[i].to;
        if (to < 0 || to > MAX_TARGET_FD || o->fds[i].from < 0)
            return err_set(e, ERR_INVAL, "start %s: descriptor %d as %d", path, o->fds[i].from,
                           to);
        c.first_spare = to >= c.first_spare ? to + 1 : c.first_spare;
    }
    struct spawn s = SPAWN_INIT;
    rc = clone_child(&c, &s, e);
    if (rc)
        return rc;
    if (c.failed) {
        spawn_fini(&s);
        return err_sys(e, c.sys, "start %s: %s", path, c.failed);
    }
    *out = s;
    return OK;
}

enum err spawn_wait(struct spawn *s, int timeout_ms, int *status, struct error *e)
{
    struct pollfd p = {.fd = s->pidfd, .events = POLLIN};
    const struct clock *clock = clock_real();
    uint64_t start_ns = clock_mono_ns(clock);
    int n, left_ms = timeout_ms;
    while ((n = poll(&p, 1, left_ms)) < 0) {
        if (errno != EINTR)
            return err_sys(e, errno, "wait for process %d", (int)s->pid);
        uint64_t gone_ms = (clock_mono_ns(clock) - start_ns) / 1000000;
        if (timeout_ms >= 0)
            left_ms = gone_ms < (uint64_t)timeout_ms ? timeout_ms - (int)gone_ms : 0;
    }
    if (n == 0)
        return err_set(e, ERR_TIMEOUT, "process %d still runs after %d ms", (int)s->pid,
                       timeout_ms);
    while (waitpid(s->pid, status, 0) < 0)
        if (errno != EINTR)
            return err_sys(e, errno, "wait for process %d", (int)s->pid);
    close(s->pidfd);
    *s = (struct spawn)SPAWN_INIT;
    return OK;
}

enum err spawn_signal(const struct spawn *s, int sig, struct error *e)
{
    if (s->pidfd >= 0 && syscall(SYS_pidfd_send_signal, s->pidfd, sig, NULL, 0) < 0 &&
        errno != ESRCH)
        return err_sys(e, errno, "signal %d to process %d", sig, (int)s->pid);
    return OK;
}

void spawn_fini(struct spawn *s)
{
    int status;
    if (s->pid < 0)
        return;
    /* SIGKILL to our own child cannot fail other than by its being dead already. */
    syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0);
    while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(s->pidfd);
    *s = (struct spawn)SPAWN_INIT;
}

/* ---- a copy of this process ------------------------------------------------------------- */

static enum err want_one_thread(struct error *e)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/task");
    if (!d)
        return err_sys(e, errno, "/proc/self/task");
    for (const struct dirent *t; (t = readdir(d));)
        n += t->d_name[0] != '.';
    closedir(d);
    return n == 1 ? OK : err_set(e, ERR_UNSUPPORTED, "copy of a process with %u threads", n);
}

/* First the error, code 0 for none, then what fn wrote. */
_Noreturn static void be_the_copy(spawn_copy_fn *fn, void *user, int fd, size_t max)
{
    AUTO(buf) struct buf out = BUF_INIT(max);
    struct error said = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    said.code = fn(user, &out, &said);
    enum err rc = fs_write(fd, "pipe of a copy", &said, sizeof said, NULL);
    if (!rc && !said.code)
        rc = fs_write(fd, "pipe of a copy", out.data, out.len, NULL);
    _exit(rc ? 1 : 0);
}

static enum err take_from_copy(pid_t pid, int fd, struct buf *out, struct error *e)
{
    struct error said;
    int status = 0;
    AUTO(buf) struct buf all = BUF_INIT(sizeof said + (out->max - out->len));
    enum err rc = fs_read_fd(fd, "pipe of a copy", &all, e);
    if (rc) /* it may still write, and nobody will read */
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (rc)
        return rc;
    if (status || all.len < sizeof said)
        return err_set(e, ERR_CORRUPT, "copy of the process: status 0x%x, %zu bytes",
                       (unsigned)status, all.len);
    memcpy(&said, all.data, sizeof said);
    if (said.code && e)
        *e = said;
    return said.code ? said.code
                     : buf_add(out, all.data + sizeof said, all.len - sizeof said, e);
}

enum err spawn_copy(spawn_copy_fn *fn, void *user, struct buf *out, struct error *e)
{
    int fds[2];
    enum err rc = want_one_thread(e);
    if (rc)
        return rc;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(e, errno, "pipe of a copy");
    const pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        be_the_copy(fn, user, fds[1], out->max - out->len);
    }
    if (pid < 0)
        rc = err_sys(e, errno, "copy of the process");
    close(fds[1]);
    if (!rc)
        rc = take_from_copy(pid, fds[0], out, e);
    close(fds[0]);
    return rc;
}
