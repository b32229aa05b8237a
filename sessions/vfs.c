#include "sessions/vfs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/auto.h"
#include "base/fs.h"

/* Where SQLite's unix VFS keeps its locks: PENDING_BYTE, RESERVED_BYTE and the shared range. */
#define LOCK_START 0x40000000
#define LOCK_BYTES 512

struct vfs_file {
    sqlite3_file base;
    int fd;
    int lock; /* SQLITE_LOCK_... */
    bool unlink_on_close;
    bool unnamed;     /* its name is not durable yet, and its first sync has to see to that */
    const char *path; /* SQLite's, which outlives the file */
};

static sqlite3_vfs *default_vfs(void)
{
    return sqlite3_vfs_find("unix");
}

static _Thread_local int last_errno;

static int failed(const struct error *e, int code)
{
    last_errno = e->sys;
    return e->code == ERR_LIMIT ? SQLITE_FULL : code;
}

static enum err sync_folder_of(const char *path, struct error *e)
{
    char folder[FS_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + (slash == path) : 1;
    enum err rc = fs_path(folder, sizeof folder, e, "%.*s", n, slash ? path : ".");
    return rc ? rc : fs_sync_dir(folder, e);
}

/* ---- one file ---------------------------------------------------------------------------- */

static int file_close(sqlite3_file *file)
{
    struct vfs_file *f = (struct vfs_file *)file;
    close(f->fd);
    f->fd = -1;
    if (f->unlink_on_close)
        (void)!fs_unlink(f->path, NULL);
    return SQLITE_OK;
}

/* What lies behind the end of the file reads as zeros, and SQLite is told. */
static int file_read(sqlite3_file *file, void *dst, int n, sqlite3_int64 off)
{
    const struct vfs_file *f = (struct vfs_file *)file;
    struct error e;
    size_t got;
    if (fs_pread_some(f->fd, f->path, dst, (size_t)n, (uint64_t)off, &got, &e))
        return failed(&e, SQLITE_IOERR_READ);
    if (got == (size_t)n)
        return SQLITE_OK;
    memset((char *)dst + got, 0, (size_t)n - got);
    return SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *file, const void *src, int n, sqlite3_int64 off)
{
    const struct vfs_file *f = (struct vfs_file *)file;
    struct error e;
    if (fs_pwrite(f->fd, f->path, src, (size_t)n, (uint64_t)off, &e))
        return failed(&e, SQLITE_IOERR_WRITE);
    return SQLITE_OK;
}

static int file_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    const struct vfs_file *f = (struct vfs_file *)file;
    struct error e;
    if (fs_truncate(f->fd, f->path, (uint64_t)size, &e))
        return failed(&e, SQLITE_IOERR_TRUNCATE);
    return SQLITE_OK;
}

static int file_sync(sqlite3_file *file, int flags)
{
    (void)flags;
    struct vfs_file *f = (struct vfs_file *)file;
    struct error e;
    if (fs_sync(f->fd, f->path, &e))
        return failed(&e, SQLITE_IOERR_FSYNC);
    if (f->unnamed && sync_folder_of(f->path, &e))
        return failed(&e, SQLITE_IOERR_DIR_FSYNC);
    f->unnamed = false;
    return SQLITE_OK;
}

static int file_size(sqlite3_file *file, sqlite3_int64 *out)
{
    const struct vfs_file *f = (struct vfs_file *)file;
    struct error e;
    uint64_t size;
    if (fs_size(f->fd, f->path, &size, &e))
        return failed(&e, SQLITE_IOERR_FSTAT);
    *out = (sqlite3_int64)size;
    return SQLITE_OK;
}

static int set_lock(const struct vfs_file *f, short type)
{
    struct flock l = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_START, .l_len = LOCK_BYTES};
    return fcntl(f->fd, F_OFD_SETLK, &l);
}

/* Any lock is the exclusive one: there is nobody to share with. */
static int file_lock(sqlite3_file *file, int lock)
{
    struct vfs_file *f = (struct vfs_file *)file;
    if (f->lock == SQLITE_LOCK_NONE && lock > SQLITE_LOCK_NONE && set_lock(f, F_WRLCK))
        return errno == EAGAIN || errno == EACCES ? SQLITE_BUSY : SQLITE_IOERR_LOCK;
    if (lock > f->lock)
        f->lock = lock;
    return SQLITE_OK;
}

static int file_unlock(sqlite3_file *file, int lock)
{
    struct vfs_file *f = (struct vfs_file *)file;
    if (f->lock > SQLITE_LOCK_NONE && lock == SQLITE_LOCK_NONE && set_lock(f, F_UNLCK))
        return SQLITE_IOERR_UNLOCK;
    if (lock < f->lock)
        f->lock = lock;
    return SQLITE_OK;
}

/* Whoever asks holds the lock, so nobody else is writing. */
static int file_reserved(sqlite3_file *file, int *out)
{
    (void)file;
    *out = 0;
    return SQLITE_OK;
}

