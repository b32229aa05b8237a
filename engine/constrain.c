#include "engine/constrain.h"

#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "engine/chat.h"
#include "engine/tokenizer.h"

#define MAX_NAME_BYTES 200u
#define MAX_NAMES UINT16_MAX

enum phase {
    FREE = 0,
    BLOCK_TAG, /* literals first: what is left of a tag, see literals[] */
    INVOKE_TAG,
    INVOKE_TAG_END,
    PARAMETER_TAG,
    PARAMETER_ATTRIBUTE,
    STRING_TRUE,
    STRING_FALSE,
    PARAMETER_CLOSE,
    INVOKE_CLOSE,
    BLOCK_CLOSE,
    FIRST_CALL, /* the mark of the first call */
    TOOL_NAME,
    PARAMETER_NAME,
    STRING_VALUE, /* of the attribute string=, its first byte */
    IN_CALL,      /* between the tags of a call, see gap */
    IN_BLOCK,     /* between calls, see gap */
    VALUE_TEXT,
    VALUE_JSON,
    ENDED, /* only EOS */
    OFF
};

/* What is written between a mark or a name and the next choice. */
static const struct {
    const char *text;
    enum phase next;
} literals[] = {
    [BLOCK_TAG] = {" calls>\n<", FIRST_CALL},
    [INVOKE_TAG] = {" invoke name=\"", TOOL_NAME},
    [INVOKE_TAG_END] = {">", IN_CALL},
    [PARAMETER_TAG] = {" parameter name=\"", PARAMETER_NAME},
    [PARAMETER_ATTRIBUTE] = {" string=\"", STRING_VALUE},
    [STRING_TRUE] = {"rue\">", VALUE_TEXT},
    [STRING_FALSE] = {"alse\">", VALUE_JSON},
    [PARAMETER_CLOSE] = {" parameter>", IN_CALL},
    [INVOKE_CLOSE] = {" invoke>", IN_BLOCK},
    [BLOCK_CLOSE] = {" calls>", ENDED},
};

/* gap of IN_CALL and IN_BLOCK: what has to come. */
enum { NEWLINE, OPEN, EMPTY_OPEN, MARK_OR_SLASH, SLASH, CLOSING_MARK };

enum value_kind { EITHER, TEXT_ONLY, JSON_ONLY };

struct name {
    char *text;
    uint16_t len;
    uint8_t kind;         /* parameters: enum value_kind */
    bool takes_any;       /* tools: parameters of any name */
    uint16_t first, last; /* tools: of their parameters */
};

struct call_rules {
    const struct tokenizer *tokenizer;
    uint32_t mark, eos;
    struct name *names; /* tools, then the parameters of each; sorted within */
    uint32_t n_tools, n_names;
};

/* ---- rules --------------------------------------------------------------------------------
 */

void call_rules_free(struct call_rules *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n_names; i++)
        free(r->names[i].text);
    free(r->names);
    free(r);
}

static int by_bytes(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    return strcmp(x->text, y->text);
}

static bool fits_a_tag(const char *text)
{
    size_t n = 0;
    for (; text[n]; n++)
        if ((uint8_t)text[n] < 0x20 || text[n] == 0x7f || text[n] == '"')
            return false;
    return n > 0 && n <= MAX_NAME_BYTES;
}

static enum err add_name(struct call_rules *r, const char *text, struct error *e)
{
    if (r->n_names == MAX_NAMES)
        return err_set(e, ERR_LIMIT, "over %u names of tools and parameters", MAX_NAMES);
    struct name *grown = reallocarray(r->names, r->n_names + 1, sizeof(*grown));
    if (!grown)
        return err_set(e, ERR_NOMEM, "names of tools");
    r->names = grown;
    grown[r->n_names] = (struct name){.text = strdup(text), .len = (uint16_t)strlen(text)};
    if (!grown[r->n_names].text)
        return err_set(e, ERR_NOMEM, "names of tools");
    r->n_names++;
    return OK;
}

