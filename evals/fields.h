/* Fields of results.json, verify-resume.json and replay.json as reports read them. */
#ifndef EVALS_FIELDS_H
#define EVALS_FIELDS_H

#include <jansson.h>

/* 0 where the field is absent or no number. */
static inline double field_number(const json_t *o, const char *field)
{
    return json_number_value(json_object_get(o, field));
}

/* "" where the field is absent or no string. Lives as long as o. */
static inline const char *field_text(const json_t *o, const char *field)
{
    const char *text = json_string_value(json_object_get(o, field));
    return text ? text : "";
}

#endif
