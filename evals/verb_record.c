/* agentd-evals record: what a daemon's sessions did, as a trace that `replay` takes. */
#include <string.h>

#include "agentd/client.h"
#include "base/fs.h"
#include "evals/cli.h"
#include "evals/trace.h"

#define MAX_TRACE_BYTES ((size_t)1 << 30)
#define PATIENCE_MS 60000

struct verb_options {
    const char *socket, *out;
};

static const struct option record_table[] = {
    {"socket", 0, OPTION_STRING, offsetof(struct verb_options, socket), "PATH",
     .help = "the daemon's (default: as agentctl)"},
    {"out", 'o', OPTION_STRING, offsetof(struct verb_options, out), "FILE",
     .help = "TraceLab CSV to write: lengths and times, no text", .required = true},
};

const struct command evals_record_command = {
    "record",
    "[SESSION...]",
    "lengths and waits of a daemon's sessions (all of them) as a trace, without any text",
    OPTION_TABLE(record_table),
    OPTION_TABLE_EMPTY,
    0,
    OPTIONS_MAX_ARGS};

/* The session whose events come in: when each of its turns began and ended. */
struct recording {
    struct trace trace;
    char id[27];
    json_t *begins, *ends; /* turn id -> ms */
    json_int_t last_seq;
};

static void recording_fini(struct recording *r)
{
    trace_fini(&r->trace);
    json_decref(r->begins);
    json_decref(r->ends);
}

static json_int_t figure(const json_t *o, const char *field)
{
    return json_integer_value(json_object_get(o, field));
}

static void note_event(void *user, const char *method, const json_t *params)
{
    struct recording *r = user;
    const char *session = json_string_value(json_object_get(params, "sessionId"));
    const char *turn = json_string_value(json_object_get(params, "turnId"));
    const json_t *ms = json_object_get(params, "tMs");
    if (strcmp(method, "session/event") || !session || strcmp(session, r->id))
        return;
    r->last_seq = figure(params, "seq");
    if (!turn)
        return;
    if (!json_object_get(r->begins, turn))
        json_object_set(r->begins, turn, (json_t *)(uintptr_t)ms);
    json_object_set(r->ends, turn, (json_t *)(uintptr_t)ms);
}

/* All events of the session: they say when. */
static enum err read_events(struct client *c, struct recording *r, json_int_t last_seq,
                            struct error *e)
{
    json_object_clear(r->begins);
    json_object_clear(r->ends);
    r->last_seq = 0;
    enum err rc = client_call(c, "session/attach",
                              json_pack("{s:s, s:i}", "id", r->id, "fromSeq", 0), NULL, e);
    while (!rc && r->last_seq < last_seq)
        rc = client_poll(c, PATIENCE_MS, e);
    return rc ? rc : client_call(c, "session/detach", json_pack("{s:s}", "id", r->id), NULL, e);
}

static uint32_t length_of(json_int_t n)
{
    return n < 0 ? 0 : n > TRACE_MAX_LENGTH ? TRACE_MAX_LENGTH : (uint32_t)n;
}

/* Turns that have a ledger and computed something; a queued one has neither. */
static enum err add_turns(struct recording *r, const json_t *turns, struct error *e)
{
    size_t i;
    json_t *t;
    uint32_t n = 0;
    json_int_t ended = 0;
    enum err rc = OK;
    json_array_foreach(turns, i, t) {
        const char *id = json_string_value(json_object_get(t, "turnId"));
        const json_t *l = json_object_get(t, "ledger");
        const json_int_t begun = id ? figure(r->begins, id) : 0;
        if (rc || !id || !begun || !figure(l, "prompt_tokens"))
            continue;
        const struct trace_step s = {
            .prefix_len = length_of(figure(l, "prompt_tokens") - figure(l, "prefilled")),
            .input_len = length_of(figure(l, "prefilled")),
            .output_len = length_of(figure(l, "decoded"))};
        if (!n++)
            rc = trace_add_session(&r->trace, r->trace.n_sessions, begun, e);
        else
            r->trace.steps[r->trace.n_steps - 1].wait_ms = begun > ended ? begun - ended : 0;
        if (!rc)
            rc = trace_add_step(&r->trace, &s, NULL, e);
        ended = figure(r->ends, id);
    }
    return rc;
}

static enum err record_session(struct client *c, struct recording *r, const char *name,
                               struct error *e)
{
    json_auto_t *info = NULL, *usage = NULL;
    enum err rc = client_call(c, "session/get", json_pack("{s:s}", "id", name), &info, e);
    if (rc)
        return rc;
    const char *id = json_string_value(json_object_get(info, "id"));
    snprintf(r->id, sizeof r->id, "%s", id ? id : "");
    rc = client_call(c, "session/usage", json_pack("{s:s}", "id", r->id), &usage, e);
    if (!rc)
        rc = read_events(c, r, figure(info, "lastSeq"), e);
    return rc ? rc : add_turns(r, json_object_get(usage, "turns"), e);
}

static enum err record_all(struct client *c, struct recording *r, const struct options *o,
                           struct error *e)
{
    json_auto_t *list = NULL;
    size_t i;
    json_t *s;
    enum err rc = OK;
    for (size_t k = 0; k < o->n_args && !rc; k++)
        rc = record_session(c, r, o->args[k], e);
    if (rc || o->n_args)
        return rc;
    rc = client_call(c, "session/list", NULL, &list, e);
    json_array_foreach(json_object_get(list, "sessions"), i, s) {
        const char *id = json_string_value(json_object_get(s, "id"));
        if (!rc && id)
            rc = record_session(c, r, id, e);
    }
    return rc;
}

int evals_record(int argc, char **argv)
{
    struct verb_options v = {NULL, NULL};
    struct options o;
    struct error e = {0};
    int code = evals_parse(&evals_record_command, argc, argv, &v, &o);
    if (code != EVALS_GO_ON)
        return code;
    AUTO(recording)
    struct recording r = {
        .trace = TRACE_INIT(TRACE_TRACELAB), .begins = json_object(), .ends = json_object()};
    AUTO(buf) struct buf text = BUF_INIT(MAX_TRACE_BYTES);
    struct client *c = NULL;
    const struct client_options co = {
        .socket_path = v.socket, .name = "agentd-evals", .notify = note_event, .user = &r};
    enum err rc = client_open(&c, &co, &e);
    if (!rc)
        rc = record_all(c, &r, &o, &e);
    client_free(c);
    if (!rc && !r.trace.n_steps)
        rc = err_set(&e, ERR_NOTFOUND, "no session has a turn that ended");
    if (!rc)
        rc = trace_write(&r.trace, &text, &e);
    if (!rc)
        rc = fs_write_atomic(v.out, text.data, text.len, 0644, &e);
    if (rc)
        return evals_fail(&evals_record_command, rc, &e);
    printf("%s: %u sessions, %u rounds\n", v.out, r.trace.n_sessions, r.trace.n_steps);
    return EVALS_DONE;
}
