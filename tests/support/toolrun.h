/* Runs tool calls to their end in a temporary workspace, as tests need it. */
#ifndef TESTS_SUPPORT_TOOLRUN_H
#define TESTS_SUPPORT_TOOLRUN_H

#include "tools/tools.h"

/* One workspace: dir/ws is the tool's folder, dir/spill gets whole outputs, dir/secret/key and
 * dir/secret/sock are what no tool may reach. */
struct toolrun {
    char dir[64], ws[96], spill[96], secret[96];
    struct tools *tools;
    enum tool_mode mode;
    unsigned n_calls;
};

/* Makes the folders under /tmp (world-readable) and opens tools with dir/secret hidden and the
 * launcher of this build; the other fields of `config` are taken as they are (NULL: defaults). */
void toolrun_open(struct toolrun *t, const struct tools_config *config);
/* Removes everything. */
void toolrun_close(struct toolrun *t);

/* Starts `name` with arguments in jansson's pack notation, '...' JSON with single quotes allowed. */
struct tool_run *toolrun_start(struct toolrun *t, const char *name, const char *arguments);
/* Polls until it is done; asserts that this takes at most limit_ms. */
void toolrun_finish(struct tool_run *run, uint64_t limit_ms, struct tool_result *out);
/* Both, with a limit of 20 s. */
void toolrun_call(struct toolrun *t, const char *name, const char *arguments,
                  struct tool_result *out);
/* `run` with this command line. */
void toolrun_bash(struct toolrun *t, const char *command, struct tool_result *out);

/* Whether a layer's report starts with `prefix`. */
bool toolrun_layer(const struct tool_result *r, const char *layer, const char *prefix);
uint64_t toolrun_now_ms(void);

#endif
