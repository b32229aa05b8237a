/* What stands behind engine.h: one table of functions per implementation. Private to engine/.
 *
 * An implementation embeds `struct engine` and `struct seq` as the first member of its own
 * structs, fills in what is declared here, and is reached through engine.c, which has made
 * these checks already, so that every implementation answers them alike:
 *
 *   - seq_input, seq_ahead, seq_generate: n > 0 (or there is something to generate), every id
 *     below vocab_size;
 *   - seq_export_rows, seq_import_tip: plane < n_planes, the rows exist, the tip's size is
 *     right;
 *   - seq_import_begin: nothing computed yet, n_tokens in 1..max_tokens;
 *   - seq_rebuild: the mode is deep or replay, segments and ids of the tape are consistent;
 *   - engine_step: cap >= ENGINE_MIN_EVENTS.
 *
 * What is left to the implementation: ERR_CONFLICT for work that is queued already, memory, and
 * everything that depends on the state of the sequence. */
#ifndef ENGINE_ENGINE_IMPL_H
#define ENGINE_ENGINE_IMPL_H

#include "engine/engine.h"

/* Least room for events that engine_step may be given. */
#define ENGINE_MIN_EVENTS 8

/* The members have the contracts of the functions of the same name in engine.h. */
struct engine_ops {
    void (*free)(struct engine *m);
    enum err (*seq_new)(struct engine *m, struct seq **out, struct error *e);
    void (*seq_free)(struct seq *s);
    size_t (*tiers)(const struct engine *m, struct engine_tier *out);  /* NULL: none */
    void (*graphs)(const struct engine *m, struct engine_graphs *out); /* NULL: none */
    uint64_t (*seq_position)(const struct seq *s);
    enum err (*seq_input)(struct seq *s, const uint32_t *ids, uint64_t n,
                          enum prefill_mode mode, struct error *e);
    enum err (*seq_generate)(struct seq *s, const struct generate_options *g, struct error *e);
    /* All three NULL: ERR_UNSUPPORTED. */
    enum err (*seq_ahead)(struct seq *s, const uint32_t *ids, uint64_t n,
                          enum prefill_mode mode, struct error *e);
    void (*seq_ahead_drop)(struct seq *s);
    uint64_t (*seq_ahead_tokens)(const struct seq *s);
    void (*seq_cancel)(struct seq *s);
    struct seq_digest (*seq_digest)(const struct seq *s);
    bool (*seq_segment_open)(const struct seq *s, uint64_t *start, enum prefill_mode *mode);
    bool (*has_work)(const struct engine *m);
    enum err (*step)(struct engine *m, struct engine_event *events, size_t cap,
                     size_t *n_events, struct error *e);
    void (*interrupt)(struct engine *m);
    enum err (*seq_export_rows)(const struct seq *s, uint32_t plane, uint64_t row0,
                                uint64_t n_rows, void *dst, struct error *e);
    enum err (*seq_export_tip)(const struct seq *s, void *dst, struct error *e);
    enum err (*seq_import_begin)(struct seq *s, uint64_t n_tokens, struct state_regions *out,
                                 struct error *e);
    enum err (*seq_import_fetch)(struct seq *s, const struct state_fetch *fetch,
                                 struct error *e); /* NULL: ERR_UNSUPPORTED */
    enum err (*seq_import_tip)(struct seq *s, const void *tip, size_t n_bytes,
                               const struct seq_digest *digest, struct error *e);
    enum err (*seq_rebuild)(struct seq *s, const struct tape_view *tape, enum resume_mode mode,
                            const struct seq_digest *digest, uint64_t *n_replayed,
                            struct error *e);
};

struct engine {
    const struct engine_ops *ops;
    struct engine_info info; /* complete before engine_open_* returns, constant after */
};

struct seq {
    struct engine *m; /* set, with user, by engine.c when ops->seq_new has returned */
    void *user;
};

#endif
