/* Runs that call tools all the time: rules for functions, and biases with which a model of
 * random weights writes call after call. */
#ifndef TESTS_SUPPORT_CALLING_H
#define TESTS_SUPPORT_CALLING_H

#include "engine/call_rules.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"

struct calling {
    struct tokenizer *tokenizer;
    struct call_rules *rules;
    uint32_t mark;             /* the id that begins each tag of a call */
    struct logit_bias bias[3]; /* ids ascending */
};

/* functions: a JSON list, as for call_rules_new(). */
void calling_open(struct calling *c, const char *model, const char *functions);
void calling_close(struct calling *c);
/* The id of a byte. */
uint32_t calling_byte(const struct calling *c, char byte);

#endif
