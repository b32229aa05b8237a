/* Drives one sequence of an engine from a test: queue a segment, step until it is done. Any
 * error fails the test with its message. */
#ifndef TESTS_SUPPORT_DRIVE_H
#define TESTS_SUPPORT_DRIVE_H

#include "engine/engine.h"

struct engine *drive_open(const char *dir, const struct engine_options *o);
struct seq *drive_seq(struct engine *m);

/* Steps until no work is left; returns the reason of the last ENGINE_DONE. Sampled ids go to
 * ids (may be NULL; at most cap), their number to *n. */
enum end_reason drive_run(struct engine *m, uint32_t *ids, size_t cap, size_t *n);

void drive_input(struct engine *m, struct seq *s, const uint32_t *ids, uint64_t n,
                 enum prefill_mode mode);
/* A generated segment of exactly these ids (teacher forced). */
void drive_forced(struct engine *m, struct seq *s, const uint32_t *ids, uint64_t n);

/* Runs the rest of a tape from where the sequence stands: input as input, runs teacher forced,
 * up to position `stop` at most (where a segment ends or, with stop inside one, it is
 * cancelled). The digest after each complete segment goes to digests[i] (may be NULL). */
void drive_tape(struct engine *m, struct seq *s, const struct tape_view *t, uint64_t stop,
                struct seq_digest *digests);

/* n ids of a fixed pseudo-random order, ordinary ones of the golden tokenizer. */
void drive_ids(uint32_t *ids, size_t n, uint32_t seed);

/* Planes and tip of a sequence, in memory. */
struct drive_state {
    uint64_t n_tokens;
    void *plane[STATE_MAX_PLANES];
    size_t plane_bytes[STATE_MAX_PLANES];
    uint32_t n_planes;
    void *tip;
    size_t tip_bytes;
    struct seq_digest digest;
};

void drive_export(const struct engine *m, const struct seq *s, struct drive_state *out);
void drive_state_free(struct drive_state *st);
/* Fails, naming the first difference, unless planes (of the first n_tokens) are equal. */
void drive_assert_planes(const struct drive_state *a, const struct drive_state *b);
/* The same for the tip. */
void drive_assert_tip(const struct drive_state *a, const struct drive_state *b);

/* A new sequence with this state's planes; then exactly from its tip. */
struct seq *drive_import(struct engine *m, const struct drive_state *st);
/* A new sequence with this state's planes; then by running a part of the tape again. */
struct seq *drive_rebuild(struct engine *m, const struct drive_state *st,
                          const struct tape_view *tape, enum resume_mode mode,
                          uint64_t *n_replayed);

#endif
