/* Who waits for a model to open is told how far it is: lines in the log, and the service
 * manager, which would end a daemon that takes too long to become ready. */
#ifndef AGENTD_OPENING_H
#define AGENTD_OPENING_H

#include "base/clock.h"
#include "engine/engine.h"

struct opening {
    struct engine_watch watch; /* for engine_options */
    const struct clock *clock;
    uint64_t start_ns, told_ns; /* of hashing */
};

/* *o stays where it is while a model opens with o->watch. The calling thread's alone. */
void opening_init(struct opening *o, const struct clock *clock);

#endif
