/* A live session: what the loop thread knows of one while somebody uses it.
 *
 * The store has the truth (sessions/session.h, tape.h, head.h). A live session is made when a
 * request first needs it and freed when nothing holds it any more: no turn, no reader, no
 * waiting request, no sequence in memory, no job. Its sequence may be freed long before that
 * (evicted): the state is on SSD, and the next prompt brings it back.
 *
 * State (the public one) is kept here and changed only through live_set_state(). Loop thread;
 * `seq` is only handed to jobs of the engine thread. */
#ifndef AGENTD_LIVE_H
#define AGENTD_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "agentd/ledger.h"
#include "agentd/session_config.h"
#include "agentd/session_notes.h"
#include "sessions/session.h"
#include "sessions/tape.h"

struct cut;
struct daemon;
struct late;
struct queued_prompt;
struct request;
struct rules;
struct seq;
struct session_job;
struct state_saver;
struct subscription;
struct turn;

enum live_state {
    SESSION_QUEUED,
    SESSION_PREFILL,
    SESSION_GENERATING,
    SESSION_TOOL,
    SESSION_REQUIRES_ACTION,
    SESSION_IDLE
};
const char *live_state_name(enum live_state s);

/* How the tape ends: what the next input segment has to begin with. */
struct tape_end {
    bool is_known;      /* false: the tape has to be looked at first */
    bool run_cut;       /* the last run has no EOS (or did not begin) */
    bool thinking_open; /* and its thinking is not closed either */
};

/* The model's side of a session that is in memory. Owned by the loop thread. */
struct residency {
    struct seq *seq;    /* NULL: not in memory */
    uint64_t position;  /* tokens computed, as far as the loop was told */
    uint64_t saved;     /* position of the last state commit of this sequence */
    uint64_t refused;   /* and of the last one that failed */
    uint32_t lineage;   /* replays behind its rows */
    struct late *late;  /* has main rows that stayed behind; NULL: none did */
    bool drafts_failed; /* its draft layers did, and the log has it */
};

/* Row of the last turn that ended here: state is saved after its end. */
struct last_turn {
    char id[TAPE_ID_CAP]; /* "": none */
    uint32_t step;
    uint64_t forced_next;
    struct ledger ledger;
};

struct live {
    struct live *next, **link; /* of daemon.sessions */
    struct daemon *daemon;
    char id[SESSION_ID_CAP], name[SESSION_NAME_CAP];
    char *cwd;
    struct session_config *config;
    enum live_state state;
    const char *reason; /* why it is idle: "end", "length", ...; "" before the first turn */
    uint64_t length;    /* tape, tokens */
    uint64_t reached;   /* tape tokens that were computed once, as far as this process knows: of
                           those it found on the tape, all */
    uint64_t last_seq;  /* newest durable event */
    struct tape_end end;
    struct residency model;
    struct state_saver *saver;   /* a state commit is under way: saver.h */
    bool said_not_saving;        /* the store refused state once and that was reported */
    struct turn *turn;           /* NULL: idle */
    struct queued_prompt *queue; /* prompts behind it, the next one first */
    size_t n_queued;
    struct cut *cut;           /* a rewind or compaction is under way: cut.h */
    bool compacted;            /* the last turn wrote a summary, or tried to */
    struct request *waiters;   /* session/wait */
    struct request *deletions; /* session/delete that waits for the saver */
    struct subscription *subscriptions;
    json_t *approved;      /* what was approved for the session: tool_policy.h */
    struct rules *granted; /* the same, of commands; NULL: none */
    struct session_notes notes;
    struct session_job *jobs; /* commands in the background, oldest first */
    struct resume_record resume;
    struct last_turn last; /* for what is counted after its end */
    unsigned pins;         /* jobs and requests that point here */
    uint64_t used_ns;      /* last turn: for eviction */
    bool deleting;
};

/* The live session with exactly this id or name, or NULL. */
struct live *live_find(struct daemon *d, const char *id_or_name);
/* Makes a session live from its row. ERR_CORRUPT (configuration), ERR_NOMEM. */
NODISCARD enum err live_add(struct daemon *d, const struct session_info *info,
                            struct live **out, struct error *e);
/* Finds the session that params.id names, live or in the store, and calls `then` with it pinned
 * for the call; answers the request itself when there is none. */
void live_resolve(struct request *r, void (*then)(struct request *r, struct live *s));

void live_pin(struct live *s);
/* Frees it if that was the last hold. */
void live_unpin(struct live *s);

/* Changes the public state and tells attached readers and waiting requests. reason: a constant
 * string, "" for none. */
void live_set_state(struct live *s, enum live_state state, const char *reason);

/* Frees sequences of idle sessions beyond daemon.max_resident, longest unused first. */
void live_evict(struct daemon *d);
/* Gives up the sequence (after a failure, or before a deletion). */
void live_drop_seq(struct live *s);

/* At the end of the process, when no worker and no connection is left. */
void live_free_all(struct daemon *d);

/* The SESSION object of protocol.h, from a row and, where there is one, the live session.
 * `whole`: with the tools' declarations in config. */
json_t *live_json(const struct session_info *info, const struct live *live, bool whole);

#endif
