/* A control group of its own for one run, where this process may make one: a limit of processes
 * (version 2 with the pids controller delegated, or version 1) and a kill that nothing escapes
 * (version 2). Absence is normal in containers and for plain users; nothing here is an error.
 */
#ifndef TOOLS_CGROUP_H
#define TOOLS_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cgroup {
    char v2[PATH_MAX];   /* folder in the unified tree, "" when there is none */
    char pids[PATH_MAX]; /* folder that has pids.max (may be the same), "" when there is none */
};

/* Makes what can be made, named after this process, and removes empty ones that dead launchers
 * left behind. */
void cgroup_open(struct cgroup *g);
/* Removes the folders; they must be empty of processes. False when one could not be removed. */
bool cgroup_close(struct cgroup *g);

/* Moves a process in. Trees that refuse it are given up (set to ""). */
void cgroup_add(struct cgroup *g, pid_t pid);
/* Limits the number of processes and threads. False when it is not in force. */
bool cgroup_limit(const struct cgroup *g, uint32_t n);
/* Kills every member (version 2 only) and waits until it is empty, 2 s at most. */
void cgroup_kill(const struct cgroup *g);

#endif
