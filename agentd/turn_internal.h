/* What the files of the turn machine share. Included by turn*.c and their tests only. */
#ifndef AGENTD_TURN_INTERNAL_H
#define AGENTD_TURN_INTERNAL_H

#include "agentd/commit.h"
#include "agentd/cut.h"
#include "agentd/daemon.h"
#include "agentd/engine_thread.h"
#include "agentd/events.h"
#include "agentd/ledger.h"
#include "agentd/live.h"
#include "agentd/peer.h"
#include "agentd/saver.h"
#include "agentd/seq_job.h"
#include "agentd/turn.h"
#include "agentd/user_prompt.h"
#include "base/ulid.h"
#include "engine/chat_parser.h"
#include "engine/ids.h"

enum turn_phase {
    TURN_ACCEPT,
    TURN_RESTORE,
    TURN_FEED,
    TURN_RUN,
    TURN_STEP,
    TURN_TOOLS,
    TURN_COMPACT,
    TURN_RESULTS,
    TURN_END,
    TURN_OVER,
    TURN_PHASES
};

/* Tokens on the tape that the sequence has not computed, with the segments they are in. */
struct feed {
    uint32_t *ids; /* of tape positions [first, end) */
    uint64_t first, end;
    struct tape_segment *segments; /* of these positions; the first may begin before `first` */
    size_t n_segments, at;         /* at: the one in work */
    uint64_t t0_ns, from;          /* when it began, and at which position; 0: not yet */
};

/* One generated run, from its boundary on the tape to its commit. */
struct run {
    uint64_t start; /* tape position */
    struct chat_parser *parser;
    struct ids ids;   /* on the tape, sampled, or forced */
    size_t n_known;   /* ids[0..n_known) happened: fed to the parser, unless `unread` */
    bool unread;      /* the parser failed */
    size_t n_flushed; /* of these, sent to the tape */
    size_t n_before;  /* of these, on the tape before this process */
    bool flushing;    /* such a commit is under way */
    bool is_forced;   /* ids holds all of the run from the start */
    bool has_digest;  /* digest is that of the whole run */
    bool only_given;  /* of what was queued last */
    bool settling;    /* the last ids are being computed after a stop */
    enum end_reason end;
    uint64_t shown[2];          /* bytes of UTF-8 sent as deltas: reasoning, assistant */
    uint64_t t0_ns, t_first_ns; /* queued; first token (0: none yet) */
    struct seq_digest digest;
    json_t *
        logprobs[2]; /* of reasoning and answer, as far as they were sampled here; NULL: none */
    size_t n_logprobs;
};

struct step_ahead;
struct tool_watch;

/* Most bytes of a running tool's output that are kept for computing ahead. */
#define STEP_OUTPUT_MAX ((size_t)256 << 10)

/* One call of a step, until its result is on the tape. */
struct step_call {
    struct turn *turn;
    char id[TAPE_ID_CAP];
    char *name, *arguments;
    uint32_t index;
    enum call_status status;
    bool is_error;
    bool is_client; /* answered by tool/result */
    bool wants_approval;
    char *why;     /* it wants it: a rule; NULL: the mode of the session */
    json_t *extra; /* more fields of the result's item: {cwd?, todo?}; NULL: none */
    char *result;  /* bytes for the model; owned */
    size_t n_result;
    char *spill;
    uint64_t spill_bytes;
    struct buf output;        /* while it runs: bytes that its result will begin with */
    struct tool_watch *watch; /* running here */
    bool waits_for_job;       /* for its end, or a time */
    uv_timer_t *deadline;     /* of an approval or a client's answer; freed by its close */
    bool committing;          /* a commit of this call is under way */
    bool committed;           /* the outcome is durable */
};

struct tool_step {
    uint32_t step;
    struct step_call *calls;
    size_t n_calls;
    char *note;     /* of the loop guard, for the model; NULL: none */
    bool stop_loop; /* the loop guard ends the turn instead of running these */
    bool opening;   /* the calls are being begun */
    uint64_t t0_ns;
    struct step_ahead *ahead; /* turn_ahead.c; NULL: nothing is computed ahead */
};

/* Identical calls in a row, over the steps of a turn; and calls of one tool in a row whose
 * arguments were wrong. */
struct loop_guard {
    uint8_t last[32]; /* digest of name and arguments */
    uint32_t n;
    uint8_t wrong[32]; /* digest of the name */
    uint32_t n_wrong;
};

struct input_build;
struct late;
struct restore;

