/* agentd-evals list: what `gen` can make. */
#include <stdio.h>

#include "evals/cli.h"
#include "evals/ruler_suite.h"
#include "evals/suite.h"

const struct command evals_list_command = {
    "list", "", "the suites that gen can make", OPTION_TABLE_EMPTY, OPTION_TABLE_EMPTY, 0, 0};

int evals_list(int argc, char **argv)
{
    struct options o;
    int none;
    int code = evals_parse(&evals_list_command, argc, argv, &none, &o);
    if (code != EVALS_GO_ON)
        return code;
    printf("%-18s RULER's core six, byte for byte:", RULER_SUITE);
    for (enum ruler_task t = 0; t < RULER_N_TASKS; t++)
        printf(" %s", ruler_task_names[t]);
    printf("\n");
    for (size_t i = 0; i < suite_n_kinds; i++)
        printf("%-18s %s\n", suite_kinds[i].name, suite_kinds[i].summary);
    return EVALS_DONE;
}