static bool has_moved(const struct vfs_file *f)
{
    struct stat here, there;
    return fstat(f->fd, &here) || stat(f->path, &there) || here.st_dev != there.st_dev ||
           here.st_ino != there.st_ino;
}

static int file_control(sqlite3_file *file, int what, void *arg)
{
    const struct vfs_file *f = (struct vfs_file *)file;
    switch (what) {
    case SQLITE_FCNTL_HAS_MOVED:
        *(int *)arg = has_moved(f);
        return SQLITE_OK;
    case SQLITE_FCNTL_LOCKSTATE:
        *(int *)arg = f->lock;
        return SQLITE_OK;
    default:
        return SQLITE_NOTFOUND;
    }
}

static int file_sector(sqlite3_file *file)
{
    (void)file;
    return 4096;
}

/* A write that is torn by a power cut leaves the bytes beside it as they were: what SQLite
 * assumes of every disk unless told otherwise. */
static int file_device(sqlite3_file *file)
{
    (void)file;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static const sqlite3_io_methods methods = {
    .iVersion = 1, /* no shared memory, no mapping */
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector,
    .xDeviceCharacteristics = file_device,
};

/* ---- the file system --------------------------------------------------------------------- */

static int vfs_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *file, int flags,
                    int *flags_out)
{
    (void)vfs;
    if (!path)
        return default_vfs()->xOpen(default_vfs(), path, file, flags, flags_out);
    struct vfs_file *f = (struct vfs_file *)file;
    bool create = (flags & SQLITE_OPEN_CREATE) != 0;
    int how = (flags & SQLITE_OPEN_READWRITE ? O_RDWR : O_RDONLY) | (create ? O_CREAT : 0) |
              (flags & SQLITE_OPEN_EXCLUSIVE ? O_EXCL : 0);
    struct error e;
    memset(f, 0, sizeof *f);
    if (fs_open(path, how, 0600, &f->fd, &e)) {
        last_errno = e.sys;
        return SQLITE_CANTOPEN;
    }
    f->path = path;
    f->unlink_on_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0;
    f->unnamed = create && !f->unlink_on_close;
    f->base.pMethods = &methods;
    if (flags_out)
        *flags_out = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *path, int sync_folder)
{
    (void)vfs;
    struct error e;
    enum err rc = fs_unlink(path, &e);
    if (rc)
        return rc == ERR_NOTFOUND ? SQLITE_IOERR_DELETE_NOENT : failed(&e, SQLITE_IOERR_DELETE);
    if (sync_folder && sync_folder_of(path, &e))
        return failed(&e, SQLITE_IOERR_DIR_FSYNC);
    return SQLITE_OK;
}

/* An empty file counts as none: a journal without a byte holds nothing to roll back. */
static int vfs_access(sqlite3_vfs *vfs, const char *path, int flags, int *out)
{
    (void)vfs;
    struct stat sb;
    if (flags == SQLITE_ACCESS_EXISTS)
        *out = stat(path, &sb) == 0 && (!S_ISREG(sb.st_mode) || sb.st_size > 0);
    else
        *out = access(path, R_OK | W_OK) == 0;
    return SQLITE_OK;
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *path, int cap, char *out)
{
    (void)vfs;
    return default_vfs()->xFullPathname(default_vfs(), path, cap, out);
}

static int vfs_randomness(sqlite3_vfs *vfs, int n, char *out)
{
    (void)vfs;
    return default_vfs()->xRandomness(default_vfs(), n, out);
}

static int vfs_sleep(sqlite3_vfs *vfs, int us)
{
    (void)vfs;
    return default_vfs()->xSleep(default_vfs(), us);
}

static int vfs_time(sqlite3_vfs *vfs, double *out)
{
    (void)vfs;
    return default_vfs()->xCurrentTime(default_vfs(), out);
}

static int vfs_get_errno(sqlite3_vfs *vfs, int n, char *text)
{
    (void)vfs, (void)n, (void)text;
    return last_errno;
}

int vfs_errno(void)
{
    return last_errno;
}

enum err vfs_register(struct error *e)
{
    /* SQLite links it into its list; what is in it never changes. */
    static sqlite3_vfs vfs = {
        .iVersion = 1,
        .mxPathname = FS_PATH_BYTES,
        .zName = VFS_NAME,
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_full_path,
        .xRandomness = vfs_randomness,
        .xSleep = vfs_sleep,
        .xCurrentTime = vfs_time,
        .xGetLastError = vfs_get_errno,
    };
    if (sqlite3_vfs_find(VFS_NAME))
        return OK;
    if (!default_vfs())
        return err_set(e, ERR_UNSUPPORTED, "database: this SQLite has no unix VFS");
    /* Nameless files are the default VFS's, in the same memory. */
    vfs.szOsFile = (int)sizeof(struct vfs_file) > default_vfs()->szOsFile
                       ? (int)sizeof(struct vfs_file)
                       : default_vfs()->szOsFile;
    if (sqlite3_vfs_register(&vfs, 0))
        return err_set(e, ERR_NOMEM, "database: VFS not registered");
    return OK;
}
