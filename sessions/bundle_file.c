#include "sessions/bundle_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"

#define PIECE (256u << 10)
#define STEP_BYTES (4u << 20)

struct bundle_file_out {
    char path[FS_PATH_BYTES], tmp[FS_PATH_BYTES]; /* tmp "": there is none (any more) */
    const struct bundle_manifest *m;
    int spools[2], fd;
    struct archive_out *archive;
    size_t next;   /* file of the manifest */
    uint64_t done; /* bytes of it */
    uint64_t bytes;
    uint8_t piece[PIECE];
};

void bundle_file_free(struct bundle_file_out *f)
{
    if (!f)
        return;
    archive_out_free(f->archive);
    if (f->fd >= 0)
        close(f->fd);
    if (f->tmp[0])
        unlink(f->tmp);
    free(f);
}

static enum err write_manifest(struct bundle_file_out *f, uint64_t now_ms, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(BUNDLE_MAX_MANIFEST);
    enum err rc = bundle_manifest_write(f->m, now_ms, &text, e);
    if (!rc && !(rc = archive_out_open(f->fd, &f->archive, e)))
        rc = archive_out_member(f->archive, "manifest.json", text.len, e);
    return rc ? rc : archive_out_write(f->archive, text.data, text.len, e);
}

enum err bundle_file_open(const char *path, const struct bundle_manifest *m,
                          const int spools[2], uint64_t now_ms, struct bundle_file_out **out,
                          struct error *e)
{
    struct bundle_file_out *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    f->fd = -1;
    f->m = m;
    memcpy(f->spools, spools, sizeof f->spools);
    enum err rc = fs_path(f->path, sizeof f->path, e, "%s", path);
    if (!rc)
        rc = fs_path(f->tmp, sizeof f->tmp, e, "%s.tmp-XXXXXX", path);
    if (!rc && (f->fd = mkostemp(f->tmp, O_CLOEXEC)) < 0) {
        rc = err_sys(e, errno, "make %s", f->tmp);
        f->tmp[0] = '\0';
    }
    if (rc || (rc = write_manifest(f, now_ms, e))) {
        if (f->fd < 0)
            f->tmp[0] = '\0';
        bundle_file_free(f);
        return rc;
    }
    *out = f;
    return OK;
}

/* Some bytes of the member that is due; *n of them. */
static enum err copy_piece(struct bundle_file_out *f, size_t *n, struct error *e)
{
    const struct bundle_file *file = &f->m->files[f->next];
    char name[ARCHIVE_NAME_CAP];
    uint64_t left = file->bytes - f->done;
    enum err rc = OK;
    *n = left < PIECE ? (size_t)left : PIECE;
    if (f->done == 0) {
        bundle_file_name(file, name);
        rc = archive_out_member(f->archive, name, file->bytes, e);
    }
    if (!rc && *n)
        rc = fs_pread(f->spools[file->part >= PART_BLOB], "bundle spool", f->piece, *n,
                      file->at + f->done, e);
    if (!rc && *n)
        rc = archive_out_write(f->archive, f->piece, *n, e);
    f->done += *n;
    if (f->done < file->bytes)
        return rc;
    f->next++;
    f->done = 0;
    return rc;
}

/* fsync, rename, fsync of the folder. */
static enum err finish(struct bundle_file_out *f, struct error *e)
{
    char folder[FS_PATH_BYTES];
    const char *slash = strrchr(f->path, '/');
    struct stat sb;
    enum err rc =
        fs_path(folder, sizeof folder, e, "%.*s",
                slash ? (int)(slash - f->path) + (slash == f->path) : 1, slash ? f->path : ".");
    if (rc || (rc = archive_out_finish(f->archive, e)) || (rc = fs_sync(f->fd, f->path, e)))
        return rc;
    if (fstat(f->fd, &sb))
        return err_sys(e, errno, "stat %s", f->tmp);
    if (rename(f->tmp, f->path))
        return err_sys(e, errno, "rename %s", f->tmp);
    f->tmp[0] = '\0';
    f->bytes = (uint64_t)sb.st_size;
    return fs_sync_dir(folder, e);
}

enum err bundle_file_step(struct bundle_file_out *f, bool *done, struct error *e)
{
    enum err rc = OK;
    size_t n = 0;
    *done = false;
    for (uint64_t sum = 0; sum < STEP_BYTES && f->next < f->m->n_files && !rc; sum += n)
        rc = copy_piece(f, &n, e);
    if (rc || f->next < f->m->n_files)
        return rc;
    *done = true;
    return finish(f, e);
}

uint64_t bundle_file_bytes(const struct bundle_file_out *f)
{
    return f->bytes;
}
