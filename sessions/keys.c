#include "sessions/keys.h"

#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "sessions/le.h"

/* Offsets in a wrapped file; the plain checksum at its end tells a damaged file from a wrong
 * passphrase. */
#define COST_OPS 12
#define COST_MEM 16
#define SALT 24
#define NONCE 40
#define SEALED 64
#define SEALED_TAG 96
#define CHECKSUM 112
#define WRAPPED_BYTES 128

static const uint8_t magic[8] = {'A', 'G', 'D', 'K', 'E', 'Y', '1', '\n'};

static enum err check_passphrase(struct keys_passphrase p, struct error *e)
{
    if (p.n == 0 || p.n > KEYS_MAX_PASSPHRASE)
        return err_set(e, ERR_INVAL, "passphrase of %zu bytes: want 1 to %u", p.n,
                       KEYS_MAX_PASSPHRASE);
    return OK;
}

/* The key that wraps: everything in front of the nonce goes into it, so that none of it can be
 * changed. */
static enum err wrapping_key(const uint8_t *file, struct keys_passphrase pass,
                             uint8_t out[CRYPTO_KEY_BYTES], struct error *e)
{
    const struct crypto_cost cost = {le_take32(file + COST_OPS), le_take64(file + COST_MEM)};
    uint8_t stretched[CRYPTO_KEY_BYTES];
    enum err rc = crypto_stretch(pass.bytes, pass.n, file + SALT, cost, stretched, e);
    if (!rc)
        crypto_derive(stretched, "master key", file, NONCE, out);
    crypto_wipe(stretched, sizeof stretched);
    return rc;
}

static void checksum(const uint8_t *file, uint8_t out[HASH_TAG_BYTES])
{
    struct hash h;
    hash_init(&h, NULL, HASH_TAG_BYTES);
    hash_add(&h, file, CHECKSUM);
    hash_final(&h, out);
}

/* ---- writing ----------------------------------------------------------------------------- */

static enum err wrap(const uint8_t master[CRYPTO_KEY_BYTES], struct keys_passphrase pass,
                     struct crypto_cost cost, uint8_t file[WRAPPED_BYTES], struct error *e)
{
    struct crypto_extent x;
    memcpy(file, magic, sizeof magic);
    le_put32(file + 8, 1);
    le_put32(file + COST_OPS, cost.ops);
    le_put64(file + COST_MEM, cost.mem_bytes);
    crypto_random(file + SALT, CRYPTO_SALT_BYTES + CRYPTO_NONCE_BYTES);
    memcpy(x.nonce, file + NONCE, sizeof x.nonce);
    enum err rc = check_passphrase(pass, e);
    if (rc || (rc = wrapping_key(file, pass, x.key, e)))
        return rc;
    crypto_seal(&x, 0, master, CRYPTO_KEY_BYTES, file + SEALED, file + SEALED_TAG);
    checksum(file, file + CHECKSUM);
    crypto_wipe(&x, sizeof x);
    return OK;
}

static enum err write_key(const char *path, const uint8_t master[CRYPTO_KEY_BYTES],
                          struct keys_passphrase pass, struct crypto_cost cost, struct error *e)
{
    uint8_t file[WRAPPED_BYTES];
    if (!pass.bytes)
        return fs_write_atomic(path, master, CRYPTO_KEY_BYTES, 0600, e);
    enum err rc = wrap(master, pass, cost, file, e);
    return rc ? rc : fs_write_atomic(path, file, sizeof file, 0600, e);
}

enum err keys_make(const char *path, struct keys_passphrase pass, struct crypto_cost cost,
                   uint8_t master[CRYPTO_KEY_BYTES], struct error *e)
{
    uint8_t fresh[CRYPTO_KEY_BYTES];
    if (access(path, F_OK) == 0)
        return err_set(e, ERR_CONFLICT, "%s is there already", path);
    crypto_random(fresh, sizeof fresh);
    enum err rc = write_key(path, fresh, pass, cost, e);
    if (!rc)
        memcpy(master, fresh, sizeof fresh);
    crypto_wipe(fresh, sizeof fresh);
    return rc;
}

/* ---- reading ----------------------------------------------------------------------------- */

