/* tokenizer.json -> struct tokenizer. The bytes are an outsider's: every field is checked. */
#include <jansson.h>
#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "engine/pretokenizer.h"
#include "engine/tokenizer_internal.h"
#include "engine/unicode.h"

#define MAX_FILE_BYTES (64u << 20)
#define MAX_DEPTH 32
#define MAX_MARKS 4000000 /* of 130,000 tokens and as many merges there are 700,000 */

/* ---- refusing what would tokenise otherwise ------------------------------------------------
 */

static bool is_string(const json_t *v, const char *want)
{
    return json_is_string(v) && !strcmp(json_string_value(v), want);
}

static bool is_off(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v);
}

/* Equal but for line ends, which some files hold as characters and some as escapes. */
static bool pattern_equals(const char *have, const char *want)
{
    for (; *have; have++) {
        if (*have == '\r' || *have == '\n') {
            if (*want++ != '\\' || *want++ != (*have == '\r' ? 'r' : 'n'))
                return false;
        } else if (*have != *want++) {
            return false;
        }
    }
    return !*want;
}

static enum err check_split(const json_t *split, size_t i, struct error *e)
{
    const char *pattern =
        json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    if (!is_string(json_object_get(split, "type"), "Split") ||
        !is_string(json_object_get(split, "behavior"), "Isolated") ||
        !is_off(json_object_get(split, "invert")) || !pattern ||
        !pattern_equals(pattern, pretokenizer_patterns[i]))
        return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer %zu: want an isolated Split at %.60s",
                       i, pretokenizer_patterns[i]);
    return OK;
}

static enum err check_pretokenizer(const json_t *root, struct error *e)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (!is_string(json_object_get(pre, "type"), "Sequence") || json_array_size(list) != 4)
        return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer: want a Sequence of four");
    for (size_t i = 0; i < 3; i++) {
        enum err rc = check_split(json_array_get(list, i), i, e);
        if (rc)
            return rc;
    }
    const json_t *bytes = json_array_get(list, 3);
    if (!is_string(json_object_get(bytes, "type"), "ByteLevel") ||
        !is_off(json_object_get(bytes, "add_prefix_space")) ||
        !json_is_false(json_object_get(bytes, "use_regex")))
        return err_set(e, ERR_UNSUPPORTED,
                       "pre_tokenizer 3: want ByteLevel without prefix space and regex");
    return OK;
}

static enum err check_kind(const json_t *root, const json_t *model, struct error *e)
{
    const json_t *normalizer = json_object_get(root, "normalizer");
    const json_t *steps = json_object_get(normalizer, "normalizers");
    if (!is_off(normalizer) && !(json_is_array(steps) && !json_array_size(steps)))
        return err_set(e, ERR_UNSUPPORTED, "normalizer: want none");
    if (!is_string(json_object_get(model, "type"), "BPE"))
        return err_set(e, ERR_UNSUPPORTED, "model.type: want BPE");
    static const char *const off[] = {"dropout",
                                      "unk_token",
                                      "continuing_subword_prefix",
                                      "end_of_word_suffix",
                                      "fuse_unk",
                                      "byte_fallback",
                                      "ignore_merges"};
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        const json_t *v = json_object_get(model, off[i]);
        if (!is_off(v) && !is_string(v, ""))
            return err_set(e, ERR_UNSUPPORTED, "model.%s: want none", off[i]);
    }
    return check_pretokenizer(root, e);
}

/* ---- tokens -------------------------------------------------------------------------------
 */

static enum err read_id(const json_t *v, const char *what, uint32_t *id, struct error *e)
{
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0)
        return err_set(e, ERR_FORMAT, "%s: want an id", what);
    if (n >= TOKENIZER_MAX_ID)
        return err_set(e, ERR_LIMIT, "%s: %lld, at most %u", what, (long long)n,
                       TOKENIZER_MAX_ID - 1);
    *id = (uint32_t)n;
    return OK;
}

