/* agentctl export and import: a session as one file. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"
#include "base/fs.h"

/* The daemon knows no folder of ours. */
static enum err absolute(const char *path, char *out, size_t cap, struct error *e)
{
    if (path[0] == '/')
        return fs_path(out, cap, e, "%s", path);
    AUTO_FREE char *cwd = getcwd(NULL, 0);
    if (!cwd)
        return err_set(e, ERR_NOTFOUND, "the current folder is gone");
    return fs_path(out, cap, e, "%s/%s", cwd, path);
}

static void set_flag(json_t *params, const char *field, bool on)
{
    if (on)
        json_object_set_new(params, field, json_true());
}

/* ---- export --------------------------------------------------------------------- */

struct export_options {
    struct cli_options cli; /* first */
    const char *output;
    bool with_kv, redact;
};

static const struct option export_table[] = {
    {"output", 'o', OPTION_STRING, offsetof(struct export_options, output), "FILE",
     .help = "the bundle to write (replaced when it is there)"},
    {"with-kv", 0, OPTION_FLAG, offsetof(struct export_options, with_kv),
     .help = "model state, too: large, and only for the same model"},
    {"redact", 0, OPTION_FLAG, offsetof(struct export_options, redact),
     .help = "without secrets and tape: for reading, not for import"},
};

const struct command cli_export_command = {
    "export", "NAME", "write a session to a file", OPTION_TABLE(export_table), CLI_OPTION_TABLE,
    1,        1};

static void print_exported(const json_t *answer)
{
    char tokens[CLI_FIGURE_BYTES], bytes[CLI_FIGURE_BYTES];
    cli_text_print(stdout, cli_str(answer, "path"));
    printf(": %s tokens, %lld events, %s bytes\n",
           cli_thousands(cli_int(answer, "tokens"), tokens),
           (long long)cli_int(answer, "events"),
           cli_thousands(cli_int(answer, "bytes"), bytes));
    if (cli_int(answer, "kvTokens"))
        printf("with the state of %s tokens\n",
               cli_thousands(cli_int(answer, "kvTokens"), tokens));
    if (json_is_true(json_object_get(answer, "redacted")))
        printf("%lld secrets were taken out; what has no known form may still be there\n",
               (long long)cli_int(answer, "secrets"));
}

int cli_export(int argc, char **argv)
{
    struct export_options o = {0};
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    char id[CLI_ID_CAP], path[FS_PATH_BYTES];
    int code = cli_parse(&cli_export_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    if (!o.output)
        return cli_usage(&cli_export_command, "-o FILE is missing");
    if ((code = cli_open(&x, &cli_export_command, &o.cli, NULL, NULL)) != CLI_GO_ON)
        return code;
    enum err rc = absolute(o.output, path, sizeof path, &e);
    if (!rc)
        rc = cli_resolve(&x, seen.args[0], id, NULL, &e);
    if (!rc) {
        json_t *params = json_pack("{s:s, s:s}", "id", id, "path", path);
        set_flag(params, "withKv", o.with_kv);
        set_flag(params, "redact", o.redact);
        rc = cli_call(&x, "session/export", params, &answer, &e);
    }
    code = EXIT_DONE;
    if (rc)
        code = cli_fail(&x, rc, &e);
    else if (o.cli.json || o.cli.jsonl)
        cli_json_print(stdout, answer, o.cli.json);
    else
        print_exported(answer);
    cli_close(&x);
    return code;
}

/* ---- import --------------------------------------------------------------------- */

struct import_options {
    struct cli_options cli; /* first */
    const char *name, *folder;
    bool trust_kv, dry_run;
};

static const struct option import_table[] = {
    {"name", 'n', OPTION_STRING, offsetof(struct import_options, name), "NAME",
     .help = "name of the new session (default: as it was)"},
    {"folder", 'C', OPTION_STRING, offsetof(struct import_options, folder), "DIR",
     .help = "its workspace (default: here)"},
    {"trust-kv", 0, OPTION_FLAG, offsetof(struct import_options, trust_kv),
     .help = "take model state that another store has written"},
    {"dry-run", 0, OPTION_FLAG, offsetof(struct import_options, dry_run),
     .help = "check everything, add nothing"},
};

const struct command cli_import_command = {"import",
                                           "FILE",
                                           "a new session from a file that export has written",
                                           OPTION_TABLE(import_table),
                                           CLI_OPTION_TABLE,
                                           1,
                                           1};

/* What became of model state, if the bundle had any. */
static void say_state(const struct cli *x, const json_t *answer)
{
    char tokens[CLI_FIGURE_BYTES];
    if (*cli_str(answer, "kvNote"))
        cli_note(x, "its model state is left out and will be computed again: %s",
                 cli_str(answer, "kvNote"));
    else if (cli_int(answer, "kvTokens"))
        cli_note(x, "with the state of %s tokens",
                 cli_thousands(cli_int(answer, "kvTokens"), tokens));
}

static void print_imported(const json_t *answer)
{
    char tokens[CLI_FIGURE_BYTES];
    cli_thousands(cli_int(answer, "tokens"), tokens);
    if (json_is_true(json_object_get(answer, "dryRun")))
        printf("good: %s tokens, %lld events; would be ", tokens,
               (long long)cli_int(answer, "events"));
    cli_text_print(stdout, cli_str(answer, "name"));
    fputs("\n", stdout);
}

/* Whatever is wrong with the file itself is a rejected import; the rest keeps its own code. */
static int import_failed(const struct cli *x, enum err rc, const struct error *e)
{
    int code = cli_fail(x, rc, e);
    return rc == ERR_FORMAT ? EXIT_CORRUPT : code;
}

int cli_import(int argc, char **argv)
{
    struct import_options o = {0};
    json_auto_t *answer = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    char path[FS_PATH_BYTES];
    int code = cli_parse(&cli_import_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    AUTO_FREE char *folder = realpath(o.folder ? o.folder : ".", NULL);
    if (!folder)
        return cli_usage(&cli_import_command, "no folder %.200s", o.folder ? o.folder : ".");
    if ((code = cli_open(&x, &cli_import_command, &o.cli, NULL, NULL)) != CLI_GO_ON)
        return code;
    enum err rc = absolute(seen.args[0], path, sizeof path, &e);
    if (!rc) {
        json_t *params =
            json_pack("{s:s, s:s, s:s*}", "path", path, "cwd", folder, "name", o.name);
        set_flag(params, "trustKv", o.trust_kv);
        set_flag(params, "dryRun", o.dry_run);
        rc = cli_call(&x, "session/import", params, &answer, &e);
    }
    code = EXIT_DONE;
    if (rc)
        code = import_failed(&x, rc, &e);
    else if (o.cli.json || o.cli.jsonl)
        cli_json_print(stdout, answer, o.cli.json);
    else
        print_imported(answer);
    if (!rc)
        say_state(&x, answer);
    cli_close(&x);
    return code;
}
