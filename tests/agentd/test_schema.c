/* `agentctl schema` against what really goes over the socket: a daemon with the scripted engine
 * is driven through every method, and each line of either side is checked. The document leaves
 * objects open, as the protocol does; here they are closed, so that a field that is sent and
 * not written down fails, and every field that is written down has to be seen. */
#include "tests/support/test.h"

#include <unistd.h>

#include "agentd/rpc.h"
#include "agentd/schema.h"
#include "agentd/verbs.h"
#include "base/auto.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"
#include "tests/support/wire_tap.h"
#include "tools/schema.h"

#define EOS "<｜end▁of▁sentence｜>"
#define CALLS(invokes) "ok</think>\n\n<｜DSML｜ calls>\n" invokes "</｜DSML｜ calls>" EOS
#define INVOKE(name, params)                                                                   \
    "<｜DSML｜ invoke name=\"" name "\">\n" params "</｜DSML｜ invoke>\n"
#define PARAM(name, is_string, value)                                                          \
    "<｜DSML｜ parameter name=\"" name "\" string=\"" is_string "\">" value                    \
    "</｜DSML｜ parameter>\n"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"

/* ---- the document, closed --------------------------------------------------------- */

/* A deep copy with every reference replaced by what it refers to. closed: no object has other
 * fields than those written down. */
static json_t *expand(const json_t *document, json_t *schema, bool closed)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const char *key;
    json_t *value;
    size_t i;

    if (ref) {
        char name[64] = "", field[16] = "", section[32] = "";
        const json_t *at;
        if (sscanf(ref, "#/$defs/%63s", name) == 1) {
            at = json_object_get(json_object_get(document, "$defs"), name);
        } else {
            assert_int_equal(sscanf(ref, "#/%31[^/]/%63[^/]/%15s", section, name, field), 3);
            for (char *s; (s = strstr(name, "~1"));) {
                *s = '/';
                memmove(s + 1, s + 2, strlen(s + 2) + 1);
            }
            at = json_object_get(json_object_get(json_object_get(document, section), name),
                                 field);
        }
        if (!at)
            fail_msg("%s leads nowhere", ref);
        json_auto_t *copy = json_deep_copy(at);
        return expand(document, copy, closed);
    }
    if (json_is_array(schema)) {
        json_t *list = json_array();
        json_array_foreach(schema, i, value)
            json_array_append_new(list, expand(document, value, closed));
        return list;
    }
    if (!json_is_object(schema))
        return json_incref(schema);
    json_t *out = json_object();
    json_object_foreach(schema, key, value)
        json_object_set_new(out, key, expand(document, value, closed));
    if (closed && json_object_get(out, "properties"))
        json_object_set_new(out, "additionalProperties", json_false());
    return out;
}

struct checker {
    json_t *document;
    json_t *closed;  /* "methods/NAME/params" and its like -> schema */
    json_t *pending; /* "CONNECTION/ID" -> method */
    json_t *seen;    /* set of paths that were met: "session/new.params.cwd" */
};

static const json_t *schema_at(struct checker *c, const char *section, const char *name,
                               const char *field)
{
    char key[128];
    snprintf(key, sizeof key, "%s/%s/%s", section, name, field);
    json_t *have = json_object_get(c->closed, key);
    if (have)
        return have;
    json_t *open =
        json_object_get(json_object_get(json_object_get(c->document, section), name), field);
    if (!open)
        return NULL;
    json_object_set_new(c->closed, key, expand(c->document, open, true));
    return json_object_get(c->closed, key);
}

static const json_t *defined(struct checker *c, const char *name)
{
    json_t *have = json_object_get(c->closed, name);
    if (!have) {
        json_t *open = json_object_get(json_object_get(c->document, "$defs"), name);
        have = expand(c->document, open, true);
        json_object_set_new(c->closed, name, have);
    }
    return have;
}

static void checker_open(struct checker *c)
{
    const struct agentctl_ran *r = AGENTCTL("schema", "--jsonl");
    assert_int_equal(r->code, EXIT_DONE);
    *c = (struct checker){.document = json_loads(r->out, 0, NULL),
                          .closed = json_object(),
                          .pending = json_object(),
                          .seen = json_object()};
    assert_non_null(c->document);
}

