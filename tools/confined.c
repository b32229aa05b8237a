#include "tools/confined.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/auto.h"
#include "tools/launch.h"

static enum err outside(const char *path, struct error *e)
{
    return err_set(e, ERR_DENIED, "%.160s: outside of the workspace", path);
}

static enum err failed(const char *path, int sys, struct error *e)
{
    if (sys == EXDEV)
        return outside(path, e);
    if (sys == ELOOP)
        return err_set(e, ERR_DENIED, "%.160s: a symbolic link that may not be followed", path);
    return err_sys(e, sys, "%.160s", path);
}

/* Splits off the folder that a path starts from: the workspace or the spill folder. *rest gets
 * what is below it, "." for the folder itself. */
static enum err find_root(const struct confined *c, const char *path, const char **root,
                          const char **rest, struct error *e)
{
    if (!*path || strlen(path) >= PATH_MAX)
        return err_set(e, ERR_INVAL, "a path has 1 to %d bytes", PATH_MAX - 1);
    *root = c->workspace;
    *rest = path;
    if (*path == '/') {
        if (c->spill_folder && path_is_inside(path, c->spill_folder))
            *root = c->spill_folder;
        else if (!path_is_inside(path, c->workspace))
            return outside(path, e);
        *rest = path + strlen(*root);
    }
    while (**rest == '/')
        ++*rest;
    if (!**rest)
        *rest = ".";
    return OK;
}

static enum err open_root(const char *root, int *fd, struct error *e)
{
    *fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return *fd >= 0 ? OK : err_sys(e, errno, "%.160s", root);
}

/* Copies the next component and moves past it and its slashes; false at the end. */
static bool next_component(const char **path, char out[NAME_MAX + 1], bool *last, int *sys)
{
    size_t n = strcspn(*path, "/");
    *sys = 0;
    if (n == 0)
        return false;
    if (n > NAME_MAX) {
        *sys = ENAMETOOLONG;
        return false;
    }
    memcpy(out, *path, n);
    out[n] = '\0';
    *path += n;
    while (**path == '/')
        ++*path;
    *last = !**path;
    return true;
}

enum err confined_walk(int dir, const char *path, int flags, mode_t mode, int *fd,
                       struct error *e)
{
    const char *p = path;
    char name[NAME_MAX + 1];
    bool last = false;
    int sys;
    AUTO_FD int at = openat(dir, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    while (at >= 0 && next_component(&p, name, &last, &sys)) {
        if (!strcmp(name, ".."))
            return outside(path, e);
        int how = last ? flags : O_PATH | O_DIRECTORY;
        int next = openat(at, name, how | O_NOFOLLOW | O_CLOEXEC, mode);
        struct stat st;
        if (next < 0 && errno == ENOTDIR && fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISLNK(st.st_mode))
            return failed(path, ELOOP, e);
        if (next < 0)
            return failed(path, errno, e);
        close(at);
        at = next;
        if (last) {
            *fd = TAKE_FD(at);
            return OK;
        }
    }
    return failed(path, at < 0 ? errno : sys ? sys : EINVAL, e);
}

static enum err open_beneath(int dir, const char *path, int flags, mode_t mode, int *fd,
                             struct error *e)
{
    struct open_how how = {.flags = (unsigned)(flags | O_CLOEXEC),
                           .mode = flags & O_CREAT ? mode : 0,
                           .resolve = (uint64_t)RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    long got;
    int tries = 0;
    do { /* EAGAIN: something was renamed during the walk */
        got = syscall(SYS_openat2, dir, path, &how, sizeof how);
    } while (got < 0 && (errno == EAGAIN || errno == EINTR) && ++tries < 64);
    if (got < 0 && (errno == ENOSYS || errno == EPERM))
        return confined_walk(dir, path, flags, mode, fd, e);
    if (got < 0)
        return failed(path, errno, e);
    *fd = (int)got;
    return OK;
}

enum err confined_open(const struct confined *c, const char *path, int flags, mode_t mode,
                       int *fd, struct error *e)
{
    const char *root, *rest;
    enum err rc = find_root(c, path, &root, &rest, e);
    if (rc)
        return rc;
    if (root != c->workspace && (flags & O_ACCMODE) != O_RDONLY)
        return outside(path, e);
    AUTO_FD int dir = -1;
    if ((rc = open_root(root, &dir, e)))
        return rc;
    return open_beneath(dir, rest, flags, mode, fd, e);
}

/* One folder down, made if it is not there. */
static enum err step_down(int *at, const char *path, const char *name, struct error *e)
{
    int next;
    enum err rc = open_beneath(*at, name, O_PATH | O_DIRECTORY, 0, &next, e);
    if (rc == ERR_NOTFOUND) {
        if (mkdirat(*at, name, 0777) != 0 && errno != EEXIST)
            return err_sys(e, errno, "%.160s: make folder %.60s", path, name);
        rc = open_beneath(*at, name, O_PATH | O_DIRECTORY, 0, &next, e);
    }
    if (rc)
        return rc;
    close(*at);
    *at = next;
    return OK;
}

static enum err make_folders(int *at, const char *path, const char *folders, struct error *e)
{
    char name[NAME_MAX + 1];
    bool last;
    int sys;
    while (next_component(&folders, name, &last, &sys)) {
        if (!strcmp(name, ".."))
            return outside(path, e);
        enum err rc = step_down(at, path, name, e);
        if (rc)
            return rc;
    }
    return sys ? failed(path, sys, e) : OK;
}

/* From the folder *at to `folders` below it. They are opened as one path first, so that links
 * inside the workspace work here as elsewhere. */
static enum err open_folders(int *at, const char *path, const char *folders, bool make,
                             struct error *e)
{
    int deep;
    enum err rc = open_beneath(*at, folders, O_PATH | O_DIRECTORY, 0, &deep, e);
    if (rc == ERR_NOTFOUND && make)
        return make_folders(at, path, folders, e);
    if (rc)
        return rc;
    close(*at);
    *at = deep;
    return OK;
}

enum err confined_open_parent(const struct confined *c, const char *path, bool make, int *fd,
                              char name[256], struct error *e)
{
    const char *root, *rest;
    enum err rc = find_root(c, path, &root, &rest, e);
    if (rc)
        return rc;
    if (root != c->workspace)
        return outside(path, e);
    const char *slash = strrchr(rest, '/');
    const char *base = slash ? slash + 1 : rest;
    if (!*base || !strcmp(base, ".") || !strcmp(base, ".."))
        return err_set(e, ERR_INVAL, "%.160s: not the name of a file", path);
    if (strlen(base) > NAME_MAX)
        return failed(path, ENAMETOOLONG, e);
    AUTO_FD int at = -1;
    if ((rc = open_root(root, &at, e)))
        return rc;
    char folders[PATH_MAX];
    size_t n = (size_t)(base - rest);
    memcpy(folders, rest, n);
    folders[n] = '\0';
    if (n > 0 && (rc = open_folders(&at, path, folders, make, e)))
        return rc;
    memcpy(name, base, strlen(base) + 1);
    *fd = TAKE_FD(at);
    return OK;
}
