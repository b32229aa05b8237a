#include "engine/call_rules.h"

#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "engine/chat.h"
#include "engine/pyjson.h"
#include "engine/value_type.h"

#define MAX_WORDS UINT16_MAX
#define MAX_CHOICES 256u /* of one parameter; more are not held to */
#define MAX_CHOICE_BYTES 1000u

void call_rules_free(struct call_rules *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n_words; i++)
        free(r->words[i].text);
    free(r->words);
    free(r->text);
    free(r);
}

static int by_bytes(const void *a, const void *b)
{
    const struct rule_word *x = a, *y = b;
    return strcmp(x->text, y->text);
}

static bool fits_a_tag(const char *text)
{
    size_t n = 0;
    for (; text[n]; n++)
        if ((uint8_t)text[n] < 0x20 || text[n] == 0x7f || text[n] == '"')
            return false;
    return n > 0 && n <= CALL_RULES_NAME_BYTES;
}

static enum err add_word(struct call_rules *r, const char *text, struct error *e)
{
    if (r->n_words == MAX_WORDS)
        return err_set(e, ERR_LIMIT, "over %u names of tools and parameters, and values",
                       MAX_WORDS);
    struct rule_word *grown = reallocarray(r->words, r->n_words + 1, sizeof(*grown));
    if (!grown)
        return err_set(e, ERR_NOMEM, "names of tools");
    r->words = grown;
    grown[r->n_words] = (struct rule_word){.text = strdup(text), .len = (uint16_t)strlen(text)};
    if (!grown[r->n_words].text)
        return err_set(e, ERR_NOMEM, "names of tools");
    r->n_words++;
    return OK;
}

static enum err add_parameters(struct call_rules *r, uint32_t tool, const json_t *function,
                               struct error *e)
{
    const json_t *schema = json_object_get(function, "parameters");
    const json_t *properties = json_object_get(schema, "properties");
    uint32_t first = r->n_words;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)properties, key, value) {
        if (!fits_a_tag(key) || r->n_words - first == CONSTRAIN_MAX_PARAMETERS)
            continue;
        enum err rc = add_word(r, key, e);
        if (rc)
            return rc;
        r->words[r->n_words - 1].types = value_types(value);
    }
    qsort(r->words + first, r->n_words - first, sizeof(*r->words), by_bytes);
    r->words[tool].first = (uint16_t)first;
    r->words[tool].last = (uint16_t)r->n_words;
    r->words[tool].takes_any = !json_object_size(properties) &&
                               !json_is_false(json_object_get(schema, "additionalProperties"));
    return OK;
}

/* ---- values -------------------------------------------------------------------------------
 */

/* A value as it is written: a string as it is, others as JSON. False: not as a word. */
static bool choice_text(const json_t *value, struct buf *out)
{
    buf_clear(out);
    if (json_is_array(value) || json_is_object(value))
        return false; /* there is more than one way to write it */
    enum err rc = json_is_string(value)
                      ? buf_add(out, json_string_value(value), json_string_length(value), NULL)
                      : pyjson_dump(value, out, NULL);
    return !rc && !memchr(buf_str(out), 0, out->len) && !memchr(buf_str(out), '<', out->len);
}

/* Whether all values that the parameter may have can be listed. */
static bool lists_choices(const struct call_rules *r, const json_t *schema)
{
    AUTO(buf) struct buf text = BUF_INIT(MAX_CHOICE_BYTES);
    size_t n = value_n_choices(schema);
    if (n > MAX_CHOICES || n > MAX_WORDS - r->n_words)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!choice_text(value_choice(schema, i), &text))
            return false;
    return true;
}

