/* Which ids may come next in a generated run, so that every tool call in it is well formed.
 *
 * In free text and thinking anything may come, except that the DSML mark comes behind "<" only,
 * and not at all where no tools are declared. The mark opens a call block, and from there on:
 *
 *   - the syntax of prompt.md, section 14, byte for byte, tool names of the list, names of
 *     parameters that the tool declares and that were not given yet (any name for a tool that
 *     declares none), string="true" or "false" as the declared type asks for;
 *   - a string value is free; "</" and the mark end it, the mark elsewhere in it does not come;
 *   - a string="false" value is one JSON value (json_literal.h) of a declared type, ended the
 *     same way: type, anyOf, oneOf, allOf, nullable, enum and const of the parameter count;
 *   - of enum and const one value is written, where all of them can be listed (up to 256 of up
 *     to 1000 bytes, no arrays, no objects, no "<");
 *   - the output does not end inside a block, and ends behind it.
 *
 * Syntax and names are taken greedily (constrain_is_greedy), text and values follow the
 * sampler. The state is a plain value that depends on the run's ids alone: after a crash it is
 * what it was once they were fed again. Ids that do not fit (forced ones, runs of another
 * build) switch the constraint off for the rest of the run. */
#ifndef ENGINE_CONSTRAIN_H
#define ENGINE_CONSTRAIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/json_literal.h"

struct tokenizer;

/* Tools and parameters as the constraint needs them. Immutable, any thread. */
struct call_rules;

/* functions: an array of {name, parameters} (JSON Schema), as in chat_setup.tools; NULL: none.
 * The tokenizer is borrowed. Names that no tag can hold (quotes, control bytes, over 200 bytes)
 * are left out. ERR_FORMAT: the vocabulary has no DSML mark or EOS; ERR_INVAL: no array;
 * ERR_LIMIT: over 65535 names; ERR_NOMEM.
 * Values of enum beyond that limit are not held to. */
NODISCARD enum err call_rules_new(struct call_rules **out, const json_t *functions,
                                  const struct tokenizer *t, struct error *e);
void call_rules_free(struct call_rules *r);

#define CONSTRAIN_MAX_PARAMETERS 256 /* of one tool; more are left out */

/* Zero: a run begins. */
struct constrain_state {
    uint8_t phase;              /* enum in constrain.c */
    uint8_t tail;               /* "<" and "/" at the end of text or of a value, that many */
    uint8_t gap;                /* where between two tags */
    bool any_param;             /* the call has one */
    uint16_t n;                 /* bytes of the literal or name so far */
    uint16_t tool, first, last; /* of the rules' names: the tool; those that still fit */
    uint64_t given[CONSTRAIN_MAX_PARAMETERS / 64];
    struct json_literal json;
};

/* The run goes on with id. */
void constrain_feed(const struct call_rules *r, struct constrain_state *s, uint32_t id);
bool constrain_allows(const struct call_rules *r, const struct constrain_state *s, uint32_t id);

/* The same answer for all of a vocabulary, one id after the other: what decides most of them is
 * found once. Borrows rules and state. */
struct constrain_filter {
    const struct call_rules *rules;
    const struct constrain_state *state;
    uint64_t first[4]; /* bit per byte: what an id may begin with */
    bool is_free;      /* any text may come */
    bool in_string;    /* of JSON: any that is neither quoted nor escaped */
};
void constrain_filter_init(struct constrain_filter *f, const struct call_rules *r,
                           const struct constrain_state *s);
bool constrain_filter_allows(const struct constrain_filter *f, uint32_t id);
/* The same as a list, where any text may come (free text, a value that is a string): bit id %
 * 32 of word id / 32 for each id below n. False: something else is written, nothing is set. */
bool constrain_text_mask(const struct call_rules *r, const struct constrain_state *s,
                         uint32_t n, uint32_t *words);
/* Whether the next id is syntax: the most likely of those allowed is taken. */
bool constrain_is_greedy(const struct constrain_state *s);

#endif
