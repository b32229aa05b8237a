/* agentctl kv, fsck and namespace: the room that model state takes, what happens to that of one
 * session; and whether everything in the store is whole. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"

struct kv_options {
    struct cli_options cli; /* first */
    bool off;
};

static const struct option kv_table[] = {
    {"off", 0, OPTION_FLAG, offsetof(struct kv_options, off), .help = "pin: let it go again"},
};

const struct command cli_kv_command = {"kv",
                                       "stats | pin NAME | drop NAME",
                                       "room of model state; keep or drop that of a session",
                                       OPTION_TABLE(kv_table),
                                       CLI_OPTION_TABLE,
                                       1,
                                       2};

static void print_sum(const json_t *stats)
{
    char used[CLI_FIGURE_BYTES], live[CLI_FIGURE_BYTES], quota[CLI_FIGURE_BYTES];
    int64_t limit = cli_int(stats, "quotaBytes");
    cli_thousands(cli_int(stats, "usedBytes"), used);
    cli_thousands(cli_int(stats, "liveBytes"), live);
    printf("%s bytes on disk, %s of them live", used, live);
    if (limit)
        printf("; quota %s (%.1f %%)", cli_thousands(limit, quota),
               100.0 * (double)cli_int(stats, "usedBytes") / (double)limit);
    fputs("\n", stdout);
}

static void print_stats(const json_t *stats)
{
    const json_t *s;
    size_t i;
    print_sum(stats);
    json_array_foreach(json_object_get(stats, "sessions"), i, s) {
        char tokens[CLI_FIGURE_BYTES], held[CLI_FIGURE_BYTES], own[CLI_FIGURE_BYTES];
        if (i == 0)
            printf("%-24s %12s %16s %16s %8s\n", "NAME", "TOKENS", "BYTES", "ITS OWN", "USES");
        printf("%-24s %12s %16s %16s %8.2f%s\n", cli_str(s, "name"),
               cli_thousands(cli_int(s, "tokens"), tokens),
               cli_thousands(cli_int(s, "heldBytes"), held),
               cli_thousands(cli_int(s, "ownBytes"), own), cli_num(s, "uses"),
               json_is_true(json_object_get(s, "pinned")) ? "  pinned" : "");
    }
}

/* The call of a sub-verb; *name says whether it wants a session. */
static const char *method_of(const char *verb, bool *name)
{
    static const struct {
        const char *verb, *method;
        bool name;
    } verbs[] = {
        {"stats", "kv/stats", false}, {"pin", "kv/pin", true}, {"drop", "kv/drop", true}};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(verbs[i].verb, verb)) {
            *name = verbs[i].name;
            return verbs[i].method;
        }
    return NULL;
}

static enum err call(struct cli *x, const struct kv_options *o, const struct options *seen,
                     const char *method, bool wants_name, json_t **answer, struct error *e)
{
    json_t *params = json_object();
    char id[CLI_ID_CAP];
    enum err rc = wants_name ? cli_resolve(x, seen->args[1], id, NULL, e) : OK;
    if (rc) {
        json_decref(params);
        return rc;
    }
    if (wants_name)
        json_object_set_new(params, "id", json_string(id));
    if (!strcmp(method, "kv/pin"))
        json_object_set_new(params, "pinned", json_boolean(!o->off));
    return cli_call(x, method, params, answer, e);
}

