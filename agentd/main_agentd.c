/* agentd: the service, and the offline verbs of the engine. */
#include <stdio.h>
#include <string.h>

#include "agentd/completion.h"
#include "agentd/verbs.h"

/* In the order that `agentd help` shows. */
static const struct {
    const struct command *command;
    int (*run)(int argc, char **argv);
} verbs[] = {
    {&verb_serve_command, verb_serve},
    {&verb_tokenize_command, verb_tokenize},
    {&verb_detokenize_command, verb_detokenize},
    {&verb_render_command, verb_render},
    {&verb_parse_command, verb_parse},
    {&verb_load_command, verb_load},
    {&verb_doctor_command, verb_doctor},
    {&verb_score_command, verb_score},
    {&verb_key_command, verb_key},
    {&verb_bench_command, verb_bench},
};

#define N_VERBS (sizeof verbs / sizeof verbs[0])

static void usage(FILE *f)
{
    fprintf(f, "usage: agentd VERB [OPTIONS]    (agentd VERB --help says more)\n\n");
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(f, "  %-12s %s\n", verbs[i].command->name, verbs[i].command->summary);
    fprintf(f, "  %-12s %s\n", "completion", "bash, zsh or fish: completion for that shell");
    fprintf(f, "  %-12s %s\n", "help", "this list");
}

static int completion(const char *shell)
{
    const struct command *commands[N_VERBS];
    const struct completion c = {
        .program = "agentd", .commands = commands, .n = N_VERBS, .words = "help completion"};

    for (size_t i = 0; i < N_VERBS; i++)
        commands[i] = verbs[i].command;
    return completion_print(&c, shell);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--version")) {
        printf("agentd %s\n", AGENTD_VERSION);
        return EXIT_DONE;
    }
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) {
        usage(stdout);
        return EXIT_DONE;
    }
    if (!strcmp(name, "completion"))
        return completion(argc > 2 ? argv[2] : "bash");
    if (!strcmp(name, "verify-tape")) /* started by the daemon: not listed */
        return verb_verify_tape(argc - 1, argv + 1);
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(name, verbs[i].command->name))
            return verbs[i].run(argc - 1, argv + 1);
    fprintf(stderr, "agentd: unknown verb \"%s\" (agentd help lists them)\n", name);
    return EXIT_USAGE;
}
