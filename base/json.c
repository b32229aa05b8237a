#include "base/json.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- parsing ---------------------------------------------------------------------------- */

/* Nesting and marks of brackets, commas and colons outside strings. Works on any bytes: whether
 * they are JSON is jansson's business. */
static void measure(const char *text, size_t n, uint32_t *deepest, size_t *n_marks)
{
    uint32_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        if (c == '[' || c == '{')
            depth++;
        else if ((c == ']' || c == '}') && depth > 0)
            depth--;
        *deepest = depth > *deepest ? depth : *deepest;
        *n_marks += c == '[' || c == '{' || c == ',' || c == ':';
    }
}

static enum err check_size(const char *text, size_t n, const struct json_limits *limits,
                           struct error *e)
{
    uint32_t depth = 0;
    size_t n_marks = 0;
    if (n > limits->max_bytes)
        return err_set(e, ERR_LIMIT, "JSON: %zu bytes, at most %zu", n, limits->max_bytes);
    measure(text, n, &depth, &n_marks);
    if (depth > limits->max_depth)
        return err_set(e, ERR_LIMIT, "JSON: nested deeper than %u", limits->max_depth);
    if (limits->max_marks && n_marks > limits->max_marks)
        return err_set(e, ERR_LIMIT, "JSON: %zu commas, colons and brackets, at most %zu",
                       n_marks, limits->max_marks);
    return OK;
}

enum err json_parse(const char *text, size_t n, const struct json_limits *limits, json_t **out,
                    struct error *e)
{
    enum err rc = check_size(text, n, limits, e);
    if (rc)
        return rc;
    /* jansson skips a NUL byte that follows a literal or a number; JSON has it nowhere. */
    const char *nul = memchr(text, 0, n);
    if (nul)
        return err_set(e, ERR_FORMAT, "JSON: a NUL byte at %zu", (size_t)(nul - text));
    size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
    if (limits->allow_nul)
        flags |= JSON_ALLOW_NUL;
    json_error_t why;
    json_t *j = json_loadb(text, n, flags, &why);
    /* Mostly jansson says nothing at all when memory is out. */
    if (!j && (!why.text[0] || json_error_code(&why) == json_error_out_of_memory))
        return err_set(e, ERR_NOMEM, "JSON: no memory for %zu bytes of text", n);
    if (!j)
        return err_set(e, ERR_FORMAT, "JSON: line %d column %d: %s", why.line, why.column,
                       why.text);
    *out = j;
    return OK;
}

/* ---- writing ---------------------------------------------------------------------------- */

struct write_to {
    struct buf *out;
    struct error *e;
    enum err rc;
};

static int write_piece(const char *bytes, size_t n, void *user)
{
    struct write_to *w = user;
    w->rc = buf_add(w->out, bytes, n, w->e);
    return w->rc ? -1 : 0;
}

enum err json_write(const json_t *j, size_t flags, struct buf *out, struct error *e)
{
    size_t before = out->len;
    struct write_to w = {out, e, OK};
    if (json_dump_callback(j, write_piece, &w, flags | JSON_ENCODE_ANY) == 0)
        return OK;
    if (out->data) {
        out->len = before;
        out->data[before] = 0;
    }
    return w.rc ? w.rc : err_set(e, ERR_NOMEM, "JSON: the value cannot be written");
}

/* ---- fields ----------------------------------------------------------------------------- */

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

static enum err wrong(const char *field, const char *want, const json_t *v, struct error *e)
{
    return err_set(e, ERR_FORMAT, "\"%s\": want %s, is %s", field, want, type_name(v));
}

/* The field's value: NULL with OK when it is absent or null and may be. */
static enum err find(const json_t *o, const char *field, bool need, const char *want,
                     json_t **out, struct error *e)
{
    if (!json_is_object(o))
        return err_set(e, ERR_FORMAT, "\"%s\": its parent is no object", field);
    json_t *v = json_object_get(o, field);
    *out = json_is_null(v) ? NULL : v;
    if (need && !v)
        return err_set(e, ERR_FORMAT, "\"%s\": missing, want %s", field, want);
    if (need && !*out)
        return wrong(field, want, v, e);
    return OK;
}

static enum err field_str(const json_t *o, const char *field, bool need, const char **out,
                          size_t *len_out, struct error *e)
{
    json_t *v;
    enum err rc = find(o, field, need, "a string", &v, e);
    if (rc || !v)
        return rc;
    if (!json_is_string(v))
        return wrong(field, "a string", v, e);
    const char *s = json_string_value(v);
    size_t len = json_string_length(v);
    if (!len_out && strlen(s) != len)
        return err_set(e, ERR_FORMAT, "\"%s\": a NUL inside the string", field);
    *out = s;
    if (len_out)
        *len_out = len;
    return OK;
}

enum err json_need_str(const json_t *o, const char *field, const char **out, size_t *len_out,
                       struct error *e)
{
    return field_str(o, field, true, out, len_out, e);
}

enum err json_opt_str(const json_t *o, const char *field, const char **out, size_t *len_out,
                      struct error *e)
{
    return field_str(o, field, false, out, len_out, e);
}

