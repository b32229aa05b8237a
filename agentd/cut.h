/* Rewind and compaction: a session goes on from an earlier place, or from the beginning with a
 * summary, and what it had is kept as a session of its own ("NAME.1", "NAME.2", ...), reachable
 * by name like any other. turn_compact.c does the same in the middle of a turn.
 *
 * A cut is one store job on an idle session, after its state commits. While it is under way
 * prompts queue and nobody waits in vain: session/wait answers behind it. Readers keep their
 * place, or are set back to the cut, and are told by the notification `session/cut`. */
#ifndef AGENTD_CUT_H
#define AGENTD_CUT_H

#include <stdint.h>

#include <jansson.h>

#include "agentd/live.h"

struct daemon;
struct request;

/* session/rewind {id, toSeq} -> {id, seq, tokens, kept:{id, name}}. */
void cut_rewind(struct request *r, struct live *s);
/* session/compact {id, forced?} -> as session/prompt: a turn that writes a summary, and then
 * the tape begins anew with it. */
void cut_compact(struct request *r, struct live *s);
/* The same because the next prompt would not fit; false if it would, or if nothing would help.
 * The session is idle. */
bool cut_makes_room(struct live *s, size_t prompt_bytes);
/* The session that keeps what was before. */
struct cut_kept {
    char id[SESSION_ID_CAP], name[SESSION_NAME_CAP]; /* "": not known */
};
/* The session goes on from the beginning, with that summary; the turn that wrote it is over, or
 * waits for `then` (NULL: nobody does), which gets OK or why everything is as it was, and is to
 * tell readers by cut_item(). */
typedef void cut_fn(struct live *s, enum err rc, const struct cut_kept *kept,
                    const struct error *e);
void cut_restart(struct live *s, const char *summary, cut_fn *then);
/* The note in the log: `was` tokens became a summary, and where they are. To be decref'd; NULL
 * when out of memory. */
json_t *cut_item(const char *id, uint64_t was, const struct cut_kept *kept);
/* Tokens of the context that no ordinary run takes, so that a summary can still be asked for
 * and written. */
uint64_t cut_summary_room(const struct daemon *d);
/* Tokens that are kept for what a turn has yet to write, `budget` at most. */
uint64_t cut_answer_room(const struct daemon *d, uint64_t budget);
/* A state commit of the session is over. */
void cut_on_saver(struct live *s);
/* At the end of the process. */
void cut_drop(struct live *s);

#endif
