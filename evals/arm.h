/* One way to compute a tape, watched row by row: what the arms of verify-resume are made of.
 *
 * An engine of its own, one sequence that matters, and an observer that keeps a 128-bit digest
 * of the logits of every row that all layers computed (rows of a clipped prefill have none),
 * the log-probability of the token that follows, and, for chosen rows, the logits themselves.
 * One thread. */
#ifndef EVALS_ARM_H
#define EVALS_ARM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/encode.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "engine/ids.h"

struct arm_row {
    uint8_t digest[HASH_TAG_BYTES];
    bool seen;
};

/* Rows [first, first + n) whose logits are kept: all of the first n_all, then every `stride`-th
 * one. */
struct arm_keep {
    uint64_t first, n, n_all, stride;
};

struct arm {
    struct engine *m;
    struct seq *s, *company;
    const struct tape_view *tape;
    uint32_t vocab;
    uint64_t n_rows;      /* tape->n_ids at arm_open(): a tape may grow up to it again */
    struct arm_row *rows; /* [n_rows] */
    double *nll;          /* [n_rows]: of ids[p + 1] after row p; NAN: no row, or no such id */
    int wake_fd;          /* > 0: running ends with ERR_CANCELLED once it is readable */
    struct arm_keep keep;
    float *kept; /* [arm_n_kept][vocab] */
    bool *has;   /* [arm_n_kept] */
};

/* State as it leaves and enters an engine. */
struct arm_state {
    uint64_t n_tokens;
    uint32_t n_planes;
    void *plane[STATE_MAX_PLANES], *tip;
    size_t plane_bytes[STATE_MAX_PLANES], tip_bytes;
    struct seq_digest digest;
};

/* The fingerprint of a model under these options (struct state_layout), in hex: what results
 * belong to. Its shards are hashed. */
#define ARM_FINGERPRINT_CHARS HEX_CHARS(STATE_KEY_BYTES)
NODISCARD enum err arm_fingerprint(const char *model, const struct engine_options *o,
                                   char out[ARM_FINGERPRINT_CHARS], struct error *e);

/* The engine is opened with options, which are copied in what they point to not at all. */
NODISCARD enum err arm_open(struct arm *a, const char *model, const struct engine_options *o,
                            const struct tape_view *tape, const struct arm_keep *keep,
                            struct error *e);
void arm_fini(struct arm *a);
/* Forgets rows and sequence, keeps the engine. */
NODISCARD enum err arm_reset(struct arm *a, struct error *e);
/* Goes on along the tape up to position stop (a whole chunk is cut short there). */
NODISCARD enum err arm_run(struct arm *a, uint64_t stop, struct error *e);
/* One input segment of ids that need not be on the tape yet. */
NODISCARD enum err arm_input(struct arm *a, const uint32_t *ids, uint64_t n,
                             enum prefill_mode mode, struct error *e);
/* One generated segment; appends its ids, EOS included. */
NODISCARD enum err arm_generate(struct arm *a, const struct generate_options *o,
                                struct ids *out, struct error *e);
/* A second sequence that computes ids beside the first in the same batches. */
NODISCARD enum err arm_join(struct arm *a, const uint32_t *ids, uint64_t n, struct error *e);

/* Planes and tip of the sequence as it stands, for arm_state_fini(), which an
 * error wants as well. ERR_NOMEM, or what seq_export_rows returned. */
NODISCARD enum err arm_export(const struct arm *a, struct arm_state *out, struct error *e);
void arm_state_fini(struct arm_state *st);
/* A new sequence from this state; deep and replay run a part of the tape again, unwatched. */
NODISCARD enum err arm_resume(struct arm *a, const struct arm_state *st, enum resume_mode mode,
                              uint64_t *n_replayed, struct error *e);
/* BLAKE2b of planes and tip. */
void arm_state_hash(const struct arm_state *st, uint8_t out[HASH_BYTES]);

/* Kept logits of a position; NULL: none. */
const float *arm_logits(const struct arm *a, uint64_t position);

struct arm_difference {
    uint64_t n_rows, n_missing, n_different; /* of reference rows in [from, to) */
    uint64_t first;                          /* position; meaningful with n_different > 0 */
};
/* Rows of [from, to) against those of a reference on the same tape. */
struct arm_difference arm_compare(const struct arm *a, const struct arm *reference,
                                  uint64_t from, uint64_t to);

/* How far apart two rows of logits are. */
struct arm_distance {
    double kl;       /* KL(reference || other), nats, in doubles */
    double max_diff; /* of logits */
    bool top1;       /* the same token is first */
    double top20;    /* share of the reference's first 20 in the other's */
    double gap;      /* between the reference's first two logits */
};
void arm_measure(const float *reference, const float *other, uint32_t n,
                 struct arm_distance *out);

#endif
