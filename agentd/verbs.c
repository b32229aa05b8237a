#include "agentd/verbs.h"

#include <stdio.h>

int verb_exit_code(enum err rc)
{
    switch (rc) {
    case OK:
        return EXIT_DONE;
    case ERR_INVAL:
        return EXIT_USAGE;
    case ERR_NOTFOUND:
        return EXIT_NOTFOUND;
    case ERR_CONFLICT:
    case ERR_BUSY:
        return EXIT_CONFLICT;
    case ERR_DENIED:
        return EXIT_DENIED;
    case ERR_LIMIT:
        return EXIT_LIMIT;
    case ERR_CORRUPT:
        return EXIT_CORRUPT;
    case ERR_FORMAT:
    case ERR_UNSUPPORTED:
    case ERR_GPU:
        return EXIT_MODEL;
    case ERR_CANCELLED:
        return EXIT_INTERRUPTED;
    case ERR_TIMEOUT:
        return EXIT_TIMEOUT;
    case ERR_CLOSED:
        return EXIT_NO_DAEMON;
    case ERR_NOMEM:
    case ERR_IO:
        break;
    }
    return EXIT_FAILED;
}

int verb_fail(const char *verb, enum err rc, const struct error *e)
{
    fprintf(stderr, "agentd %s: %s\n", verb, e && e->msg[0] ? e->msg : err_name(rc));
    return verb_exit_code(rc);
}
