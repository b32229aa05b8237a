/* agentctl rewind, compact and log: a session goes on from another place, and where sessions
 * came from. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"

/* ---- rewind --------------------------------------------------------------------- */

const struct command cli_rewind_command = {
    "rewind",
    "NAME @SEQ|~N",
    "go on from event SEQ, or from N turns ago; the rest is kept",
    OPTION_TABLE_EMPTY,
    CLI_OPTION_TABLE,
    2,
    2};

/* Where a rewind goes: a seq, or a number of turns back. */
static enum err parse_place(const char *arg, bool *is_turns, int64_t *n, struct error *e)
{
    *is_turns = arg[0] == '~';
    if (!*is_turns && arg[0] != '@')
        return err_set(e, ERR_INVAL, "%.40s: want @SEQ or ~N", arg);
    enum err rc = options_parse_int(arg + 1, *is_turns, INT64_MAX, n, e);
    return rc ? err_wrap(e, ERR_INVAL, "%.40s", arg) : OK;
}

/* Last event of the turn that is n turns before the newest; 0: the beginning. */
static enum err turns_back(struct cli *x, const char *id, int64_t n, int64_t *seq,
                           struct error *e)
{
    json_auto_t *usage = NULL;
    enum err rc = cli_call(x, "session/usage", json_pack("{s:s}", "id", id), &usage, e);
    if (rc)
        return rc;
    const json_t *turns = json_object_get(usage, "turns");
    size_t have = json_array_size(turns);
    if ((uint64_t)n > have)
        return err_set(e, ERR_NOTFOUND, "~%lld: the session has %zu turns", (long long)n, have);
    *seq =
        (size_t)n == have ? 0 : cli_int(json_array_get(turns, have - (size_t)n - 1), "lastSeq");
    return OK;
}

static int rewind_with(struct cli *x, const struct cli_options *o, const char *key,
                       bool is_turns, int64_t n)
{
    json_auto_t *answer = NULL;
    char id[CLI_ID_CAP], tokens[CLI_FIGURE_BYTES];
    int64_t seq = n;
    struct error e;
    enum err rc = cli_resolve(x, key, id, NULL, &e);
    if (!rc && is_turns)
        rc = turns_back(x, id, n, &seq, &e);
    if (!rc)
        rc = cli_call(x, "session/rewind",
                      json_pack("{s:s, s:I}", "id", id, "toSeq", (json_int_t)seq), &answer, &e);
    if (rc)
        return cli_fail(x, rc, &e);
    if (o->json || o->jsonl) {
        cli_json_print(stdout, answer, o->json);
        return EXIT_DONE;
    }
    cli_thousands(cli_int(answer, "tokens"), tokens);
    printf("@%lld, %s tokens; what came after is kept as %s\n",
           (long long)cli_int(answer, "seq"), tokens,
           cli_str(json_object_get(answer, "kept"), "name"));
    return EXIT_DONE;
}

