#include "engine/value_type.h"

#include <stdbool.h>
#include <string.h>

#define MAX_DEPTH 8 /* of anyOf in anyOf; below it anything goes */

static uint8_t type_named(const char *name)
{
    static const struct {
        const char *name;
        uint8_t type;
    } NAMES[] = {{"string", TYPE_STRING},   {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
                 {"boolean", TYPE_BOOLEAN}, {"null", TYPE_NULL},       {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}};
    for (size_t i = 0; name && i < sizeof(NAMES) / sizeof(*NAMES); i++)
        if (!strcmp(name, NAMES[i].name))
            return NAMES[i].type;
    return TYPE_ANY;
}

static uint8_t types_named(const json_t *type)
{
    const json_t *one;
    uint8_t all = 0;
    size_t i;
    if (!json_array_size(type))
        return type_named(json_string_value(type));
    json_array_foreach(type, i, one) {
        all |= type_named(json_string_value(one));
    }
    return all;
}

uint8_t value_type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return TYPE_FRACTION;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    }
    return TYPE_ANY;
}

size_t value_n_choices(const json_t *schema)
{
    return json_object_get(schema, "const") ? 1
                                            : json_array_size(json_object_get(schema, "enum"));
}

const json_t *value_choice(const json_t *schema, size_t i)
{
    const json_t *only = json_object_get(schema, "const");
    return only ? only : json_array_get(json_object_get(schema, "enum"), i);
}

static uint8_t types_of_choices(const json_t *schema)
{
    uint8_t all = 0;
    for (size_t i = 0; i < value_n_choices(schema); i++)
        all |= value_type_of(value_choice(schema, i));
    return all ? all : TYPE_ANY;
}

static uint8_t types_at(const json_t *schema, unsigned depth);

/* Of a list of schemas: those that any of them leaves, or those that all do. */
static uint8_t types_of_list(const json_t *list, bool all_of, unsigned depth)
{
    const json_t *one;
    uint8_t types = all_of ? TYPE_ANY : 0;
    size_t i;
    if (!json_array_size(list))
        return TYPE_ANY;
    json_array_foreach(list, i, one) {
        uint8_t t = types_at(one, depth + 1);
        types = all_of ? types & t : types | t;
    }
    return types;
}

/* May be empty. */
static uint8_t types_at(const json_t *schema, unsigned depth)
{
    if (!json_is_object(schema) || depth > MAX_DEPTH)
        return TYPE_ANY;
    uint8_t named = types_named(json_object_get(schema, "type"));
    if (json_is_true(json_object_get(schema, "nullable")))
        named |= TYPE_NULL;
    return named & types_of_choices(schema) &
           types_of_list(json_object_get(schema, "anyOf"), false, depth) &
           types_of_list(json_object_get(schema, "oneOf"), false, depth) &
           types_of_list(json_object_get(schema, "allOf"), true, depth);
}

uint8_t value_types(const json_t *schema)
{
    uint8_t types = types_at(schema, 0);
    return types ? types : TYPE_ANY;
}
