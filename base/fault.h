/* Fault points: places where a test makes something fail, or the whole process die.
 *
 *     if (fault_point("pack.fsync"))
 *         return err_sys(e, EIO, "fsync %s", path);
 *
 * Unarmed, a point costs one relaxed load and a branch. Names are "module.what"; grep for
 * fault_point lists them. A test walks every failure of an operation until a clean pass:
 *
 *     for (uint64_t n = 1; ; n++) {
 *         fault_arm(FAULT_FAIL, NULL, n);
 *         rc = operation(&e);
 *         if (!fault_disarm())
 *             break;                      (the n-th point was never reached: this was clean)
 *         assert_int_not_equal(rc, OK);   (and check that nothing changed)
 *     }
 *     assert_ok(rc, &e);
 *
 * Allocations of our own code count too, under the name "alloc": test programs are linked with
 * malloc, calloc, realloc, aligned_alloc, posix_memalign, strdup and strndup wrapped
 * (tests/support/alloc_fault.c); the product binaries are not, and never pay for it.
 *
 * Child processes are armed through the environment. AGENTD_FAULT is a comma-separated list of
 * ACTION:NAME:N, and takes effect where main() calls fault_arm_env():
 *
 *     crash:turn.after_commit:3   SIGKILL to itself at the 3rd time turn.after_commit is
 * reached fail:pack.fsync:1           that point fails once, at its 1st hit
 *     fail-from:pack.write:5      the 5th hit and every later one fail (a full disk)
 *     crash:*:120                 any point: the 120th hit of all together
 *
 * Hits are counted over all threads. Arming and disarming belong to one thread, while no other
 * thread is at a point. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum fault_action {
    FAULT_COUNT,     /* only counts: see fault_hits */
    FAULT_FAIL,      /* the n-th hit fails */
    FAULT_FAIL_FROM, /* the n-th hit and all later ones fail */
    FAULT_CRASH      /* the n-th hit sends SIGKILL to this process */
};

#define FAULT_MAX_ARMED 8
#define FAULT_NAME_BYTES 48

/* True when an armed fault wants this point to fail. `name` is a string literal. */
#define fault_point(name)                                                                      \
    (__builtin_expect(atomic_load_explicit(&fault_armed_, memory_order_relaxed) != 0, 0) &&    \
     fault_hit_(name))

/* Arms one fault beside those that are armed (at most FAULT_MAX_ARMED). `name` NULL or "*" is
 * any point; n counts from 1 and is ignored by FAULT_COUNT. */
void fault_arm(enum fault_action action, const char *name, uint64_t n);

/* What points fail with that stand for a system call: EIO and ENOSPC are other stories. 0: each
 * with its own, also after fault_disarm. */
void fault_use_errno(int sys);
/* The errno of a point that fails, whose own is `sys`. */
int fault_errno(int sys);

/* Disarms everything. True when an armed fault has failed a point since it was armed. */
bool fault_disarm(void);

/* Hits of all armed faults together since they were armed. */
uint64_t fault_hits(void);

/* Arms what AGENTD_FAULT says; nothing when it is not set. ERR_INVAL names the entry that is
 * wrong. For main(), before threads are started. */
NODISCARD enum err fault_arm_env(struct error *e);

extern _Atomic uint32_t fault_armed_; /* number of armed faults */
bool fault_hit_(const char *name);

#endif
