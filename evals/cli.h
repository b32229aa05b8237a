/* The verbs of agentd-evals and what they share.
 *
 * A verb is `int evals_NAME(int argc, char **argv)`, argv[0] being the verb's name; it returns
 * an exit code of protocol.md and writes its result, and nothing else, to stdout. */
#ifndef EVALS_CLI_H
#define EVALS_CLI_H

#include <stdbool.h>

#include "base/hash.h"
#include "base/options.h"
#include "engine/tokenizer.h"

enum evals_exit {
    EVALS_DONE = 0,
    EVALS_FAILED = 1, /* a gate failed */
    EVALS_USAGE = 2,
    EVALS_NO_DAEMON = 3,
    EVALS_NOTFOUND = 4,
    EVALS_CONFLICT = 5,
    EVALS_DENIED = 6,
    EVALS_LIMIT = 7,
    EVALS_CORRUPT = 8, /* determinism or integrity violation */
    EVALS_MODEL = 9,
    EVALS_INCOMPLETE = 10, /* samples without an answer */
    EVALS_PROVENANCE = 11, /* the files are not of this suite */
    EVALS_INTERRUPTED = 130
};

struct evals_verb {
    const struct command *command;
    int (*run)(int argc, char **argv);
};

extern const struct command evals_record_command, evals_import_command, evals_list_command,
    evals_gen_command, evals_score_command, evals_run_command, evals_verify_resume_command,
    evals_replay_command, evals_report_command, evals_diff_command, evals_gate_command;
int evals_list(int argc, char **argv);
int evals_gen(int argc, char **argv);
int evals_score(int argc, char **argv);
int evals_import(int argc, char **argv);
int evals_run(int argc, char **argv);
int evals_verify_resume(int argc, char **argv);
int evals_record(int argc, char **argv);
int evals_replay(int argc, char **argv);
int evals_report(int argc, char **argv);
int evals_diff(int argc, char **argv);
int evals_gate(int argc, char **argv);

/* EVALS_GO_ON, or the exit code to end with: usage was printed, or what is wrong was said. */
#define EVALS_GO_ON (-1)
int evals_parse(const struct command *c, int argc, char **argv, void *values,
                struct options *out);
/* A descriptor that is readable once SIGINT or SIGTERM came; they do nothing else then. */
int evals_wake_fd(void);
/* rc, or ERR_CANCELLED where something else failed after such a signal (Ctrl-C reaches the
 * daemon, too). */
NODISCARD enum err evals_interrupted(int wake_fd, enum err rc, struct error *e);
/* Prints "agentd-evals VERB: message" and returns the exit code for rc. */
int evals_fail(const struct command *c, enum err rc, const struct error *e);
/* The same for a verb that reads a suite's or a run's files, where a conflict is one of them. */
int evals_fail_files(const struct command *c, enum err rc, const struct error *e);

#endif
