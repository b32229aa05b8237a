/* The buffers that a batch passes through on its way from ids to logits: one set for a model,
 * for batches of at most `cap` tokens, made anew when a larger one comes. What a batch leaves
 * in them is good until the next one. The engine's thread. */
#ifndef ENGINE_WORK_H
#define ENGINE_WORK_H

#include <string.h>

#include "engine/model.h"

#define LOGIT_ROWS 16
#define BATCH_MAX_RUNS 65 /* a chunk, and all that decode */

/* All f32 unless stated, memory of the backend. D is hidden_size, d head_dim.
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
    float *confidence, *d_confidence; /* [CONFIG_MAX_DRAFT_BLOCK] */
    float *logits, *d_logits;         /* [LOGIT_ROWS][vocab] */
};

/* Makes room for batches of n tokens; what was recorded with the old buffers is forgotten
 * (graphs.h). ERR_NOMEM: the old ones stay. */
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

#endif
