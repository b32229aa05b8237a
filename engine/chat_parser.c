#include "engine/chat_parser_state.h"

#include <assert.h>
#include <string.h>

#define DEFAULT_MAX_BYTES (16u << 20)
#define DEFAULT_MAX_CALLS 256u

const char *chat_problem_name(enum chat_problem p)
{
    static const char *const names[CHAT_N_PROBLEMS] = {
        [CHAT_PLAIN_MARKUP] = "plain_markup",
        [CHAT_STRAY_THINK] = "stray_think",
        [CHAT_STRAY_SPECIAL] = "stray_special",
        [CHAT_CALL_IN_THINKING] = "call_in_thinking",
        [CHAT_BARE_INVOKE] = "bare_invoke",
        [CHAT_BLOCK_NAME] = "block_name",
        [CHAT_MARK_SPELLING] = "mark_spelling",
        [CHAT_BAD_TAG] = "bad_tag",
        [CHAT_BAD_NAME] = "bad_name",
        [CHAT_MISSING_CLOSE] = "missing_close",
        [CHAT_BAD_CLOSE] = "bad_close",
        [CHAT_STRAY_CLOSE] = "stray_close",
        [CHAT_STRING_ATTRIBUTE] = "string_attribute",
        [CHAT_BAD_JSON] = "bad_json",
        [CHAT_DUPLICATE_PARAMETER] = "duplicate_parameter",
        [CHAT_DUPLICATE_CALL] = "duplicate_call",
        [CHAT_EMPTY_BLOCK] = "empty_block",
        [CHAT_JUNK_IN_BLOCK] = "junk_in_block",
        [CHAT_AFTER_BLOCK] = "after_block",
        [CHAT_UNFINISHED_BLOCK] = "unfinished_block",
        [CHAT_UNFINISHED_CALL] = "unfinished_call",
        [CHAT_TOO_MANY] = "too_many",
        [CHAT_BAD_UTF8] = "bad_utf8",
    };
    return names[p];
}

/* ---- life ---------------------------------------------------------------------------------
 */

enum err chat_parser_new(struct chat_parser **out, const struct chat_parser_options *o,
                         struct error *e)
{
    struct chat_parser *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for an output parser");
    p->options = *o;
    if (!p->options.max_bytes)
        p->options.max_bytes = DEFAULT_MAX_BYTES;
    if (!p->options.max_calls)
        p->options.max_calls = DEFAULT_MAX_CALLS;
    size_t max = p->options.max_bytes;
    p->lexer.literal = o->literal;
    p->state = o->thinking ? IN_THINKING : IN_ANSWER;
    p->thinking_open = o->thinking;
    p->at_start = true;
    buf_init(&p->text, max);
    buf_init(&p->thinking, max);
    p->calls.max_bytes = max;
    p->calls.problems = p->problems;
    buf_init(&p->calls.raw, max);
    buf_init(&p->calls.keys, 4 * max + CHAT_MAX_PARAMETERS);
    *out = p;
    return OK;
}

void chat_parser_free(struct chat_parser *p)
{
    if (!p)
        return;
    buf_fini(&p->text);
    buf_fini(&p->thinking);
    chat_calls_fini(&p->calls);
    free(p);
}

/* ---- text and what is held back -------------------------------------------------------------
 */

static bool is_white(uint8_t b)
{
    return b == ' ' || b == '\t' || b == '\n' || b == '\r';
}

/* Text where no text belongs. Inside a call it means that a value was cut short by something
 * that looked like a tag: such a call is not run. */
static void note_junk(struct chat_parser *p)
{
    if (p->state == IN_AREA && p->calls.in_call) {
        p->problems[CHAT_JUNK_IN_BLOCK]++;
        chat_calls_last(&p->calls)->is_broken = true;
    } else if (p->state == IN_AREA && p->in_block) {
        p->problems[CHAT_JUNK_IN_BLOCK]++;
    } else if (!p->noted_rest) {
        p->problems[CHAT_AFTER_BLOCK]++;
        p->noted_rest = true;
    }
}

