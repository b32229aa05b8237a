#include "engine/call_rules.h"

#include <string.h>

#include "engine/value_type.h"

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
    VALUE_CHOICE, /* one of a few, as text or as JSON */
    ENDED,        /* only EOS */
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

/* ---- names --------------------------------------------------------------------------------
 */

static bool is_given(const struct constrain_state *s, uint32_t i)
{
    return s->given[i / 64] >> (i % 64) & 1;
}

/* Whether a word in [first, last) is left; parameters that were given are not. */
static bool any_left(const struct call_rules *r, const struct constrain_state *s)
{
    if (s->phase != PARAMETER_NAME)
        return s->first < s->last;
    uint16_t base = r->words[s->tool].first;
    for (uint16_t i = s->first; i < s->last; i++)
        if (!is_given(s, (uint32_t)(i - base)))
            return true;
    return false;
}

static bool may_have_parameter(const struct call_rules *r, const struct constrain_state *s)
{
    const struct rule_word *tool = &r->words[s->tool];
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
    s->first = phase == TOOL_NAME ? 0 : r->words[s->tool].first;
    s->last = phase == TOOL_NAME ? (uint16_t)r->n_tools : r->words[s->tool].last;
}

static bool end_name(const struct call_rules *r, struct constrain_state *s)
{
    bool is_tool = s->phase == TOOL_NAME;
    /* Sorted: of the names that begin so, the one that ends here is the first. */
    if (s->first == s->last || r->words[s->first].len != s->n)
        return false;
    if (is_tool) {
        s->tool = s->first;
        s->any_param = false;
        memset(s->given, 0, sizeof(s->given));
        return enter(s, INVOKE_TAG_END);
    }
    uint32_t i = (uint32_t)(s->first - r->words[s->tool].first);
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
    return b >= 0x20 && b != 0x7f && ++s->n <= CALL_RULES_NAME_BYTES;
}

/* Of the words that fit so far, those that go on with b. */
static bool feed_word(const struct call_rules *r, struct constrain_state *s, uint8_t b)
{
    if (!b) /* would fit the 0 behind a word */
        return false;
    while (s->first < s->last && (uint8_t)r->words[s->first].text[s->n] < b)
        s->first++;
    while (s->first < s->last && (uint8_t)r->words[s->last - 1].text[s->n] > b)
        s->last--;
    s->n++;
    return any_left(r, s);
}

static bool feed_name(const struct call_rules *r, struct constrain_state *s, uint8_t b)
{
    if (s->phase == PARAMETER_NAME && r->words[s->tool].takes_any)
        return feed_any_name(s, b);
    return b == '"' ? end_name(r, s) : feed_word(r, s, b);
}

/* ---- bytes --------------------------------------------------------------------------------
 */

static void follow_tail(struct constrain_state *s, uint8_t b)
{
    s->tail = b == '<' ? 1 : b == '/' && s->tail == 1 ? 2 : 0;
}

/* The value of the parameter that was named last; s->first still points at it, unless nothing
 * declares it. */
static bool enter_value(const struct call_rules *r, struct constrain_state *s, bool is_text)
{
    const struct rule_word *p = s->first < s->last ? &r->words[s->first] : NULL;
    uint16_t first = !p ? 0 : is_text ? p->first : p->first_json;
    uint16_t last = !p ? 0 : is_text ? p->last : p->last_json;
    if (first < last) {
        s->first = first;
        s->last = last;
        return enter(s, VALUE_CHOICE);
    }
    /* A string is written as text; only where nothing is declared it may be JSON as well. */
    uint8_t types = p && p->types != TYPE_ANY ? p->types & (uint8_t)~TYPE_STRING : 0;
    if (!is_text)
        s->json = (struct json_literal){.types = types};
    return enter(s, is_text ? VALUE_TEXT : VALUE_JSON);
}

static bool feed_literal(const struct call_rules *r, struct constrain_state *s, uint8_t b)
{
    const char *text = literals[s->phase].text;
    if (b != (uint8_t)text[s->n])
        return false;
    if (text[++s->n])
        return true;
    enum phase next = literals[s->phase].next;
    if (next == VALUE_TEXT || next == VALUE_JSON)
        return enter_value(r, s, next == VALUE_TEXT);
    if (next == TOOL_NAME || next == PARAMETER_NAME)
        enter_name(r, s, next);
    else
        enter(s, next);
    return true;
}

static bool feed_string_attribute(const struct call_rules *r, struct constrain_state *s,
                                  uint8_t b)
{
    uint8_t types = s->first < s->last ? r->words[s->first].types : TYPE_ANY;
    if (b == 't' && (types & TYPE_STRING))
        return enter(s, STRING_TRUE);
    return b == 'f' && (types & ~TYPE_STRING) && enter(s, STRING_FALSE);
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

/* No value of a choice has a "<". */
static bool feed_choice(const struct call_rules *r, struct constrain_state *s, uint8_t b)
{
    bool is_whole = s->first < s->last && r->words[s->first].len == s->n;
    bool ends = s->tail == 1 ? b == '/' : !s->tail && b == '<' && is_whole;
    if (ends) {
        s->tail++;
        return true;
    }
    return !s->tail && feed_word(r, s, b);
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
    case VALUE_CHOICE:
        return feed_choice(r, s, b);
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
    if (s->phase == VALUE_TEXT || s->phase == VALUE_JSON || s->phase == VALUE_CHOICE)
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
    struct constrain_state next = *s;
    return take(r, &next, id);
}

bool constrain_is_greedy(const struct constrain_state *s)
{
    return !is_free(s) && s->phase != VALUE_JSON && s->phase != VALUE_CHOICE;
}

/* ---- a whole vocabulary -------------------------------------------------------------------
 */

void constrain_filter_init(struct constrain_filter *f, const struct call_rules *r,
                           const struct constrain_state *s)
{
    *f = (struct constrain_filter){.rules = r, .state = s, .is_free = is_free(s)};
    f->in_string =
        s->phase == VALUE_JSON && !s->tail && json_literal_is_in_characters(&s->json);
    for (unsigned b = 0; b < 256; b++) {
        struct constrain_state next = *s;
        if (feed_byte(r, &next, (uint8_t)b))
            f->first[b / 64] |= UINT64_C(1) << (b % 64);
    }
}

bool constrain_filter_allows(const struct constrain_filter *f, uint32_t id)
{
    const struct call_rules *r = f->rules;
    size_t n = 0;
    if (id == r->mark || id == r->eos)
        return constrain_allows(r, f->state, id);
    const uint8_t *bytes = tokenizer_bytes(r->tokenizer, id, &n);
    if (!bytes || !n || f->is_free)
        return bytes && n;
    if (!(f->first[bytes[0] / 64] >> (bytes[0] % 64) & 1))
        return false;
    if (f->in_string && tokenizer_is_text(r->tokenizer, id))
        return true;
    return constrain_allows(r, f->state, id);
}

bool constrain_text_mask(const struct call_rules *r, const struct constrain_state *s,
                         uint32_t n, uint32_t *words)
{
    const uint32_t marks[] = {r->mark, r->eos};
    size_t n_words = (n + (size_t)31) / 32, n_known = (r->n_text + (size_t)31) / 32;
    if (!is_free(s))
        return false;
    memset(words, 0, n_words * sizeof(*words));
    memcpy(words, r->text, (n_words < n_known ? n_words : n_known) * sizeof(*words));
    for (size_t i = 0; i < 2; i++)
        if (marks[i] < n && constrain_allows(r, s, marks[i]))
            words[marks[i] / 32] |= 1u << (marks[i] % 32);
    return true;
}
