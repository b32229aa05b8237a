/* Ending every process that this one is responsible for. */
#ifndef TOOLS_REAP_H
#define TOOLS_REAP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Kills all descendants of the calling process (a child subreaper) and reaps them: stops them
 * first, so that none can fork away, then kills. *main_pid's status is stored if it is reaped
 * here. Counts those that died of it into *n_killed. False when some were left after 5 s. */
bool reap_descendants(pid_t main_pid, int *main_status, uint32_t *n_killed);

/* In process 1 of a PID namespace: kills and reaps all the others; returns how many had to be.
 */
uint32_t reap_namespace(void);

/* Parent of a process, 0 when it is gone. */
pid_t reap_parent(pid_t pid);

#endif
