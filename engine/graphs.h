/* Decode steps as launches that are recorded once and repeated (kernels.h, record): CUDA graphs
 * where the backend is CUDA.
 *
 * A step can be repeated when nothing in its calls depends on more than its shape: how many
 * sequences decode, with how many tokens each, and up to which power of two the longest of them
 * sees. Then the batch is steady: what changes from step to step (positions, ids, where the
 * state of a sequence lies) is written to memory of the backend in front of it, the Engram rows
 * of all layers as well.
 *
 * The first step of a shape is done call by call, which makes room for its scratch; the second
 * is recorded, all others are replays. What cannot be repeated is done call by call, always:
 * see graphs_why(). Belongs to the engine's thread, but for the counters. */
#ifndef ENGINE_GRAPHS_H
#define ENGINE_GRAPHS_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "kernels/kernels.h"

struct batch;
struct model;

/* One shape, and what became of it. Its place in the list is its slot in the backend. */
struct graph {
    uint64_t turn; /* of its last step; 0: no shape */
    uint64_t n_seen;
    uint32_t n_runs, n_failed;
    uint32_t *n; /* [n_runs] tokens of each */
    bool is_recorded;
};

struct graphs {
    struct graph list[K_MAX_RECORDS];
    uint64_t turn;
    _Atomic uint64_t n_recorded, n_replayed, n_plain; /* steps in which all runs decode */
};

/* Why no step of this model is ever repeated; NULL: they are. Static. Any thread. */
const char *graphs_why(const struct model *m);
/* Any thread. */
void graphs_counters(const struct model *m, struct engine_graphs *out);

/* Whether this batch is to be a steady one. */
bool graphs_take(const struct model *m, const struct batch *batch);

/* Does the ops of a steady batch, as a replay or by calling ops(), perhaps twice. */
void graphs_run(struct model *m, const struct batch *batch,
                void (*ops)(struct model *m, const struct batch *batch));
/* The engine's buffers have moved: what was recorded names the old ones. */
void graphs_forget(struct model *m);
void graphs_fini(struct graphs *g);

#endif
