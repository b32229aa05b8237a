/* Files, done completely: every byte or an error, EINTR hidden, durable where it says so.
 *
 * Paths appear in every message. All calls block; none for the loop thread except on small
 * files. Fault points: fs.open, fs.read, fs.write, fs.sync, fs.truncate, fs.rename, fs.unlink,
 * fs.mkdir. */
#ifndef BASE_FS_H
#define BASE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"

#define FS_PATH_BYTES 4096

/* Makes path and its missing parents with mode 0700, their names durable. An existing folder is
 * fine; ERR_CONFLICT when something else stands there. */
NODISCARD enum err fs_mkdir_p(const char *path, struct error *e);

/* Reads a whole file into out (appended). ERR_LIMIT when that is more than out may hold. Works
 * on pipes and /proc, too. */
NODISCARD enum err fs_read_file(const char *path, struct buf *out, struct error *e);
/* The same, but ERR_FORMAT for what is no regular file (fs_open_regular). */
NODISCARD enum err fs_read_regular(const char *path, struct buf *out, struct error *e);
/* The next line of a stream in place of line's contents, with its newline (the last may have
 * none); empty at the end. ERR_LIMIT when it is longer than `line` may hold: no more than that
 * is read. ERR_IO, ERR_NOMEM. The caller says which file. */
NODISCARD enum err fs_read_line(FILE *f, struct buf *line, struct error *e);
/* The same from an open descriptor, up to its end; `name` is for messages. */
NODISCARD enum err fs_read_fd(int fd, const char *name, struct buf *out, struct error *e);

/* Replaces path by n bytes so that a crash leaves the old file or the new one, never a mixture:
 * temporary file beside it, fsync, rename, fsync of the folder. The file has mode `mode`. */
NODISCARD enum err fs_write_atomic(const char *path, const void *data, size_t n, mode_t mode,
                                   struct error *e);

/* open(2) with O_CLOEXEC and O_NOCTTY; mode counts with O_CREAT. */
NODISCARD enum err fs_open(const char *path, int flags, mode_t mode, int *fd_out,
                           struct error *e);
/* The same for what has to be a regular file: anything else is ERR_FORMAT "PATH is no file". A
 * pipe that nobody writes to, or a device, holds up nobody who opens it: O_NONBLOCK, and what
 * it is is asked of the descriptor. A symlink is followed unless flags have O_NOFOLLOW
 * (ERR_IO). */
NODISCARD enum err fs_open_regular(const char *path, int flags, int *fd_out, struct error *e);
NODISCARD enum err fs_size(int fd, const char *name, uint64_t *out, struct error *e);

/* Which file it is, and in which state: who writes to it changes mtime_ns and, whatever he does
 * to that, ctime_ns (at the file system's granularity). Unix times. */
struct fs_identity {
    uint64_t dev, ino, n_bytes;
    int64_t mtime_ns, ctime_ns;
};
NODISCARD enum err fs_identity(int fd, const char *name, struct fs_identity *out,
                               struct error *e);
bool fs_is_same(const struct fs_identity *a, const struct fs_identity *b);

NODISCARD enum err fs_truncate(int fd, const char *name, uint64_t size, struct error *e);
/* ERR_NOTFOUND: there is no such file. Durable after fs_sync_dir. */
NODISCARD enum err fs_unlink(const char *path, struct error *e);

/* All n bytes at offset off, or an error. A read that meets the end of the file is ERR_FORMAT
 * with both sizes. `name` is for messages. */
NODISCARD enum err fs_pread(int fd, const char *name, void *dst, size_t n, uint64_t off,
                            struct error *e);
/* The same, but the end of the file only ends it: *got is what there was. */
NODISCARD enum err fs_pread_some(int fd, const char *name, void *dst, size_t n, uint64_t off,
                                 size_t *got, struct error *e);
NODISCARD enum err fs_pwrite(int fd, const char *name, const void *src, size_t n, uint64_t off,
                             struct error *e);
/* All n bytes at the current position (pipes, sockets in blocking mode). */
NODISCARD enum err fs_write(int fd, const char *name, const void *src, size_t n,
                            struct error *e);

/* fdatasync. After an error the file's unsynced content is unknown: never try again on it. */
NODISCARD enum err fs_sync(int fd, const char *name, struct error *e);
/* Makes the names inside a folder durable (after a create, rename or unlink). */
NODISCARD enum err fs_sync_dir(const char *path, struct error *e);

/* Opens (makes, mode 0600) path and takes an exclusive flock on it, held until *fd_out is
 * closed. ERR_BUSY when another process holds it. */
NODISCARD enum err fs_lock(const char *path, int *fd_out, struct error *e);

/* Whether path (an existing file or folder) lies on a network or FUSE file system, where flock,
 * mmap and fsync promise less. name_out (may be NULL) is set to its name ("nfs") or "local". */
NODISCARD enum err fs_is_network(const char *path, bool *out, const char **name_out,
                                 struct error *e);

enum fs_place {
    FS_DATA,   /* $XDG_DATA_HOME, else ~/.local/share */
    FS_CACHE,  /* $XDG_CACHE_HOME, else ~/.cache */
    FS_STATE,  /* $XDG_STATE_HOME, else ~/.local/state */
    FS_CONFIG, /* $XDG_CONFIG_HOME, else ~/.config */
    FS_RUNTIME /* $XDG_RUNTIME_DIR, else /run/user/UID if it is ours, else as FS_STATE */
};

/* The path of `name` ("agentd/agentd.db") in a standard place; nothing is made. A relative
 * value of a variable is ignored, as the XDG specification says. ERR_NOTFOUND without a home
 * folder, ERR_LIMIT when it does not fit. */
NODISCARD enum err fs_place_path(enum fs_place place, const char *name, char *out, size_t cap,
                                 struct error *e);

/* printf into a path buffer; ERR_LIMIT when it does not fit. */
NODISCARD enum err fs_path(char *out, size_t cap, struct error *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
