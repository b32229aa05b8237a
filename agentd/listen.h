/* Where the daemon listens: placement, ownership and hand-over of the control socket.
 *
 * The socket itself is the truth, there is no PID file: if somebody answers at the path, a
 * daemon lives there and is left alone (ERR_CONFLICT); a socket that nobody answers is dead and
 * replaced. Both happen under flock on PATH.lock, so that two daemons that start together do
 * not replace each other. The folder is made 0700 if missing, must be ours (or root's) and
 * closed to the writing of others: a socket in bare /tmp is refused. The socket has mode 0600.
 *
 * Call before threads are started: the umask is changed for a moment. */
#ifndef AGENTD_LISTEN_H
#define AGENTD_LISTEN_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

#define LISTEN_PATH_BYTES 108 /* sun_path */

struct listen {
    int fd;         /* listening, non-blocking, close-on-exec; -1: none */
    bool inherited; /* from LISTEN_FDS: the path is somebody else's to remove */
    char path[LISTEN_PATH_BYTES];
    dev_t dev; /* of the socket file, to remove our own only */
    ino_t ino;
};

#define LISTEN_INIT                                                                            \
    {                                                                                          \
        .fd = -1                                                                               \
    }

/* Listens at `path`, or on descriptor 3 if LISTEN_PID and LISTEN_FDS name this process. Errors:
 * ERR_CONFLICT (a daemon answers there), ERR_LIMIT (path too long), ERR_DENIED (folder),
 * ERR_IO, ERR_INVAL (LISTEN_FDS is not one Unix stream socket). */
NODISCARD enum err listen_open(struct listen *l, const char *path, struct error *e);
/* Closes, and removes the file if it is still this one. */
void listen_close(struct listen *l);

/* Tells a service manager (NOTIFY_SOCKET) "READY=1" or "STOPPING=1". Without one: nothing. */
NODISCARD enum err listen_notify(const char *state, struct error *e);

#endif
