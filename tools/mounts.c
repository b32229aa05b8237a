#include "tools/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/auto.h"

#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#define NR_MOUNT_SETATTR 442
#define ATTR_RDONLY 0x1ULL
#define ATTR_NOSUID 0x2ULL

/* struct mount_attr of the kernel; glibc before 2.36 does not have it. */
struct attr {
    uint64_t set, clr, propagation, userns_fd;
};

static int set_attr(const char *path, unsigned flags, uint64_t set, uint64_t clr)
{
    struct attr a = {.set = set, .clr = clr};
    return (int)syscall(NR_MOUNT_SETATTR, AT_FDCWD, path, flags, &a, sizeof a);
}

/* The flags of the file system at `path` that a remount must repeat: inside a user namespace
 * they are locked. */
static unsigned long kept_flags(const char *path)
{
    static const struct {
        unsigned long seen, flag;
    } map[] = {{ST_NODEV, MS_NODEV},
               {ST_NOEXEC, MS_NOEXEC},
               {ST_NOATIME, MS_NOATIME},
               {ST_NODIRATIME, MS_NODIRATIME},
               {ST_RELATIME, MS_RELATIME}};
    struct statvfs st;
    unsigned long flags = 0;
    if (statvfs(path, &st) == 0)
        for (size_t i = 0; i < sizeof map / sizeof map[0]; i++)
            flags |= st.f_flag & map[i].seen ? map[i].flag : 0;
    return flags;
}

/* As mount_setattr() on one mount, for kernels and sandboxes that do not have it. */
static bool remount(const char *path, bool read_only)
{
    unsigned long flags = MS_REMOUNT | MS_BIND | MS_NOSUID | kept_flags(path);
    return mount(NULL, path, NULL, flags | (read_only ? MS_RDONLY : 0), NULL) == 0;
}

/* "\\040" and the like in mount points. Source: proc_pid_mountinfo(5). */
static void unescape(char *s)
{
    char *out = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
            *out++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 3;
        } else {
            *out++ = *s;
        }
    }
    *out = '\0';
}

/* Every mount by itself. Those that something else covers cannot be reached, by nobody. */
static bool remount_all(void)
{
    AUTO_FILE FILE *f = fopen("/proc/self/mountinfo", "re");
    AUTO_FREE char *line = NULL;
    size_t cap = 0;
    bool ok = f != NULL;
    while (ok && getline(&line, &cap, f) >= 0) {
        char point[PATH_MAX];
        struct statvfs st;
        if (sscanf(line, "%*s %*s %*s %*s %4095s", point) != 1)
            continue;
        unescape(point);
        ok = remount(point, true) || access(point, F_OK) != 0 ||
             (statvfs(point, &st) == 0 && st.f_flag & ST_RDONLY);
    }
    return ok;
}

/* Whether a path that the tool needs lies in `folder`, which then may not be covered. */
static bool is_needed(const struct launch *l, const char *folder)
{
    if (path_is_inside(l->workspace, folder))
        return true;
    if (l->spill_folder && path_is_inside(l->spill_folder, folder))
        return true;
    for (size_t i = 0; i < json_array_size(l->read_paths); i++)
        if (path_is_inside(json_string_value(json_array_get(l->read_paths, i)), folder))
            return true;
    return false;
}

static bool cover_folder(const char *path, const char *options)
{
    return mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options) == 0;
}

/* Covers one path with something empty. A path that is not there needs none. */
static enum err hide(const char *path, struct error *e)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return OK;
    bool ok = S_ISDIR(st.st_mode) ? cover_folder(path, "size=4k,nr_inodes=2,mode=0555")
                                  : mount("/dev/null", path, NULL, MS_BIND, NULL) == 0;
    return ok ? OK : err_sys(e, errno, "mounts: cannot hide %s", path);
}

static enum err hide_all(const struct launch *l, struct error *e)
{
    for (size_t i = 0; i < json_array_size(l->hidden); i++) {
        enum err rc = hide(json_string_value(json_array_get(l->hidden, i)), e);
        if (rc)
            return rc;
    }
    return OK;
}

/* Where no path rule confines reads: what belongs to people and to root alone. */
static void hide_private(const struct launch *l)
{
    static const char *const paths[] = {"/root",        "/home",    "/etc/shadow",
                                        "/etc/gshadow", "/etc/ssh", "/etc/ssl/private"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (!is_needed(l, paths[i]) && hide(paths[i], NULL))
            continue; /* it does what it can; nothing was promised */
}

/* A bind of a folder onto itself, so that it can be writable while what is around it is not. */
static bool bind_self(const char *path)
{
    return mount(path, path, NULL, MS_BIND | MS_REC, NULL) == 0;
}

/* Everything read-only, then the two writable places again. Remounting what was read-only
 * before is refused inside a user namespace; the workspace then stays so. */
static bool make_read_only(const struct launch *l, const char *scratch, const struct mounts *m)
{
    bool new_call = !launch_is_without(l, "mount_setattr") &&
                    set_attr("/", AT_RECURSIVE, ATTR_RDONLY | ATTR_NOSUID, 0) == 0;
    if (!new_call && !remount_all())
        return false;
    const char *const writable[] = {m->private_tmp ? "/tmp" : scratch,
                                    m->private_shm ? "/dev/shm" : NULL,
                                    l->mode == TOOL_MODE_WORKSPACE_WRITE ? l->workspace : NULL};
    for (size_t i = 0; i < sizeof writable / sizeof writable[0]; i++)
        if (writable[i] && (!new_call || set_attr(writable[i], 0, 0, ATTR_RDONLY) != 0))
            remount(writable[i], false);
    return true;
}

enum err mounts_apply(const struct launch *l, const char *scratch, bool reads_confined,
                      struct mounts *out, struct error *e)
{
    struct mounts m = {0};
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return err_sys(e, errno, "mounts: cannot make them private");
    if (!bind_self(l->workspace) || !bind_self(scratch))
        return err_sys(e, errno, "mounts: cannot bind the workspace");
    enum err rc = hide_all(l, e);
    if (rc)
        return rc;
    m.hidden = true;
    if (!reads_confined)
        hide_private(l);
    if (!is_needed(l, "/run") && !launch_fetches(l)) /* resolv.conf often lies there */
        cover_folder("/run", "size=4k,nr_inodes=2,mode=0555");
    if (!is_needed(l, "/dev/shm"))
        m.private_shm = cover_folder("/dev/shm", "size=64m,mode=1777");
    if (!is_needed(l, "/tmp"))
        m.private_tmp = mount(scratch, "/tmp", NULL, MS_BIND, NULL) == 0;
    m.private_proc =
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0;
    m.read_only = make_read_only(l, scratch, &m);
    *out = m;
    return OK;
}
