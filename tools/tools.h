/* What a model may call: a fixed registry of built-in tools, and runs of them in child
 * processes.
 *
 * A run never blocks its owner. tool_run_start() starts the launcher (build/agentd-tool), which
 * sandboxes itself and then either executes bash or runs the body of a file tool; the owner
 * polls three descriptors and one timer, calls tool_run_step() when any of them fires, and
 * takes the result when that says it is done:
 *
 *     if ((rc = tool_run_start(tools, &call, &run, &e)))
 *         ...e.msg is the text of an error result for the model
 *     poll tool_run_fds(run)        level-triggered, readable; each until its hang-up or done
 *     arm a timer: tool_run_wait_ms(run, now_ms)
 *     any of them fires:
 *         if (timer)
 *             tool_run_timeout(run, now_ms)
 *         if (tool_run_step(run, now_ms, &fresh))      fresh: new output bytes, or NULL
 *             tool_run_take(run, &result), stop polling, tool_run_free(run)
 *         else
 *             arm the timer again: tool_run_wait_ms(run, now_ms)
 *
 * Cancel at any time: tool_run_cancel(), then go on polling until done (bounded: the launcher
 * kills everything the tool started; should it hang, the timer path kills the launcher).
 * tool_run_free() of a run that is not done kills it and waits for it, 5 s at most.
 *
 * If the daemon dies in any way the launcher sees its control pipe close and kills the tool
 * with all its descendants. Unknown tool, bad arguments, missing permission and a sandbox that
 * cannot be built are results for the model, never errors of the daemon.
 *
 * A struct tools and its runs belong to one thread; `now_ms` is any monotonic millisecond
 * clock. */
#ifndef TOOLS_TOOLS_H
#define TOOLS_TOOLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum tool_mode {
    TOOL_MODE_READ_ONLY,       /* no writes but to a private scratch folder, no network */
    TOOL_MODE_WORKSPACE_WRITE, /* the default: writes inside the workspace, no network */
    TOOL_MODE_FULL_ACCESS      /* no confinement; limits, clean environment and kill remain */
};

/* "read-only", "workspace-write", "full-access"; ERR_INVAL names what was given. */
NODISCARD enum err tool_mode_parse(const char *s, enum tool_mode *out, struct error *e);
const char *tool_mode_name(enum tool_mode mode);

/* ---- registry: constant, sorted by name ---- */

enum tool_risk {
    TOOL_READS,    /* changes nothing: needs no approval under `ask` */
    TOOL_WRITES,   /* changes files of the workspace */
    TOOL_EXECUTES, /* runs whatever it is told */
    TOOL_FETCHES,  /* tells the network what it is told */
    TOOL_KEEPS     /* acts on the session itself, in the daemon: no process, no approval */
};

struct tool {
    const char *name;
    const char *description; /* for the model */
    const char *parameters;  /* JSON Schema, as JSON text */
    enum tool_risk risk;
};

/* All built-in tools in name order; *n gets their number. Static storage. */
const struct tool *tool_list(size_t *n);
/* NULL when there is no such tool. The name may be hostile bytes. */
const struct tool *tool_find(const char *name);
/* The OpenAI `function` objects {name, description, parameters} of the named tools as a JSON
 * array, sorted by name, doubles removed, same bytes on every call; n_names 0 is all of them,
 * those that fetch only if `may_fetch`. Keys are in this order when dumped with
 * JSON_PRESERVE_ORDER. ERR_NOTFOUND names an unknown tool, ERR_DENIED one that is off. */
NODISCARD enum err tool_functions(const char *const *names, size_t n_names, bool may_fetch,
                                  json_t **out, struct error *e);
/* Whether a model's call is well formed: the tool exists (ERR_NOTFOUND, with the names there
 * are) and `arguments` fits its schema (ERR_INVAL; see schema_check). The message is for the
 * model. A client-side tool is checked with schema_check() against its own declaration. */
NODISCARD enum err tool_check(const char *name, const json_t *arguments, struct error *e);

/* ---- policy, one for a daemon ---- */

struct tools_config {
    const char *launcher; /* path of agentd-tool; NULL: beside the running program */
    /* Files and folders no tool may reach in any mode that can prevent it: the control socket's
     * folder, the store, the key file. Absolute; need not exist; NULL-terminated list or NULL.
     */
    const char *const *hidden;
    /* More paths that sandboxed tools may read (toolchains in a home folder, say). As above. */
    const char *const *read_paths;
    uint32_t timeout_ms;       /* default limit of one run; 0: 120,000 */
    uint32_t max_timeout_ms;   /* the most a call may ask for; 0: 600,000 */
    uint32_t max_processes;    /* processes and threads of one run at once; 0: 512 */
    uint64_t output_bytes;     /* bytes of output kept for the model (head + tail); 0: 32,768 */
    uint64_t max_output_bytes; /* a run that writes more is killed; 0: 256 MiB */
    uint64_t max_file_bytes;   /* RLIMIT_FSIZE; 0: 4 GiB */
    uint32_t job_timeout_ms;   /* limit of a run in the background; 0: 3,600,000 */
    bool may_fetch;            /* http_fetch is there */
    /* Networks that http_fetch may ask although they are not public (base/http.h); for tests
     * against a server of their own. NULL-terminated list or NULL. */
    const char *const *fetch_networks;
    /* Layers to do without ("cgroup", "namespaces", "user_namespace", "landlock"), for tests of
     * the fallbacks. What is then too weak is refused as on a machine that does not have them.
     */
    const char *const *without;
};

struct tools;

/* Remembers the policy (strings are copied), and removes what runs of a dead daemon may have
 * left in /tmp. ERR_INVAL on a relative path. A launcher is not needed before the first run. */
NODISCARD enum err tools_open(const struct tools_config *config, struct tools **out,
                              struct error *e);
