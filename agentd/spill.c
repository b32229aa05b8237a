#include "agentd/spill.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"

#define ZERO_BYTES 65536

static enum err overwrite_file(const char *path, struct error *e)
{
    static const uint8_t zeros[ZERO_BYTES];
    AUTO_FD int fd = -1;
    uint64_t size = 0;
    enum err rc = fs_open(path, O_WRONLY | O_NOFOLLOW, 0, &fd, e);
    if (!rc)
        rc = fs_size(fd, path, &size, e);
    for (uint64_t at = 0; at < size && !rc; at += ZERO_BYTES)
        rc = fs_pwrite(fd, path, zeros,
                       size - at < ZERO_BYTES ? (size_t)(size - at) : ZERO_BYTES, at, e);
    return rc ? rc : fs_sync(fd, path, e);
}

static enum err remove_file(const char *folder, const char *name, bool overwrite,
                            struct error *e)
{
    char path[FS_PATH_BYTES];
    struct stat sb;
    enum err rc = fs_path(path, sizeof path, e, "%s/%s", folder, name);
    if (rc)
        return rc;
    if (overwrite && !lstat(path, &sb) && S_ISREG(sb.st_mode) && (rc = overwrite_file(path, e)))
        return rc;
    return fs_unlink(path, e);
}

enum err spill_remove(const char *spill_dir, const char *session, bool overwrite,
                      struct error *e)
{
    char folder[FS_PATH_BYTES];
    enum err rc = fs_path(folder, sizeof folder, e, "%s/%s", spill_dir, session);
    DIR *dir = rc ? NULL : opendir(folder);
    if (rc || (!dir && errno == ENOENT))
        return rc;
    if (!dir)
        return err_sys(e, errno, "open %s", folder);
    for (struct dirent *d; (d = readdir(dir));) {
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
            continue;
        struct error one;
        if (remove_file(folder, d->d_name, overwrite, &one) && !rc)
            rc = err_set(e, one.code, "%s", one.msg);
    }
    closedir(dir);
    if (!rc && rmdir(folder))
        rc = err_sys(e, errno, "remove %s", folder);
    return rc ? rc : fs_sync_dir(spill_dir, e);
}
