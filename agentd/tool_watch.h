/* One run of a daemon tool, watched by the loop: three descriptors and a timer (tools/tools.h).
 * Loop thread. */
#ifndef AGENTD_TOOL_WATCH_H
#define AGENTD_TOOL_WATCH_H

#include <uv.h>

#include "base/clock.h"
#include "tools/tools.h"

struct tool_watch;

/* Who is told, from the loop. */
struct tool_watcher {
    /* Once, with the result to take (it is finished after the call); the watch is gone then. */
    void (*done)(void *user, struct tool_result *r);
    /* Before that, any number of times: the next bytes of the output that the text of the
     * result will begin with (tool_run_step: fresh). NULL: nobody wants them. */
    void (*output)(void *user, const void *bytes, size_t n);
    void *user;
};

/* Starts the call and watches it. Errors of tool_run_start, ERR_IO, ERR_NOMEM: nothing runs. */
NODISCARD enum err tool_watch_start(uv_loop_t *loop, const struct clock *clock,
                                    struct tools *tools, const struct tool_call *call,
                                    const struct tool_watcher *watcher, struct tool_watch **out,
                                    struct error *e);
/* The output from byte `from` on, as tool_run_output(); also from inside `done`. */
uint64_t tool_watch_output(const struct tool_watch *w, uint64_t from, struct buf *out);
/* Kills the tool; `done` follows. */
void tool_watch_cancel(struct tool_watch *w);
/* Kills the tool and forgets it; `done` does not follow. */
void tool_watch_drop(struct tool_watch *w);

#endif
