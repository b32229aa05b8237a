/* Engram in the forward pass: rows of n-gram tables follow from token ids alone, so that they
 * are known, and asked for, long before the layer that adds them to the streams. (Model
 * description, section 9.)
 *
 *     forward_engram_prefetch()   reads ahead for ids that are queued
 *     forward_engram_ids()        a run's row numbers, as it begins
 *     forward_engram()            in front of each layer: rows, gate, streams
 *
 * Part of a pass (forward.h). What fails in here, a read or a NaN scale, is in m->broken. */
#ifndef ENGINE_FORWARD_ENGRAM_H
#define ENGINE_FORWARD_ENGRAM_H

#include "engine/forward.h"

/* What struct run calls its history, of the last ids that a sequence keeps for any n-gram. */
static inline const uint32_t *forward_engram_history(const struct model *m,
                                                     const uint32_t last[CONFIG_MAX_NGRAM - 1])
{
    return last + (CONFIG_MAX_NGRAM - m->config.engram_ngram);
}

/* Starts to read the rows of the tokens ids[at], ids[at + 1] .. ids[at + n - 1]; before ids[0]
 * comes the history, as in struct run. */
void forward_engram_prefetch(struct model *m, const uint32_t *history, const uint32_t *ids,
                             uint64_t at, uint64_t n);

/* Row numbers of the run's tokens in the tables of all Engram layers, to w->engram_ids; starts
 * to read them. */
void forward_engram_ids(struct model *m, const struct run *r);

/* Tells the slots of Engram rows (engram_slots.h), where there are any, what the batch looks up
 * in Engram layer number k; past the last one, what the first of them will of the chunk behind
 * this one, as far as its ids are known: of FORWARD_ENGRAM_NEXT tokens at most. */
#define FORWARD_ENGRAM_NEXT 256
void forward_engram_expect(struct model *m, const struct batch *batch, uint32_t k);

/* The rows of all layers, for a steady batch, in front of its first layer. */
void forward_engram_rows(struct model *m, const struct batch *batch);

/* Adds what its rows say to the streams that enter `layer`, if that is an Engram layer: looked
 * up here, or, for a steady batch, by forward_engram_rows(). */
void forward_engram(struct model *m, const struct batch *batch, uint32_t layer);

#endif
