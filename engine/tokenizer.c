#include "engine/tokenizer.h"

#include <string.h>

#include "engine/chat.h"
#include "engine/pretokenizer.h"
#include "engine/tokenizer_internal.h"
#include "engine/unicode.h"

#define MAX_TOTAL_BYTES (256u << 20)

/* ---- life ---------------------------------------------------------------------------------
 */

enum err tokenizer_new(struct tokenizer **out, struct error *e)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for a tokenizer");
    buf_init(&t->bytes, MAX_TOTAL_BYTES);
    enum err rc = token_cache_new(&t->cache, TOKEN_CACHE_BYTES, e);
    if (rc)
        free(t);
    else
        *out = t;
    return rc;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    buf_fini(&t->bytes);
    bpe_fini(&t->bpe);
    token_cache_free(t->cache);
    free(t->tokens);
    free(t->added);
    free(t);
}

enum err tokenizer_set_cache(struct tokenizer *t, size_t budget_bytes, struct error *e)
{
    struct token_cache *cache = NULL;
    enum err rc = budget_bytes ? token_cache_new(&cache, budget_bytes, e) : OK;
    if (rc)
        return rc;
    token_cache_free(t->cache);
    t->cache = cache;
    return OK;
}

struct token_cache_use tokenizer_cache_use(const struct tokenizer *t)
{
    return t->cache ? token_cache_use(t->cache) : (struct token_cache_use){0};
}

static enum err grow_tokens(struct tokenizer *t, uint32_t id, struct error *e)
{
    if (id < t->token_cap)
        return OK;
    uint32_t cap = t->token_cap ? t->token_cap : 512;
    while (cap <= id)
        cap *= 2;
    struct token *tokens = reallocarray(t->tokens, cap, sizeof *tokens);
    if (!tokens)
        return err_set(e, ERR_NOMEM, "no memory for %u tokens", cap);
    memset(tokens + t->token_cap, 0, (cap - t->token_cap) * sizeof *tokens);
    t->tokens = tokens;
    t->token_cap = cap;
    return OK;
}

static bool is_text(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] < 0x20 || bytes[i] == '"' || bytes[i] == '\\')
            return false;
    return utf8_is_valid(bytes, n);
}

enum err tokenizer_put(struct tokenizer *t, uint32_t id, const void *bytes, size_t n,
                       bool is_added, struct error *e)
{
    if (id >= TOKENIZER_MAX_ID)
        return err_set(e, ERR_LIMIT, "token id %u, at most %u", id, TOKENIZER_MAX_ID - 1);
    if (n > TOKENIZER_MAX_TOKEN_BYTES)
        return err_set(e, ERR_LIMIT, "token %u: %zu bytes, at most %u", id, n,
                       TOKENIZER_MAX_TOKEN_BYTES);
    enum err rc = grow_tokens(t, id, e);
    if (rc)
        return rc;
    if (t->tokens[id].exists)
        return err_set(e, ERR_FORMAT, "token id %u is given twice", id);
    uint32_t off = (uint32_t)t->bytes.len;
    if ((rc = buf_add(&t->bytes, bytes, n, e)))
        return rc;
    t->tokens[id] =
        (struct token){off, (uint16_t)n, true, is_added, !is_added && is_text(bytes, n)};
    if (id >= t->n_tokens)
        t->n_tokens = id + 1;
    t->n_added += is_added;
    return OK;
}

