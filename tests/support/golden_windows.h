/* Rings of all layers against golden `X.window_kv32` [layers][W][d] and `X.window_pos`. */
#ifndef TESTS_SUPPORT_GOLDEN_WINDOWS_H
#define TESTS_SUPPORT_GOLDEN_WINDOWS_H

#include "tests/support/golden_model.h"

/* Positions must be identical. Slots whose values differ by more than `same` are at most
 * `share` of all, and none differs by more than max. */
void golden_windows(struct golden *g, const char *prefix, const struct engine *m,
                    const struct seq *s, double same, double share, double max);

#endif
