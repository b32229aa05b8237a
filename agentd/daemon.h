/* What the modules of the loop thread share: the two workers, the model's description, the
 * tables of sessions and peers. Made by verb_serve.c in start-up order, torn down by it in
 * reverse; no other place creates or frees these. Belongs to the loop thread; what the pointers
 * lead to is said in each one's header. */
#ifndef AGENTD_DAEMON_H
#define AGENTD_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/clock.h"
#include "base/ulid.h"
#include "engine/chat.h"
#include "engine/engine.h"

struct daemon {
    uv_loop_t *loop;
    const struct clock *clock;
    struct ulid_source ulids;

    struct store_thread *store;
    struct engine_thread *engine;
    const struct engine_info *model; /* constant: any thread */
    const struct engine *tiers;      /* for engine_tiers(), which any thread may call */
    struct chat_ids chat;            /* constant: any thread */
    struct tools *tools;
    const struct rules *rules;     /* of agentd.conf; constant */
    size_t n_jobs;                 /* commands in the background, of all sessions */
    const char *spill_dir;         /* whole outputs of tools, a folder per session */
    const char *const *model_args; /* command line that opens the same model; NULL ends */
    uint64_t context;              /* most tokens of a session: the model's, or fewer */
    uint32_t max_resident;         /* sequences kept in memory; idle ones beyond are freed */
    uint64_t save_every;           /* tokens inside a long segment between two state commits */

    struct live *sessions; /* all live ones: session.h */
    struct peer *peers;    /* all connections: peer.h */
    size_t n_peers;
    uint64_t started_ns;
    bool evicting;                  /* a run that makes room is under way */
    bool stopping;                  /* no new work is begun */
    void (*stop)(struct daemon *d); /* begins the clean end */
};

static inline uint64_t daemon_now_ns(const struct daemon *d)
{
    return clock_mono_ns(d->clock);
}

#endif
