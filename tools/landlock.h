/* Landlock: an allow list of paths for this process and all that it will ever start.
 *
 * What it covers depends on the kernel's ABI: 1 reads, writes, execution, making and removing
 * by path; 2 links and renames across folders; 3 truncation; 4 TCP; 5 device ioctls; 6 abstract
 * unix sockets and signals to the outside. It does not cover chmod, chown, times and pathname
 * sockets (connect, before ABI 9): mounts.h and seccomp.h are for those. From ABI 1 on it also
 * forbids mounting, and ptrace of processes outside. Process-wide; no way back. */
#ifndef TOOLS_LANDLOCK_H
#define TOOLS_LANDLOCK_H

#include <stdbool.h>

#include "base/err.h"
#include "tools/launch.h"

/* The kernel's ABI, 0 when Landlock is not there. */
int landlock_abi(void);

struct landlock_rules {
    const char *scratch; /* private writable folder; NULL: none */
    bool deny_tcp;       /* no TCP at all (where the ABI can) */
    bool strict_etc;     /* in /etc only what everybody may read: file modes do not bind us */
    bool writable_shm;   /* /dev/shm is private */
    bool resolver;       /* names are looked up: /etc/resolv.conf may lead into /run */
};

/* Restricts this process to: system folders (read, execute); the workspace (read, execute, and
 * write in workspace-write mode); spill folder and read_paths (read, execute); scratch (all);
 * the harmless devices. Needs no_new_privs. ERR_UNSUPPORTED without Landlock; any other error
 * means that nothing is restricted. */
NODISCARD enum err landlock_restrict(const struct launch *l, const struct landlock_rules *rules,
                                     struct error *e);

#endif
