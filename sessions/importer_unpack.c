#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "sessions/db.h"
#include "sessions/importer.h"
#include "sessions/store_internal.h"

#define PIECE (256u << 10)

static enum err read_manifest(struct importer *x, struct archive_in *a, struct error *e)
{
    char name[ARCHIVE_NAME_CAP];
    uint64_t n;
    archive_in_allow(a, ARCHIVE_BLOCK);
    enum err rc = archive_in_member(a, name, &n, e);
    if (rc)
        return rc;
    if (strcmp(name, "manifest.json") != 0)
        return err_set(e, ERR_FORMAT, "bundle: begins with %.80s, not manifest.json", name);
    if (n == 0 || n > BUNDLE_MAX_MANIFEST)
        return err_set(e, ERR_FORMAT, "bundle: a manifest of %llu bytes",
                       (unsigned long long)n);
    AUTO_FREE char *text = malloc((size_t)n);
    if (!text)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    archive_in_allow(a, archive_member_bytes(n) - ARCHIVE_BLOCK);
    if ((rc = archive_in_read(a, text, (size_t)n, e)))
        return rc;
    return bundle_manifest_read(text, (size_t)n, &x->m, e);
}

/* One member into the spool; its hash has to be what the manifest says. */
static enum err unpack_member(struct importer *x, struct archive_in *a, struct bundle_file *f,
                              uint64_t at, uint8_t *piece, struct error *e)
{
    char name[ARCHIVE_NAME_CAP], want[ARCHIVE_NAME_CAP];
    uint64_t n;
    struct hash h;
    uint8_t hash[HASH_BYTES];
    archive_in_allow(a, archive_member_bytes(f->bytes));
    enum err rc = archive_in_member(a, name, &n, e);
    if (rc)
        return rc;
    bundle_file_name(f, want);
    if (strcmp(name, want) != 0 || n != f->bytes)
        return err_set(e, ERR_FORMAT,
                       "bundle: %.80s of %llu bytes stands where %s of %llu must", name,
                       (unsigned long long)n, want, (unsigned long long)f->bytes);
    f->at = at;
    hash_init(&h, NULL, HASH_BYTES);
    for (uint64_t done = 0; done < n && !rc;) {
        size_t k = n - done < PIECE ? (size_t)(n - done) : PIECE;
        if (!(rc = archive_in_read(a, piece, k, e)))
            rc = fs_pwrite(x->spool, "bundle spool", piece, k, at + done, e);
        hash_add(&h, piece, k);
        done += k;
    }
    hash_final(&h, hash);
    if (!rc && memcmp(hash, f->hash, sizeof hash) != 0)
        rc = err_set(e, ERR_FORMAT, "bundle: %s is not what its hash says", want);
    return rc;
}

static enum err unpack_all(struct importer *x, struct archive_in *a, struct error *e)
{
    AUTO_FREE uint8_t *piece = calloc(1, PIECE);
    if (!piece)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    enum err rc = read_manifest(x, a, e);
    if (rc)
        return rc;
    if (x->m.redacted)
        return err_set(
            e, ERR_FORMAT,
            "bundle: redacted, its tape is left out: it can be read, not gone on from");
    if ((rc = bundle_spool_open(sqlite3_db_filename(x->st->db.handle, "main"), &x->spool, e)))
        return rc;
    uint64_t at = 0;
    for (size_t i = 0; i < x->m.n_files && !rc; i++) {
        rc = unpack_member(x, a, &x->m.files[i], at, piece, e);
        at += x->m.files[i].bytes;
    }
    return rc ? rc : archive_in_finish(a, e);
}

enum err importer_unpack(struct importer *x, struct error *e)
{
    struct archive_in *a = NULL;
    AUTO_FD int fd = -1;
    enum err rc = fs_open_regular(x->o->path, O_RDONLY, &fd, e);
    if (rc || (rc = archive_in_open(fd, &a, e)))
        return rc;
    rc = unpack_all(x, a, e);
    archive_in_free(a);
    if (rc || !x->m.total)
        return rc;
    void *p = mmap(NULL, (size_t)x->m.total, PROT_READ, MAP_PRIVATE, x->spool, 0);
    if (p == MAP_FAILED)
        return err_sys(e, errno, "map bundle spool");
    x->bytes = p;
    return OK;
}

const char *importer_member(const struct importer *x, const struct bundle_file *f)
{
    return x->bytes ? (const char *)x->bytes + f->at : "";
}
