/* Command lines: one table per command, shared by agentd, agentctl and agentd-evals.
 *
 *     struct score_options { struct common_options common; const char *model; int64_t threads;
 * }; static const struct option score_table[] = {
 *         {"model", 'm', OPTION_STRING, offsetof(struct score_options, model), "DIR",
 *          .help = "model folder", .required = true},
 *         {"threads", 0, OPTION_INT, offsetof(struct score_options, threads), "N",
 *          .min = 0, .max = 256, .help = "threads (default: all cores)"},
 *     };
 *     static const struct command score = {"score", "", "log-probabilities of given tokens",
 *         OPTION_TABLE(score_table), OPTION_TABLE(common_table), 0, 0};
 *
 * Values are written through the offset into the caller's struct, whose defaults the caller
 * sets first. Accepted: --name VALUE, --name=VALUE, -n VALUE, -nVALUE, -ab for flags, `--`
 * before what is no option, options and arguments in any order, `-` as an argument. Names are
 * never abbreviated. --help and -h exist everywhere. ERR_INVAL is a usage error: exit code 2.
 */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum option_kind {
    OPTION_FLAG,   /* bool: set to true */
    OPTION_COUNT,  /* int64_t: one more each time (-v -v) */
    OPTION_STRING, /* const char *: borrowed from argv */
    OPTION_INT,    /* int64_t in min..max */
    OPTION_BYTES,  /* uint64_t in min..max: 4096, 64K, 16M, 2G, 1T (powers of 1024) */
    OPTION_FLOAT,  /* double in min..max, finite */
    OPTION_ENUM    /* int: index in choices */
};

struct option {
    const char *name; /* long name without dashes */
    char letter;      /* 0: none */
    enum option_kind kind;
    size_t offset;
    const char *value_name; /* "N", "FILE": for the help text */
    int64_t min, max;       /* both 0: no limit but the type's (BYTES and INT: not negative) */
    const char *const *choices; /* of OPTION_ENUM, NULL ends */
    const char *help;
    bool required;
};

struct option_table {
    const struct option *options;
    size_t n;
};

#define OPTION_TABLE(array)                                                                    \
    {                                                                                          \
        (array), sizeof(array) / sizeof *(array)                                               \
    }
#define OPTION_TABLE_EMPTY                                                                     \
    {                                                                                          \
        NULL, 0                                                                                \
    }

struct command {
    const char *name;
    const char *args;                /* "NAME[@SEQ]": for the help text */
    const char *summary;             /* one line */
    struct option_table own, common; /* offsets of both count from the start of one struct */
    size_t min_args, max_args;       /* of what is no option */
};

#define OPTIONS_MAX_ARGS 64

struct options {
    bool help; /* --help was given: print options_usage and exit 0; nothing else was checked */
    uint64_t seen; /* bit i: own.options[i] was given; then the common ones follow */
    size_t n_args;
    const char *args[OPTIONS_MAX_ARGS]; /* borrowed from argv */
};

/* argv[0] is the command's name and skipped. ERR_INVAL says which option and why: unknown,
 * missing value, out of range with the range, not one of the choices (listed), required, too
 * many or too few arguments. `values` may be partly written then. */
NODISCARD enum err options_parse(const struct command *c, int argc, const char *const *argv,
                                 void *values, struct options *out, struct error *e);

/* Whether the option with this long name was given. */
bool options_has(const struct command *c, const struct options *o, const char *name);

/* "usage: PROGRAM NAME [options] ARGS", the summary and one line per option. */
void options_usage(const struct command *c, const char *program, FILE *f);

/* "64K", "2G" and plain numbers; ERR_INVAL names the text, ERR_LIMIT past UINT64_MAX. */
NODISCARD enum err options_parse_bytes(const char *s, uint64_t *out, struct error *e);
/* A decimal number of the whole text, in min..max. */
NODISCARD enum err options_parse_int(const char *s, int64_t min, int64_t max, int64_t *out,
                                     struct error *e);

#endif
