/* What the files of the approval rules know of each other: rules.c makes sets, rules_match.c
 * holds one rule against a command, a path or a host, rules_check.c says what all rules
 * together mean for a call. */
#ifndef TOOLS_RULES_INTERNAL_H
#define TOOLS_RULES_INTERNAL_H

#include <limits.h>

#include "base/arena.h"
#include "tools/rules.h"
#include "tools/shell.h"

enum pattern_kind { PATTERN_NONE, PATTERN_COMMAND, PATTERN_PATH, PATTERN_HOST };
/* What patterns for this tool are about. */
enum pattern_kind rule_pattern_kind(const char *tool);

struct rule {
    enum rule_verdict verdict;
    const char *tool; /* "*": every one */
    struct shell_word *words;
    size_t n_words;   /* 0: no pattern */
    const char *text; /* as it is quoted */
};

struct rules {
    struct arena arena;
    struct rule *list;
    size_t n, cap;
};

/* Maybe: it depends on what the shell would expand. */
enum match { MATCH_NO, MATCH_MAYBE, MATCH_YES };

/* Whether an allow rule can cover this command at all: no assignment in front, no word that the
 * shell would expand. */
bool rule_is_plain(const struct shell_command *cmd);
/* The pattern against the words as they stand: how allow rules match. */
enum match rule_match_exactly(const struct rule *r, const struct shell_word *words, size_t n);
/* How deny and ask rules match: also what a command is told to execute, and names with a folder
 * in front. Yes without a pattern. */
enum match rule_match_loosely(const struct rule *r, const struct shell_word *words, size_t n);

/* One path under two names, without "." and "..". */
struct rule_paths {
    char plain[PATH_MAX], real[PATH_MAX];           /* as written; with links followed */
    char plain_root[PATH_MAX], real_root[PATH_MAX]; /* the workspace likewise */
};
/* False: one of them is too long. Looks at the file system. */
bool rule_paths_init(const char *workspace, const char *path, struct rule_paths *out);
/* Allow needs both names, deny and ask one of them. True without a pattern. */
bool rule_match_path(const struct rule *r, const struct rule_paths *p);

/* host NULL: it is not known, and only a rule without a pattern is about it. */
bool rule_match_host(const struct rule *r, const char *host);

#endif
