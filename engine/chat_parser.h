/* Model output, as it arrives, becomes text, thinking and tool calls.
 *
 * Lenient: whatever the model writes, the parser ends in a defined state, shows no byte of
 * markup as text, and counts what was wrong. However the bytes are cut into feeds, results and
 * the joined bytes of each kind of event are the same.
 *
 * What opens and closes: fed with tokens (`literal` false), only the added ids of </think>, the
 * DSML mark and EOS; spellings of them in plain bytes are text, counted as CHAT_PLAIN_MARKUP.
 * Fed with bytes that no ids are known for (`literal` true), spellings count as the ids, and so
 * do doubled and ASCII bars around DSML.
 *
 * Text: leading newlines of thinking and of the answer, and newlines directly before </think>
 * or a call block, belong to the markup. Text and thinking events end on UTF-8 borders; bytes
 * that are not UTF-8 pass through as they are.
 *
 * Calls: a string parameter's value is the raw bytes up to the next DSML mark; a value with
 * string="false" is spliced in as it stands when it is JSON, else it becomes a string
 * (CHAT_BAD_JSON). The bytes of a call's ARGS events are, joined, its arguments: always one
 * JSON object in valid UTF-8 with distinct keys (first wins). What comes after a finished block
 * is dropped. A call that never ended (is_complete false) is reported and must never be run.
 *
 * Stop strings: where one appears in the answer, across whatever borders, the answer ends
 * before it, and all that comes later is dropped unseen. Text that may be the beginning of one
 * is held back until it is known.
 *
 * Owned by one thread. Source: prompt.md, 14.1 and the list of faults behind it. */
#ifndef ENGINE_CHAT_PARSER_H
#define ENGINE_CHAT_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum chat_problem {
    CHAT_PLAIN_MARKUP,     /* plain spelling of </think> or a DSML mark, shown as text */
    CHAT_STRAY_THINK,      /* <think>, or </think> outside thinking: dropped */
    CHAT_STRAY_SPECIAL,    /* another special token of the format: dropped */
    CHAT_CALL_IN_THINKING, /* calls opened before </think> */
    CHAT_BARE_INVOKE,      /* a call without its block */
    CHAT_BLOCK_NAME,       /* an older or wrong block name */
    CHAT_MARK_SPELLING,    /* doubled or ASCII bars, no space behind the mark, no "<" */
    CHAT_BAD_TAG,          /* a tag that says nothing known, or never ends */
    CHAT_BAD_NAME,      /* control bytes in a name (shown as U+FFFD), or no name: call lost */
    CHAT_MISSING_CLOSE, /* a parameter or call that ends without its closing tag */
    CHAT_BAD_CLOSE,     /* a value ended by another closing tag than its own */
    CHAT_STRAY_CLOSE,   /* a closing tag of nothing open: ignored */
    CHAT_STRING_ATTRIBUTE,    /* a parameter without string=: JSON if it is, else text */
    CHAT_BAD_JSON,            /* string="false", but not JSON: kept as a string */
    CHAT_DUPLICATE_PARAMETER, /* dropped, the first one stays */
    CHAT_DUPLICATE_CALL,      /* same name and arguments as an earlier call: kept */
    CHAT_EMPTY_BLOCK,
    CHAT_JUNK_IN_BLOCK,    /* text between tags: dropped */
    CHAT_AFTER_BLOCK,      /* text or calls after the block or after EOS: dropped */
    CHAT_UNFINISHED_BLOCK, /* output ended inside a block */
    CHAT_UNFINISHED_CALL,  /* output ended inside a call */
    CHAT_TOO_MANY,         /* calls past max_calls, or a call with over 256 parameters */
    CHAT_BAD_UTF8,         /* bytes in names or arguments replaced by U+FFFD */
    CHAT_N_PROBLEMS
};

/* "plain_markup", "stray_think", ...: the names in JSON. */
const char *chat_problem_name(enum chat_problem p);

enum chat_event_kind {
    CHAT_TEXT,       /* more of the answer: bytes */
    CHAT_THINKING,   /* more of the reasoning: bytes */
    CHAT_CALL_BEGIN, /* call number `call` begins: bytes is its name */
    CHAT_CALL_ARGS,  /* more of its arguments JSON: bytes */
    CHAT_CALL_END    /* it ended; see chat_parser_call() */
};

struct chat_event {
    enum chat_event_kind kind;
    uint32_t call;
    const uint8_t *bytes; /* valid during the call */
    size_t n;
};

struct chat_call {
    const char *name;      /* UTF-8 without control characters, 0-terminated */
    const char *arguments; /* JSON object; of an incomplete call: what there is */
    size_t arguments_len;
    bool is_complete; /* false: cut, or partly unreadable: never run it */
    bool is_repaired; /* closing tags were missing or wrong, or a value was not what it said */
};

struct chat_parser;

struct chat_parser_options {
    bool thinking;           /* the prompt ended with <think> */
    bool literal;            /* bytes alone: spellings are ids */
    size_t max_bytes;        /* most bytes of output; 0: 16 MiB */
    uint32_t max_calls;      /* most calls of one output; 0: 256 */
    const char *const *stop; /* borrowed; none is empty */
    uint32_t n_stop;
    /* Called during feed and finish; a code other than OK stops and is returned. NULL: no
     * events. */
    enum err (*on_event)(void *user, const struct chat_event *ev, struct error *e);
    void *user;
};

NODISCARD enum err chat_parser_new(struct chat_parser **out,
                                   const struct chat_parser_options *o, struct error *e);
void chat_parser_free(struct chat_parser *p);

/* One span: the bytes of one token and whether it is an added one (tokenizer_bytes and
 * tokenizer_is_added), or, when literal, any bytes. ERR_LIMIT past max_bytes; ERR_NOMEM;
 * what on_event returned. After an error only free. */
NODISCARD enum err chat_parser_feed(struct chat_parser *p, const void *bytes, size_t n,
                                    bool is_added, struct error *e);
/* The output ended, with EOS or without. Once. */
NODISCARD enum err chat_parser_finish(struct chat_parser *p, struct error *e);

/* ---- results: while feeding what is known so far, complete after finish --------------------
 */

const struct buf *chat_parser_text(const struct chat_parser *p);
const struct buf *chat_parser_thinking(const struct chat_parser *p);
/* How many of their bytes events were made of so far. */
size_t chat_parser_text_sent(const struct chat_parser *p);
size_t chat_parser_thinking_sent(const struct chat_parser *p);
uint32_t chat_parser_n_calls(const struct chat_parser *p);
const struct chat_call *chat_parser_call(const struct chat_parser *p, uint32_t i);
/* Counters indexed by enum chat_problem. */
const uint32_t *chat_parser_problems(const struct chat_parser *p);
/* No </think> came yet: the tape needs one before EOS (chat_segment_close_run). */
bool chat_parser_thinking_open(const struct chat_parser *p);
/* EOS was fed. */
bool chat_parser_saw_eos(const struct chat_parser *p);
/* The stop string that ended the answer, or NULL. */
const char *chat_parser_stopped(const struct chat_parser *p);
/* Inside a call block or a call that has no end: an output cut here must not run its calls. */
bool chat_parser_block_open(const struct chat_parser *p);
/* The model tried to call but some call of it was lost or nothing came of it (a tag that could
 * not be read, a call without a name, an empty or unfinished block), or plain call markup
 * stands in the answer: such an output is not an ordinary end. */
bool chat_parser_lost_calls(const struct chat_parser *p);

#endif
