/* A turn: from a prompt to idle, through as many model steps and tool calls as it takes.
 *
 * The turn machine runs on the loop thread as small steps; each is the reaction to one finished
 * job or one engine event, and ends by submitting the next job. Phases, with the public state
 * and the file that holds the reaction:
 *
 *     ACCEPT   queued      turn.c          the prompt's tape commit is under way
 *     RESTORE  queued      turn_restore.c  the session's state is on its way into memory
 *     FEED     prefill     turn_feed.c     what the tape has past the computed position
 *     RUN      generating  turn_run.c      the model writes, or forced tokens are taken
 *     STEP     generating  turn_step.c     the run's tape commit, calls included
 *     TOOLS    tool        turn_tools.c    calls run, wait for an approval or a client (state
 *                                          requires_action); turn_calls.c decides which
 *     COMPACT  tool        turn_compact.c  they do not fit: a summary is asked for (FEED, RUN
 *                                          and STEP write it), and the tape begins anew
 *     RESULTS  tool        turn_tools.c    the tape commit of the results, then FEED again
 *     END      any         turn.c          the tape commit that ends it early
 *     OVER     idle
 *
 * Durable barriers: every arrow that leads on passes a tape commit that is waited for (ACCEPT,
 * STEP, RESULTS), a tool's body starts only after its started record is in one, and its result
 * is in one before it is shown. So the process may die anywhere: turn_recover.c finds the phase
 * again from the tape alone. */
#ifndef AGENTD_TURN_H
#define AGENTD_TURN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "agentd/live.h"

struct daemon;
struct engine_note;
struct subscription;

/* session/prompt: checks params, commits the prompt and answers {turnId, seq} when it is
 * durable. A busy session queues it. */
void turn_prompt(struct request *r, struct live *s);
/* session/steer: text for the turn in work; without one, a prompt. */
void turn_steer(struct request *r, struct live *s);
/* Stops the turn wherever it is, and withdraws what is queued behind it; or (turn given) does
 * so with that one only. What was computed stays. False: there was nothing. */
bool turn_cancel(struct live *s, const char *turn);
/* Whether this turn is in work or queued. */
bool turn_is_pending(const struct live *s, const char *turn);

/* At start: turns that were cut by the end of the process go on. One store job; turns begin
 * from its completion. */
void turns_recover(struct daemon *d);

/* approval/resolve and tool/result. ERR_NOTFOUND: no such open call; ERR_CONFLICT: answered. */
enum turn_outcome { OUTCOME_ONCE, OUTCOME_SESSION, OUTCOME_REJECT };
NODISCARD enum err turn_resolve_approval(struct daemon *d, const char *approval_id,
                                         enum turn_outcome outcome, struct error *e);
NODISCARD enum err turn_tool_result(struct live *s, const char *call_id, const void *bytes,
                                    size_t n, bool is_error, struct error *e);
/* [{approvalId, sessionId, callId, name, arguments}...] of all sessions. */
json_t *turn_approvals(const struct daemon *d);

/* ---- called by the rest of the loop ----------------------------------------------- */

/* engine_listener.event; arg is the daemon. */
void turn_on_engine(const struct engine_note *n, void *arg);
/* A state commit of the turn's session is over. */
void turn_on_saver(struct turn *t);
/* Sends to the store what the tape does not have yet: sampled ids, digests of complete
 * segments. */
void turn_flush(struct turn *t);
/* Tells a new reader what is not in the events: text so far of items to come, approvals that
 * are due. */
void turn_repeat_news(const struct turn *t, struct subscription *to);
/* A durable event of type error; the turn, if any, goes on. */
void turn_say_error(struct live *s, const struct error *e);
/* Bytes of a state commit, for the ledger of the turn (or of the last one). */
void turn_count_written(struct live *s, uint64_t bytes);
/* By a timer, every second: who has heard no session/progress for 5 s hears the last one again,
 * or, where nothing is counted, the state with total 0. A step of the model that takes long
 * calls nobody back; so a silent daemon is a dead one. */
void turn_tick(struct turn *t);
/* End of the input segment in work, 0: none. */
uint64_t turn_input_end(const struct turn *t);
/* The process is about to end: tools are stopped, nothing is committed for them. */
void turn_abandon(struct turn *t);

#endif