/* Adds those that are strings, or those that are not; [*first, *last). */
static enum err add_choices(struct call_rules *r, const json_t *schema, uint8_t types,
                            uint16_t *first, uint16_t *last, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(MAX_CHOICE_BYTES);
    const uint32_t from = r->n_words;
    enum err rc = OK;
    for (size_t i = 0; i < value_n_choices(schema) && !rc; i++) {
        const json_t *value = value_choice(schema, i);
        if ((value_type_of(value) & types) && choice_text(value, &text))
            rc = add_word(r, buf_str(&text), e);
    }
    if (r->n_words > from)
        qsort(r->words + from, r->n_words - from, sizeof(*r->words), by_bytes);
    *first = (uint16_t)from;
    *last = (uint16_t)r->n_words;
    return rc;
}

static enum err add_values(struct call_rules *r, uint32_t tool, const json_t *function,
                           struct error *e)
{
    const json_t *properties =
        json_object_get(json_object_get(function, "parameters"), "properties");
    enum err rc = OK;
    for (uint32_t i = r->words[tool].first; i < r->words[tool].last && !rc; i++) {
        const json_t *schema = json_object_get(properties, r->words[i].text);
        uint16_t at[4];
        uint8_t types = r->words[i].types;
        if (!lists_choices(r, schema))
            continue;
        if (!(rc = add_choices(r, schema, types & TYPE_STRING, &at[0], &at[1], e)))
            rc = add_choices(r, schema, types & (uint8_t)~TYPE_STRING, &at[2], &at[3], e);
        struct rule_word *w = &r->words[i];
        if (!rc)
            w->first = at[0], w->last = at[1], w->first_json = at[2], w->last_json = at[3];
    }
    return rc;
}

/* ---- tools --------------------------------------------------------------------------------
 */

static const json_t *function_called(const json_t *functions, const char *name)
{
    const json_t *f;
    size_t i;
    json_array_foreach(functions, i, f) {
        const char *own = json_string_value(json_object_get(f, "name"));
        if (own && !strcmp(own, name))
            return f;
    }
    return NULL;
}

static enum err add_tools(struct call_rules *r, const json_t *functions, struct error *e)
{
    const json_t *f;
    size_t i;
    enum err rc = OK;
    json_array_foreach(functions, i, f) {
        const char *name = json_string_value(json_object_get(f, "name"));
        if (!rc && name && fits_a_tag(name))
            rc = add_word(r, name, e);
    }
    r->n_tools = r->n_words;
    if (r->n_tools)
        qsort(r->words, r->n_tools, sizeof(*r->words), by_bytes);
    for (uint32_t t = 0; t < r->n_tools && !rc; t++)
        rc = add_parameters(r, t, function_called(functions, r->words[t].text), e);
    for (uint32_t t = 0; t < r->n_tools && !rc; t++)
        rc = add_values(r, t, function_called(functions, r->words[t].text), e);
    return rc;
}

static enum err list_text(struct call_rules *r, struct error *e)
{
    r->n_text = tokenizer_size(r->tokenizer);
    r->text = calloc((r->n_text + (size_t)31) / 32 + 1, sizeof(*r->text));
    if (!r->text)
        return err_set(e, ERR_NOMEM, "rules for %u ids", r->n_text);
    for (uint32_t id = 0; id < r->n_text; id++) {
        size_t n = 0;
        bool is_text = tokenizer_bytes(r->tokenizer, id, &n) && n;
        if (is_text && id != r->mark && id != r->eos)
            r->text[id / 32] |= 1u << (id % 32);
    }
    return OK;
}

enum err call_rules_new(struct call_rules **out, const json_t *functions,
                        const struct tokenizer *t, struct error *e)
{
    struct chat_ids ids;
    enum err rc = chat_ids_find(&ids, t, e);
    if (rc)
        return rc;
    if (functions && !json_is_array(functions))
        return err_set(e, ERR_INVAL, "functions: no array");
    struct call_rules *r = calloc(1, sizeof(*r));
    if (!r)
        return err_set(e, ERR_NOMEM, "rules for tool calls");
    r->tokenizer = t;
    r->mark = ids.dsml;
    r->eos = ids.eos;
    if ((rc = list_text(r, e)) || (rc = add_tools(r, functions, e))) {
        call_rules_free(r);
        return rc;
    }
    *out = r;
    return OK;
}
