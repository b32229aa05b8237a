/* What the files of the output parser share: chat_parser.c reads bytes, text and tags,
 * chat_parser_calls.c what a tag means, chat_parser_events.c tells the caller. */
#ifndef ENGINE_CHAT_PARSER_STATE_H
#define ENGINE_CHAT_PARSER_STATE_H

#include "engine/chat_calls.h"
#include "engine/chat_lexer.h"
#include "engine/chat_parser.h"
#include "engine/chat_tag.h"

#define CHAT_MAX_BARS 4

enum chat_parser_state {
    IN_THINKING,
    IN_ANSWER,
    IN_AREA,  /* among calls, outside of tags and values */
    IN_TAG,   /* behind a DSML mark */
    IN_VALUE, /* of a parameter */
    AFTER_CALLS,
    AFTER_EOS,
    STOPPED
};

/* Bytes that belong to the markup if a DSML mark follows and to the text if not: newlines, then
 * "<" or "</", then bars of a doubled spelling. */
struct hold {
    size_t n_newlines;
    uint8_t bytes[2 + 3 * CHAT_MAX_BARS];
    unsigned n, n_bars, partial; /* partial: bytes of a bar that is not whole yet */
};

struct chat_parser {
    struct chat_parser_options options;
    struct chat_lexer lexer;
    enum chat_parser_state state;
    enum chat_parser_state before_tag;
    struct hold hold;
    bool at_start; /* of thinking or answer: newlines are skipped */
    bool thinking_open, saw_eos, finished;
    bool in_block, had_block, was_cut; /* was_cut: the output ended in a tag or a call */
    bool lost_calls;
    bool distrusted; /* calls that follow are never complete */
    bool noted_rest; /* text behind the block was counted */

    struct chat_tag_text tag;
    bool tag_closes, tag_is_ascii, tag_is_odd;
    bool value_is_ascii;   /* its opening tag had ASCII bars: only then do these end it */
    size_t value_newlines; /* newlines between the value and the tag that may end it */
    uint32_t calls_before; /* calls of earlier blocks */

    size_t n_bytes;
    struct buf text, thinking;
    size_t text_sent, thinking_sent; /* bytes that events were made of */
    const char *stopped;             /* the stop string that came */
    struct chat_calls calls;
    uint32_t args_of; /* the call that events are about, and its bytes so far */
    size_t args_sent;
    uint32_t problems[CHAT_N_PROBLEMS];
};

/* An event, for a caller who wants them; his errors come back. */
NODISCARD enum err chat_send(struct chat_parser *p, enum chat_event_kind kind, uint32_t call,
                             const void *bytes, size_t n, struct error *e);
/* Text and thinking that were not sent yet: whole characters that no stop string may take back,
 * or all. */
NODISCARD enum err chat_send_texts(struct chat_parser *p, bool all, struct error *e);
/* What is new of the arguments of the call that is open. */
NODISCARD enum err chat_send_args(struct chat_parser *p, struct error *e);
/* Ends the answer where a stop string is now its end: of several the one that began first. */
void chat_look_for_stop(struct chat_parser *p);

/* A tag that is whole, or cut. */
NODISCARD enum err chat_open_tag(struct chat_parser *p, const struct chat_tag *tag,
                                 struct error *e);
NODISCARD enum err chat_close_tag(struct chat_parser *p, const struct chat_tag *tag,
                                  struct error *e);
NODISCARD enum err chat_end_call(struct chat_parser *p, bool was_cut, struct error *e);

#endif
