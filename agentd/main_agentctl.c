/* agentctl: the daemon's sessions for people and scripts. */
#include <stdio.h>
#include <string.h>

#include "agentd/cli_verbs.h"
#include "agentd/completion.h"
#include "agentd/settings.h"

/* In the order that `agentctl help` shows. */
static const struct cli_verb verbs[] = {
    {&cli_run_command, cli_run},         {&cli_send_command, cli_send},
    {&cli_steer_command, cli_steer},     {&cli_ps_command, cli_ps},
    {&cli_attach_command, cli_attach},   {&cli_wait_command, cli_wait},
    {&cli_logs_command, cli_logs},       {&cli_show_command, cli_show},
    {&cli_fork_command, cli_fork},       {&cli_rewind_command, cli_rewind},
    {&cli_compact_command, cli_compact}, {&cli_log_command, cli_log},
    {&cli_diff_command, cli_diff},       {&cli_search_command, cli_search},
    {&cli_cancel_command, cli_cancel},   {&cli_verify_command, cli_verify},
    {&cli_usage_command, cli_usage_of},  {&cli_rename_command, cli_rename},
    {&cli_rm_command, cli_rm},           {&cli_export_command, cli_export},
    {&cli_import_command, cli_import},   {&cli_approvals_command, cli_approvals},
    {&cli_approve_command, cli_approve}, {&cli_deny_command, cli_deny},
    {&cli_tools_command, cli_tools},     {&cli_status_command, cli_status},
    {&cli_gc_command, cli_gc},           {&cli_kv_command, cli_kv},
    {&cli_config_command, cli_config},   {&cli_doctor_command, cli_doctor},
    {&cli_fsck_command, cli_fsck},       {&cli_namespace_command, cli_namespace},
    {&cli_schema_command, cli_schema},   {&cli_eval_command, cli_eval},
};

#define N_VERBS (sizeof verbs / sizeof *verbs)

static void usage(FILE *f)
{
    fprintf(f, "usage: agentctl VERB [OPTIONS]    (agentctl VERB --help says more)\n\n");
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(f, "  %-10s %s\n", verbs[i].command->name, verbs[i].command->summary);
    fprintf(f, "  %-10s %s\n", "completion", "bash, zsh or fish: completion for that shell");
    fprintf(f,
            "\nA session is named by its name, its id, a unique prefix of either, or @- (the "
            "last one\nof this folder). Exit codes: 0 done, 1 failed, 2 usage, 3 no daemon, 4 "
            "not found,\n5 busy, 6 denied, 7 limit, 8 verify failed or import rejected, 9 "
            "model, 75 try again, "
            "124 timeout,\n130 interrupted.\n");
}

/* doctor hands its command line on to agentd. */
static int completion(const char *shell)
{
    const struct command *commands[N_VERBS];
    const struct completion c = {.program = "agentctl",
                                 .commands = commands,
                                 .n = N_VERBS,
                                 .words = "help completion",
                                 .arguments = "agentctl ps -a --names"};

    for (size_t i = 0; i < N_VERBS; i++)
        commands[i] = verbs[i].run == cli_doctor ? &verb_doctor_command : verbs[i].command;
    return completion_print(&c, shell);
}

/* With the options of agentd.conf and the environment in front of its own. config is how one
 * finds out what is wrong with these, and takes none; nor does a verb that only hands on what
 * it was given. */
static int run_verb(const struct cli_verb *v, int argc, char **argv)
{
    const char *const sections[] = {"agentctl", v->command->name, NULL};
    struct settings s = {0};
    struct error e;
    if (v->run == cli_config || !v->command->common.n)
        return v->run(argc, argv);
    enum err rc = settings_load(&s, &e);
    if (!rc)
        rc = settings_argv(&s, v->command, sections, true, argc, argv, &e);
    int code = rc ? cli_usage(v->command, "%s", e.msg) : v->run(s.argc, s.argv);
    settings_fini(&s);
    return code;
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
        return completion(argc > 2 ? argv[2] : "bash");
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(name, verbs[i].command->name))
            return run_verb(&verbs[i], argc - 1, argv + 1);
    if (*name)
        fprintf(stderr, "agentctl: unknown verb \"%s\" (agentctl help lists them)\n", name);
    else
        usage(stderr);
    return EXIT_USAGE;
}
