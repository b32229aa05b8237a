/* What one turn cost: where each of its prompt tokens came from, and the time of each stage.
 *
 * Identity, checked when a turn ends: prompt_tokens = resident + restored + recomputed + relost
 * + prefilled. prompt_tokens is counted on its own (tape length at the end minus what was
 * decoded), so the identity can fail. A turn that a restart went on with starts its ledger
 * anew: what was computed before the restart is restored or recomputed then. Plain data. */
#ifndef AGENTD_LEDGER_H
#define AGENTD_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/state.h"

enum ledger_stage {
    STAGE_QUEUE,        /* accepted until the engine got its first work */
    STAGE_STORE_READ,   /* reading and verifying planes and tip */
    STAGE_IMPORT,       /* the engine checks and takes them */
    STAGE_REPLAY,       /* tokens run again by a deep or replay resume */
    STAGE_PREFILL,      /* input segments and what was recomputed */
    STAGE_FIRST_DECODE, /* start of each run until its first token */
    STAGE_DECODE,       /* the rest of the runs */
    STAGE_TOOL,         /* waiting for tools */
    LEDGER_STAGES
};

struct ledger {
    uint64_t prompt_tokens;
    uint64_t resident;   /* in memory when the turn began */
    uint64_t restored;   /* from SSD */
    uint64_t recomputed; /* on the tape, after the last durable state: computed again */
    uint64_t relost;     /* covered by a durable state and still computed again */
    uint64_t prefilled;  /* new input: computed for the first time, also what is left of an
                            input whose turn was cancelled. After a restart nobody knows that
                            it never was computed: it is `recomputed` then, as all of the tape
                            behind the last state commit is */
    uint64_t ahead;      /* outside the sum: of prefilled, computed while tools still ran */
    uint64_t decoded;    /* new output */
    uint64_t reasoning;  /* of these, inside thinking */
    uint64_t drafts_proposed; /* guesses of the draft layers that were checked */
    uint64_t drafts_accepted; /* of these, what the model itself chose: decoded tokens */
    uint64_t drafts_cut;      /* not checked: the draft layers were too unsure */
    uint64_t drafts_failed;   /* asked for, but the draft layers failed */
    uint64_t replayed;        /* outside the sum: run again by a resume, overlaps restored */
    uint64_t bytes_read;
    /* By state commits. The one at the turn's end begins after its answer and is added to the
     * stored ledger when it is done: session/wait may be answered before. */
    uint64_t bytes_written;
    uint64_t steps;
    uint64_t ns[LEDGER_STAGES];
};

/* The last time a session's state was brought back into memory. */
struct resume_record {
    bool happened;
    enum resume_mode mode;
    uint64_t tape, restored, recomputed, relost, replayed; /* tokens */
    uint64_t late; /* of the restored tokens, whose main rows stayed in the packs */
    uint64_t bytes_read, extents_damaged;
    uint64_t find_ns, read_ns, index_ns, import_ns, replay_ns, recompute_ns;
    bool same_numerics;
};

bool ledger_is_balanced(const struct ledger *l);
/* Field by field. */
void ledger_add(struct ledger *sum, const struct ledger *l);
/* {"prompt_tokens", "resident", ..., "bytes_read", "bytes_written", "steps", "ms": {"queue",
 * "store_read", "import", "replay", "prefill", "first_decode", "decode", "tool"}} */
json_t *ledger_json(const struct ledger *l);
/* The inverse; fields that are absent are 0. */
void ledger_from_json(struct ledger *l, const json_t *j);
/* {"mode", "tape", "restored", "recomputed", "relost", "replayed", "late", "bytes_read",
 * "extents_damaged", "same_numerics", "ms": {"find", "read", "index", "import", "replay",
 * "recompute"}}; index is the part of read after which a first step could start. */
json_t *resume_json(const struct resume_record *r);

#endif