/* What the declared type lets a value be. */
static enum value_kind value_kind(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *one;
    bool string = false, other = false;
    size_t i;
    if (json_is_string(type))
        return strcmp(json_string_value(type), "string") ? JSON_ONLY : TEXT_ONLY;
    json_array_foreach(type, i, one)
    {
        bool is_string = json_is_string(one) && !strcmp(json_string_value(one), "string");
        string = string || is_string;
        other = other || !is_string;
    }
    return string && !other ? TEXT_ONLY : other && !string ? JSON_ONLY : EITHER;
}

static enum err add_parameters(struct call_rules *r, uint32_t tool, const json_t *function,
                               struct error *e)
{
    const json_t *schema = json_object_get(function, "parameters");
    const json_t *properties = json_object_get(schema, "properties");
    uint32_t first = r->n_names;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)properties, key, value)
    {
        if (!fits_a_tag(key) || r->n_names - first == CONSTRAIN_MAX_PARAMETERS)
            continue;
        enum err rc = add_name(r, key, e);
        if (rc)
            return rc;
        r->names[r->n_names - 1].kind = (uint8_t)value_kind(value);
    }
    qsort(r->names + first, r->n_names - first, sizeof(*r->names), by_bytes);
    r->names[tool].first = (uint16_t)first;
    r->names[tool].last = (uint16_t)r->n_names;
    r->names[tool].takes_any = !json_object_size(properties) &&
                               !json_is_false(json_object_get(schema, "additionalProperties"));
    return OK;
}

