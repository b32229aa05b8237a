#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/fault.h"

/* What the system call gives, or -1 with this errno where an armed fault wants it. */
#define FAULTY(point, sys, call) (fault_point(point) ? (errno = fault_errno(sys), -1) : (call))

/* ---- paths ------------------------------------------------------------------------------ */

enum err fs_path(char *out, size_t cap, struct error *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, cap, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= cap)
        return err_set(e, ERR_LIMIT, "path \"%.100s...\": %d bytes, at most %zu",
                       cap ? out : "", n, cap ? cap - 1 : 0);
    return OK;
}

/* The folder that `path` stands in, into out; "." when it has no '/'. */
static enum err parent_of(const char *path, char *out, size_t cap, struct error *e)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return fs_path(out, cap, e, ".");
    return fs_path(out, cap, e, "%.*s", (int)(slash == path ? 1 : slash - path), path);
}

static enum err home_folder(char *out, size_t cap, struct error *e)
{
    const char *home = getenv("HOME");
    if (home && home[0] == '/')
        return fs_path(out, cap, e, "%s", home);
    struct passwd entry, *found = NULL;
    char text[4096];
    int sys = getpwuid_r(getuid(), &entry, text, sizeof text, &found);
    if (sys || !found || found->pw_dir[0] != '/')
        return err_set(e, ERR_NOTFOUND, "no home folder: HOME is not set and uid %u has none",
                       (unsigned)getuid());
    return fs_path(out, cap, e, "%s", found->pw_dir);
}

/* /run/user/UID when it is there and ours. */
static bool own_run_folder(char *out, size_t cap)
{
    struct stat st;
    return !fs_path(out, cap, NULL, "/run/user/%u", (unsigned)getuid()) &&
           stat(out, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == getuid();
}

enum err fs_place_path(enum fs_place place, const char *name, char *out, size_t cap,
                       struct error *e)
{
    static const struct {
        const char *variable, *below_home;
    } places[] = {
        [FS_DATA] = {"XDG_DATA_HOME", ".local/share"},
        [FS_CACHE] = {"XDG_CACHE_HOME", ".cache"},
        [FS_STATE] = {"XDG_STATE_HOME", ".local/state"},
        [FS_CONFIG] = {"XDG_CONFIG_HOME", ".config"},
        [FS_RUNTIME] = {"XDG_RUNTIME_DIR", NULL},
    };
    const char *value = getenv(places[place].variable);
    if (value && value[0] == '/')
        return fs_path(out, cap, e, "%s/%s", value, name);
    char folder[FS_PATH_BYTES];
    if (place == FS_RUNTIME) {
        if (own_run_folder(folder, sizeof folder))
            return fs_path(out, cap, e, "%s/%s", folder, name);
        return fs_place_path(FS_STATE, name, out, cap, e);
    }
    enum err rc = home_folder(folder, sizeof folder, e);
    if (rc)
        return rc;
    return fs_path(out, cap, e, "%s/%s/%s", folder, places[place].below_home, name);
}

/* ---- folders ---------------------------------------------------------------------------- */

static enum err make_one(const char *path, struct error *e)
{
    struct stat st;
    char folder[FS_PATH_BYTES];
    enum err rc = parent_of(path, folder, sizeof folder, e);
    if (rc)
        return rc;
    if (FAULTY("fs.mkdir", EIO, mkdir(path, 0700)) == 0)
        return fs_sync_dir(folder, e);
    int sys = errno;
    if (sys != EEXIST)
        return err_sys(e, sys, "mkdir %s", path);
    if (stat(path, &st) < 0)
        return err_sys(e, errno, "stat %s", path);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, ERR_CONFLICT, "mkdir %s: there is something else", path);
    return OK;
}

