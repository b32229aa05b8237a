/* Golden case b_long: real attention geometry, more rows than top-k, candidate blocks that
 * bite; 1601 tokens of prompt (odd: a group stays unfinished), 20 decode steps. Fails the test
 * that calls it. */
#ifndef TESTS_SUPPORT_GOLDEN_B_LONG_H
#define TESTS_SUPPORT_GOLDEN_B_LONG_H

#include "engine/engine.h"

/* precision: math or fp32kvq. */
void golden_b_long(const char *backend, enum precision precision);

#endif
