/* State commits of live sessions: the engine's thread copies what is new, the store's thread
 * writes it, the loop and the model go on meanwhile.
 *
 * One at a time per session. Asking while one is under way makes another follow, at the
 * position the sequence has then; until its copy is taken, saver_holds_input() is true and the
 * turn must not queue new input, so that a step end's state commit covers that step end. State
 * never gets ahead of the tape: ids up to the copied position are sent to the store before it.
 *
 * A store that cannot take state (disk full, I/O error) is reported once per session; the
 * session goes on without. Loop thread. */
#ifndef AGENTD_SAVER_H
#define AGENTD_SAVER_H

#include <stdbool.h>
#include <stdint.h>

struct daemon;
struct live;

/* Begins a state commit if there is anything new. segment_end: end of the input segment in
 * work, 0 for none. */
void saver_start(struct live *s, uint64_t segment_end);
/* The session drops its sequence: what is under way is of that one, not of the next. */
void saver_forget_seq(struct live *s);
bool saver_holds_input(const struct live *s);
/* State commits under way, of all sessions. */
uint32_t saver_count(const struct daemon *d);

#endif
