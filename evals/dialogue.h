/* A conversation in the model's chat format that never stops, and what other arms say at any
 * point of it: stopped there, resumed, asked the same.
 *
 * dialogue_say() gives the session one input segment and lets the model answer, greedily; both
 * go on the tape. dialogue_again() then takes the state as it was before that input to a second
 * engine, resumes there and does the same.
 *
 * Or one point and many questions: dialogue_tell() gives the session an answer it does not
 * choose and takes the state there, dialogue_resume() takes that to the second engine, and
 * dialogue_ask() asks either of them in a fork: a copy of the process (spawn_copy), so that
 * what never stopped has not even been copied out and in, and is asked the next question as if
 * the one before had not been. The tape stays as it is. One thread. */
#ifndef EVALS_DIALOGUE_H
#define EVALS_DIALOGUE_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/chat.h"
#include "evals/arm.h"

struct call_rules;

struct dialogue {
    const struct tokenizer *tokenizer; /* of c's engine */
    struct chat_ids chat;
    struct call_rules *rules;
    const json_t *tools;   /* borrowed; NULL: none */
    struct arm c, a;       /* never stopped; resumed */
    struct tape_view view; /* c's tape */
    uint32_t *ids;
    struct segment *segments;
    uint64_t ids_cap;
    size_t segments_cap;
    struct ids input;       /* of the last dialogue_say() */
    struct arm_state state; /* before it; its n_tokens is the resume point */
    uint32_t max_tokens;    /* of the answer */
};

struct dialogue_options {
    const char *model;
    struct engine_options engine;
    const json_t *tools; /* functions; borrowed */
    uint64_t max_tokens; /* of the tape */
};

/* What the model said: its ids, the text of its answer and its first complete call. */
struct dialogue_answer {
    struct ids ids;
    struct buf text, name, arguments; /* name empty: no call */
    struct buf rows; /* struct arm_row of input and answer; of dialogue_ask() alone */
};
void dialogue_answer_init(struct dialogue_answer *a);
void dialogue_answer_fini(struct dialogue_answer *a);

/* ERR_FORMAT: the model has no chat format. *d is zeroed or open; fini in either case. */
NODISCARD enum err dialogue_open(struct dialogue *d, const struct dialogue_options *o,
                                 struct error *e);
void dialogue_fini(struct dialogue *d);
/* Forgets tape and sequences, keeps the engines. */
NODISCARD enum err dialogue_reset(struct dialogue *d, struct error *e);

/* A user's text, or a tool's result, and at most max_tokens of answer. ERR_LIMIT: the tape is
 * full. */
NODISCARD enum err dialogue_say(struct dialogue *d, bool is_result, const struct buf *text,
                                uint32_t max_tokens, struct dialogue_answer *out,
                                struct error *e);
/* The same after a resume. rows: those of the input and the answer against the session's. */
NODISCARD enum err dialogue_again(struct dialogue *d, enum resume_mode mode,
                                  struct dialogue_answer *out, struct arm_difference *rows,
                                  uint64_t *n_replayed, struct error *e);
/* A user's text and an answer that is given; d->state is what follows them. */
NODISCARD enum err dialogue_tell(struct dialogue *d, const struct buf *text, const char *answer,
                                 struct error *e);
/* The second engine stands at d->state. */
NODISCARD enum err dialogue_resume(struct dialogue *d, enum resume_mode mode,
                                   uint64_t *n_replayed, struct error *e);
/* A user's text, in a fork of one of the arms, both of which stand at the tape's end.
 * ERR_UNSUPPORTED: the process has more than one thread. */
NODISCARD enum err dialogue_ask(struct dialogue *d, struct arm *a, const struct buf *text,
                                uint32_t max_tokens, struct dialogue_answer *out,
                                struct error *e);
/* The rows of two answers of dialogue_ask(), as arm_compare(). */
struct arm_difference dialogue_compare(const struct dialogue_answer *a,
                                       const struct dialogue_answer *reference);
bool dialogue_same_ids(const struct dialogue_answer *a, const struct dialogue_answer *b);
/* The next action: tool and arguments where one is called, else the text. */
bool dialogue_same_action(const struct dialogue_answer *a, const struct dialogue_answer *b);
/* Tape position behind the first appearance of text at or after `from`; UINT64_MAX: none. */
NODISCARD enum err dialogue_find(const struct dialogue *d, uint64_t from, const char *text,
                                 uint64_t *out, struct error *e);

#endif