static void checker_close(struct checker *c)
{
    json_decref(c->document);
    json_decref(c->closed);
    json_decref(c->pending);
    json_decref(c->seen);
}

/* ---- one line --------------------------------------------------------------------- */

/* Notes every field of a value: PATH.field, through arrays. What maps names of the peer's own
 * choice is not looked into. */
static void note_fields(struct checker *c, const char *path, json_t *value)
{
    const char *key;
    json_t *field;
    size_t i;
    char longer[256];

    json_array_foreach(value, i, field)
        note_fields(c, path, field);
    if (json_is_array(value))
        return;
    json_object_foreach(value, key, field) {
        snprintf(longer, sizeof longer, "%s.%s", path, key);
        json_object_set_new(c->seen, longer, json_true());
        note_fields(c, longer, field);
    }
}

static void check(struct checker *c, const json_t *schema, const char *what, const char *field,
                  json_t *value)
{
    struct error e;
    char path[128];

    if (!schema)
        fail_msg("%s is not in the schema", what);
    if (schema_check(schema, value, &e)) {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        fail_msg("%s %s: %s\n%s", what, field, e.msg, text);
    }
    snprintf(path, sizeof path, "%s.%s", what, field);
    json_object_set_new(c->seen, path, json_true());
    note_fields(c, path, value);
}

static void check_request(struct checker *c, const char *key, const json_t *line)
{
    const char *method = json_string_value(json_object_get(line, "method"));
    json_t *params = json_object_get(line, "params");
    json_auto_t *none = json_object();

    assert_string_equal(json_string_value(json_object_get(line, "jsonrpc")), "2.0");
    check(c, schema_at(c, "methods", method, "params"), method, "params",
          params ? params : none);
    json_object_set_new(c->pending, key, json_string(method));
}

static void check_answer(struct checker *c, const char *key, const json_t *line)
{
    const char *method = json_string_value(json_object_get(c->pending, key));
    json_t *result = json_object_get(line, "result"), *error = json_object_get(line, "error");

    if (!method)
        fail_msg("an answer that nobody asked for: %s", key);
    if (error)
        check(c, defined(c, "Error"), "Error", "error", error);
    else
        check(c, schema_at(c, "methods", method, "result"), method, "result", result);
    json_object_del(c->pending, key);
}

static void check_line(struct checker *c, const json_t *entry)
{
    const json_t *line = json_object_get(entry, "line");
    const char *from = json_string_value(json_object_get(entry, "from"));
    const char *method = json_string_value(json_object_get(line, "method"));
    char key[192];

    char *id = json_dumps(json_object_get(line, "id"), JSON_ENCODE_ANY);
    snprintf(key, sizeof key, "%d/%.150s",
             (int)json_integer_value(json_object_get(entry, "connection")), id ? id : "");
    free(id);
    if (!strcmp(from, "client"))
        check_request(c, key, line);
    else if (method)
        check(c, schema_at(c, "notifications", method, "params"), method, "params",
              json_object_get(line, "params"));
    else
        check_answer(c, key, line);
}

/* ---- the traffic ------------------------------------------------------------------ */

struct drive {
    struct daemon_fixture d;
    struct client *c;
    char id[27], bundle[160];
    json_t *seen;    /* names of notifications */
    json_t *methods; /* of the schema */
    char asked[64], state[32];
    size_t n_prompts;
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct drive *x = user;
    const json_t *item = json_object_get(params, "item");
    const char *kind = json_string_value(json_object_get(item, "kind"));
    const char *status = json_string_value(json_object_get(item, "status"));

    json_object_set_new(x->seen, method, json_true());
    if (!strcmp(method, "session/state"))
        snprintf(x->state, sizeof x->state, "%s",
                 json_string_value(json_object_get(params, "state")));
    if (kind && status && !strcmp(kind, "tool_call") && !strcmp(status, "waiting"))
        snprintf(x->asked, sizeof x->asked, "%s",
                 json_string_value(json_object_get(item, "callId")));
}

