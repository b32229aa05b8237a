#include "tools/rules.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/http.h"
#include "tools/shell.h"

#define MAX_NESTED 4       /* bash -c "bash -c ..." */
#define MAX_COMPONENTS 128 /* of a path that links are followed in: bounds the look-ups */
#define SET_BYTES ((size_t)8 << 20)

enum pattern_kind { PATTERN_NONE, PATTERN_COMMAND, PATTERN_PATH, PATTERN_HOST };

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

const char *rule_verdict_name(enum rule_verdict v)
{
    static const char *const names[] = {"none", "allow", "ask", "deny"};
    return names[v];
}

static enum pattern_kind kind_of(const char *tool)
{
    static const char *const paths[] = {"edit", "grep", "list_dir", "read_file", "write_file"};

    if (strcmp(tool, "run") == 0)
        return PATTERN_COMMAND;
    if (strcmp(tool, "http_fetch") == 0)
        return PATTERN_HOST;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (strcmp(tool, paths[i]) == 0)
            return PATTERN_PATH;
    return PATTERN_NONE;
}

/* ---- making a set ---- */

struct rules *rules_new(void)
{
    struct rules *r = calloc(1, sizeof *r);
    if (r)
        arena_init(&r->arena, SET_BYTES);
    return r;
}

void rules_free(struct rules *r)
{
    if (!r)
        return;
    arena_fini(&r->arena);
    free(r->list);
    free(r);
}

static enum err reserve(struct rules *r, struct error *e)
{
    if (r->n == RULES_MAX)
        return err_set(e, ERR_LIMIT, "more than %d rules", RULES_MAX);
    if (r->n < r->cap)
        return OK;
    size_t cap = r->cap ? 2 * r->cap : 16;
    struct rule *list = realloc(r->list, cap * sizeof *list);
    if (!list)
        return err_set(e, ERR_NOMEM, "rules");
    r->list = list;
    r->cap = cap;
    return OK;
}

/* Words that a rule can hold: taken literally, or wild without any quotes. */
static enum err check_word(const struct shell_word *w, struct error *e)
{
    if (w->marks & SHELL_EXPANDS)
        return err_set(e, ERR_INVAL, "\"%.60s\" would be expanded by a shell: quote it",
                       w->text);
    if (w->marks & SHELL_GLOB && w->marks & SHELL_QUOTED)
        return err_set(e, ERR_INVAL, "\"%.60s\": a word is either quoted or has wild cards",
                       w->text);
    if (w->marks & SHELL_GLOB && strchr(w->text, '['))
        return err_set(e, ERR_INVAL, "\"%.60s\": [ ] is not among the wild cards", w->text);
    return OK;
}

static enum err copy_words(struct rules *r, const struct shell_word *words, size_t n,
                           struct rule *out, struct error *e)
{
    out->words = arena_array(&r->arena, n, sizeof *words, e);
    if (!out->words)
        return ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        out->words[i].marks = words[i].marks;
        out->words[i].text = arena_text(&r->arena, words[i].text, strlen(words[i].text), e);
        if (!out->words[i].text)
            return ERR_NOMEM;
    }
    out->n_words = n;
    return OK;
}

static enum err check_pattern(const char *tool, const struct shell_word *words, size_t n,
                              struct error *e)
{
    enum pattern_kind kind = strcmp(tool, "*") ? kind_of(tool) : PATTERN_NONE;

    if (n > 0 && kind == PATTERN_NONE)
        return err_set(e, ERR_INVAL, "rules for %.60s take no pattern", tool);
    if (n > 1 && kind != PATTERN_COMMAND)
        return err_set(e, ERR_INVAL, "rules for %.60s take one pattern", tool);
    for (size_t i = 0; i < n; i++) {
        enum err rc = check_word(&words[i], e);
        if (rc)
            return rc;
    }
    return OK;
}

/* words[0] is the tool. */
static enum err add_rule(struct rules *r, enum rule_verdict verdict, const char *text,
                         const struct shell_word *words, size_t n, struct error *e)
{
    struct rule rule = {.verdict = verdict};
    enum err rc;

    if (n == 0)
        return err_set(e, ERR_INVAL, "a rule names a tool");
    if ((rc = check_pattern(words[0].text, words + 1, n - 1, e)) || (rc = reserve(r, e)) ||
        (rc = copy_words(r, words, n, &rule, e)))
        return rc;
    if (!(rule.text = arena_text(&r->arena, text, strlen(text), e)))
        return ERR_NOMEM;
    rule.tool = rule.words[0].text;
    rule.words++;
    rule.n_words--;
    r->list[r->n++] = rule;
    return OK;
}

