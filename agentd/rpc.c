#include "agentd/rpc.h"

#include <stdbool.h>
#include <string.h>

#include "base/json.h"

void rpc_message_fini(struct rpc_message *m)
{
    json_decref(m->root);
    *m = (struct rpc_message){0};
}

/* The id first, so that even a refused request is answered under its own id. */
static enum err read_id(struct rpc_message *m, struct error *e)
{
    json_t *id = json_object_get(m->root, "id");

    if (!id)
        return OK;
    if (json_is_string(id) && json_string_length(id) > RPC_MAX_ID)
        return err_set(e, ERR_LIMIT, "id: %zu bytes, at most %d", json_string_length(id),
                       RPC_MAX_ID);
    if (!json_is_string(id) && !json_is_integer(id) && !json_is_null(id))
        return err_set(e, ERR_FORMAT, "id: must be a string, an integer or null");
    m->id = id;
    return OK;
}

static enum err read_request(struct rpc_message *m, struct error *e)
{
    json_t *version = json_object_get(m->root, "jsonrpc");
    json_t *method = json_object_get(m->root, "method");
    json_t *params = json_object_get(m->root, "params");
    enum err rc = read_id(m, e);

    if (rc)
        return rc;
    if (!json_is_string(version) || strcmp(json_string_value(version), "2.0") != 0)
        return err_set(e, ERR_FORMAT, "jsonrpc: must be \"2.0\"");
    if (!json_is_string(method) || json_string_length(method) == 0)
        return err_set(e, ERR_FORMAT, "method: must be a string");
    if (json_is_null(params))
        params = NULL;
    if (params && !json_is_object(params))
        return err_set(e, ERR_FORMAT, "params: must be an object (by name, not by position)");
    m->method = json_string_value(method);
    m->params = params;
    return OK;
}

enum err rpc_parse(const char *line, size_t len, struct rpc_message *out, enum rpc_code *code,
                   struct error *e)
{
    static const struct json_limits limits = {.max_bytes = RPC_MAX_LINE,
                                              .max_depth = RPC_MAX_DEPTH};
    enum err rc;

    *out = (struct rpc_message){0};
    *code = RPC_PARSE_ERROR;
    if ((rc = json_parse(line, len, &limits, &out->root, e)))
        return rc;
    *code = RPC_INVALID_REQUEST;
    if (json_is_array(out->root))
        return err_set(e, ERR_FORMAT, "batches are not taken: send one request a line");
    if (!json_is_object(out->root))
        return err_set(e, ERR_FORMAT, "a request must be an object");
    return read_request(out, e);
}

enum rpc_code rpc_code(enum err code)
{
    switch (code) {
    case ERR_INVAL:
        return RPC_INVALID_PARAMS;
    case ERR_NOTFOUND:
        return RPC_OURS;
    case ERR_CONFLICT:
        return RPC_OURS - 1;
    case ERR_BUSY:
        return RPC_OURS - 2;
    case ERR_DENIED:
        return RPC_OURS - 3;
    case ERR_LIMIT:
        return RPC_OURS - 4;
    case ERR_CORRUPT:
    case ERR_FORMAT:
        return RPC_OURS - 5;
    case ERR_UNSUPPORTED:
        return RPC_OURS - 6;
    case ERR_IO:
    case ERR_NOMEM:
        return RPC_OURS - 7;
    case ERR_TIMEOUT:
    case ERR_CLOSED:
        return RPC_OURS - 8;
    case ERR_GPU:
        return RPC_OURS - 9;
    case ERR_CANCELLED:
        return RPC_CANCELLED;
    case OK:
        break;
    }
    return RPC_INTERNAL_ERROR;
}

static bool is_retryable(enum err code)
{
    return code == ERR_BUSY || code == ERR_TIMEOUT || code == ERR_NOMEM;
}

static const char *hint(enum rpc_code code, enum err kind)
{
    if (code == RPC_METHOD_NOT_FOUND)
        return "initialize lists what this daemon can do";
    if (kind == ERR_NOTFOUND)
        return "session/list shows what is there";
    if (kind == ERR_CONFLICT || kind == ERR_BUSY)
        return "session/wait returns when the turn has ended";
    if (kind == ERR_LIMIT)
        return "ask for less, raise the limit it names, or make room if a disk is full";
    if (kind == ERR_CORRUPT)
        return "what is stored was damaged: see the daemon's log";
    return "";
}

json_t *rpc_result(json_t *id, json_t *result)
{
    return json_pack("{s:s, s:O?, s:o}", "jsonrpc", "2.0", "id", id, "result", result);
}

json_t *rpc_error(json_t *id, enum rpc_code code, const struct error *e)
{
    return json_pack(
        "{s:s, s:O?, s:{s:i, s:s, s:{s:s, s:b, s:s}}}", "jsonrpc", "2.0", "id", id, "error",
        "code", (int)code, "message", e->msg, "data", "kind", err_name(e->code), "retryable",
        code == RPC_OVERLOADED || is_retryable(e->code), "hint", hint(code, e->code));
}

json_t *rpc_notification(const char *method, json_t *params)
{
    return json_pack("{s:s, s:s, s:o}", "jsonrpc", "2.0", "method", method, "params", params);
}