int cli_kv(int argc, char **argv)
{
    struct kv_options o = {0};
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    bool wants_name = false;
    int code = cli_parse(&cli_kv_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    const char *method = method_of(seen.args[0], &wants_name);
    if (!method)
        return cli_usage(&cli_kv_command, "%.40s: want stats, pin or drop", seen.args[0]);
    if (seen.n_args != (wants_name ? 2 : 1))
        return cli_usage(&cli_kv_command, "kv %s wants %s", seen.args[0],
                         wants_name ? "the name of a session" : "no name");
    if ((code = cli_open(&x, &cli_kv_command, &o.cli, NULL, NULL)) != CLI_GO_ON)
        return code;
    enum err rc = call(&x, &o, &seen, method, wants_name, &answer, &e);
    code = EXIT_DONE;
    if (rc)
        code = cli_fail(&x, rc, &e);
    else if (o.cli.json || o.cli.jsonl)
        cli_json_print(stdout, answer, o.cli.json);
    else if (!wants_name)
        print_stats(answer);
    else
        cli_fields_print(stdout, answer, 0);
    cli_close(&x);
    return code;
}

/* ---- fsck ----------------------------------------------------------------------- */

struct fsck_options {
    struct cli_options cli; /* first */
    bool repair;
};

static const struct option fsck_table[] = {
    {"repair", 0, OPTION_FLAG, offsetof(struct fsck_options, repair),
     .help = "set damage aside and mend what can be mended"},
};

const struct command cli_fsck_command = {"fsck",
                                         "",
                                         "look at every row and byte of the store",
                                         OPTION_TABLE(fsck_table),
                                         CLI_OPTION_TABLE,
                                         0,
                                         0};

static void print_fsck(const json_t *answer)
{
    char rows[CLI_FIGURE_BYTES], tokens[CLI_FIGURE_BYTES], bytes[CLI_FIGURE_BYTES];
    bool repair = json_is_true(json_object_get(answer, "repair"));
    const json_t *x;
    size_t i;
    json_array_foreach(json_object_get(answer, "findings"), i, x) {
        bool nothing = !strcmp(cli_str(x, "action"), "none");
        printf("%-9s ", cli_str(x, "kind"));
        cli_text_print(stdout, cli_str(x, "what"));
        printf(nothing ? "\n" : repair ? "; %s\n" : "; --repair: %s\n", cli_str(x, "action"));
    }
    printf("%s rows, %lld sessions of %s tokens, %lld extents of %s bytes in %lld packs: ",
           cli_thousands(cli_int(answer, "rows"), rows), (long long)cli_int(answer, "sessions"),
           cli_thousands(cli_int(answer, "tokens"), tokens),
           (long long)cli_int(answer, "extents"),
           cli_thousands(cli_int(answer, "bytes"), bytes), (long long)cli_int(answer, "packs"));
    if (cli_int(answer, "found") == 0)
        puts("whole");
    else
        printf("%lld found, %lld repaired\n", (long long)cli_int(answer, "found"),
               (long long)cli_int(answer, "repaired"));
}

int cli_fsck(int argc, char **argv)
{
    struct fsck_options o = {0};
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    int code = cli_parse(&cli_fsck_command, argc, argv, &o, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, &cli_fsck_command, &o.cli, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    enum err rc =
        cli_call(&x, "store/fsck", json_pack("{s:b}", "repair", o.repair), &answer, &e);
    if (rc)
        code = cli_fail(&x, rc, &e);
    else if (o.cli.json || o.cli.jsonl)
        cli_json_print(stdout, answer, o.cli.json);
    else
        print_fsck(answer);
    if (!rc)
        code = cli_int(answer, "found") ? EXIT_CORRUPT : EXIT_DONE;
    cli_close(&x);
    return code;
}

/* ---- namespace ------------------------------------------------------------------ */

const struct command cli_namespace_command = {"namespace",
                                              "drop NAME",
                                              "delete all sessions of a namespace and its key",
                                              OPTION_TABLE_EMPTY,
                                              CLI_OPTION_TABLE,
                                              2,
                                              2};

int cli_namespace(int argc, char **argv)
{
    struct cli_options o = {0};
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    int code = cli_parse(&cli_namespace_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    if (strcmp(seen.args[0], "drop"))
        return cli_usage(&cli_namespace_command, "%.40s: want drop", seen.args[0]);
    if ((code = cli_open(&x, &cli_namespace_command, &o, NULL, NULL)) != CLI_GO_ON)
        return code;
    enum err rc =
        cli_call(&x, "namespace/drop", json_pack("{s:s}", "name", seen.args[1]), &answer, &e);
    code = EXIT_DONE;
    if (rc)
        code = cli_fail(&x, rc, &e);
    else if (o.json || o.jsonl)
        cli_json_print(stdout, answer, o.json);
    else
        cli_fields_print(stdout, answer, 0);
    cli_close(&x);
    return code;
}
