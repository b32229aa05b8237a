/* The launcher's parent process: it starts the confined child, stays outside of the sandbox,
 * and answers for everything the child starts.
 *
 * It is a subreaper, so that no descendant can leave it by double fork or setsid; it kills all
 * of them when the tool's own process ends, when the control pipe hangs up, and when it fails.
 * With a PID namespace or a cgroup the kernel does that; otherwise they are found by their
 * parents in /proc, stopped and killed. */
#ifndef TOOLS_SUPERVISOR_H
#define TOOLS_SUPERVISOR_H

#include "tools/launch.h"

/* Runs one call to its end and reports on LAUNCH_STATUS_FD. Returns the exit status of the
 * launcher: 0 once a report was written. */
int supervise(const struct launch *l);

#endif
