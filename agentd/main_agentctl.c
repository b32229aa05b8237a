/* agentctl: the daemon's sessions for people and scripts. */
#include <stdio.h>
#include <string.h>

#include "agentd/cli_verbs.h"

/* In the order that `agentctl help` shows. */
static const struct cli_verb verbs[] = {
    {&cli_run_command, cli_run},         {&cli_send_command, cli_send},
    {&cli_steer_command, cli_steer},     {&cli_ps_command, cli_ps},
    {&cli_attach_command, cli_attach},   {&cli_wait_command, cli_wait},
    {&cli_logs_command, cli_logs},       {&cli_show_command, cli_show},
    {&cli_fork_command, cli_fork},       {&cli_rewind_command, cli_rewind},
    {&cli_compact_command, cli_compact}, {&cli_log_command, cli_log},
    {&cli_cancel_command, cli_cancel},   {&cli_verify_command, cli_verify},
    {&cli_usage_command, cli_usage_of},  {&cli_rename_command, cli_rename},
    {&cli_rm_command, cli_rm},           {&cli_export_command, cli_export},
    {&cli_import_command, cli_import},   {&cli_approvals_command, cli_approvals},
    {&cli_approve_command, cli_approve}, {&cli_deny_command, cli_deny},
    {&cli_tools_command, cli_tools},     {&cli_status_command, cli_status},
    {&cli_eval_command, cli_eval},
};

#define N_VERBS (sizeof verbs / sizeof *verbs)

static void usage(FILE *f)
{
    fprintf(f, "usage: agentctl VERB [OPTIONS]    (agentctl VERB --help says more)\n\n");
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(f, "  %-10s %s\n", verbs[i].command->name, verbs[i].command->summary);
    fprintf(f,
            "\nA session is named by its name, its id, a unique prefix of either, or @- (the "
            "last one\nof this folder). Exit codes: 0 done, 1 failed, 2 usage, 3 no daemon, 4 "
            "not found,\n5 busy, 6 denied, 7 limit, 8 verify failed or import rejected, 9 "
            "model, 75 try again, "
            "124 timeout,\n130 interrupted.\n");
}

static void complete_options(const struct option_table *t)
{
    for (size_t i = 0; i < t->n; i++)
        printf(" --%s", t->options[i].name);
}

/* A bash completion made from the tables that the verbs parse by. */
static int completion(void)
{
    printf("_agentctl() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} words=\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
           "        words='help completion");
    for (size_t i = 0; i < N_VERBS; i++)
        printf(" %s", verbs[i].command->name);
    printf("'\n    elif [ \"${cur#-}\" != \"$cur\" ]; then\n"
           "        case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < N_VERBS; i++) {
        printf("        %s) words='--help", verbs[i].command->name);
        complete_options(&verbs[i].command->own);
        complete_options(&verbs[i].command->common);
        printf("' ;;\n");
    }
    printf("        esac\n"
           "    else\n"
           "        words=$(agentctl ps -a --names 2>/dev/null)\n"
           "    fi\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "}\n"
           "complete -o default -F _agentctl agentctl\n");
    return EXIT_DONE;
}

int main(int argc, char **argv)
{
    const char *name = argc < 2 ? "" : argv[1];
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) {
        usage(stdout);
        return EXIT_DONE;
    }
    if (!strcmp(name, "--version")) {
        printf("agentctl %s\n", AGENTD_VERSION);
        return EXIT_DONE;
    }
    if (!strcmp(name, "completion"))
        return completion();
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(name, verbs[i].command->name))
            return verbs[i].run(argc - 1, argv + 1);
    if (*name)
        fprintf(stderr, "agentctl: unknown verb \"%s\" (agentctl help lists them)\n", name);
    else
        usage(stderr);
    return EXIT_USAGE;
}
