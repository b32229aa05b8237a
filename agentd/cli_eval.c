/* agentctl eval and doctor: hand their arguments to the binaries that stand beside it. */
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

const struct command cli_doctor_command = {
    "doctor",
    "[--store DIR] [-m DIR] [--speed BYTES] [--json]",
    "what this machine has for agentd (agentctl doctor --help)",
    OPTION_TABLE_EMPTY,
    OPTION_TABLE_EMPTY,
    0,
    0};

static int fail(const struct command *c, enum err rc, const struct error *e)
{
    fprintf(stderr, "agentctl %s: %s\n", c->name, e->msg);
    return verb_exit_code(rc);
}

/* Runs words[0..n_words) and the arguments. Ctrl-C reaches the child, too, whose exit code then
 * says how it ended. */
static int hand_over(const struct command *c, const char **words, int n_words, int argc,
                     char **argv)
{
    const struct spawn_fd fds[] = {{0, 0}, {1, 1}, {2, 2}};
    const struct spawn_options o = {
        .argv = words, .fds = fds, .n_fds = 3, .die_with_parent = true};
    struct spawn child = SPAWN_INIT;
    struct error e = {0};
    int status = 0;
    if (argc + n_words > MAX_WORDS)
        return cli_usage(c, "over %d arguments", MAX_WORDS - n_words);
    for (int i = 1; i < argc; i++)
        words[n_words++] = argv[i];
    enum err rc = spawn_start(&o, &child, &e);
    if (rc)
        return fail(c, rc, &e);
    signal(SIGINT, SIG_IGN);
    rc = spawn_wait(&child, -1, &status, &e);
    spawn_fini(&child);
    if (rc)
        return fail(c, rc, &e);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int cli_eval(int argc, char **argv)
{
    const char *words[MAX_WORDS + 1] = {"agentd-evals"};
    return hand_over(&cli_eval_command, words, 1, argc, argv);
}

int cli_doctor(int argc, char **argv)
{
    const char *words[MAX_WORDS + 1] = {"agentd", "doctor"};
    return hand_over(&cli_doctor_command, words, 2, argc, argv);
}