/* The tape is summarised inside a turn, before the results of a step: turn_compact.c. In the
 * turn's row from the first commit of it to the last. */
struct compaction {
    uint32_t step;        /* whose results are due */
    struct ids run;       /* the run that made the calls: it follows the summary, as it was */
    char *summary;        /* NULL: not written yet */
    uint64_t was;         /* tokens that it stands for, the run included */
    uint64_t decoded;     /* turn.decoded then */
    struct cut_kept kept; /* once the tape has begun anew; not in the row */
};

/* Text for the turn in work, until it is on the tape or the turn is over. */
struct steer {
    struct steer *next;
    char item[TAPE_ID_CAP];
    struct buf text; /* constant */
    char *message;   /* the client's id of it, or NULL */
    bool durable;    /* the turn's row has it */
    bool taken;      /* it is in the input segment that is being committed */
};

#define NO_RUN UINT64_MAX

struct turn {
    struct live *session;
    enum turn_phase phase;
    char id[ULID_CHARS + 1];
    uint32_t step;           /* model steps done */
    uint64_t tape_start;     /* tape length before the prompt */
    uint64_t decoded;        /* in runs that are done, but for summaries */
    uint64_t decoded_before; /* of these, on a tape that is not the session's any more */
    uint64_t left_behind;    /* tokens that were computed in this turn's ledger on such tapes */
    /* For the ledger: tokens below `history` were computed before (by a process that is gone),
     * those below `durable` are in a state commit; `counted` is how far the ledger is. */
    uint64_t history, durable, counted;
    struct forced_runs forced;
    uint64_t forced_next;
    uint64_t open_run; /* start of the generated segment that is open on the tape, or NO_RUN */
    char *client_message; /* of the prompt, NULL: none */
    uint64_t receipt_seq;
    struct request *request;       /* session/prompt, until it is answered */
    const char *was;               /* the session's reason before */
    struct input_build *build;     /* of the commit under way */
    struct steer *steers;          /* oldest first */
    uint32_t n_steered;            /* how many there were: for ids of items */
    struct compaction *compaction; /* under way, or NULL */
    struct ids last_run;           /* the newest run that is closed and has no results yet */
    uint32_t n_summaries;          /* of the steps, those that wrote one */
    uint32_t compacted_at;         /* the step before which it was tried last, + 1; 0: never */
    bool compacts_no_more;         /* the last one gained too little */
    bool measuring;                /* of TOOLS: how long the results are is being found out */
    bool is_full;                  /* the context has no room for what comes next */
    char cut_note[TAPE_ID_CAP];    /* id of the item that says that results were cut */
    struct tape_end end;           /* how the tape ends while results are due */
    bool compacts;                 /* its answer becomes the session's summary */
    char *summary;                 /* that, or NULL */
    bool ending;                   /* the commit that ends it is under way */
    bool recovered; /* it began in a process that is gone, or left memory since */
    bool starved;   /* in RESTORE, until there is memory: turn_memory.c */
    bool was_alone; /* in memory, and got none: nothing more is to be had */
    bool cancelled; /* asked to stop */
    bool failed;    /* has to stop, see error */
    struct error error;
    bool engine_busy; /* work is queued on the sequence: an ENGINE_DONE will come */
    bool input_waits; /* FEED waits for saver_holds_input to end */
    bool is_ahead;    /* the engine was given input that is not on the tape */

    struct late *spoiled; /* whose damaged extents the next restore sets aside; NULL: none */
    uint32_t n_starts;    /* begun again because of them */
    struct run_seen {
        uint32_t step;
        uint64_t shown[2]; /* of this step's run, before it was begun again */
    } seen;

    struct restore *restore;
    struct feed feed;
    struct run *run;
    struct tool_step *tools;
    struct loop_guard guard;
    struct seq_job job; /* the one engine job that is outstanding */

    struct tape_segment *digests; /* completed segments whose digest is not on the tape yet */
    size_t n_digests;

    struct ledger ledger;
    uint64_t created_ns;
    uint64_t progress_ns; /* last session/progress */
    struct turn_progress_seen {
        const char *phase; /* constant; NULL: none is under way */
        uint64_t done, total;
    } progress; /* of a phase that is counted */
};

/* ---- turn.c ----------------------------------------------------------------------- */

/* A turn in phase ACCEPT (or, for a recovered one, about to RESTORE), hung into its session. */
struct turn *turn_new(struct live *s, const char *id);
void turn_free(struct turn *t);
/* The only place where a phase changes; asserts that the move is in the table. Sets the public
 * state with it. */
