/* What the text verbs (tokenize, detokenize, render, parse) share: reading, writing, options.
 */
#ifndef AGENTD_VERB_TEXT_H
#define AGENTD_VERB_TEXT_H

#include <jansson.h>

#include "base/buf.h"
#include "base/options.h"
#include "engine/tokenizer.h"

#define VERB_TEXT_MAX_BYTES (256u << 20)

/* Parses the command line. True when the verb is to stop now, with *exit_code: usage errors and
 * --help. */
bool verb_text_options(const struct command *c, int argc, char **argv, void *values,
                       int *exit_code);

/* As verb_fail() for what went wrong with stdin: bad input is exit code 1, as 2 is for the
 * command line and 9 for the model. */
int verb_text_fail(const char *verb, enum err rc, const struct error *e);

/* All of stdin. */
NODISCARD enum err verb_text_read(struct buf *out, struct error *e);
/* n bytes to stdout, flushed. */
NODISCARD enum err verb_text_write(const void *bytes, size_t n, struct error *e);
/* A JSON value as one line to stdout, keys in their order, non-ASCII kept. */
NODISCARD enum err verb_text_write_json(const json_t *v, struct error *e);
/* Bytes as a JSON string: what is not UTF-8 in them becomes U+FFFD. NULL: no memory. */
json_t *verb_text_string(const void *bytes, size_t n);

#endif
