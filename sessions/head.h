/* Model state of a session: saving it, finding it again, restoring it.
 *
 * State is planes and a tip (base/state.h). Rows of block_tokens consecutive tokens make an
 * immutable block that sessions with the same token ids share; rows past the last full block
 * are tail extents, written once and gathered into a block when it is complete. The head of a
 * session points to its newest block, tail and tip; the last two generations of a head are
 * kept.
 *
 * State position <= tape position, always: ids are taken from the tape. Committed bytes never
 * change. What is damaged is set aside and counted, and never returned.
 *
 *     save      extents written -> fdatasync -> one transaction with catalog rows and the head
 *     restore   head_find -> head_restore -> engine's seq_import_tip or seq_rebuild */
#ifndef SESSIONS_HEAD_H
#define SESSIONS_HEAD_H

#include "base/state.h"
#include "sessions/session.h"

/* ---- saving ------------------------------------------------------------------------------ */

/* In the place of the number of rows in a digest: it lacks the segment's first rows. */
#define HEAD_DIGEST_PARTIAL INT64_MAX

struct head_save {
    const char *session;               /* id */
    const struct state_layout *layout; /* the numerics class is taken from here */
    uint64_t from, to; /* tokens that are new; from <= state position (rows behind it are then
                          replaced, for this session), to <= tape length, from <= to */
    /* Rows [from / ratio, to / ratio) of each plane, contiguous. NULL where there are none. */
    const void *plane[STATE_MAX_PLANES];
    const void *tip;      /* layout->tip_bytes bytes for position `to`, or NULL: no tip saved */
    bool inside_segment;  /* the tip is inside an input segment that is not complete */
    uint8_t digest[32];   /* running digest of the segment the position is in */
    uint64_t digest_rows; /* rows in it, or HEAD_DIGEST_PARTIAL */
    uint32_t lineage;     /* replays behind these rows: 0 is exact */
};

struct head_receipt {
    uint64_t position;                  /* = to */
    uint64_t commit;                    /* number of this state commit in the store */
    uint64_t bytes_written;             /* extents, header pages included */
    uint64_t bytes_tail, bytes_tip;     /* of these; the rest are blocks */
    uint32_t blocks_new, blocks_shared; /* blocks completed by this save: written / found */
    uint64_t retry_from;                /* set with ERR_CORRUPT */
};

/* One state commit. r may be NULL.
 * ERR_LIMIT: no space; ERR_IO: the device failed: the caller says once that this session stops
 * persisting state and goes on. ERR_CORRUPT: rows written earlier, which a block needs, cannot
 * be read back; save again with from = r->retry_from. ERR_UNSUPPORTED: layout without
 * fingerprint (precision `math`). ERR_INVAL: positions; block_tokens not a multiple of a ratio.
 * ERR_CONFLICT: the fingerprint is known with other planes. The head is as before after any
 * error. */
NODISCARD enum err head_save(struct store *st, const struct head_save *s,
                             struct head_receipt *r, struct error *e);

/* ---- finding ----------------------------------------------------------------------------- */

enum head_want {
    HEAD_TIP, /* the longest prefix at whose end a tip can be used (resume exact) */
    HEAD_ROWS /* the longest prefix of rows, tip or not (resume deep or replay) */
};

enum head_source {
    HEAD_NONE,  /* nothing to restore: n_tokens is 0 */
    HEAD_OWN,   /* this session's newest head */
    HEAD_OLDER, /* its previous generation */
    HEAD_SHARED /* blocks or a tip of another session with the same ids */
};

struct tape; /* sessions/tape.h */

/* What could be restored. Owned by the caller; freed with head_plan_free. Plain figures first.
 */
struct head_plan {
    uint64_t n_tokens; /* prefix that this plan restores */
    bool has_tip;      /* a usable tip exactly at n_tokens */
    bool inside_segment;
    uint8_t digest[32]; /* of the open segment at the tip */
    uint64_t digest_rows;
    uint32_t lineage;                 /* 0: exact */
    char numerics[STATE_CLASS_BYTES]; /* class of the rows; "" if several */
    bool same_numerics; /* all extents are of the layout's class: the word exact may be used */
    enum head_source source;
    uint64_t n_bytes;         /* that a restore reads */
    struct head_chain *chain; /* private from here: what was found, */
    const uint32_t *ids;      /* the tape's first n_tokens, */
    uint32_t *own_ids;        /* unless they are the caller's tape, as */
    int64_t strand;           /* this one has them, */
    uint64_t n_changes;       /* rows written to the database before it, */
    uint64_t n_collections;   /* runs of gc before it */
};
void head_plan_free(struct head_plan *p);

/* Looks for state for the first `position` tokens of the tape (TAPE_END: all of it). Always OK
 * when it could look: nothing found is n_tokens 0. Reads the catalog only. A tip fits when the
 * token ids, the segments and replay marks before it, and the model are the same. */
NODISCARD enum err head_find(struct store *st, const char *session,
                             const struct state_layout *layout, uint64_t position,
                             enum head_want want, struct head_plan **out, struct error *e);
/* The same on the session's tape as tape_load gave it, which must outlive the plan: for a
 * caller that needs the tape anyway, or looks more than once. */
NODISCARD enum err head_find_on(struct store *st, const char *session,
                                const struct state_layout *layout, const struct tape *tape,
                                uint64_t position, enum head_want want, struct head_plan **out,
                                struct error *e);

/* ---- restoring --------------------------------------------------------------------------- */

struct late; /* sessions/late.h */

enum head_stage { HEAD_STAGE_INDEX, HEAD_STAGE_MAIN };

struct head_restore {
    const char *session;
    const struct state_layout *layout;
    const struct head_plan *plan;
    const struct state_regions *dst; /* n_tokens >= plan->n_tokens */
    void *tip;                       /* layout->tip_bytes bytes; NULL: the tip is not wanted */
    /* Not NULL: main planes of the first whole blocks are not read but left to this one, whose
     * reference is the caller's (NULL: there are none, everything was read). Only for a caller
     * that can ask for rows later. */
    struct late **late;
    bool keep_head; /* the session's head stays as it is: only to look */
    /* Told after every batch; `stage` is HEAD_STAGE_MAIN once index planes and tip are in.
     * Returns false to stop (ERR_CANCELLED). May be NULL. */
    bool (*progress)(void *user, enum head_stage stage, uint64_t done, uint64_t total);
    void *user;
};

struct head_restored {
    uint64_t n_tokens; /* really restored: rows of these are in dst, verified, ids equal */
    bool has_tip;      /* the tip is in, and belongs to exactly n_tokens */
    uint64_t bytes_read;
    uint64_t index_ns, total_ns; /* time to index planes and tip; to everything */
    uint32_t extents_damaged;    /* set aside by this restore */
};

/* Reads straight into the engine's regions, index planes and tip first, and verifies every tag
 * and every token id. Damage or a failed read shortens the prefix (OK, with n_tokens smaller
 * and has_tip false); bytes past it in dst are undefined. On OK the session's head is what was
 * restored, durably, so that the next save goes on from n_tokens. ERR_IO, ERR_NOMEM: of the
 * database or memory; ERR_CANCELLED. */
NODISCARD enum err head_restore(struct store *st, const struct head_restore *h,
                                struct head_restored *out, struct error *e);

/* Drops the session's head: the next save begins at 0. For `kv drop` and after a model change.
 */
NODISCARD enum err head_drop(struct store *st, const char *session, struct error *e);

#endif
