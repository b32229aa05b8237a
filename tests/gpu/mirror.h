/* A device behind a table that takes memory of the host, for tests that were written for host
 * backends: every op copies what it reads to the device, runs there, and copies back what it
 * writes. Around each copy lie bytes that no op may change: an op that does aborts, with its
 * name. Memory keeps its misalignment. Slow, and for nothing but tests. */
#ifndef TESTS_GPU_MIRROR_H
#define TESTS_GPU_MIRROR_H

#include "kernels/kernels.h"

/* Takes the table `device`, closed with *k. ERR_NOMEM. */
NODISCARD enum err mirror_open(struct kernels *k, struct kernels *device, struct error *e);

#endif