static enum rule_verdict parse_verdict(const struct shell_line *l)
{
    for (int v = RULE_ALLOW; l->n_commands && l->commands[0].n_words && v <= RULE_DENY; v++)
        if (strcmp(l->commands[0].words[0].text, rule_verdict_name((enum rule_verdict)v)) == 0)
            return (enum rule_verdict)v;
    return RULE_NONE;
}

static enum err add_all(struct rules *r, const char *text, const struct shell_line *l,
                        struct error *e)
{
    enum rule_verdict verdict = parse_verdict(l);

    if (verdict == RULE_NONE)
        return err_set(e, ERR_INVAL, "want allow, ask or deny in front");
    for (size_t i = 0; i < l->n_commands; i++) {
        const struct shell_command *c = &l->commands[i];
        size_t skip = i == 0; /* the verdict */
        if (c->n_redirects || c->assigns)
            return err_set(e, ERR_INVAL, "redirections and assignments are no part of rules");
        enum err rc = add_rule(r, verdict, text, c->words + skip, c->n_words - skip, e);
        if (rc)
            return rc;
    }
    return OK;
}

enum err rules_add(struct rules *r, const char *text, struct error *e)
{
    AUTO(shell_line) struct shell_line l = {0};
    size_t before = r->n;

    if (strlen(text) > RULE_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "a rule of more than %zu bytes", RULE_MAX_BYTES);
    enum err rc = shell_parse(text, strlen(text), &l, e);
    if (rc == ERR_UNSUPPORTED)
        rc = e ? e->code = ERR_INVAL : ERR_INVAL;
    if (!rc)
        rc = add_all(r, text, &l, e);
    if (rc)
        r->n = before;
    return rc ? err_wrap(e, rc, "rule \"%.80s\"", text) : OK;
}

/* ---- matching text ---- */

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

/* ---- matching commands ---- */

enum match { MATCH_NO, MATCH_MAYBE, MATCH_YES };

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

/* ---- matching paths ---- */

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

/* ---- what rules say ---- */

struct search {
    const struct rules *const *sets;
    size_t n_sets, set, at; /* where it stands */
};

/* The next rule with this verdict for the tool, or NULL. */
static const struct rule *next_rule(struct search *s, const char *tool,
                                    enum rule_verdict verdict)
{
    for (; s->set < s->n_sets; s->set++, s->at = 0)
        while (s->sets[s->set] && s->at < s->sets[s->set]->n) {
            const struct rule *r = &s->sets[s->set]->list[s->at++];
            if (r->verdict == verdict &&
                (strcmp(r->tool, "*") == 0 || strcmp(r->tool, tool) == 0))
                return r;
        }
    return NULL;
}

struct checker {
    const struct rules *const *sets;
    size_t n_sets;
    const struct rules *granted; /* NULL: nothing */
    const char *workspace;
    char *why; /* ERR_MSG_BYTES */
};

static enum rule_verdict say(const struct checker *c, enum rule_verdict v, const char *text,
                             const char *more)
{
    struct error e; /* makes it printable */

    err_set(&e, ERR_DENIED, "rule \"%.120s\"%s", text, more);
    memcpy(c->why, e.msg, sizeof e.msg);
    return v;
}

/* Deny and ask rules on one simple command. */
static enum rule_verdict restrict_command(const struct checker *c,
                                          const struct shell_command *cmd)
{
    const struct rule *r;
    enum rule_verdict v = RULE_NONE;
    struct search deny = {c->sets, c->n_sets, 0, 0}, ask = deny;

    while ((r = next_rule(&deny, "run", RULE_DENY))) {
        enum match m = r->n_words ? match_loosely(r, cmd->words, cmd->n_words, 0) : MATCH_YES;
        if (m == MATCH_YES)
            return say(c, RULE_DENY, r->text, "");
        if (m == MATCH_MAYBE)
            v = say(c, RULE_ASK, r->text, " could be meant: the command is not known in full");
    }
    while (v == RULE_NONE && (r = next_rule(&ask, "run", RULE_ASK)))
        if (!r->n_words || match_loosely(r, cmd->words, cmd->n_words, 0) != MATCH_NO)
            v = say(c, RULE_ASK, r->text, "");
    return v;
}

static bool is_plain(const struct shell_command *cmd)
{
    for (size_t i = 0; i < cmd->n_words; i++)
        if (!shell_word_is_literal(&cmd->words[i]))
            return false;
    return !cmd->assigns;
}

