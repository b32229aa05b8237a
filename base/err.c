#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the UTF-8 sequence that s begins with, 0 if it is none (RFC 3629: no surrogates, no
 * longer form than needed). s ends in a 0, which is never a continuation byte. */
static size_t sequence(const unsigned char *s)
{
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] > 0xf4 || (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

/* Messages quote files, peers and models: what is not printable UTF-8 becomes '?', so that one
 * can go into JSON, a log line or a terminal as it is. */
static void make_printable(char *s)
{
    for (unsigned char *p = (unsigned char *)s; *p;) {
        size_t n = sequence(p);
        if (n == 0 || *p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] < 0xa0)) {
            size_t bad = n ? n : 1;
            memset(p, '?', bad);
            p += bad;
        } else {
            p += n;
        }
    }
}

static void fill(char *dst, size_t cap, const char *fmt, va_list ap)
{
    int n = vsnprintf(dst, cap, fmt, ap);
    if (n < 0)
        dst[0] = '\0';
    else if ((size_t)n >= cap && cap > 4)
        memcpy(dst + cap - 4, "...", 4);
    make_printable(dst);
}

enum err err_set(struct error *e, enum err code, const char *fmt, ...)
{
    if (!e)
        return code;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    e->sys = 0;
    fill(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return code;
}

static enum err code_of(int sys)
{
    switch (sys) {
    case ENOMEM:
        return ERR_NOMEM;
    case ENOSPC:
    case EDQUOT:
        return ERR_LIMIT;
    case EACCES:
    case EPERM:
        return ERR_DENIED;
    case ENOENT:
        return ERR_NOTFOUND;
    default:
        return ERR_IO;
    }
}

enum err err_sys(struct error *e, int sys, const char *fmt, ...)
{
    enum err code = code_of(sys);
    if (!e)
        return code;
    char what[ERR_MSG_BYTES], why[64];
    va_list ap;
    va_start(ap, fmt);
    fill(what, sizeof what, fmt, ap);
    va_end(ap);
    /* GNU strerror_r may return a constant string instead of filling the buffer. */
    const char *text = strerror_r(sys, why, sizeof why);
    err_set(e, code, "%s: %s", what, text);
    e->sys = sys;
    return code;
}

enum err err_wrap(struct error *e, enum err code, const char *fmt, ...)
{
    if (!e)
        return code;
    char context[ERR_MSG_BYTES], old[ERR_MSG_BYTES];
    va_list ap;
    va_start(ap, fmt);
    fill(context, sizeof context, fmt, ap);
    va_end(ap);
    memcpy(old, e->msg, sizeof old);
    int sys = e->sys;
    err_set(e, code, "%s: %s", context, old);
    e->sys = sys;
    return code;
}

const char *err_name(enum err code)
{
    static const char *const names[] = {
        [OK] = "ok",
        [ERR_NOMEM] = "nomem",
        [ERR_IO] = "io",
        [ERR_INVAL] = "invalid",
        [ERR_FORMAT] = "format",
        [ERR_CORRUPT] = "corrupt",
        [ERR_LIMIT] = "limit",
        [ERR_NOTFOUND] = "not_found",
        [ERR_CONFLICT] = "conflict",
        [ERR_BUSY] = "busy",
        [ERR_DENIED] = "denied",
        [ERR_UNSUPPORTED] = "unsupported",
        [ERR_CANCELLED] = "cancelled",
        [ERR_TIMEOUT] = "timeout",
        [ERR_CLOSED] = "closed",
        [ERR_GPU] = "gpu",
    };
    return (size_t)code < sizeof names / sizeof names[0] ? names[code] : "unknown";
}