static const json_t *function_called(const json_t *functions, const char *name)
{
    const json_t *f;
    size_t i;
    json_array_foreach(functions, i, f)
    {
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
    json_array_foreach(functions, i, f)
    {
        const char *name = json_string_value(json_object_get(f, "name"));
        if (!rc && name && fits_a_tag(name))
            rc = add_name(r, name, e);
    }
    r->n_tools = r->n_names;
    if (r->n_tools)
        qsort(r->names, r->n_tools, sizeof(*r->names), by_bytes);
    for (uint32_t t = 0; t < r->n_tools && !rc; t++)
        rc = add_parameters(r, t, function_called(functions, r->names[t].text), e);
    return rc;
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
    if ((rc = add_tools(r, functions, e))) {
        call_rules_free(r);
        return rc;
    }
    *out = r;
    return OK;
}

/* ---- names --------------------------------------------------------------------------------
 */

static bool is_given(const struct constrain_state *s, uint32_t i)
{
    return s->given[i / 64] >> (i % 64) & 1;
}

/* Whether a name in [first, last) is left; parameters that were given are not. */
static bool any_left(const struct call_rules *r, const struct constrain_state *s)
{
    if (s->phase == TOOL_NAME)
        return s->first < s->last;
    uint16_t base = r->names[s->tool].first;
    for (uint16_t i = s->first; i < s->last; i++)
        if (!is_given(s, (uint32_t)(i - base)))
            return true;
    return false;
}

static bool may_have_parameter(const struct call_rules *r, const struct constrain_state *s)
{
    const struct name *tool = &r->names[s->tool];
    for (uint32_t i = 0; i < (uint32_t)(tool->last - tool->first); i++)
        if (!is_given(s, i))
            return true;
    return tool->takes_any;
}

static bool enter(struct constrain_state *s, enum phase phase)
{
    s->phase = (uint8_t)phase;
    s->n = 0;
    s->tail = 0;
    s->gap = NEWLINE;
    return true;
}

static void enter_name(const struct call_rules *r, struct constrain_state *s, enum phase phase)
{
    enter(s, phase);
    s->first = phase == TOOL_NAME ? 0 : r->names[s->tool].first;
    s->last = phase == TOOL_NAME ? (uint16_t)r->n_tools : r->names[s->tool].last;
}

static bool end_name(const struct call_rules *r, struct constrain_state *s)
{
    bool is_tool = s->phase == TOOL_NAME;
    /* Sorted: of the names that begin so, the one that ends here is the first. */
    if (s->first == s->last || r->names[s->first].len != s->n)
        return false;
    if (is_tool) {
        s->tool = s->first;
        s->any_param = false;
        memset(s->given, 0, sizeof(s->given));
        return enter(s, INVOKE_TAG_END);
    }
    uint32_t i = (uint32_t)(s->first - r->names[s->tool].first);
    if (is_given(s, i))
        return false;
    s->given[i / 64] |= UINT64_C(1) << (i % 64);
    s->any_param = true;
    return enter(s, PARAMETER_ATTRIBUTE);
}

/* A name that nothing declares. */
static bool feed_any_name(struct constrain_state *s, uint8_t b)
{
    if (b == '"') {
        s->first = s->last = 0;
        s->any_param = true;
        return s->n && enter(s, PARAMETER_ATTRIBUTE);
    }
    return b >= 0x20 && b != 0x7f && ++s->n <= MAX_NAME_BYTES;
}

static bool feed_name(const struct call_rules *r, struct constrain_state *s, uint8_t b)
{
    if (s->phase == PARAMETER_NAME && r->names[s->tool].takes_any)
        return feed_any_name(s, b);
    if (b == '"')
        return end_name(r, s);
    if (!b) /* would fit the 0 behind a name */
        return false;
    while (s->first < s->last && (uint8_t)r->names[s->first].text[s->n] < b)
        s->first++;
    while (s->first < s->last && (uint8_t)r->names[s->last - 1].text[s->n] > b)
        s->last--;
    s->n++;
    return any_left(r, s);
}

/* ---- bytes --------------------------------------------------------------------------------
 */

static void follow_tail(struct constrain_state *s, uint8_t b)
{
    s->tail = b == '<' ? 1 : b == '/' && s->tail == 1 ? 2 : 0;
}

static bool feed_literal(const struct call_rules *r, struct constrain_state *s, uint8_t b)
{
    const char *text = literals[s->phase].text;
    if (b != (uint8_t)text[s->n])
        return false;
    if (text[++s->n])
        return true;
    enum phase next = literals[s->phase].next;
    if (next == TOOL_NAME || next == PARAMETER_NAME)
        enter_name(r, s, next);
    else
        enter(s, next);
    if (next == VALUE_JSON)
        s->json = (struct json_literal){0};
    return true;
}

/* The name that was given last decides; s->first still points at it. */
static bool feed_string_attribute(const struct call_rules *r, struct constrain_state *s,
                                  uint8_t b)
{
    bool declared = s->first < s->last;
    uint8_t kind = declared ? r->names[s->first].kind : EITHER;
    if (b == 't' && kind != JSON_ONLY)
        return enter(s, STRING_TRUE);
    return b == 'f' && kind != TEXT_ONLY && enter(s, STRING_FALSE);
}

static bool feed_gap(struct constrain_state *s, uint8_t b)
{
    uint8_t want = s->gap == NEWLINE ? '\n' : s->gap <= EMPTY_OPEN ? '<' : '/';
    bool is_empty_call = s->phase == IN_CALL && s->gap == OPEN && !s->any_param;
    if (is_empty_call && b == '\n') {
        s->gap = EMPTY_OPEN;
        return true;
    }
    if (b != want || s->gap == CLOSING_MARK)
        return false;
    static const uint8_t after[] = {[NEWLINE] = OPEN,
                                    [OPEN] = MARK_OR_SLASH,
                                    [EMPTY_OPEN] = SLASH,
                                    [MARK_OR_SLASH] = CLOSING_MARK,
                                    [SLASH] = CLOSING_MARK};
    s->gap = after[s->gap];
    return true;
}

static bool feed_json(struct constrain_state *s, uint8_t b)
{
    bool ends = s->tail == 1 ? b == '/' : !s->tail && b == '<';
    if (ends && json_literal_is_complete(&s->json)) {
        s->tail++;
        return true;
    }
    return !s->tail && json_literal_feed(&s->json, b);
}

/* A byte of a token that is not an added one. False: it does not fit. */
static bool feed_byte(const struct call_rules *r, struct constrain_state *s, uint8_t b)
{
    switch ((enum phase)s->phase) {
    case FREE:
    case VALUE_TEXT:
        follow_tail(s, b);
        return true;
    case TOOL_NAME:
    case PARAMETER_NAME:
        return feed_name(r, s, b);
    case STRING_VALUE:
        return feed_string_attribute(r, s, b);
    case IN_CALL:
    case IN_BLOCK:
        return feed_gap(s, b);
    case VALUE_JSON:
        return feed_json(s, b);
    case FIRST_CALL:
    case ENDED:
        return false;
    case OFF:
        return true;
    case BLOCK_TAG:
    case INVOKE_TAG:
    case INVOKE_TAG_END:
    case PARAMETER_TAG:
    case PARAMETER_ATTRIBUTE:
    case STRING_TRUE:
    case STRING_FALSE:
    case PARAMETER_CLOSE:
    case INVOKE_CLOSE:
    case BLOCK_CLOSE:
        return feed_literal(r, s, b);
    }
    return false;
}

/* ---- ids ----------------------------------------------------------------------------------
 */

/* A mark between two tags: it opens one, or behind a slash closes. */
static bool feed_mark_in_gap(const struct call_rules *r, struct constrain_state *s)
{
    bool in_call = s->phase == IN_CALL;
    if (s->gap == CLOSING_MARK)
        return enter(s, in_call ? INVOKE_CLOSE : BLOCK_CLOSE);
    if (s->gap != MARK_OR_SLASH || (in_call && !may_have_parameter(r, s)))
        return false;
    return enter(s, in_call ? PARAMETER_TAG : INVOKE_TAG);
}

static bool feed_mark(const struct call_rules *r, struct constrain_state *s)
{
    if (s->phase == FREE)
        return r->n_tools && s->tail == 1 && enter(s, BLOCK_TAG);
    if (s->phase == FIRST_CALL)
        return enter(s, INVOKE_TAG);
    if (s->phase == VALUE_TEXT || s->phase == VALUE_JSON)
        return s->tail == 2 && enter(s, PARAMETER_CLOSE);
    if (s->phase == IN_CALL || s->phase == IN_BLOCK)
        return feed_mark_in_gap(r, s);
    return s->phase == OFF;
}

/* Where any text may come. */
static bool is_free(const struct constrain_state *s)
{
    return s->phase == FREE || s->phase == VALUE_TEXT || s->phase == OFF;
}

static bool take(const struct call_rules *r, struct constrain_state *s, uint32_t id)
{
    if (id == r->mark)
        return feed_mark(r, s);
    if (id == r->eos)
        return s->phase == FREE || s->phase == ENDED || s->phase == OFF;
    size_t n = 0;
    const uint8_t *bytes = tokenizer_bytes(r->tokenizer, id, &n);
    if (!bytes || !n || (tokenizer_is_added(r->tokenizer, id) && !is_free(s)))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!feed_byte(r, s, bytes[i]))
            return false;
    return true;
}

void constrain_feed(const struct call_rules *r, struct constrain_state *s, uint32_t id)
{
    struct constrain_state next = *s;
    if (!take(r, &next, id))
        next = (struct constrain_state){.phase = OFF};
    *s = next;
}

bool constrain_allows(const struct call_rules *r, const struct constrain_state *s, uint32_t id)
{
    if (is_free(s) && id != r->mark &&
        id != r->eos) { /* the usual case, for all of a vocabulary */
        size_t n = 0;
        return tokenizer_bytes(r->tokenizer, id, &n) && n;
    }
    struct constrain_state next = *s;
    return take(r, &next, id);
}

bool constrain_is_greedy(const struct constrain_state *s)
{
    return !is_free(s) && s->phase != VALUE_JSON;
}
