#include "base/redact.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* The text, and how far it is read. A finder looks at `at` and, if a secret begins there or
 * behind a name that does, says where it lies. */
struct scan {
    const char *text;
    size_t n, at;
};

struct secret {
    size_t from, to;
};

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

static bool is_credential(char c)
{
    return is_word(c) || (c && strchr(".~+/=", c));
}

static bool starts(const struct scan *s, size_t at, const char *what)
{
    size_t n = strlen(what);
    return n <= s->n - at && strncasecmp(s->text + at, what, n) == 0;
}

static size_t run(const struct scan *s, size_t at, bool (*is)(char))
{
    while (at < s->n && is(s->text[at]))
        at++;
    return at;
}

/* ---- finders ----------------------------------------------------------------------------- */

static bool find_prefixed(const struct scan *s, struct secret *out)
{
    static const struct {
        const char *prefix;
        size_t least; /* bytes behind it */
    } known[] = {
        {"AKIA", 16},  {"ASIA", 16},    {"sk-", 20},   {"sk_live_", 16},    {"rk_live_", 16},
        {"ghp_", 20},  {"gho_", 20},    {"ghu_", 20},  {"ghs_", 20},        {"ghr_", 20},
        {"hf_", 20},   {"npm_", 20},    {"AIza", 30},  {"github_pat_", 20}, {"glpat-", 16},
        {"xoxb-", 10}, {"xoxp-", 10},   {"xoxa-", 10}, {"xoxr-", 10},       {"xoxs-", 10},
        {"ya29.", 16}, {"dop_v1_", 20},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i].prefix);
        if (n > s->n - s->at || memcmp(s->text + s->at, known[i].prefix, n) != 0)
            continue;
        size_t end = run(s, s->at + n, is_word);
        if (end - s->at - n < known[i].least)
            continue;
        *out = (struct secret){s->at, end};
        return true;
    }
    return false;
}

/* Three base64url parts, the first of which is a JSON object. */
static bool find_web_token(const struct scan *s, struct secret *out)
{
    if (!starts(s, s->at, "eyJ"))
        return false;
    size_t end = s->at;
    for (int part = 0; part < 3; part++) {
        size_t from = part ? end + 1 : end;
        if (part && (end >= s->n || s->text[end] != '.'))
            return false;
        end = run(s, from, is_word);
        if (end - from < 4)
            return false;
    }
    *out = (struct secret){s->at, end};
    return true;
}

static bool find_scheme(const struct scan *s, struct secret *out)
{
    size_t from = starts(s, s->at, "Bearer ") ? 7 : starts(s, s->at, "Basic ") ? 6 : 0;
    if (!from)
        return false;
    from += s->at;
    size_t end = run(s, from, is_credential);
    *out = (struct secret){from, end};
    return end - from >= 12;
}

static bool find_pem(const struct scan *s, struct secret *out)
{
    static const char begin[] = "-----BEGIN ", last[] = "PRIVATE KEY-----";
    if (!starts(s, s->at, begin))
        return false;
    const char *from = s->text + s->at;
    size_t label = s->n - s->at < 80 ? s->n - s->at : 80;
    const char *key = memmem(from, label, last, sizeof last - 1);
    if (!key)
        return false;
    /* One without an end was cut: all that is left belongs to it. */
    size_t end = s->n;
    const char *close = memmem(key, s->n - (size_t)(key - s->text), "-----END ", 9);
    if (close) {
        size_t rest = s->n - (size_t)(close - s->text);
        const char *tail = memmem(close + 9, rest - 9, "-----", 5);
        end = tail ? (size_t)(tail + 5 - s->text) : s->n;
    }
    *out = (struct secret){s->at, end};
    return true;
}

static bool ends_in_secret(const char *name, size_t n)
{
    static const char *const words[] = {"password",   "passwd",     "passphrase",  "secret",
                                        "token",      "api_key",    "api-key",     "apikey",
                                        "secret_key", "access_key", "private_key", "credential",
                                        "credentials"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t w = strlen(words[i]);
        if (w <= n && strncasecmp(name + n - w, words[i], w) == 0)
            return true;
    }
    return false;
}

bool redact_is_secret_name(const char *name)
{
    return ends_in_secret(name, strlen(name));
}

static bool is_quote(char c)
{
    return c == '"' || c == '\'' || c == '`';
}

/* Over one quote, which may be escaped as it is inside JSON. */
static size_t skip_quote(const struct scan *s, size_t at)
{
    size_t q = at;
    while (q < s->n && s->text[q] == '\\')
        q++;
    return q < s->n && is_quote(s->text[q]) ? q + 1 : at;
}

static size_t skip_blanks(const struct scan *s, size_t at)
{
    while (at < s->n && (s->text[at] == ' ' || s->text[at] == '\t'))
        at++;
    return at;
}

static bool is_value(char c)
{
    return (unsigned char)c > ' ' && !is_quote(c) && c != '\\' && c != ',' && c != ';' &&
           c != '}' && c != ')';
}

/* name = value, "name": "value", name: value */
static bool find_named(const struct scan *s, struct secret *out)
{
    size_t name = run(s, s->at, is_word);
    if (!ends_in_secret(s->text + s->at, name - s->at))
        return false;
    size_t at = skip_blanks(s, skip_quote(s, name));
    if (at >= s->n || (s->text[at] != '=' && s->text[at] != ':'))
        return false;
    at = skip_quote(s, skip_blanks(s, at + 1));
    size_t end = run(s, at, is_value);
    *out = (struct secret){at, end};
    return end - at >= 4;
}

/* scheme://user:password@ */
static bool find_url(const struct scan *s, struct secret *out)
{
    if (!starts(s, s->at, "://"))
        return false;
    size_t colon = 0;
    for (size_t i = s->at + 3; i < s->n && is_value(s->text[i]) && s->text[i] != '/'; i++) {
        if (s->text[i] == ':' && !colon)
            colon = i + 1;
        if (s->text[i] == '@') {
            *out = (struct secret){colon, i};
            return colon && i > colon;
        }
    }
    return false;
}

/* ---- the whole --------------------------------------------------------------------------- */

static bool find(const struct scan *s, struct secret *out)
{
    if (find_url(s, out) || find_pem(s, out))
        return true;
    /* The others begin a word; looking inside one would make this quadratic. */
    if (!is_word(s->text[s->at]) || (s->at && is_word(s->text[s->at - 1])))
        return false;
    return find_prefixed(s, out) || find_web_token(s, out) || find_scheme(s, out) ||
           find_named(s, out);
}

enum err redact_text(const char *text, size_t n, struct buf *out, uint64_t *n_found,
                     struct error *e)
{
    struct scan s = {.text = text, .n = n};
    size_t copied = 0;
    enum err rc = OK;
    while (s.at < n && !rc) {
        struct secret x;
        if (!find(&s, &x)) {
            s.at++;
            continue;
        }
        if ((rc = buf_add(out, text + copied, x.from - copied, e)) ||
            (rc = buf_add_str(out, REDACT_MARK, e)))
            return rc;
        copied = s.at = x.to;
        if (n_found)
            ++*n_found;
    }
    return rc || copied == n ? rc : buf_add(out, text + copied, n - copied, e);
}
