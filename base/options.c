#include "base/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ----------------------------------------------------------------------------- */

enum err options_parse_int(const char *s, int64_t min, int64_t max, int64_t *out,
                           struct error *e)
{
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    bool digits = isdigit((unsigned char)*s) || (*s == '-' && isdigit((unsigned char)s[1]));
    if (!digits || *end)
        return err_set(e, ERR_INVAL, "want a whole number, is \"%.60s\"", s);
    if (errno == ERANGE || v < min || v > max)
        return err_set(e, ERR_INVAL, "want %lld..%lld, is %.60s", (long long)min,
                       (long long)max, s);
    *out = v;
    return OK;
}

enum err options_parse_bytes(const char *s, uint64_t *out, struct error *e)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (!isdigit((unsigned char)*s) || (*end && (!unit || end[1])))
        return err_set(e, ERR_INVAL, "want bytes such as 4096, 64K, 16M, 2G, is \"%.60s\"", s);
    unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    if (errno == ERANGE || v > UINT64_MAX >> shift)
        return err_set(e, ERR_LIMIT, "%.60s: more bytes than 64 bits hold", s);
    *out = v << shift;
    return OK;
}

static enum err parse_float(const struct option *o, const char *s, double *out, struct error *e)
{
    char *end;
    double v = strtod(s, &end);
    if (end == s || *end || !isfinite(v) || isspace((unsigned char)*s))
        return err_set(e, ERR_INVAL, "want a number, is \"%.60s\"", s);
    bool limited = o->min || o->max;
    if (limited && (v < (double)o->min || v > (double)o->max))
        return err_set(e, ERR_INVAL, "want %lld..%lld, is %.60s", (long long)o->min,
                       (long long)o->max, s);
    *out = v;
    return OK;
}

static enum err parse_enum(const struct option *o, const char *s, int *out, struct error *e)
{
    char list[160];
    size_t n = 0;
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(o->choices[i], s) == 0) {
            *out = i;
            return OK;
        }
        if (n < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "",
                                  o->choices[i]);
    }
    return err_set(e, ERR_INVAL, "want one of %s, is \"%.60s\"", list, s);
}

static enum err parse_bytes(const struct option *o, const char *s, uint64_t *out,
                            struct error *e)
{
    uint64_t v;
    enum err rc = options_parse_bytes(s, &v, e);
    if (rc)
        return ERR_INVAL;
    if ((o->min || o->max) && (v < (uint64_t)o->min || v > (uint64_t)o->max))
        return err_set(e, ERR_INVAL, "want %lld..%lld bytes, is %.60s", (long long)o->min,
                       (long long)o->max, s);
    *out = v;
    return OK;
}

/* Parses `s` ("" for flags and counts) into the caller's struct. */
static enum err store(const struct option *o, const char *s, void *values, struct error *e)
{
    void *at = (char *)values + o->offset;
    int64_t max = o->min || o->max ? o->max : INT64_MAX;
    switch (o->kind) {
    case OPTION_FLAG:
        *(bool *)at = true;
        return OK;
    case OPTION_COUNT:
        ++*(int64_t *)at;
        return OK;
    case OPTION_STRING:
        *(const char **)at = s;
        return OK;
    case OPTION_INT:
        return options_parse_int(s, o->min, max, at, e);
    case OPTION_BYTES:
        return parse_bytes(o, s, at, e);
    case OPTION_FLOAT:
        return parse_float(o, s, at, e);
    case OPTION_ENUM:
        return parse_enum(o, s, at, e);
    }
    return err_set(e, ERR_INVAL, "unknown kind of option");
}

/* ---- finding ---------------------------------------------------------------------------- */

static const struct option *option_at(const struct command *c, size_t i)
{
    return i < c->own.n ? &c->own.options[i] : &c->common.options[i - c->own.n];
}

static size_t n_options(const struct command *c)
{
    return c->own.n + c->common.n;
}

/* Index of the option with this long name, or n_options. */
static size_t find_name(const struct command *c, const char *name, size_t len)
{
    size_t i = 0;
    while (i < n_options(c) && (strlen(option_at(c, i)->name) != len ||
                                memcmp(option_at(c, i)->name, name, len) != 0))
        i++;
    return i;
}

static size_t find_letter(const struct command *c, char letter)
{
    size_t i = 0;
    while (i < n_options(c) && option_at(c, i)->letter != letter)
        i++;
    return i;
}

static bool takes_value(const struct option *o)
{
    return o->kind != OPTION_FLAG && o->kind != OPTION_COUNT;
}

bool options_has(const struct command *c, const struct options *o, const char *name)
{
    size_t i = find_name(c, name, strlen(name));
    assert(i < n_options(c));
    return o->seen >> i & 1;
}

/* ---- the command line ------------------------------------------------------------------- */

