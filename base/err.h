/* Errors: one small set of codes a caller can act on, and one message that says what and where.
 *
 * Every function that can fail returns `enum err` (0 is OK, must be checked) and takes a
 * `struct error *` as its last argument, which may be NULL. The place that fails fills it once
 * with err_set(); callers add context in front with err_wrap() and pass the code on. Nothing
 * here allocates. On failure a function leaves its outputs untouched.
 *
 *     enum err rc = cfg_load(&cfg, path, e);
 *     if (rc)
 *         return err_wrap(e, rc, "model %s", dir);
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NODISCARD __attribute__((warn_unused_result))

enum err {
    OK = 0,
    ERR_NOMEM,       /* an allocation failed; nothing changed */
    ERR_IO,          /* the operating system said no: see error.sys */
    ERR_INVAL,       /* the caller's argument or a user's input is wrong */
    ERR_FORMAT,      /* a file or a peer sent something that is not what it should be */
    ERR_CORRUPT,     /* a digest or tag does not match: the bytes cannot be trusted */
    ERR_LIMIT,       /* a cap or budget would be exceeded */
    ERR_NOTFOUND,    /* no such thing, or the name is ambiguous */
    ERR_CONFLICT,    /* it exists already, or its state does not allow this */
    ERR_BUSY,        /* somebody else holds it; try again */
    ERR_DENIED,      /* permission, approval or sandbox */
    ERR_UNSUPPORTED, /* well formed, but this build or machine cannot do it */
    ERR_CANCELLED,   /* the caller asked to stop */
    ERR_TIMEOUT,     /* a deadline passed */
    ERR_CLOSED,      /* the other side is gone, or the queue is closed */
    ERR_GPU          /* the device failed */
};

#define ERR_MSG_BYTES 240

struct error {
    enum err code;
    int sys; /* errno at the place of failure, or 0 */
    char msg[ERR_MSG_BYTES];
};

/* Fills e (which may be NULL) with code and a printf message; overwrites what was there.
 * Returns code. A message that does not fit is cut and ends in "...". Messages quote outside
 * bytes: control characters and what is not UTF-8 become '?', so a message is always printable
 * UTF-8.
 */
enum err err_set(struct error *e, enum err code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As err_set, with code ERR_IO (ERR_NOMEM for ENOMEM, ERR_LIMIT for ENOSPC and EDQUOT,
 * ERR_DENIED for EACCES and EPERM, ERR_NOTFOUND for ENOENT), error.sys = sys, and ": "
 * strerror(sys) behind. */
enum err err_sys(struct error *e, int sys, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " in front of the message that e holds already. Returns code unchanged. */
enum err err_wrap(struct error *e, enum err code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Short lower-case name of a code ("corrupt"), for logs and JSON `data.kind`. Never NULL. */
const char *err_name(enum err code);

#ifdef __cplusplus
}
#endif
#endif
