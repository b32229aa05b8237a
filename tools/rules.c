#include "tools/rules_internal.h"

#include <stdlib.h>
#include <string.h>

#define SET_BYTES ((size_t)8 << 20)

const char *rule_verdict_name(enum rule_verdict v)
{
    static const char *const names[] = {"none", "allow", "ask", "deny"};
    return names[v];
}

enum pattern_kind rule_pattern_kind(const char *tool)
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
    enum pattern_kind kind = strcmp(tool, "*") ? rule_pattern_kind(tool) : PATTERN_NONE;

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

/* ---- approvals for a session ---- */

bool rules_allow_line(struct rules *r, const char *command)
{
    AUTO(shell_line) struct shell_line l = {0};
    size_t before = r->n;
    bool ok = shell_parse(command, strlen(command), &l, NULL) == OK && l.n_commands > 0;

    for (size_t i = 0; ok && i < l.n_commands; i++) {
        struct shell_command *c = &l.commands[i];
        struct rule rule = {.verdict = RULE_ALLOW, .tool = "run", .text = "approved"};
        ok = rule_is_plain(c) && c->n_redirects == 0 && c->n_words > 0 && !reserve(r, NULL) &&
             !copy_words(r, c->words, c->n_words, &rule, NULL);
        if (ok)
            r->list[r->n++] = rule;
    }
    if (!ok)
        r->n = before;
    return ok;
}