enum err fs_mkdir_p(const char *path, struct error *e)
{
    char part[FS_PATH_BYTES];
    struct stat st;
    enum err rc = fs_path(part, sizeof part, e, "%s", path);
    if (rc)
        return rc;
    for (char *slash = part; (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        /* A parent that exists may be one we could not make, such as a mount point. */
        if (stat(part, &st) < 0 && (rc = make_one(part, e)))
            return rc;
        *slash = '/';
    }
    size_t len = strlen(part);
    while (len > 1 && part[len - 1] == '/')
        part[--len] = '\0';
    return make_one(part, e);
}

enum err fs_sync_dir(const char *path, struct error *e)
{
    AUTO_FD int fd = FAULTY("fs.open", EIO, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return err_sys(e, errno, "open %s", path);
    if (FAULTY("fs.sync", EIO, fsync(fd)) < 0)
        return err_sys(e, errno, "fsync %s", path);
    return OK;
}

enum err fs_is_network(const char *path, bool *out, const char **name_out, struct error *e)
{
    static const struct {
        uint32_t magic;
        const char *name;
    } remote[] = {
        {0x6969, "nfs"},       {0xff534d42, "cifs"},   {0xfe534d42, "smb2"},
        {0x517b, "smb"},       {0x65735546, "fuse"},   {0x5346414f, "afs"},
        {0x00c36400, "ceph"},  {0x01021997, "9p"},     {0x73757245, "coda"},
        {0x7461636f, "ocfs2"}, {0x0bd00bd0, "lustre"}, {0x01161970, "gfs2"},
    };
    struct statfs s;
    if (statfs(path, &s) < 0)
        return err_sys(e, errno, "statfs %s", path);
    const char *name = NULL;
    for (size_t i = 0; i < sizeof remote / sizeof remote[0]; i++)
        if ((uint32_t)s.f_type == remote[i].magic)
            name = remote[i].name;
    *out = name != NULL;
    if (name_out)
        *name_out = name ? name : "local";
    return OK;
}

/* ---- whole files ------------------------------------------------------------------------ */

enum err fs_read_fd(int fd, const char *name, struct buf *out, struct error *e)
{
    const size_t piece = 65536, before = out->len;
    enum err rc = OK;
    for (;;) {
        /* At the maximum one byte more tells the end from a file that is too large. */
        uint8_t extra, *dst = &extra;
        size_t room = out->max - out->len, want = room < piece ? room : piece;
        if (want && (rc = buf_reserve(out, want, e))) {
            err_wrap(e, rc, "read %s", name);
            break;
        }
        if (want)
            dst = out->data + out->len;
        ssize_t n = FAULTY("fs.read", EIO, read(fd, dst, want ? want : 1));
        if (n == 0)
            return OK;
        if (n > 0 && want) {
            out->len += (size_t)n;
            out->data[out->len] = 0;
        } else if (n > 0) {
            rc = err_set(e, ERR_LIMIT, "read %s: more than %zu bytes", name, out->max);
            break;
        } else if (errno != EINTR) {
            rc = err_sys(e, errno, "read %s", name);
            break;
        }
    }
    if (out->data) {
        out->len = before;
        out->data[before] = 0;
    }
    return rc;
}

enum err fs_read_file(const char *path, struct buf *out, struct error *e)
{
    AUTO_FD int fd = FAULTY("fs.open", EIO, open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (fd < 0)
        return err_sys(e, errno, "open %s", path);
    return fs_read_fd(fd, path, out, e);
}

enum err fs_read_regular(const char *path, struct buf *out, struct error *e)
{
    AUTO_FD int fd = -1;
    enum err rc = fs_open_regular(path, O_RDONLY, &fd, e);
    return rc ? rc : fs_read_fd(fd, path, out, e);
}

enum err fs_read_line(FILE *f, struct buf *line, struct error *e)
{
    int c;
    buf_clear(line);
    for (bool ended = false; !ended && (c = getc_unlocked(f)) != EOF; ended = c == '\n') {
        enum err rc = line->len < line->cap ? OK : buf_reserve(line, 1, e);
        if (rc == ERR_LIMIT)
            return err_set(e, rc, "a line of more than %zu bytes", line->max);
        if (rc)
            return rc;
        line->data[line->len++] = (uint8_t)c;
        line->data[line->len] = 0;
    }
    return ferror(f) ? err_sys(e, errno, "read") : OK;
}

enum err fs_write_atomic(const char *path, const void *data, size_t n, mode_t mode,
                         struct error *e)
{
    char temp[FS_PATH_BYTES], folder[FS_PATH_BYTES];
    enum err rc = parent_of(path, folder, sizeof folder, e);
    if (rc || (rc = fs_path(temp, sizeof temp, e, "%s.XXXXXX", path)))
        return rc;
    AUTO_FD int fd = FAULTY("fs.open", EIO, mkostemp(temp, O_CLOEXEC));
    if (fd < 0)
        return err_sys(e, errno, "make a temporary file beside %s", path);
    rc = fs_write(fd, temp, data, n, e);
    if (!rc && fchmod(fd, mode) < 0)
        rc = err_sys(e, errno, "chmod %s", temp);
    if (!rc)
        rc = fs_sync(fd, temp, e);
    if (!rc && FAULTY("fs.rename", EIO, rename(temp, path)) < 0)
        rc = err_sys(e, errno, "rename %s to %s", temp, path);
    if (rc) {
        unlink(temp);
        return rc;
    }
    return fs_sync_dir(folder, e);
}

enum err fs_lock(const char *path, int *fd_out, struct error *e)
{
    AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_sys(e, errno, "open %s", path);
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EWOULDBLOCK)
            return err_set(e, ERR_BUSY, "lock %s: another process holds it", path);
        if (errno != EINTR)
            return err_sys(e, errno, "lock %s", path);
    }
    *fd_out = TAKE_FD(fd);
    return OK;
}

enum err fs_open(const char *path, int flags, mode_t mode, int *fd_out, struct error *e)
{
    int fd = FAULTY("fs.open", EIO, open(path, flags | O_CLOEXEC | O_NOCTTY, mode));
    if (fd < 0)
        return err_sys(e, errno, "open %s", path);
    *fd_out = fd;
    return OK;
}

enum err fs_open_regular(const char *path, int flags, int *fd_out, struct error *e)
{
    AUTO_FD int fd =
        FAULTY("fs.open", EIO, open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    struct stat st;
    /* A socket; a folder, or a pipe that nobody reads, for writing. */
    if (fd < 0 && (errno == ENXIO || errno == EISDIR))
        return err_set(e, ERR_FORMAT, "%s is no file", path);
    if (fd < 0)
        return err_sys(e, errno, "open %s", path);
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "stat %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_FORMAT, "%s is no file", path);
    *fd_out = TAKE_FD(fd);
    return OK;
}

enum err fs_size(int fd, const char *name, uint64_t *out, struct error *e)
{
    struct stat st;
    if (FAULTY("fs.read", EIO, fstat(fd, &st)) < 0)
        return err_sys(e, errno, "stat %s", name);
    *out = (uint64_t)st.st_size;
    return OK;
}

static int64_t to_ns(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

enum err fs_identity(int fd, const char *name, struct fs_identity *out, struct error *e)
{
    struct stat st;
    if (FAULTY("fs.read", EIO, fstat(fd, &st)) < 0)
        return err_sys(e, errno, "stat %s", name);
    *out = (struct fs_identity){.dev = (uint64_t)st.st_dev,
                                .ino = (uint64_t)st.st_ino,
                                .n_bytes = (uint64_t)st.st_size,
                                .mtime_ns = to_ns(st.st_mtim),
                                .ctime_ns = to_ns(st.st_ctim)};
    return OK;
}

bool fs_is_same(const struct fs_identity *a, const struct fs_identity *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->n_bytes == b->n_bytes &&
           a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

enum err fs_truncate(int fd, const char *name, uint64_t size, struct error *e)
{
    if (FAULTY("fs.truncate", EIO, ftruncate(fd, (off_t)size)) < 0)
        return err_sys(e, errno, "truncate %s to %llu", name, (unsigned long long)size);
    return OK;
}

enum err fs_unlink(const char *path, struct error *e)
{
    if (FAULTY("fs.unlink", EIO, unlink(path)) < 0)
        return err_sys(e, errno, "unlink %s", path);
    return OK;
}

/* ---- bytes ------------------------------------------------------------------------------ */

enum err fs_pread_some(int fd, const char *name, void *dst, size_t n, uint64_t off, size_t *got,
                       struct error *e)
{
    size_t done = 0;
    while (done < n) {
        ssize_t k = FAULTY("fs.read", EIO,
                           pread(fd, (char *)dst + done, n - done, (off_t)(off + done)));
        if (k < 0 && errno != EINTR)
            return err_sys(e, errno, "read %s at %llu", name, (unsigned long long)off);
        if (k == 0)
            break;
        done += k > 0 ? (size_t)k : 0;
    }
    *got = done;
    return OK;
}

enum err fs_pread(int fd, const char *name, void *dst, size_t n, uint64_t off, struct error *e)
{
    size_t got;
    enum err rc = fs_pread_some(fd, name, dst, n, off, &got, e);
    if (!rc && got < n)
        rc = err_set(e, ERR_FORMAT, "read %s at %llu: %zu bytes, want %zu", name,
                     (unsigned long long)off, got, n);
    return rc;
}

enum err fs_pwrite(int fd, const char *name, const void *src, size_t n, uint64_t off,
                   struct error *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = FAULTY("fs.write", ENOSPC,
                           pwrite(fd, (const char *)src + done, n - done, (off_t)(off + done)));
        if (k < 0 && errno != EINTR)
            return err_sys(e, errno, "write %s at %llu", name, (unsigned long long)off);
        done += k > 0 ? (size_t)k : 0;
    }
    return OK;
}

enum err fs_write(int fd, const char *name, const void *src, size_t n, struct error *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = FAULTY("fs.write", ENOSPC, write(fd, (const char *)src + done, n - done));
        if (k < 0 && errno != EINTR)
            return err_sys(e, errno, "write %s", name);
        done += k > 0 ? (size_t)k : 0;
    }
    return OK;
}

enum err fs_sync(int fd, const char *name, struct error *e)
{
    while (FAULTY("fs.sync", EIO, fdatasync(fd)) < 0)
        if (errno != EINTR)
            return err_sys(e, errno, "fdatasync %s", name);
    return OK;
}
