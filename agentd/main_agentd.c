/* agentd: the service, and the offline verbs of the engine. */
#include <stdio.h>
#include <string.h>

#include "agentd/verbs.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} verbs[] = {
    /* One line a verb, in the order that `agentd help` shows. */
    {"serve", verb_serve, "the daemon"},
    {"tokenize", verb_tokenize, "stdin bytes to token ids"},
    {"detokenize", verb_detokenize, "token ids to bytes"},
    {"render", verb_render, "a conversation to its prompt"},
    {"parse", verb_parse, "model output to a message"},
    {"load", verb_load, "what a checkpoint holds, and whether it can run here"},
    {"doctor", verb_doctor, "what this machine has for agentd"},
    {"score", verb_score, "logits of given tokens"},
    {"key", verb_key, "the store's key file and its passphrase"},
    {"bench", verb_bench, "what saving and restoring state costs here"},
    {"verify-tape", verb_verify_tape, NULL}, /* started by the daemon: not listed */
    {"help", NULL, "this list"},
};

#define N_VERBS (sizeof verbs / sizeof verbs[0])

static void usage(FILE *f)
{
    fprintf(f, "usage: agentd VERB [OPTIONS]    (agentd VERB --help says more)\n\n");
    for (size_t i = 0; i < N_VERBS; i++)
        if (verbs[i].what)
            fprintf(f, "  %-12s %s\n", verbs[i].name, verbs[i].what);
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
    for (size_t i = 0; i < N_VERBS; i++)
        if (verbs[i].run && !strcmp(name, verbs[i].name))
            return verbs[i].run(argc - 1, argv + 1);
    fprintf(stderr, "agentd: unknown verb \"%s\" (agentd help lists them)\n", name);
    return EXIT_USAGE;
}
