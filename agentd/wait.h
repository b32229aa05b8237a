/* session/wait: requests that wait until a session is idle or somebody has to act.
 *
 * The answer {state, reason, text, ledger, resume?} is read from the tape, so that it is the
 * same after a restart: text and ledger are those of the newest turn. Loop thread. */
#ifndef AGENTD_WAIT_H
#define AGENTD_WAIT_H

#include "agentd/live.h"

/* Waits until the session is idle or, with a turn, until that turn has ended, whatever comes
 * behind it; either way not past the moment when somebody has to act. Answers at once if there
 * is nothing to wait for. timeout_ms < 0: no deadline. */
void wait_begin(struct request *r, struct live *s, const char *turn, int64_t timeout_ms);
/* A turn has ended or the state has changed: those who waited for it are answered. */
void wait_wake(struct live *s);

#endif
