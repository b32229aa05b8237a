#include "evals/ask.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"

#define BUSY_NAP_MS 5
#define BUSY_PATIENCE_MS 30000

static enum err take_id(const json_t *answer, char id[27], struct error *e)
{
    const char *text;
    enum err rc = json_need_str(answer, "id", &text, NULL, e);
    if (!rc)
        snprintf(id, 27, "%s", text);
    return rc;
}

/* The session that has this name, else what `method` makes. Takes params. */
static enum err find_or_make(struct client *c, const char *name, const char *method,
                             json_t *take_params, char id[27], struct error *e)
{
    json_auto_t *params = take_params, *answer = NULL;
    enum err rc = client_call(c, "session/get", json_pack("{s:s}", "id", name), &answer, e);
    if (rc == ERR_NOTFOUND)
        rc = client_call(c, method, json_incref(params), &answer, e);
    return rc ? rc : take_id(answer, id, e);
}

enum err ask_open(struct client *c, const struct ask_session *s, char id[27], struct error *e)
{
    json_t *params = json_pack(
        "{s:s, s:s, s:[], s:s, s:s, s:I, s:f, s:i, s:i}", "cwd", "/", "name", s->name, "tools",
        "approve", "never", "thinkingMode", s->thinking ? "thinking" : "chat", "maxTokens",
        (json_int_t)s->max_tokens, "temperature", 0.0, "seed", 0, "maxSteps", 1);
    if (params && s->effort)
        json_object_set_new(params, "effort", json_string(s->effort));
    return find_or_make(c, s->name, "session/new", params, id, e);
}

enum err ask_fork(struct client *c, const char *parent, const char *name, char id[27],
                  struct error *e)
{
    return find_or_make(c, name, "session/fork",
                        json_pack("{s:s, s:s}", "id", parent, "name", name), id, e);
}

/* Waits for a turn to end however long that takes, or cancels it. */
static enum err await_turn(struct client *c, const char *id, const char *turn, int timeout_ms,
                           json_t **out, struct error *e)
{
    uint64_t call;
    enum err rc = client_start(c, "session/wait",
                               json_pack("{s:s, s:s}", "id", id, "turnId", turn), &call, e);
    if (rc)
        return rc;
    rc = client_await(c, call, timeout_ms > 0 ? timeout_ms : -1, out, e);
    if (rc == ERR_TIMEOUT || rc == ERR_CANCELLED)
        client_forget(c, call);
    if (rc != ERR_TIMEOUT)
        return rc;
    enum err stopped = client_call(c, "session/cancel",
                                   json_pack("{s:s, s:s}", "id", id, "turnId", turn), NULL, e);
    return stopped ? stopped : rc;
}

enum err ask_prompt(struct client *c, const char *id, const char *message, const char *text,
                    size_t n, const char *forced, int timeout_ms, json_t **out, struct error *e)
{
    json_auto_t *receipt = NULL;
    const char *turn;
    json_t *params = json_pack("{s:s, s:s, s:[{s:s, s:s%}]}", "id", id, "clientMessageId",
                               message, "content", "type", "text", "text", text, n);
    if (params && forced)
        json_object_set_new(params, "forced", json_pack("[{s:s}]", "text", forced));
    enum err rc = client_call(c, "session/prompt", params, &receipt, e);
    if (!rc)
        rc = json_need_str(receipt, "turnId", &turn, NULL, e);
    return rc ? rc : await_turn(c, id, turn, timeout_ms, out, e);
}

enum err ask_patiently(struct client *c, const char *method, const char *id, struct error *e)
{
    const struct timespec nap = {0, BUSY_NAP_MS * 1000000L};
    enum err rc = ERR_BUSY;
    for (int ms = 0; ms < BUSY_PATIENCE_MS && rc == ERR_BUSY; ms += BUSY_NAP_MS) {
        if (ms)
            nanosleep(&nap, NULL);
        rc = client_call(c, method, json_pack("{s:s}", "id", id), NULL, e);
    }
    return rc;
}

enum err ask_delete(struct client *c, const char *id, struct error *e)
{
    enum err rc = ask_patiently(c, "session/delete", id, e);
    return rc == ERR_NOTFOUND ? OK : rc;
}
