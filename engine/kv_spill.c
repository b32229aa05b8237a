#include "engine/kv_spill.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/aio.h"
#include "base/crypto.h"
#include "base/fs.h"

size_t kv_spill_page_bytes(size_t n)
{
    return (n + CRYPTO_TAG_BYTES + AIO_ALIGN - 1) / AIO_ALIGN * AIO_ALIGN;
}

size_t kv_spill_room(size_t page_bytes)
{
    return page_bytes - CRYPTO_TAG_BYTES;
}

static enum err open_file(struct kv_spill *s, const char *dir, struct error *e)
{
    char path[FS_PATH_BYTES];
    uint64_t name;
    crypto_random(&name, sizeof(name));
    enum err rc = fs_path(path, sizeof(path), e, "%s/kv-%016" PRIx64 ".spill", dir, name);
    if (rc || (rc = aio_open_file(path, O_RDWR | O_CREAT | O_EXCL, 0600, &s->fd, NULL, e)))
        return rc;
    if (unlink(path))
        return err_sys(e, errno, "unlink %s", path);
    return OK;
}

enum err kv_spill_init(struct kv_spill *s, const char *dir, size_t page_bytes, struct error *e)
{
    void *batch = NULL;
    *s = (struct kv_spill){.fd = -1, .page_bytes = page_bytes};
    if (!(s->key = crypto_secret_new(sizeof(*s->key))))
        return err_set(e, ERR_NOMEM, "key of the spill file");
    crypto_random(s->key, sizeof(*s->key));
    enum err rc = aio_buffer_new(KV_SPILL_BATCH * page_bytes, &batch, e);
    s->batch = batch;
    return rc ? rc : open_file(s, dir, e);
}

void kv_spill_fini(struct kv_spill *s)
{
    free(s->unused);
    aio_buffer_free(s->batch, KV_SPILL_BATCH * s->page_bytes);
    crypto_secret_free(s->key, sizeof(*s->key));
    if (s->fd >= 0)
        close(s->fd);
    *s = (struct kv_spill){.fd = -1};
}

void kv_spill_drop(struct kv_spill *s, const struct kv_page *list, size_t n)
{
    if (s->n_unused + n > s->cap_unused) {
        size_t cap = 2 * (s->n_unused + n);
        uint32_t *more = reallocarray(s->unused, cap, sizeof(*more));
        if (!more)
            return; /* these pages of the file are not used again */
        s->unused = more;
        s->cap_unused = cap;
    }
    for (size_t i = 0; i < n; i++)
        if (list[i].at != KV_PAGE_LATE)
            s->unused[s->n_unused++] = list[i].at;
}

static void seal_page(struct kv_spill *s, const uint8_t *rows, size_t n, uint8_t *dst,
                      uint64_t seal)
{
    memset(dst + n, 0, s->page_bytes - n);
    crypto_seal(s->key, seal, rows, n, dst, dst + s->page_bytes - CRYPTO_TAG_BYTES);
}

/* At most KV_SPILL_BATCH pages: neighbours in the file where it grows, else one by one. */
static enum err write_batch(struct kv_spill *s, const uint8_t *rows, size_t n_bytes, size_t n,
                            struct kv_page *out, struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < n; i++) {
        out[i].seal = s->n_seals++;
        out[i].at = s->n_unused ? s->unused[--s->n_unused] : (uint32_t)s->n_file++;
        seal_page(s, rows + i * n_bytes, n_bytes, s->batch + i * s->page_bytes, out[i].seal);
    }
    for (size_t i = 0, k; i < n && !rc; i = k) {
        for (k = i + 1; k < n && out[k].at == out[k - 1].at + 1;)
            k++;
        rc = fs_pwrite(s->fd, "spill of KV rows", s->batch + i * s->page_bytes,
                       (k - i) * s->page_bytes, out[i].at * (uint64_t)s->page_bytes, e);
    }
    if (rc)
        kv_spill_drop(s, out, n);
    return rc;
}

enum err kv_spill_write(struct kv_spill *s, const uint8_t *rows, size_t n_bytes, size_t n,
                        struct kv_page *out, struct error *e)
{
    if (n > KV_PAGE_LATE - s->n_file)
        return err_set(e, ERR_LIMIT, "spill of KV rows: %zu pages behind %zu", n, s->n_file);
    for (size_t done = 0, k; done < n; done += k) {
        k = n - done < KV_SPILL_BATCH ? n - done : KV_SPILL_BATCH;
        enum err rc = write_batch(s, rows + done * n_bytes, n_bytes, k, out + done, e);
        if (rc) {
            kv_spill_drop(s, out, done);
            return rc;
        }
    }
    return OK;
}

enum err kv_spill_open(const struct kv_spill *s, uint64_t seal, uint8_t *page, size_t n_bytes)
{
    const uint8_t *tag = page + s->page_bytes - CRYPTO_TAG_BYTES;
    return crypto_open(s->key, seal, page, n_bytes, tag, page, NULL);
}
