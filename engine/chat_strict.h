/* The reference parser of finished model output: everything exactly as the format says, or an
 * error. For `agentd parse --strict` and as the yardstick of the lenient parser. */
#ifndef ENGINE_CHAT_STRICT_H
#define ENGINE_CHAT_STRICT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"

/* Parses n bytes in which special tokens stand as their literal text. *out is a new
 * {role, content, reasoning_content, tool_calls: [{type, function: {name, arguments}}]}.
 * ERR_FORMAT where the reference raises, with the byte offset; ERR_NOMEM. Bytes that are not
 * UTF-8 are ERR_FORMAT too. */
NODISCARD enum err chat_strict_parse(const void *bytes, size_t n, bool thinking, json_t **out,
                                     struct error *e);

#endif
