/* How head_restore makes what stays behind. Store's thread. */
#ifndef SESSIONS_LATE_INTERNAL_H
#define SESSIONS_LATE_INTERNAL_H

#include "sessions/head_internal.h"
#include "sessions/late.h"

#define LATE_MAX_PACKS 64 /* descriptors that are kept open */

/* For at most so many whole blocks, the first of a tape. ERR_NOMEM. */
NODISCARD enum err late_new(struct store *st, const struct state_layout *layout,
                            size_t n_blocks, struct late **out, struct error *e);
/* The next block, of at most LATE_MAX_PACKS packs in all; its header is taken over from h.
 * Errors of pack_open(); ERR_IO: no more descriptors. */
NODISCARD enum err late_add(struct store *st, struct late *l, const struct chain_piece *p,
                            struct head_extent *h, struct error *e);

#endif
