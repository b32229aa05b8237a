/* A second socket in front of a daemon's: what goes through it is kept, both ways. */
#ifndef TESTS_SUPPORT_WIRE_TAP_H
#define TESTS_SUPPORT_WIRE_TAP_H

#include <jansson.h>

struct wire_tap;

/* Listens at `path` and connects each client to the daemon at `daemon`. */
struct wire_tap *wire_tap_new(const char *path, const char *daemon);
/* Ends its thread. All lines in the order in which they were read, to be decref'd:
 * [{connection: integer, from: "client"|"daemon", line: any}, ...]. A line that is no JSON
 * fails the program. */
json_t *wire_tap_free(struct wire_tap *t);

#endif
