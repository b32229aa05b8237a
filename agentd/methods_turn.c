/* Methods that drive and watch turns. */
#include <string.h>

#include "agentd/conn.h"
#include "agentd/cut.h"
#include "agentd/daemon.h"
#include "agentd/events.h"
#include "agentd/live.h"
#include "agentd/methods.h"
#include "agentd/rpc.h"
#include "agentd/turn.h"
#include "agentd/user_prompt.h"
#include "agentd/verify.h"
#include "agentd/wait.h"
#include "base/json.h"

void method_session_prompt(struct request *r)
{
    live_resolve(r, turn_prompt);
}

void method_session_steer(struct request *r)
{
    live_resolve(r, turn_steer);
}

void method_session_rewind(struct request *r)
{
    live_resolve(r, cut_rewind);
}

void method_session_compact(struct request *r)
{
    live_resolve(r, cut_compact);
}

static void wait_session(struct request *r, struct live *s)
{
    int64_t timeout_ms = -1;
    const char *turn = NULL;
    struct error e;

    if (json_opt_int(r->params, "timeoutMs", 0, INT32_MAX, &timeout_ms, &e) ||
        json_opt_str(r->params, "turnId", &turn, NULL, &e))
        request_fail_params(r, &e);
    else
        wait_begin(r, s, turn, timeout_ms);
}

void method_session_wait(struct request *r)
{
    live_resolve(r, wait_session);
}

static void cancel_session(struct request *r, struct live *s)
{
    const char *turn = NULL;
    struct error e;

    if (json_opt_str(r->params, "turnId", &turn, NULL, &e))
        request_fail_params(r, &e);
    else
        request_reply(r,
                      json_pack("{s:s, s:b}", "id", s->id, "cancelled", turn_cancel(s, turn)));
}

void method_session_cancel(struct request *r)
{
    live_resolve(r, cancel_session);
}

static void attach_session(struct request *r, struct live *s)
{
    int64_t from = (int64_t)s->last_seq;
    struct peer *p = r->peer;
    const char *mode = NULL;
    struct error e;

    if (json_opt_int(r->params, "fromSeq", 0, INT64_MAX, &from, &e) ||
        json_opt_str(r->params, "mode", &mode, NULL, &e)) {
        request_fail_params(r, &e);
        return;
    }
    if ((uint64_t)from > s->last_seq) {
        err_set(&e, ERR_INVAL, "\"fromSeq\": the newest event is %llu",
                (unsigned long long)s->last_seq);
        request_fail_params(r, &e);
        return;
    }
    request_reply(r,
                  json_pack("{s:s, s:I, s:s, s:s}", "id", s->id, "seq", (json_int_t)s->last_seq,
                            "state", live_state_name(s->state), "reason", s->reason));
    if (p && events_attach(s, p, (uint64_t)from, &e))
        conn_close(p->conn); /* it was promised events that cannot come */
}

void method_session_attach(struct request *r)
{
    live_resolve(r, attach_session);
}

static void detach_session(struct request *r, struct live *s)
{
    if (r->peer)
        events_detach(s, r->peer);
    request_reply(r, json_pack("{s:s}", "id", s->id));
}

void method_session_detach(struct request *r)
{
    live_resolve(r, detach_session);
}

static void verify_session(struct request *r, struct live *s)
{
    verify_begin(r, s);
}

void method_session_verify(struct request *r)
{
    live_resolve(r, verify_session);
}

void method_approval_list(struct request *r)
{
    request_reply(r, json_pack("{s:o}", "approvals", turn_approvals(r->daemon)));
}

/* First answer wins. */
static void refuse_answer(struct request *r, enum err rc, const struct error *e)
{
    if (rc == ERR_CONFLICT)
        request_fail_kind(r, rc, "already_resolved", e);
    else
        request_fail(r, rc, e);
}

void method_approval_resolve(struct request *r)
{
    static const char *const names[] = {"once", "session", "reject", NULL};
    const char *id = NULL;
    int outcome = 0;
    struct error e;
    enum err rc;

    if (json_need_str(r->params, "approvalId", &id, NULL, &e) ||
        json_need_enum(r->params, "outcome", names, &outcome, &e)) {
        request_fail_params(r, &e);
        return;
    }
    if ((rc = turn_resolve_approval(r->daemon, id, (enum turn_outcome)outcome, &e)))
        refuse_answer(r, rc, &e);
    else
        request_reply(r, json_pack("{s:s}", "outcome", names[outcome]));
}

/* content of a result: a text, or parts of text as a prompt has them. */
static enum err read_content(const json_t *params, struct buf *out, struct error *e)
{
    const char *text = NULL;
    size_t n = 0;

    if (json_is_array(json_object_get(params, "content")))
        return user_prompt_read_text(params, out, e);
    enum err rc = json_need_str(params, "content", &text, &n, e);
    return rc ? rc : buf_add(out, text, n, e);
}

static void take_result(struct request *r, struct live *s)
{
    AUTO(buf) struct buf content = BUF_INIT(RPC_MAX_LINE);
    const char *id = NULL;
    bool is_error = false;
    struct error e;
    enum err rc;

    if (json_need_str(r->params, "callId", &id, NULL, &e) ||
        read_content(r->params, &content, &e) ||
        json_opt_bool(r->params, "isError", &is_error, &e)) {
        request_fail_params(r, &e);
        return;
    }
    if ((rc = turn_tool_result(s, id, buf_str(&content), content.len, is_error, &e)))
        refuse_answer(r, rc, &e);
    else
        request_reply(r, json_object());
}

void method_tool_result(struct request *r)
{
    live_resolve(r, take_result);
}
