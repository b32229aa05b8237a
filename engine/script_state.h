/* The state of one scripted sequence: hashes in place of a model's numbers, with the same
 * shape.
 *
 *   plane "S.kv"     row i, 16 bytes: H(row i-1, id i)                          ratio 1
 *   plane "S.index"  row j, 32 bytes: H(H(row 2j of S.kv), id 2j+1)             ratio 2
 *   tip              the last SCRIPT_WINDOW ids with the kind of their segment, the unfinished
 *                    half of an index row, how many runs were generated, how many replay
 *                    resumes there were, the open segment, position, a check sum
 *
 * Rows depend on the ids before them and on nothing else; the tip also on segment boundaries
 * and modes, over the last SCRIPT_WINDOW tokens (so a deep resume runs that many again). The
 * "logits" of a row are a hash of everything: all rows of both planes, the window, the
 * counters. So state that was lost, mixed up or altered shows in the digest of every later row,
 * whatever it was.
 *
 * Owned by one thread. No call waits. */
#ifndef ENGINE_SCRIPT_STATE_H
#define ENGINE_SCRIPT_STATE_H

#include "base/hash.h"
#include "engine/engine.h"

#define SCRIPT_WINDOW 64
#define SCRIPT_KV_BYTES HASH_TAG_BYTES
#define SCRIPT_INDEX_BYTES HASH_BYTES
#define SCRIPT_MAX_TOKENS (1u << 20)

struct script_entry {
    uint32_t id;
    uint32_t flags; /* kind and mode of the segment, and whether the token begins it */
};

struct script_segment {
    uint64_t start;
    enum segment_kind kind;
    enum prefill_mode mode;
    bool open; /* an input segment whose ids are not all here */
};

struct script_state {
    uint8_t *kv, *index; /* planes; page-aligned */
    uint64_t cap_tokens; /* their room */
    uint64_t position;
    uint64_t n_runs;                           /* generated segments begun so far */
    uint32_t n_replays;                        /* replay resumes in the history */
    struct script_segment seg;                 /* the one that the last token belongs to */
    struct script_entry window[SCRIPT_WINDOW]; /* of position p at p % SCRIPT_WINDOW */
    uint8_t half[SCRIPT_KV_BYTES]; /* of the last token, while the position is odd */
    uint8_t rows_hash[HASH_BYTES]; /* over all rows; not in the tip: made from the planes */
    struct seq_digest digest;
};

/* Fills in planes and sizes; fingerprint and numerics are the engine's. */
void script_layout(struct state_layout *l);

void script_state_fini(struct script_state *s);
/* Room for n_tokens. ERR_LIMIT past SCRIPT_MAX_TOKENS, ERR_NOMEM; the state is as it was. */
NODISCARD enum err script_reserve(struct script_state *s, uint64_t n_tokens, struct error *e);

/* Begins a segment at the position now: a generated one counts as a run, and its mode is to be
 * PREFILL_CED. */
void script_begin(struct script_state *s, enum segment_kind kind, enum prefill_mode mode);
/* Computes one token of the segment that was begun. Room must be reserved. */
void script_append(struct script_state *s, uint32_t id);

void script_export_tip(const struct script_state *s, uint8_t *tip);
/* Takes the tip of n_tokens whose rows stand in the planes. ERR_FORMAT, with the state as it
 * was: check sum, version, another position, a field out of range. */
NODISCARD enum err script_import_tip(struct script_state *s, const uint8_t *tip,
                                     uint64_t n_tokens, const struct seq_digest *digest,
                                     struct error *e);
/* The same from the tape: the rows of n_tokens stand in the planes of s. *out is the state with
 * these planes, to be put in the place of s, which is as it was. Returns how many tokens were
 * run again. tape->n_ids >= n_tokens. */
uint64_t script_rebuild(const struct script_state *s, const struct tape_view *tape,
                        uint64_t n_tokens, bool replay, struct script_state *out);

#endif