static enum err put(struct chat_parser *p, uint8_t b, struct error *e)
{
    switch (p->state) {
    case IN_THINKING:
    case IN_ANSWER:
        if (p->at_start && b == '\n')
            return OK;
        p->at_start = false;
        if (p->state == IN_THINKING)
            return buf_add_byte(&p->thinking, b, e);
        enum err rc = buf_add_byte(&p->text, b, e);
        if (!rc && p->options.n_stop)
            chat_look_for_stop(p);
        return rc;
    case IN_VALUE:
        return chat_calls_add_value(&p->calls, &b, 1, e);
    case IN_AREA:
    case IN_TAG:
    case AFTER_CALLS:
    case AFTER_EOS:
        if (!is_white(b))
            note_junk(p);
        return OK;
    case STOPPED:
        return OK;
    }
    return OK;
}

static enum err put_newlines(struct chat_parser *p, size_t n, struct error *e)
{
    enum err rc = OK;
    while (n-- && !rc)
        rc = put(p, '\n', e);
    return rc;
}

/* Nothing that the held bytes could belong to came: they are text. */
static enum err release_hold(struct chat_parser *p, struct error *e)
{
    struct hold h = p->hold;
    p->hold = (struct hold){0};
    enum err rc = put_newlines(p, h.n_newlines, e);
    for (unsigned i = 0; i < h.n && !rc; i++)
        rc = put(p, h.bytes[i], e);
    return rc;
}

/* Whether b can go on what is held: "<", "/" behind it, then bars (one or three bytes each). */
static bool extends_hold(const struct hold *h, uint8_t b)
{
    if (h->partial)
        return b == (h->partial == 1 ? 0xbd : 0x9c);
    if (b == '<')
        return h->n == 0;
    if (b == '/')
        return h->n == 1 && h->bytes[0] == '<';
    return (b == '|' || b == 0xef) && h->n_bars < CHAT_MAX_BARS;
}

static void extend_hold(struct hold *h, uint8_t b)
{
    h->bytes[h->n++] = b;
    if (b == 0xef)
        h->partial = 1;
    else if (h->partial)
        h->partial = h->partial == 1 ? 2 : 0;
    if (b == '|' || b == 0x9c)
        h->n_bars++;
}

static enum err feed_text(struct chat_parser *p, uint8_t b, struct error *e)
{
    if (extends_hold(&p->hold, b)) {
        extend_hold(&p->hold, b);
        return OK;
    }
    enum err rc = OK;
    if (p->hold.n || b != '\n')
        rc = release_hold(p, e);
    if (rc)
        return rc;
    if (b == '\n') {
        p->hold.n_newlines++;
        return OK;
    }
    if (!extends_hold(&p->hold, b))
        return put(p, b, e);
    extend_hold(&p->hold, b);
    return OK;
}

/* ---- tags ---------------------------------------------------------------------------------
 */

/* A DSML mark: what is held in front of it belongs to it. */
static enum err begin_tag(struct chat_parser *p, bool is_ascii, struct error *e)
{
    enum err rc = p->hold.partial ? release_hold(p, e) : OK;
    if (rc || p->state == STOPPED)
        return rc;
    const struct hold h = p->hold;
    bool has_lt = h.n && h.bytes[0] == '<';
    if (p->state == IN_THINKING)
        p->problems[CHAT_CALL_IN_THINKING]++;
    p->before_tag = p->state;
    p->value_newlines = p->state == IN_VALUE ? h.n_newlines : 0;
    p->hold = (struct hold){0};
    p->tag.n = 0;
    p->tag.in_quotes = false;
    p->tag_closes = has_lt && h.n > 1 && h.bytes[1] == '/';
    p->tag_is_ascii = is_ascii;
    p->tag_is_odd = is_ascii || !has_lt || h.n_bars;
    p->state = IN_TAG;
    return OK;
}

static enum err end_tag(struct chat_parser *p, bool whole, struct error *e)
{
    struct chat_tag tag = chat_tag_read(&p->tag, whole);
    if (p->tag_is_odd || !tag.is_usual)
        p->problems[CHAT_MARK_SPELLING]++;
    p->state = IN_AREA;
    enum err rc = p->tag_closes ? chat_close_tag(p, &tag, e) : chat_open_tag(p, &tag, e);
    /* A stray closing tag in plain text does not end the text. */
    bool is_stray = p->tag_closes && !p->had_block && !p->calls.n && p->before_tag <= IN_ANSWER;
    if (p->state == IN_AREA && is_stray)
        p->state = p->before_tag;
    return rc;
}

