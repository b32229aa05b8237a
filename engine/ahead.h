/* Input computed before its segment is on the tape (seq_ahead in engine.h). Private to engine/.
 *
 * Until the segment's length is known nobody can say which of its tokens the layers above the
 * last KV source run on: in mode ced the last W, or all if it is not longer than W. So the
 * layers up to there run on every token as it comes, and the streams of the last W wait. When
 * the segment comes, the layers above run on those of them that are in its tail, as one run,
 * and it goes on from there like any segment that was stopped inside. In mode full every layer
 * runs at once and nothing waits. Mode ced-report clips the last source's layer, too, and a
 * model without layers above it has nothing to wait for: neither is computed ahead.
 *
 * Rows are written above those that count, which makes them uncommitted; everything else of the
 * sequence (rings, unfinished groups, ids, digest, last row) is put aside as `base` and gone on
 * with as copies. Dropping is putting it back; taking over is forgetting it. */
#ifndef ENGINE_AHEAD_H
#define ENGINE_AHEAD_H

#include "engine/held.h"
#include "engine/seq.h"

/* Fewer are not worth a run through the layers: they wait for more, or for the segment. */
#define AHEAD_MIN_TOKENS 64

/* What a sequence is, planes excepted. */
struct seq_base {
    struct kv_rest kv;
    uint32_t history[CONFIG_MAX_NGRAM - 1];
    float *last;
    bool has_last;
    struct seq_digest digest;
};

struct ahead {
    enum prefill_mode mode;
    struct seq_base base;
    uint32_t *ids; /* of the segment, from its start */
    uint64_t n_ids, cap;
    uint64_t done; /* computed */
    bool stopped;  /* a chunk failed: the segment itself will meet that again, and say so */
    struct held held;
};

/* seq_ahead, seq_ahead_drop and seq_ahead_tokens of engine.h, for a model. */
enum err model_seq_ahead(struct seq *s, const uint32_t *ids, uint64_t n, enum prefill_mode mode,
                         struct error *e);
void model_seq_ahead_drop(struct seq *s);
uint64_t model_seq_ahead_tokens(const struct seq *s);

/* Whether these ids begin with those that were computed, so that the segment can take over. */
bool ahead_fits(const struct ahead *a, const uint32_t *ids, uint64_t n, enum prefill_mode mode);
/* Whether a step has something to compute ahead. */
bool ahead_is_due(const struct model_seq *s);
/* The next chunk to compute, of at most `most` tokens. Borrows what is ahead. */
struct run ahead_run(struct model_seq *s, uint32_t most);
/* It is part of the sequence now, and its streams are in the work buffers still. */
void ahead_ran(struct model_seq *s, const struct run *r);
/* What waits and is in the tail of the queued segment, as a run of the layers above; n is 0
 * where nothing has to run. Then, or when it has run, ahead_close() makes what was computed a
 * part of the queued work. */
struct run ahead_run_above(struct model_seq *s, uint32_t history[CONFIG_MAX_NGRAM - 1]);
void ahead_close(struct model_seq *s);
/* `view` becomes a copy of the sequence as it is without what is ahead; only to be read. */
void ahead_view(const struct model_seq *s, struct model_seq *view);

#endif
