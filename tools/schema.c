#include "tools/schema.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/auto.h"

#define PATH_BYTES 120
#define SNIPPET_BYTES 40

/* One check: how much work is left, and where in the value (or schema) it stands. */
struct check {
    uint32_t steps;
    char path[PATH_BYTES]; /* "arguments.files[3]"; cut when it does not fit */
    struct error *e;
};

enum type { T_NULL, T_BOOLEAN, T_INTEGER, T_NUMBER, T_STRING, T_ARRAY, T_OBJECT, N_TYPES };

static const char *const type_names[N_TYPES] = {
    [T_NULL] = "null",     [T_BOOLEAN] = "boolean", [T_INTEGER] = "integer",
    [T_NUMBER] = "number", [T_STRING] = "string",   [T_ARRAY] = "array",
    [T_OBJECT] = "object"};

/* jansson iterates objects through non-const pointers only. */
static json_t *iterable(const json_t *object)
{
    return (json_t *)(uintptr_t)object;
}

/* N_TYPES when it is none. */
static enum type type_of_name(const char *name)
{
    int i = 0;
    while (i < N_TYPES && strcmp(name, type_names[i]) != 0)
        i++;
    return (enum type)i;
}

static bool is_integral(const json_t *v)
{
    if (json_is_integer(v))
        return true;
    double d = json_real_value(v);
    return json_is_real(v) && d >= -9007199254740992.0 && d <= 9007199254740992.0 &&
           d == (double)(int64_t)d;
}

static bool has_type(const json_t *v, const char *name)
{
    switch (type_of_name(name)) {
    case T_NULL:
        return json_is_null(v);
    case T_BOOLEAN:
        return json_is_boolean(v);
    case T_INTEGER:
        return is_integral(v);
    case T_NUMBER:
        return json_is_number(v);
    case T_STRING:
        return json_is_string(v);
    case T_ARRAY:
        return json_is_array(v);
    case T_OBJECT:
        return json_is_object(v);
    case N_TYPES:
        break;
    }
    return false;
}

static const char *name_of_type(const json_t *v)
{
    for (int i = 0; i < N_TYPES; i++)
        if (has_type(v, type_names[i]) && !json_is_real(v))
            return type_names[i];
    return type_names[T_NUMBER];
}

/* A short, printable spelling of a value for a message: control bytes become '?', a cut is
 * marked, and UTF-8 is not cut inside a character. */
