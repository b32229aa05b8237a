/* One context, read once; several questions, each asked in a fork of its own. Shows what the
 * ledger of a turn says: a fork's context is resident or restored, only the question is new.
 *
 *     make && build/agentd serve -m MODEL &
 *     build/examples/resume_fork FILE QUESTION...
 *
 * Builds with: cc -I. examples/resume_fork.c build/libagentd.a -ljansson */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/client.h"
#include "base/auto.h"
#include "base/buf.h"

#define MAX_CONTEXT (8u << 20)

static const char *text_of(const json_t *object, const char *field)
{
    const char *s = json_string_value(json_object_get(object, field));
    return s ? s : "";
}

static long long tokens_of(const json_t *ledger, const char *field)
{
    return json_integer_value(json_object_get(ledger, field));
}

static enum err read_file(const char *path, struct buf *out, struct error *e)
{
    AUTO_FILE FILE *f = fopen(path, "re");
    char chunk[4096];
    size_t n;
    enum err rc = f ? OK : err_set(e, ERR_NOTFOUND, "cannot read %s", path);
    while (!rc && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        rc = buf_add(out, chunk, n, e);
    return rc;
}

/* Asks and waits; prints the answer and where its tokens came from. */
static enum err ask(struct client *c, const char *id, const char *text, struct error *e)
{
    json_auto_t *end = NULL;
    json_t *params =
        json_pack("{s:s, s:[{s:s, s:s}]}", "id", id, "content", "type", "text", "text", text);
    if (!params)
        return err_set(e, ERR_INVAL, "the text is not UTF-8");
    enum err rc = client_call(c, "session/prompt", params, NULL, e);
    if (!rc)
        rc = client_call(c, "session/wait", json_pack("{s:s}", "id", id), &end, e);
    if (rc)
        return rc;
    const json_t *l = json_object_get(end, "ledger");
    printf("%.200s\n  [%s] prompt %lld = resident %lld + restored %lld + recomputed %lld + "
           "prefilled %lld, decoded %lld\n",
           text_of(end, "text"), text_of(end, "reason"), tokens_of(l, "prompt_tokens"),
           tokens_of(l, "resident"), tokens_of(l, "restored"), tokens_of(l, "recomputed"),
           tokens_of(l, "prefilled"), tokens_of(l, "decoded"));
    return OK;
}

/* A session without tools; its first turn takes in the context. */
static enum err read_context(struct client *c, const char *path, char *id, size_t cap,
                             struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(MAX_CONTEXT);
    json_auto_t *session = NULL;
    enum err rc = buf_add_str(&text, "Read this, questions follow.\n\n", e);
    if (!rc)
        rc = read_file(path, &text, e);
    if (!rc)
        rc = client_call(c, "session/new",
                         json_pack("{s:s, s:[], s:i}", "cwd", "/", "tools", "maxTokens", 64),
                         &session, e);
    if (rc)
        return rc;
    snprintf(id, cap, "%s", text_of(session, "id"));
    printf("context %s\n", text_of(session, "name"));
    return ask(c, id, buf_str(&text), e);
}

static enum err ask_in_fork(struct client *c, const char *context, const char *question,
                            struct error *e)
{
    json_auto_t *fork = NULL;
    enum err rc = client_call(c, "session/fork", json_pack("{s:s}", "id", context), &fork, e);
    if (rc)
        return rc;
    printf("fork %s: %s\n", text_of(fork, "name"), question);
    return ask(c, text_of(fork, "id"), question, e);
}

int main(int argc, char **argv)
{
    struct client_options o = {.name = "resume_fork"};
    struct client *c = NULL;
    struct error e = {0};
    char context[64];
    if (argc < 3) {
        fprintf(stderr, "usage: resume_fork FILE QUESTION...\n");
        return 2;
    }
    enum err rc = client_open(&c, &o, &e);
    if (!rc)
        rc = read_context(c, argv[1], context, sizeof context, &e);
    for (int i = 2; i < argc && !rc; i++)
        rc = ask_in_fork(c, context, argv[i], &e);
    if (rc)
        fprintf(stderr, "resume_fork: %s\n", e.msg);
    client_free(c);
    return rc ? 1 : 0;
}
