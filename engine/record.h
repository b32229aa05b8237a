/* Keeps what an observer sees: logits of every computed row and, if wanted, the tensors between
 * the layers, each row with its position. For `agentd score` and for tests. */
#ifndef ENGINE_RECORD_H
#define ENGINE_RECORD_H

#include <stdbool.h>

#include "engine/observe.h"

/* Rows of one tensor in the order they were computed. */
struct record_tensor {
    char name[32];
    uint32_t layer; /* UINT32_MAX: of no layer */
    enum observed_type type;
    uint32_t width;
    uint64_t n, cap; /* rows */
    uint64_t *positions;
    void *data; /* [n][width] of the type */
};

struct record {
    struct engine *engine;
    bool wants_tensors;
    struct record_tensor logits; /* f32 [n][vocab] */
    struct record_tensor *tensors;
    size_t n_tensors, cap_tensors;
    struct error error; /* the first failure to keep something (memory) */
};

/* What keeps; user is the record. For an observer that does more than this one. */
void record_logits(void *record, struct seq *s, uint64_t position, const float *logits);
void record_observed(void *record, struct seq *s, const struct observed *o);

/* Becomes the engine's observer until record_fini(). */
void record_init(struct record *r, struct engine *m, bool wants_tensors);
void record_fini(struct record *r);
/* Forgets all rows. */
void record_clear(struct record *r);

/* NULL: never seen. */
const struct record_tensor *record_find(const struct record *r, const char *name,
                                        uint32_t layer);
/* The newest row of a position; NULL: none. */
const void *record_row(const struct record_tensor *t, uint64_t position);

#endif
