#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agentd/doctor.h"
#include "base/aio.h"
#include "base/auto.h"
#include "base/clock.h"

#define GB 1e9
#define MB 1e6
#define LOW_BYTES (1ull << 30)    /* free room below which a warning is due */
#define EMPTY_BYTES (64ull << 20) /* and below which nothing is left to work with */
#define PIECE (1u << 20)
#define DEPTH 16 /* reads in flight: what a restore has (16 to 32 MiB) */
#define SLOW_MB_S 500.0
#define MILLION_TOKENS_BYTES 933e6 /* planes of V4.1-Flash: store.md, "Restore" */
#define MEMLOCK_WANTED (32ull << 20)

/* The folder itself (an absolute path), or the nearest above it that is there. */
static void nearest(const char *path, char out[FS_PATH_BYTES])
{
    snprintf(out, FS_PATH_BYTES, "%s", path);
    while (access(out, F_OK) && strcmp(out, "/") != 0) {
        char *slash = strrchr(out, '/');
        slash[slash == out] = '\0';
    }
}

/* ---- file systems ------------------------------------------------------------------------ */

static void look_at_room(struct doctor *d, const char *name, const char *where)
{
    struct statvfs s;
    if (statvfs(where, &s)) {
        doctor_line(d, DOCTOR_FAIL, name, NULL, "%s: %s", where, strerror(errno));
        return;
    }
    uint64_t free_bytes = (uint64_t)s.f_bavail * s.f_frsize;
    enum doctor_status status = free_bytes < EMPTY_BYTES ? DOCTOR_FAIL
                                : free_bytes < LOW_BYTES ? DOCTOR_WARN
                                                         : DOCTOR_OK;
    doctor_line(d, status, name, json_pack("{s:I}", "freeBytes", (json_int_t)free_bytes),
                "%.1f GB free%s", (double)free_bytes / GB,
                status == DOCTOR_OK ? "" : ": sessions soon stop saving");
}

/* *where: the folder that is there. False: it could not be used at all. */
static bool look_at_folder(struct doctor *d, const char *what, const char *folder,
                           char where[FS_PATH_BYTES])
{
    char name[64];
    const char *kind = "local";
    bool network = false;
    struct error e;
    nearest(folder, where);
    if (fs_is_network(where, &network, &kind, &e)) {
        doctor_line(d, DOCTOR_FAIL, what, NULL, "%s", e.msg);
        return false;
    }
    if (network)
        doctor_line(d, DOCTOR_FAIL, what, json_pack("{s:s}", "path", folder),
                    "%s lies on a network file system (%s), which a store refuses", folder,
                    kind);
    else if (faccessat(AT_FDCWD, where, W_OK | X_OK, AT_EACCESS))
        doctor_line(d, DOCTOR_FAIL, what, json_pack("{s:s}", "path", folder),
                    "%s cannot be written: %s", where, strerror(errno));
    else
        doctor_line(d, DOCTOR_OK, what, json_pack("{s:s}", "path", folder),
                    "%s, a local file system%s", folder,
                    strcmp(where, folder) ? " (the folder is not there yet)" : "");
    snprintf(name, sizeof name, "%s.room", what);
    look_at_room(d, name, where);
    return !network;
}

/* ---- reading ----------------------------------------------------------------------------- */

/* A file without a name in the folder. */
static enum err open_scratch(const char *folder, int *fd, bool *direct, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc =
        fs_path(path, sizeof path, e, "%s/.agentd-doctor-%ld", folder, (long)getpid());
    if (!rc)
        rc = aio_open_file(path, O_RDWR | O_CREAT | O_EXCL, 0600, fd, direct, e);
    if (!rc)
        unlink(path);
    return rc;
}

/* Bytes that no file system can shorten. */
static void fill_random(uint64_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n / sizeof *p; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        p[i] = seed;
    }
}

static enum err write_all(int fd, uint8_t *room, uint64_t bytes, struct error *e)
{
    enum err rc = OK;
    for (uint64_t at = 0; at < bytes && !rc; at += PIECE) {
        fill_random((uint64_t *)(void *)room, PIECE, at + 88172645463325252ull);
        rc = fs_pwrite(fd, "scratch file", room, PIECE, at, e);
    }
    if (!rc)
        rc = fs_sync(fd, "scratch file", e);
    /* Where there is no O_DIRECT the page cache has it all. */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return rc;
}

static enum err read_all(struct aio *a, int fd, uint8_t *room, uint64_t bytes, struct error *e)
{
    struct aio_done done[DEPTH];
    size_t n_done = 0;
    bool busy[DEPTH] = {false};
    enum err rc = OK;
    for (uint64_t at = 0, back = 0; back < bytes && !rc;) {
        for (size_t i = 0; i < DEPTH && at < bytes && !rc; i++) {
            if (busy[i])
                continue;
            rc = aio_read(a, fd, at, room + i * PIECE, PIECE, &busy[i], e);
            busy[i] = true;
            at += PIECE;
        }
        if (rc || (rc = aio_wait(a, 1, done, DEPTH, &n_done, e)))
            break;
        for (size_t i = 0; i < n_done && !rc; i++) {
            *(bool *)done[i].user = false;
            back += PIECE;
            if (done[i].sys || done[i].bytes != PIECE)
                rc = err_sys(e, done[i].sys ? done[i].sys : EIO, "read scratch file");
        }
    }
    return rc;
}

