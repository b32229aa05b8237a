/* The log: one line per record, to stderr or to a file.
 *
 *     2026-11-30T13:00:45.123Z info  turn end session=01J... tokens=512 ms=93
 *
 * Write a few words, then key=value pairs. Control characters inside a record are written as
 * \n, \t or \xNN, so that a record is always one line whatever a model or a tool put into it. A
 * record is one write() of at most LOG_RECORD_BYTES; a longer one is cut and ends in "...".
 *
 * Only agentd, evals and examples log; everything below them returns errors. All functions may
 * be called from any thread. A failed write of a record is dropped: a full disk must not stop a
 * turn. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"

#define LOG_RECORD_BYTES 4096

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Records up to `level` go to the file `path` from now on (appended, made with mode 0600), or
 * to stderr when path is NULL. Before the first call: stderr, LOG_INFO. May be called again, to
 * reopen a rotated file. Errors: those of open(2); the old destination stays. */
NODISCARD enum err log_open(const char *path, enum log_level level, struct error *e);

/* Back to stderr; closes the file. */
void log_close(void);

/* "error", "warn", "info", "debug"; ERR_INVAL names what was given. */
NODISCARD enum err log_level_parse(const char *s, enum log_level *out, struct error *e);

/* Writes one record if its level is enabled. */
void log_write(enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

#endif
