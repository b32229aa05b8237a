/* agentctl ps, fork, rename, rm, cancel, usage and verify: sessions as things. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"
#include "base/clock.h"

/* One call about one session, and its answer printed: most verbs are no more. */
struct session_verb {
    const struct command *command;
    const char *method;
    json_t *(*params)(const char *id, const struct options *seen, const void *o);
    int (*print)(const json_t *answer);
};

static int print_answer(const struct cli_options *o, const json_t *answer,
                        int (*print)(const json_t *))
{
    if (!o->json && !o->jsonl)
        return print(answer);
    cli_json_print(stdout, answer, o->json);
    return EXIT_DONE;
}

/* o begins with struct cli_options. The first argument names the session. */
static int session_verb(const struct session_verb *v, int argc, char **argv, void *values)
{
    struct cli_options *o = values;
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    char id[CLI_ID_CAP];
    int code = cli_parse(v->command, argc, argv, values, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, v->command, o, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    enum err rc = cli_resolve(&x, seen.args[0], id, NULL, &e);
    if (!rc)
        rc = cli_call(&x, v->method, v->params(id, &seen, values), &answer, &e);
    code = rc ? cli_fail(&x, rc, &e) : print_answer(o, answer, v->print);
    cli_close(&x);
    return code;
}

static json_t *params_id(const char *id, const struct options *seen, const void *o)
{
    (void)seen;
    (void)o;
    return json_pack("{s:s}", "id", id);
}

static int print_name(const json_t *answer)
{
    const char *name = cli_str(answer, "name");
    cli_text_print(stdout, *name ? name : cli_str(answer, "id"));
    fputs("\n", stdout);
    return EXIT_DONE;
}

/* ---- ps ------------------------------------------------------------------------- */

struct ps_options {
    struct cli_options cli; /* first */
    bool all, names;
};

static const struct option ps_table[] = {
    {"all", 'a', OPTION_FLAG, offsetof(struct ps_options, all), .help = "idle ones, too"},
    {"names", 0, OPTION_FLAG, offsetof(struct ps_options, names), .help = "names only"},
};

const struct command cli_ps_command = {
    "ps", "", "list the sessions that work (-a: all)", OPTION_TABLE(ps_table), CLI_OPTION_TABLE,
    0,    0};

static void print_session(const json_t *s)
{
    char tokens[CLI_FIGURE_BYTES], age[CLI_FIGURE_BYTES], state[64];
    const char *reason = cli_str(s, "reason");
    int64_t ago = clock_wall_ms(clock_real()) - cli_int(s, "updatedMs");
    if (json_is_true(json_object_get(s, "damaged")))
        snprintf(state, sizeof state, "damaged");
    else
        snprintf(state, sizeof state, "%.20s%s%.20s", cli_str(s, "state"), *reason ? ": " : "",
                 reason);
    printf("%-24s %-22s %9s  %-8s ", cli_str(s, "name"), state,
           cli_figure((double)cli_int(s, "tokens"), tokens), cli_age(ago, age));
    cli_text_print(stdout, cli_str(s, "cwd"));
    fputs("\n", stdout);
}

static int print_sessions(const json_t *list, const struct ps_options *o)
{
    bool head = !o->names && !o->cli.json && !o->cli.jsonl;
    json_auto_t *shown = json_array();
    json_t *s;
    size_t i;
    json_array_foreach(json_object_get(list, "sessions"), i, s) {
        if (!o->all && !strcmp(cli_str(s, "state"), "idle"))
            continue;
        json_array_append(shown, s);
        if (head)
            printf("%-24s %-22s %9s  %-8s %s\n", "NAME", "STATE", "TOKENS", "USED", "FOLDER");
        head = false;
        if (o->cli.json)
            continue;
        if (o->cli.jsonl)
            cli_json_print(stdout, s, false);
        else if (o->names)
            printf("%s\n", cli_str(s, "name"));
        else
            print_session(s);
    }
    if (o->cli.json) {
        json_auto_t *out = json_pack("{s:O}", "sessions", shown);
        cli_json_print(stdout, out, true);
    }
    return EXIT_DONE;
}

int cli_ps(int argc, char **argv)
{
    struct ps_options o = {0};
    json_auto_t *list = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    int code = cli_parse(&cli_ps_command, argc, argv, &o, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, &cli_ps_command, &o.cli, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    enum err rc = cli_call(&x, "session/list", json_object(), &list, &e);
    code = rc ? cli_fail(&x, rc, &e) : print_sessions(list, &o);
    cli_close(&x);
    return code;
}

/* ---- fork ----------------------------------------------------------------------- */

struct fork_options {
    struct cli_options cli; /* first */
    const char *name;
};

static const struct option fork_table[] = {
    {"name", 'n', OPTION_STRING, offsetof(struct fork_options, name), "NAME",
     .help = "name of the fork"},
};

const struct command cli_fork_command = {"fork",
                                         "NAME[@SEQ]",
                                         "a new session that shares the history up to here",
                                         OPTION_TABLE(fork_table),
                                         CLI_OPTION_TABLE,
                                         1,
                                         1};

int cli_fork(int argc, char **argv)
{
    struct fork_options o = {0};
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    char key[CLI_ID_CAP], id[CLI_ID_CAP];
    uint64_t seq;
    int code = cli_parse(&cli_fork_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    if (cli_split_seq(seen.args[0], key, sizeof key, &seq, &e))
        return cli_usage(&cli_fork_command, "%s", e.msg);
    code = cli_open(&x, &cli_fork_command, &o.cli, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    enum err rc = cli_resolve(&x, key, id, NULL, &e);
    if (!rc) {
        json_t *params = json_pack("{s:s, s:s*}", "id", id, "name", o.name);
        if (seq)
            json_object_set_new(params, "atSeq", json_integer((json_int_t)seq));
        rc = cli_call(&x, "session/fork", params, &answer, &e);
    }
    code = rc ? cli_fail(&x, rc, &e) : print_answer(&o.cli, answer, print_name);
    cli_close(&x);
    return code;
}

/* ---- rename, rm, cancel --------------------------------------------------------- */

const struct command cli_rename_command = {
    "rename", "NAME NEW", "give a session another name", OPTION_TABLE_EMPTY, CLI_OPTION_TABLE,
    2,        2};

static json_t *rename_params(const char *id, const struct options *seen, const void *o)
{
    (void)o;
    return json_pack("{s:s, s:s}", "id", id, "name", seen->args[1]);
}

int cli_rename(int argc, char **argv)
{
    static const struct session_verb v = {&cli_rename_command, "session/rename", rename_params,
                                          print_name};
    struct cli_options o = {0};
    return session_verb(&v, argc, argv, &o);
}

struct rm_options {
    struct cli_options cli; /* first */
    bool purge;
};

static const struct option rm_table[] = {
    {"purge", 0, OPTION_FLAG, offsetof(struct rm_options, purge),
     .help = "overwrite what only this session used"},
};

const struct command cli_rm_command = {
    "rm", "NAME", "delete a session", OPTION_TABLE(rm_table), CLI_OPTION_TABLE, 1, 1};

static json_t *rm_params(const char *id, const struct options *seen, const void *o)
{
    (void)seen;
    const struct rm_options *rm = o;
    return rm->purge ? json_pack("{s:s, s:b}", "id", id, "purge", 1)
                     : json_pack("{s:s}", "id", id);
}

int cli_rm(int argc, char **argv)
{
    static const struct session_verb v = {&cli_rm_command, "session/delete", rm_params,
                                          print_name};
    struct rm_options o = {0};
    return session_verb(&v, argc, argv, &o);
}

const struct command cli_cancel_command = {
    "cancel", "NAME", "cancel the turn, keep the session", OPTION_TABLE_EMPTY, CLI_OPTION_TABLE,
    1,        1};

static int print_cancelled(const json_t *answer)
{
    puts(json_is_true(json_object_get(answer, "cancelled")) ? "cancelled"
                                                            : "nothing to cancel");
    return EXIT_DONE;
}

int cli_cancel(int argc, char **argv)
{
    static const struct session_verb v = {&cli_cancel_command, "session/cancel", params_id,
                                          print_cancelled};
    struct cli_options o = {0};
    return session_verb(&v, argc, argv, &o);
}

/* ---- usage ---------------------------------------------------------------------- */

const struct command cli_usage_command = {"usage",
                                          "NAME",
                                          "what each turn of a session cost: the ledger",
                                          OPTION_TABLE_EMPTY,
                                          CLI_OPTION_TABLE,
                                          1,
                                          1};

static void print_usage_row(const char *what, const json_t *l)
{
    static const char *const columns[] = {"prompt_tokens", "resident", "restored",
                                          "recomputed",    "relost",   "prefilled",
                                          "decoded",       "replayed"};
    char n[CLI_FIGURE_BYTES];
    printf("%-10.10s", what);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        printf(" %10s", cli_thousands(cli_int(l, columns[i]), n));
    fputs("\n", stdout);
}

static int print_usage(const json_t *answer)
{
    const json_t *turn;
    size_t i;
    printf("%-10s %10s %10s %10s %10s %10s %10s %10s %10s\n", "TURN", "PROMPT", "RESIDENT",
           "RESTORED", "RECOMPUTED", "RELOST", "PREFILLED", "DECODED", "REPLAYED");
    json_array_foreach(json_object_get(answer, "turns"), i, turn) {
        char number[24];
        snprintf(number, sizeof number, "%zu", i + 1);
        print_usage_row(number, json_object_get(turn, "ledger"));
    }
    print_usage_row("total", json_object_get(answer, "total"));
    return EXIT_DONE;
}

int cli_usage_of(int argc, char **argv)
{
    static const struct session_verb v = {&cli_usage_command, "session/usage", params_id,
                                          print_usage};
    struct cli_options o = {0};
    return session_verb(&v, argc, argv, &o);
}

/* ---- verify --------------------------------------------------------------------- */

const struct command cli_verify_command = {
    "verify",
    "NAME",
    "compute the tape again from token 0 in a fresh process and compare",
    OPTION_TABLE_EMPTY,
    CLI_OPTION_TABLE,
    1,
    1};

/* Where nothing could be compared, nothing is verified; but for a tape without a token. */
static bool is_verified(const json_t *answer)
{
    bool equal = json_is_true(json_object_get(answer, "equal"));
    return equal && (cli_int(answer, "rows") > 0 || cli_int(answer, "tokens") == 0);
}

static void print_mismatch(const json_t *at)
{
    if (!at)
        return;
    if (json_is_object(at)) {
        puts("first mismatch:");
        cli_fields_print(stdout, at, 2);
    } else {
        fputs("first mismatch: ", stdout);
        cli_json_print(stdout, at, false);
    }
}

static void print_verify(const json_t *answer)
{
    char rows[CLI_FIGURE_BYTES], tokens[CLI_FIGURE_BYTES], t[CLI_FIGURE_BYTES];
    bool equal = json_is_true(json_object_get(answer, "equal"));
    cli_thousands(cli_int(answer, "rows"), rows);
    cli_thousands(cli_int(answer, "tokens"), tokens);
    cli_duration(cli_num(answer, "ms"), t);
    if (is_verified(answer) && cli_int(answer, "tokens") == 0)
        puts("equal: there is no token on the tape yet");
    else if (cli_int(answer, "rows") == 0)
        printf("NOT verified: there is no digest to compare with, for %s tokens in %lld "
               "segments\n",
               tokens, (long long)cli_int(answer, "segments"));
    else if (equal)
        printf("equal: the logits of %s computed rows in %lld segments have the digests of %s "
               "tokens computed from token 0 without a stop, in %s\n",
               rows, (long long)cli_int(answer, "segments"), tokens, t);
    else
        printf("NOT equal: %s rows in %lld segments of %s tokens compared, in %s\n", rows,
               (long long)cli_int(answer, "segments"), tokens, t);
    if (cli_int(answer, "rows") && cli_int(answer, "segmentsWithoutDigest"))
        printf("%lld of the segments have no digest: their rows could not be compared\n",
               (long long)cli_int(answer, "segmentsWithoutDigest"));
    print_mismatch(json_object_get(answer, "firstMismatch"));
}

int cli_verify(int argc, char **argv)
{
    struct cli_options o = {0};
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    char id[CLI_ID_CAP];
    int code = cli_parse(&cli_verify_command, argc, argv, &o, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, &cli_verify_command, &o, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    enum err rc = cli_resolve(&x, seen.args[0], id, NULL, &e);
    if (!rc)
        rc = cli_call(&x, "session/verify", json_pack("{s:s}", "id", id), &answer, &e);
    if (rc) {
        code = cli_fail(&x, rc, &e);
    } else {
        if (o.json || o.jsonl)
            cli_json_print(stdout, answer, o.json);
        else
            print_verify(answer);
        code = is_verified(answer) ? EXIT_DONE : EXIT_CORRUPT;
    }
    cli_close(&x);
    return code;
}
