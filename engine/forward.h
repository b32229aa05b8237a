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

#include <string.h>

#include "engine/model.h"

/* Streams as they leave the last KV source's layer, of the last W tokens: kept while the layers
 * above wait for the segment's length (seq_ahead). Position p in row p % W; memory of the
 * backend. Members as in struct work. */
struct held {
    float *x, *pre, *target;
    int32_t *sel, *blocks;
};
NODISCARD enum err held_init(struct model *m, struct held *h, struct error *e);
void held_fini(struct model *m, struct held *h);

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
    /* Only the layers above the last KV source, from streams that were held; n <= W. NULL: all
     * layers. The others have done with these tokens: of the sequence only rings of the layers
     * above change. */
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

/* Buffers of a batch of at most `cap` tokens; all f32 unless stated, memory of the backend. D
 * is hidden_size, d head_dim.
 *
 * What the host reads or writes has two: x for the host and d_x for the ops. They are the same
 * memory where the host may touch the backend's; elsewhere work_to_device() and work_to_host()
 * copy, right after x was written and right before it is read. */
struct work {
    struct kernels *k;
    uint32_t cap;
    float *x;                  /* [cap][hc][D] streams */
    float *pre, *next_pre;     /* [cap][hc] collapse coefficients: of this half, for the next */
    float *post, *comb;        /* [cap][hc], [cap][hc][hc] */
    float *h, *y;              /* [cap][D] input and output of a half */
    float *qr, *q;             /* [cap][q_lora], [cap][n_heads][d] */
    float *o, *oa;             /* [cap][n_heads][d], [cap][o_groups*o_lora] */
    float *key;                /* [cap][d] */
    float *u, *g;              /* [n_sources][cap][d] values and gates of the compressor */
    float *group_u, *group_g;  /* [ratio][d] of a group that an earlier run began */
    float *latent, *ikey;      /* [cap][d], [cap][index_dim] */
    float *iq, *iw;            /* [cap][index_heads][index_dim], [cap][index_heads] */
    float *route, *route_w;    /* [cap][n_experts], [cap][n_active], the larger of both kinds */
    float *parts;              /* [cap][n_active+1][D] experts that come one by one */
    float *engram, *engram_kv; /* [cap][n_tables*engram_dim], [cap][(hc+1)*D] */
    float *engram_gate;        /* [cap][hc] */
    float *plain_cos, *plain_sin, *yarn_cos, *yarn_sin; /* [cap][rope_dim/2] for the tokens */
    float *row_cos, *row_sin;                           /* [cap][rope_dim/2] for new rows */
    int32_t *sel, *d_sel; /* [cap][index_topk] selection of the latest index source; sel: only
                             with rows that are gathered */
    int32_t *sel_at, *d_sel_at; /* [cap][index_topk] the same, among those rows */
    int32_t *blocks;            /* [cap][candidate_blocks] of the candidate source */
    /* The batch's runs as ops read them, and the groups that they complete (kernels/run.h): how
     * many there are of a source, gaps included, and at which positions they begin. */
    struct k_run *runs, *d_runs;                   /* [BATCH_MAX_RUNS] */
    uint64_t *group_positions, *d_group_positions; /* [n_sources][cap] */
    uint32_t n_groups[CONFIG_MAX_SOURCES];
    uint64_t n_seen;              /* no run of the list sees more tokens than these ... */
    uint32_t n_most;              /* ... nor has more itself */
    int32_t *experts, *d_experts; /* [cap][n_active] */
    uint32_t *ids;
    uint64_t *positions, *d_positions;
    uint64_t *engram_ids, *d_engram_ids; /* [n_engram][cap][n_tables] */
    uint64_t *engram_at, *d_engram_at;   /* [cap][n_tables] where the rows are that are read */
    /* Rows for the ops where they are not in the backend's memory: [cap][n_tables][engram_dim]
     * and [cap][n_tables][engram_dim/32]; NULL where they are. */
    uint8_t *engram_codes, *d_engram_codes, *engram_scales, *d_engram_scales;
    uint8_t *keys;   /* [n_rings][cap][ring_row] staged keys */
    float *target;   /* [cap][n_draft_targets][D] streams that the draft layers are fed */
    float *draft_in; /* [D+rank] of the confidence head */
    float *draft_bias, *d_draft_bias; /* [vocab] of the Markov head */
    float *confidence, *d_confidence; /* [1] */
    float *logits, *d_logits;         /* [LOGIT_ROWS][vocab] */
};

#define LOGIT_ROWS 16
#define BATCH_MAX_RUNS 65 /* a chunk, and all that decode */

NODISCARD enum err work_reserve(struct model *m, uint32_t n, struct error *e);
void work_free(struct model *m);
/* n bytes from x to d_x, and from d_x to x: nothing to do where they are the same. */
static inline void work_to_device(struct model *m, void *d, const void *host, size_t n)
{
    if (!m->k.host_memory)
        m->k.copy_in(&m->k, d, host, n);
}
static inline void work_to_host(struct model *m, void *host, const void *d, size_t n)
{
    if (m->k.host_memory)
        return;
    memset(host, 0, n); /* after a failure nothing is copied: numbers of rows and experts count
                           in arrays before sync() tells */
    m->k.copy_out(&m->k, host, d, n);
}

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

NODISCARD enum err forward_begin(struct model *m, const struct batch *batch, struct error *e);
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
/* Holds the streams of the run's last W tokens, after forward_batch() with one that left out
 * the layers above the last KV source. */
void forward_hold(struct model *m, const struct run *r, struct held *h);
/* Moves keys and unfinished groups of the run's first n tokens into the sequence, and n_tokens
 * on (not when replaying). The rest never was. */
void forward_commit(struct model *m, const struct run *r, uint32_t n);

/* The draft layers' keys of the batch's tokens, from the streams that entered the target
 * layers; only a sequence's last W can be asked for later. */
void forward_draft_keys(struct model *m, const struct batch *batch);
/* y = w x for n dense rows, the input rounded as the weight's kind demands. */
void forward_product(struct model *m, const struct k_weight *w, const float *x, float *y,
                     size_t n, enum k_round out);

/* Logits of n <= LOGIT_ROWS collapsed rows h [n][D] (before the final norm), into w->logits. */
NODISCARD enum err forward_logits(struct model *m, const float *h, uint32_t n, struct error *e);

#endif
