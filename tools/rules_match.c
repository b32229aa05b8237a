#include "tools/rules_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"

#define MAX_NESTED 4       /* bash -c "bash -c ..." */
#define MAX_COMPONENTS 128 /* of a path that links are followed in: bounds the look-ups */

/* ---- text ---- */

/* `*` stops at `stop` bytes (0: at none), `**` at none. Iterative: the last star is tried again
 * one byte further, which is enough, because a later star covers what an earlier one could. */
static bool match_wild(const char *pattern, const char *text, char stop)
{
    const char *star = NULL, *retry = NULL, *wide = NULL, *wide_retry = NULL;

    while (*text) {
        if (pattern[0] == '*' && (pattern[1] == '*' || !stop)) {
            while (*pattern == '*')
                pattern++;
            wide = pattern;
            wide_retry = text;
            star = NULL;
        } else if (*pattern == '*') {
            star = ++pattern;
            retry = text;
        } else if (*pattern == *text || (*pattern == '?' && *text != stop)) {
            pattern++;
            text++;
        } else if (star && *retry != stop) {
            pattern = star;
            text = ++retry;
        } else if (wide) {
            pattern = wide;
            text = ++wide_retry;
            star = NULL;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

static bool match_word(const struct shell_word *pattern, const char *text)
{
    return pattern->marks & SHELL_GLOB ? match_wild(pattern->text, text, '\0')
                                       : strcmp(pattern->text, text) == 0;
}

bool rule_match_host(const struct rule *r, const char *host)
{
    return !r->n_words || (host && match_word(&r->words[0], host));
}

/* ---- commands ---- */

bool rule_is_plain(const struct shell_command *cmd)
{
    for (size_t i = 0; i < cmd->n_words; i++)
        if (!shell_word_is_literal(&cmd->words[i]))
            return false;
    return !cmd->assigns;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_rest(const struct rule *r, size_t i)
{
    return i + 1 == r->n_words && r->words[i].marks & SHELL_GLOB &&
           strcmp(r->words[i].text, "*") == 0;
}

/* A pattern against words; maybe: it depends on what the shell expands. `loose`: /usr/bin/rm is
 * rm. */
static enum match match_words(const struct rule *r, const struct shell_word *words, size_t n,
                              bool loose)
{
    for (size_t i = 0; i < r->n_words; i++) {
        if (is_rest(r, i))
            return MATCH_YES;
        if (i == n)
            return MATCH_NO;
        if (!shell_word_is_literal(&words[i]))
            return MATCH_MAYBE;
        bool as_base = loose && i == 0 && !strchr(r->words[0].text, '/');
        if (!match_word(&r->words[i], words[i].text) &&
            !(as_base && match_word(&r->words[0], base_name(words[i].text))))
            return MATCH_NO;
    }
    if (n == r->n_words)
        return MATCH_YES;
    /* What is left may expand to nothing. */
    for (size_t i = r->n_words; i < n; i++)
        if (!(words[i].marks & (SHELL_EXPANDS | SHELL_GLOB)))
            return MATCH_NO;
    return MATCH_MAYBE;
}

static bool is_one_of(const char *s, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(s, *list) == 0)
            return true;
    return false;
}

/* Programs that execute what stands among their arguments. */
static bool executes_arguments(const char *program)
{
    static const char *const list[] = {
        "builtin", "busybox", "chroot", "chrt",  "command", "doas",     "env",     "exec",
        "find",    "flock",   "ionice", "nice",  "nohup",   "parallel", "setarch", "setpriv",
        "setsid",  "stdbuf",  "strace", "sudo",  "taskset", "time",     "timeout", "toybox",
        "trap",    "unshare", "watch",  "xargs", NULL};
    return is_one_of(base_name(program), list);
}

/* Finds a command line among the words: the text behind -c of a shell, or what eval puts
 * together. 1: *out is it; 0: there is none; -1: there is one that is not known here. */
static int inner_line(const struct shell_word *w, size_t n, char *out, size_t cap)
{
    static const char *const shells[] = {"ash", "bash", "dash", "ksh", "sh", "zsh", NULL};
    size_t len = 0;

    if (n == 0 || !shell_word_is_literal(&w[0]))
        return 0;
    bool is_eval = strcmp(w[0].text, "eval") == 0;
    if (!is_eval && !is_one_of(base_name(w[0].text), shells))
        return 0;
    bool take = is_eval;
    for (size_t i = 1; i < n; i++) {
        if (!shell_word_is_literal(&w[i]))
            return -1;
        if (!take && w[i].text[0] == '-' && w[i].text[1] != '-' && strchr(w[i].text, 'c')) {
            take = true;
            continue;
        }
        if (!take || (!is_eval && w[i].text[0] == '-'))
            continue;
        int k = snprintf(out + len, cap - len, "%s%s", len ? " " : "", w[i].text);
        if (k < 0 || (size_t)k >= cap - len)
            return -1;
        len += (size_t)k;
        if (!is_eval)
            return 1;
    }
    return take && len ? 1 : 0;
}

static enum match match_loosely(const struct rule *r, const struct shell_word *words, size_t n,
                                unsigned depth);

static enum match match_line_loosely(const struct rule *r, const char *text, unsigned depth)
{
    AUTO(shell_line) struct shell_line l = {0};
    enum match best = MATCH_NO;

    if (depth == MAX_NESTED || shell_parse(text, strlen(text), &l, NULL))
        return MATCH_MAYBE;
    for (size_t i = 0; i < l.n_commands; i++) {
        enum match m = match_loosely(r, l.commands[i].words, l.commands[i].n_words, depth + 1);
        best = m > best ? m : best;
    }
    return best;
}

static enum match stronger(enum match a, enum match b)
{
    return a > b ? a : b;
}

/* The line that a shell or eval is told to execute by these words. */
static enum match match_inner(const struct rule *r, const struct shell_word *words, size_t n,
                              unsigned depth)
{
    AUTO_FREE char *line = malloc(SHELL_MAX_BYTES);
    int found = line ? inner_line(words, n, line, SHELL_MAX_BYTES) : -1;

    if (found < 0)
        return MATCH_MAYBE;
    return found ? match_line_loosely(r, line, depth) : MATCH_NO;
}

/* As deny and ask rules match: also what a command is told to execute. */
static enum match match_loosely(const struct rule *r, const struct shell_word *words, size_t n,
                                unsigned depth)
{
    if (n == 0)
        return MATCH_NO;
    enum match best = stronger(match_words(r, words, n, true), match_inner(r, words, n, depth));
    if (!shell_word_is_literal(&words[0]) || !executes_arguments(words[0].text))
        return best;
    for (size_t i = 1; i < n && best < MATCH_YES; i++) {
        best = stronger(best, match_words(r, words + i, n - i, true));
        best = stronger(best, match_inner(r, words + i, n - i, depth));
        if (strpbrk(words[i].text, " \t\n;")) /* trap 'rm x' EXIT, env -S 'rm x' */
            best = stronger(best, match_line_loosely(r, words[i].text, depth));
    }
    return best;
}

enum match rule_match_exactly(const struct rule *r, const struct shell_word *words, size_t n)
{
    return match_words(r, words, n, false);
}

enum match rule_match_loosely(const struct rule *r, const struct shell_word *words, size_t n)
{
    return r->n_words ? match_loosely(r, words, n, 0) : MATCH_YES;
}

/* ---- paths ---- */

/* Whether a path pattern covers an absolute path without "." and "..". `anywhere`: one that
 * begins with ** is about paths outside of the workspace, too. */
static bool match_path(const struct shell_word *pattern, const char *path,
                       const char *workspace, bool anywhere)
{
    const char *text = path;
    bool from_root =
        pattern->text[0] == '/' ||
        (anywhere && strncmp(pattern->text, "**", 2) == 0 && pattern->marks & SHELL_GLOB);

    if (!from_root) {
        size_t n = strlen(workspace);
        if (strncmp(path, workspace, n) != 0 || (path[n] != '/' && path[n] != '\0'))
            return false;
        text = path[n] ? path + n + 1 : ".";
    }
    if (!(pattern->marks & SHELL_GLOB))
        return strcmp(pattern->text, text) == 0;
    bool any_folder = strncmp(pattern->text, "**/", 3) == 0; /* also none */
    return match_wild(pattern->text, text, '/') ||
           (any_folder && match_wild(pattern->text + 3, text, '/'));
}

/* `path`, from `workspace` on, without empty, "." and ".." components: by its text alone. */
static bool normalize(const char *workspace, const char *path, char out[PATH_MAX])
{
    char all[2 * PATH_MAX];
    size_t n = 0;
    int len = snprintf(all, sizeof all, "%s/%s", *path == '/' ? "" : workspace, path);

    if (len < 0 || (size_t)len >= sizeof all)
        return false;
    for (const char *p = all; *p;) {
        size_t k = strcspn(p, "/");
        if (k == 2 && p[0] == '.' && p[1] == '.') {
            while (n && out[n - 1] != '/')
                n--;
            n -= n > 0;
        } else if (k && !(k == 1 && *p == '.')) {
            if (n + k + 2 > PATH_MAX)
                return false;
            out[n++] = '/';
            memcpy(out + n, p, k);
            n += k;
        }
        p += k + (p[k] == '/');
    }
    if (n == 0)
        out[n++] = '/';
    out[n] = '\0';
    return true;
}

/* The path with links followed as far as it exists; what does not is put behind. */
static bool follow(const char *workspace, const char *path, char out[PATH_MAX])
{
    char all[2 * PATH_MAX], real[PATH_MAX];
    int len = snprintf(all, sizeof all, "%s/%s", *path == '/' ? "" : workspace, path);

    if (len < 0 || (size_t)len >= sizeof all)
        return false;
    for (char *end = all + len; end > all; end--) {
        char kept = *end;
        if (kept != '\0' && kept != '/')
            continue;
        *end = '\0';
        bool there = realpath(all, real) != NULL;
        *end = kept;
        if (there)
            return normalize(real, end + strspn(end, "/"), out);
    }
    return normalize("", all, out);
}

static bool is_deep(const char *path)
{
    size_t n = 0;
    for (; *path; path++)
        n += *path == '/';
    return n > MAX_COMPONENTS;
}

bool rule_paths_init(const char *workspace, const char *path, struct rule_paths *out)
{
    return !is_deep(path) && normalize("", workspace, out->plain_root) &&
           follow("", workspace, out->real_root) && normalize(workspace, path, out->plain) &&
           follow(workspace, path, out->real);
}

bool rule_match_path(const struct rule *r, const struct rule_paths *p)
{
    if (!r->n_words)
        return true;
    bool allows = r->verdict == RULE_ALLOW;
    bool plain = match_path(r->words, p->plain, p->plain_root, !allows);
    bool real = match_path(r->words, p->real, p->real_root, !allows);
    return allows ? plain && real : plain || real;
}
