#include "engine/digest_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/auto.h"

/* ---- the file -----------------------------------------------------------------------------
 *
 * magic, then little-endian: device, inode, size, mtime, ctime (8 bytes each), digest of the
 * header, number of tensors (8), a digest each; then the digest of all that. */

#define MAGIC "agentd digests 1"
#define MAGIC_BYTES (sizeof(MAGIC) - 1)
#define HEAD_BYTES (MAGIC_BYTES + 5 * 8 + HASH_BYTES + 8)

static size_t put_u64(uint8_t *out, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(v >> 8 * i);
    return 8;
}

/* All that has to be as it was. */
static void put_head(const struct digest_key *key, uint8_t out[HEAD_BYTES])
{
    const struct fs_identity *f = &key->file;
    size_t n = MAGIC_BYTES;
    memcpy(out, MAGIC, MAGIC_BYTES);
    n += put_u64(out + n, f->dev);
    n += put_u64(out + n, f->ino);
    n += put_u64(out + n, f->n_bytes);
    n += put_u64(out + n, (uint64_t)f->mtime_ns);
    n += put_u64(out + n, (uint64_t)f->ctime_ns);
    memcpy(out + n, key->header, HASH_BYTES);
    put_u64(out + n + HASH_BYTES, key->n_tensors);
}

static size_t file_bytes(const struct digest_key *key)
{
    return HEAD_BYTES + (size_t)key->n_tensors * HASH_BYTES + HASH_BYTES;
}

enum err digest_cache_format(const struct digest_key *key, const uint8_t *digests,
                             struct buf *out, struct error *e)
{
    uint8_t head[HEAD_BYTES], check[HASH_BYTES];
    const size_t start = out->len;
    put_head(key, head);
    enum err rc = buf_add(out, head, sizeof(head), e);
    if (!rc)
        rc = buf_add(out, digests, (size_t)key->n_tensors * HASH_BYTES, e);
    if (rc)
        return rc;
    hash_bytes(NULL, out->data + start, out->len - start, check);
    return buf_add(out, check, sizeof(check), e);
}

enum err digest_cache_parse(const uint8_t *bytes, size_t n, const struct digest_key *key,
                            uint8_t *out, struct error *e)
{
    uint8_t head[HEAD_BYTES], check[HASH_BYTES];
    if (n < HEAD_BYTES + HASH_BYTES || memcmp(bytes, MAGIC, MAGIC_BYTES) != 0)
        return err_set(e, ERR_CORRUPT, "no digests of a shard");
    hash_bytes(NULL, bytes, n - HASH_BYTES, check);
    if (memcmp(bytes + n - HASH_BYTES, check, HASH_BYTES) != 0)
        return err_set(e, ERR_CORRUPT, "cut or damaged");
    put_head(key, head);
    if (n != file_bytes(key) || memcmp(bytes, head, HEAD_BYTES) != 0)
        return err_set(e, ERR_NOTFOUND, "of another state of the shard");
    if (key->n_tensors)
        memcpy(out, bytes + HEAD_BYTES, (size_t)key->n_tensors * HASH_BYTES);
    return OK;
}

/* ---- the folder ---------------------------------------------------------------------------
 */

static enum err file_path(const char *dir, const struct digest_key *key,
                          char out[FS_PATH_BYTES], struct error *e)
{
    return fs_path(out, FS_PATH_BYTES, e, "%s/%" PRIx64 "-%" PRIx64 ".digests", dir,
                   key->file.dev, key->file.ino);
}

enum err digest_cache_find(const char *dir, const struct digest_key *key, uint8_t *out,
                           struct error *e)
{
    AUTO(buf) struct buf file = BUF_INIT(file_bytes(key));
    char path[FS_PATH_BYTES];
    enum err rc = file_path(dir, key, path, e);
    if (rc)
        return rc;
    rc = fs_read_file(path, &file, e);
    if (rc == ERR_LIMIT) /* longer than digests of this shard are */
        return err_set(e, ERR_CORRUPT, "%s: over %zu bytes", path, file_bytes(key));
    if (!rc && (rc = digest_cache_parse(file.data, file.len, key, out, e)))
        err_wrap(e, rc, "%s", path);
    return rc;
}

/* With the folder full: the file that was written first goes. */
static enum err make_room(const char *dir, struct error *e)
{
    struct dirent *d;
    struct timespec first = {0};
    char oldest[sizeof(d->d_name)] = "", path[FS_PATH_BYTES];
    size_t n = 0;
    DIR *folder = opendir(dir);
    while (folder && (d = readdir(folder))) {
        struct stat st;
        if (fstatat(dirfd(folder), d->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
            continue;
        bool is_older =
            st.st_mtim.tv_sec < first.tv_sec ||
            (st.st_mtim.tv_sec == first.tv_sec && st.st_mtim.tv_nsec < first.tv_nsec);
        if (!n++ || is_older) {
            first = st.st_mtim;
            memcpy(oldest, d->d_name, sizeof(oldest));
        }
    }
    if (folder)
        closedir(folder);
    if (n < DIGEST_CACHE_MAX_FILES)
        return OK;
    enum err rc = fs_path(path, sizeof(path), e, "%s/%s", dir, oldest);
    if (!rc && (rc = fs_unlink(path, e)) == ERR_NOTFOUND) /* another process was faster */
        rc = OK;
    return rc;
}

enum err digest_cache_keep(const char *dir, const struct digest_key *key,
                           const uint8_t *digests, struct error *e)
{
    AUTO(buf) struct buf file = BUF_INIT(file_bytes(key));
    char path[FS_PATH_BYTES];
    enum err rc = file_path(dir, key, path, e);
    if (rc || (rc = digest_cache_format(key, digests, &file, e)) || (rc = fs_mkdir_p(dir, e)) ||
        (rc = make_room(dir, e)))
        return rc;
    return fs_write_atomic(path, file.data, file.len, 0600, e);
}
