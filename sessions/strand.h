/* Strands: the pieces that tapes are made of.
 *
 * A session's tape is a path of strands. The first begins at 0; each next one was forked from
 * its parent at a tape position and an event seq, and adds its own tokens, segments, marks and
 * events behind. A strand only grows, and never changes what it has; so any number of sessions
 * can share a prefix by reference. Deleting a session drops its strand if no fork needs it,
 * else cuts it down to what the forks need.
 *
 * Token ids lie in chunks on one grid for the whole tape: chunk k of a strand holds positions
 * [512 k, 512 (k + 1)) as far as they belong to the strand. */
#ifndef SESSIONS_STRAND_H
#define SESSIONS_STRAND_H

#include "sessions/store_internal.h"

#define STRAND_CHUNK_IDS 512u
#define STRAND_MAX_DEPTH 100000u

struct strand_row {
    int64_t id, parent;  /* parent 0: none */
    uint64_t parent_pos; /* first position of this strand */
    uint64_t parent_seq; /* its first event has the seq behind */
    uint64_t length;     /* tape position behind its last token */
    uint64_t last_seq;
    uint64_t n_marks; /* rows in `marks`: one that is gone must show */
};

/* What one strand contributes to a tape: positions [from, to), seqs (seq_from, seq_to]. */
struct strand_part {
    int64_t id;
    uint64_t own; /* the strand's own first position: where its chunk grid begins */
    uint64_t from, to;
    uint64_t seq_from, seq_to;
    uint64_t n_marks; /* of the whole strand */
};

struct strand_path {
    struct strand_part *parts; /* root first */
    size_t n_parts;
    uint64_t length, last_seq;
};

void strand_path_fini(struct strand_path *p);

/* ERR_CORRUPT when a row on the way is missing or damaged. */
NODISCARD enum err strand_path_load(struct store *st, int64_t strand, struct strand_path *out,
                                    struct error *e);

NODISCARD enum err strand_read(struct store *st, int64_t id, struct strand_row *out,
                               struct error *e);
NODISCARD enum err strand_write(struct store *st, const struct strand_row *r, struct error *e);
/* A new, empty strand behind (pos, seq) of parent (0: a tape of its own). In a transaction. */
NODISCARD enum err strand_new(struct store *st, int64_t parent, uint64_t pos, uint64_t seq,
                              int64_t *id_out, struct error *e);

/* Ids of [from, to) of a path. ERR_CORRUPT at the first chunk that is damaged; *n_good (may be
 * NULL) is then how many ids before it are right. */
NODISCARD enum err strand_read_ids(struct store *st, const struct strand_path *p, uint64_t from,
                                   uint64_t to, uint32_t *out, uint64_t *n_good,
                                   struct error *e);
/* Appends ids at r->length and moves it on; the row is not written. In a transaction. */
NODISCARD enum err strand_append(struct store *st, struct strand_row *r, const uint32_t *ids,
                                 uint64_t n, struct error *e);

NODISCARD enum err strand_write_chunk(struct store *st, int64_t strand, uint64_t chunk,
                                      const uint32_t *ids, size_t n, struct error *e);
/* Makes a chunk again from the ids beside saved state; reading does so by itself. ERR_CORRUPT:
 * no state has them. */
NODISCARD enum err strand_repair_chunk(struct store *st, int64_t strand, uint64_t chunk,
                                       struct error *e);

/* Rows in `marks` of a strand. */
NODISCARD enum err strand_count_marks(struct store *st, int64_t id, uint64_t *out,
                                      struct error *e);

/* Called when a session has let go of the strand: drops or trims it, and its parents in turn.
 * In a transaction. */
NODISCARD enum err strand_release(struct store *st, int64_t id, struct error *e);

#endif
