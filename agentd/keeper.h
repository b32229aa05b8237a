/* Runs of gc in the daemon: one step at a time on the store's thread, each behind whatever
 * waits there already, so that no commit of a turn waits for more than a step. Loop thread. */
#ifndef AGENTD_KEEPER_H
#define AGENTD_KEEPER_H

#include "agentd/peer.h"
#include "sessions/gc.h"

struct daemon;

/* Answers r with what the run gave back, or its error. */
void keeper_run(struct request *r, enum gc_mode mode);
/* The same, with `fields` (taken) added to the answer. */
void keeper_run_with(struct request *r, enum gc_mode mode, json_t *fields);
/* Space is short: begins a run that evicts, unless one is under way. */
void keeper_evict(struct daemon *d);

#endif