static bool is_allowed(const struct checker *c, const struct shell_command *cmd)
{
    struct search s = {c->sets, c->n_sets, 0, 0};
    const struct rule *r;

    while (is_plain(cmd) && (r = next_rule(&s, "run", RULE_ALLOW)))
        if (r->n_words && match_words(r, cmd->words, cmd->n_words, false) == MATCH_YES) {
            say(c, RULE_ALLOW, r->text, "");
            return true;
        }
    return false;
}

/* One path under two names. */
struct two_paths {
    char plain[PATH_MAX], real[PATH_MAX];           /* as written; with links followed */
    char plain_root[PATH_MAX], real_root[PATH_MAX]; /* the workspace likewise */
};

static bool resolve(const char *workspace, const char *path, struct two_paths *out)
{
    return !is_deep(path) && normalize("", workspace, out->plain_root) &&
           follow("", workspace, out->real_root) && normalize(workspace, path, out->plain) &&
           follow(workspace, path, out->real);
}

static bool covers(const struct rule *r, const struct two_paths *p)
{
    if (!r->n_words)
        return true;
    bool allows = r->verdict == RULE_ALLOW;
    bool plain = match_path(r->words, p->plain, p->plain_root, !allows);
    bool real = match_path(r->words, p->real, p->real_root, !allows);
    return allows ? plain && real : plain || real;
}

static const enum rule_verdict by_strength[] = {RULE_DENY, RULE_ASK, RULE_ALLOW};

static enum rule_verdict check_path(const struct checker *c, const char *tool, const char *path)
{
    struct two_paths p;

    if (!resolve(c->workspace, path, &p)) {
        snprintf(c->why, ERR_MSG_BYTES, "the path is too long to hold rules against it");
        return RULE_ASK;
    }
    for (size_t i = 0; i < 3; i++) {
        struct search s = {c->sets, c->n_sets, 0, 0};
        const struct rule *r;
        while ((r = next_rule(&s, tool, by_strength[i])))
            if (covers(r, &p))
                return say(c, by_strength[i], r->text, "");
    }
    return RULE_NONE;
}

static bool has_rule(const struct checker *c, const char *tool, enum rule_verdict v)
{
    struct search s = {c->sets, c->n_sets, 0, 0};
    return next_rule(&s, tool, v) != NULL;
}

/* What a redirection opens is held against the rules of the file tools. Reading is free like
 * read_file is, but for their deny and ask. */
static enum rule_verdict check_redirect(const struct checker *c, const struct shell_redirect *r)
{
    bool writes = r->direction == SHELL_WRITES;
    const char *tool = writes ? "write_file" : "read_file";

    if (!shell_word_is_literal(&r->target)) {
        if (has_rule(c, tool, RULE_DENY) || has_rule(c, tool, RULE_ASK))
            return say(c, RULE_ASK, r->target.text, " is not known: the shell expands it");
        return writes ? RULE_NONE : RULE_ALLOW;
    }
    enum rule_verdict v = check_path(c, tool, r->target.text);
    bool is_free = !writes || strcmp(r->target.text, "/dev/null") == 0;
    return v == RULE_NONE && is_free ? RULE_ALLOW : v;
}

static bool is_granted(const struct checker *c, const struct shell_command *cmd)
{
    const struct checker only = {&c->granted, 1, NULL, c->workspace, c->why};

    return c->granted && is_allowed(&only, cmd);
}

static enum rule_verdict check_command(const struct checker *c, const struct shell_command *cmd)
{
    enum rule_verdict v = restrict_command(c, cmd);
    bool granted = v != RULE_DENY && is_granted(c, cmd), writes = false;
    char why[ERR_MSG_BYTES] = "";

    if (v == RULE_ASK) /* is_granted may have put its own reason there */
        v = granted ? RULE_NONE : restrict_command(c, cmd);
    memcpy(why, c->why, sizeof why);
    for (size_t i = 0; i < cmd->n_redirects && v != RULE_DENY; i++) {
        enum rule_verdict one = check_redirect(c, &cmd->redirects[i]);
        if (one == RULE_DENY || (one == RULE_ASK && v == RULE_NONE)) {
            v = one;
            memcpy(why, c->why, sizeof why);
        }
        writes = writes || one != RULE_ALLOW;
    }
    memcpy(c->why, why, sizeof why);
    if (v != RULE_NONE || writes)
        return v;
    bool allowed = cmd->n_words ? granted || is_allowed(c, cmd) : !cmd->assigns;
    return allowed ? RULE_ALLOW : RULE_NONE;
}