static json_t *call(struct drive *x, const char *method, const char *params)
{
    json_t *p = json_loads(params, 0, NULL);
    if (!p)
        fail_msg("%s: bad parameters %s", method, params);
    json_t *shape = json_object_get(
        json_object_get(json_object_get(x->methods, method), "params"), "properties");
    if (json_object_get(shape, "id") && !json_object_get(p, "id") &&
        strcmp(method, "search") != 0)
        json_object_set_new(p, "id", json_string(x->id));
    return daemon_call(x->c, method, p);
}

static void does(struct drive *x, const char *method, const char *params)
{
    json_decref(call(x, method, params));
}

/* A prompt with the runs that the model makes of it (texts, NULL ends). */
static void prompt(struct drive *x, const char *const *runs)
{
    json_t *p = json_pack("{s:s, s:o, s:[{s:s, s:s}], s:[]}", "id", x->id, "clientMessageId",
                          json_sprintf("m%zu", ++x->n_prompts), "content", "type", "text",
                          "text", "go", "forced");
    for (; *runs; runs++)
        json_array_append_new(json_object_get(p, "forced"), json_pack("{s:s}", "text", *runs));
    json_decref(daemon_call(x->c, "session/prompt", p));
}
#define PROMPT(x, ...) prompt(x, (const char *const[]){__VA_ARGS__, NULL})

static void until_waiting(struct drive *x)
{
    json_t *r = call(x, "session/wait", "{\"timeoutMs\": 15000}");
    assert_string_equal(json_string_value(json_object_get(r, "reason")), "requires_action");
    json_decref(r);
}

static void idle(struct drive *x)
{
    json_t *r = call(x, "session/wait", "{\"timeoutMs\": 15000}");
    assert_string_equal(json_string_value(json_object_get(r, "state")), "idle");
    json_decref(r);
}

static void connect_to(struct drive *x, const char *tap)
{
    const struct client_options o = {
        .socket_path = tap, .notify = on_notify, .user = x, .timeout_ms = 20000};
    struct error e;

    assert_ok(client_open(&x->c, &o, &e), &e);
}

static void start(struct drive *x, const char *tap)
{
    static const char config[] =
        "{\"name\": \"first\", \"system\": \"Be short.\", \"tools\": [\"run\", \"todo\"], "
        "\"clientTools\": [{\"name\": \"ask\", \"description\": \"asks\", \"parameters\": "
        "{\"type\": \"object\"}}], \"thinkingMode\": \"thinking\", \"effort\": 50, "
        "\"approve\": \"ask\", \"rules\": [\"allow todo\", \"ask run touch *\"], "
        "\"maxSteps\": 20, \"maxTokens\": 9000, \"seed\": 1, \"temperature\": 0.5, "
        "\"topP\": 0.9, \"topK\": 40, \"minP\": 0.01, \"stop\": [\"STOP\"], "
        "\"logitBias\": {\"65\": 1.5}, \"topLogprobs\": 2, \"mode\": \"ced\"}";

    x->seen = json_object();
    connect_to(x, tap);
    daemon_session(&x->d, x->c, config, x->id);
    does(x, "session/attach", "{\"fromSeq\": 0, \"mode\": \"control\"}");
}

/* Tools of both sides, approvals, results of each kind. */
static void drive_tools(struct drive *x)
{
    PROMPT(x,
           CALLS(INVOKE("run", PARAM("command", "true", "touch a; cd /")) INVOKE("ask", "")
                     INVOKE("todo", PARAM("items", "false",
                                          "[{\"text\":\"t\",\"status\":"
                                          "\"open\"}]"))),
           "so</think>done STOP", NULL);
    for (int left = 2; left;) {
        until_waiting(x);
        json_t *list = call(x, "approval/list", "{}");
        json_t *one = json_array_get(json_object_get(list, "approvals"), 0);
        if (one) {
            json_decref(
                daemon_call(x->c, "approval/resolve",
                            json_pack("{s:O, s:s}", "approvalId",
                                      json_object_get(one, "approvalId"), "outcome", "once")));
        } else {
            json_decref(daemon_call(x->c, "tool/result",
                                    json_pack("{s:s, s:s, s:[{s:s, s:s}], s:b}", "id", x->id,
                                              "callId", x->asked, "content", "type", "text",
                                              "text", "forty-two", "isError", 0)));
        }
        left--;
        json_decref(list);
    }
    idle(x);
}

