/* JSON Schema for tool parameters: the subset that tools use, with bounds on everything.
 *
 * Known keywords: type (a name or a list of names), required, properties, additionalProperties
 * (true, false or a schema), enum, const, items, minItems, maxItems, minimum, maximum,
 * exclusiveMinimum, exclusiveMaximum, minLength, maxLength (in code points), anyOf. Annotations
 * (title, description, default, examples, format, $schema, ...) are ignored. A keyword that
 * would constrain values but is not in this list ($ref, pattern, allOf, oneOf, not, ...) does
 * not make a declaration fail: it is not enforced, and schema_check() may so accept more than
 * it should. The schema is still shown to the model whole.
 *
 * Both arguments may be hostile: depth, size and work are capped, nothing recurses deeper than
 * SCHEMA_MAX_DEPTH, and no regular expression is ever compiled. Pure functions, any thread. */
#ifndef TOOLS_SCHEMA_H
#define TOOLS_SCHEMA_H

#include <jansson.h>

#include "base/err.h"

#define SCHEMA_MAX_DEPTH 32          /* nesting of the schema and of the value */
#define SCHEMA_MAX_BYTES (256 << 10) /* of one schema as JSON text */
#define SCHEMA_MAX_STEPS 200000 /* (schema node, value node) pairs looked at in one check */

/* Whether a declared schema can be used for parameters: an object whose known keywords are well
 * formed, within the depth and size above. ERR_INVAL or ERR_LIMIT; the message has the path. */
NODISCARD enum err schema_valid(const json_t *schema, struct error *e);

/* Whether `value` fits. ERR_INVAL with a message meant for the model: the path of the first
 * fault, what was found and what is wanted ("arguments.limit: got string \"ten\", want
 * integer"). ERR_LIMIT when depth or steps run out. `value` is called "arguments" in messages.
 */
NODISCARD enum err schema_check(const json_t *schema, const json_t *value, struct error *e);

#endif
