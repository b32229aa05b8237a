#include "sessions/witness.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"

#define WORD_BYTES 5

/* Words of one length: one replaces the other in a single write. */
static const char says_open[] = "open\n", says_lost[] = "lost\n";

static enum err say(int lock_fd, const char *word, struct error *e)
{
    enum err rc = fs_pwrite(lock_fd, "lock file", word, WORD_BYTES, 0, e);
    return rc ? rc : fs_sync(lock_fd, "lock file", e);
}

enum err witness_read(int lock_fd, const char *db_path, bool *wal_lost, struct error *e)
{
    char word[WORD_BYTES + 1] = "", wal[FS_PATH_BYTES];
    size_t n;
    struct stat sb;
    enum err rc = fs_pread_some(lock_fd, "lock file", word, WORD_BYTES, 0, &n, e);
    if (rc || (rc = fs_path(wal, sizeof wal, e, "%s-wal", db_path)))
        return rc;
    *wal_lost = strcmp(word, says_lost) == 0;
    if (*wal_lost || strcmp(word, says_open) != 0 || stat(wal, &sb) == 0 || errno != ENOENT)
        return OK;
    *wal_lost = true;
    return say(lock_fd, says_lost, e);
}

enum err witness_open(int lock_fd, const char *db_path, struct error *e)
{
    char folder[FS_PATH_BYTES];
    const char *slash = strrchr(db_path, '/');
    enum err rc =
        fs_path(folder, sizeof folder, e, "%.*s",
                slash ? (int)(slash - db_path) + (slash == db_path) : 1, slash ? db_path : ".");
    /* The name of the -wal first: this must not outlive it in a power cut. */
    if (!rc)
        rc = fs_sync_dir(folder, e);
    return rc ? rc : say(lock_fd, says_open, e);
}

enum err witness_close(int lock_fd, struct error *e)
{
    enum err rc = fs_truncate(lock_fd, "lock file", 0, e);
    return rc ? rc : fs_sync(lock_fd, "lock file", e);
}
