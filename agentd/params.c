#include "agentd/params.h"

#include <string.h>

/* The value, or NULL when absent or null (then *rc says whether that is an error). */
static json_t *lookup(const json_t *params, const char *key, enum param_need need, enum err *rc,
                      struct error *e)
{
    json_t *v = json_object_get(params, key);

    *rc = OK;
    if (v && !json_is_null(v))
        return v;
    if (need == PARAM_REQUIRED)
        *rc = err_set(e, ERR_INVAL, "params.%s: missing", key);
    return NULL;
}

enum err param_string(const json_t *params, const char *key, enum param_need need,
                      size_t max_bytes, const char **out, struct error *e)
{
    enum err rc;
    json_t *v = lookup(params, key, need, &rc, e);

    if (!v)
        return rc;
    if (!json_is_string(v))
        return err_set(e, ERR_INVAL, "params.%s: must be a string", key);
    if (json_string_length(v) > max_bytes)
        return err_set(e, ERR_INVAL, "params.%s: %zu bytes, at most %zu", key,
                       json_string_length(v), max_bytes);
    *out = json_string_value(v);
    return OK;
}

enum err param_u64(const json_t *params, const char *key, enum param_need need, uint64_t min,
                   uint64_t max, uint64_t *out, struct error *e)
{
    enum err rc;
    json_t *v = lookup(params, key, need, &rc, e);

    if (!v)
        return rc;
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || (uint64_t)n < min || (uint64_t)n > max)
        return err_set(e, ERR_INVAL, "params.%s: must be an integer from %llu to %llu", key,
                       (unsigned long long)min, (unsigned long long)max);
    *out = (uint64_t)n;
    return OK;
}

enum err param_float(const json_t *params, const char *key, double min, double max, float *out,
                     struct error *e)
{
    enum err rc;
    json_t *v = lookup(params, key, PARAM_OPTIONAL, &rc, e);

    if (!v)
        return rc;
    double x = json_number_value(v);
    if (!json_is_number(v) || x < min || x > max)
        return err_set(e, ERR_INVAL, "params.%s: must be a number from %g to %g", key, min, max);
    *out = (float)x;
    return OK;
}

enum err param_bool(const json_t *params, const char *key, bool *out, struct error *e)
{
    enum err rc;
    json_t *v = lookup(params, key, PARAM_OPTIONAL, &rc, e);

    if (!v)
        return rc;
    if (!json_is_boolean(v))
        return err_set(e, ERR_INVAL, "params.%s: must be true or false", key);
    *out = json_is_true(v);
    return OK;
}

enum err param_array(const json_t *params, const char *key, enum param_need need,
                     size_t max_items, json_t **out, struct error *e)
{
    enum err rc;
    json_t *v = lookup(params, key, need, &rc, e);

    if (!v)
        return rc;
    if (!json_is_array(v))
        return err_set(e, ERR_INVAL, "params.%s: must be an array", key);
    if (json_array_size(v) > max_items)
        return err_set(e, ERR_INVAL, "params.%s: %zu entries, at most %zu", key,
                       json_array_size(v), max_items);
    *out = v;
    return OK;
}

enum err param_enum(const json_t *params, const char *key, const char *const *names, int *out,
                    struct error *e)
{
    const char *s = NULL;
    enum err rc = param_string(params, key, PARAM_OPTIONAL, 64, &s, e);

    if (rc || !s)
        return rc;
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], s) == 0) {
            *out = i;
            return OK;
        }
    return err_set(e, ERR_INVAL, "params.%s: unknown value \"%s\"", key, s);
}
