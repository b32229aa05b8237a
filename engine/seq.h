/* One sequence of a checkpoint: its state, and the piece of work that is queued. Private to
 * engine/; the calls of engine.h arrive here, engine_step() (sched.c) does the work. */
#ifndef ENGINE_SEQ_H
#define ENGINE_SEQ_H

#include "engine/constrain.h"
#include "engine/model.h"
#include "engine/resume.h"
#include "engine/stop.h"

struct ahead;

enum work_kind { WORK_NONE, WORK_INPUT, WORK_GENERATE, WORK_REBUILD };

/* Queued work. ids are what is given: the input, the given part of a run, or the tape's end
 * that is replayed. */
struct queued {
    enum work_kind kind;
    bool cancelled;
    uint32_t *ids;
    uint64_t n_ids, done; /* done: of n_ids */

    struct open_segment segment; /* WORK_INPUT: becomes the sequence's with the first chunk */
    uint64_t from[N_LAYER_CLASSES], lo[N_LAYER_CLASSES];

    struct sampling sampling;     /* WORK_GENERATE */
    struct constrain_state calls; /* where the run is, `next` included */
    struct stop_watch *stop;      /* NULL: nothing stops it */
    bool stops;                   /* with `next`, or with the last given id */
    uint64_t max_tokens, n_new;
    bool end_with_given, resumes;
    bool has_next;
    uint32_t next; /* sampled and reported, not computed yet */

    struct resume_plan plan; /* WORK_REBUILD */
    uint32_t history[CONFIG_MAX_NGRAM - 1];
};

struct model_seq {
    struct seq seq; /* first: engine.h hands this out */
    struct model_seq *next;
    struct kv kv;
    uint32_t history[CONFIG_MAX_NGRAM - 1]; /* last ids, oldest first; ENGRAM_DEAD: none */
    float *last;   /* [dim] collapsed last row, before the final norm; the backend's memory.
                      Where has_last is not set it means nothing */
    bool has_last; /* false: the last token was not computed by all layers */
    struct open_segment open;
    struct seq_digest digest;
    uint64_t importing; /* tokens of an import that is not committed; 0: none */
    bool failed;        /* a step failed: only good for seq_free */
    struct queued work;
    struct ahead *ahead; /* ahead.h; NULL: nothing. While it is there, kv's rest, history, last
                            and digest above are those at its end */
};

static inline struct model_seq *seq_of(struct seq *s)
{
    return (struct model_seq *)(void *)s;
}
static inline const struct model_seq *seq_of_const(const struct seq *s)
{
    return (const struct model_seq *)(const void *)s;
}
static inline struct model *model_of_seq(const struct model_seq *s)
{
    return model_of(s->seq.m);
}

/* The functions of engine.h for a checkpoint (struct engine_ops). */
enum err model_seq_new(struct engine *m, struct seq **out, struct error *e);
void model_seq_free(struct seq *s);
uint64_t model_seq_position(const struct seq *s);
enum err model_seq_input(struct seq *s, const uint32_t *ids, uint64_t n, enum prefill_mode mode,
                         struct error *e);
enum err model_seq_generate(struct seq *s, const struct generate_options *g, struct error *e);
void model_seq_cancel(struct seq *s);
struct seq_digest model_seq_digest(const struct seq *s);
bool model_seq_segment_open(const struct seq *s, uint64_t *start, enum prefill_mode *mode);
enum err model_seq_export_rows(const struct seq *s, uint32_t plane, uint64_t row0,
                               uint64_t n_rows, void *dst, struct error *e);
enum err model_seq_import_begin(struct seq *s, uint64_t n_tokens, struct state_regions *out,
                                struct error *e);
enum err model_seq_import_fetch(struct seq *s, const struct state_fetch *fetch,
                                struct error *e);
enum err model_seq_rebuild(struct seq *s, const struct tape_view *tape, enum resume_mode mode,
                           const struct seq_digest *digest, uint64_t *n_replayed,
                           struct error *e);
/* tip.c */
uint64_t tip_bytes(const struct model *m);
enum err model_seq_export_tip(const struct seq *s, void *dst, struct error *e);
enum err model_seq_import_tip(struct seq *s, const void *tip, size_t n_bytes,
                              const struct seq_digest *digest, struct error *e);
/* sched.c */
bool model_has_work(const struct engine *m);
/* Most rows of one pass. */
uint32_t model_step_rows(const struct model *m);
enum err model_step(struct engine *m, struct engine_event *events, size_t cap, size_t *n_events,
                    struct error *e);

/* Forgets the queued work. */
void seq_drop_work(struct model_seq *s);
/* id is the run's next one: for what watches over its text. ERR_LIMIT, ERR_NOMEM. */
NODISCARD enum err seq_note_id(struct queued *q, uint32_t id, struct error *e);

#endif