static const char *snippet(const json_t *v, char out[SNIPPET_BYTES + 8])
{
    AUTO_FREE char *text = NULL;
    if (!json_is_object(v) && !json_is_array(v))
        text = json_dumps(v, JSON_ENCODE_ANY);
    if (!text) {
        snprintf(out, SNIPPET_BYTES + 8, "%s", json_is_array(v) ? "[...]" : "{...}");
        return out;
    }
    size_t n = strlen(text);
    bool cut = n > SNIPPET_BYTES;
    if (cut)
        n = SNIPPET_BYTES;
    while (cut && n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7F ? '?' : text[i];
    memcpy(out + n, cut ? "..." : "", cut ? 4 : 1);
    return out;
}

/* Appends ".key" or "[i]" to the path; returns the old length for path_pop(). */
static size_t path_push(struct check *c, const char *key, size_t index)
{
    size_t len = strlen(c->path);
    if (key)
        snprintf(c->path + len, PATH_BYTES - len, ".%.40s", key);
    else
        snprintf(c->path + len, PATH_BYTES - len, "[%zu]", index);
    return len;
}

static void path_pop(struct check *c, size_t len)
{
    c->path[len] = '\0';
}

static enum err step(struct check *c, int depth)
{
    if (depth > SCHEMA_MAX_DEPTH)
        return err_set(c->e, ERR_LIMIT, "%s: nested deeper than %d", c->path, SCHEMA_MAX_DEPTH);
    if (c->steps == 0)
        return err_set(c->e, ERR_LIMIT, "%s: too large to check", c->path);
    c->steps--;
    return OK;
}

/* ---- a value against a schema ---- */

static enum err check_value(struct check *c, const json_t *schema, const json_t *v, int depth);

static enum err check_type(struct check *c, const json_t *type, const json_t *v)
{
    char want[96] = "", found[SNIPPET_BYTES + 8];
    if (json_is_string(type)) {
        if (has_type(v, json_string_value(type)))
            return OK;
        snprintf(want, sizeof want, "%s", json_string_value(type));
    } else if (json_is_array(type)) {
        size_t i, len = 0;
        json_t *one;
        json_array_foreach(type, i, one) {
            const char *name = json_string_value(one);
            if (!name)
                continue;
            if (has_type(v, name))
                return OK;
            if (len < sizeof want)
                len += (size_t)snprintf(want + len, sizeof want - len, "%s%s",
                                        len ? " or " : "", name);
        }
    } else {
        return OK;
    }
    return err_set(c->e, ERR_INVAL, "%s: got %s %s, want %.95s", c->path, name_of_type(v),
                   snippet(v, found), want);
}

static enum err check_enum(struct check *c, const json_t *values, const json_t *v)
{
    size_t i, len = 0;
    json_t *one;
    char want[128] = "", found[SNIPPET_BYTES + 8], item[SNIPPET_BYTES + 8];
    json_array_foreach(values, i, one) {
        if (c->steps == 0)
            return step(c, 0);
        c->steps--;
        if (json_equal(one, v))
            return OK;
        if (len < sizeof want)
            len += (size_t)snprintf(want + len, sizeof want - len, "%s%s", len ? ", " : "",
                                    snippet(one, item));
    }
    return err_set(c->e, ERR_INVAL, "%s: got %s, want one of %.127s", c->path,
                   snippet(v, found), want);
}

static enum err check_number(struct check *c, const json_t *schema, const json_t *v)
{
    static const struct {
        const char *key, *text;
        int sign;    /* +1: a lower bound */
        bool strict; /* the bound itself is out */
    } bounds[] = {{"minimum", "at least", 1, false},
                  {"exclusiveMinimum", "more than", 1, true},
                  {"maximum", "at most", -1, false},
                  {"exclusiveMaximum", "less than", -1, true}};
    double x = json_number_value(v);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        const json_t *bound = json_object_get(schema, bounds[i].key);
        if (!json_is_number(bound))
            continue;
        double d = (x - json_number_value(bound)) * bounds[i].sign;
        if (d > 0 || (d >= 0 && !bounds[i].strict))
            continue;
        return err_set(c->e, ERR_INVAL, "%s: got %.17g, want %s %.17g", c->path, x,
                       bounds[i].text, json_number_value(bound));
    }
    return OK;
}

/* A size against a minimum and a maximum keyword; `unit` in the plural. */
static enum err check_size(struct check *c, const json_t *schema, const char *min_key,
                           const char *max_key, size_t n, const char *unit)
{
    const json_t *min = json_object_get(schema, min_key);
    const json_t *max = json_object_get(schema, max_key);
    if (json_is_integer(min) && (json_int_t)n < json_integer_value(min))
        return err_set(c->e, ERR_INVAL, "%s: got %zu %s, want at least %lld", c->path, n, unit,
                       (long long)json_integer_value(min));
    if (json_is_integer(max) && (json_int_t)n > json_integer_value(max))
        return err_set(c->e, ERR_INVAL, "%s: got %zu %s, want at most %lld", c->path, n, unit,
                       (long long)json_integer_value(max));
    return OK;
}

