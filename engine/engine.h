/* One model behind one interface: append-only sequences in, token ids and exportable state out.
 *
 * Two things stand behind it: a checkpoint (engine_open_model) and a script
 * (engine_open_script, for tests of everything above). All calls belong to the engine's thread
 * and none blocks for longer than one step; engine_interrupt() alone may come from any thread.
 *
 * Life of a sequence:
 *
 *     seq_new                         nothing computed
 *     seq_import_begin / _tip         or: take state that was exported before
 *     seq_rebuild                     or: planes only; the windows are computed again
 *     seq_input, seq_generate         queue one segment; engine_step() does the work
 *     seq_ahead                       before an input segment: as much of it as is known
 *     engine_step ... ENGINE_DONE     the segment is finished; queue the next
 *     seq_export_rows / _tip          between steps, at the position seq_position() says
 *     seq_free
 *
 * A sequence has at most one piece of work queued at a time. Its results are a pure function of
 * model, token ids, segment boundaries, prefill modes and numerics class: chunking, threads,
 * company in the batch and being stopped in between change no bit. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>

#include "base/state.h"
#include "kernels/sample.h"

struct engine;
struct kernels;
struct pool;
struct seq;
struct tokenizer;

/* ---- opening ------------------------------------------------------------------------------
 */

enum precision { PRECISION_FAST, PRECISION_FP32KVQ, PRECISION_MATH, PRECISION_OFFICIAL };

/* Who is told what opening does, on the thread that opens, while that waits. */
struct engine_watch {
    void *user;
    /* Weights are hashed: bytes so far, of all that have to be. First with 0, then each time a
     * thread has done some tens of megabytes, last with both equal. */
    void (*hashing)(void *user, uint64_t done, uint64_t total);
    /* What is no error, and may be worth a line in a log. */
    void (*notice)(void *user, const char *text);
};

struct engine_options {
    enum precision precision;
    const char *backend; /* "cpu" (default when NULL), "ref", "cuda" */
    /* A backend of the caller's own, instead of that one. pool outlives the table. */
    enum err (*open_kernels)(struct kernels *k, struct pool *pool, struct error *e);
    const char *cuda_library; /* for cuda: its file; NULL: as kernels/cuda.h finds it */
    int device;               /* for cuda: number of the device */
    const char *isa; /* for cpu: "avx512bf16", "avx512", "avx2", "portable"; NULL: best here */
    uint32_t n_threads;      /* 0: all cores */
    uint32_t chunk_tokens;   /* most tokens of one step, 0: the backend's choice. Those that are
                                sampled come first, a chunk of input gets the rest, but never
                                less than a fourth of it */
    uint32_t draft_tokens;   /* guesses of the draft layers to check in a step; 0: none. What is
                                generated is the same, at any temperature */
    double draft_confidence; /* guesses end where the chance that all so far are right, as the
                                draft layers see it, falls below; 0 to 1, 0: never */
    /* Budgets in bytes, 0: none. Each works down to the minimum that engine_tiers() tells,
     * below it ERR_LIMIT names that; none changes a bit of what is computed. */
    uint64_t expert_ram;    /* routed experts in memory; without, they are mapped */
    uint64_t engram_ram;    /* rows of Engram tables in memory; without, they are mapped */
    uint64_t engram_device; /* rows of Engram tables in memory of a device; without, they are
                               copied with their tokens. ERR_INVAL for other backends */
    uint64_t kv_resident;   /* main KV rows in memory, of all sequences; without, all of them */
    const char *spill_dir;  /* for rows that are not in memory; NULL: TMPDIR, else /var/tmp */
    bool digests;           /* keep a running digest of the logits of every computed row */
    bool no_weight_digest;  /* `score` and benches: skip hashing the shards (no fingerprint) */
    /* Where digests of shards are remembered, a folder that is made: a shard that is the same
     * file in the same state as then is not hashed again (engine/digest_cache.h). NULL: hash
     * all. */
    const char *digest_dir;
    bool verify_weights;              /* hash all shards, whatever is remembered */
    const struct engine_watch *watch; /* NULL: nobody */
};

