#include "agentd/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"

#define BACKLOG 128
#define FIRST_LISTEN_FD 3 /* sd_listen_fds(3) */

static enum err set_address(struct sockaddr_un *a, const char *path, struct error *e)
{
    size_t len = strlen(path);

    if (len == 0 || len >= sizeof(a->sun_path))
        return err_set(e, ERR_LIMIT, "socket path of %zu bytes, from 1 to %zu: %s", len,
                       sizeof(a->sun_path) - 1, path);
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(a->sun_path, path, len + 1);
    return OK;
}

/* ---- the folder ------------------------------------------------------------------- */

static enum err check_folder(const char *path, struct error *e)
{
    char dir[LISTEN_PATH_BYTES];
    struct stat st;
    const char *slash = strrchr(path, '/');

    if (!slash)
        return err_set(e, ERR_INVAL, "socket path %s: must name a folder", path);
    snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    enum err rc = fs_mkdir_p(dir, e); /* a new user has no ~/.local/state yet */
    if (rc)
        return rc;
    if (stat(dir, &st))
        return err_sys(e, errno, "folder %s", dir);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return err_set(e, ERR_DENIED, "folder %s belongs to uid %u", dir, (unsigned)st.st_uid);
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return err_set(e, ERR_DENIED,
                       "folder %s can be written by others (mode %03o): use one "
                       "of your own, mode 0700",
                       dir, (unsigned)(st.st_mode & 0777));
    return OK;
}

static enum err lock_folder(const char *path, int *fd, struct error *e)
{
    char name[LISTEN_PATH_BYTES + 8];

    snprintf(name, sizeof(name), "%s.lock", path);
    int lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0)
        return err_sys(e, errno, "%s", name);
    while (flock(lock, LOCK_EX))
        if (errno != EINTR) {
            int sys = errno;
            close(lock);
            return err_sys(e, sys, "lock %s", name);
        }
    *fd = lock;
    return OK;
}

/* ---- the socket ------------------------------------------------------------------- */

/* Whether the process that listens still exists. A child of a killed daemon that had not
 * reached its exec holds the socket open for a moment longer, and nobody ever answers. ESRCH:
 * it is gone. */
static bool listener_lives(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) || kill(cred.pid, 0) == 0 ||
           errno != ESRCH;
}

/* Removes a dead socket. ERR_CONFLICT if it lives, or if the file is something else. */
static enum err clear_dead(const struct sockaddr_un *a, struct error *e)
{
    struct stat st;

    if (lstat(a->sun_path, &st))
        return errno == ENOENT ? OK : err_sys(e, errno, "%s", a->sun_path);
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_CONFLICT, "%s exists and is not a socket", a->sun_path);
    AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(e, errno, "socket");
    if (connect(fd, (const struct sockaddr *)a, sizeof(*a)) == 0 ? listener_lives(fd)
                                                                 : errno == EAGAIN)
        return err_set(e, ERR_CONFLICT, "a daemon is already serving at %s", a->sun_path);
    if (errno != ECONNREFUSED && errno != ESRCH)
        return err_sys(e, errno, "connect %s", a->sun_path);
    if (unlink(a->sun_path))
        return err_sys(e, errno, "remove dead socket %s", a->sun_path);
    return OK;
}

static enum err bind_and_listen(struct listen *l, const struct sockaddr_un *a, struct error *e)
{
    struct stat st;
    AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return err_sys(e, errno, "socket");
    mode_t old = umask(0177);
    int rc = bind(fd, (const struct sockaddr *)a, sizeof(*a));
    int sys = errno;
    umask(old);
    if (rc)
        return err_sys(e, sys, "bind %s", a->sun_path);
    if (listen(fd, BACKLOG) || lstat(a->sun_path, &st))
        return err_sys(e, errno, "listen %s", a->sun_path);
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    l->fd = TAKE_FD(fd);
    return OK;
}

static enum err adopt(struct listen *l, const char *count, struct error *e)
{
    int value = 0;
    socklen_t len = sizeof(value);
    struct sockaddr_un a = {0};
    socklen_t a_len = sizeof(a);

    if (strcmp(count, "1") != 0)
        return err_set(e, ERR_INVAL, "LISTEN_FDS=%s: one socket is expected", count);
    if (getsockname(FIRST_LISTEN_FD, (struct sockaddr *)&a, &a_len) ||
        a.sun_family != AF_UNIX ||
        getsockopt(FIRST_LISTEN_FD, SOL_SOCKET, SO_ACCEPTCONN, &value, &len) || !value ||
        getsockopt(FIRST_LISTEN_FD, SOL_SOCKET, SO_TYPE, &value, &len) || value != SOCK_STREAM)
        return err_set(e, ERR_INVAL, "LISTEN_FDS: descriptor 3 is no listening Unix socket");
    if (fcntl(FIRST_LISTEN_FD, F_SETFD, FD_CLOEXEC) ||
        fcntl(FIRST_LISTEN_FD, F_SETFL, O_NONBLOCK))
        return err_sys(e, errno, "LISTEN_FDS: descriptor 3");
    l->fd = FIRST_LISTEN_FD;
    l->inherited = true;
    snprintf(l->path, sizeof(l->path), "%s", a.sun_path);
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    return OK;
}

enum err listen_open(struct listen *l, const char *path, struct error *e)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    struct sockaddr_un a;
    AUTO_FD int lock = -1;
    enum err rc;

    if (pid && count && strtol(pid, NULL, 10) == (long)getpid())
        return adopt(l, count, e);
    if ((rc = set_address(&a, path, e)) || (rc = check_folder(path, e)) ||
        (rc = lock_folder(path, &lock, e)) || (rc = clear_dead(&a, e)))
        return rc;
    snprintf(l->path, sizeof(l->path), "%s", path);
    return bind_and_listen(l, &a, e);
}

void listen_close(struct listen *l)
{
    struct stat st;
    AUTO_FD int lock = -1;

    if (l->fd < 0)
        return;
    if (!l->inherited && lock_folder(l->path, &lock, NULL) == OK && lstat(l->path, &st) == 0 &&
        st.st_dev == l->dev && st.st_ino == l->ino)
        unlink(l->path);
    close(l->fd);
    l->fd = -1;
}

/* ---- the service manager ---------------------------------------------------------- */

enum err listen_notify(const char *state, struct error *e)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a;
    enum err rc;

    if (!path || !*path)
        return OK;
    if ((rc = set_address(&a, path, e)))
        return err_wrap(e, rc, "NOTIFY_SOCKET");
    if (a.sun_path[0] == '@')
        a.sun_path[0] = '\0'; /* abstract */
    AUTO_FD int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (fd < 0 ||
        sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&a, len) < 0)
        return err_sys(e, errno, "NOTIFY_SOCKET %s", path);
    return OK;
}