struct parse {
    const struct command *c;
    const char *const *argv;
    int argc, at;
    void *values;
    struct options *out;
};

/* Takes option i with the value that stands behind it, or the next word. */
static enum err take(struct parse *p, size_t i, const char *inline_value, struct error *e)
{
    const struct option *o = option_at(p->c, i);
    if (inline_value && !takes_value(o))
        return err_set(e, ERR_INVAL, "--%s takes no value", o->name);
    const char *value = inline_value ? inline_value : "";
    if (takes_value(o) && !inline_value) {
        if (p->at + 1 >= p->argc)
            return err_set(e, ERR_INVAL, "--%s: missing %s", o->name, o->value_name);
        value = p->argv[++p->at];
    }
    enum err rc = store(o, value, p->values, e);
    if (rc)
        return err_wrap(e, rc, "--%s", o->name);
    p->out->seen |= UINT64_C(1) << i;
    return OK;
}

static enum err take_long(struct parse *p, const char *word, struct error *e)
{
    const char *name = word + 2;
    size_t len = strcspn(name, "=");
    size_t i = find_name(p->c, name, len);
    if (i == n_options(p->c))
        return err_set(e, ERR_INVAL, "unknown option \"--%.*s\"", (int)(len > 60 ? 60 : len),
                       name);
    return take(p, i, name[len] ? name + len + 1 : NULL, e);
}

/* -n VALUE, -nVALUE, and flags behind one dash. */
static enum err take_letters(struct parse *p, const char *word, struct error *e)
{
    for (const char *l = word + 1; *l; l++) {
        size_t i = find_letter(p->c, *l);
        if (i == n_options(p->c))
            return err_set(e, ERR_INVAL, "unknown option \"-%c\" in \"%.60s\"",
                           isprint((unsigned char)*l) ? *l : '?', word);
        if (takes_value(option_at(p->c, i)))
            return take(p, i, l[1] ? l + 1 : NULL, e);
        enum err rc = take(p, i, NULL, e);
        if (rc)
            return rc;
    }
    return OK;
}

static enum err take_arg(struct parse *p, const char *word, struct error *e)
{
    size_t max = p->c->max_args < OPTIONS_MAX_ARGS ? p->c->max_args : OPTIONS_MAX_ARGS;
    if (p->out->n_args == max)
        return err_set(e, ERR_INVAL, "unexpected argument \"%.60s\"", word);
    p->out->args[p->out->n_args++] = word;
    return OK;
}

static bool asks_help(int argc, const char *const *argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

static enum err check_complete(const struct parse *p, struct error *e)
{
    for (size_t i = 0; i < n_options(p->c); i++)
        if (option_at(p->c, i)->required && !(p->out->seen >> i & 1))
            return err_set(e, ERR_INVAL, "--%s %s is required", option_at(p->c, i)->name,
                           option_at(p->c, i)->value_name);
    if (p->out->n_args < p->c->min_args)
        return err_set(e, ERR_INVAL, "missing argument: want %s", p->c->args);
    return OK;
}

enum err options_parse(const struct command *c, int argc, const char *const *argv, void *values,
                       struct options *out, struct error *e)
{
    assert(n_options(c) <= 64);
    *out = (struct options){.help = asks_help(argc, argv)};
    if (out->help)
        return OK;
    struct parse p = {c, argv, argc, 1, values, out};
    bool only_args = false;
    for (; p.at < argc; p.at++) {
        const char *word = argv[p.at];
        enum err rc = OK;
        if (!only_args && strcmp(word, "--") == 0)
            only_args = true;
        else if (only_args || word[0] != '-' || word[1] == '\0')
            rc = take_arg(&p, word, e);
        else
            rc = word[1] == '-' ? take_long(&p, word, e) : take_letters(&p, word, e);
        if (rc)
            return rc;
    }
    return check_complete(&p, e);
}

/* ---- help ------------------------------------------------------------------------------- */

static void print_option(const struct option *o, FILE *f)
{
    char left[64], letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, takes_value(o) ? " " : "",
             takes_value(o) ? o->value_name : "");
    fprintf(f, "  %-28s %s", left, o->help);
    for (int i = 0; o->kind == OPTION_ENUM && o->choices[i]; i++)
        fprintf(f, "%s%s", i ? " | " : ": ", o->choices[i]);
    fputs(o->required ? " (required)\n" : "\n", f);
}

void options_usage(const struct command *c, const char *program, FILE *f)
{
    fprintf(f, "usage: %s %s [options]%s%s\n\n%s\n\n", program, c->name, *c->args ? " " : "",
            c->args, c->summary);
    for (size_t i = 0; i < n_options(c); i++)
        print_option(option_at(c, i), f);
    fprintf(f, "  %-28s %s\n", "-h, --help", "this text");
}
