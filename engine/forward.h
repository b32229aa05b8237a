/* One pass through the layers: a batch of runs, each some consecutive tokens of one sequence.
 *
 *     forward_batch()    everything, into staged state
 *     forward_commit()   makes a run part of its sequence
 *
 * or, for tests, layer by layer: forward_begin(), then for each layer forward_engram()
 * (forward_engram.h) and forward_layer(), forward_end().
 *
 * The tokens of all runs lie one behind the other in the work buffers, a row each. What a layer
 * does to every token alike is one operation on all rows; what looks at the sequence
 * (attention, selection, compressed rows) goes run by run. A layer's results for a token do not
 * depend on how its segment was cut into runs, nor on the other runs of the batch. Nothing of a
 * sequence changes before forward_commit(): rows are written above those that count, the keys
 * of the run are staged beside the rings. */
#ifndef ENGINE_FORWARD_H
#define ENGINE_FORWARD_H

#include "engine/work.h"

struct held;

struct run {
    struct seq *seq; /* for the observer; may be NULL */
    struct kv *kv;
    const uint32_t *ids; /* [n] */
    const uint32_t
        *history; /* [ngram - 1] ids before ids[0], oldest first; ENGRAM_DEAD: none */
    uint64_t pos0;
    uint32_t n;
    uint32_t n_next; /* ids behind these that are known already: their rows are read ahead */
    /* Per class of layers: the first position that runs at all, and the first whose key may be
     * read. Both are absolute. */
    uint64_t from[N_LAYER_CLASSES], lo[N_LAYER_CLASSES];
    bool is_chunk; /* ids that are known: kept whole or not at all, and may be interrupted */
    bool block;    /* draft layers: every token sees all of the run; nothing is observed */
    bool replay;   /* rows are there already: they are read and never written */
    uint64_t rows; /* replay: tokens whose rows are there */
    /* Only the layers above the last KV source, from streams that were held (held.h); n <= W.
     * NULL: all layers. The others have done with these tokens: of the sequence only rings of
     * the layers above change. */
    const struct held *held;
    uint32_t row; /* of ids[0] in the work buffers: batch_of() sets it */
};

/* Runs of different sequences in one pass. Only the first one may leave out tokens anywhere (a
 * clipped prefill, a replay, streams that were held): so the rows that a layer works on are
 * always the last ones.
 *
 * Ops that look at sequences are called once for the list of those that decode, and once for
 * each of the n_alone runs in front of it: a chunk, a run that leaves out tokens, and all where
 * rows of a sequence may be on the disk. */
struct batch {
    const struct run *runs;
    uint32_t n_runs, n; /* n: rows of all */
    uint32_t n_alone;
    bool is_steady; /* nothing in a call depends on more than the batch's shape (graphs.h) */
};

/* Gives the runs their rows. Borrows them. */
struct batch batch_of(struct run *runs, uint32_t n_runs);

/* Offset of the first token of the run that layer l works on; r->n when there is none. */
uint32_t run_first(const struct model *m, const struct run *r, uint32_t layer);
/* The first row of the batch that layer l works on: from there on it works on all. */
uint32_t batch_first(const struct model *m, const struct batch *batch, uint32_t layer);

/* Tokens of a run that are in rows `first` and up of the batch: all after *skip. */
uint32_t run_from(const struct run *r, uint32_t first, uint32_t *skip);
/* Tokens whose rows the run may look at: all that are there, and its own. */
uint64_t run_visible(const struct run *r);
/* The runs that ops take as a list: those behind the n_alone first ones. */
uint32_t batch_n_listed(const struct batch *batch);

/* Groups of `ratio` tokens that a run completes; the first is row number *row0 of its plane.
 * None where the rows are there already. */
uint32_t run_groups(const struct run *r, uint32_t ratio, uint64_t *row0);

/* Everything in front of the first layer: positions, rotations, Engram rows' numbers, streams.
 * ERR_NOMEM. */
NODISCARD enum err forward_begin(struct model *m, const struct batch *batch, struct error *e);
/* One layer of all runs, on the streams that the one before left. */
void forward_layer(struct model *m, const struct batch *batch, uint32_t layer);
/* Collapses the rows that all layers computed into w->h; returns how many (the batch's last
 * ones). */
uint32_t forward_end(struct model *m, const struct batch *batch);

/* What is computed from weights that somebody writes to belongs to no model. ERR_CONFLICT names
 * the shard: whatever was computed since is thrown away, and so is what comes until the
 * checkpoint is opened again. Asked before a pass, which a shard that was cut short would end
 * with a SIGBUS, and after all that read weights, before anybody is told what they gave. */
NODISCARD enum err forward_check_weights(const struct model *m, struct error *e);

/* begin, every layer, end, sync. The caller has made room for the rows (kv_make_room). Nothing
 * has happened to any sequence when this fails. ERR_CANCELLED: m->interrupted was set on the
 * way, and the first run is a chunk. Whose fault another failure is it does not say. */
NODISCARD enum err forward_batch(struct model *m, const struct batch *batch, struct error *e);
/* After forward_batch() or forward_end(): the collapsed rows [*n][D] of the run's tokens that
 * all layers computed, which are its last ones; before the final norm, in w->h. */
const float *forward_rows(const struct model *m, const struct batch *batch, const struct run *r,
                          uint32_t *n);
/* Moves keys and unfinished groups of the run's first n tokens into the sequence, and n_tokens
 * on (not when replaying). The rest never was. */
void forward_commit(struct model *m, const struct run *r, uint32_t n);

/* The draft layers' keys of the batch's tokens, from the streams that entered the target
 * layers; only a sequence's last W can be asked for later. */
void forward_draft_keys(struct model *m, const struct batch *batch);
/* y = w x for n dense rows, the input rounded as the weight's kind demands. */
void forward_product(struct model *m, const struct k_weight *w, const float *x, float *y,
                     size_t n, enum k_round out);

/* Logits of n <= LOGIT_ROWS collapsed rows h [n][D] (before the final norm), into w->logits.
 * Waits for the backend. ERR_NOMEM, ERR_GPU, or as forward_check_weights(). */
NODISCARD enum err forward_logits(struct model *m, const float *h, uint32_t n, struct error *e);
/* In its two halves: queued, into w->d_logits; then waited for, and on the host if `crosses`.
 * What lies between them may use w->d_logits. */
NODISCARD enum err forward_head(struct model *m, const float *h, uint32_t n, struct error *e);
NODISCARD enum err forward_head_end(struct model *m, uint32_t n, bool crosses, struct error *e);

#endif