int cli_rewind(int argc, char **argv)
{
    struct cli_options o = {0};
    struct options seen;
    struct cli x;
    struct error e;
    bool is_turns;
    int64_t n;
    int code = cli_parse(&cli_rewind_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    if (parse_place(seen.args[1], &is_turns, &n, &e))
        return cli_usage(&cli_rewind_command, "%s", e.msg);
    code = cli_open(&x, &cli_rewind_command, &o, NULL, NULL);
    if (code == CLI_GO_ON)
        code = rewind_with(&x, &o, seen.args[0], is_turns, n);
    cli_close(&x);
    return code;
}

/* ---- compact -------------------------------------------------------------------- */

const struct command cli_compact_command = {
    "compact",
    "NAME",
    "let the model sum up the session, and go on from that; the rest is kept",
    OPTION_TABLE_EMPTY,
    CLI_OPTION_TABLE,
    1,
    1};

/* Waits for the summary; what there was is gone from the tape if it was taken. */
static enum err compact(struct cli *x, const char *id, json_t **waited, json_t **session,
                        struct error *e)
{
    json_auto_t *receipt = NULL;
    enum err rc = cli_call(x, "session/compact", json_pack("{s:s}", "id", id), &receipt, e);
    if (!rc)
        rc = cli_call(x, "session/wait",
                      json_pack("{s:s, s:s}", "id", id, "turnId", cli_str(receipt, "turnId")),
                      waited, e);
    return rc ? rc : cli_call(x, "session/get", json_pack("{s:s}", "id", id), session, e);
}

static int compact_with(struct cli *x, const struct cli_options *o, const char *key)
{
    json_auto_t *before = NULL, *waited = NULL, *after = NULL;
    char id[CLI_ID_CAP], tokens[CLI_FIGURE_BYTES];
    struct error e;
    enum err rc = cli_resolve(x, key, id, &before, &e);
    if (!rc)
        rc = compact(x, id, &waited, &after, &e);
    if (rc)
        return cli_fail(x, rc, &e);
    const char *reason = cli_str(waited, "reason");
    bool taken = !strcmp(reason, "end") && cli_int(after, "tokens") < cli_int(before, "tokens");
    if (o->json || o->jsonl) {
        cli_json_print(stdout, waited, o->json);
    } else if (taken) {
        cli_thousands(cli_int(before, "tokens"), tokens);
        printf("%s tokens are now this:\n", tokens);
        cli_text_print(stdout, cli_str(waited, "text"));
        fputs("\n", stdout);
    }
    if (!taken)
        cli_note(x, "%s is as it was: agentctl logs %s says why", cli_str(before, "name"),
                 cli_str(before, "name"));
    return taken ? EXIT_DONE : EXIT_FAILED;
}

int cli_compact(int argc, char **argv)
{
    struct cli_options o = {0};
    struct options seen;
    struct cli x;
    int code = cli_parse(&cli_compact_command, argc, argv, &o, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, &cli_compact_command, &o, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    code = compact_with(&x, &o, seen.args[0]);
    cli_close(&x);
    return code;
}

/* ---- log ------------------------------------------------------------------------ */

#define LOG_MAX_DEPTH 64 /* columns of the graph */

struct log_options {
    struct cli_options cli; /* first */
    bool graph;
};

static const struct option log_table[] = {
    {"graph", 0, OPTION_FLAG, offsetof(struct log_options, graph),
     .help = "as a tree: what was forked, rewound or compacted from what"},
};

const struct command cli_log_command = {"log",
                                        "",
                                        "all sessions and where they come from",
                                        OPTION_TABLE(log_table),
                                        CLI_OPTION_TABLE,
                                        0,
                                        0};

/* How a session came from its parent; a fork says where it left. */
static void print_origin(const json_t *s)
{
    const char *origin = cli_str(s, "origin"), *parent = cli_str(s, "parentName");
    char at[CLI_FIGURE_BYTES];
    if (!strcmp(origin, "rewind") || !strcmp(origin, "compact"))
        printf(", what %s had before it was %s", parent,
               origin[0] == 'r' ? "rewound" : "compacted");
    else if (!strcmp(origin, "import"))
        fputs(", imported", stdout);
    else if (*cli_str(s, "parent"))
        printf(", left %s at %s tokens", parent,
               cli_figure((double)cli_int(s, "forkedAt"), at));
}

static void print_one(const json_t *s, unsigned depth)
{
    char tokens[CLI_FIGURE_BYTES];
    cli_figure((double)cli_int(s, "tokens"), tokens);
    for (unsigned i = 0; i + 1 < depth; i++)
        fputs("| ", stdout);
    printf("%s* %s  %s tokens, @%lld", depth ? "|\\" : "", cli_str(s, "name"), tokens,
           (long long)cli_int(s, "lastSeq"));
    print_origin(s);
    fputs("\n", stdout);
}

static void print_children(const json_t *list, const char *parent, unsigned depth)
{
    json_t *s;
    size_t i;
    json_array_foreach(list, i, s) {
        if (strcmp(cli_str(s, "parentId"), parent))
            continue;
        print_one(s, depth);
        if (depth < LOG_MAX_DEPTH)
            print_children(list, cli_str(s, "id"), depth + 1);
    }
}

static const json_t *find_id(const json_t *list, const char *id)
{
    const json_t *s;
    size_t i;
    json_array_foreach(list, i, s)
        if (*id && !strcmp(cli_str(s, "id"), id))
            return s;
    return NULL;
}

/* A parent that was deleted has no place in the tree: its forks stand at the root. */
static void name_parents(json_t *list)
{
    json_t *s;
    size_t i;
    json_array_foreach(list, i, s) {
        const json_t *parent = find_id(list, cli_str(s, "parent"));
        json_object_set_new(s, "parentId", json_string(parent ? cli_str(parent, "id") : ""));
        json_object_set_new(
            s, "parentName",
            json_string(parent ? cli_str(parent, "name") : "a session that is gone"));
    }
}

int cli_log(int argc, char **argv)
{
    struct log_options o = {0};
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    int code = cli_parse(&cli_log_command, argc, argv, &o, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, &cli_log_command, &o.cli, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    enum err rc = cli_call(&x, "session/list", json_object(), &answer, &e);
    json_t *list = json_object_get(answer, "sessions"), *s;
    size_t i;
    code = rc ? cli_fail(&x, rc, &e) : EXIT_DONE;
    name_parents(list);
    if (o.cli.json || o.cli.jsonl)
        cli_json_print(stdout, answer, o.cli.json);
    else if (o.graph)
        print_children(list, "", 0);
    else
        json_array_foreach(list, i, s)
            print_one(s, 0);
    cli_close(&x);
    return code;
}
