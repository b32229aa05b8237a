#include "agentd/passphrase.h"

#include <string.h>

#include "base/fs.h"

enum err passphrase_read(const char *path, struct buf *b, struct keys_passphrase *out,
                         struct error *e)
{
    if (!path) {
        *out = (struct keys_passphrase){0};
        return OK;
    }
    enum err rc = fs_read_file(path, b, e);
    if (rc && rc != ERR_LIMIT)
        return err_wrap(e, rc, "passphrase");
    const uint8_t *end = memchr(b->data, '\n', b->len);
    size_t n = end ? (size_t)(end - (const uint8_t *)b->data) : b->len;
    if (n && ((const uint8_t *)b->data)[n - 1] == '\r')
        n--;
    if (n == 0 || n > KEYS_MAX_PASSPHRASE || (rc && !end))
        return err_set(e, ERR_INVAL, "passphrase file %s: want a first line of 1 to %u bytes",
                       path, KEYS_MAX_PASSPHRASE);
    *out = (struct keys_passphrase){b->data, n};
    return OK;
}

void passphrase_wipe(struct buf *b)
{
    if (b->data)
        crypto_wipe(b->data, b->len);
    buf_fini(b);
}
