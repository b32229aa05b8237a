#include "agentd/opening.h"

#include <inttypes.h>
#include <stdio.h>

#include "agentd/listen.h"
#include "base/log.h"

#define TELL_EVERY_NS UINT64_C(5000000000)
#define GB 1e9

/* systemd: not ready yet, and will not be for another minute; more of this is to come. */
static void tell_manager(double percent)
{
    char state[128];
    struct error e;
    snprintf(state, sizeof state,
             "STATUS=hashing weights, %.0f %%\nEXTEND_TIMEOUT_USEC=60000000", percent);
    if (listen_notify(state, &e))
        log_warn("%s", e.msg);
}

static void on_hashing(void *user, uint64_t done, uint64_t total)
{
    struct opening *o = user;
    const uint64_t now = clock_mono_ns(o->clock);
    if (!done)
        o->start_ns = now;
    else if (done < total && now - o->told_ns < TELL_EVERY_NS)
        return;
    o->told_ns = now;
    const double s = (double)(now - o->start_ns) / 1e9, gb = (double)done / GB;
    if (!done)
        log_info("hashing weights: %.1f GB whose digests are not remembered",
                 (double)total / GB);
    else if (done < total)
        log_info("hashing weights: %.1f of %.1f GB, %.2f GB/s", gb, (double)total / GB, gb / s);
    else
        log_info("hashed weights: %.1f GB in %.1f s", gb, s);
    tell_manager((double)done / (double)total * 100);
}

static void on_notice(void *user, const char *text)
{
    (void)user;
    log_warn("%s", text);
}

void opening_init(struct opening *o, const struct clock *clock)
{
    *o = (struct opening){.watch = {.user = o, .hashing = on_hashing, .notice = on_notice},
                          .clock = clock};
}
