/* The loop thread: accepts clients, watches the two workers, signals, and the clean end.
 *
 * The end (SIGTERM, SIGINT, daemon/shutdown): no new connections or requests; tools are killed
 * (their calls come back as "outcome unknown"); turns stay where they are, unfinished on the
 * tape, and go on at the next start; state that is not saved yet is; then loop_run() returns.
 */
#ifndef AGENTD_LOOP_H
#define AGENTD_LOOP_H

#include "agentd/daemon.h"

struct loop;

/* Sets up everything that needs the uv loop: engine and store threads exist already (in d). fd
 * listens; it is borrowed. */
NODISCARD enum err loop_new(struct daemon *d, int fd, struct loop **out, struct error *e);
/* Until the clean end. */
void loop_run(struct loop *l);
/* Closes connections and what else is open; turns and sessions are freed. The workers must have
 * ended. */
void loop_free(struct loop *l);

#endif
