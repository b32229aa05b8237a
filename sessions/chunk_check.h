/* Tags of tape chunks, checked on worker threads while the rows behind them are still read: of
 * a million tokens the tags cost as much as the reading.
 *
 *     AUTO(chunk_checks) struct chunk_checks c = {0};
 *     rc = chunk_checks_init(&c, st, n_chunks, e);
 *     for each row: copy its ids; if (!chunk_checks_put(&c, &q, ids)) rc = row_check(...);
 *     chunk_checks_end(&c);
 *     while (chunk_checks_bad(&c, &chunk)) ...
 *
 * What is hashed is the copy, which nobody may use before the end. Store's thread. */
#ifndef SESSIONS_CHUNK_CHECK_H
#define SESSIONS_CHUNK_CHECK_H

#include "sessions/store_internal.h"

struct chunk_batch;

struct chunk_checks {
    struct store *st; /* private */
    struct workers *workers;
    struct chunk_batch *batches;
    size_t n_batches, cap_batches;
    size_t next_batch, next_row; /* of chunk_checks_bad */
};

/* For so many rows at most; few are not worth it, and none is then taken. ERR_NOMEM. */
NODISCARD enum err chunk_checks_init(struct chunk_checks *c, struct store *st, size_t n_chunks,
                                     struct error *e);
/* Takes the row that q stands on (TAPE_COLS, tag), whose ids were copied to `ids`, which stay
 * where they are. False: its tag has to be checked here and now. */
bool chunk_checks_put(struct chunk_checks *c, const struct query *q, const uint32_t *ids);
/* All have been checked. */
void chunk_checks_end(struct chunk_checks *c);
/* After the end: the next chunk whose tag does not match, in the order in which they were put.
 * Each is counted as a damaged row once. */
bool chunk_checks_bad(struct chunk_checks *c, uint64_t *chunk);
/* Nothing is under way any more. */
void chunk_checks_fini(struct chunk_checks *c);

#endif
