/* agentctl as a program: started with arguments, its exit code and what it wrote. stdin is
 * empty; the environment is the test's (set AGENTD_SOCKET). */
#ifndef TESTS_SUPPORT_AGENTCTL_H
#define TESTS_SUPPORT_AGENTCTL_H

#include <sys/types.h>

#define AGENTCTL_OUTPUT 65536

struct agentctl_ran {
    int code; /* exit code; -signal when killed by one */
    char out[AGENTCTL_OUTPUT], err[AGENTCTL_OUTPUT];
};

struct agentctl_run {
    pid_t pid;
    int out, err; /* unlinked files */
};

/* argv without the program's name; NULL ends. */
struct agentctl_run agentctl_start(const char *const *argv);
/* Waits; the result is valid until the next call. */
const struct agentctl_ran *agentctl_finish(struct agentctl_run *run);
/* Both. */
const struct agentctl_ran *agentctl_run(const char *const *argv);
#define AGENTCTL(...) agentctl_run((const char *const[]){__VA_ARGS__, NULL})

/* The same for agentd, and for another program: of the build ("examples/chat"), or a path from
 * the root. */
const struct agentctl_ran *agentd_run(const char *const *argv);
const struct agentctl_ran *program_run(const char *program, const char *const *argv);

/* Fails the test, with the whole text, if `part` is not in it, or is. */
void assert_has(const char *text, const char *part);
void assert_lacks(const char *text, const char *part);

#endif
