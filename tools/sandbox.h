/* The order in which a child process is confined, what is required, and what is reported.
 *
 * sandbox_namespaces() runs in the first process of the new namespaces, sandbox_restrict() in
 * the process that becomes the tool. The order differs from the usual list in two places, both
 * forced by the kernel: namespaces and mounts come before Landlock (which forbids mounting),
 * and seccomp is last (the filter refuses what the earlier steps need).
 *
 * Required in the sandboxed modes, else the run is refused:
 *
 *     writes confined       Landlock, or read-only mounts, or for root the file permissions of
 * a user who owns nothing seccomp filter no network            a namespace, or no sockets but
 * unix ones no control socket     covered by a mount, or no unix sockets either limit of
 * processes    a cgroup or RLIMIT_NPROC, tried
 *
 * The file tools execute nothing, and openat2() keeps them in the workspace: for them these are
 * applied as far as they go. Every layer's state goes into `layers` as a short string.
 */
#ifndef TOOLS_SANDBOX_H
#define TOOLS_SANDBOX_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "tools/launch.h"
#include "tools/mounts.h"

/* What the supervisor decided and did before the child goes on. */
struct sandbox_plan {
    const char *scratch; /* private folder, NULL in full-access mode */
    const char *notes;   /* the same in every mode: where a run leaves notes for its launcher */
    bool namespaces;     /* new mount, PID, network and IPC namespaces */
    bool user_namespace; /* and a new user namespace */
    bool cgroup_limit;   /* a pids cgroup limits this process, and that was tried */
    uid_t user;          /* the real user of the supervisor */
    uid_t spare_uid;     /* a user id for root to become */
    uint32_t user_threads; /* processes and threads this user had at the start */
    struct mounts mounts;  /* filled by sandbox_namespaces() */
};

/* Notes one layer: layers[name] = text. */
void sandbox_note(json_t *layers, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Checks what no layer can mend: a workspace of "/", one inside a hidden folder, hidden folders
 * that hold the spill folder. ERR_DENIED. */
NODISCARD enum err sandbox_check(const struct launch *l, struct error *e);

/* Sets up mounts and the loopback device of new namespaces. */
NODISCARD enum err sandbox_namespaces(const struct launch *l, struct sandbox_plan *p,
                                      json_t *layers, struct error *e);

/* Limits, privileges, Landlock, seccomp. ERR_DENIED when a required layer is missing. */
NODISCARD enum err sandbox_restrict(const struct launch *l, const struct sandbox_plan *p,
                                    json_t *layers, struct error *e);

/* Where TMPDIR and HOME of the tool are. */
const char *sandbox_tmp(const struct sandbox_plan *p);

#endif
