#include "tools/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"

#define NAME "agentd-tool-"
#define LINE_BYTES 4608

static bool write_text(const char *folder, const char *file, const char *text)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

/* The value of a small file, "" when it cannot be read. */
static void read_text(const char *folder, const char *file, char *out, size_t cap)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, cap - 1);
    out[n > 0 ? n : 0] = '\0';
}

/* This process's path in the tree whose line in /proc/self/cgroup has `controller` ("" is v2).
 */
static bool own_path(const char *controller, char *out, size_t cap)
{
    AUTO_FILE FILE *f = fopen("/proc/self/cgroup", "re");
    char line[LINE_BYTES];
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':');
        char *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        if (strcmp(names + 1, controller) != 0)
            continue;
        snprintf(out, cap, "%s", path);
        return true;
    }
    return false;
}

/* Whether a comma-separated list holds a word. */
static bool has_option(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == '\0' || p[n] == ',' || p[n] == '\n'))
            return true;
    return false;
}

/* The folder of this process's group in the tree of `type` ("cgroup2", or "cgroup" with option
 * `controller`). Source of the line format: proc_pid_mountinfo(5). */
static bool own_folder(const char *type, const char *controller, char *out, size_t cap)
{
    char path[PATH_MAX], line[LINE_BYTES];
    if (!own_path(controller, path, sizeof path))
        return false;
    AUTO_FILE FILE *f = fopen("/proc/self/mountinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        char root[PATH_MAX], point[PATH_MAX], fstype[32], options[512];
        const char *tail = strstr(line, " - ");
        if (!tail || sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) != 2 ||
            sscanf(tail, " - %31s %*s %511s", fstype, options) != 2)
            continue;
        if (strcmp(fstype, type) != 0 || (*controller && !has_option(options, controller)))
            continue;
        const char *below = path;
        if (strcmp(root, "/") != 0) {
            if (strncmp(path, root, strlen(root)) != 0)
                continue;
            below = path + strlen(root);
        }
        int n = snprintf(out, cap, "%s%s", point, strcmp(below, "/") ? below : "");
        return n > 0 && (size_t)n + 64 < cap;
    }
    return false;
}

/* Launchers that were killed leave empty groups: their processes died with them. */
static void sweep(const char *parent)
{
    DIR *dir = opendir(parent);
    for (struct dirent *d; dir && (d = readdir(dir));) {
        if (strncmp(d->d_name, NAME, strlen(NAME)) != 0)
            continue;
        long pid = strtol(d->d_name + strlen(NAME), NULL, 10);
        if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH)
            unlinkat(dirfd(dir), d->d_name, AT_REMOVEDIR);
    }
    if (dir)
        closedir(dir);
}

static bool make(const char *type, const char *controller, char out[PATH_MAX])
{
    char parent[PATH_MAX - 64];
    out[0] = '\0';
    if (!own_folder(type, controller, parent, sizeof parent) || access(parent, W_OK) != 0)
        return false;
    sweep(parent);
    snprintf(out, PATH_MAX, "%s/" NAME "%d", parent, (int)getpid());
    if (mkdir(out, 0755) == 0)
        return true;
    out[0] = '\0';
    return false;
}

void cgroup_open(struct cgroup *g)
{
    char file[PATH_MAX + 16];
    if (make("cgroup2", "", g->v2)) {
        snprintf(file, sizeof file, "%s/pids.max", g->v2);
        if (access(file, W_OK) == 0) {
            memcpy(g->pids, g->v2, sizeof g->pids);
            return;
        }
    }
    make("cgroup", "pids", g->pids);
}

bool cgroup_close(struct cgroup *g)
{
    bool ok = true;
    if (g->pids[0] && strcmp(g->pids, g->v2) != 0)
        ok = rmdir(g->pids) == 0;
    if (g->v2[0])
        ok = rmdir(g->v2) == 0 && ok;
    g->pids[0] = g->v2[0] = '\0';
    return ok;
}

static void join(char *folder, const char *pid)
{
    if (!folder[0] || write_text(folder, "cgroup.procs", pid))
        return;
    rmdir(folder);
    folder[0] = '\0';
}

void cgroup_add(struct cgroup *g, pid_t pid)
{
    char text[24];
    bool same = !strcmp(g->v2, g->pids);
    snprintf(text, sizeof text, "%d", (int)pid);
    join(g->v2, text);
    if (!same)
        join(g->pids, text);
    else if (!g->v2[0])
        g->pids[0] = '\0';
}

bool cgroup_limit(const struct cgroup *g, uint32_t n)
{
    char want[24], have[24];
    if (!g->pids[0])
        return false;
    snprintf(want, sizeof want, "%u", n);
    if (!write_text(g->pids, "pids.max", want))
        return false;
    read_text(g->pids, "pids.max", have, sizeof have);
    have[strcspn(have, "\n")] = '\0';
    return !strcmp(want, have);
}

void cgroup_kill(const struct cgroup *g)
{
    if (!g->v2[0] || !write_text(g->v2, "cgroup.kill", "1"))
        return;
    for (int i = 0; i < 200; i++) {
        char events[128];
        read_text(g->v2, "cgroup.events", events, sizeof events);
        if (!strstr(events, "populated 1"))
            return;
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
}
