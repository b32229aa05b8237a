/* Typed reading of a request's `params`, shared by every method.
 *
 * Each function reads one key. An absent (or null) key leaves *out alone and is OK unless
 * `required`; a value of the wrong type or range is ERR_INVAL and names the key. Unknown keys are
 * nobody's business: they are ignored, as the protocol says. Strings are borrowed from params. */
#ifndef AGENTD_PARAMS_H
#define AGENTD_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/err.h"

enum param_need { PARAM_OPTIONAL, PARAM_REQUIRED };

NODISCARD enum err param_string(const json_t *params, const char *key, enum param_need need,
                                size_t max_bytes, const char **out, struct error *e);
NODISCARD enum err param_u64(const json_t *params, const char *key, enum param_need need,
                             uint64_t min, uint64_t max, uint64_t *out, struct error *e);
NODISCARD enum err param_float(const json_t *params, const char *key, double min, double max,
                               float *out, struct error *e);
NODISCARD enum err param_bool(const json_t *params, const char *key, bool *out,
                              struct error *e);
/* Array with at most max_items entries. */
NODISCARD enum err param_array(const json_t *params, const char *key, enum param_need need,
                               size_t max_items, json_t **out, struct error *e);
/* names: NULL-terminated; *out becomes the index of the value. */
NODISCARD enum err param_enum(const json_t *params, const char *key, const char *const *names,
                              int *out, struct error *e);

#endif
