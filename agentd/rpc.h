/* JSON-RPC 2.0 over lines: what one line of the control socket means, and what goes back.
 *
 * A line is one request or one notification; batches, responses, duplicate keys, NUL (raw or as
 * \u0000), bytes that are not UTF-8 and nesting deeper than RPC_MAX_DEPTH are refused with an
 * error that says what and where. Nothing here knows a method's name. Pure functions: any
 * thread. */
#ifndef AGENTD_RPC_H
#define AGENTD_RPC_H

#include <stddef.h>

#include <jansson.h>

#include "base/err.h"

#define RPC_MAX_LINE ((size_t)16 << 20) /* bytes of a line, without its newline */
#define RPC_MAX_DEPTH 64                /* objects and arrays open at once */
#define RPC_MAX_ID 128                  /* bytes of a request id that is a string */

/* Codes on the wire. RPC_OURS and the nine below it are given to enum err by rpc_code(). */
enum rpc_code {
    RPC_PARSE_ERROR = -32700,
    RPC_INVALID_REQUEST = -32600,
    RPC_METHOD_NOT_FOUND = -32601,
    RPC_INVALID_PARAMS = -32602,
    RPC_INTERNAL_ERROR = -32603,
    RPC_CANCELLED = -32800,
    RPC_OVERLOADED = -32001,
    RPC_OURS = -32010
};

/* One parsed line. `root` owns everything; the other members are borrowed from it. */
struct rpc_message {
    json_t *root;
    json_t *id;         /* string, integer or null as sent; NULL for a notification */
    const char *method; /* not empty */
    json_t *params;     /* object, or NULL when absent */
};

void rpc_message_fini(struct rpc_message *m);

/* Parses `len` bytes (the newline taken off). On failure *out holds at most the id, so that the
 * answer can carry it, *code is RPC_PARSE_ERROR or RPC_INVALID_REQUEST and e says why; out must
 * be finished in every case. Errors: ERR_FORMAT, ERR_LIMIT (length, depth), ERR_NOMEM. */
NODISCARD enum err rpc_parse(const char *line, size_t len, struct rpc_message *out,
                             enum rpc_code *code, struct error *e);

/* The wire code of a failure below the protocol. */
enum rpc_code rpc_code(enum err code);

/* Whole messages, ready to be sent; NULL when out of memory. `id` is borrowed (NULL writes
 * null); `result` and `params` are taken. The data of an error is {kind, retryable, hint}. */
json_t *rpc_result(json_t *id, json_t *result);
json_t *rpc_error(json_t *id, enum rpc_code code, const struct error *e);
json_t *rpc_notification(const char *method, json_t *params);

#endif
