/* A tool that runs in the client: the model asks, this program answers. The tool is the time of
 * day; it could as well be the window manager or a person. Any client that is attached to the
 * session may answer its calls, the first one does.
 *
 *     make && build/agentd serve -m MODEL &
 *     build/examples/client_tool "What time is it?"
 *
 * Builds with: cc -I. examples/client_tool.c build/libagentd.a -ljansson */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "agentd/client.h"

#define MAX_OPEN 16

/* Calls that are not answered yet. A notification may not call into its own client, so they are
 * kept until the poll that brought them has returned. */
struct open_calls {
    char ids[MAX_OPEN][64];
    size_t n;
    bool idle;
};

static const char *text_of(const json_t *object, const char *field)
{
    const char *s = json_string_value(json_object_get(object, field));
    return s ? s : "";
}

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct open_calls *open = user;
    const json_t *item = json_object_get(params, "item");
    if (strcmp(method, "session/event") != 0)
        return;
    open->idle = open->idle || !strcmp(text_of(params, "state"), "idle");
    if (!json_is_true(json_object_get(item, "client")) || open->n == MAX_OPEN ||
        strcmp(text_of(item, "status"), "waiting") != 0)
        return;
    fprintf(stderr, "asked for %s %s\n", text_of(item, "name"), text_of(item, "arguments"));
    snprintf(open->ids[open->n++], sizeof open->ids[0], "%s", text_of(item, "callId"));
}

/* The tool itself. */
static void tell_time(char *out, size_t cap)
{
    time_t now = time(NULL);
    struct tm t;
    strftime(out, cap, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &t));
}

static enum err answer(struct client *c, const char *session, const char *call, struct error *e)
{
    char text[64];
    tell_time(text, sizeof text);
    enum err rc = client_call(
        c, "tool/result",
        json_pack("{s:s, s:s, s:s}", "id", session, "callId", call, "content", text), NULL, e);
    return rc == ERR_CONFLICT ? OK : rc; /* another client was first */
}

/* A session that has this tool and no other, watched from its first event on. */
static enum err begin(struct client *c, const char *prompt, char id[64], struct error *e)
{
    json_t *session = NULL;
    json_t *params = json_pack("{s:s, s:[], s:[{s:s, s:s, s:{s:s}}]}", "cwd", "/", "tools",
                               "clientTools", "name", "time", "description",
                               "The time of day, in UTC", "parameters", "type", "object");
    enum err rc = client_call(c, "session/new", params, &session, e);
    if (rc)
        return rc;
    snprintf(id, 64, "%s", text_of(session, "id"));
    json_decref(session);
    rc = client_call(c, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0), NULL,
                     e);
    if (rc)
        return rc;
    return client_call(
        c, "session/prompt",
        json_pack("{s:s, s:[{s:s, s:s}]}", "id", id, "content", "type", "text", "text", prompt),
        NULL, e);
}

static enum err run(struct client *c, struct open_calls *open, const char *prompt,
                    struct error *e)
{
    char id[64];
    json_t *end = NULL;
    enum err rc = begin(c, prompt, id, e);
    while (!rc && !open->idle) {
        rc = client_poll(c, -1, e);
        for (size_t i = 0; !rc && i < open->n; i++)
            rc = answer(c, id, open->ids[i], e);
        open->n = 0;
    }
    if (!rc)
        rc = client_call(c, "session/wait", json_pack("{s:s}", "id", id), &end, e);
    if (rc)
        return rc;
    printf("%s\n", text_of(end, "text"));
    if (strcmp(text_of(end, "reason"), "end") != 0)
        rc = err_set(e, ERR_CANCELLED, "the turn ended: %s", text_of(end, "reason"));
    json_decref(end);
    return rc;
}

int main(int argc, char **argv)
{
    struct open_calls open = {0};
    struct client_options o = {.name = "client_tool", .notify = on_notify, .user = &open};
    struct client *c = NULL;
    struct error e = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: client_tool PROMPT\n");
        return 2;
    }
    enum err rc = client_open(&c, &o, &e);
    if (!rc)
        rc = run(c, &open, argv[1], &e);
    if (rc)
        fprintf(stderr, "client_tool: %s\n", e.msg);
    client_free(c);
    return rc ? 1 : 0;
}