void turn_move(struct turn *t, enum turn_phase to);
bool turn_may_move(enum turn_phase from, enum turn_phase to);
/* Whether the turn has to stop; then its end is on its way. To be asked at every step of the
 * machine before it goes on, with nothing in flight. */
bool turn_stops(struct turn *t);
/* Remembers the error; the turn stops as soon as the engine is done with what it has. */
void turn_fail(struct turn *t, enum err rc, const struct error *e);
/* The last commit is durable (or cannot be): idle from now on. Frees t. */
void turn_over(struct turn *t, const char *reason);
/* Brings state into memory if need be, then computes what the tape has. */
void turn_go(struct turn *t);
/* Adds what a finished turn leaves on the tape: usage, state, turn row. */
void turn_commit_end(struct turn *t, struct commit *c, const char *reason);
/* The turn's row, unfinished, as it is now; with_params: what it was asked, as well. */
void turn_commit_row(struct turn *t, struct commit *c, bool with_params);
void turn_commit_digests(struct turn *t, struct commit *c);
void turn_keep_digest(struct turn *t, const struct tape_segment *seg,
                      const struct seq_digest *digest);
void turn_progress(struct turn *t, const char *phase, uint64_t done, uint64_t total,
                   uint64_t t0_ns);
/* "<turn>.<step>.<what>": the same again after a crash. out: TAPE_ID_CAP bytes. */
void turn_item_id(const struct turn *t, uint32_t step, const char *what, char *out);

/* ---- turn_logprobs.c -------------------------------------------------------------- */

/* What the model thought of the id that is learned next; p may be NULL. */
void run_note_logprobs(struct turn *t, const struct token_logprobs *p);
/* Adds to an item (kind 0: reasoning, 1: answer) what is known of its tokens. */
void run_add_logprobs(const struct run *r, int kind, json_t *item);

/* ---- turn_prompt.c ---------------------------------------------------------------- */

/* A turn from a prompt. The receipt goes to r when it is durable (NULL: the prompt was queued,
 * and has one). Takes message and forced runs of p. On failure nothing has happened. */
NODISCARD enum err turn_begin(struct live *s, const char *id, struct user_prompt *p,
                              struct request *r, struct error *e);
/* Begins it, or queues it if the session is busy. */
NODISCARD enum err turn_accept(struct request *r, struct live *s, struct user_prompt *p,
                               struct error *e);
/* {turnId, seq} */
json_t *turn_receipt(const char *turn, uint64_t seq);

/* ---- turn_queue.c ----------------------------------------------------------------- */

#define QUEUE_MAX_PROMPTS 16  /* of a session, behind the turn in work */
#define QUEUED_STATE "queued" /* of the row of a turn that has not begun */

/* A prompt that waits for the turns before it: durable as the row of a turn in QUEUED_STATE. */
struct queued_prompt {
    struct queued_prompt *next;
    char id[TAPE_ID_CAP]; /* of the turn that it will be */
    struct user_prompt prompt;
    uint64_t receipt_seq;
    bool durable;   /* its row is on the tape */
    bool withdrawn; /* before that */
};
void queued_prompt_free(struct queued_prompt *q);

/* Behind what is queued; the receipt {turnId, seq, queued} goes to r when it is durable.
 * ERR_BUSY: the queue is full. Takes p's contents. */
NODISCARD enum err turn_enqueue(struct live *s, const char *id, struct user_prompt *p,
                                struct request *r, struct error *e);
/* The same from a row that a restart found. */
NODISCARD enum err turn_requeue(struct live *s, const char *id, uint64_t receipt_seq,
                                const char *client_message, const char *params,
                                struct error *e);
/* Withdraws all that is queued, or this one. Whether there was any. */
bool turn_queue_cancel(struct live *s, const char *turn);
/* Begins the first of the queue, if the session is idle. */
void turn_queue_next(struct live *s);

/* ---- turn_steer.c ----------------------------------------------------------------- */

void steers_free(struct turn *t);
/* [{item, text}...] of those that are not taken, for the turn's row. NULL when out of memory.
 */
json_t *steers_json(const struct turn *t);
NODISCARD enum err steers_read(struct turn *t, const json_t *list, struct error *e);
/* Takes what is durable into the input segment of c. */
void steers_take(struct turn *t, struct commit *c, struct input_build *b);
/* That segment is on the tape. */
void steers_drop_taken(struct turn *t);
/* The turn ends without them. */
void steers_commit_end(struct turn *t, struct commit *c);

/* ---- turn_input.c (store's thread, as commit.prepare) ----------------------------- */