/* Opens a checkpoint folder in the official layout. Reads config, headers and dense weights
 * now; experts and Engram tables stay mapped. Errors: ERR_NOTFOUND, ERR_FORMAT (with the
 * tensor's or field's name and both values), ERR_UNSUPPORTED, ERR_LIMIT (memory), ERR_NOMEM. */
NODISCARD enum err engine_open_model(struct engine **out, const char *dir,
                                     const struct engine_options *o, struct error *e);

/* Opens a scripted engine: JSONL, one model step a line (protocol.md, "Scripted engine").
 * Without a tokenizer of a model (NULL) ids are the 256 bytes and the added tokens from 256. */
NODISCARD enum err engine_open_script(struct engine **out, const char *path,
                                      const char *model_dir, struct error *e);

void engine_free(struct engine *m);

/* Borrowed from the engine, constant for its life. */
struct engine_info {
    const char *name; /* last part of the model folder, or "script" */
    const struct state_layout *layout;
    const struct tokenizer *tokenizer;
    uint32_t vocab_size;
    uint64_t max_tokens;       /* max_position_embeddings */
    bool storable;             /* false in precision `math`: no grid to store */
    uint64_t n_unused_tensors; /* of vision and of drafts that are switched off: skipped */
};
const struct engine_info *engine_describe(const struct engine *m);

/* What is kept in memory of things that are too large for it, and how well that goes. Sums
 * since the engine was opened. */
struct engine_tier {
    const char *name;        /* "experts", "engram", "engram-device", "kv"; static */
    uint64_t budget_bytes;   /* as given; 0: none */
    uint64_t minimum_bytes;  /* the smallest budget */
    uint64_t resident_bytes; /* taken of the budget so far */
    uint64_t hits, misses;   /* what a run asked for: whole experts, rows, pages of rows */
    uint64_t read_bytes;     /* from the disk */
    uint64_t stall_ns;       /* the engine waited for the disk */
};
#define ENGINE_MAX_TIERS 4
/* Writes the tiers that the model has, returns how many: 0 for a script. Any thread. */
size_t engine_tiers(const struct engine *m, struct engine_tier out[ENGINE_MAX_TIERS]);

/* How steps in which every sequence decodes came to the backend: as launches that it had
 * recorded (CUDA graphs), or call by call. Sums since the engine was opened. */
struct engine_graphs {
    const char
        *why; /* no step is ever recorded; NULL: those of shapes met before are. Static */
    uint64_t n_recorded, n_replayed, n_plain; /* steps */
};
/* Any thread. */
void engine_graphs(const struct engine *m, struct engine_graphs *out);

/* ---- sequences ----------------------------------------------------------------------------
 */

/* user is handed back in every event. ERR_CONFLICT, here as in every later use of weights: a
 * shard of the checkpoint was written to since it was opened (the message names it); what was
 * computed before is good, nothing more is. */
NODISCARD enum err seq_new(struct engine *m, void *user, struct seq **out, struct error *e);
void seq_free(struct seq *s);

/* Tokens computed and committed so far. */
uint64_t seq_position(const struct seq *s);

/* Queues n more ids of an input segment. If the last input segment was interrupted inside
 * (seq_segment_open), the ids go on with it: n is then what is left of it, and `mode` must be
 * the same. Memory is reserved here: ERR_LIMIT (context, memory) now, never midway. ERR_INVAL:
 * an id out of range, n = 0. ERR_CONFLICT: work is queued already. ids are copied. */
NODISCARD enum err seq_input(struct seq *s, const uint32_t *ids, uint64_t n,
                             enum prefill_mode mode, struct error *e);

/* Input that has no boundary on the tape yet (the results of tools that still run) can be
 * computed ahead: the first call opens it at the position, each adds n ids. They are computed
 * in chunks while nothing is queued, by the layers up to the last KV source, in mode full by
 * all, beside the sequence: position, digest, segment and exports stay those without it, and
 * no event tells of it.
 *
 * seq_input() with ids that begin with those computed so far, in the same mode, takes them
 * over: the layers above run on the last W of them where the segment has them run at all.
 * Other ids, another mode and seq_generate() drop it. Either way the results are the same bits.
 *
 * ERR_UNSUPPORTED: not in this mode or with this engine. ERR_CONFLICT: work is queued, another
 * mode than before, or the position is inside a segment. ERR_LIMIT (context, memory),
 * ERR_NOMEM, ERR_INVAL (an id): what is ahead is as it was. ids are copied. */
