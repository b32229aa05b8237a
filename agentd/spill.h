/* Whole outputs of tools on disk: a folder per session (its id), a file per call. What becomes
 * of them when the session goes. Any thread. */
#ifndef AGENTD_SPILL_H
#define AGENTD_SPILL_H

#include <stdbool.h>

#include "base/err.h"

/* Removes the folder of a session; with `overwrite`, its files hold zeros on disk first. A
 * folder that is not there is fine. What cannot be removed is an error, after the rest was. */
NODISCARD enum err spill_remove(const char *spill_dir, const char *session, bool overwrite,
                                struct error *e);

#endif
