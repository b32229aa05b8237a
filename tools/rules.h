/* Approval rules: which calls run without asking, which are asked for whatever the mode is, and
 * which are refused.
 *
 *     allow run git log *       deny run rm -rf *       allow edit *.c
 *     allow run make            ask run git push *      deny read_file **.pem
 *     allow http_fetch *.example.org
 *
 * A rule is a verdict, the name of a tool (`*`: every tool) and, for some tools, a pattern.
 * Without a pattern it is about every call of the tool. One text may hold several rules of one
 * verdict, separated by `;`. Words are quoted as in a shell; `*` and `?` are wild only without
 * quotes.
 *
 * Strength: deny beats ask beats allow, whatever the order and whoever made the rule.
 *
 * run         Words of the pattern against the words of a simple command, one by one; in a word
 *             `*` is any bytes; a `*` that stands alone at the end is any further words, also
 *             none. The line is read by tools/shell.h. It is allowed only if every simple
 *             command of it is, has no assignment in front and no word that the shell would
 *             expand, and opens no file for writing that `allow write_file` does not cover
 *             (/dev/null and descriptors aside). One that cannot be read is never allowed by a
 *             pattern, and asked for where a deny or ask rule could have been about it. Deny
 *             and ask rules also match what `env`, `sudo`, `xargs`, `timeout` and the like, a
 *             `-c` of a shell and `eval` are told to execute, and names with a folder in front.
 *             A rule is no sandbox: what an allowed program does is that program's business.
 * read_file, list_dir, grep, write_file, edit
 *             A path pattern, from the workspace on or absolute: `*` and `?` within a
 *             component, `**` across. It is held against the path as written and as it is with
 *             all links followed: deny and ask need one of both, allow needs both. A deny or
 *             ask pattern that begins with `**` is about paths outside the workspace, too.
 * http_fetch  A pattern for the host of the URL.
 * others      Take no pattern.
 *
 * A set of rules is constant once it is made; then any thread may read it. */
#ifndef TOOLS_RULES_H
#define TOOLS_RULES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

#define RULES_MAX 1024                /* of a set */
#define RULE_MAX_BYTES ((size_t)4096) /* of one text */

enum rule_verdict { RULE_NONE, RULE_ALLOW, RULE_ASK, RULE_DENY };
/* "none", "allow", "ask", "deny". */
const char *rule_verdict_name(enum rule_verdict v);

struct rules;

/* An empty set; NULL when out of memory. */
struct rules *rules_new(void);
/* NULL is fine. */
void rules_free(struct rules *r);

/* Adds "VERDICT TOOL [PATTERN...][; TOOL [PATTERN...]]...". ERR_INVAL says what is wrong with
 * it; ERR_LIMIT; the set is then as it was. */
NODISCARD enum err rules_add(struct rules *r, const char *text, struct error *e);
/* Adds an allow rule for exactly each simple command of this line of `run`. False if the line
 * cannot be read or no rule could cover it (then nothing is added), or out of memory. */
bool rules_allow_line(struct rules *r, const char *command);

/* A call, as far as rules look at it. */
struct rule_call {
    const char *tool;
    const json_t *arguments; /* an object that fits the tool's schema */
    const char *workspace;   /* absolute */
    /* What somebody approved for the session (rules_allow_line): beats ask, not deny. NULL:
     * nothing. */
    const struct rules *granted;
};

/* What the sets together (NULL ones are empty) say about a call: RULE_NONE if nothing. `why`
 * gets a short reason that quotes the rule, for people and the model. Looks at the file system
 * for links in paths. */
enum rule_verdict rules_check(const struct rules *const *sets, size_t n_sets,
                              const struct rule_call *call, char why[ERR_MSG_BYTES]);

#endif
