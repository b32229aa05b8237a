/* tools/schema: any schema against any value ends, and wrapping the schema in an anyOf of one,
 * or in an array's items, changes nothing about what it accepts. The input is a schema, a
 * newline, a value. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *parse(const char *text, size_t n)
{
    return json_loadb(text, n, JSON_DECODE_ANY, NULL);
}

/* Both arguments are taken over. */
static enum err check(json_t *schema, json_t *value)
{
    struct error e = {0};
    enum err rc = schema_check(schema, value, &e);
    if (rc && (e.code != rc || !e.msg[0] || !memchr(e.msg, 0, sizeof e.msg)))
        abort();
    json_decref(schema);
    json_decref(value);
    return rc;
}

static void compare(json_t *schema, json_t *value)
{
    enum err plain = check(json_incref(schema), json_incref(value));
    enum err any = check(json_pack("{s:[O]}", "anyOf", schema), json_incref(value));
    enum err item = check(json_pack("{s:O}", "items", schema), json_pack("[O]", value));
    if (plain == ERR_LIMIT || any == ERR_LIMIT || item == ERR_LIMIT)
        return;
    if (plain != any || (json_is_object(schema) && plain != item))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *newline = size ? memchr(text, '\n', size) : NULL;
    if (!newline)
        return 0;
    json_t *schema = parse(text, (size_t)(newline - text));
    json_t *value = parse(newline + 1, size - (size_t)(newline - text) - 1);
    if (schema && schema_valid(schema, NULL) == OK && !json_is_object(schema))
        abort();
    if (schema && value)
        compare(schema, value);
    json_decref(schema);
    json_decref(value);
    return 0;
}
