#include "agentd/completion.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "agentd/verbs.h"

/* In single quotes: a quote ends them, stands for itself, and begins them again. */
static void print_quoted(const char *s, const char *also)
{
    for (; *s; s++)
        if (*s == '\'')
            fputs("'\\''", stdout);
        else
            printf("%s%c", strchr(also, *s) ? "\\" : "", *s);
}

static bool takes_value(const struct option *o)
{
    return o->kind != OPTION_FLAG && o->kind != OPTION_COUNT;
}

/* ---- zsh -------------------------------------------------------------------------- */

static void zsh_options(const struct option_table *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct option *o = &t->options[i];
        printf(" \\\n            '--%s%s[", o->name, takes_value(o) ? "=" : "");
        print_quoted(o->help, "[]:");
        fputs("]", stdout);
        if (takes_value(o)) {
            printf(":%s:", o->value_name);
            for (size_t k = 0; o->choices && o->choices[k]; k++)
                printf("%s%s", k ? " " : "(", o->choices[k]);
            fputs(o->choices ? ")" : "_files", stdout);
        }
        fputs("'", stdout);
    }
}

static void zsh_verbs(const struct completion *c)
{
    fputs("    verbs=(", stdout);
    for (size_t i = 0; i < c->n; i++) {
        printf("\n        '%s:", c->commands[i]->name);
        print_quoted(c->commands[i]->summary, ":");
        fputs("'", stdout);
    }
    printf("\n        %s)\n", c->words);
}

static int zsh(const struct completion *c)
{
    const char *p = c->program;

    printf("#compdef %s\n"
           "_%s() {\n"
           "    local -a verbs\n",
           p, p);
    zsh_verbs(c);
    printf("    if (( CURRENT == 2 )); then\n"
           "        _describe verb verbs\n"
           "        return\n"
           "    fi\n"
           "    local verb=$words[2]\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $verb in\n");
    for (size_t i = 0; i < c->n; i++) {
        printf("    %s)\n        _arguments", c->commands[i]->name);
        zsh_options(&c->commands[i]->own);
        zsh_options(&c->commands[i]->common);
        if (c->arguments)
            printf(" \\\n            '*:argument:($(%s 2>/dev/null))' ;;\n", c->arguments);
        else
            printf(" \\\n            '*:file:_files' ;;\n");
    }
    printf("    esac\n"
           "}\n"
           "compdef _%s %s\n",
           p, p);
    return EXIT_DONE;
}

/* ---- fish ------------------------------------------------------------------------- */

static void fish_options(const struct completion *c, const char *verb,
                         const struct option_table *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct option *o = &t->options[i];
        printf("complete -c %s -n '__fish_seen_subcommand_from %s' -l %s", c->program, verb,
               o->name);
        if (o->letter)
            printf(" -s %c", o->letter);
        if (takes_value(o))
            fputs(" -r", stdout);
        for (size_t k = 0; o->choices && o->choices[k]; k++)
            printf("%s%s", k ? " " : " -a '", o->choices[k]);
        fputs(o->choices ? "' -d '" : " -d '", stdout);
        print_quoted(o->help, "");
        fputs("'\n", stdout);
    }
}

static int fish(const struct completion *c)
{
    const char *p = c->program;

    if (c->arguments)
        printf("complete -c %s -f\n", p);
    printf("complete -c %s -n __fish_use_subcommand -f -a '%s'\n", p, c->words);
    for (size_t i = 0; i < c->n; i++) {
        const struct command *verb = c->commands[i];
        printf("complete -c %s -n __fish_use_subcommand -f -a %s -d '", p, verb->name);
        print_quoted(verb->summary, "");
        fputs("'\n", stdout);
        fish_options(c, verb->name, &verb->own);
        fish_options(c, verb->name, &verb->common);
    }
    if (c->arguments)
        printf("complete -c %s -n 'not __fish_use_subcommand' -a '(%s 2>/dev/null)'\n", p,
               c->arguments);
    return EXIT_DONE;
}

/* ---- bash ------------------------------------------------------------------------- */

static void bash_options(const struct option_table *t)
{
    for (size_t i = 0; i < t->n; i++)
        printf(" --%s", t->options[i].name);
}

static int bash(const struct completion *c)
{
    const char *p = c->program;

    printf("_%s() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} words=\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
           "        words='%s",
           p, c->words);
    for (size_t i = 0; i < c->n; i++)
        printf(" %s", c->commands[i]->name);
    printf("'\n    elif [ \"${cur#-}\" != \"$cur\" ]; then\n"
           "        case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < c->n; i++) {
        printf("        %s) words='--help", c->commands[i]->name);
        bash_options(&c->commands[i]->own);
        bash_options(&c->commands[i]->common);
        printf("' ;;\n");
    }
    printf("        esac\n");
    if (c->arguments)
        printf("    else\n"
               "        words=$(%s 2>/dev/null)\n",
               c->arguments);
    printf("    fi\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "}\n"
           "complete -o default -F _%s %s\n",
           p, p);
    return EXIT_DONE;
}

int completion_print(const struct completion *c, const char *shell)
{
    if (!strcmp(shell, "bash"))
        return bash(c);
    if (!strcmp(shell, "zsh"))
        return zsh(c);
    if (!strcmp(shell, "fish"))
        return fish(c);
    if (!strcmp(shell, "--help") || !strcmp(shell, "-h")) {
        printf("usage: %s completion bash|zsh|fish\n\n"
               "prints what that shell reads to complete %s's command lines\n",
               c->program, c->program);
        return EXIT_DONE;
    }
    fprintf(stderr, "%s completion: want bash, zsh or fish, is \"%.40s\"\n", c->program, shell);
    return EXIT_USAGE;
}
