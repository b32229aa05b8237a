/* The verbs of the agentd binary: `agentd VERB [OPTIONS]`.
 *
 * A verb is `int verb_NAME(int argc, char **argv)`, argv[0] being the verb's name; it returns
 * the exit code of protocol.md and writes its result, and nothing else, to stdout. A verb lands
 * together with its line in the table of main_agentd.c. */
#ifndef AGENTD_VERBS_H
#define AGENTD_VERBS_H

#include "base/err.h"
#include "base/options.h"

#define AGENTD_VERSION "0.1.0"

enum exit_code {
    EXIT_DONE = 0,
    EXIT_FAILED = 1, /* task, tool or gate failed */
    EXIT_USAGE = 2,
    EXIT_NO_DAEMON = 3,
    EXIT_NOTFOUND = 4, /* not found or ambiguous */
    EXIT_CONFLICT = 5, /* busy or conflict */
    EXIT_DENIED = 6,   /* approval, sandbox */
    EXIT_LIMIT = 7,    /* context or step limit */
    EXIT_CORRUPT = 8,  /* verify, integrity or import rejected */
    EXIT_MODEL = 9,    /* model or GPU error */
    EXIT_INCOMPLETE = 10,
    EXIT_PROVENANCE = 11,
    EXIT_AGAIN = 75,
    EXIT_TIMEOUT = 124,
    EXIT_INTERRUPTED = 130
};

/* The exit code for an error of code rc that the verb does not want to map itself. */
int verb_exit_code(enum err rc);
/* Prints "agentd VERB: message" to stderr and returns verb_exit_code(rc). */
int verb_fail(const char *verb, enum err rc, const struct error *e);

/* What each is told by, for its own --help and for completion. */
extern const struct command verb_tokenize_command;
extern const struct command verb_detokenize_command;
extern const struct command verb_render_command;
extern const struct command verb_parse_command;
extern const struct command verb_serve_command;
extern const struct command verb_load_command;
extern const struct command verb_doctor_command;
extern const struct command verb_score_command;
extern const struct command verb_key_command;
extern const struct command verb_bench_command;

int verb_tokenize(int argc, char **argv);
int verb_detokenize(int argc, char **argv);
int verb_render(int argc, char **argv);
int verb_parse(int argc, char **argv);
int verb_serve(int argc, char **argv);
int verb_load(int argc, char **argv);
int verb_doctor(int argc, char **argv);
int verb_score(int argc, char **argv);
int verb_key(int argc, char **argv);
int verb_bench(int argc, char **argv);
int verb_verify_tape(int argc, char **argv);

#endif
