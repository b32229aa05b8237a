#include "agentd/protocol.h"

#include <string.h>

#include "agentd/conn.h"
#include "agentd/daemon.h"
#include "agentd/methods.h"

static const struct {
    const char *name;
    void (*handle)(struct request *r);
} methods[] = {
    {"initialize", method_initialize},
    {"session/new", method_session_new},
    {"session/list", method_session_list},
    {"session/get", method_session_get},
    {"session/attach", method_session_attach},
    {"session/detach", method_session_detach},
    {"session/prompt", method_session_prompt},
    {"session/wait", method_session_wait},
    {"session/steer", method_session_steer},
    {"session/rewind", method_session_rewind},
    {"session/compact", method_session_compact},
    {"session/cancel", method_session_cancel},
    {"session/fork", method_session_fork},
    {"session/rename", method_session_rename},
    {"session/delete", method_session_delete},
    {"session/usage", method_session_usage},
    {"session/verify", method_session_verify},
    {"session/export", method_session_export},
    {"session/import", method_session_import},
    {"session/diff", method_session_diff},
    {"search", method_search},
    {"approval/list", method_approval_list},
    {"approval/resolve", method_approval_resolve},
    {"tool/result", method_tool_result},
    {"tool/list", method_tool_list},
    {"model/status", method_model_status},
    {"daemon/status", method_daemon_status},
    {"kv/gc", method_kv_gc},
    {"kv/stats", method_kv_stats},
    {"kv/pin", method_kv_pin},
    {"kv/drop", method_kv_drop},
    {"store/fsck", method_store_fsck},
    {"namespace/drop", method_namespace_drop},
    {"daemon/shutdown", method_daemon_shutdown},
    {"$/cancel_request", method_cancel_request},
};

#define N_METHODS (sizeof(methods) / sizeof(methods[0]))

json_t *protocol_methods(void)
{
    json_t *list = json_array();

    for (size_t i = 0; i < N_METHODS; i++)
        json_array_append_new(list, json_string(methods[i].name));
    return list;
}

static void refuse(struct conn *c, json_t *id, enum rpc_code code, const struct error *e)
{
    json_t *answer = rpc_error(id, code, e);

    if (code == RPC_OVERLOADED)
        json_object_set_new(json_object_get(json_object_get(answer, "error"), "data"),
                            "retryAfterMs", json_integer(100));
    conn_send_reply(c, answer);
}

static void call(struct daemon *d, struct peer *p, struct rpc_message *m)
{
    struct request *r = NULL;
    struct error e;

    if (request_new(p, m, &r, &e)) {
        refuse(p->conn, m->id, RPC_OVERLOADED, &e);
        return;
    }
    for (size_t i = 0; i < N_METHODS; i++)
        if (strcmp(methods[i].name, m->method) == 0) {
            r->method = methods[i].name;
            if (d->stopping && strcmp(r->method, "daemon/status") != 0) {
                err_set(&e, ERR_BUSY, "the daemon is stopping");
                request_fail(r, ERR_BUSY, &e);
                return;
            }
            methods[i].handle(r);
            return;
        }
    err_set(&e, ERR_UNSUPPORTED, "no method is called %.64s", m->method);
    request_fail_code(r, RPC_METHOD_NOT_FOUND, &e);
}

void protocol_line(struct daemon *d, struct conn *c, const char *line, size_t len)
{
    struct peer *p = *conn_user(c);
    struct rpc_message m;
    enum rpc_code code;
    struct error e;

    if (rpc_parse(line, len, &m, &code, &e))
        refuse(c, m.id, code, &e);
    else
        call(d, p, &m);
    rpc_message_fini(&m);
}

void protocol_overlong(struct daemon *d, struct conn *c)
{
    struct error e;

    (void)d;
    err_set(&e, ERR_LIMIT, "a line has at most %zu bytes", RPC_MAX_LINE);
    refuse(c, NULL, RPC_INVALID_REQUEST, &e);
}