static enum err read_added_token(struct tokenizer *t, const json_t *v, size_t i,
                                 struct error *e)
{
    const json_t *content = json_object_get(v, "content");
    if (!json_is_string(content))
        return err_set(e, ERR_FORMAT, "added_tokens[%zu].content: want a string", i);
    static const char *const off[] = {"single_word", "lstrip", "rstrip"};
    for (size_t k = 0; k < sizeof off / sizeof off[0]; k++)
        if (!is_off(json_object_get(v, off[k])))
            return err_set(e, ERR_UNSUPPORTED, "added_tokens[%zu].%s: want false", i, off[k]);
    uint32_t id = 0;
    enum err rc = read_id(json_object_get(v, "id"), "added_tokens: id", &id, e);
    if (rc)
        return rc;
    return tokenizer_put(t, id, json_string_value(content), json_string_length(content), true,
                         e);
}

static enum err read_added(struct tokenizer *t, const json_t *root, struct error *e)
{
    const json_t *list = json_object_get(root, "added_tokens"), *v;
    if (list && !json_is_array(list))
        return err_set(e, ERR_FORMAT, "added_tokens: want an array");
    size_t i;
    json_array_foreach(list, i, v) {
        enum err rc = read_added_token(t, v, i, e);
        if (rc)
            return rc;
    }
    return OK;
}

/* Undoes the GPT-2 alphabet. Returns the number of bytes, or -1 for a character outside of it.
 */
static long unspell(const char *s, size_t n, uint8_t *out, size_t cap)
{
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        unsigned k = utf8_decode((const uint8_t *)s + i, n - i, &cp);
        int byte = k ? tokenizer_char_to_byte(cp) : -1;
        if (byte < 0 || len == cap)
            return -1;
        out[len++] = (uint8_t)byte;
        i += k;
    }
    return (long)len;
}

static bool is_same_added(const struct tokenizer *t, uint32_t id, const char *s, size_t n)
{
    size_t len;
    const uint8_t *bytes = tokenizer_is_added(t, id) ? tokenizer_bytes(t, id, &len) : NULL;
    return bytes && len == n && !memcmp(bytes, s, n);
}

static enum err read_vocab(struct tokenizer *t, json_t *vocab, struct error *e)
{
    const char *spelling;
    json_t *v;
    json_object_foreach(vocab, spelling, v) {
        uint32_t id = 0;
        enum err rc = read_id(v, "model.vocab", &id, e);
        if (rc)
            return rc;
        size_t n = strlen(spelling);
        if (is_same_added(t, id, spelling, n))
            continue;
        uint8_t bytes[TOKENIZER_MAX_TOKEN_BYTES];
        long len = unspell(spelling, n, bytes, sizeof bytes);
        if (len <= 0)
            return err_set(e, ERR_FORMAT, "model.vocab: token %u is not in the byte alphabet",
                           id);
        if ((rc = tokenizer_put(t, id, bytes, (size_t)len, false, e)))
            return err_wrap(e, rc, "model.vocab");
    }
    return OK;
}

/* ---- merges -------------------------------------------------------------------------------
 */

/* The two halves of a merge: "a b", or ["a", "b"] in newer files. Copies them, 0-terminated. */
static bool read_halves(const json_t *v, struct buf *left, struct buf *right)
{
    const char *a = json_string_value(v), *b;
    size_t a_len;
    if (a) {
        b = strchr(a, ' ');
        if (!b || strchr(b + 1, ' '))
            return false;
        a_len = (size_t)(b++ - a);
    } else {
        a = json_string_value(json_array_get(v, 0));
        b = json_string_value(json_array_get(v, 1));
        if (json_array_size(v) != 2 || !a || !b)
            return false;
        a_len = strlen(a);
    }
    buf_clear(left);
    buf_clear(right);
    return a_len && *b && !buf_add(left, a, a_len, NULL) && !buf_add_str(right, b, NULL);
}

/* A merge that made an added token would let plain text become a special id: refused. left and
 * right are scratch. */
