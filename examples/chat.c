/* A chat with agentd on the terminal: one session, a line is a prompt, the answer comes as it
 * is made. Tool calls are shown as they begin; end of input ends the program, the session
 * stays.
 *
 *     make && build/agentd serve -m MODEL &
 *     build/examples/chat [NAME]            goes on with session NAME, or begins a new one
 *
 * Builds with: cc -I. examples/chat.c build/libagentd.a -ljansson */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agentd/client.h"

struct chat {
    struct client *client;
    char id[64];
    bool mid_line;
};

static const char *text_of(const json_t *object, const char *field)
{
    const char *s = json_string_value(json_object_get(object, field));
    return s ? s : "";
}

/* Text of a model may hold anything: a terminal gets printable characters and line ends only.
 */
static void print_text(const char *s)
{
    for (; *s; s++)
        putchar((unsigned char)*s < 0x20 && *s != '\n' && *s != '\t' ? '?' : *s);
}

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct chat *c = user;
    const json_t *item = json_object_get(params, "item");
    if (!strcmp(method, "session/delta") && !strcmp(text_of(params, "kind"), "assistant")) {
        print_text(text_of(params, "text"));
        c->mid_line = true;
    } else if (!strcmp(text_of(item, "kind"), "tool_call") &&
               !strcmp(text_of(item, "status"), "started")) {
        printf("%s[%s ", c->mid_line ? "\n" : "", text_of(item, "name"));
        print_text(text_of(item, "arguments"));
        printf("]\n");
        c->mid_line = false;
    }
    fflush(stdout);
}

/* Finds the session, or makes one that may use the daemon's tools in this folder. */
static enum err open_session(struct chat *c, const char *name, struct error *e)
{
    char cwd[4096];
    json_t *session = NULL;
    enum err rc;
    if (name)
        rc = client_call(c->client, "session/get", json_pack("{s:s}", "id", name), &session, e);
    else if (!getcwd(cwd, sizeof cwd))
        rc = err_set(e, ERR_IO, "no current folder");
    else
        rc = client_call(c->client, "session/new",
                         json_pack("{s:s, s:s}", "cwd", cwd, "approve", "never"), &session, e);
    if (rc)
        return rc;
    snprintf(c->id, sizeof c->id, "%s", text_of(session, "id"));
    fprintf(stderr, "session %s\n", text_of(session, "name"));
    json_decref(session);
    return client_call(c->client, "session/attach", json_pack("{s:s}", "id", c->id), NULL, e);
}

static enum err prompt(struct chat *c, const char *line, struct error *e)
{
    json_t *end = NULL;
    json_t *params = json_pack("{s:s, s:[{s:s, s:s}]}", "id", c->id, "content", "type", "text",
                               "text", line);
    enum err rc = client_call(c->client, "session/prompt", params, NULL, e);
    if (!rc)
        rc = client_call(c->client, "session/wait", json_pack("{s:s}", "id", c->id), &end, e);
    if (rc)
        return rc;
    printf("%s", c->mid_line ? "\n" : "");
    if (strcmp(text_of(end, "reason"), "end"))
        fprintf(stderr, "(the turn ended: %s)\n", text_of(end, "reason"));
    c->mid_line = false;
    json_decref(end);
    return OK;
}

int main(int argc, char **argv)
{
    struct chat c = {0};
    struct client_options o = {.name = "chat", .notify = on_notify, .user = &c};
    struct error e = {0};
    char line[65536];
    enum err rc = client_open(&c.client, &o, &e);
    if (!rc)
        rc = open_session(&c, argc > 1 ? argv[1] : NULL, &e);
    while (!rc && (fputs("> ", stderr), fgets(line, sizeof line, stdin))) {
        line[strcspn(line, "\n")] = 0;
        if (*line)
            rc = prompt(&c, line, &e);
    }
    if (rc)
        fprintf(stderr, "chat: %s\n", e.msg);
    client_free(c.client);
    return rc ? 1 : 0;
}
