/* Tool calls as the parser finds them: names, and arguments growing into one JSON object.
 *
 * At most one call is open, and in it at most one parameter. The arguments text is always a
 * prefix of what it will be, so that it can be streamed. */
#ifndef ENGINE_CHAT_CALLS_H
#define ENGINE_CHAT_CALLS_H

#include "engine/chat_parser.h"

#define CHAT_MAX_PARAMETERS 256u

enum chat_value_kind { CHAT_VALUE_STRING, CHAT_VALUE_JSON, CHAT_VALUE_GUESS };

struct chat_calls {
    struct call {
        struct buf name, arguments;
        struct chat_call view;
        bool is_broken; /* something in it could not be read: never complete */
    } * v;
    uint32_t n, cap;
    size_t max_bytes;
    uint32_t *problems;

    bool in_call, in_value;
    enum chat_value_kind kind;
    bool drops_value; /* a duplicate's */
    struct buf raw;   /* the value so far */
    size_t n_escaped; /* of it, bytes that are in arguments already (strings) */
    struct buf keys;  /* names of the parameters so far, 0-terminated each */
    uint32_t n_params;
};

void chat_calls_fini(struct chat_calls *c);

/* Opens a call. */
NODISCARD enum err chat_calls_begin(struct chat_calls *c, const uint8_t *name, size_t n,
                                    struct error *e);
/* Opens a parameter of the open call. */
NODISCARD enum err chat_calls_begin_value(struct chat_calls *c, const uint8_t *name, size_t n,
                                          enum chat_value_kind kind, struct error *e);
NODISCARD enum err chat_calls_add_value(struct chat_calls *c, const uint8_t *bytes, size_t n,
                                        struct error *e);
/* Moves what is certain of a string's bytes into the arguments. */
NODISCARD enum err chat_calls_flush_value(struct chat_calls *c, struct error *e);
NODISCARD enum err chat_calls_end_value(struct chat_calls *c, struct error *e);
/* Closes the open call; is_complete unless it is broken or was cut. */
NODISCARD enum err chat_calls_end(struct chat_calls *c, bool was_cut, struct error *e);
/* The call that is open or was opened last. */
struct call *chat_calls_last(const struct chat_calls *c);

#endif