static enum err read_merge(struct tokenizer *t, const json_t *vocab, const json_t *v,
                           uint32_t rank, struct buf *left, struct buf *right, struct error *e)
{
    if (!read_halves(v, left, right))
        return err_set(e, ERR_FORMAT, "model.merges[%u]: want two tokens", rank);
    const json_t *l = json_object_get(vocab, buf_str(left));
    const json_t *r = json_object_get(vocab, buf_str(right));
    enum err rc = buf_add(left, right->data, right->len, e);
    if (rc)
        return rc;
    const json_t *whole = json_object_get(vocab, buf_str(left));
    if (!l || !r || !whole)
        return err_set(e, ERR_FORMAT, "model.merges[%u]: %.40s or one of its parts is no token",
                       rank, buf_str(left));
    /* read_vocab has checked that every value is an id. */
    uint32_t id = (uint32_t)json_integer_value(whole);
    if (tokenizer_is_added(t, id))
        return err_set(e, ERR_FORMAT, "model.merges[%u]: makes the added token %u", rank, id);
    return bpe_add(&t->bpe, (uint32_t)json_integer_value(l), (uint32_t)json_integer_value(r),
                   rank, id, e);
}

static enum err read_merges(struct tokenizer *t, const json_t *vocab, const json_t *merges,
                            struct error *e)
{
    size_t n = json_array_size(merges), i;
    enum err rc = n > UINT32_MAX ? err_set(e, ERR_LIMIT, "%zu merges", n)
                                 : bpe_init(&t->bpe, (uint32_t)n, e);
    if (rc)
        return rc;
    AUTO(buf) struct buf left = BUF_INIT(8 * TOKENIZER_MAX_TOKEN_BYTES);
    AUTO(buf) struct buf right = BUF_INIT(4 * TOKENIZER_MAX_TOKEN_BYTES);
    json_t *v;
    json_array_foreach(merges, i, v) {
        if ((rc = read_merge(t, vocab, v, (uint32_t)i, &left, &right, e)))
            return rc;
    }
    return OK;
}

/* Every byte must be a token, or some text would have no ids. */
static enum err find_bytes(struct tokenizer *t, struct error *e)
{
    memset(t->bpe.byte_ids, 0xff, sizeof t->bpe.byte_ids);
    for (uint32_t id = 0; id < t->n_tokens; id++)
        if (t->tokens[id].exists && !t->tokens[id].is_added && t->tokens[id].len == 1)
            t->bpe.byte_ids[t->bytes.data[t->tokens[id].off]] = id;
    for (unsigned b = 0; b < 256; b++)
        if (t->bpe.byte_ids[b] == TOKEN_NONE)
            return err_set(e, ERR_FORMAT, "model.vocab: no token for byte 0x%02x", b);
    return OK;
}

/* ---- the file -----------------------------------------------------------------------------
 */

static enum err fill(struct tokenizer *t, const json_t *root, struct error *e)
{
    const json_t *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    if (!json_is_object(vocab) || !json_is_array(merges))
        return err_set(e, ERR_FORMAT, "model: want an object vocab and an array merges");
    enum err rc = check_kind(root, model, e);
    if (!rc)
        rc = read_added(t, root, e);
    if (!rc)
        rc = read_vocab(t, vocab, e);
    if (!rc)
        rc = find_bytes(t, e);
    if (!rc)
        rc = read_merges(t, vocab, merges, e);
    return rc ? rc : tokenizer_index_added(t, e);
}

enum err tokenizer_parse(struct tokenizer **out, const void *json, size_t n, struct error *e)
{
    static const struct json_limits limits = {
        .max_bytes = MAX_FILE_BYTES, .max_depth = MAX_DEPTH, .max_marks = MAX_MARKS};
    json_auto_t *root = NULL;
    enum err rc = json_parse(json, n, &limits, &root, e);
    if (rc)
        return rc;
    struct tokenizer *t = NULL;
    if ((rc = tokenizer_new(&t, e)))
        return rc;
    if ((rc = fill(t, root, e)))
        tokenizer_free(t);
    else
        *out = t;
    return rc;
}

enum err tokenizer_open(struct tokenizer **out, const char *dir, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/tokenizer.json", dir);
    if (rc)
        return rc;
    AUTO(buf) struct buf file = BUF_INIT(MAX_FILE_BYTES);
    if ((rc = fs_read_regular(path, &file, e)))
        return rc;
    rc = tokenizer_parse(out, buf_str(&file), file.len, e);
    return rc ? err_wrap(e, rc, "%s", path) : OK;
}
