/* Starts one of agentd's own binaries, the only programs that agentd and evals start.
 *
 * A binary is looked for in $AGENTD_LIBEXEC when that is set, else beside the running one
 * (/proc/self/exe). The child shares nothing but what is mapped: every other descriptor is
 * closed, signal dispositions and mask are the defaults. It is made as vfork does, so that its
 * cost does not depend on how much memory this process holds, and it is watched by a pidfd.
 *
 *     struct spawn_fd fds[] = {{pipe_r, 0}, {log_fd, 2}};
 *     struct spawn_options o = {.argv = argv, .fds = fds, .n_fds = 2, .die_with_parent = true};
 *     rc = spawn_start(&o, &child, e);
 */
#ifndef BASE_SPAWN_H
#define BASE_SPAWN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"

#define SPAWN_MAX_FDS 16

/* The child's descriptor `to` is our `from`. */
struct spawn_fd {
    int from, to;
};

struct spawn_options {
    const char *const
        *argv; /* argv[0] is the binary's name ("agentd-tool"), no '/'; NULL ends */
    const char *const *envp;    /* NULL: our environment */
    const char *cwd;            /* NULL: ours */
    const struct spawn_fd *fds; /* at most SPAWN_MAX_FDS; 0..2 not named are /dev/null */
    size_t n_fds;
    bool die_with_parent; /* SIGKILL when the thread that started it ends: call from a thread
                             that lives as long as the process */
    bool new_group;       /* its own process group, to signal it with its children */
};

struct spawn {
    pid_t pid;
    int pidfd; /* readable when it has ended; close-on-exec */
};

#define SPAWN_INIT                                                                             \
    {                                                                                          \
        -1, -1                                                                                 \
    }

/* Path of a binary of ours. ERR_NOTFOUND names where it was looked for. */
NODISCARD enum err spawn_find(const char *name, char *out, size_t cap, struct error *e);

/* This process becomes the binary argv[0] with these arguments, descriptors, environment and
 * signals. Returns only on an error: ERR_NOTFOUND, ERR_IO. */
NODISCARD enum err spawn_become(const char *const *argv, struct error *e);

/* ERR_NOTFOUND, ERR_INVAL (a name with '/', fds), ERR_IO with what failed in the child (also a
 * program that cannot be executed): nothing is left running. */
NODISCARD enum err spawn_start(const struct spawn_options *o, struct spawn *out,
                               struct error *e);

/* Reaps the child: *status as waitpid gives it. Waits at most timeout_ms (-1: until it ends);
 * ERR_TIMEOUT. Afterwards pid and pidfd are -1. */
NODISCARD enum err spawn_wait(struct spawn *s, int timeout_ms, int *status, struct error *e);
/* Sends a signal; one that has ended already is no error. */
NODISCARD enum err spawn_signal(const struct spawn *s, int sig, struct error *e);
/* Kills and reaps what still runs, closes the pidfd. */
void spawn_fini(struct spawn *s);

/* Calls fn in a copy of this process (fork), whose memory is ours as it stands and whose
 * changes are lost with it; what fn appends to its buffer is appended to out. Only where one
 * thread runs (ERR_UNSUPPORTED): a copy has no other. The copy has our descriptors and ends
 * without flushing stdio. Waits for it. Errors of fn; ERR_CORRUPT when the copy ended in
 * another way; out is then as it was. */
typedef enum err spawn_copy_fn(void *user, struct buf *out, struct error *e);
NODISCARD enum err spawn_copy(spawn_copy_fn *fn, void *user, struct buf *out, struct error *e);

#endif
