/* What one sequence does in one step: its run in the batch that the sequences of the step
 * share, and what becomes of it. Private to engine/; sched.c makes the batch, chunk.h and
 * decode.h are the two kinds of parts. */
#ifndef ENGINE_PART_H
#define ENGINE_PART_H

#include "engine/draft.h"
#include "engine/forward.h"
#include "engine/seq.h"

struct part {
    struct model_seq *s;
    bool is_chunk;
    struct seq_digest digest; /* of the segment up to the run; afterwards with its rows */

    uint32_t history[CONFIG_MAX_NGRAM - 1]; /* chunk: ids before those that were held */

    struct draft draft;                       /* decode: guesses behind the reported token */
    struct error draft_error;                 /* why draft.n_failed */
    uint32_t ids[1 + CONFIG_MAX_DRAFT_BLOCK]; /* decode: that token, then the guesses */
    struct token_logprobs *logprobs;          /* decode: [1 + guesses], or NULL: nobody asks */
};

/* ---- events -------------------------------------------------------------------------------
 */

/* Most events of one sequence in one step. */
#define EVENTS_PER_PART 2

struct event_list {
    struct engine_event *events;
    size_t cap, n;
};

struct engine_event *event_add(struct event_list *l, struct model_seq *s,
                               enum engine_event_kind kind);
/* The queued work has ended. */
void event_done(struct event_list *l, struct model_seq *s, enum end_reason reason);
/* It has failed: the sequence is only good for seq_free. */
void event_failed(struct event_list *l, struct model_seq *s, enum err rc,
                  const struct error *e);

/* ---- runs ---------------------------------------------------------------------------------
 */

/* A run of the queued work's segment. Borrows ids. */
struct run part_run(struct model_seq *s, const uint32_t *ids, uint64_t pos0, uint32_t n);
/* Room for the rows that it adds. ERR_LIMIT, ERR_IO: it may not begin. */
NODISCARD enum err part_make_room(const struct run *r, struct error *e);
/* One computed row's logits, for the digest and the observer, where somebody looks. */
void part_see_row(struct model *m, struct part *p, uint64_t position, const float *logits);
/* The run's first n tokens become part of the sequence. last: the collapsed row of the last
 * one; NULL: not all layers computed it. */
void part_keep(struct part *p, const struct run *r, uint32_t n, const float *last);
/* Nothing of the run ever was. */
void part_drop(struct part *p);
/* Nor of this one, and the work that wanted it ends. Input ahead only stops: its segment will
 * meet the error again, and say so. */
void part_fail(struct event_list *l, struct part *p, enum err rc, const struct error *e);

#endif
