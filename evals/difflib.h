/* difflib.SequenceMatcher(None, a, b).ratio(), autojunk included.
 *
 * The longest block common to both is found, then the longest to its left and to its right, and
 * so on; the ratio is twice the sum of their lengths over both lengths together. Elements that
 * make up more than a hundredth of a b of 200 elements or more start no block. Of equally long
 * blocks the first in a, then in b, is taken: ratio(a, b) is not ratio(b, a). Source: the
 * documented behaviour of CPython's difflib. */
#ifndef EVALS_DIFFLIB_H
#define EVALS_DIFFLIB_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* *out is in 0..1; 1 for two empty sequences. Time is that of the original: the product of the
 * lengths at worst. ERR_LIMIT past 2^31 elements, ERR_NOMEM. */
NODISCARD enum err difflib_ratio(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b,
                                 double *out, struct error *e);

#endif
