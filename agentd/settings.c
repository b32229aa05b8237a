#include "agentd/settings.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "tools/rules.h"

#define SYSTEM_FILE "/etc/agentd/agentd.conf"

static void setting_fini(struct setting *s)
{
    free(s->section);
    free(s->key);
    free(s->value);
    free(s->origin);
}

static void free_argv(struct settings *s)
{
    for (int i = 0; s->argv && s->argv[i]; i++)
        free(s->argv[i]);
    free(s->argv);
    s->argv = NULL;
    s->argc = 0;
}

void settings_fini(struct settings *s)
{
    for (size_t i = 0; i < s->n; i++)
        setting_fini(&s->list[i]);
    free(s->list);
    free_argv(s);
    *s = (struct settings){0};
}

/* ---- files ------------------------------------------------------------------------ */

static enum err add(struct settings *s, const char *section, const char *key, const char *value,
                    const char *path, unsigned line, struct error *e)
{
    if (s->n == SETTINGS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d settings", SETTINGS_MAX);
    struct setting *list = realloc(s->list, (s->n + 1) * sizeof(*list));
    if (!list)
        return err_set(e, ERR_NOMEM, "settings");
    s->list = list;
    struct setting *x = &list[s->n];
    size_t cap = strlen(path) + 16;
    *x = (struct setting){strdup(section), strdup(key), strdup(value), malloc(cap)};
    if (!x->section || !x->key || !x->value || !x->origin) {
        setting_fini(x);
        return err_set(e, ERR_NOMEM, "settings");
    }
    snprintf(x->origin, cap, "%s:%u", path, line);
    s->n++;
    return OK;
}

/* Cuts white space off both ends, in place. */
static char *trim(char *s)
{
    size_t n;

    while (isspace((unsigned char)*s))
        s++;
    n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1]))
        s[--n] = '\0';
    return s;
}

static bool is_name(const char *s)
{
    return *s && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(s);
}

static enum err take_line(struct settings *s, char *text, char section[64], const char *path,
                          unsigned line, struct error *e)
{
    char *at = trim(text), *equals;
    size_t n = strlen(at);

    if (n == 0 || *at == '#')
        return OK;
    if (*at == '[') {
        at[n - 1] = at[n - 1] == ']' ? '\0' : at[n - 1];
        if (strlen(at) == n || !is_name(at + 1) || n > 60)
            return err_set(e, ERR_INVAL, "%s:%u: want [section]", path, line);
        snprintf(section, 64, "%s", at + 1);
        return OK;
    }
    if (!(equals = strchr(at, '=')))
        return err_set(e, ERR_INVAL, "%s:%u: want key = value", path, line);
    *equals = '\0';
    const char *key = trim(at), *value = trim(equals + 1);
    if (!is_name(key))
        return err_set(e, ERR_INVAL, "%s:%u: \"%.40s\" is no key", path, line, key);
    if (!section[0])
        return err_set(e, ERR_INVAL, "%s:%u: before the first [section]", path, line);
    return add(s, section, key, value, path, line, e);
}

enum err settings_read_file(struct settings *s, const char *path, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(SETTINGS_MAX_BYTES);
    char section[64] = "";
    enum err rc = fs_read_file(path, &text, e);

    if (rc == ERR_NOTFOUND)
        return OK;
    if (rc)
        return rc;
    if (text.len && memchr(text.data, '\0', text.len))
        return err_set(e, ERR_INVAL, "%s: holds a NUL byte", path);
    char *line = text.len ? (char *)text.data : NULL;
    for (unsigned n = 1; line && !rc; n++) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        rc = take_line(s, line, section, path, n, e);
        line = end ? end + 1 : NULL;
    }
    return rc;
}

enum err settings_load(struct settings *out, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = settings_read_file(out, SYSTEM_FILE, e);

    if (rc)
        return rc;
    rc = fs_place_path(FS_CONFIG, "agentd/agentd.conf", path, sizeof(path), e);
    if (rc == ERR_NOTFOUND)
        return OK; /* no home: no file of the user's */
    return rc ? rc : settings_read_file(out, path, e);
}

/* ---- rules ------------------------------------------------------------------------ */

static enum err add_rule(struct rules *r, const struct setting *x, struct error *e)
{
    char text[RULE_MAX_BYTES + 16];
    bool known = !strcmp(x->key, "allow") || !strcmp(x->key, "ask") || !strcmp(x->key, "deny");
    int n = snprintf(text, sizeof(text), "%s %s", x->key, x->value);

