/* agentctl eval: hands its arguments to agentd-evals, which stands beside it. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "agentd/cli_verbs.h"
#include "base/spawn.h"

#define MAX_WORDS 256

const struct command cli_eval_command = {"eval",
                                         "VERB ...",
                                         "figures for a build and a model (agentctl eval help)",
                                         OPTION_TABLE_EMPTY,
                                         OPTION_TABLE_EMPTY,
                                         0,
                                         0};

static int fail(enum err rc, const struct error *e)
{
    fprintf(stderr, "agentctl eval: %s\n", e->msg);
    return verb_exit_code(rc);
}

/* Ctrl-C reaches the child, too, whose exit code then says how it ended. */
int cli_eval(int argc, char **argv)
{
    const char *words[MAX_WORDS + 1] = {"agentd-evals"};
    const struct spawn_fd fds[] = {{0, 0}, {1, 1}, {2, 2}};
    const struct spawn_options o = {
        .argv = words, .fds = fds, .n_fds = 3, .die_with_parent = true};
    struct spawn child = SPAWN_INIT;
    struct error e = {0};
    int status = 0;
    if (argc > MAX_WORDS)
        return cli_usage(&cli_eval_command, "over %d arguments", MAX_WORDS);
    for (int i = 1; i < argc; i++)
        words[i] = argv[i];
    enum err rc = spawn_start(&o, &child, &e);
    if (rc)
        return fail(rc, &e);
    signal(SIGINT, SIG_IGN);
    rc = spawn_wait(&child, -1, &status, &e);
    spawn_fini(&child);
    if (rc)
        return fail(rc, &e);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
