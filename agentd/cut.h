/* Rewind and compaction: a session goes on from an earlier place, or from the beginning with a
 * summary, and what it had is kept as a session of its own ("NAME.1", "NAME.2", ...), reachable
 * by name like any other.
 *
 * A cut is one store job on an idle session, after its state commits. While it is under way
 * prompts queue and nobody waits in vain: session/wait answers behind it. Readers keep their
 * place, or are set back to the cut, and are told by the notification `session/cut`. */
#ifndef AGENTD_CUT_H
#define AGENTD_CUT_H

#include <stdint.h>

#include "agentd/live.h"

struct request;

/* session/rewind {id, toSeq} -> {id, seq, tokens, kept:{id, name}}. */
void cut_rewind(struct request *r, struct live *s);
/* session/compact {id, forced?} -> as session/prompt: a turn that writes a summary, and then
 * the tape begins anew with it. */
void cut_compact(struct request *r, struct live *s);
/* The same because the next prompt would not fit; false if it would, or if nothing would help.
 * The session is idle. */
bool cut_makes_room(struct live *s, size_t prompt_bytes);
/* That turn is over. */
void cut_restart(struct live *s, const char *summary);
/* A state commit of the session is over. */
void cut_on_saver(struct live *s);
/* At the end of the process. */
void cut_drop(struct live *s);

#endif
