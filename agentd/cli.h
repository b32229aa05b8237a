/* What every verb of agentctl shares: options, connection, names of sessions, exit codes.
 *
 * A verb is `int cli_NAME(int argc, char **argv)`; it parses its options into a struct that
 * begins with struct cli_options, opens a struct cli, and returns an exit code of
 * agentd/verbs.h. stdout gets the result and nothing else; what goes wrong or on goes to
 * stderr. */
#ifndef AGENTD_CLI_H
#define AGENTD_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "agentd/client.h"
#include "agentd/verbs.h"
#include "base/options.h"

/* ---- options -------------------------------------------------------------------- */

struct cli_options {
    bool json, jsonl, quiet, no_color;
    int64_t verbose;
    const char *socket;
    double timeout_s; /* 0: none */
};

#define CLI_N_OPTIONS 7
extern const struct option cli_option_table[CLI_N_OPTIONS];
#define CLI_OPTION_TABLE                                                                       \
    {                                                                                          \
        cli_option_table, CLI_N_OPTIONS                                                        \
    }

/* One verb, for `agentctl help` and for completion. */
struct cli_verb {
    const struct command *command; /* name, arguments, summary, options */
    int (*run)(int argc, char **argv);
};

/* Parses argv into values. CLI_GO_ON, or the exit code to end with: usage was asked for and
 * printed, or the command line is wrong and that was said. */
#define CLI_GO_ON (-1)
int cli_parse(const struct command *c, int argc, char **argv, void *values,
              struct options *out);

/* ---- context -------------------------------------------------------------------- */

struct cli {
    const char *verb;
    const struct cli_options *o;
    struct client *client;
    int signals;          /* signalfd of SIGINT and SIGTERM; readable: interrupted */
    int64_t deadline_ms;  /* monotonic, of --timeout; INT64_MAX: none */
    const char *received; /* interrupted by: "SIGINT", ... */
};

/* Connects. notify may be NULL. CLI_GO_ON, or the exit code after the reason was printed. From
 * here on SIGINT and SIGTERM end waiting calls with ERR_CANCELLED instead of the process. */
int cli_open(struct cli *x, const struct command *c, const struct cli_options *o,
             client_notify_fn *notify, void *user);
/* Also of one that was not opened, if it is zeroed. */
void cli_close(struct cli *x);

/* Milliseconds to the deadline, for client_await: -1 none; never less than 0. */
int cli_time_left(const struct cli *x);
/* client_call within the deadline. */
NODISCARD enum err cli_call(struct cli *x, const char *method, json_t *take_params,
                            json_t **result, struct error *e);

/* Prints "agentctl VERB: message (hint)" and returns the exit code for rc. A refusal that asks
 * to be tried again is EXIT_AGAIN. */
int cli_fail(const struct cli *x, enum err rc, const struct error *e);
/* The same for mistakes on the command line: exit code EXIT_USAGE. */
int cli_usage(const struct command *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* One line to stderr, unless --quiet. */
void cli_note(const struct cli *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- sessions ------------------------------------------------------------------- */

#define CLI_ID_CAP 64

/* The session that the user named: id, name, a unique prefix of either, or "@-" for the one
 * last used in this folder. *session gets the SESSION object of the protocol (to be decref'd;
 * may be NULL). ERR_NOTFOUND: none, or several (the message lists them). */
NODISCARD enum err cli_resolve(struct cli *x, const char *key, char id[CLI_ID_CAP],
                               json_t **session, struct error *e);
/* NAME[@SEQ]: the name's part goes to key (cap bytes), *seq is 0 without one. ERR_INVAL. */
NODISCARD enum err cli_split_seq(const char *arg, char *key, size_t cap, uint64_t *seq,
                                 struct error *e);

/* "" for a field that is no string. Borrowed. */
const char *cli_str(const json_t *object, const char *field);
/* 0 for a field that is no number. */
int64_t cli_int(const json_t *object, const char *field);
double cli_num(const json_t *object, const char *field);

#endif
