/* Settings from files and the environment, as options in front of those of the command line.
 *
 *     /etc/agentd/agentd.conf               read first
 *     $XDG_CONFIG_HOME/agentd/agentd.conf   wins over it
 *     AGENTD_NAME                           wins over both (sections serve and agentctl)
 *     --name                                wins over all
 *
 * A file has lines `[section]`, `key = value` and `# comment`. A section is the name of a
 * command ("serve", "run", ...) or "agentctl" for what all its verbs share; a key is the long
 * name of an option of that command, its value what stands behind it there (true or false for a
 * flag). A key that the command does not have is an error that names file and line.
 *
 * Section [rules] is not of that kind: its lines `allow = RULE`, `ask = RULE` and `deny = RULE`
 * (tools/rules.h) all count, of both files. */
#ifndef AGENTD_SETTINGS_H
#define AGENTD_SETTINGS_H

#include "base/err.h"
#include "base/options.h"

struct rules;

#define SETTINGS_RULES "rules"          /* the section whose lines all count */
#define SETTINGS_MAX 512                /* settings in all files */
#define SETTINGS_MAX_BYTES (256u << 10) /* of a file */

struct setting {
    char *section, *key, *value;
    char *origin; /* "PATH:LINE" */
};

struct settings {
    struct setting *list; /* the later wins */
    size_t n;
    char **argv; /* made by settings_argv */
    int argc;
};
void settings_fini(struct settings *s);

/* Reads the two files; one that is not there is empty. *out is zero before, and to be finished
 * also on failure. ERR_INVAL: "PATH:LINE: ..."; ERR_IO, ERR_LIMIT, ERR_NOMEM. */
NODISCARD enum err settings_load(struct settings *out, struct error *e);
/* One more file, wins over what was read before. */
NODISCARD enum err settings_read_file(struct settings *s, const char *path, struct error *e);

/* s->argv: argv[0], the options that the settings stand for, then the rest of argv (borrowed).
 * sections: NULL ends; the later win over the former. Environment variables count if
 * `with_environment`. ERR_INVAL: the command has no such option, or no such value of a flag. */
NODISCARD enum err settings_argv(struct settings *s, const struct command *c,
                                 const char *const *sections, bool with_environment, int argc,
                                 char **argv, struct error *e);

/* The approval rules of section [rules]: keys allow, ask and deny, each line counts. *out is
 * never NULL on OK. ERR_INVAL: "PATH:LINE: ...". */
NODISCARD enum err settings_rules(const struct settings *s, struct rules **out,
                                  struct error *e);

#endif