/* What is queued, steered, cancelled and refused. */
static void drive_turns(struct drive *x)
{
    static const char content[] = "{\"content\": [{\"type\": \"text\", \"text\": \"more\"}], "
                                  "\"clientMessageId\": \"s1\"}";
    uint64_t waiting;
    struct error e;

    does(x, "session/prompt", "{\"content\": [{\"type\": \"text\", \"text\": \"slow\"}]}");
    json_t *queued = call(x, "session/prompt",
                          "{\"content\": [{\"type\": \"text\", \"text\": \"next\"}], "
                          "\"forced\": [{\"ids\": [65, 66]}]}");
    does(x, "session/get", "{}");
    does(x, "session/list", "{}");
    while (strcmp(x->state, "prefill") != 0)
        assert_ok(client_poll(x->c, 10000, &e), &e);
    json_auto_t *steered = call(x, "session/steer", content);
    assert_true(json_is_true(json_object_get(steered, "steered")));
    assert_ok(client_start(x->c, "session/wait", json_pack("{s:s}", "id", x->id), &waiting, &e),
              &e);
    json_decref(
        daemon_call(x->c, "$/cancel_request", json_pack("{s:I}", "id", (json_int_t)waiting)));
    assert_int_equal(client_await(x->c, waiting, 10000, NULL, &e), ERR_CANCELLED);
    assert_int_not_equal(daemon_refused(x->c, "session/wait",
                                        json_pack("{s:s, s:i}", "id", x->id, "timeoutMs", 1)),
                         0);
    json_decref(daemon_call(
        x->c, "session/cancel",
        json_pack("{s:s, s:O}", "id", x->id, "turnId", json_object_get(queued, "turnId"))));
    json_decref(queued);
    does(x, "session/cancel", "{}");
    idle(x);
    json_auto_t *after = call(x, "session/steer", content); /* the same: its receipt again */
    (void)after;
    idle(x);
}

static void drive_store(struct drive *x)
{
    json_t *fork = call(x, "session/fork", "{\"name\": \"second\"}");
    json_decref(fork);
    does(x, "session/prompt",
         "{\"id\": \"second\", \"content\": [{\"type\": \"text\", \"text\": \"and?\"}]}");
    does(x, "session/wait", "{\"id\": \"second\"}");
    json_decref(call(x, "session/fork", "{\"atSeq\": 1, \"name\": \"third\"}"));
    json_t *r = call(x, "session/diff", "{\"other\": \"third\"}");
    assert_true(json_is_object(json_object_get(r, "item")));
    json_decref(r);
    does(x, "session/rename", "{\"id\": \"third\", \"name\": \"fourth\"}");
    does(x, "session/usage", "{}");
    does(x, "session/verify", "{}");
    does(x, "session/rewind", "{\"toSeq\": 0}");
    PROMPT(x, "hm</think>again");
    idle(x);
    r = call(x, "session/compact",
             "{\"forced\": [{\"text\": \"hm</think>a summary\"}, {\"ids\": [65]}]}");
    json_decref(daemon_call(
        x->c, "session/wait",
        json_pack("{s:s, s:O}", "id", x->id, "turnId", json_object_get(r, "turnId"))));
    json_decref(r);
    idle(x);
    while (!json_object_get(x->seen, "session/cut"))
        (void)!client_poll(x->c, 20, NULL);
    PROMPT(x, "hm</think>on");
    idle(x);
    does(x, "session/get", "{}");
    does(x, "session/get", "{\"id\": \"second\"}");
    does(x, "session/list", "{}");
    r = call(x, "search", "{\"query\": \"go\", \"limit\": 3, \"id\": \"second\"}");
    assert_true(json_array_size(json_object_get(r, "hits")) > 0);
    json_decref(r);
    for (int redact = 1; redact >= 0;
         redact--) { /* one that is redacted cannot be gone on from */
        (void)unlink(x->bundle);
        json_decref(daemon_call(x->c, "session/export",
                                json_pack("{s:s, s:s, s:b, s:b}", "id", "second", "path",
                                          x->bundle, "withKv", 0, "redact", redact)));
    }
    for (int dry = 1; dry >= 0; dry--)
        json_decref(
            daemon_call(x->c, "session/import",
                        json_pack("{s:s, s:s, s:s, s:b, s:b}", "path", x->bundle, "cwd",
                                  x->d.work, "name", "imported", "dryRun", dry, "trustKv", 0)));
}

