/* What tools.c and run.c share. */
#ifndef TOOLS_TOOLS_INTERNAL_H
#define TOOLS_TOOLS_INTERNAL_H

#include "tools/tools.h"

struct tools {
    char *launcher;
    json_t *hidden, *read_paths, *without, *fetch_networks; /* arrays of strings */
    bool may_fetch;
    uint32_t timeout_ms, max_timeout_ms, job_timeout_ms, max_processes;
    uint64_t output_bytes, max_output_bytes, max_file_bytes;
};

#define TOOL_FETCH_OFF "%s is off: `http-fetch = true` in [serve] of agentd.conf allows it"

/* tool_run_start() without the check of name and arguments: also for LAUNCH_PROBE. */
NODISCARD enum err tool_run_launch(struct tools *t, const struct tool_call *call,
                                   uint64_t now_ms, struct tool_run **out, struct error *e);

#endif
