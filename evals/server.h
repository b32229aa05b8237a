/* A daemon of the evals' own, in a folder of its own: started, stopped, killed, started again.
 */
#ifndef EVALS_SERVER_H
#define EVALS_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "agentd/client.h"
#include "base/fs.h"
#include "base/spawn.h"

struct server {
    char dir[FS_PATH_BYTES], socket[CLIENT_PATH_BYTES], store[FS_PATH_BYTES];
    char log[FS_PATH_BYTES];
    const char *model, *script; /* one of them; script: "script:FILE" */
    const char *extra[8];       /* more options of `serve`; NULL ends */
    int wake_fd;                /* > 0: calls end with ERR_CANCELLED once it is readable */
    struct spawn process;
    struct client *c; /* NULL: not connected */
    uint64_t n_starts;
};

#define SERVER_INIT                                                                            \
    {                                                                                          \
        .process = SPAWN_INIT                                                                  \
    }

/* Makes the folder in `parent` (NULL: TMPDIR, else /tmp). Nothing runs yet. */
NODISCARD enum err server_make(struct server *s, const char *parent, struct error *e);
/* Starts `agentd serve` and connects; waits up to 60 s for it. ERR_IO: it ended; the message
 * has the last line of its log. ERR_CANCELLED: wake_fd. */
NODISCARD enum err server_start(struct server *s, struct error *e);
/* A connection after the last one broke. */
NODISCARD enum err server_connect(struct server *s, struct error *e);
/* SIGTERM and its clean end. ERR_CORRUPT: another exit code than 0. */
NODISCARD enum err server_stop(struct server *s, struct error *e);
/* SIGKILL, and reaps. */
NODISCARD enum err server_kill(struct server *s, struct error *e);
/* Kills what runs and removes the folder. */
void server_fini(struct server *s);

#endif
