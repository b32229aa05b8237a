/* Pieces of the chat format that whole conversations and input segments share. */
#ifndef ENGINE_CHAT_INTERNAL_H
#define ENGINE_CHAT_INTERNAL_H

#include "engine/chat.h"

/* The line of reasoning effort at the head of the first message. */
NODISCARD enum err chat_add_effort(struct prompt *p, uint32_t effort, struct error *e);
/* What stands in front of the model's answer: the assistant token, then <think> or </think>. */
NODISCARD enum err chat_add_generation(const struct chat_ids *ids, struct prompt *p,
                                       bool thinking, struct error *e);
/* A text in which bytes 1, 2 and 3 stand for the DSML mark, <think> and </think>. */
NODISCARD enum err chat_add_template(const struct chat_ids *ids, struct prompt *p,
                                     const char *text, struct error *e);

#define CHAT_DSML "\1"
#define CHAT_THINK "\2"
#define CHAT_THINK_END "\3"

#endif
