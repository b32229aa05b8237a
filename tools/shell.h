/* A command line read for its simple commands, as rules need them: what would be executed with
 * which arguments, and which files are redirected to.
 *
 * This is a reader for a safe part of bash's grammar, not a shell. Read are simple commands,
 * pipes, `&&`, `||`, `;`, `&`, newlines, `!`, `( )` and `{ }` groups, quotes, comments,
 * redirections and here-documents. A line with anything else (command and process substitution,
 * control structures, functions, arithmetic, ANSI-C quotes) is ERR_UNSUPPORTED: nothing can be
 * said about what it would run. A word that bash would expand (variables, globs, braces, tilde)
 * is kept and marked, because its value is not known here.
 *
 * The promise: of a line that is read, bash executes these simple commands and no others, and a
 * word without marks reaches the command byte for byte, as one argument. (What a command
 * executes itself, `env`, `xargs` or `bash -c`, is the business of tools/rules.h.)
 *
 * Pure functions; nothing recurses deeper than SHELL_MAX_DEPTH. */
#ifndef TOOLS_SHELL_H
#define TOOLS_SHELL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/err.h"

#define SHELL_MAX_BYTES ((size_t)128 << 10) /* of a line */
#define SHELL_MAX_COMMANDS 256
#define SHELL_MAX_WORDS 4096 /* of all commands, redirections included */
#define SHELL_MAX_DEPTH 16   /* groups in groups */

enum shell_mark {
    SHELL_EXPANDS = 1, /* $name, tilde or braces: any number of unknown words */
    SHELL_GLOB = 2,    /* *, ? or [ without quotes: names of files, or itself */
    SHELL_QUOTED = 4   /* some of it was quoted (the text is without the quotes) */
};

struct shell_word {
    const char *text;
    unsigned marks; /* of enum shell_mark */
};

enum shell_direction { SHELL_READS, SHELL_WRITES };

/* Duplicated descriptors (2>&1), here-documents and here-strings open no file and are not here.
 */
struct shell_redirect {
    enum shell_direction direction; /* `<>` writes */
    struct shell_word target;
};

/* One simple command; without words it is a redirection or an assignment alone, or the
 * redirections of a group. */
struct shell_command {
    struct shell_word *words;
    size_t n_words;
    struct shell_redirect *redirects;
    size_t n_redirects;
    bool assigns; /* NAME=value in front, or alone */
};

struct shell_line {
    struct arena arena; /* owns everything below */
    struct shell_command *commands;
    size_t n_commands;
};

/* Reads text[0, n) into *out, which is to be finished if that succeeds. ERR_UNSUPPORTED names
 * the place and what stands there; ERR_LIMIT past a cap above; ERR_NOMEM. */
NODISCARD enum err shell_parse(const char *text, size_t n, struct shell_line *out,
                               struct error *e);
void shell_line_fini(struct shell_line *l);

/* Whether the shell passes this word on as it stands. */
static inline bool shell_word_is_literal(const struct shell_word *w)
{
    return !(w->marks & (SHELL_EXPANDS | SHELL_GLOB));
}

#endif