    if (!known)
        return err_set(e, ERR_INVAL, "[rules] has no \"%.40s\", only allow, ask and deny",
                       x->key);
    if (n < 0 || (size_t)n >= sizeof(text))
        return err_set(e, ERR_LIMIT, "a rule of more than %zu bytes", RULE_MAX_BYTES);
    return rules_add(r, text, e);
}

enum err settings_rules(const struct settings *s, struct rules **out, struct error *e)
{
    struct rules *r = rules_new();
    enum err rc = r ? OK : err_set(e, ERR_NOMEM, "rules");

    for (size_t i = 0; !rc && i < s->n; i++) {
        const struct setting *x = &s->list[i];
        if (strcmp(x->section, SETTINGS_RULES) == 0 && (rc = add_rule(r, x, e)))
            err_wrap(e, rc, "%s", x->origin);
    }
    if (rc)
        rules_free(r);
    else
        *out = r;
    return rc;
}

/* ---- as options ------------------------------------------------------------------- */

static const struct option *find_option(const struct command *c, const char *key)
{
    for (size_t i = 0; i < c->own.n + c->common.n; i++) {
        const struct option *o =
            i < c->own.n ? &c->own.options[i] : &c->common.options[i - c->own.n];
        if (strcmp(o->name, key) == 0)
            return o;
    }
    return NULL;
}

static enum err push(struct settings *s, char *word, struct error *e)
{
    char **argv = word ? realloc(s->argv, ((size_t)s->argc + 2) * sizeof(*argv)) : NULL;

    if (!argv) {
        free(word);
        return err_set(e, ERR_NOMEM, "settings");
    }
    s->argv = argv;
    argv[s->argc++] = word;
    argv[s->argc] = NULL;
    return OK;
}

static enum err push_option(struct settings *s, const struct option *o, const char *value,
                            const char *origin, struct error *e)
{
    bool is_flag = o->kind == OPTION_FLAG || o->kind == OPTION_COUNT;
    size_t cap = strlen(o->name) + strlen(value) + 4;
    char *word;

    if (is_flag && strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return err_set(e, ERR_INVAL, "%s: %s is true or false, not \"%.40s\"", origin, o->name,
                       value);
    if (is_flag && value[0] == 'f')
        return OK;
    if ((word = malloc(cap)))
        snprintf(word, cap, is_flag ? "--%s" : "--%s=%s", o->name, value);
    return push(s, word, e);
}

/* The value that wins among the files; NULL: none. */
static const struct setting *find_setting(const struct settings *s, const char *section,
                                          const char *key)
{
    for (size_t i = s->n; i > 0; i--)
        if (strcmp(s->list[i - 1].section, section) == 0 &&
            strcmp(s->list[i - 1].key, key) == 0)
            return &s->list[i - 1];
    return NULL;
}

static enum err push_section(struct settings *s, const struct command *c, const char *section,
                             struct error *e)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct setting *x = &s->list[i];
        if (strcmp(x->section, section) != 0 || find_setting(s, section, x->key) != x)
            continue;
        const struct option *o = find_option(c, x->key);
        if (!o)
            return err_set(e, ERR_INVAL, "%s: [%s] has no \"%.40s\"", x->origin, section,
                           x->key);
        enum err rc = push_option(s, o, x->value, x->origin, e);
        if (rc)
            return rc;
    }
    return OK;
}

static enum err push_environment(struct settings *s, const struct option_table *t,
                                 struct error *e)
{
    for (size_t i = 0; i < t->n; i++) {
        char name[80] = "AGENTD_";
        size_t n = strlen(name);
        for (const char *p = t->options[i].name; *p && n < sizeof(name) - 1; p++)
            name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        name[n] = '\0';
        const char *value = getenv(name);
        enum err rc = value && *value ? push_option(s, &t->options[i], value, name, e) : OK;
        if (rc)
            return rc;
    }
    return OK;
}

enum err settings_argv(struct settings *s, const struct command *c, const char *const *sections,
                       bool with_environment, int argc, char **argv, struct error *e)
{
    enum err rc;

    free_argv(s);
    if ((rc = push(s, strdup(argv[0]), e)))
        return rc;
    for (size_t i = 0; sections[i] && !rc; i++)
        rc = push_section(s, c, sections[i], e);
    if (!rc && with_environment)
        rc = push_environment(s, c->common.n ? &c->common : &c->own, e);
    for (int i = 1; i < argc && !rc; i++)
        rc = push(s, strdup(argv[i]), e);
    return rc;
}
