/* agentctl schema: what this build speaks on its socket. No daemon is asked. */
#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"
#include "agentd/schema.h"

const struct command cli_schema_command = {"schema",
                                           "",
                                           "JSON Schema of the protocol of this build",
                                           OPTION_TABLE_EMPTY,
                                           CLI_OPTION_TABLE,
                                           0,
                                           0};

int cli_schema(int argc, char **argv)
{
    struct cli_options o = {0};
    struct cli x = {.verb = cli_schema_command.name, .o = &o, .signals = -1};
    json_auto_t *document = NULL;
    struct options seen;
    struct error e;
    int code = cli_parse(&cli_schema_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    enum err rc = schema_document(&document, &e);
    if (rc)
        return cli_fail(&x, rc, &e);
    cli_json_print(stdout, document, !o.jsonl);
    return EXIT_DONE;
}
