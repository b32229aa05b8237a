/* What the loop asks of the engine's thread about one sequence, as jobs.
 *
 * A session has at most one of these outstanding at a time (struct seq_job is embedded where it
 * is needed), besides ahead, and cancel and free, which nobody waits for. `then` runs on the
 * loop thread with job.rc; the events of queued work follow through engine_thread's listener.
 * Memory that is handed in is borrowed until `then`. */
#ifndef AGENTD_SEQ_JOB_H
#define AGENTD_SEQ_JOB_H

#include "agentd/job.h"
#include "engine/engine.h"
#include "engine/ids.h"

struct daemon;
struct late;
struct live;

struct seq_job {
    struct job job;
    struct live *session; /* pinned from submission to `then` */
    void (*then)(struct live *s, struct seq_job *j);
    struct engine *engine; /* for the engine's thread */
    struct seq *seq;       /* in; out of seq_job_open and _import */
    bool is_input;         /* u.input is what counts */
    union {
        struct {
            const uint32_t *ids;
            uint64_t n;
            enum prefill_mode mode;
            uint64_t n_ahead; /* out: of these, computed ahead and taken over */
        } input;
        struct {
            struct ids ids; /* owned */
            enum prefill_mode mode;
            void (*then)(struct live *, struct seq_job *);
        } ahead;
        struct generate_options generate;
        struct {
            uint64_t n_tokens;            /* 0: a fresh sequence */
            struct state_regions regions; /* out */
        } open;
        struct late *late; /* borrowed */
        struct {
            const void *tip;
            size_t n_bytes;
            const struct seq_digest *digest;
        } tip;
        struct {
            const struct tape_view *tape;
            enum resume_mode mode;
            const struct seq_digest *digest; /* NULL: not known */
            uint64_t n_replayed;             /* out */
        } rebuild;
    } u;
};

/* A copy of a sequence's state since `from`, in one heap block. */
struct state_copy {
    uint64_t from, to;
    void *plane[STATE_MAX_PLANES]; /* rows [from / ratio, to / ratio); NULL: none */
    void *tip;
    struct seq_digest digest;
    bool inside_segment; /* of an input segment that is not complete */
    void *memory;
};

void seq_job_input(struct live *s, struct seq_job *j, const uint32_t *ids, uint64_t n,
                   enum prefill_mode mode, void (*then)(struct live *, struct seq_job *));
/* Gives the engine input ahead of its segment (engine.h), and empties `ids`. The job is freed
 * after `then`, which may find the session in any state. NULL: out of memory. */
struct seq_job *seq_job_ahead(struct live *s, struct ids *ids, enum prefill_mode mode,
                              void (*then)(struct live *, struct seq_job *));
/* Drops what is ahead. Nobody waits for it. */
void seq_job_ahead_drop(struct live *s);
void seq_job_generate(struct live *s, struct seq_job *j, const struct generate_options *g,
                      void (*then)(struct live *, struct seq_job *));
/* A new sequence; with n_tokens > 0 its import is begun and u.open.regions say where to. */
void seq_job_open(struct live *s, struct seq_job *j, uint64_t n_tokens,
                  void (*then)(struct live *, struct seq_job *));
/* Whether main rows may stay behind in an import. */
bool seq_job_takes_late(const struct daemon *d);
/* After open: the main rows that `late` has stay with it. */
void seq_job_leave(struct live *s, struct seq_job *j, struct seq *seq, struct late *late,
                   void (*then)(struct live *, struct seq_job *));
void seq_job_import_tip(struct live *s, struct seq_job *j, struct seq *seq, const void *tip,
                        size_t n_bytes, const struct seq_digest *digest,
                        void (*then)(struct live *, struct seq_job *));
void seq_job_rebuild(struct live *s, struct seq_job *j, struct seq *seq,
                     const struct tape_view *tape, enum resume_mode mode,
                     const struct seq_digest *digest,
                     void (*then)(struct live *, struct seq_job *));

/* Stops the queued work soon; its ENGINE_DONE tells. Nothing queued: nothing happens. */
void seq_job_cancel(struct live *s);
/* Frees a sequence, whatever it is doing. The session stays pinned until that is done. */
void seq_job_free(struct live *s, struct seq *seq);

struct export_job {
    struct job job;
    struct live *session;
    void (*then)(struct live *s, struct export_job *j);
    const struct state_layout *layout;
    struct seq *seq;
    uint64_t from;
    uint64_t segment_end;   /* of the input segment in work, 0: none */
    struct state_copy copy; /* out; the caller frees copy.memory */
};
/* Copies rows since `from` and the tip at the position between two steps. ERR_BUSY inside the
 * last window of an input segment, where no tip is taken (store.md); ERR_NOMEM. */
void seq_job_export(struct live *s, struct export_job *j,
                    void (*then)(struct live *s, struct export_job *j));

#endif
