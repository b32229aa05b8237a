#include "tools/privileges.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"

#define MAX_DESCRIPTORS 1024
/* Above what distributions and container tools hand out (subuid ranges end near 0x60000000). */
#define SPARE_UID_BASE 0x61000000U
#define LAST_CAPABILITY 63

/* ---- limits ---- */

static enum err set_limit(int which, const char *name, uint64_t want, struct error *e)
{
    struct rlimit now;
    if (getrlimit((__rlimit_resource_t)which, &now) != 0)
        return err_sys(e, errno, "limit %s", name);
    rlim_t value = now.rlim_max != RLIM_INFINITY && want > now.rlim_max ? now.rlim_max : want;
    struct rlimit next = {value, value};
    if (setrlimit((__rlimit_resource_t)which, &next) != 0)
        return err_sys(e, errno, "limit %s", name);
    return OK;
}

enum err limits_apply(uint64_t max_file_bytes, struct error *e)
{
    enum err rc = set_limit(RLIMIT_CORE, "core", 0, e);
    if (!rc)
        rc = set_limit(RLIMIT_FSIZE, "file size", max_file_bytes, e);
    if (!rc)
        rc = set_limit(RLIMIT_NOFILE, "descriptors", MAX_DESCRIPTORS, e);
    return rc;
}

void limits_prefer_oom(void)
{
    AUTO_FD int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "500", 3) != 3)
        return; /* not in every container, and no safety depends on it */
}

bool limits_refuse_fork(void)
{
    pid_t pid = fork();
    if (pid < 0)
        return errno == EAGAIN;
    if (pid == 0)
        _exit(0);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return false;
}

/* Soft limit only, so that it can be raised again. */
static bool soft_limit(rlim_t n)
{
    struct rlimit now;
    if (getrlimit(RLIMIT_NPROC, &now) != 0)
        return false;
    if (now.rlim_max != RLIM_INFINITY && n > now.rlim_max)
        n = now.rlim_max;
    return setrlimit(RLIMIT_NPROC, &(struct rlimit){n, now.rlim_max}) == 0;
}

enum err limits_processes(uint32_t n, uint32_t others, struct error *e)
{
    if (!soft_limit(1) || !limits_refuse_fork())
        return err_set(e, ERR_UNSUPPORTED, "limit of processes: does not bind this user");
    /* Two or three processes are in a namespace of our own; if 8 are too many, others count. */
    bool counts_others = soft_limit(8) && others >= 8 && limits_refuse_fork();
    return set_limit(RLIMIT_NPROC, "processes", (uint64_t)n + (counts_others ? others : 0), e);
}

/* The Uid and Threads lines of one /proc/PID/status. */
static uint32_t threads_of(int proc, const char *pid, uid_t uid)
{
    char path[64], text[2048];
    snprintf(path, sizeof path, "%.20s/status", pid);
    AUTO_FD int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    const char *u = strstr(text, "\nUid:"), *t = strstr(text, "\nThreads:");
    if (!u || !t || strtoul(u + 5, NULL, 10) != uid)
        return 0;
    return (uint32_t)strtoul(t + 9, NULL, 10);
}

uint32_t limits_count_user(uid_t uid)
{
    uint32_t n = 0;
    DIR *dir = opendir("/proc");
    for (struct dirent *d; dir && (d = readdir(dir));)
        if (isdigit((unsigned char)d->d_name[0]))
            n += threads_of(dirfd(dir), d->d_name, uid);
    if (dir)
        closedir(dir);
    return n;
}

/* ---- privileges ---- */

uid_t privileges_spare_uid(void)
{
    uid_t want = SPARE_UID_BASE + (uid_t)getpid();
    AUTO_FILE FILE *f = fopen("/proc/self/uid_map", "re");
    unsigned long inside, outside, count;
    while (f && fscanf(f, "%lu %lu %lu", &inside, &outside, &count) == 3)
        if (want >= inside && want - inside < count)
            return want;
    return 61440 + (uid_t)getpid() % 4000; /* a container that maps 65,536 ids */
}

/* The capabilities kept, as a set of bits. */
static uint64_t kept(enum privileges keep, bool writes)
{
    switch (keep) {
    case PRIVILEGES_NONE:
    case PRIVILEGES_NOBODY:
        return 0;
    case PRIVILEGES_FILES:
        return 1ULL << CAP_CHOWN | 1ULL << CAP_DAC_OVERRIDE | 1ULL << CAP_FOWNER |
               1ULL << CAP_FSETID;
    case PRIVILEGES_SPARE:
        return writes ? 1ULL << CAP_DAC_OVERRIDE : 1ULL << CAP_DAC_READ_SEARCH;
    }
    return 0;
}

/* The bounding set limits what an exec by root gets back. Only who has CAP_SETPCAP may shrink
 * it; without that there is nothing to get back, thanks to no_new_privs. */
static void shrink_bounding_set(uint64_t keep)
{
    for (unsigned long cap = 0; cap <= LAST_CAPABILITY; cap++)
        if (!(keep >> cap & 1) && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1)
            prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
}

static int set_capabilities(uint64_t set, uint64_t inheritable)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    for (int i = 0; i < 2; i++) {
        data[i].effective = data[i].permitted = (uint32_t)(set >> 32 * i);
        data[i].inheritable = (uint32_t)(inheritable >> 32 * i);
    }
    return (int)syscall(SYS_capset, &head, data);
}

static enum err become(uid_t uid, struct error *e)
{
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 || setgroups(0, NULL) != 0 ||
        setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0)
        return err_sys(e, errno, "privileges: cannot become user %u", uid);
    return OK;
}

enum err privileges_drop(enum privileges keep, uid_t uid, bool writes, struct error *e)
{
    uint64_t set = kept(keep, writes);
    shrink_bounding_set(set);
    bool spare = keep == PRIVILEGES_SPARE || keep == PRIVILEGES_NOBODY;
    enum err rc = spare ? become(uid, e) : OK;
    if (rc)
        return rc;
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (set_capabilities(set, keep == PRIVILEGES_SPARE ? set : 0) != 0)
        return err_sys(e, errno, "privileges: capabilities");
    for (unsigned long cap = 0; keep == PRIVILEGES_SPARE && cap <= LAST_CAPABILITY; cap++)
        if ((set >> cap & 1) && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) != 0)
            return err_sys(e, errno, "privileges: ambient capability %lu", cap);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return err_sys(e, errno, "privileges: no_new_privs");
    return OK;
}