static enum err field_int(const json_t *o, const char *field, bool need, int64_t min,
                          int64_t max, int64_t *out, struct error *e)
{
    json_t *v;
    enum err rc = find(o, field, need, "an integer", &v, e);
    if (rc || !v)
        return rc;
    if (!json_is_integer(v))
        return wrong(field, "an integer", v, e);
    int64_t i = json_integer_value(v);
    if (i < min || i > max)
        return err_set(e, ERR_FORMAT, "\"%s\": want an integer %lld..%lld, is %lld", field,
                       (long long)min, (long long)max, (long long)i);
    *out = i;
    return OK;
}

enum err json_need_int(const json_t *o, const char *field, int64_t min, int64_t max,
                       int64_t *out, struct error *e)
{
    return field_int(o, field, true, min, max, out, e);
}

enum err json_opt_int(const json_t *o, const char *field, int64_t min, int64_t max,
                      int64_t *out, struct error *e)
{
    return field_int(o, field, false, min, max, out, e);
}

static enum err field_num(const json_t *o, const char *field, bool need, double min, double max,
                          double *out, struct error *e)
{
    json_t *v;
    enum err rc = find(o, field, need, "a number", &v, e);
    if (rc || !v)
        return rc;
    if (!json_is_number(v))
        return wrong(field, "a number", v, e);
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return err_set(e, ERR_FORMAT, "\"%s\": want a number %g..%g, is %g", field, min, max,
                       x);
    *out = x;
    return OK;
}

enum err json_need_num(const json_t *o, const char *field, double min, double max, double *out,
                       struct error *e)
{
    return field_num(o, field, true, min, max, out, e);
}

enum err json_opt_num(const json_t *o, const char *field, double min, double max, double *out,
                      struct error *e)
{
    return field_num(o, field, false, min, max, out, e);
}

static enum err field_bool(const json_t *o, const char *field, bool need, bool *out,
                           struct error *e)
{
    json_t *v;
    enum err rc = find(o, field, need, "a boolean", &v, e);
    if (rc || !v)
        return rc;
    if (!json_is_boolean(v))
        return wrong(field, "a boolean", v, e);
    *out = json_is_true(v);
    return OK;
}

enum err json_need_bool(const json_t *o, const char *field, bool *out, struct error *e)
{
    return field_bool(o, field, true, out, e);
}

enum err json_opt_bool(const json_t *o, const char *field, bool *out, struct error *e)
{
    return field_bool(o, field, false, out, e);
}

/* "one of a, b, c" for messages; cut when it does not fit. */
static const char *list_names(const char *const *names, char *dst, size_t cap)
{
    size_t n = (size_t)snprintf(dst, cap, "one of");
    for (size_t i = 0; names[i] && n < cap; i++)
        n += (size_t)snprintf(dst + n, cap - n, "%s %s", i ? "," : "", names[i]);
    return dst;
}

static enum err field_enum(const json_t *o, const char *field, bool need,
                           const char *const *names, int *out, struct error *e)
{
    char want[160];
    json_t *v;
    enum err rc = find(o, field, need, list_names(names, want, sizeof want), &v, e);
    if (rc || !v)
        return rc;
    if (!json_is_string(v))
        return wrong(field, want, v, e);
    const char *s = json_string_value(v);
    for (int i = 0; names[i]; i++) {
        if (strlen(names[i]) == json_string_length(v) && strcmp(names[i], s) == 0) {
            *out = i;
            return OK;
        }
    }
    return err_set(e, ERR_FORMAT, "\"%s\": want %s, is \"%.40s\"", field, want, s);
}

enum err json_need_enum(const json_t *o, const char *field, const char *const *names, int *out,
                        struct error *e)
{
    return field_enum(o, field, true, names, out, e);
}

enum err json_opt_enum(const json_t *o, const char *field, const char *const *names, int *out,
                       struct error *e)
{
    return field_enum(o, field, false, names, out, e);
}

static enum err field_tree(const json_t *o, const char *field, bool need, json_type type,
                           json_t **out, struct error *e)
{
    const char *want = type == JSON_OBJECT ? "an object" : "an array";
    json_t *v;
    enum err rc = find(o, field, need, want, &v, e);
    if (rc || !v)
        return rc;
    if (json_typeof(v) != type)
        return wrong(field, want, v, e);
    *out = v;
    return OK;
}

enum err json_need_obj(const json_t *o, const char *field, json_t **out, struct error *e)
{
    return field_tree(o, field, true, JSON_OBJECT, out, e);
}

enum err json_opt_obj(const json_t *o, const char *field, json_t **out, struct error *e)
{
    return field_tree(o, field, false, JSON_OBJECT, out, e);
}

enum err json_need_arr(const json_t *o, const char *field, json_t **out, struct error *e)
{
    return field_tree(o, field, true, JSON_ARRAY, out, e);
}

enum err json_opt_arr(const json_t *o, const char *field, json_t **out, struct error *e)
{
    return field_tree(o, field, false, JSON_ARRAY, out, e);
}