static size_t code_points(const json_t *string)
{
    const char *s = json_string_value(string);
    size_t n = 0, len = json_string_length(string);
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

static enum err check_array(struct check *c, const json_t *schema, const json_t *v, int depth)
{
    enum err rc = check_size(c, schema, "minItems", "maxItems", json_array_size(v), "items");
    const json_t *items = json_object_get(schema, "items");
    if (rc || !json_is_object(items))
        return rc;
    size_t i;
    json_t *one;
    json_array_foreach(v, i, one) {
        size_t len = path_push(c, NULL, i);
        rc = check_value(c, items, one, depth + 1);
        if (rc)
            return rc;
        path_pop(c, len);
    }
    return OK;
}

static enum err check_required(struct check *c, const json_t *required, const json_t *v)
{
    size_t i;
    json_t *name;
    json_array_foreach(required, i, name) {
        enum err rc = step(c, 0);
        if (rc)
            return rc;
        if (json_is_string(name) && !json_object_get(v, json_string_value(name)))
            return err_set(c->e, ERR_INVAL, "%s: \"%.60s\" is missing", c->path,
                           json_string_value(name));
    }
    return OK;
}

/* The names of a schema's properties, for "there is no such parameter". */
static void property_names(const json_t *properties, char *out, size_t cap)
{
    size_t len = 0;
    const char *key;
    json_t *sub;
    out[0] = '\0';
    json_object_foreach(iterable(properties), key, sub) {
        if (len < cap)
            len += (size_t)snprintf(out + len, cap - len, "%s%.40s", len ? ", " : "", key);
    }
}

static enum err check_object(struct check *c, const json_t *schema, const json_t *v, int depth)
{
    enum err rc = check_required(c, json_object_get(schema, "required"), v);
    if (rc)
        return rc;
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *rest = json_object_get(schema, "additionalProperties");
    const char *key;
    json_t *member;
    json_object_foreach(iterable(v), key, member) {
        const json_t *sub = json_object_get(properties, key);
        if (!sub && json_is_false(rest)) {
            char names[120];
            property_names(properties, names, sizeof names);
            return err_set(c->e, ERR_INVAL, "%s: there is no \"%.40s\"; there is %s", c->path,
                           key, names[0] ? names : "nothing to pass");
        }
        size_t len = path_push(c, key, 0);
        rc = check_value(c, sub ? sub : rest, member, depth + 1);
        if (rc)
            return rc;
        path_pop(c, len);
    }
    return OK;
}

static enum err check_any_of(struct check *c, const json_t *any, const json_t *v, int depth)
{
    struct error first = {0};
    struct error *out = c->e;
    size_t i, len = strlen(c->path);
    json_t *one;
    json_array_foreach(any, i, one) {
        struct error now;
        c->e = &now;
        enum err rc = check_value(c, one, v, depth + 1);
        c->e = out;
        path_pop(c, len);
        if (rc == OK)
            return OK;
        if (rc == ERR_LIMIT || i == 0)
            first = now;
        if (rc == ERR_LIMIT)
            break;
    }
    if (i == 0 && !first.code)
        return OK;
    return err_set(c->e, first.code, "%s", first.msg);
}

static enum err check_value(struct check *c, const json_t *schema, const json_t *v, int depth)
{
    enum err rc = step(c, depth);
    if (rc)
        return rc;
    if (json_is_false(schema))
        return err_set(c->e, ERR_INVAL, "%s: is not allowed here", c->path);
    if (!json_is_object(schema))
        return OK;
    const json_t *k;
    if ((k = json_object_get(schema, "type")) && (rc = check_type(c, k, v)))
        return rc;
    if ((k = json_object_get(schema, "enum")) && (rc = check_enum(c, k, v)))
        return rc;
    if ((k = json_object_get(schema, "const")) && !json_equal(k, v)) {
        char want[SNIPPET_BYTES + 8], found[SNIPPET_BYTES + 8];
        return err_set(c->e, ERR_INVAL, "%s: got %s, want %s", c->path, snippet(v, found),
                       snippet(k, want));
    }
    if ((k = json_object_get(schema, "anyOf")) && json_is_array(k) &&
        (rc = check_any_of(c, k, v, depth)))
        return rc;
    if (json_is_number(v))
        return check_number(c, schema, v);
    if (json_is_string(v))
        return check_size(c, schema, "minLength", "maxLength", code_points(v), "characters");
    if (json_is_array(v))
        return check_array(c, schema, v, depth);
    if (json_is_object(v))
        return check_object(c, schema, v, depth);
    return OK;
}

/* json_equal() and json_dumps() recurse: nothing may reach them that is too deep. */
static bool too_deep(const json_t *v, int depth)
{
    if (depth > SCHEMA_MAX_DEPTH)
        return true;
    size_t i;
    const char *key;
    json_t *one;
    json_array_foreach(v, i, one) {
        if (too_deep(one, depth + 1))
            return true;
    }
    json_object_foreach(iterable(v), key, one) {
        if (too_deep(one, depth + 1))
            return true;
    }
    return false;
}

enum err schema_check(const json_t *schema, const json_t *value, struct error *e)
{
    struct check c = {.steps = SCHEMA_MAX_STEPS, .path = "arguments", .e = e};
    if (!value)
        return err_set(e, ERR_INVAL, "arguments: missing, want an object");
    if (too_deep(value, 0))
        return err_set(e, ERR_LIMIT, "arguments: nested deeper than %d", SCHEMA_MAX_DEPTH);
    return check_value(&c, schema, value, 0);
}

/* ---- a schema by itself ---- */

static enum err valid_schema(struct check *c, const json_t *s, int depth);

static enum err bad(struct check *c, const char *key, const char *want)
{
    return err_set(c->e, ERR_INVAL, "%s.%s: want %s", c->path, key, want);
}

static enum err valid_type(struct check *c, const json_t *type)
{
    if (json_is_string(type) && type_of_name(json_string_value(type)) < N_TYPES)
        return OK;
    if (!json_is_array(type) || json_array_size(type) == 0)
        return bad(c, "type", "a JSON type or a list of them");
    for (size_t i = 0; i < json_array_size(type); i++) {
        const json_t *one = json_array_get(type, i);
        if (!json_is_string(one) || type_of_name(json_string_value(one)) == N_TYPES)
            return bad(c, "type", "JSON types");
    }
    return OK;
}

static enum err valid_bounds(struct check *c, const json_t *s)
{
    static const char *const numbers[] = {"minimum", "maximum", "exclusiveMinimum",
                                          "exclusiveMaximum"};
    static const char *const counts[] = {"minLength", "maxLength", "minItems", "maxItems"};
    for (size_t i = 0; i < 4; i++) {
        const json_t *k = json_object_get(s, numbers[i]);
        if (k && !json_is_number(k))
            return bad(c, numbers[i], "a number");
        k = json_object_get(s, counts[i]);
        if (k && (!json_is_integer(k) || json_integer_value(k) < 0))
            return bad(c, counts[i], "a count");
    }
    return OK;
}

/* Every schema of an object (by key) or of an array (by index). */
static enum err valid_children(struct check *c, const json_t *list, int depth)
{
    enum err rc;
    for (size_t i = 0; i < json_array_size(list); i++) {
        size_t len = path_push(c, NULL, i);
        if ((rc = valid_schema(c, json_array_get(list, i), depth + 1)))
            return rc;
        path_pop(c, len);
    }
    const char *key;
    json_t *one;
    json_object_foreach(iterable(list), key, one) {
        size_t len = path_push(c, key, 0);
        if ((rc = valid_schema(c, one, depth + 1)))
            return rc;
        path_pop(c, len);
    }
    return OK;
}

static enum err valid_required(struct check *c, const json_t *required)
{
    if (!json_is_array(required))
        return bad(c, "required", "a list of names");
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_is_string(json_array_get(required, i)))
            return bad(c, "required", "a list of names");
    return OK;
}