static void drive_rest(struct drive *x)
{
    char name[64];

    does(x, "kv/pin", "{\"id\": \"second\", \"pinned\": true}");
    does(x, "kv/pin", "{\"id\": \"second\", \"pinned\": false}");
    does(x, "kv/stats", "{}");
    does(x, "kv/drop", "{\"id\": \"second\"}");
    does(x, "kv/gc", "{}");
    does(x, "store/fsck", "{\"repair\": true}");
    does(x, "session/delete", "{\"id\": \"second\"}");
    does(x, "session/delete", "{\"id\": \"fourth\", \"purge\": true}");
    does(x, "tool/list", "{}");
    does(x, "model/status", "{}");
    does(x, "daemon/status", "{}");
    assert_int_equal(daemon_refused(x->c, "session/get", json_pack("{s:s}", "id", "nobody")),
                     RPC_OURS);
    assert_int_equal(daemon_refused(x->c, "session/fork",
                                    json_pack("{s:s, s:s}", "id", x->id, "name", "first")),
                     RPC_OURS - 1);
    does(x, "session/detach", "{}");
    snprintf(name, sizeof name, "uid-%u", (unsigned)getuid());
    json_decref(daemon_call(x->c, "namespace/drop", json_pack("{s:s}", "name", name)));
    does(x, "daemon/shutdown", "{}");
}

/* All lines of a daemon that was driven through every method. */
static json_t *traffic(json_t *methods)
{
    struct drive x = {.methods = methods};
    char tap[160];

    /* A line per run of a session: the fourth is the one that is steered and cancelled. */
    daemon_make(&x.d, SAY("one STOP and no more") SAY("-")
                          SAY("-") "{\"text\":\"ok</think>two" EOS
                                   "\", \"prefill_ms\": 1000}\n" SAY("three") SAY("four")
                                       SAY("five") SAY("six") SAY("seven"));
    snprintf(x.bundle, sizeof x.bundle, "%s/bundle", x.d.dir);
    snprintf(tap, sizeof tap, "%s/tap", x.d.dir);
    daemon_start(&x.d, NULL);
    struct wire_tap *t = wire_tap_new(tap, x.d.socket);
    start(&x, tap);
    does(&x, "session/prompt", "{\"content\": [{\"type\": \"text\", \"text\": \"hello\"}]}");
    idle(&x);
    drive_tools(&x);
    drive_turns(&x);
    drive_store(&x);
    drive_rest(&x);
    client_free(x.c);
    json_decref(x.seen);
    json_t *lines = wire_tap_free(t);
    daemon_remove(&x.d);
    return lines;
}

/* What only a model has: tiers of its weights, and how likely its tokens were. */
static json_t *traffic_of_a_model(json_t *methods)
{
    struct drive x = {.methods = methods, .seen = json_object()};
    char tap[160];

    daemon_make(&x.d, "");
    x.d.model = "tests/golden/a_tiny/model";
    x.d.extra[0] = "--expert-ram";
    x.d.extra[1] = "300K";
    snprintf(tap, sizeof tap, "%s/tap", x.d.dir);
    daemon_start(&x.d, NULL);
    struct wire_tap *t = wire_tap_new(tap, x.d.socket);
    connect_to(&x, tap);
    daemon_session(&x.d, x.c,
                   "{\"tools\": [], \"maxTokens\": 12, \"temperature\": 0, \"topLogprobs\": 2, "
                   "\"thinkingMode\": \"chat\"}",
                   x.id);
    does(&x, "session/attach", "{}");
    does(&x, "session/prompt", "{\"content\": [{\"type\": \"text\", \"text\": \"hello\"}]}");
    does(&x, "session/wait", "{}");
    does(&x, "model/status", "{}");
    does(&x, "session/verify", "{}");
    client_free(x.c);
    json_decref(x.seen);
    json_t *lines = wire_tap_free(t);
    daemon_remove(&x.d);
    return lines;
}