/* Rules that are about every call of the tool. */
static enum rule_verdict check_whole(const struct checker *c, const char *tool,
                                     enum rule_verdict verdict)
{
    struct search s = {c->sets, c->n_sets, 0, 0};
    const struct rule *r;

    while ((r = next_rule(&s, tool, verdict)))
        if (r->n_words == 0)
            return say(c, verdict, r->text, "");
    return RULE_NONE;
}

static enum rule_verdict check_name(const struct checker *c, const char *tool)
{
    enum rule_verdict v = check_whole(c, tool, RULE_DENY);

    if (v == RULE_NONE)
        v = check_whole(c, tool, RULE_ASK);
    return v ? v : check_whole(c, tool, RULE_ALLOW);
}

static enum rule_verdict check_unread(const struct checker *c, const struct error *why)
{
    bool concerned = has_rule(c, "run", RULE_DENY) || has_rule(c, "run", RULE_ASK) ||
                     has_rule(c, "write_file", RULE_DENY) ||
                     has_rule(c, "read_file", RULE_DENY);

    if (check_whole(c, "run", RULE_DENY))
        return RULE_DENY;
    snprintf(c->why, ERR_MSG_BYTES, "no rule can be held against it: %.160s", why->msg);
    return concerned ? RULE_ASK : RULE_NONE;
}

static enum rule_verdict check_run(const struct checker *c, const char *command, size_t n)
{
    AUTO(shell_line) struct shell_line l = {0};
    char why[ERR_MSG_BYTES];
    struct error e;
    enum rule_verdict all = RULE_ALLOW;

    if (shell_parse(command, n, &l, &e))
        all = check_unread(c, &e);
    else if (l.n_commands == 0) /* nothing would run */
        return check_name(c, "run");
    for (size_t i = 0; i < l.n_commands; i++) {
        enum rule_verdict v = check_command(c, &l.commands[i]);
        if (v == RULE_DENY)
            return v;
        if (v == RULE_ASK && all != RULE_ASK)
            memcpy(why, c->why, sizeof why);
        if (v == RULE_ASK || all == RULE_ASK)
            all = RULE_ASK;
        else if (v == RULE_NONE)
            all = RULE_NONE;
    }
    if (all == RULE_ASK && l.n_commands)
        memcpy(c->why, why, sizeof why);
    return all == RULE_NONE ? check_whole(c, "run", RULE_ALLOW) : all;
}

static enum rule_verdict check_host(const struct checker *c, const char *url)
{
    char host[HTTP_HOST_BYTES];
    bool known = http_url_host(url, host, NULL) == OK;

    for (size_t i = 0; i < 3; i++) {
        struct search s = {c->sets, c->n_sets, 0, 0};
        const struct rule *r;
        while ((r = next_rule(&s, "http_fetch", by_strength[i])))
            if (!r->n_words || (known && match_word(&r->words[0], host)))
                return say(c, by_strength[i], r->text, "");
    }
    return RULE_NONE;
}

enum rule_verdict rules_check(const struct rules *const *sets, size_t n_sets,
                              const struct rule_call *call, char why[ERR_MSG_BYTES])
{
    const struct checker c = {sets, n_sets, call->granted, call->workspace, why};
    const json_t *a = call->arguments;
    const char *path = json_string_value(json_object_get(a, "path"));
    const json_t *command = json_object_get(a, "command");
    const char *url = json_string_value(json_object_get(a, "url"));

    why[0] = '\0';
    switch (kind_of(call->tool)) {
    case PATTERN_COMMAND:
        return check_run(&c, json_string_value(command), json_string_length(command));
    case PATTERN_PATH:
        return check_path(&c, call->tool, path ? path : ".");
    case PATTERN_HOST:
        return check_host(&c, url ? url : "");
    case PATTERN_NONE:
        break;
    }
    return check_name(&c, call->tool);
}

/* ---- approvals for a session ---- */

bool rules_allow_line(struct rules *r, const char *command)
{
    AUTO(shell_line) struct shell_line l = {0};
    size_t before = r->n;
    bool ok = shell_parse(command, strlen(command), &l, NULL) == OK && l.n_commands > 0;

    for (size_t i = 0; ok && i < l.n_commands; i++) {
        struct shell_command *c = &l.commands[i];
        struct rule rule = {.verdict = RULE_ALLOW, .tool = "run", .text = "approved"};
        ok = is_plain(c) && c->n_redirects == 0 && c->n_words > 0 && !reserve(r, NULL) &&
             !copy_words(r, c->words, c->n_words, &rule, NULL);
        if (ok)
            r->list[r->n++] = rule;
    }
    if (!ok)
        r->n = before;
    return ok;
}
