/* agentctl status, tools, gc, approvals, approve and deny: the daemon as a whole. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"

static void print_fields(const struct cli_options *o, const json_t *j)
{
    if (o->json || o->jsonl)
        cli_json_print(stdout, j, o->json);
    else
        cli_fields_print(stdout, j, 0);
}

/* A call without parameters; the answer goes to print. */
static int daemon_verb(const struct command *c, int argc, char **argv, const char *method,
                       void (*print)(const struct cli_options *o, const json_t *answer))
{
    struct cli_options o = {0};
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    int code = cli_parse(c, argc, argv, &o, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, c, &o, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    enum err rc = cli_call(&x, method, json_object(), &answer, &e);
    if (rc)
        code = cli_fail(&x, rc, &e);
    else {
        print(&o, answer);
        code = EXIT_DONE;
    }
    cli_close(&x);
    return code;
}

/* ---- status, tools -------------------------------------------------------------- */

const struct command cli_status_command = {
    "status", "", "the daemon and its model", OPTION_TABLE_EMPTY, CLI_OPTION_TABLE, 0, 0};

int cli_status(int argc, char **argv)
{
    struct cli_options o = {0};
    json_auto_t *daemon = NULL, *model = NULL, *both = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    int code = cli_parse(&cli_status_command, argc, argv, &o, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, &cli_status_command, &o, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    enum err rc = cli_call(&x, "daemon/status", json_object(), &daemon, &e);
    if (!rc)
        rc = cli_call(&x, "model/status", json_object(), &model, &e);
    code = EXIT_DONE;
    if (rc) {
        code = cli_fail(&x, rc, &e);
    } else {
        both = json_pack("{s:O, s:O}", "daemon", daemon, "model", model);
        print_fields(&o, both);
    }
    cli_close(&x);
    return code;
}

const struct command cli_tools_command = {
    "tools", "", "the tools of the daemon", OPTION_TABLE_EMPTY, CLI_OPTION_TABLE, 0, 0};

static void print_tools(const struct cli_options *o, const json_t *answer)
{
    const json_t *t;
    size_t i;
    if (o->json || o->jsonl) {
        cli_json_print(stdout, answer, o->json);
        return;
    }
    json_array_foreach(json_object_get(answer, "tools"), i, t) {
        printf("%-12.40s ", cli_str(t, "name"));
        cli_text_print_head(stdout, cli_str(t, "description"), 1, 200, "");
    }
}

int cli_tools(int argc, char **argv)
{
    return daemon_verb(&cli_tools_command, argc, argv, "tool/list", print_tools);
}

/* ---- gc ------------------------------------------------------------------------- */

const struct command cli_gc_command = {
    "gc", "", "give back state that no session needs", OPTION_TABLE_EMPTY, CLI_OPTION_TABLE,
    0,    0};

int cli_gc(int argc, char **argv)
{
    return daemon_verb(&cli_gc_command, argc, argv, "kv/gc", print_fields);
}

/* ---- approvals ------------------------------------------------------------------ */

const struct command cli_approvals_command = {
    "approvals", "", "tool calls that wait for a yes", OPTION_TABLE_EMPTY, CLI_OPTION_TABLE,
    0,           0};

static void print_approvals(const struct cli_options *o, const json_t *answer)
{
    const json_t *a;
    size_t i;
    if (o->json) {
        cli_json_print(stdout, answer, true);
        return;
    }
    json_array_foreach(json_object_get(answer, "approvals"), i, a) {
        if (o->jsonl) {
            cli_json_print(stdout, a, false);
            continue;
        }
        const json_t *args = json_object_get(a, "arguments");
        AUTO_FREE char *text = json_is_string(args) ? strdup(json_string_value(args))
                                                    : json_dumps(args, JSON_ENCODE_ANY);
        printf("%s  %s  ", cli_str(a, "approvalId"), cli_str(a, "sessionId"));
        cli_text_print(stdout, cli_str(a, "name"));
        fputs(" ", stdout);
        cli_text_print_head(stdout, text ? text : "", SIZE_MAX, SIZE_MAX, "    ");
    }
}

int cli_approvals(int argc, char **argv)
{
    return daemon_verb(&cli_approvals_command, argc, argv, "approval/list", print_approvals);
}

struct approve_options {
    struct cli_options cli; /* first */
    bool session;
};

static const struct option approve_table[] = {
    {"session", 0, OPTION_FLAG, offsetof(struct approve_options, session),
     .help = "this tool, for the rest of the session"},
};

const struct command cli_approve_command = {
    "approve", "APPROVAL", "let a tool call run", OPTION_TABLE(approve_table), CLI_OPTION_TABLE,
    1,         1};
const struct command cli_deny_command = {
    "deny", "APPROVAL", "refuse a tool call", OPTION_TABLE_EMPTY, CLI_OPTION_TABLE, 1, 1};

/* An approval is named by its id, a unique prefix of it, or, if only one waits there, by the
 * session's name. */
static enum err find_approval(struct cli *x, const char *key, const json_t *list,
                              const char **out, struct error *e)
{
    json_auto_t *session = NULL;
    char id[CLI_ID_CAP] = "";
    const json_t *a;
    size_t i, n = 0;
    if (cli_resolve(x, key, id, &session, NULL))
        id[0] = 0;
    json_array_foreach(json_object_get(list, "approvals"), i, a) {
        const char *approval = cli_str(a, "approvalId");
        if (strncmp(approval, key, strlen(key)) && strcmp(cli_str(a, "sessionId"), id))
            continue;
        *out = approval;
        n++;
    }
    if (n > 1)
        return err_set(e, ERR_NOTFOUND, "%.60s is ambiguous: %zu calls wait", key, n);
    return n ? OK : err_set(e, ERR_NOTFOUND, "no call waits under %.60s", key);
}

static int resolve(const struct command *c, const struct cli_options *o, const char *key,
                   const char *outcome)
{
    json_auto_t *list = NULL, *answer = NULL;
    const char *id = NULL;
    struct cli x;
    struct error e;
    int code = cli_open(&x, c, o, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    enum err rc = cli_call(&x, "approval/list", json_object(), &list, &e);
    if (!rc)
        rc = find_approval(&x, key, list, &id, &e);
    if (!rc)
        rc = cli_call(&x, "approval/resolve",
                      json_pack("{s:s, s:s}", "approvalId", id, "outcome", outcome), &answer,
                      &e);
    if (rc)
        code = cli_fail(&x, rc, &e);
    else {
        print_fields(o, answer);
        code = EXIT_DONE;
    }
    cli_close(&x);
    return code;
}

int cli_approve(int argc, char **argv)
{
    struct approve_options o = {0};
    struct options seen;
    int code = cli_parse(&cli_approve_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    return resolve(&cli_approve_command, &o.cli, seen.args[0], o.session ? "session" : "once");
}

int cli_deny(int argc, char **argv)
{
    struct approve_options o = {0};
    struct options seen;
    int code = cli_parse(&cli_deny_command, argc, argv, &o, &seen);
    return code == CLI_GO_ON ? resolve(&cli_deny_command, &o.cli, seen.args[0], "reject")
                             : code;
}
