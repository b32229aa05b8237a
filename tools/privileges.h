/* Resource limits, the limit of processes, and giving up privileges. */
#ifndef TOOLS_PRIVILEGES_H
#define TOOLS_PRIVILEGES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* No core files, `max_file_bytes` per file, at most 1024 descriptors. */
NODISCARD enum err limits_apply(uint64_t max_file_bytes, struct error *e);
/* Puts this process in front of the daemon when memory runs out, if the system lets it. */
void limits_prefer_oom(void);

/* RLIMIT_NPROC of n processes and threads more than there are, proved: a fork beyond the limit
 * is tried and must fail. It counts all processes of the real user id, of this user namespace
 * where the kernel counts so (5.14 and later); `others` is how many this user has outside.
 * Never binds root. ERR_UNSUPPORTED when the proof fails. */
NODISCARD enum err limits_processes(uint32_t n, uint32_t others, struct error *e);
/* Tries one fork; true when the system refuses it with EAGAIN. For a limit set by somebody
 * else. */
bool limits_refuse_fork(void);
/* Processes and threads of a user. */
uint32_t limits_count_user(uid_t uid);

/* A user id that nobody has and that this user namespace maps, derived from this process's id.
 */
uid_t privileges_spare_uid(void);

enum privileges {
    PRIVILEGES_NONE,  /* no capability; the user stays */
    PRIVILEGES_FILES, /* root stays root, keeps only what acts on files */
    PRIVILEGES_SPARE, /* becomes a spare user who may still read (and write) root's files */
    PRIVILEGES_NOBODY /* becomes a spare user with no capability */
};

/* Gives up everything but that, for this process and all it starts, and sets no_new_privs.
 * `uid` and `writes` (else reading only) are for PRIVILEGES_SPARE. */
NODISCARD enum err privileges_drop(enum privileges keep, uid_t uid, bool writes,
                                   struct error *e);

#endif
