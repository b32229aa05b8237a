/* The file tree as a tool sees it, inside a new mount namespace: everything read-only but the
 * workspace (in workspace-write mode) and the scratch folder; agentd's own folders and the
 * sockets of other services (/run) covered by empty ones; private /tmp and /dev/shm; its own
 * /proc.
 *
 * This closes what Landlock leaves open: chmod, chown and times outside the workspace, pathname
 * sockets, and the subtraction of a folder from an allowed one. */
#ifndef TOOLS_MOUNTS_H
#define TOOLS_MOUNTS_H

#include <stdbool.h>

#include "base/err.h"
#include "tools/launch.h"

struct mounts {
    bool read_only;    /* nothing outside workspace and scratch can be written or re-moded */
    bool hidden;       /* every path of launch.hidden is covered */
    bool private_tmp;  /* /tmp is the scratch folder */
    bool private_shm;  /* /dev/shm is private */
    bool private_proc; /* /proc shows this PID namespace only */
};

/* Changes the mounts of this process's new mount namespace, in a new PID namespace. Needs
 * CAP_SYS_ADMIN in it. `scratch` exists. `reads_confined`: Landlock will follow; otherwise the
 * homes of users and root's secrets in /etc are covered, too, as far as the workspace is not in
 * them. Fails only when the namespace cannot be made private or a hidden path cannot be
 * covered; what else is missing is said in *out. */
NODISCARD enum err mounts_apply(const struct launch *l, const char *scratch,
                                bool reads_confined, struct mounts *out, struct error *e);

#endif
