/* Model output as single bytes and marks, whatever pieces it arrives in.
 *
 *     chat_lexer_push(&l, bytes, n, is_added);      (all of it must be taken before the next
 * push) while (chat_lexer_next(&l, at_end, &item))
 *         ...
 *
 * In literal mode spellings in plain bytes are marks. Otherwise only added tokens are, and a
 * plain spelling comes as CHAT_ITEM_PLAIN_MARK, followed by its bytes. */
#ifndef ENGINE_CHAT_LEXER_H
#define ENGINE_CHAT_LEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum chat_mark {
    CHAT_MARK_EOS,
    CHAT_MARK_THINK,
    CHAT_MARK_THINK_END,
    CHAT_MARK_DSML,
    CHAT_MARK_ASCII, /* |DSML|; only in literal mode */
    CHAT_MARK_SPECIAL
};

enum chat_item_kind { CHAT_ITEM_BYTE, CHAT_ITEM_MARK, CHAT_ITEM_PLAIN_MARK };

struct chat_item {
    enum chat_item_kind kind;
    uint8_t byte;
    enum chat_mark mark;
    const char *text; /* of a mark: its spelling, 0-terminated */
};

struct chat_lexer {
    bool literal;
    uint8_t held[64]; /* bytes that may begin a spelling */
    size_t n_held;
    size_t n_plain; /* of them, that many are known to be plain bytes */
    const uint8_t *in;
    size_t n_in;
    enum { CHAT_IN_PLAIN, CHAT_IN_MARK, CHAT_IN_ADDED_TEXT } in_kind;
};

void chat_lexer_push(struct chat_lexer *l, const uint8_t *bytes, size_t n, bool is_added);
/* False when more input is needed. at_end: nothing comes any more, held bytes are plain. */
bool chat_lexer_next(struct chat_lexer *l, bool at_end, struct chat_item *item);

#endif
