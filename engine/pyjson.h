/* JSON text as Python's json.dumps(x, ensure_ascii=False) writes it: ", " and ": ", keys in
 * their order, floats as the shortest digits that read back. Prompts depend on it byte for
 * byte. */
#ifndef ENGINE_PYJSON_H
#define ENGINE_PYJSON_H

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"

/* Appends v. Errors of buf_add; ERR_LIMIT for nesting over 200. */
NODISCARD enum err pyjson_dump(const json_t *v, struct buf *out, struct error *e);
/* Appends n bytes as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD. */
NODISCARD enum err pyjson_string(const void *bytes, size_t n, struct buf *out, struct error *e);
/* The same without quotes; n must not end inside a character that goes on. */
NODISCARD enum err pyjson_escape(const void *bytes, size_t n, struct buf *out, struct error *e);

/* Whether n bytes are exactly one JSON value, white space around it allowed: RFC 8259, UTF-8
 * checked, nesting at most 200, numbers of any size. */
bool pyjson_valid(const void *bytes, size_t n);

#endif