/* ---- tests ------------------------------------------------------------------------ */

/* What this drive does not meet: the reasons stand beside. */
static const char *const unmet[] = {
    "session/list.result.sessions.config.functions", /* left out there */
    "session/import.result.kvNote", /* state that is not taken: test_bundles.c */
    "session/steer.result.queued",
    "session/compact.result.queued",      /* as session/prompt */
    "gap.params",                         /* a reader that stalls: test_many_clients.c */
    "Error.error.data.retryAfterMs",      /* as many requests as a peer may have: test_rpc.c */
    "session/event.params.error",         /* a model that fails: test_turns.c */
    "session/event.params.item.bytesB64", /* bytes that are no text: test_turns.c */
    "session/event.params.item.spill",    /* output beyond the cap: test_tools_session.c */
    "session/event.params.item.logprobsCut", /* 100,000 tokens */
    "session/verify.result.firstMismatch",   /* damage: test_verify.c */
    "store/fsck.result.findings",            /* damage: test_fsck.c */
};

static bool may_be_unmet(const char *path)
{
    for (size_t i = 0; i < sizeof unmet / sizeof *unmet; i++)
        if (!strncmp(path, unmet[i], strlen(unmet[i])))
            return true;
    return false;
}

/* Every field of a schema, and of what is below it, was seen. */
static void check_met(struct checker *c, const char *path, json_t *schema, int *missing)
{
    const char *key;
    json_t *one;
    size_t i;
    char longer[256];

    if (json_object_get(schema, "items"))
        check_met(c, path, json_object_get(schema, "items"), missing);
    json_array_foreach(json_object_get(schema, "anyOf"), i, one)
        check_met(c, path, one, missing);
    json_object_foreach(json_object_get(schema, "properties"), key, one) {
        snprintf(longer, sizeof longer, "%s.%s", path, key);
        if (may_be_unmet(longer))
            continue;
        if (!json_object_get(c->seen, longer)) {
            fprintf(stderr, "%s was never sent\n", longer);
            ++*missing;
        }
        check_met(c, longer, one, missing);
    }
}

static int count_unmet(struct checker *c, const char *section, const char *field)
{
    const char *name;
    json_t *one;
    int missing = 0;

    json_object_foreach(json_object_get(c->document, section), name, one) {
        char path[128];
        snprintf(path, sizeof path, "%s.%s", name, field);
        if (may_be_unmet(path))
            continue;
        if (!json_object_get(c->seen, path)) {
            fprintf(stderr, "%s was never sent\n", path);
            missing++;
        }
        json_auto_t *schema = json_deep_copy(schema_at(c, section, name, field));
        check_met(c, path, schema, &missing);
    }
    return missing;
}

static void test_traffic_is_as_the_schema_says(void **state)
{
    (void)state;
    struct checker c;
    const json_t *entry;
    size_t i;

    checker_open(&c);
    json_auto_t *lines = traffic(json_object_get(c.document, "methods"));
    json_array_foreach(lines, i, entry)
        check_line(&c, entry);
    json_object_clear(c.pending);
    json_auto_t *more = traffic_of_a_model(json_object_get(c.document, "methods"));
    json_array_foreach(more, i, entry)
        check_line(&c, entry);
    int n = count_unmet(&c, "methods", "params");
    n += count_unmet(&c, "methods", "result");
    n += count_unmet(&c, "notifications", "params");
    assert_int_equal(n, 0);
    checker_close(&c);
}

