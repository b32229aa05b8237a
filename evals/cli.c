#include "evals/cli.h"

#include <stdint.h>

#include "base/err.h"

static int exit_code(enum err rc)
{
    switch (rc) {
    case OK:
        return EVALS_DONE;
    case ERR_INVAL:
        return EVALS_USAGE;
    case ERR_FORMAT:
    case ERR_CORRUPT:
        return EVALS_CORRUPT;
    case ERR_LIMIT:
        return EVALS_LIMIT;
    case ERR_NOTFOUND:
        return EVALS_NOTFOUND;
    case ERR_CONFLICT:
    case ERR_BUSY:
        return EVALS_CONFLICT;
    case ERR_DENIED:
        return EVALS_DENIED;
    case ERR_CANCELLED:
        return EVALS_INTERRUPTED;
    case ERR_CLOSED:
        return EVALS_NO_DAEMON;
    case ERR_TIMEOUT:
        return 124;
    case ERR_GPU:
        return EVALS_MODEL;
    case ERR_NOMEM:
    case ERR_IO:
    case ERR_UNSUPPORTED:
        break;
    }
    return EVALS_FAILED;
}

int evals_fail(const struct command *c, enum err rc, const struct error *e)
{
    fprintf(stderr, "agentd-evals %s: %s\n", c->name, e->msg);
    return exit_code(rc);
}

int evals_fail_files(const struct command *c, enum err rc, const struct error *e)
{
    int code = evals_fail(c, rc, e);
    return rc == ERR_CONFLICT ? EVALS_PROVENANCE : code;
}

int evals_parse(const struct command *c, int argc, char **argv, void *values,
                struct options *out)
{
    struct error e = {0};
    enum err rc = options_parse(c, argc, (const char *const *)(uintptr_t)argv, values, out, &e);
    if (rc)
        return evals_fail(c, rc, &e);
    if (!out->help)
        return EVALS_GO_ON;
    options_usage(c, "agentd-evals", stdout);
    return EVALS_DONE;
}