NODISCARD enum err seq_ahead(struct seq *s, const uint32_t *ids, uint64_t n,
                             enum prefill_mode mode, struct error *e);
/* Forgets what is ahead; nothing there: nothing happens. */
void seq_ahead_drop(struct seq *s);
/* Tokens computed ahead; after seq_input(), those that the segment takes over. 0: none. */
uint64_t seq_ahead_tokens(const struct seq *s);

/* The sampler is counter-based: the draw at tape position p is Philox(seed, p). */
struct sampling {
    uint64_t seed;
    float temperature; /* 0: greedy */
    float top_p;       /* 1: off */
    uint32_t top_k;    /* 0: off */
    float min_p;       /* 0: off */

    /* All that follows may be zero, and is borrowed until the run's ENGINE_DONE. */
    const struct logit_bias *bias; /* added to logits, ids ascending */
    uint32_t n_bias;
    const struct call_rules *rules; /* keeps tool calls well formed: engine/constrain.h */
    /* The run ends with the token in which one of these appears in the answer (not in thinking
     * or calls, as struct chat_parser sees them). */
    const char *const *stop;
    uint32_t n_stop;
    bool thinking;         /* for stop: the run begins in thinking */
    uint32_t top_logprobs; /* most likely tokens to report for each sampled one, + 1; 0: off */
};

/* Natural logarithms of the model's own probabilities, before bias, temperature and cuts. */
#define SAMPLE_MAX_LOGPROBS 20

struct token_logprobs {
    uint32_t id;
    float logprob;
    uint32_t n_top;
    struct {
        uint32_t id;
        float logprob;
    } top[SAMPLE_MAX_LOGPROBS]; /* the most likely first */
};

struct generate_options {
    struct sampling sampling;
    uint64_t max_tokens;   /* most new tokens of this call, given ones included */
    const uint32_t *given; /* these ids first: already on the tape, or forced; copied */
    uint64_t n_given;
    bool end_with_given; /* forced mode: close the run after the given ids, sample nothing */
    bool resumes;        /* goes on with the generated segment that ends at the position now */
    const uint32_t *before; /* with resumes: that segment's ids so far, for rules and stop */
    uint64_t n_before;
};

/* Queues a generated segment: every layer runs on every token, the last one and EOS included.
 * The first sampled id comes from the logits of the last computed row. Ends after EOS, a stop
 * string or max_tokens, after the given ids (end_with_given), or on cancel. Errors as
 * seq_input. */
NODISCARD enum err seq_generate(struct seq *s, const struct generate_options *g,
                                struct error *e);

/* Stops the queued work at the next chunk or token border; what was computed stays. An id
 * that was reported already is computed first, so that at rest every token of the tape is. The
 * event is ENGINE_DONE with END_CANCELLED. Without queued work: nothing. */
void seq_cancel(struct seq *s);

/* Running digest of the segment that the position is in (options.digests): after each computed
 * row, d = BLAKE2b-256(d || position as u64 LE || logits as f32 LE), from 32 zero bytes at the
 * segment's start. n_rows counts the rows in it. */
struct seq_digest {
    uint8_t d[32];
    uint64_t n_rows;
    bool is_partial; /* first rows of the segment are not in it: see seq_rebuild */
};
struct seq_digest seq_digest(const struct seq *s);

/* ---- steps --------------------------------------------------------------------------------
 */

enum engine_event_kind {
    ENGINE_PROGRESS, /* input, given ids or a rebuild moved on: done of total tokens */
    ENGINE_TOKENS,   /* sampled ids (already computed, but for the last one, which is next) */
    ENGINE_DONE      /* the queued work ended; reason says how */
};

enum end_reason {
    END_SEGMENT,   /* input, given ids or rebuild complete */
    END_EOS,       /* EOS sampled and computed */
    END_LENGTH,    /* max_tokens, or the context is full */
    END_STOP,      /* a stop string came, and its last token is computed */
    END_CANCELLED, /* seq_cancel */
    END_FAILED     /* see error; the sequence is only good for seq_free */
};

#define ENGINE_EVENT_IDS 16

