/* The release at its full size, as empty files: 48 shards with the real headers (96,085
 * tensors, names, dtypes and shapes of the model description, section 2.2) and holes for data,
 * an index, and tests/configs/flash.json. Half a terabyte that takes 30 MB of disk.
 *
 * The list is written down here a second time on purpose, with the release's numbers: what
 * engine/ derives from the config is checked against it. */
#ifndef TESTS_SUPPORT_FULL_SIZE_H
#define TESTS_SUPPORT_FULL_SIZE_H

#include "base/err.h"

struct full_size_options {
    const char *out;       /* folder, made if missing */
    const char *leave_out; /* a tensor that is missing; NULL: none */
    const char *misshape;  /* a tensor with one row too few; NULL: none */
    const char *add;       /* a tensor too many, BF16 [3]; NULL: none */
};

NODISCARD enum err full_size_make(const struct full_size_options *o, struct error *e);

#endif
