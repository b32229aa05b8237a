#include "tools/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLACE "/tmp"
#define PREFIX "agentd-tool."
#define MAX_DEPTH 256

enum err scratch_make(char path[SCRATCH_PATH_BYTES], struct error *e)
{
    snprintf(path, SCRATCH_PATH_BYTES, PLACE "/" PREFIX "%d.XXXXXX", (int)getpid());
    if (mkdtemp(path))
        return OK;
    path[0] = '\0';
    return err_sys(e, errno, "scratch folder in " PLACE);
}

/* Opens a folder to be emptied, even one that was made unreadable. */
static int open_folder(int parent, const char *name)
{
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(parent, name, flags);
    if (fd < 0 && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0)
        fd = openat(parent, name, flags);
    return fd;
}

static void remove_tree(int parent, const char *name, int depth)
{
    if (unlinkat(parent, name, 0) == 0 || depth == MAX_DEPTH)
        return;
    int fd = open_folder(parent, name);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) != 0)
        fchmod(fd, 0700);
    for (struct dirent *d; (d = readdir(dir));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            remove_tree(fd, d->d_name, depth + 1);
    closedir(dir);
    unlinkat(parent, name, AT_REMOVEDIR);
}

void scratch_remove(const char *path)
{
    remove_tree(AT_FDCWD, path, 0);
}

/* Whether an entry of /tmp is a folder of a launcher that is gone. Root's tools may have been a
 * spare user, so root looks at the name only. */
static bool is_left_over(int parent, const char *name)
{
    struct stat st;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return false;
    char *end;
    long pid = strtol(name + strlen(PREFIX), &end, 10);
    if (pid <= 0 || *end != '.' || strlen(end) != 7)
        return false;
    if (kill((pid_t)pid, 0) == 0 || errno != ESRCH)
        return false;
    return fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
           (st.st_uid == geteuid() || geteuid() == 0);
}

void scratch_sweep(void)
{
    DIR *dir = opendir(PLACE);
    for (struct dirent *d; dir && (d = readdir(dir));)
        if (is_left_over(dirfd(dir), d->d_name))
            remove_tree(dirfd(dir), d->d_name, 0);
    if (dir)
        closedir(dir);
}
