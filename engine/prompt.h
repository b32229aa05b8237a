/* A prompt under construction: plain bytes, and special ids at places between them.
 *
 * This is the only road from text to a tape. Plain bytes never become a special id, whatever
 * they spell; a special id never comes from bytes. Plain pieces that touch are one text when
 * they are tokenised, so that merges reach across the joint exactly as the reference, which
 * tokenises the whole rendered string, has them. Nothing here ever tokenises a rendered string.
 */
#ifndef ENGINE_PROMPT_H
#define ENGINE_PROMPT_H

#include "base/buf.h"
#include "engine/tokenizer.h"

struct prompt_mark {
    size_t at; /* after this many plain bytes */
    uint32_t id;
};

struct prompt {
    struct buf text; /* all plain bytes, in order */
    struct prompt_mark *marks;
    size_t n_marks, cap_marks;
};

/* max_bytes caps the plain bytes and the number of marks. */
#define PROMPT_INIT(max_bytes)                                                                 \
    {                                                                                          \
        BUF_INIT(max_bytes), NULL, 0, 0                                                        \
    }

void prompt_fini(struct prompt *p);

/* ERR_LIMIT, ERR_NOMEM; the prompt is as it was. */
NODISCARD enum err prompt_add(struct prompt *p, const void *bytes, size_t n, struct error *e);
NODISCARD enum err prompt_add_str(struct prompt *p, const char *s, struct error *e);
/* ERR_INVAL for TOKEN_NONE: the tokenizer has no such token. */
NODISCARD enum err prompt_add_id(struct prompt *p, uint32_t id, struct error *e);

/* Appends the ids. Errors of tokenizer_encode; out is then as it was. */
NODISCARD enum err prompt_ids(const struct prompt *p, const struct tokenizer *t,
                              struct ids *out, struct error *e);
/* How much of a prompt prompt_ids_open() has given: so many marks, and plain bytes in all. */
struct prompt_place {
    size_t mark, at;
};
/* While the prompt still grows: appends the ids from `place` on that nothing added later can
 * change, and moves it on. Ids of all calls, in order, are a prefix of those that prompt_ids()
 * will give. Errors as there; out and place are then as they were. */
NODISCARD enum err prompt_ids_open(const struct prompt *p, const struct tokenizer *t,
                                   struct prompt_place *place, struct ids *out,
                                   struct error *e);

/* Appends what it reads like, special ids as their text: for people and for golden files. */
NODISCARD enum err prompt_text(const struct prompt *p, const struct tokenizer *t,
                               struct buf *out, struct error *e);

#endif
