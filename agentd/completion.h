/* Shell completion of a program with verbs, made from the tables that the verbs parse by: what
 * a shell offers is what is accepted. For main_agentctl.c and main_agentd.c. */
#ifndef AGENTD_COMPLETION_H
#define AGENTD_COMPLETION_H

#include <stddef.h>

#include "base/options.h"

struct completion {
    const char *program;
    const struct command *const *commands; /* one a verb, in the order of its help */
    size_t n;
    const char *words;     /* verbs without a table, space-separated: "help completion" */
    const char *arguments; /* command that prints what an argument may be, one a line; NULL:
                              files */
};

/* Writes the completion for "bash", "zsh" or "fish" to stdout. An exit code of agentd/verbs.h:
 * EXIT_USAGE, with a line on stderr, for another shell. */
int completion_print(const struct completion *c, const char *shell);

#endif