/* The table of handlers and the table of shapes have the same names. */
static void test_methods_are_those_of_the_daemon(void **state)
{
    (void)state;
    struct checker c;
    struct daemon_fixture d;
    const char *name;
    json_t *one;
    size_t i;

    checker_open(&c);
    daemon_make(&d, SAY("x"));
    daemon_start(&d, NULL);
    struct client *client = daemon_connect(&d, NULL, NULL);
    json_t *methods =
        json_object_get(json_object_get(client_server(client), "capabilities"), "methods");
    json_t *shapes = json_object_get(c.document, "methods");
    json_array_foreach(methods, i, one)
        assert_non_null(json_object_get(shapes, json_string_value(one)));
    json_object_foreach(shapes, name, one) {
        bool is_there = false;
        const json_t *m;
        json_array_foreach(methods, i, m)
            is_there = is_there || !strcmp(json_string_value(m), name);
        if (!is_there)
            fail_msg("%s has no handler", name);
    }
    client_free(client);
    daemon_remove(&d);
    checker_close(&c);
}

/* What the checks above rest on: a line that differs is not taken. */
static void test_differences_are_found(void **state)
{
    (void)state;
    struct checker c;
    struct error e;

    checker_open(&c);
    json_auto_t *live = json_pack("{s:s, s:i}", "sessionId", "x", "seq", 3);
    const json_t *schema = schema_at(&c, "notifications", "session/live", "params");
    assert_ok(schema_check(schema, live, &e), &e);
    json_object_set_new(live, "surprise", json_true());
    assert_int_equal(schema_check(schema, live, &e), ERR_INVAL);
    json_object_del(live, "surprise");
    json_object_set_new(live, "seq", json_integer(-1));
    assert_int_equal(schema_check(schema, live, &e), ERR_INVAL);
    json_object_del(live, "seq");
    assert_int_equal(schema_check(schema, live, &e), ERR_INVAL);
    json_auto_t *event =
        json_pack("{s:s, s:i, s:i, s:s, s:{s:s, s:s, s:s}}", "sessionId", "x", "seq", 1, "tMs",
                  1, "type", "item", "item", "id", "i", "kind", "user", "text", "hi");
    schema = schema_at(&c, "notifications", "session/event", "params");
    assert_ok(schema_check(schema, event, &e), &e);
    json_object_set_new(json_object_get(event, "item"), "callId", json_string("c"));
    assert_int_equal(schema_check(schema, event, &e), ERR_INVAL);
    checker_close(&c);
}

static void test_error_kinds_are_all_there(void **state)
{
    (void)state;
    struct checker c;
    struct error e;

    checker_open(&c);
    for (int code = ERR_NOMEM; code <= ERR_GPU; code++) {
        json_auto_t *kind = json_string(err_name((enum err)code));
        assert_ok(schema_check(defined(&c, "ErrorKind"), kind, &e), &e);
        bool is_listed = false;
        json_t *one;
        size_t i;
        json_array_foreach(json_object_get(json_object_get(c.document, "errors"), "codes"), i,
                           one)
            is_listed = is_listed || json_integer_value(json_object_get(one, "const")) ==
                                         (json_int_t)rpc_code((enum err)code);
        assert_true(is_listed);
    }
    checker_close(&c);
}

static void test_notation(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",       "{",  "{a",       "{a: }",        "{a, a}", "[string",
        "<uint]", "a|", "string x", "{a: [{b: }]}", "{?}",    "[[[[[[[[[[[[[[[[[[a"};
    struct error e;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *schema = NULL;
        assert_int_equal(schema_read(bad[i], &schema, &e), ERR_INVAL);
        assert_null(schema);
    }
    json_auto_t *
        s = NULL,
       *want = json_loads(
           "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\"},\"n\":{\"anyOf\":"
           "["
           "{\"type\":\"integer\",\"minimum\":0},{\"type\":\"null\"}]},\"m\":{\"enum\":[\"a\","
           "\"b-c\"]},\"l\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/Item\"}},\"x\":{"
           "\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\"}}},\"required\":["
           "\"id\",\"m\"]}",
           0, NULL);
    assert_ok(schema_read("{id, n?: uint|null, m: a|b-c, l?: [Item], x?: <number>}", &s, &e),
              &e);
    assert_true(json_equal(s, want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notation),
        cmocka_unit_test(test_differences_are_found),
        cmocka_unit_test(test_error_kinds_are_all_there),
        cmocka_unit_test(test_methods_are_those_of_the_daemon),
        cmocka_unit_test(test_traffic_is_as_the_schema_says),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