/* What building an input segment needs, plain and constant: made by the loop, read by the
 * store's thread. */
struct input_build {
    const struct daemon *daemon;         /* model, chat: constant */
    const struct session_config *config; /* plain fields and text only */
    const char *user;                    /* text of the prompt, NULL: none */
    size_t n_user;
    const struct tool_step *results; /* of this step; NULL: look for calls left open */
    const struct steer **steers;     /* texts that follow the results; in the commit's arena */
    size_t n_steers;
    bool held_back; /* in place of the results only a note that they are still to come */
    const struct compaction *compaction; /* its summary was written: what follows it, NULL: none
                                          */
    uint64_t most;     /* results are cut so that the tape gets no longer than this; 0: never */
    size_t result_cap; /* bytes of a result; 0: all */
    const char *turn, *note; /* id of the item that says that results were cut; NULL: none */
    size_t n_longest;        /* bytes of the longest one, once it was built */
    struct tape_end end;     /* how the tape ends; looked up if not known */
    uint64_t length;         /* tape length; looked up with it */
    uint32_t n_calls;        /* of the run that the tape ends with; looked up with it */
    uint64_t n_input;        /* out: tokens of the input segment */
    uint64_t n_opening;      /* out: of these, before the results and texts */
    bool is_full;            /* out, with ERR_LIMIT: the context is the limit */
};
/* commit.user is a struct input_build. */
enum err turn_prepare_input(struct commit *c, struct store *st, struct error *e);
/* Only counts: n_input of results that are not cut. */
enum err turn_measure_input(struct input_build *b, struct error *e);

/* ---- turn_restore.c --------------------------------------------------------------- */

void turn_restore(struct turn *t);
void turn_restore_cancel(struct turn *t);
void turn_restore_on_engine(struct turn *t, const struct engine_note *n);
void restore_free(struct restore *r);

/* The same once more, with t->spoiled. */
void turn_restore_again(struct turn *t);

/* ---- turn_late.c ------------------------------------------------------------------ */

/* After work of the engine that failed, with nothing queued: if that is why, the turn goes on
 * from what verifies, and true is returned. */
bool turn_start_over(struct turn *t, const struct error *why);
/* The same, once what the run has sampled is on the tape. */
void turn_start_again(struct turn *t);

/* ---- turn_feed.c ------------------------------------------------------------------ */

/* Takes ids and segments of `tape` from the computed position on; the tape may be freed. */
NODISCARD enum err feed_from_tape(struct turn *t, const struct tape *tape, struct error *e);
/* The same from a commit that has just put them there. */
NODISCARD enum err feed_from_commit(struct turn *t, const struct commit *c, struct error *e);
void feed_fini(struct feed *f);
/* Reads the tape first if the sequence is behind what feed holds. */
void turn_feed(struct turn *t);
void turn_feed_on_engine(struct turn *t, const struct engine_note *n);
void turn_feed_on_saver(struct turn *t);

/* Puts what was computed since the last call into the ledger. */
void turn_count(struct turn *t, uint64_t position, enum segment_kind new_kind);
void turn_save_midway(struct turn *t, uint64_t input_end);

/* ---- turn_run.c ------------------------------------------------------------------- */

/* A run that begins at `start`; the n ids are on the tape already (after a restart). */
void turn_run(struct turn *t, uint64_t start, const uint32_t *ids, size_t n);
void turn_run_on_engine(struct turn *t, const struct engine_note *n);
/* Queues again what the engine had no memory for. */
void turn_run_again(struct turn *t);
void run_free(struct run *r);
/* Appends the ids that are not on the tape yet, and the end of the run's segment. */
void run_commit_end(struct turn *t, struct commit *c);
void run_repeat_deltas(const struct turn *t, struct subscription *to);

/* ---- turn_step.c ------------------------------------------------------------------ */

/* The run is done: commits it and everything that follows from it. */
void turn_step(struct turn *t);
/* Adds what it computed and thought, and its end. */
void step_commit_run(struct turn *t, struct commit *c);

/* ---- turn_calls.c ----------------------------------------------------------------- */

/* A step without calls: only text that steers comes behind the run. NULL: out of memory. */
struct tool_step *tool_step_empty(uint32_t step);
/* The calls of a run, checked, none begun; NULL when out of memory. */
struct tool_step *tool_step_new(struct turn *t);
/* What still runs is killed. */
void tool_step_free(struct tool_step *ts);
/* Fills a call record for the tape. */
void step_call_record(const struct turn *t, const struct step_call *c, struct tape_call *out);
/* The items of call and result. */
void step_call_event(struct turn *t, struct commit *c, const struct step_call *call);
void step_result_event(struct turn *t, struct commit *c, const struct step_call *call);
/* Gives a call its outcome; bytes are copied. */
void step_call_set(struct step_call *c, enum call_status status, bool is_error,
                   const void *bytes, size_t n);
