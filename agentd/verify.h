/* session/verify: a fresh process of our own binary opens the same model and computes the
 * session's tape from token 0 without ever stopping; digests and row counts of every segment
 * are compared with those on the tape. Loop thread. */
#ifndef AGENTD_VERIFY_H
#define AGENTD_VERIFY_H

#include "agentd/live.h"
#include "agentd/peer.h"

/* Answers {equal, segments, rows, tokens, ms, firstMismatch?} when the process has ended. The
 * session must be idle. */
void verify_begin(struct request *r, struct live *s);

#endif
