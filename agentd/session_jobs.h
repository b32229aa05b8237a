/* Commands of a session that run in the background: started by the tool `run`, seen to by the
 * tool `jobs`.
 *
 * A job is a run of a tool (tools/tools.h) that outlives its call: sandboxed like any other,
 * with its own time limit, its output bounded and taken in all the time. It ends by itself, at
 * its limit, when it is killed, when its session is deleted, and with the daemon, however that
 * ends; not with the turn that started it. Jobs are not durable: a session that a later daemon
 * goes on with has none. A session with a job that runs stays live. Loop thread. */
#ifndef AGENTD_SESSION_JOBS_H
#define AGENTD_SESSION_JOBS_H

#include "base/buf.h"
#include "base/err.h"
#include "tools/tools.h"

#define SESSION_MAX_JOBS 8   /* that run */
#define SESSION_KEPT_JOBS 16 /* that have ended and can still be read */
#define DAEMON_MAX_JOBS 32   /* that run, of all sessions */
#define JOB_ID_CAP 8

struct live;
struct session_job;

/* Starts a call of `run` as a job; key: what its name is made from (a call's id). ERR_LIMIT
 * when there are too many, and the errors of tool_run_start. */
NODISCARD enum err session_job_start(struct live *s, const struct tool_call *call,
                                     const char *key, char id[JOB_ID_CAP], struct error *e);
/* One line for each job, oldest first. */
void session_jobs_list(const struct live *s, struct buf *out);
/* What it printed since it was last read, and a line that says how it stands. ERR_NOTFOUND. */
NODISCARD enum err session_job_read(struct live *s, const char *id, struct buf *out,
                                    struct error *e);
/* Whether it runs. ERR_NOTFOUND. */
NODISCARD enum err session_job_is_running(const struct live *s, const char *id, bool *running,
                                          struct error *e);
/* Kills it, if it runs; it has ended when a wait says so. */
void session_job_kill(struct live *s, const char *id);
/* Calls `then` once, later: when the job, which runs, has ended, or after wait_ms (0: no
 * limit). ERR_BUSY: somebody waits for it already. */
NODISCARD enum err session_job_wait(struct live *s, const char *id, uint32_t wait_ms,
                                    void (*then)(void *user), void *user, struct error *e);
/* Whoever waits with this `user` does not any more; `then` will not be called. */
void session_jobs_unwait(struct live *s, const void *user);

/* The session is being deleted: kills them all. */
void session_jobs_end(struct live *s);
/* At the end of the live session: kills what runs, waits for it, and forgets all. */
void session_jobs_free(struct live *s);

#endif