static enum err feed_tag(struct chat_parser *p, uint8_t b, struct error *e)
{
    return chat_tag_add(&p->tag, b) ? end_tag(p, b == '>', e) : OK;
}

/* A mark inside a tag: the tag never ended. What stands right before the mark belongs to the
 * next tag and is held for it. */
static enum err break_tag(struct chat_parser *p, struct error *e)
{
    struct chat_tag_text *t = &p->tag;
    struct hold next = {0};
    for (size_t k = t->n < sizeof next.bytes ? t->n : sizeof next.bytes; k && !next.n; k--) {
        struct hold h = {0};
        const uint8_t *tail = t->bytes + t->n - k;
        while (h.n < k && tail[0] == '<' && extends_hold(&h, tail[h.n]))
            extend_hold(&h, tail[h.n]);
        if (h.n == k && !h.partial)
            next = h;
    }
    t->n -= next.n;
    enum err rc = end_tag(p, false, e);
    p->hold = next;
    return rc;
}

/* ---- items --------------------------------------------------------------------------------
 */

static enum err feed_byte(struct chat_parser *p, uint8_t b, struct error *e)
{
    if (p->state == IN_TAG)
        return feed_tag(p, b, e);
    if (p->state == AFTER_CALLS || p->state == AFTER_EOS)
        return put(p, b, e);
    return feed_text(p, b, e);
}

static enum err feed_bytes(struct chat_parser *p, const char *text, struct error *e)
{
    enum err rc = OK;
    while (*text && !rc)
        rc = feed_byte(p, (uint8_t)*text++, e);
    return rc;
}

static enum err feed_eos(struct chat_parser *p, struct error *e)
{
    enum err rc = OK;
    p->was_cut = p->state == IN_TAG || p->calls.in_call;
    if (p->state == IN_TAG) {
        p->problems[CHAT_BAD_TAG]++;
        p->lost_calls = true;
    } else {
        rc = release_hold(p, e);
    }
    if (!rc && p->calls.in_call) {
        p->problems[CHAT_UNFINISHED_CALL]++;
        rc = chat_calls_flush_value(&p->calls, e);
        p->calls.in_value = false;
        if (!rc)
            rc = chat_end_call(p, true, e);
    }
    if (p->in_block) {
        p->problems[CHAT_UNFINISHED_BLOCK]++;
        if (p->calls.n == p->calls_before) {
            p->problems[CHAT_EMPTY_BLOCK]++;
            p->lost_calls = true;
        }
    }
    p->state = AFTER_EOS;
    return rc;
}

static void feed_think_end(struct chat_parser *p)
{
    bool was_open = p->thinking_open;
    p->thinking_open = false;
    if (p->state == IN_THINKING) {
        p->hold = (struct hold){0};
        p->state = IN_ANSWER;
        p->at_start = true;
    } else if (!was_open) {
        p->problems[CHAT_STRAY_THINK]++;
    }
}

static enum err feed_mark(struct chat_parser *p, const struct chat_item *item, struct error *e)
{
    bool is_dsml = item->mark == CHAT_MARK_DSML || item->mark == CHAT_MARK_ASCII;
    enum err rc = OK;
    if (p->state == AFTER_EOS || (p->state == AFTER_CALLS && item->mark != CHAT_MARK_EOS)) {
        if (is_dsml || p->state == AFTER_EOS)
            note_junk(p);
        else if (item->mark == CHAT_MARK_THINK_END)
            feed_think_end(p);
        return OK;
    }
    if (item->mark == CHAT_MARK_EOS) {
        p->saw_eos = true;
        return feed_eos(p, e);
    }
    if (item->mark == CHAT_MARK_ASCII) {
        /* Without "<" in front it is text; in a value, unless the value began the same way. */
        bool is_text = !p->hold.n || p->hold.bytes[0] != '<' ||
                       (p->state == IN_VALUE && !p->value_is_ascii);
        if (p->state == IN_TAG || is_text)
            return feed_bytes(p, item->text, e);
    }
    if (is_dsml) {
        if (p->state == IN_TAG)
            rc = break_tag(p, e);
        return rc ? rc : begin_tag(p, item->mark == CHAT_MARK_ASCII, e);
    }
    if (p->state == IN_VALUE || (p->state == IN_TAG && p->tag.in_quotes))
        return feed_bytes(p, item->text, e);
    if (p->hold.n && p->state != IN_TAG && (rc = release_hold(p, e)))
        return rc;
    if (item->mark == CHAT_MARK_THINK_END)
        feed_think_end(p);
    else
        p->problems[item->mark == CHAT_MARK_THINK ? CHAT_STRAY_THINK : CHAT_STRAY_SPECIAL]++;
    return OK;
}

