/* The system call filter of sandboxed tools: what no tool needs and what would undo other
 * layers.
 *
 * A deny list that answers EPERM (ENOSYS for clone3 and io_uring, so that libraries fall back):
 * mounts, namespaces, kernel modules, bpf, perf, keyrings, clocks, reboot, io_uring (it would
 * go around the filter), terminal injection by ioctl, and sockets of families that nothing
 * confines. Calls of a foreign architecture or of the x32 ABI get ENOSYS. Process-wide; no way
 * back. */
#ifndef TOOLS_SECCOMP_H
#define TOOLS_SECCOMP_H

#include <stdbool.h>

#include "base/err.h"

struct seccomp_rules {
    bool allow_inet;   /* IPv4, IPv6 and netlink: only in a private network namespace */
    bool allow_unix;   /* pathname sockets: only where the control socket is hidden */
    bool allow_ptrace; /* only where no process outside can be reached */
};

/* Needs no_new_privs. ERR_UNSUPPORTED on an architecture whose filter is not written. */
NODISCARD enum err seccomp_restrict(const struct seccomp_rules *rules, struct error *e);

#endif
