/* agentctl config show: what the files and the environment set, and where. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"
#include "agentd/settings.h"

extern char **environ;

struct config_options {
    struct cli_options cli; /* first */
    bool origin;
};

static const struct option config_table[] = {
    {"origin", 0, OPTION_FLAG, offsetof(struct config_options, origin),
     .help = "with file and line of each"},
};

const struct command cli_config_command = {"config",
                                           "show",
                                           "settings of agentd.conf and the environment",
                                           OPTION_TABLE(config_table),
                                           CLI_OPTION_TABLE,
                                           1,
                                           1};

static json_t *entry(const char *section, const char *key, const char *value,
                     const char *origin)
{
    return json_pack("{s:s, s:s, s:s, s:s}", "section", section, "key", key, "value", value,
                     "origin", origin);
}

/* Only what wins: a later setting of the same key hides this one. */
static bool is_hidden(const struct settings *s, size_t i)
{
    if (!strcmp(s->list[i].section, SETTINGS_RULES))
        return false; /* every rule counts */
    for (size_t k = i + 1; k < s->n; k++)
        if (!strcmp(s->list[k].section, s->list[i].section) &&
            !strcmp(s->list[k].key, s->list[i].key))
            return true;
    return false;
}

static json_t *collect(const struct settings *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n; i++)
        if (!is_hidden(s, i))
            json_array_append_new(list, entry(s->list[i].section, s->list[i].key,
                                              s->list[i].value, s->list[i].origin));
    for (char **v = environ; *v; v++) {
        char name[64];
        size_t n = strcspn(*v, "=");
        if (strncmp(*v, "AGENTD_", 7) || !(*v)[n] || n >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)n, *v);
        json_array_append_new(list, entry("environment", name, *v + n + 1, "environment"));
    }
    return list;
}

static void print_all(const json_t *list, bool origin)
{
    const char *section = "";
    const json_t *x;
    size_t i;
    json_array_foreach(list, i, x) {
        if (strcmp(section, cli_str(x, "section")))
            printf("[%s]\n", cli_str(x, "section"));
        section = cli_str(x, "section");
        cli_text_print(stdout, cli_str(x, "key"));
        fputs(" = ", stdout);
        cli_text_print(stdout, cli_str(x, "value"));
        if (origin) {
            fputs("    # ", stdout);
            cli_text_print(stdout, cli_str(x, "origin"));
        }
        fputs("\n", stdout);
    }
}

int cli_config(int argc, char **argv)
{
    struct config_options o = {0};
    struct settings s = {0};
    struct options seen;
    struct error e;
    int code = cli_parse(&cli_config_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    if (strcmp(seen.args[0], "show"))
        return cli_usage(&cli_config_command, "want show, is \"%.40s\"", seen.args[0]);
    enum err rc = settings_load(&s, &e);
    if (rc) {
        settings_fini(&s);
        return cli_usage(&cli_config_command, "%s", e.msg);
    }
    json_auto_t *list = collect(&s);
    settings_fini(&s);
    if (o.cli.json || o.cli.jsonl) {
        json_auto_t *all = json_pack("{s:O}", "settings", list);
        cli_json_print(stdout, all, o.cli.json);
    } else {
        print_all(list, o.origin);
    }
    return EXIT_DONE;
}