struct engine_event {
    struct seq *seq;
    void *user;
    enum engine_event_kind kind;
    enum end_reason reason;         /* ENGINE_DONE */
    uint64_t position;              /* tokens committed after this step */
    uint64_t done, total;           /* ENGINE_PROGRESS */
    uint32_t n_ids;                 /* ENGINE_TOKENS */
    uint32_t ids[ENGINE_EVENT_IDS]; /* tape positions position.. of the newest run */
    uint64_t first_position;        /* tape position of ids[0] */
    uint32_t n_guessed, n_right;    /* of draft tokens checked in this step, and good ones */
    uint32_t n_cut;                 /* not checked: too unsure (draft_confidence) */
    uint32_t n_failed;              /* not guessed: the draft layers failed, `error` says why */
    /* [n_ids] when sampling.top_logprobs asks for it, else NULL. The receiver frees. */
    struct token_logprobs *logprobs;
    struct error error; /* END_FAILED, or n_failed */
};

/* True while any sequence has work. */
bool engine_has_work(const struct engine *m);

/* One scheduling step, one pass through the layers: at most one chunk of input and one token of
 * every generating sequence, or, with draft_tokens, up to draft_tokens + 1 of them in one
 * event. Writes at most cap events (cap >= 8; sequences beyond wait for the next step). */
NODISCARD enum err engine_step(struct engine *m, struct engine_event *events, size_t cap,
                               size_t *n_events, struct error *e);

/* Makes a step in progress on another thread look at seq_cancel soon (a stalled script, a long
 * chunk). Any thread. */
void engine_interrupt(struct engine *m);

/* ---- state --------------------------------------------------------------------------------
 */

/* Copies rows [row0, row0 + n_rows) of a plane into dst (n_rows * row_bytes). They must exist.
 */
NODISCARD enum err seq_export_rows(const struct seq *s, uint32_t plane, uint64_t row0,
                                   uint64_t n_rows, void *dst, struct error *e);
/* Writes the tip for the position now: exactly layout.tip_bytes. Inside an input segment the
 * tip records how far into the segment it is and the segment's mode. Not while a chunk is half
 * done (never the case between steps). */
NODISCARD enum err seq_export_tip(const struct seq *s, void *dst, struct error *e);

/* Import, on a new sequence only. Reserves regions for n_tokens; the caller fills the rows of
 * every plane, then calls seq_import_tip or seq_rebuild. */
NODISCARD enum err seq_import_begin(struct seq *s, uint64_t n_tokens, struct state_regions *out,
                                    struct error *e);
/* After seq_import_begin, with a budget for KV rows (kv_resident): the main rows of the first
 * fetch->n_tokens tokens need not be filled in, they are fetched when they are selected. Takes
 * fetch: it is closed with the sequence, or here on failure. A fetch that fails later ends the
 * work that needed it as END_FAILED with its error. ERR_UNSUPPORTED: no budget, or an engine
 * without; ERR_CONFLICT: no import is open; ERR_INVAL: more tokens than the import has. */
NODISCARD enum err seq_import_fetch(struct seq *s, const struct state_fetch *fetch,
                                    struct error *e);
/* Exact: checks version, position, sizes and ranges of the tip, then makes all visible at once.
 * digest is that of the open segment at this position; NULL: none. ERR_FORMAT leaves the import
 * open, so that seq_rebuild can follow. */
NODISCARD enum err seq_import_tip(struct seq *s, const void *tip, size_t n_bytes,
                                  const struct seq_digest *digest, struct error *e);
/* Planes only: queues a re-run of the tokens before n_tokens (deep: as many as bit-equality
 * needs, replay: the last W), planes read and never written. tape covers at least [0,
 * n_tokens). digest is that of the segment that n_tokens lies in; NULL: not known, and then it
 * is partial until the next segment starts, unless no row of this one was computed yet. The
 * work is done by engine_step; *n_replayed is how many tokens it will run. mode is RESUME_DEEP
 * or RESUME_REPLAY. */
NODISCARD enum err seq_rebuild(struct seq *s, const struct tape_view *tape,
                               enum resume_mode mode, const struct seq_digest *digest,
                               uint64_t *n_replayed, struct error *e);

/* If the position lies inside an input segment that is not complete: true, its start and mode.
 */
bool seq_segment_open(const struct seq *s, uint64_t *start, enum prefill_mode *mode);

#endif
