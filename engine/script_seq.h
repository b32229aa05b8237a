/* One scripted sequence and its work: what the scripted engine (script.c) has a line for.
 *
 * The n-th generated segment of a sequence's history is answered by the n-th line, whatever was
 * forced, given or resumed before: the count is part of the state. So a sequence that is
 * stopped, lost and rebuilt goes on with the same ids. Behind the last line a run is EOS alone.
 * Sampling options have no influence but for stop strings.
 *
 * Delays, stalls and crashes belong to sampling: given ids take no time. A chunk of input takes
 * its part of the prefill_ms of the run that would follow.
 *
 * Internal to the engine; owned by the engine thread. */
#ifndef ENGINE_SCRIPT_SEQ_H
#define ENGINE_SCRIPT_SEQ_H

#include <pthread.h>

#include "engine/engine_impl.h"
#include "engine/ids.h"
#include "engine/script_file.h"
#include "engine/script_state.h"
#include "engine/stop.h"
#include "engine/tokenizer.h"

#define NS_PER_MS 1000000ull

enum script_work {
    WORK_NONE,
    WORK_INPUT,  /* ids of an input segment, in chunks */
    WORK_GIVEN,  /* ids at the start of a generated segment that are known, in chunks */
    WORK_SAMPLE, /* one id after the other */
    WORK_REBUILD
};

struct script_seq {
    struct seq base; /* first */
    struct script_engine *engine;
    struct script_seq *next;
    struct script_state state;
    uint64_t import_tokens;     /* regions are handed out for so many, no tip yet; 0: none */
    struct script_state staged; /* of a rebuild: what the state will be; planes are state's */

    enum script_work work;
    bool cancelled;
    bool begins; /* the work is a new segment of begin_mode that has no token yet */
    enum prefill_mode begin_mode;
    uint64_t due_ns; /* monotonic: the next piece of work is not done before */
    struct ids ids;  /* of the input segment, or given ones */
    uint64_t done;   /* of them */

    uint64_t n_new, max_new; /* of a generated segment: ids of this call and the most of them */
    bool end_with_given;
    bool has_pending; /* an id was handed out that is not computed yet */
    uint32_t pending;
    struct stop_watch *stop; /* NULL: no stop strings */
    bool stops;              /* with the last id that it was fed */
};

struct script_engine {
    struct engine base; /* first */
    struct state_layout layout;
    struct tokenizer *tokenizer;
    struct script script;
    uint32_t eos;
    struct script_seq *seqs; /* in the order in which they are served */
    pthread_mutex_t lock;    /* guards interrupted; everything else is the engine thread's */
    pthread_cond_t wake;
    bool interrupted;
};

uint64_t script_now_ns(void);

/* ERR_CONFLICT while the sequence has work or waits for the rest of an import. */
NODISCARD enum err script_check_free(const struct script_seq *s, struct error *e);
/* Work that is not done before delay_ms from now; `begins` a segment. */
void script_queue(struct script_seq *s, enum script_work work, bool begins, uint64_t delay_ms);
/* Those of struct engine_ops. */
NODISCARD enum err script_input(struct seq *base, const uint32_t *ids, uint64_t n,
                                enum prefill_mode mode, struct error *e);
NODISCARD enum err script_generate(struct seq *base, const struct generate_options *g,
                                   struct error *e);
void script_cancel(struct seq *base);
/* One piece of its work, which there must be. What was handed out is computed also when the run
 * is cancelled. */
struct engine_event script_step_seq(struct script_seq *s);

#endif