static int compare_added(const void *a, const void *b, void *tokenizer)
{
    const struct tokenizer *t = tokenizer;
    const struct token *x = &t->tokens[*(const uint32_t *)a],
                       *y = &t->tokens[*(const uint32_t *)b];
    int order = memcmp(t->bytes.data + x->off, t->bytes.data + y->off,
                       x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

enum err tokenizer_index_added(struct tokenizer *t, struct error *e)
{
    t->added = calloc(t->n_added ? t->n_added : 1, sizeof *t->added);
    if (!t->added)
        return err_set(e, ERR_NOMEM, "no memory for %u added tokens", t->n_added);
    uint32_t n = 0;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        if (!t->tokens[id].is_added)
            continue;
        if (!t->tokens[id].len)
            return err_set(e, ERR_FORMAT, "added token %u is empty", id);
        t->added[n++] = id;
    }
    qsort_r(t->added, n, sizeof *t->added, compare_added, t);
    for (uint32_t i = 1; i < n; i++)
        if (!compare_added(&t->added[i - 1], &t->added[i], t))
            return err_set(e, ERR_FORMAT, "added tokens %u and %u have the same text",
                           t->added[i - 1], t->added[i]);
    return OK;
}

enum err tokenizer_new_bytes(struct tokenizer **out, struct error *e)
{
    struct tokenizer *t = NULL;
    enum err rc = tokenizer_new(&t, e);
    if (rc)
        return rc;
    for (uint32_t b = 0; b < 256 && !rc; b++) {
        uint8_t byte = (uint8_t)b;
        t->bpe.byte_ids[b] = b;
        rc = tokenizer_put(t, b, &byte, 1, false, e);
    }
    for (uint32_t i = 0; chat_special_texts[i] && !rc; i++)
        rc = tokenizer_put(t, 256 + i, chat_special_texts[i], strlen(chat_special_texts[i]),
                           true, e);
    if (!rc)
        rc = bpe_init(&t->bpe, 0, e);
    if (!rc)
        rc = tokenizer_index_added(t, e);
    if (rc)
        tokenizer_free(t);
    else
        *out = t;
    return rc;
}

/* ---- alphabet -----------------------------------------------------------------------------
 */

/* Bytes that print stand for themselves; the others for U+0100 and up, in order. */
static bool prints(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

uint32_t tokenizer_byte_to_char(uint8_t byte)
{
    if (prints(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xad ? 0x143u : 0x100u + byte - 0x7f + 0x21;
}

int tokenizer_char_to_byte(uint32_t cp)
{
    if (cp < 0x100)
        return prints(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp < 0x143)
        return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}

/* ---- lookups ------------------------------------------------------------------------------
 */

uint32_t tokenizer_size(const struct tokenizer *t)
{
    return t->n_tokens;
}

const uint8_t *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *n)
{
    if (id >= t->n_tokens || !t->tokens[id].exists)
        return NULL;
    *n = t->tokens[id].len;
    return t->bytes.data + t->tokens[id].off;
}

bool tokenizer_is_added(const struct tokenizer *t, uint32_t id)
{
    return id < t->n_tokens && t->tokens[id].is_added;
}

bool tokenizer_is_text(const struct tokenizer *t, uint32_t id)
{
    return id < t->n_tokens && t->tokens[id].is_text;
}

enum err tokenizer_spelling(const struct tokenizer *t, uint32_t id, struct buf *out,
                            struct error *e)
{
    size_t n, before = out->len;
    const uint8_t *bytes = tokenizer_bytes(t, id, &n);
    if (!bytes)
        return err_set(e, ERR_INVAL, "no token has the id %u", id);
    if (tokenizer_is_added(t, id))
        return buf_add(out, bytes, n, e);
    enum err rc = OK;
    for (size_t i = 0; i < n && !rc; i++) {
        uint32_t cp = tokenizer_byte_to_char(bytes[i]); /* below U+0800: at most two bytes */
        uint8_t two[2] = {(uint8_t)(0xc0 | cp >> 6), (uint8_t)(0x80 | (cp & 0x3f))};
        rc = cp < 0x80 ? buf_add_byte(out, (uint8_t)cp, e) : buf_add(out, two, 2, e);
    }
    if (rc)
        out->len = before;
    return rc;
}

/* The longest added token that text begins with, or TOKEN_NONE. Each further byte narrows the
 * sorted list to those that go on with it; the first of them is the one that ends here, if any.
 */
static uint32_t match_added(const struct tokenizer *t, const uint8_t *text, size_t n,
                            size_t *len)
{
    uint32_t lo = 0, hi = t->n_added, best = TOKEN_NONE;
    for (size_t k = 0; lo < hi; k++) {
        const struct token *first = &t->tokens[t->added[lo]];
        if (first->len == k) {
            best = t->added[lo++];
            *len = k;
        }
        if (k == n)
            break;
        uint32_t from = lo, to = hi; /* the first whose byte k is not below text[k] */
        while (from < to) {
            uint32_t mid = from + (to - from) / 2;
            if (t->bytes.data[t->tokens[t->added[mid]].off + k] < text[k])
                from = mid + 1;
            else
                to = mid;
        }
        lo = from;
        to = hi; /* and the first whose byte k is above */
        while (from < to) {
            uint32_t mid = from + (to - from) / 2;
            if (t->bytes.data[t->tokens[t->added[mid]].off + k] <= text[k])
                from = mid + 1;
            else
                to = mid;
        }
        hi = from;
    }
    return best;
}

uint32_t tokenizer_added(const struct tokenizer *t, const char *text)
{
    size_t n = strlen(text), len = 0;
    uint32_t id = match_added(t, (const uint8_t *)text, n, &len);
    return len == n ? id : TOKEN_NONE;
}

/* ---- encoding and decoding ----------------------------------------------------------------
 */

static enum err encode_pieces(const struct tokenizer *t, struct bpe_scratch *s,
                              const uint8_t *bytes, size_t n, struct ids *out, struct error *e)
{
    struct pretokenizer p = pretokenizer_start(bytes, n);
    const uint8_t *piece;
    enum err rc = OK;
    for (size_t len; !rc && (len = pretokenizer_next(&p, &piece));)
        rc = bpe_encode(&t->bpe, s, piece, len, out, e);
    return rc;
}

static enum err encode_chunk(const struct tokenizer *t, struct bpe_scratch *s,
                             const uint8_t *bytes, size_t n, uint64_t hash, struct ids *out,
                             struct error *e)
{
    size_t before = out->n;
    bool found;
    enum err rc = token_cache_find(t->cache, hash, bytes, n, out, &found, e);
    if (rc || found)
        return rc;
    if ((rc = encode_pieces(t, s, bytes, n, out, e)))
        return rc;
    return token_cache_put(t->cache, hash, bytes, n, out->v + before, out->n - before, e);
}

/* Chunk after chunk. Of a text that is not complete (is_open) only those that end at a cut.
 * *done is how many bytes they are. */
static enum err encode_chunks(const struct tokenizer *t, struct bpe_scratch *s,
                              const uint8_t *bytes, size_t n, bool is_open, size_t *done,
                              struct ids *out, struct error *e)
{
    enum err rc = OK;
    *done = 0;
    while (t->cache && *done < n && !rc) {
        uint64_t hash;
        bool is_whole;
        size_t len = token_cache_cut(bytes + *done, n - *done, &hash, &is_whole);
        if (is_open && !is_whole)
            break;
        rc = encode_chunk(t, s, bytes + *done, len, hash, out, e);
        *done += len;
    }
    return rc;
}

static enum err encode_plain(const struct tokenizer *t, struct bpe_scratch *s,
                             const uint8_t *bytes, size_t n, struct ids *out, struct error *e)
{
    size_t done;
    enum err rc = encode_chunks(t, s, bytes, n, false, &done, out, e);
    return rc || done == n ? rc : encode_pieces(t, s, bytes + done, n - done, out, e);
}

static enum err encode_special(const struct tokenizer *t, struct bpe_scratch *s,
                               const uint8_t *bytes, size_t n, struct ids *out, struct error *e)
{
    size_t plain = 0;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        uint32_t id = match_added(t, bytes + i, n - i, &len);
        if (id == TOKEN_NONE) {
            i++;
            continue;
        }
        enum err rc = encode_plain(t, s, bytes + plain, i - plain, out, e);
        if (!rc)
            rc = ids_add(out, id, e);
        if (rc)
            return rc;
        plain = i += len;
    }
    return encode_plain(t, s, bytes + plain, n - plain, out, e);
}

enum err tokenizer_encode(const struct tokenizer *t, const void *bytes, size_t n,
                          struct ids *out, struct error *e)
{
    AUTO(bpe_scratch) struct bpe_scratch s = {0};
    size_t before = out->n;
    enum err rc = encode_plain(t, &s, bytes, n, out, e);
    if (rc)
        out->n = before;
    return rc;
}

/* Where the last character begins that is not white space; 0 when there is none. */
static size_t last_mark(const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        size_t at = n - 1;
        uint32_t cp = 0;
        for (size_t back = 1; back <= 4 && back <= n; back++)
            if (utf8_decode(bytes + n - back, back, &cp) == back) {
                at = n - back;
                break;
            }
        if (at == n - 1 && utf8_decode(bytes + at, 1, &cp) == 0)
            return at; /* not UTF-8: no white space */
        if (!(unicode_class(cp) & UNICODE_SPACE))
            return at;
        n = at;
    }
    return 0;
}

/* To find a piece's end the pre-tokenizer looks at the white space behind it, if any, and at
 * the one character after that, and no further. So what comes later changes no piece that ends
 * before or at the last whole character that is not white space. */
enum err tokenizer_encode_open(const struct tokenizer *t, const void *bytes, size_t n,
                               struct ids *out, size_t *used, struct error *e)
{
    AUTO(bpe_scratch) struct bpe_scratch s = {0};
    size_t before = out->n, known = n - utf8_open_tail(bytes, n), done;
    size_t sure = last_mark(bytes, known);
    const uint8_t *text = bytes, *piece;
    enum err rc = encode_chunks(t, &s, text, known, true, &done, out, e);
    struct pretokenizer p = pretokenizer_start(text + done, known - done);
    for (size_t len; !rc && (len = pretokenizer_next(&p, &piece)) && done + len <= sure;
         done += len)
        rc = bpe_encode(&t->bpe, &s, piece, len, out, e);
    if (rc) {
        out->n = before;
        return rc;
    }
    *used = done;
    return OK;
}

enum err tokenizer_encode_special(const struct tokenizer *t, const void *bytes, size_t n,
                                  struct ids *out, struct error *e)
{
    AUTO(bpe_scratch) struct bpe_scratch s = {0};
    size_t before = out->n;
    enum err rc = !n ? OK : encode_special(t, &s, bytes, n, out, e);
    if (rc)
        out->n = before;
    return rc;
}

enum err tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n,
                          struct buf *out, struct error *e)
{
    size_t before = out->len;
    enum err rc = OK;
    for (size_t i = 0; i < n && !rc; i++) {
        size_t len;
        const uint8_t *bytes = tokenizer_bytes(t, ids[i], &len);
        rc = bytes ? buf_add(out, bytes, len, e)
                   : err_set(e, ERR_INVAL, "id %u (number %zu): no token has it", ids[i], i);
    }
    if (rc)
        out->len = before;
    return rc;
}