static enum err valid_schema(struct check *c, const json_t *s, int depth)
{
    enum err rc = step(c, depth);
    if (rc)
        return rc;
    if (json_is_boolean(s))
        return OK;
    if (!json_is_object(s))
        return err_set(c->e, ERR_INVAL, "%s: want a schema (an object)", c->path);
    const json_t *k;
    if ((k = json_object_get(s, "type")) && (rc = valid_type(c, k)))
        return rc;
    if ((k = json_object_get(s, "enum")) && !json_is_array(k))
        return bad(c, "enum", "a list of values");
    if ((k = json_object_get(s, "required")) && (rc = valid_required(c, k)))
        return rc;
    if ((rc = valid_bounds(c, s)))
        return rc;
    if ((k = json_object_get(s, "properties"))) {
        if (!json_is_object(k))
            return bad(c, "properties", "an object of schemas");
        if ((rc = valid_children(c, k, depth)))
            return rc;
    }
    if ((k = json_object_get(s, "anyOf"))) {
        if (!json_is_array(k) || json_array_size(k) == 0)
            return bad(c, "anyOf", "a list of schemas");
        if ((rc = valid_children(c, k, depth)))
            return rc;
    }
    static const char *const one[] = {"items", "additionalProperties"};
    for (size_t i = 0; i < 2; i++) {
        if (!(k = json_object_get(s, one[i])))
            continue;
        size_t len = path_push(c, one[i], 0);
        if ((rc = valid_schema(c, k, depth + 1)))
            return rc;
        path_pop(c, len);
    }
    return OK;
}

enum err schema_valid(const json_t *schema, struct error *e)
{
    struct check c = {.steps = SCHEMA_MAX_STEPS, .path = "parameters", .e = e};
    if (!json_is_object(schema))
        return err_set(e, ERR_INVAL, "parameters: want a JSON Schema object");
    if (too_deep(schema, 0))
        return err_set(e, ERR_LIMIT, "parameters: nested deeper than %d", SCHEMA_MAX_DEPTH);
    size_t bytes = json_dumpb(schema, NULL, 0, JSON_COMPACT);
    if (bytes > SCHEMA_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "parameters: %zu bytes, at most %d", bytes,
                       SCHEMA_MAX_BYTES);
    const json_t *type = json_object_get(schema, "type");
    if (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0)
        return err_set(e, ERR_INVAL, "parameters.type: want \"object\"");
    return valid_schema(&c, schema, 0);
}
