/* What the JSON Schema of a tool's parameter lets a value be, as far as one can tell from the
 * outside: its type, and its text where only a few values are allowed. Private to engine/. */
#ifndef ENGINE_VALUE_TYPE_H
#define ENGINE_VALUE_TYPE_H

#include <jansson.h>
#include <stdint.h>

/* Bits of a set. */
enum value_type {
    TYPE_STRING = 1,
    TYPE_INTEGER = 2,
    TYPE_FRACTION = 4, /* numbers that are none */
    TYPE_BOOLEAN = 8,
    TYPE_NULL = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_NUMBER = TYPE_INTEGER | TYPE_FRACTION,
    TYPE_ANY = 127
};

/* The types that type, enum, const, anyOf, oneOf, allOf and nullable leave. What says nothing
 * (a $ref, a type of another language) excludes nothing, and so does what nothing fits: never
 * an empty set. */
uint8_t value_types(const json_t *schema);

/* The one bit that a value is of; a number with a point or an exponent is a fraction. */
uint8_t value_type_of(const json_t *value);

/* The values that enum or const list, 0: none does; the i-th of them, borrowed. */
size_t value_n_choices(const json_t *schema);
const json_t *value_choice(const json_t *schema, size_t i);

#endif
