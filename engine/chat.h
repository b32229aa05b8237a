/* The model's chat format: conversations and input segments become prompts.
 *
 * Two users. chat_render() takes a whole conversation as OpenAI-style JSON, as the reference
 * encoder does, and is what `agentd render` prints. A session never renders its past: it
 * appends one input segment after another, and struct chat_segment makes these. With thinking
 * kept (drop_thinking false) the ids of the segments and of the runs between them, put
 * together, are the ids of the whole conversation rendered at once.
 *
 * Source: prompt.md, section 14; golden/e_encoding. */
#ifndef ENGINE_CHAT_H
#define ENGINE_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/prompt.h"

enum chat_task {
    CHAT_TASK_ACTION,
    CHAT_TASK_QUERY,
    CHAT_TASK_AUTHORITY,
    CHAT_TASK_DOMAIN,
    CHAT_TASK_TITLE,
    CHAT_TASK_READ_URL,
    CHAT_N_TASKS
};

/* The special ids of the format, in the order in which tokenizer_new_bytes() numbers them from
 * 256. Those a vocabulary lacks are TOKEN_NONE; only using one is an error. */
struct chat_ids {
    uint32_t bos, eos;
    uint32_t system, user, assistant;
    uint32_t think, think_end;
    uint32_t dsml;
    uint32_t latest_reminder;
    uint32_t task[CHAT_N_TASKS];
    uint32_t image;
};

/* Their texts in that order, NULL behind the last. */
extern const char *const chat_special_texts[];

/* ERR_FORMAT when BOS, EOS, System, User, Assistant, <think>, </think> or the DSML mark is
 * missing. */
NODISCARD enum err chat_ids_find(struct chat_ids *out, const struct tokenizer *t,
                                 struct error *e);

#define CHAT_EFFORT_DEFAULT 75u

/* Reasoning effort from JSON: NULL or null (the default), an integer 1..100, "low" (50), "high"
 * (75), "max" (100). Anything else is ERR_INVAL. */
NODISCARD enum err chat_effort(const json_t *v, uint32_t *out, struct error *e);

/* ---- whole conversations ------------------------------------------------------------------
 */

struct chat_options {
    bool thinking;      /* mode "thinking", else "chat" */
    bool drop_thinking; /* reasoning before the last user-like message is left out; messages
                         * that define tools turn this off */
    bool continues;     /* no BOS: the prompt goes on from a context */
    uint32_t effort;    /* 1..100 */
};

/* Appends the messages (an array). ERR_INVAL names the message and the field at fault; out may
 * then hold a part. Errors of prompt_add. */
NODISCARD enum err chat_render(const struct chat_ids *ids, const json_t *messages,
                               const struct chat_options *o, struct prompt *out,
                               struct error *e);

/* Appends the tools text. tools: an array of OpenAI tools ({type, function, namespace?}) or of
 * bare function objects ({name, description, parameters}). ERR_INVAL names the tool. */
NODISCARD enum err chat_render_tools(const struct chat_ids *ids, const json_t *tools,
                                     struct prompt *out, struct error *e);

/* ---- input segments of a session ----------------------------------------------------------
 */

/* One input segment under construction. Call order: chat_segment_open() on an empty tape, or
 * chat_segment_close_run() when the run before did not end with EOS; then any of user,
 * tool_result (in call order) and note, at least one; then chat_segment_finish(). Results and
 * user text that follow each other become one user turn, joined by a blank line. */
struct chat_segment {
    const struct chat_ids *ids;
    bool thinking;
    bool in_user; /* a user turn is open */
    bool has_block;
    struct prompt prompt;
};

#define CHAT_SEGMENT_INIT(ids_, thinking_, max_bytes)                                          \
    {                                                                                          \
        (ids_), (thinking_), false, false, PROMPT_INIT(max_bytes)                              \
    }

/* What a session says before its first message. Nothing of it may change later without changing
 * every id of the tape. */
struct chat_setup {
    uint32_t effort;    /* 1..100; used in thinking mode */
    const void *system; /* NULL: no system message */
    size_t system_len;
    const json_t *tools; /* as chat_render_tools; NULL or empty: none */
};

void chat_segment_fini(struct chat_segment *s);

/* BOS, and the system message with effort, text and tools. */
NODISCARD enum err chat_segment_open(struct chat_segment *s, const struct chat_setup *setup,
                                     struct error *e);
/* Closes a run that ended without EOS (cancel, limit, failure): </think> if its thinking is
 * still open (chat_parser_thinking_open), then EOS. An unfinished call block stays as it is. */
NODISCARD enum err chat_segment_close_run(struct chat_segment *s, bool thinking_open,
                                          struct error *e);
/* A user's text; any bytes. */
NODISCARD enum err chat_segment_user(struct chat_segment *s, const void *bytes, size_t n,
                                     struct error *e);
/* One tool result; any bytes. */
NODISCARD enum err chat_segment_tool_result(struct chat_segment *s, const void *bytes, size_t n,
                                            struct error *e);
/* The same as its bytes come: begin, any number of prompt_add(&s->prompt, ...), end. */
NODISCARD enum err chat_segment_result_begin(struct chat_segment *s, struct error *e);
NODISCARD enum err chat_segment_result_end(struct chat_segment *s, struct error *e);
/* A note of the daemon to the model: a system message in mid-conversation. */
NODISCARD enum err chat_segment_note(struct chat_segment *s, const void *bytes, size_t n,
                                     struct error *e);
/* Adds <Assistant> and <think> or </think>, and appends the ids of the segment to out.
 * ERR_INVAL for a segment without user text, result or note. */
NODISCARD enum err chat_segment_finish(struct chat_segment *s, const struct tokenizer *t,
                                       struct ids *out, struct error *e);

#endif
