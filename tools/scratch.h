/* The private folder of one run: /tmp/agentd-tool.PID.RANDOM, PID being its launcher. */
#ifndef TOOLS_SCRATCH_H
#define TOOLS_SCRATCH_H

#include "base/err.h"

#define SCRATCH_PATH_BYTES 48

/* Makes the folder of this process, mode 0700. */
NODISCARD enum err scratch_make(char path[SCRATCH_PATH_BYTES], struct error *e);
/* Removes it with all that a tool put there. Every process that could interfere must be dead.
 */
void scratch_remove(const char *path);
/* Removes those of this user whose launchers are dead: they were killed before they could. */
void scratch_sweep(void);

#endif
