/* What everybody needs around jansson: strict parsing with caps, and typed fields.
 *
 * Hold values as `json_auto_t *j` (jansson's own cleanup type). Field functions take the
 * object, the field's name and an out pointer: json_need_* for a field that must be there,
 * json_opt_* for one that may be absent or null (then *out stays as it was: set the default
 * first). All fail with ERR_FORMAT and a message that names the field: `"maxSteps": want an
 * integer 1..1000, is 0`. Strings and objects are borrowed from the parent. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* A value takes many times the memory of its text: a mark, each of , : [ { outside of strings,
 * stands for at most about 130 bytes. Who reads a stranger's text of many MB caps their number.
 */
struct json_limits {
    size_t max_bytes;
    uint32_t max_depth; /* arrays and objects inside each other, at most 1024 */
    bool allow_nul;     /* \u0000 inside strings */
    size_t max_marks;   /* 0: as many as there are bytes */
};

/* Parses one value, any type, which must be the whole of text[0, n). Refused, before anything
 * is allocated: more bytes, depth or marks than the limits (ERR_LIMIT); then duplicate keys,
 * invalid UTF-8, bytes behind the value, NUL (ERR_FORMAT with line and column). */
NODISCARD enum err json_parse(const char *text, size_t n, const struct json_limits *limits,
                              json_t **out, struct error *e);

/* Appends j in jansson's format (flags: JSON_COMPACT, JSON_SORT_KEYS, ...). ERR_LIMIT when the
 * buffer's maximum is reached; the buffer is then as it was. */
NODISCARD enum err json_write(const json_t *j, size_t flags, struct buf *out, struct error *e);

/* len_out may be NULL; then a string with a NUL inside is refused. */
NODISCARD enum err json_need_str(const json_t *o, const char *field, const char **out,
                                 size_t *len_out, struct error *e);
NODISCARD enum err json_opt_str(const json_t *o, const char *field, const char **out,
                                size_t *len_out, struct error *e);
/* An integer in min..max (1.0 is no integer). */
NODISCARD enum err json_need_int(const json_t *o, const char *field, int64_t min, int64_t max,
                                 int64_t *out, struct error *e);
NODISCARD enum err json_opt_int(const json_t *o, const char *field, int64_t min, int64_t max,
                                int64_t *out, struct error *e);
/* Any number in min..max. */
NODISCARD enum err json_need_num(const json_t *o, const char *field, double min, double max,
                                 double *out, struct error *e);
NODISCARD enum err json_opt_num(const json_t *o, const char *field, double min, double max,
                                double *out, struct error *e);
NODISCARD enum err json_need_bool(const json_t *o, const char *field, bool *out,
                                  struct error *e);
NODISCARD enum err json_opt_bool(const json_t *o, const char *field, bool *out,
                                 struct error *e);
/* One of `names` (NULL ends): its index. The message lists them. */
NODISCARD enum err json_need_enum(const json_t *o, const char *field, const char *const *names,
                                  int *out, struct error *e);
NODISCARD enum err json_opt_enum(const json_t *o, const char *field, const char *const *names,
                                 int *out, struct error *e);
NODISCARD enum err json_need_obj(const json_t *o, const char *field, json_t **out,
                                 struct error *e);
NODISCARD enum err json_opt_obj(const json_t *o, const char *field, json_t **out,
                                struct error *e);
NODISCARD enum err json_need_arr(const json_t *o, const char *field, json_t **out,
                                 struct error *e);
NODISCARD enum err json_opt_arr(const json_t *o, const char *field, json_t **out,
                                struct error *e);

#endif
