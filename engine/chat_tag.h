/* The inside of one DSML tag: what stands between the mark and ">". */
#ifndef ENGINE_CHAT_TAG_H
#define ENGINE_CHAT_TAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHAT_TAG_MAX_BYTES 1024u

enum chat_tag_kind {
    CHAT_TAG_BLOCK, /* "calls" and its older names */
    CHAT_TAG_INVOKE,
    CHAT_TAG_PARAMETER,
    CHAT_TAG_OTHER
};

/* A tag as it is collected. */
struct chat_tag_text {
    uint8_t bytes[CHAT_TAG_MAX_BYTES];
    size_t n;
    bool in_quotes;
};

/* Takes one more byte. True when the tag is complete with it: at ">" or at a newline outside of
 * quotes, or when it is full. */
bool chat_tag_add(struct chat_tag_text *t, uint8_t byte);

struct chat_tag {
    enum chat_tag_kind kind;
    bool is_current_name; /* a block called "calls" */
    bool is_well_formed;  /* ended by ">", quotes closed, nothing unknown in it */
    bool is_usual;        /* one space behind the mark and no further bars */
    const uint8_t *name;  /* attribute name; NULL: none. Points into the text. */
    size_t name_len;
    enum { CHAT_STRING_ABSENT, CHAT_STRING_TRUE, CHAT_STRING_FALSE } string;
};

/* Reads a collected tag; whole is false when something else than ">" ended it. */
struct chat_tag chat_tag_read(const struct chat_tag_text *t, bool whole);

#endif
