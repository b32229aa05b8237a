/* agentctl attach, wait, logs and show: what happens in a session, and what happened. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"
#include "agentd/cli_watch.h"

struct plain_options {
    struct cli_options cli;
};

struct logs_options {
    struct cli_options cli; /* first */
    bool follow;
    int64_t from;
};

static const struct option logs_table[] = {
    {"follow", 'f', OPTION_FLAG, offsetof(struct logs_options, follow),
     .help = "stay and print what is added"},
    {"from", 0, OPTION_INT, offsetof(struct logs_options, from), "SEQ", .min = 0,
     .max = INT64_MAX, .help = "only events behind this one"},
};

const struct command cli_attach_command = {"attach",
                                           "NAME",
                                           "follow a session until its turn has ended",
                                           OPTION_TABLE_EMPTY,
                                           CLI_OPTION_TABLE,
                                           1,
                                           1};
const struct command cli_wait_command = {"wait",
                                         "NAME",
                                         "wait for the end of a turn and print the answer",
                                         OPTION_TABLE_EMPTY,
                                         CLI_OPTION_TABLE,
                                         1,
                                         1};
const struct command cli_logs_command = {
    "logs", "NAME", "print the events of a session", OPTION_TABLE(logs_table), CLI_OPTION_TABLE,
    1,      1};
const struct command cli_show_command = {"show",
                                         "NAME[@SEQ]",
                                         "all about a session, or one event of it in full",
                                         OPTION_TABLE_EMPTY,
                                         CLI_OPTION_TABLE,
                                         1,
                                         1};

static enum err attach(struct watch *w, const char *id, const char *mode, int64_t from,
                       struct error *e)
{
    json_auto_t *answer = NULL;
    json_t *params = json_pack("{s:s, s:s}", "id", id, "mode", mode);
    if (from >= 0)
        json_object_set_new(params, "fromSeq", json_integer(from));
    enum err rc = cli_call(w->cli, "session/attach", params, &answer, e);
    if (!rc)
        watch_state(w, answer);
    return rc;
}

/* ---- attach, wait --------------------------------------------------------------- */

static int follow_turn(const struct command *c, int argc, char **argv, const char *mode)
{
    struct plain_options o = {0};
    struct options seen;
    struct cli x;
    struct watch w;
    struct error e;
    json_auto_t *session = NULL;
    char id[CLI_ID_CAP];
    int code = cli_parse(c, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    watch_init(&w, &o.cli);
    w.cli = &x;
    code = cli_open(&x, c, &o.cli, watch_notify, &w);
    if (code == CLI_GO_ON) {
        enum err rc = cli_resolve(&x, seen.args[0], id, &session, &e);
        if (!rc)
            rc = attach(&w, id, mode, -1, &e);
        code = rc ? cli_fail(&x, rc, &e) : watch_turn(&w, id, cli_str(session, "name"));
    }
    watch_fini(&w);
    cli_close(&x);
    return code;
}

int cli_attach(int argc, char **argv)
{
    return follow_turn(&cli_attach_command, argc, argv, "control");
}

int cli_wait(int argc, char **argv)
{
    return follow_turn(&cli_wait_command, argc, argv, "observe");
}

/* ---- logs, show ----------------------------------------------------------------- */

static int read_events(struct watch *w, const char *id, int64_t from)
{
    struct error e;
    enum err rc = attach(w, id, "observe", from, &e);
    if (!rc)
        rc = watch_events(w, &e);
    if (rc == ERR_CANCELLED)
        return EXIT_INTERRUPTED;
    return rc ? cli_fail(w->cli, rc, &e) : EXIT_DONE;
}

int cli_logs(int argc, char **argv)
{
    struct logs_options o = {0};
    struct options seen;
    struct cli x;
    struct watch w;
    struct error e;
    char id[CLI_ID_CAP];
    int code = cli_parse(&cli_logs_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    watch_init(&w, &o.cli);
    w.cli = &x;
    w.print_items = true;
    w.follow = o.follow;
    code = cli_open(&x, &cli_logs_command, &o.cli, watch_notify, &w);
    if (code == CLI_GO_ON) {
        enum err rc = cli_resolve(&x, seen.args[0], id, NULL, &e);
        code = rc ? cli_fail(&x, rc, &e) : read_events(&w, id, o.from);
    }
    watch_fini(&w);
    cli_close(&x);
    return code;
}

static int show_event(struct watch *w, const char *id, const char *name, uint64_t seq)
{
    struct error e;
    w->only_seq = seq;
    int code = read_events(w, id, (int64_t)seq - 1);
    if (code || w->found)
        return code;
    err_set(&e, ERR_NOTFOUND, "%s has no event @%llu", name, (unsigned long long)seq);
    return cli_fail(w->cli, ERR_NOTFOUND, &e);
}

/* What the model was shown of its tools takes pages: their names will do, --json has it all. */
static void print_session(const json_t *session)
{
    json_auto_t *brief = json_deep_copy(session), *names = json_array();
    json_t *config = json_object_get(brief, "config");
    const json_t *f;
    size_t i;
    json_array_foreach(json_object_get(config, "functions"), i, f)
        json_array_append(names, json_object_get(f, "name"));
    if (json_array_size(names))
        json_object_set(config, "functions", names);
    cli_fields_print(stdout, brief, 0);
}

static int show(struct watch *w, const char *arg)
{
    json_auto_t *listed = NULL, *session = NULL;
    char key[CLI_ID_CAP], id[CLI_ID_CAP];
    uint64_t seq;
    struct error e;
    enum err rc = cli_split_seq(arg, key, sizeof key, &seq, &e);
    if (!rc)
        rc = cli_resolve(w->cli, key, id, &listed, &e);
    if (!rc && seq)
        return show_event(w, id, cli_str(listed, "name"), seq);
    if (!rc)
        rc = cli_call(w->cli, "session/get", json_pack("{s:s}", "id", id), &session, &e);
    if (rc)
        return cli_fail(w->cli, rc, &e);
    if (w->o->json || w->o->jsonl)
        cli_json_print(stdout, session, w->o->json);
    else
        print_session(session);
    return EXIT_DONE;
}

int cli_show(int argc, char **argv)
{
    struct plain_options o = {0};
    struct options seen;
    struct cli x;
    struct watch w;
    int code = cli_parse(&cli_show_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    watch_init(&w, &o.cli);
    w.cli = &x;
    w.print_items = true;
    code = cli_open(&x, &cli_show_command, &o.cli, watch_notify, &w);
    if (code == CLI_GO_ON)
        code = show(&w, seen.args[0]);
    watch_fini(&w);
    cli_close(&x);
    return code;
}