/* Sequential reads as a restore does them: the best of three passes. */
static enum err measure(struct aio *a, int fd, uint64_t bytes, double *mb_s, struct error *e)
{
    void *room = NULL;
    enum err rc = aio_buffer_new((size_t)DEPTH * PIECE, &room, e);
    if (!rc)
        rc = write_all(fd, room, bytes, e);
    *mb_s = 0;
    for (int pass = 0; pass < 3 && !rc; pass++) {
        uint64_t t0 = clock_mono_ns(clock_real());
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        rc = read_all(a, fd, room, bytes, e);
        double s = (double)(clock_mono_ns(clock_real()) - t0) / 1e9;
        if (!rc && (double)bytes / MB / s > *mb_s)
            *mb_s = (double)bytes / MB / s;
    }
    aio_buffer_free(room, (size_t)DEPTH * PIECE);
    return rc;
}

static void look_at_speed(struct doctor *d, struct aio *a, int fd, const char *where,
                          uint64_t bytes)
{
    struct statvfs s;
    struct error e;
    double mb_s;
    bytes = bytes / PIECE * PIECE;
    if (!bytes || statvfs(where, &s) || (uint64_t)s.f_bavail * s.f_frsize < LOW_BYTES + bytes) {
        doctor_line(d, bytes ? DOCTOR_WARN : DOCTOR_OK, "speed", NULL, "not measured%s",
                    bytes ? ": too little room" : "");
        return;
    }
    if (measure(a, fd, bytes, &mb_s, &e)) {
        doctor_line(d, DOCTOR_FAIL, "speed", NULL, "%s", e.msg);
        return;
    }
    doctor_line(d, mb_s < SLOW_MB_S ? DOCTOR_WARN : DOCTOR_OK, "speed",
                json_pack("{s:f, s:I}", "mbPerSecond", mb_s, "bytes", (json_int_t)bytes),
                "%.0f MB/s read: a session of a million tokens resumes in %.1f s at best", mb_s,
                MILLION_TOKENS_BYTES / MB / mb_s);
}

static void look_at_memlock(struct doctor *d)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_MEMLOCK, &r))
        return;
    bool low = r.rlim_cur != RLIM_INFINITY && r.rlim_cur < MEMLOCK_WANTED;
    json_int_t n = r.rlim_cur == RLIM_INFINITY ? -1 : (json_int_t)r.rlim_cur;
    if (n < 0)
        doctor_line(d, DOCTOR_OK, "memlock", json_pack("{s:n}", "bytes"), "no limit");
    else
        doctor_line(d, low ? DOCTOR_WARN : DOCTOR_OK, "memlock", json_pack("{s:I}", "bytes", n),
                    "%.0f MiB%s", (double)n / (1 << 20),
                    low ? ": less than a restore keeps in flight, the rest is read into "
                          "unregistered memory (ulimit -l)"
                        : "");
}

static void look_at_packs(struct doctor *d, const char *where, uint64_t speed_bytes)
{
    struct aio *a = NULL;
    struct error e;
    AUTO_FD int fd = -1;
    bool direct = false;
    if (open_scratch(where, &fd, &direct, &e)) {
        doctor_line(d, DOCTOR_FAIL, "packs.direct", NULL, "%s", e.msg);
        return;
    }
    doctor_line(d, direct ? DOCTOR_OK : DOCTOR_WARN, "packs.direct",
                json_pack("{s:b}", "direct", direct), "%s",
                direct ? "O_DIRECT" : "no O_DIRECT: the page cache is filled and copied from");
    if (aio_open(&(struct aio_options){.depth = DEPTH}, &a, &e)) {
        doctor_line(d, DOCTOR_FAIL, "io", NULL, "%s", e.msg);
        return;
    }
    bool ring = !strcmp(aio_backend(a), "io_uring");
    doctor_line(d, ring ? DOCTOR_OK : DOCTOR_WARN, "io",
                json_pack("{s:s}", "backend", aio_backend(a)), "%s%s", aio_backend(a),
                ring ? "" : ": io_uring is refused here, reads cost more");
    look_at_memlock(d);
    look_at_speed(d, a, fd, where, speed_bytes);
    aio_close(a);
}

void doctor_disk(struct doctor *d, const struct doctor_places *p)
{
    char folder[FS_PATH_BYTES], where[FS_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", p->db);
    if (strrchr(folder, '/') && strrchr(folder, '/') != folder)
        *strrchr(folder, '/') = '\0';
    look_at_folder(d, "database", folder, where);
    if (look_at_folder(d, "packs", p->packs, where) && !access(where, W_OK))
        look_at_packs(d, where, p->speed_bytes);
}
