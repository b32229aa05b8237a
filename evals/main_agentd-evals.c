/* agentd-evals: quality, fidelity and speed figures for a build and a model. `agentctl eval`
 * starts it. */
#include <stdio.h>
#include <string.h>

#include "evals/cli.h"

static const struct evals_verb verbs[] = {
    {&evals_list_command, evals_list},
    {&evals_gen_command, evals_gen},
    {&evals_import_command, evals_import},
    {&evals_run_command, evals_run},
    {&evals_score_command, evals_score},
    {&evals_report_command, evals_report},
    {&evals_diff_command, evals_diff},
    {&evals_gate_command, evals_gate},
    {&evals_verify_resume_command, evals_verify_resume},
    {&evals_record_command, evals_record},
    {&evals_replay_command, evals_replay},
};

#define N_VERBS (sizeof verbs / sizeof *verbs)

static void usage(FILE *f)
{
    fprintf(f,
            "usage: agentd-evals VERB [OPTIONS]    (agentd-evals VERB --help says more)\n\n");
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(f, "  %-14s %s\n", verbs[i].command->name, verbs[i].command->summary);
    fprintf(f,
            "\nExit codes: 0 done, 1 gate or other failure, 2 usage, 3 no daemon, 4 not found, "
            "5 exists already,\n7 limit, 8 integrity or determinism violated, malformed input, "
            "10 incomplete, 11 provenance mismatch, 130 "
            "interrupted.\n");
}

int main(int argc, char **argv)
{
    const char *name = argc < 2 ? "" : argv[1];
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) {
        usage(stdout);
        return EVALS_DONE;
    }
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(name, verbs[i].command->name))
            return verbs[i].run(argc - 1, argv + 1);
    if (*name)
        fprintf(stderr, "agentd-evals: unknown verb \"%s\" (agentd-evals help lists them)\n",
                name);
    else
        usage(stderr);
    return EVALS_USAGE;
}