/* Counts one call; the number of identical ones in a row, this one included. */
uint32_t loop_guard_count(struct loop_guard *g, const char *name, const char *arguments);

/* The same for calls with wrong arguments: the number of them in a row, 0 for a good one. */
uint32_t loop_guard_wrong(struct loop_guard *g, const char *name, bool is_wrong);

/* ---- turn_own_tools.c ------------------------------------------------------------- */

struct tool_call;
/* Begins a call that the daemon answers itself: turn_call_done follows, perhaps from here.
 * False: it is none. */
bool turn_start_own(struct step_call *c, const json_t *arguments);
/* Begins the call, of `run`, as a job; turn_call_done follows. */
void turn_start_job(struct step_call *c, struct tool_call *call);
/* Whether s->notes have to be known before it begins. */
bool turn_call_needs_notes(const struct step_call *c);
/* It does not wait for a job any more. */
void turn_stop_waiting(struct step_call *c);

/* ---- turn_compact.c --------------------------------------------------------------- */

/* All outcomes of the step are durable: puts the results on the tape, behind a summary if
 * there is no room for them otherwise, and cut if there is none then. */
void turn_compact_or_results(struct turn *t);
/* STEP of the run that was to write the summary. */
void turn_compact_step(struct turn *t);
/* A restart found the summary written: tape_is_new says whether the tape has begun anew. */
void turn_compact_resume(struct turn *t, bool tape_is_new, const struct cut_kept *kept);
/* Adds to the commit of the results what the turn's row is then. */
void turn_compact_commit(struct turn *t, struct commit *c);
/* The results are on the tape. */
void turn_compact_done(struct turn *t);
/* Where the tape is to end, with results, texts and what is kept for the answer. */
uint64_t turn_compact_most(const struct turn *t);
/* Where the run in work has to end. */
uint64_t turn_run_most(const struct turn *t);
void compaction_free(struct compaction *k);
/* For the turn's row. NULL when out of memory. */
json_t *compaction_json(const struct compaction *k);
NODISCARD enum err compaction_read(const json_t *j, struct compaction **out, struct error *e);

/* ---- turn_memory.c ---------------------------------------------------------------- */

/* A turn that has failed for lack of memory goes on, now or later: true. */
bool turn_gets_memory(struct turn *t);
/* Some may be free, or could be: the turn that waits longest tries again. */
void turns_on_memory(struct daemon *d);

/* ---- turn_tools.c ----------------------------------------------------------------- */

/* Results (and texts that steer) become the next input segment. */
void turn_results(struct turn *t);
/* Begins every call of t->tools that has no outcome; outcomes that are not on the tape yet
 * (calls that a restart found interrupted) are written. */
void turn_tools(struct turn *t);
/* The outcome of a call that runs nowhere any more: made durable, then shown. */
void turn_call_done(struct step_call *c, enum call_status status, bool is_error,
                    const void *bytes, size_t n);
/* The turn has to stop: kills what runs, and goes on to its end when that is over. */
void turn_tools_cancel(struct turn *t);
/* Kills what runs and forgets who was asked. Nothing is committed. */
void turn_tools_drop(struct tool_step *ts);
/* Asks a new reader for the approvals that are due. */
void turn_repeat_approvals(const struct turn *t, struct subscription *to);

/* ---- turn_ahead.c ----------------------------------------------------------------- */

/* Begins to compute results ahead, from what is known of them. */
void turn_ahead_begin(struct turn *t);
/* A running call wrote bytes that its result will hold at this place. */
void turn_ahead_output(struct step_call *c, const void *bytes, size_t n);
/* To be called when a call has its outcome. */
void turn_ahead_advance(struct turn *t);
/* The turn ends, or its next input is queued: nothing is ahead any more. */
void turn_ahead_end(struct turn *t);
void step_ahead_free(struct step_ahead *a);

#define LOOP_NOTE 3 /* identical calls in a row that draw a note */
#define LOOP_STOP 5 /* that stop the turn */

#define INTERRUPTED_TEXT                                                                       \
    "[interrupted: the daemon stopped while this call was running. Its outcome is unknown; "   \
    "it "                                                                                      \
    "was not run again.]"

#endif
