/* The notation of schema_tables.c becomes JSON Schema: one function per rule of its grammar. */
#include <ctype.h>
#include <string.h>

#include "agentd/schema.h"

#define MAX_DEPTH 16
#define WORD_BYTES 64

struct reader {
    const char *text, *at;
    int depth;
    struct error *e;
};

/* Each returns NULL after it has said what is wrong. */
static json_t *read_type(struct reader *r);

static json_t *bad(struct reader *r, const char *want)
{
    err_set(r->e, ERR_INVAL, "at \"%.24s\" of \"%.60s\": want %s", r->at, r->text, want);
    return NULL;
}

static void skip_space(struct reader *r)
{
    while (isspace((unsigned char)*r->at))
        r->at++;
}

static bool take(struct reader *r, char c)
{
    skip_space(r);
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.' || c == '$' ||
           c == '/';
}

static bool read_word(struct reader *r, char word[WORD_BYTES])
{
    size_t n = 0;

    skip_space(r);
    while (is_word(*r->at) && n + 1 < WORD_BYTES)
        word[n++] = *r->at++;
    word[n] = '\0';
    return n > 0 && !is_word(*r->at);
}

/* Behind its `{`. */
static json_t *read_object(struct reader *r)
{
    json_auto_t *fields = json_object(), *required = json_array();
    char name[WORD_BYTES];

    while (!take(r, '}')) {
        if (!read_word(r, name) || json_object_get(fields, name))
            return bad(r, "a field that is new");
        if (!take(r, '?'))
            json_array_append_new(required, json_string(name));
        json_t *type = take(r, ':') ? read_type(r) : json_pack("{s:s}", "type", "string");
        if (!type)
            return NULL;
        json_object_set_new(fields, name, type);
        skip_space(r);
        if (!take(r, ',') && *r->at != '}')
            return bad(r, "a comma or the end of the object");
    }
    json_t *o = json_pack("{s:s, s:O}", "type", "object", "properties", fields);
    if (json_array_size(required))
        json_object_set(o, "required", required);
    return o;
}

static json_t *read_list(struct reader *r, char end, const char *type, const char *keyword)
{
    json_t *inner = read_type(r);

    if (!inner)
        return NULL;
    if (!take(r, end)) {
        json_decref(inner);
        return bad(r, "the end of the list");
    }
    return json_pack("{s:s, s:o}", "type", type, keyword, inner);
}

static json_t *read_name(struct reader *r)
{
    static const char *const plain[] = {"string",  "integer", "number",
                                        "boolean", "object",  "null"};
    char word[WORD_BYTES];

    if (!read_word(r, word))
        return bad(r, "a type");
    if (!strcmp(word, "any"))
        return json_object();
    if (!strcmp(word, "uint"))
        return json_pack("{s:s, s:i}", "type", "integer", "minimum", 0);
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        if (!strcmp(word, plain[i]))
            return json_pack("{s:s}", "type", word);
    if (isupper((unsigned char)word[0]))
        return json_pack("{s:s+}", "$ref", "#/$defs/", word);
    return json_pack("{s:s}", "const", word);
}

static json_t *read_one(struct reader *r)
{
    if (take(r, '{'))
        return read_object(r);
    if (take(r, '['))
        return read_list(r, ']', "array", "items");
    if (take(r, '<'))
        return read_list(r, '>', "object", "additionalProperties");
    return read_name(r);
}

/* Words that stand for themselves are one enum; all else is anyOf. */
static json_t *join(json_t *choices)
{
    json_auto_t *words = json_array();
    json_t *one;
    size_t i;

    json_array_foreach(choices, i, one) {
        json_t *word = json_object_get(one, "const");
        if (word)
            json_array_append(words, word);
    }
    if (json_array_size(choices) == 1)
        return json_incref(json_array_get(choices, 0));
    if (json_array_size(words) == json_array_size(choices))
        return json_pack("{s:O}", "enum", words);
    return json_pack("{s:O}", "anyOf", choices);
}

static json_t *read_type(struct reader *r)
{
    json_auto_t *choices = json_array();

    if (++r->depth > MAX_DEPTH)
        return bad(r, "less depth");
    do {
        json_t *one = read_one(r);
        if (!one)
            return NULL;
        json_array_append_new(choices, one);
    } while (take(r, '|'));
    r->depth--;
    return join(choices);
}

enum err schema_read(const char *notation, json_t **out, struct error *e)
{
    struct error own;
    struct reader r = {.text = notation, .at = notation, .e = e ? e : &own};
    json_t *schema = read_type(&r);

    if (!schema)
        return r.e->code;
    skip_space(&r);
    if (*r.at) {
        json_decref(schema);
        bad(&r, "nothing more");
        return ERR_INVAL;
    }
    *out = schema;
    return OK;
}
