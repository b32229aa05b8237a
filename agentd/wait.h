/* session/wait: requests that wait until a session is idle or somebody has to act.
 *
 * The answer {state, reason, text, ledger, resume?} is read from the tape, so that it is the
 * same after a restart: text and ledger are those of the newest turn. Loop thread. */
#ifndef AGENTD_WAIT_H
#define AGENTD_WAIT_H

#include "agentd/live.h"

/* Answers at once if there is nothing to wait for. timeout_ms < 0: no deadline. */
void wait_begin(struct request *r, struct live *s, int64_t timeout_ms);
/* The session came to rest: everybody who waits is answered. */
void wait_wake(struct live *s);

#endif
