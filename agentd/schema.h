/* What this build speaks on its socket, as one JSON Schema document: `agentctl schema`.
 *
 * The protocol is written down once, in schema_tables.c: a row per method and notification, in
 * the short notation that agentd/protocol.h uses too. A test holds real traffic against the
 * document that is made of them, so that a field that is sent and not written down fails.
 *
 * The notation:
 *
 *     {id, seq: uint, name?: string}   an object; a field without a type is a string, one
 *                                      with `?` may be absent
 *     [Item]   <number>                an array; an object of any names with such values
 *     chat|thinking   integer|null     one of these; a word that is no type is itself
 *     string integer uint number boolean object any null
 *     Item                             a capital: the type of that name
 *
 * Pure functions, any thread. */
#ifndef AGENTD_SCHEMA_H
#define AGENTD_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

/* A name with its notation and what it is for. Rows end with one whose name is NULL. */
struct schema_type {
    const char *name, *notation;
};
struct schema_method {
    const char *name, *params, *result, *what;
};
struct schema_notification {
    const char *name, *params, *what;
};
struct schema_code {
    int code;
    const char *what;
};

extern const struct schema_type schema_types[];
extern const struct schema_method schema_methods[];
extern const struct schema_notification schema_notifications[];
extern const struct schema_code schema_codes[]; /* ends with code 0 */

/* The JSON Schema of one notation; types of a name are references to #/$defs/NAME. ERR_INVAL
 * says where it cannot be read, ERR_NOMEM. */
NODISCARD enum err schema_read(const char *notation, json_t **out, struct error *e);

/* The document, draft 2020-12: a line of the socket, whichever side sends it, is valid against
 * it. Besides `$defs` it holds `methods` {NAME: {description, params, result}}, `notifications`
 * {NAME: {description, params}} and `errors` {codes, kinds}, for those who make code or
 * documentation from it. Objects are open: unknown fields are to be ignored. Errors as
 * schema_read. */
NODISCARD enum err schema_document(json_t **out, struct error *e);

#endif
