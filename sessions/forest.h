/* The catalog in memory, as what hangs on what: a block on its parent, a tail on the tail or
 * block before it, a tip on the chain it stands behind; and which sessions hold each.
 *
 *     LOAD     rows, 2048 a step; read without their tags: a wrong pointer costs a wrong choice
 *     LINK     parents by id
 *     HOLD     session by session: its heads' chains are walked and weighed
 *
 * A picture, not the truth: the store goes on between steps. Whoever acts on a node looks at
 * its row again. Memory: 104 bytes an extent. */
#ifndef SESSIONS_FOREST_H
#define SESSIONS_FOREST_H

#include "sessions/catalog.h"

struct node {
    int64_t id;
    int64_t block, tail; /* what its row hangs it on */
    struct pack_place place;
    uint64_t commit;
    double weight;  /* uses of the sessions whose newest head needs it */
    int32_t parent; /* index; -1: none */
    uint32_t n_children;
    uint32_t tokens;    /* that would have to be computed again; a tip: replayed */
    uint32_t stamp;     /* number of the last session that was seen to hold it */
    uint32_t n_holders; /* sessions */
    enum catalog_table kind;
    bool pinned, damaged, gone;
};

enum forest_phase {
    FOREST_BLOCKS,
    FOREST_TAILS,
    FOREST_TIPS,
    FOREST_LINK,
    FOREST_HOLD,
    FOREST_READY
};

struct forest {
    struct store *st;
    struct node *nodes; /* blocks, tails, tips, each by id */
    size_t n, cap;
    size_t first[4]; /* of each kind; [3] = n */
    enum forest_phase phase;
    int64_t at; /* id, index or session that the next step goes on behind */
    uint64_t now_ms;
    uint32_t stamp;
};

/* An empty picture; st is borrowed. Nothing can fail before the first step. */
void forest_init(struct forest *f, struct store *st);
void forest_fini(struct forest *f);
/* ERR_NOMEM, ERR_IO. */
NODISCARD enum err forest_step(struct forest *f, struct error *e);
NODISCARD enum err forest_load(struct forest *f, struct error *e); /* all steps */

/* Index of an extent; -1: not there. */
int32_t forest_find(const struct forest *f, enum catalog_table kind, int64_t id);
/* Pins a node and all it hangs on. */
void forest_pin(struct forest *f, int32_t at);

static inline uint64_t node_bytes(const struct node *n)
{
    return (uint64_t)n->place.pages * EXTENT_PAGE;
}

#endif
