#include "tools/reap.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"

#define MAX_PROCESSES 65536
#define LIMIT_MS 5000

struct process {
    pid_t pid, parent;
};

pid_t reap_parent(pid_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    /* "pid (name) state ppid": the name may hold anything, so look from its end. */
    const char *end = strrchr(text, ')');
    return end && strlen(end) > 4 ? (pid_t)strtol(end + 4, NULL, 10) : 0;
}

static int by_pid(const void *a, const void *b)
{
    pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
    return (x > y) - (x < y);
}

/* Every process of the machine (of this /proc) with its parent, sorted by pid. */
static size_t snapshot(struct process *list, size_t cap)
{
    size_t n = 0;
    DIR *dir = opendir("/proc");
    for (struct dirent *d; dir && n < cap && (d = readdir(dir));) {
        if (!isdigit((unsigned char)d->d_name[0]))
            continue;
        pid_t pid = (pid_t)strtol(d->d_name, NULL, 10);
        pid_t parent = reap_parent(pid);
        if (parent > 0)
            list[n++] = (struct process){pid, parent};
    }
    if (dir)
        closedir(dir);
    qsort(list, n, sizeof *list, by_pid);
    return n;
}

static bool descends(const struct process *list, size_t n, pid_t pid, pid_t ancestor)
{
    for (size_t hops = 0; hops < n; hops++) {
        const struct process *p =
            bsearch(&(struct process){pid, 0}, list, n, sizeof *list, by_pid);
        if (!p)
            return false;
        if (p->parent == ancestor)
            return true;
        pid = p->parent;
    }
    return false;
}

static size_t signal_descendants(struct process *list, int sig)
{
    size_t n = snapshot(list, MAX_PROCESSES), hit = 0;
    for (size_t i = 0; i < n; i++)
        if (descends(list, n, list[i].pid, getpid()))
            hit += kill(list[i].pid, sig) == 0;
    return hit;
}

/* Reaps what is dead. False when no child is left. */
static bool reap_some(pid_t main_pid, int *main_status, uint32_t *n_killed)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0)
            return pid == 0;
        if (pid == main_pid)
            *main_status = status;
        else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            ++*n_killed;
    }
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

bool reap_descendants(pid_t main_pid, int *main_status, uint32_t *n_killed)
{
    if (!reap_some(main_pid, main_status, n_killed))
        return true;
    AUTO_FREE struct process *list = malloc(MAX_PROCESSES * sizeof *list);
    if (!list)
        return false;
    /* Each pass may meet children that were forked since the last look; a stopped process forks
     * no more, so the number of new ones falls to none. */
    size_t before = 0, now = signal_descendants(list, SIGSTOP);
    for (int pass = 0; pass < 8 && now != before; pass++) {
        before = now;
        now = signal_descendants(list, SIGSTOP);
    }
    uint64_t start = now_ms();
    do {
        signal_descendants(list, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 2 * 1000 * 1000}, NULL);
        if (!reap_some(main_pid, main_status, n_killed))
            return true;
    } while (now_ms() - start < LIMIT_MS);
    return false;
}

uint32_t reap_namespace(void)
{
    uint32_t n_killed = 0;
    kill(-1, SIGKILL);
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid < 0 && errno != EINTR)
            return n_killed;
        if (pid > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            n_killed++;
        /* Whoever was forked while kill() walked the list is caught by the next. */
        if (pid > 0)
            kill(-1, SIGKILL);
    }
}
