#include "engine/chat_lexer.h"

#include <assert.h>
#include <string.h>

#include "engine/chat.h"

#define ASCII_MARK "|DSML|"

/* The mark that special text number i is; the order is that of chat_special_texts. */
static enum chat_mark mark_of(size_t i)
{
    switch (i) {
    case 1:
        return CHAT_MARK_EOS;
    case 5:
        return CHAT_MARK_THINK;
    case 6:
        return CHAT_MARK_THINK_END;
    case 7:
        return CHAT_MARK_DSML;
    default:
        return CHAT_MARK_SPECIAL;
    }
}

enum match { MATCH_NONE, MATCH_PREFIX, MATCH_WHOLE };

static enum match match_text(const char *text, const uint8_t *p, size_t n)
{
    size_t len = strlen(text);
    if (n > len || memcmp(text, p, n))
        return MATCH_NONE;
    return n == len ? MATCH_WHOLE : MATCH_PREFIX;
}

/* No spelling begins another one, so that a whole match needs no look ahead. */
static enum match match_any(const uint8_t *p, size_t n, struct chat_item *item)
{
    enum match best = MATCH_NONE;
    for (size_t i = 0;; i++) {
        bool is_last = !chat_special_texts[i];
        const char *text = is_last ? ASCII_MARK : chat_special_texts[i];
        enum match m = match_text(text, p, n);
        if (m == MATCH_WHOLE) {
            item->text = text;
            item->mark = is_last ? CHAT_MARK_ASCII : mark_of(i);
            return m;
        }
        if (m == MATCH_PREFIX)
            best = m;
        if (is_last)
            return best;
    }
}

/* An added token is a mark as a whole, or text as a whole. */
void chat_lexer_push(struct chat_lexer *l, const uint8_t *bytes, size_t n, bool is_added)
{
    assert(!l->n_in);
    struct chat_item item;
    l->in = bytes;
    l->n_in = n;
    l->in_kind = CHAT_IN_PLAIN;
    if (is_added && !l->literal) {
        bool is_mark =
            match_any(bytes, n, &item) == MATCH_WHOLE && item.mark != CHAT_MARK_ASCII;
        l->in_kind = is_mark ? CHAT_IN_MARK : CHAT_IN_ADDED_TEXT;
    }
}

static bool take_held(struct chat_lexer *l, struct chat_item *item)
{
    item->kind = CHAT_ITEM_BYTE;
    item->byte = l->held[0];
    memmove(l->held, l->held + 1, --l->n_held);
    l->n_plain -= l->n_plain > 0;
    return true;
}

/* The next of what is pushed: a mark, or one byte that is no part of any. */
static bool take_next(struct chat_lexer *l, struct chat_item *item)
{
    if (l->in_kind == CHAT_IN_MARK) {
        match_any(l->in, l->n_in, item);
        item->kind = CHAT_ITEM_MARK;
        l->n_in = 0;
        return true;
    }
    item->kind = CHAT_ITEM_BYTE;
    item->byte = *l->in++;
    l->n_in--;
    return true;
}

/* The bytes that spellings begin with: "<", "｜", "|". Most text has none and is not searched.
 */
static bool may_begin(uint8_t b)
{
    return b == '<' || b == 0xef || b == '|';
}

bool chat_lexer_next(struct chat_lexer *l, bool at_end, struct chat_item *item)
{
    for (;;) {
        bool added_next = l->n_in && l->in_kind != CHAT_IN_PLAIN;
        if (l->n_plain || (l->n_held && added_next))
            return take_held(l, item);
        enum match m = l->n_held ? match_any(l->held, l->n_held, item) : MATCH_PREFIX;
        if (m == MATCH_WHOLE) {
            item->kind = l->literal ? CHAT_ITEM_MARK : CHAT_ITEM_PLAIN_MARK;
            l->n_plain = l->literal ? 0 : l->n_held;
            l->n_held = l->n_plain;
            return true;
        }
        if (m == MATCH_NONE)
            return take_held(l, item);
        if (!l->n_in)
            return at_end && l->n_held ? take_held(l, item) : false;
        if (added_next || (!l->n_held && !may_begin(*l->in)))
            return take_next(l, item);
        l->held[l->n_held++] = *l->in++;
        l->n_in--;
    }
}