/* NULL is fine. All runs must have been freed. */
void tools_close(struct tools *t);
/* Whether there is a launcher, so that tools can run: ERR_NOTFOUND names where it is missing.
 * Looks at the disk each time. */
NODISCARD enum err tools_ready(const struct tools *t, struct error *e);
/* Whether http_fetch is there. */
bool tools_may_fetch(const struct tools *t);

/* What sandboxed runs have on this machine, found by starting the launcher once with a body
 * that does nothing, in `mode` with `workspace` (blocks, up to 5 s; for doctor and start-up).
 * *out gets the object described at tool_result.layers. ERR_DENIED with the reason when `run`
 * would refuse. */
NODISCARD enum err tools_probe(struct tools *t, enum tool_mode mode, const char *workspace,
                               json_t **out, struct error *e);

/* Whether process `pid` is this process's tool or a descendant of one (walks parents in /proc;
 * a tool cannot leave: its launcher is a subreaper). For refusing peers of the control socket.
 * A process that is gone counts as one. `self` is the daemon's pid. */
bool tools_owns_pid(int pid, int self);

/* ---- one run ---- */

struct tool_call {
    const char *name;
    const json_t *arguments; /* an object; checked again here; borrowed for the call */
    const char *workspace; /* absolute folder, the tool's working folder; links are resolved */
    enum tool_mode mode;
    /* Where commands begin: what an earlier result's `cwd` was. NULL, or when it cannot be
     * entered any more (then the output begins with a line that says so): the workspace. */
    const char *cwd;
    bool in_background; /* limited by job_timeout_ms instead */
    /* Where the whole output goes when it does not fit: this file is created (0600, never an
     * existing one) then and only then; tools may read its folder. Absolute; NULL: no spill
     * file. Its folder must exist, must not be inside a hidden path, and should be one per
     * session. */
    const char *spill_path;
    uint32_t timeout_ms; /* 0: the call's own `timeout_ms` argument if any, else the default */
};

struct tool_run;

enum tool_end {
    TOOL_EXITED,    /* by itself: exit_status says how */
    TOOL_SIGNALLED, /* exit_status is the signal's number */
    TOOL_TIMED_OUT,
    TOOL_CANCELLED,
    TOOL_OUTPUT_LIMIT, /* killed for writing more than max_output_bytes */
    TOOL_REFUSED,      /* the sandbox could not be built as asked; nothing ran */
    TOOL_LOST          /* the launcher died without a report: outcome unknown */
};
/* "exited", "signalled", "timed_out", ...: stable names for records and events. */
const char *tool_end_name(enum tool_end end);

struct tool_result {
    struct buf
        text;      /* what the model reads: output bytes as they came (any bytes, NUL too), in
                      case of loss head, a line saying what was left out and where the whole is,
                      tail; then, unless it ended with status 0, a line saying how it ended */
    bool is_error; /* not TOOL_EXITED with status 0 */
    enum tool_end end;
    int exit_status;
    bool truncated;        /* text lacks some output */
    uint64_t output_bytes; /* bytes the tool wrote in all */
    char *spill_path;      /* the file with the whole output, or NULL */
    char *cwd; /* where the shell of `run` was when it exited, absolute; NULL: unknown */
    uint64_t duration_ms;
    uint32_t n_killed; /* processes that were left and had to be killed */
    json_t
        *layers; /* what the launcher applied: {"mode", "process_group", "cgroup",
                    "pids_limit",    "rlimits", "no_new_privs", "landlock", "seccomp",
                    "user_namespace",    "pid_namespace", "network", "mounts", "control_socket",
                    "uid", ...}, each    a short string; NULL when it never got that far */
};
void tool_result_fini(struct tool_result *r);

/* Starts a call. Returns at once; *out is the caller's. ERR_NOTFOUND and ERR_INVAL as
 * tool_check; ERR_INVAL for a workspace that is no folder; ERR_LIMIT and ERR_IO when no process
 * can be made. The message fits an error result. */
NODISCARD enum err tool_run_start(struct tools *t, const struct tool_call *call,
                                  uint64_t now_ms, struct tool_run **out, struct error *e);

/* Descriptors to poll for readability: output, the launcher's reports, the launcher itself (a
 * pidfd). Owned by the run; -1 is one that has hung up already: ask again after every step. */
struct tool_run_fds {
    int out_fd, status_fd, pidfd;
};
struct tool_run_fds tool_run_fds(const struct tool_run *r);

/* Does what can be done without blocking; true when the run is over and all output is in.
 * Output bytes that arrived are appended to `fresh` if that is not NULL, as far as they belong
 * to the head of the result (so a prefix of the result's text, always); at most 1 MiB is read
 * in one call. */
bool tool_run_step(struct tool_run *r, uint64_t now_ms, struct buf *fresh);

/* Appends the output from byte `from` on that is kept, with a line in place of what is not, up
 * to the last whole character (all of it once the run is over), and returns where to go on. */
uint64_t tool_run_output(const struct tool_run *r, uint64_t from, struct buf *out);

/* Milliseconds until tool_run_timeout() is due: the deadline, or a second look at a kill. */
uint32_t tool_run_wait_ms(const struct tool_run *r, uint64_t now_ms);
/* Kills the tool if its deadline has passed; kills a launcher that did not obey. Harmless
 * early. */
void tool_run_timeout(struct tool_run *r, uint64_t now_ms);
/* Kills the tool and everything it started. Harmless when it is over. */
void tool_run_cancel(struct tool_run *r, uint64_t now_ms);

/* Moves the result out of a run that is done (assert). */
void tool_run_take(struct tool_run *r, struct tool_result *out);
/* NULL is fine. */
void tool_run_free(struct tool_run *r);

#endif
