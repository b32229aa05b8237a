#include "tools/rules_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/http.h"

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

static bool has_rule(const struct checker *c, const char *tool, enum rule_verdict v)
{
    struct search s = {c->sets, c->n_sets, 0, 0};
    return next_rule(&s, tool, v) != NULL;
}

/* ---- commands ---- */

/* Deny and ask rules on one simple command. */
static enum rule_verdict restrict_command(const struct checker *c,
                                          const struct shell_command *cmd)
{
    const struct rule *r;
    enum rule_verdict v = RULE_NONE;
    struct search deny = {c->sets, c->n_sets, 0, 0}, ask = deny;

    while ((r = next_rule(&deny, "run", RULE_DENY))) {
        enum match m = rule_match_loosely(r, cmd->words, cmd->n_words);
        if (m == MATCH_YES)
            return say(c, RULE_DENY, r->text, "");
        if (m == MATCH_MAYBE)
            v = say(c, RULE_ASK, r->text, " could be meant: the command is not known in full");
    }
    while (v == RULE_NONE && (r = next_rule(&ask, "run", RULE_ASK)))
        if (rule_match_loosely(r, cmd->words, cmd->n_words) != MATCH_NO)
            v = say(c, RULE_ASK, r->text, "");
    return v;
}

static bool is_allowed(const struct checker *c, const struct shell_command *cmd)
{
    struct search s = {c->sets, c->n_sets, 0, 0};
    const struct rule *r;

    while (rule_is_plain(cmd) && (r = next_rule(&s, "run", RULE_ALLOW)))
        if (r->n_words && rule_match_exactly(r, cmd->words, cmd->n_words) == MATCH_YES) {
            say(c, RULE_ALLOW, r->text, "");
            return true;
        }
    return false;
}

static bool is_granted(const struct checker *c, const struct shell_command *cmd)
{
    const struct checker only = {&c->granted, 1, NULL, c->workspace, c->why};

    return c->granted && is_allowed(&only, cmd);
}

/* ---- paths ---- */

static const enum rule_verdict by_strength[] = {RULE_DENY, RULE_ASK, RULE_ALLOW};

static enum rule_verdict check_path(const struct checker *c, const char *tool, const char *path)
{
    struct rule_paths p;

    if (!rule_paths_init(c->workspace, path, &p)) {
        snprintf(c->why, ERR_MSG_BYTES, "the path is too long to hold rules against it");
        return RULE_ASK;
    }
    for (size_t i = 0; i < 3; i++) {
        struct search s = {c->sets, c->n_sets, 0, 0};
        const struct rule *r;
        while ((r = next_rule(&s, tool, by_strength[i])))
            if (rule_match_path(r, &p))
                return say(c, by_strength[i], r->text, "");
    }
    return RULE_NONE;
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

/* ---- calls ---- */

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
            if (rule_match_host(r, known ? host : NULL))
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
    switch (rule_pattern_kind(call->tool)) {
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
