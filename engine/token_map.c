#include "engine/token_map.h"

#include <string.h>
#include <utf8proc.h>

#include "engine/unicode.h"

#define MAX_KEY_BYTES                                                                          \
    (1u << 20) /* of one token: at most 4096 bytes, which grow 18 times in NFKD */
#define MAX_KEYS_BYTES (1u << 30)
#define LONE_SPACE 0xe000 /* stands for a text of one space while white space is stripped */

/* ---- normal form --------------------------------------------------------------------------
 */

static bool is_mark(utf8proc_int32_t cp)
{
    utf8proc_category_t c = utf8proc_category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

static bool is_space(utf8proc_int32_t cp)
{
    return unicode_class((uint32_t)cp) & UNICODE_SPACE;
}

static bool folds(utf8proc_int32_t cp)
{
    return cp == ' ' || cp == '\t' || cp == '\r' || cp == '\n';
}

static enum err add_char(struct buf *out, utf8proc_int32_t cp, struct error *e)
{
    utf8proc_uint8_t utf8[4];
    return buf_add(out, utf8, (size_t)utf8proc_encode_char(cp, utf8), e);
}

/* Marks go, letters become small, runs of folding white space one space. In place; returns the
 * new length. */
static size_t fold(utf8proc_int32_t *cps, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_mark(cps[i]))
            continue;
        utf8proc_int32_t cp = folds(cps[i]) ? ' ' : utf8proc_tolower(cps[i]);
        if (cp != ' ' || !len || cps[len - 1] != ' ')
            cps[len++] = cp;
    }
    return len;
}

static enum err add_stripped(struct buf *out, utf8proc_int32_t *cps, size_t n, struct error *e)
{
    if (n == 1 && cps[0] == ' ')
        cps[0] = LONE_SPACE;
    while (n && is_space(cps[n - 1]))
        n--;
    size_t i = 0;
    while (i < n && is_space(cps[i]))
        i++;
    enum err rc = OK;
    for (; i < n && !rc; i++)
        rc = add_char(out, cps[i] == LONE_SPACE ? ' ' : cps[i], e);
    return rc;
}

/* NFKC followed by NFD is NFKD. */
enum err token_map_normalize(const void *text, size_t n, struct buf *out, struct error *e)
{
    const utf8proc_option_t nfkd = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
    if (!utf8_is_valid(text, n))
        return err_set(e, ERR_FORMAT, "token text is not UTF-8");
    utf8proc_ssize_t len = utf8proc_decompose(text, (utf8proc_ssize_t)n, NULL, 0, nfkd);
    if (len < 0)
        return err_set(e, ERR_FORMAT, "token text: %s", utf8proc_errmsg(len));
    AUTO_FREE utf8proc_int32_t *cps = calloc((size_t)len + 1, sizeof *cps);
    if (!cps)
        return err_set(e, ERR_NOMEM, "no memory for %zd characters", len);
    if (utf8proc_decompose(text, (utf8proc_ssize_t)n, cps, len, nfkd) != len)
        return err_set(e, ERR_FORMAT, "token text: no stable decomposition");
    return add_stripped(out, cps, fold(cps, (size_t)len), e);
}

/* ---- keys ---------------------------------------------------------------------------------
 */

struct key {
    size_t off, len; /* in keys.bytes */
    uint32_t number;
};

/* Distinct keys, numbered as they come. */
struct keys {
    struct buf bytes;
    struct key *slots; /* open addressing; number TOKEN_NONE: empty */
    size_t mask;
    uint32_t n;
};

static void keys_fini(struct keys *k)
{
    buf_fini(&k->bytes);
    free(k->slots);
}

static enum err keys_init(struct keys *k, uint32_t n_most, struct error *e)
{
    size_t n_slots = 64;
    while (n_slots < 2 * (size_t)n_most)
        n_slots *= 2;
    buf_init(&k->bytes, MAX_KEYS_BYTES);
    k->slots = calloc(n_slots, sizeof *k->slots);
    if (!k->slots)
        return err_set(e, ERR_NOMEM, "no memory for %u token keys", n_most);
    for (size_t i = 0; i < n_slots; i++)
        k->slots[i].number = TOKEN_NONE;
    k->mask = n_slots - 1;
    return OK;
}

static uint64_t fnv1a(const uint8_t *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return h ^ h >> 29;
}

/* The number of a key, a new one for a new key. */
static enum err keys_number(struct keys *k, const struct buf *key, uint32_t *out,
                            struct error *e)
{
    size_t i = fnv1a(key->data, key->len) & k->mask;
    for (; k->slots[i].number != TOKEN_NONE; i = (i + 1) & k->mask)
        if (k->slots[i].len == key->len &&
            !memcmp(buf_str(&k->bytes) + k->slots[i].off, buf_str(key), key->len)) {
            *out = k->slots[i].number;
            return OK;
        }
    struct key new = {k->bytes.len, key->len, k->n};
    enum err rc = buf_add(&k->bytes, key->data, key->len, e);
    if (rc)
        return rc;
    k->slots[i] = new;
    *out = k->n++;
    return OK;
}

/* What a token is told apart by. Bytes that are not text by themselves (and U+FFFD, which lossy
 * decoding makes of them) are told apart by their spelling in the vocabulary. */
static enum err make_key(const struct tokenizer *t, uint32_t id, struct buf *key,
                         struct error *e)
{
    size_t n = 0;
    const uint8_t *text = tokenizer_bytes(t, id, &n);
    buf_clear(key);
    if (!text)
        return OK;
    if (!utf8_is_valid(text, n) || memmem(text, n, "\xef\xbf\xbd", 3))
        return tokenizer_spelling(t, id, key, e);
    enum err rc = token_map_normalize(text, n, key, e);
    return rc || key->len ? rc : buf_add(key, text, n, e);
}

enum err token_map_build(const struct tokenizer *t, uint32_t *map, uint32_t n_ids,
                         uint32_t n_compressed, struct error *e)
{
    AUTO(keys) struct keys keys = {0};
    AUTO(buf) struct buf key = BUF_INIT(MAX_KEY_BYTES);
    enum err rc = keys_init(&keys, n_ids, e);
    for (uint32_t id = 0; id < n_ids && !rc; id++) {
        rc = make_key(t, id, &key, e);
        if (!rc)
            rc = keys_number(&keys, &key, &map[id], e);
        if (rc)
            return err_wrap(e, rc, "token %u", id);
    }
    if (!rc && keys.n != n_compressed)
        return err_set(
            e, ERR_FORMAT,
            "the tokenizer has %u compressed ids, engram_compressed_vocab_size is %u", keys.n,
            n_compressed);
    return rc;
}
