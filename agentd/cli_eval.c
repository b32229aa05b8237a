/* agentctl eval and doctor: hand their arguments to the binaries that stand beside it. */
#include <stdio.h>

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

/* Becomes the program words[0] with the rest of words and the arguments: signals, terminal and
 * exit code are its own. Returns only when there is no such program. */
static int hand_over(const struct command *c, const char **words, int n_words, int argc,
                     char **argv)
{
    struct error e = {0};
    if (argc + n_words > MAX_WORDS)
        return cli_usage(c, "over %d arguments", MAX_WORDS - n_words);
    for (int i = 1; i < argc; i++)
        words[n_words++] = argv[i];
    words[n_words] = NULL;
    enum err rc = spawn_become(words, &e);
    fprintf(stderr, "agentctl %s: %s\n", c->name, e.msg);
    return verb_exit_code(rc);
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