/* The file's bytes; *n is how many. ERR_CORRUPT: neither of the two forms. */
static enum err read_file(const char *path, uint8_t file[WRAPPED_BYTES], size_t *n,
                          struct error *e)
{
    AUTO(buf) struct buf b = BUF_INIT(WRAPPED_BYTES + 1);
    enum err rc = fs_read_file(path, &b, e);
    if (rc && rc != ERR_LIMIT)
        return rc;
    bool plain = b.len == CRYPTO_KEY_BYTES;
    bool wrapped = b.len == WRAPPED_BYTES && memcmp(b.data, magic, sizeof magic) == 0;
    if (!rc && (plain || wrapped)) {
        memcpy(file, b.data, b.len);
        *n = b.len;
    }
    crypto_wipe(b.data, b.len);
    if (rc || (!plain && !wrapped))
        return err_set(e, ERR_CORRUPT, "%s is no key file: %zu%s bytes, want %d or %d", path,
                       b.len, rc ? " or more" : "", CRYPTO_KEY_BYTES, WRAPPED_BYTES);
    return OK;
}

/* What a wrapped file says about itself, before any passphrase is tried. */
static enum err check_wrapped(const char *path, const uint8_t *file, struct error *e)
{
    uint8_t sum[HASH_TAG_BYTES];
    const struct crypto_cost least = CRYPTO_COST_MIN, most = CRYPTO_COST_MAX;
    uint32_t ops = le_take32(file + COST_OPS);
    uint64_t mem = le_take64(file + COST_MEM);
    checksum(file, sum);
    if (memcmp(sum, file + CHECKSUM, sizeof sum) != 0)
        return err_set(e, ERR_CORRUPT, "%s is damaged: its checksum does not match", path);
    if (le_take32(file + 8) != 1)
        return err_set(e, ERR_UNSUPPORTED, "%s: version %u, this build knows 1", path,
                       le_take32(file + 8));
    if (ops < least.ops || ops > most.ops || mem < least.mem_bytes || mem > most.mem_bytes)
        return err_set(e, ERR_CORRUPT,
                       "%s wants %u passes of Argon2id over %llu bytes: out of bounds", path,
                       ops, (unsigned long long)mem);
    return OK;
}

static enum err unwrap(const char *path, const uint8_t *file, struct keys_passphrase pass,
                       uint8_t master[CRYPTO_KEY_BYTES], struct error *e)
{
    struct crypto_extent x;
    enum err rc = check_wrapped(path, file, e);
    if (rc)
        return rc;
    if (!pass.bytes)
        return err_set(e, ERR_DENIED, "%s wants a passphrase", path);
    memcpy(x.nonce, file + NONCE, sizeof x.nonce);
    if ((rc = check_passphrase(pass, e)) || (rc = wrapping_key(file, pass, x.key, e)))
        return rc;
    if (crypto_open(&x, 0, file + SEALED, CRYPTO_KEY_BYTES, file + SEALED_TAG, master, NULL))
        rc = err_set(e, ERR_DENIED, "%s: wrong passphrase", path);
    crypto_wipe(&x, sizeof x);
    return rc;
}

enum err keys_read(const char *path, struct keys_passphrase pass,
                   uint8_t master[CRYPTO_KEY_BYTES], struct error *e)
{
    uint8_t file[WRAPPED_BYTES], key[CRYPTO_KEY_BYTES];
    size_t n;
    enum err rc = read_file(path, file, &n, e);
    if (rc)
        return rc;
    if (n == WRAPPED_BYTES)
        rc = unwrap(path, file, pass, key, e);
    else if (pass.bytes)
        rc = err_set(e, ERR_INVAL, "%s is not under a passphrase, and one was given", path);
    else
        memcpy(key, file, sizeof key);
    if (!rc)
        memcpy(master, key, sizeof key);
    crypto_wipe(file, sizeof file);
    crypto_wipe(key, sizeof key);
    return rc;
}

enum err keys_is_wrapped(const char *path, bool *out, struct crypto_cost *cost_out,
                         struct error *e)
{
    uint8_t file[WRAPPED_BYTES];
    size_t n;
    enum err rc = read_file(path, file, &n, e);
    if (rc || (n == WRAPPED_BYTES && (rc = check_wrapped(path, file, e))))
        return rc;
    *out = n == WRAPPED_BYTES;
    if (*out && cost_out)
        *cost_out =
            (struct crypto_cost){le_take32(file + COST_OPS), le_take64(file + COST_MEM)};
    crypto_wipe(file, sizeof file);
    return OK;
}

enum err keys_rewrap(const char *path, struct keys_passphrase old, struct keys_passphrase fresh,
                     struct crypto_cost cost, struct error *e)
{
    uint8_t master[CRYPTO_KEY_BYTES];
    enum err rc = keys_read(path, old, master, e);
    if (!rc)
        rc = write_key(path, master, fresh, cost, e);
    crypto_wipe(master, sizeof master);
    return rc;
}
