/* An opened checkpoint: what all sequences share. Private to engine/. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include <stdatomic.h>

#include "base/pool.h"
#include "engine/config.h"
#include "engine/engine_impl.h"
#include "engine/engram.h"
#include "engine/graphs.h"
#include "engine/kv.h"
#include "engine/observe.h"
#include "engine/weights.h"

struct engram_cache;
struct engram_slots;
struct kv_gather;
struct kv_pages;
struct experts;
struct model_seq;
struct run;
struct sampler;
struct work;

/* Where the precision mode rounds; everything that is not named here stays f32. */
struct rounding {
    enum k_round product;   /* input of every weight product but hc_fn ... */
    enum k_round quantised; /* ... and but those with FP8 and FP4 weights, wo_a excepted */
    enum k_round value;     /* streams, norms, rotations, and what products give */
    bool quantise_index_q;  /* index queries onto the grid of the index keys */
};

struct model {
    struct engine engine; /* first: engine.h hands this out */
    struct config config;
    struct rounding rounding;
    enum precision precision;
    bool digests;
    uint32_t draft_tokens;   /* guesses of one step; 0: none */
    double draft_confidence; /* least chance of being right that is worth checking */
    uint64_t n_guessed, n_guessed_right, n_guesses_cut, n_guesses_failed; /* of all sequences */
    uint32_t chunk_tokens;
    uint32_t chunk_limit; /* of an observer; 0: none */

    struct safetensors *st;
    struct pool *pool;
    struct kernels k;
    struct weights weights;
    struct tier_files *files;          /* NULL without budgets */
    struct experts *experts;           /* NULL: mapped */
    struct engram_cache *engram_cache; /* NULL: mapped */
    struct engram_slots *engram_slots; /* NULL: the host may touch the backend's memory, or no
                                          budget */
    uint64_t *engram_next; /* with slots: [FORWARD_ENGRAM_NEXT][n_tables] of a chunk to come */
    struct kv_shape shape;
    struct kv_memory memory;   /* of all sequences */
    struct kv_pages *kv_pages; /* NULL: all rows are in memory */
    struct kv_gather *gather;  /* with kv_pages */
    struct { /* the selection whose rows are gathered now, for the layers that share it */
        const struct run *of; /* NULL: nothing is */
        uint32_t source, first;
    } gathered;
    struct state_layout layout;
    struct tokenizer *tokenizer;
    struct engram engram;
    uint32_t *token_map;           /* [vocab] compressed ids; NULL without Engram layers */
    float *rope_plain, *rope_yarn; /* [rope_dim/2] inverse frequencies: ratio 0, ratio > 0 */

    struct graphs graphs;   /* steps that are repeated as they were recorded */
    struct work *work;      /* buffers of one batch, grown on demand */
    struct model_seq *seqs; /* list of all living sequences, newest first */
    /* Whose turn it is, so that nobody starves: for the chunk of a step, for a token. */
    struct model_seq *next_chunk, *next_turn;
    struct sampler *sampler;
    struct observer observer;
    float *pending_view; /* of engine_read_pending(); NULL: not asked for */
    atomic_bool interrupted;
    struct error broken; /* a mapped weight that was read in this run and is not usable */
    char *name;
};

static inline struct model *model_of(struct engine *m)
{
    return (struct model *)(void *)m;
}

#endif