static void note_plain_mark(struct chat_parser *p, const struct chat_item *item)
{
    bool is_call = item->mark == CHAT_MARK_DSML || item->mark == CHAT_MARK_ASCII;
    if (p->state > IN_ANSWER || !(is_call || item->mark == CHAT_MARK_THINK_END))
        return;
    p->problems[CHAT_PLAIN_MARKUP]++;
    if (is_call && p->state == IN_ANSWER)
        p->lost_calls = true;
}

static enum err drain(struct chat_parser *p, bool at_end, struct error *e)
{
    struct chat_item item;
    enum err rc = OK;
    while (!rc && chat_lexer_next(&p->lexer, at_end, &item)) {
        if (p->state == STOPPED) {
            p->saw_eos =
                p->saw_eos || (item.kind == CHAT_ITEM_MARK && item.mark == CHAT_MARK_EOS);
            continue;
        }
        if (item.kind == CHAT_ITEM_BYTE)
            rc = feed_byte(p, item.byte, e);
        else if (item.kind == CHAT_ITEM_MARK)
            rc = feed_mark(p, &item, e);
        else
            note_plain_mark(p, &item);
    }
    return rc;
}

enum err chat_parser_feed(struct chat_parser *p, const void *bytes, size_t n, bool is_added,
                          struct error *e)
{
    assert(!p->finished);
    if (n > p->options.max_bytes - p->n_bytes)
        return err_set(e, ERR_LIMIT, "model output: over %zu bytes", p->options.max_bytes);
    p->n_bytes += n;
    chat_lexer_push(&p->lexer, bytes, n, is_added);
    enum err rc = drain(p, false, e);
    if (!rc)
        rc = chat_send_texts(p, false, e);
    if (!rc)
        rc = chat_calls_flush_value(&p->calls, e);
    return rc ? rc : chat_send_args(p, e);
}

enum err chat_parser_finish(struct chat_parser *p, struct error *e)
{
    assert(!p->finished);
    enum err rc = drain(p, true, e);
    p->finished = true;
    if (!rc && p->state != AFTER_EOS && p->state != STOPPED)
        rc = feed_eos(p, e);
    return rc ? rc : chat_send_texts(p, true, e);
}

/* ---- results ------------------------------------------------------------------------------
 */

const struct buf *chat_parser_text(const struct chat_parser *p)
{
    return &p->text;
}

const struct buf *chat_parser_thinking(const struct chat_parser *p)
{
    return &p->thinking;
}

size_t chat_parser_text_sent(const struct chat_parser *p)
{
    return p->text_sent;
}

size_t chat_parser_thinking_sent(const struct chat_parser *p)
{
    return p->thinking_sent;
}

uint32_t chat_parser_n_calls(const struct chat_parser *p)
{
    return p->calls.n;
}

const struct chat_call *chat_parser_call(const struct chat_parser *p, uint32_t i)
{
    return i < p->calls.n ? &p->calls.v[i].view : NULL;
}

const uint32_t *chat_parser_problems(const struct chat_parser *p)
{
    return p->problems;
}

bool chat_parser_thinking_open(const struct chat_parser *p)
{
    return p->thinking_open;
}

bool chat_parser_saw_eos(const struct chat_parser *p)
{
    return p->saw_eos;
}

const char *chat_parser_stopped(const struct chat_parser *p)
{
    return p->stopped;
}

bool chat_parser_block_open(const struct chat_parser *p)
{
    return p->in_block || p->was_cut || p->calls.in_call || p->state == IN_TAG;
}

bool chat_parser_lost_calls(const struct chat_parser *p)
{
    return p->lost_calls;
}
