#include "engine/chat_parser_state.h"

static enum err end_value(struct chat_parser *p, bool with_newlines, struct error *e)
{
    /* A closing tag that is missing leaves the line end in front of the next tag behind. */
    size_t n = p->value_newlines;
    enum err rc = OK;
    for (n -= n && !with_newlines; n && !rc; n--)
        rc = chat_calls_add_value(&p->calls, (const uint8_t *)"\n", 1, e);
    p->value_newlines = 0;
    return rc ? rc : chat_calls_end_value(&p->calls, e);
}

enum err chat_end_call(struct chat_parser *p, bool was_cut, struct error *e)
{
    enum err rc = chat_calls_end(&p->calls, was_cut, e);
    if (!rc)
        rc = chat_send_args(p, e);
    if (!chat_calls_last(&p->calls)->view.is_complete)
        p->lost_calls = true;
    return rc ? rc : chat_send(p, CHAT_CALL_END, p->calls.n - 1, NULL, 0, e);
}

/* Ends what is still open of a call because something else begins or ends. */
static enum err close_open(struct chat_parser *p, struct error *e)
{
    enum err rc = OK;
    if (!p->calls.in_call)
        return OK;
    p->problems[CHAT_MISSING_CLOSE]++;
    chat_calls_last(&p->calls)->view.is_repaired = true;
    if (p->calls.in_value)
        rc = end_value(p, false, e);
    return rc ? rc : chat_end_call(p, false, e);
}

static enum err begin_call(struct chat_parser *p, const struct chat_tag *tag, struct error *e)
{
    enum err rc = close_open(p, e);
    if (rc)
        return rc;
    if (p->calls.n == p->options.max_calls) {
        p->problems[CHAT_TOO_MANY]++;
        p->lost_calls = true;
        p->state = AFTER_CALLS;
        return OK;
    }
    if (!p->in_block)
        p->problems[CHAT_BARE_INVOKE]++;
    if ((rc = chat_send_texts(p, true, e)))
        return rc;
    if ((rc = chat_calls_begin(&p->calls, tag->name, tag->name_len, e)))
        return rc;
    struct call *call = chat_calls_last(&p->calls);
    if (!tag->is_well_formed)
        p->problems[CHAT_BAD_TAG]++;
    call->is_broken = call->is_broken || p->distrusted || !tag->is_well_formed;
    p->args_of = p->calls.n;
    p->args_sent = 0;
    return chat_send(p, CHAT_CALL_BEGIN, p->calls.n - 1, call->name.data, call->name.len, e);
}

static enum err begin_value(struct chat_parser *p, const struct chat_tag *tag, struct error *e)
{
    enum err rc = OK;
    if (p->calls.in_value) {
        p->problems[CHAT_MISSING_CLOSE]++;
        chat_calls_last(&p->calls)->view.is_repaired = true;
        rc = end_value(p, false, e);
    }
    if (rc)
        return rc;
    if (!p->calls.in_call || !tag->name_len) {
        p->problems[tag->name_len ? CHAT_BAD_TAG : CHAT_BAD_NAME]++;
        p->lost_calls = true;
        if (p->calls.in_call)
            chat_calls_last(&p->calls)->is_broken = true;
        return OK; /* its value is junk */
    }
    struct call *call = chat_calls_last(&p->calls);
    if (!tag->is_well_formed) {
        p->problems[CHAT_BAD_TAG]++;
        call->is_broken = true;
    } else if (tag->string == CHAT_STRING_ABSENT) {
        p->problems[CHAT_STRING_ATTRIBUTE]++;
        call->view.is_repaired = true;
    }
    enum chat_value_kind kind = tag->string == CHAT_STRING_TRUE    ? CHAT_VALUE_STRING
                                : tag->string == CHAT_STRING_FALSE ? CHAT_VALUE_JSON
                                                                   : CHAT_VALUE_GUESS;
    p->value_is_ascii = p->tag_is_ascii;
    p->state = IN_VALUE;
    return chat_calls_begin_value(&p->calls, tag->name, tag->name_len, kind, e);
}

static enum err begin_block(struct chat_parser *p, const struct chat_tag *tag, struct error *e)
{
    enum err rc = close_open(p, e);
    if (p->in_block) {
        p->problems[CHAT_BAD_TAG]++;
        return rc;
    }
    if (tag->kind != CHAT_TAG_BLOCK || !tag->is_current_name)
        p->problems[CHAT_BLOCK_NAME]++;
    if (!tag->is_well_formed)
        p->problems[CHAT_BAD_TAG]++;
    p->in_block = p->had_block = true;
    p->calls_before = p->calls.n;
    return rc;
}

enum err chat_open_tag(struct chat_parser *p, const struct chat_tag *tag, struct error *e)
{
    if (tag->kind == CHAT_TAG_PARAMETER)
        return begin_value(p, tag, e);
    if (p->calls.in_value) {
        /* A value that quotes the format looks the same as one whose closing tags are missing.
         * What follows may be quoted, too: neither this call nor a later one is safe to run. */
        p->distrusted = true;
        chat_calls_last(&p->calls)->is_broken = true;
    }
    return tag->kind == CHAT_TAG_INVOKE ? begin_call(p, tag, e) : begin_block(p, tag, e);
}

static enum err end_block(struct chat_parser *p, struct error *e)
{
    enum err rc = close_open(p, e);
    if (p->in_block && p->calls.n == p->calls_before) {
        p->problems[CHAT_EMPTY_BLOCK]++;
        p->lost_calls = true;
    }
    if (!p->in_block && !p->calls.n) {
        p->problems[CHAT_STRAY_CLOSE]++;
        return rc;
    }
    p->in_block = false;
    p->state = AFTER_CALLS;
    return rc;
}

/* A closing tag while a value is open: only its own is right, but any ends the value. */
static enum err close_value(struct chat_parser *p, const struct chat_tag *tag, struct error *e)
{
    if (tag->kind == CHAT_TAG_PARAMETER || tag->kind == CHAT_TAG_OTHER) {
        if (tag->kind == CHAT_TAG_OTHER || !tag->is_well_formed) {
            p->problems[CHAT_BAD_CLOSE]++;
            chat_calls_last(&p->calls)->view.is_repaired = true;
        }
        return end_value(p, true, e);
    }
    p->problems[CHAT_MISSING_CLOSE]++;
    chat_calls_last(&p->calls)->view.is_repaired = true;
    enum err rc = end_value(p, false, e);
    if (!rc && tag->kind == CHAT_TAG_INVOKE)
        return chat_end_call(p, false, e);
    return rc ? rc : end_block(p, e);
}

enum err chat_close_tag(struct chat_parser *p, const struct chat_tag *tag, struct error *e)
{
    if (p->calls.in_value)
        return close_value(p, tag, e);
    if (tag->kind == CHAT_TAG_BLOCK)
        return end_block(p, e);
    if (tag->kind == CHAT_TAG_PARAMETER || !p->calls.in_call) {
        p->problems[CHAT_STRAY_CLOSE]++;
        return OK;
    }
    if (tag->kind == CHAT_TAG_OTHER || !tag->is_well_formed) {
        p->problems[CHAT_BAD_CLOSE]++;
        chat_calls_last(&p->calls)->view.is_repaired = true;
    }
    return chat_end_call(p, false, e);
}
