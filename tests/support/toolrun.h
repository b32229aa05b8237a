/* Runs tool calls to their end in a temporary workspace, as tests need it. */
#ifndef TESTS_SUPPORT_TOOLRUN_H
#define TESTS_SUPPORT_TOOLRUN_H

#include <sys/types.h>

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
 * launcher of this build; the other fields of `config` are taken as they are (NULL: defaults).
 */
void toolrun_open(struct toolrun *t, const struct tools_config *config);
/* Removes everything. */
void toolrun_close(struct toolrun *t);

/* Starts `name` with arguments in jansson's pack notation, '...' JSON with single quotes
 * allowed. */
struct tool_run *toolrun_start(struct toolrun *t, const char *name, const char *arguments);
/* `run` with this command line. */
struct tool_run *toolrun_start_bash(struct toolrun *t, const char *command);
/* Polls until it is done; asserts that this takes at most limit_ms. */
void toolrun_finish(struct tool_run *run, uint64_t limit_ms, struct tool_result *out);
/* Both at once, with a limit of 20 s. */
void toolrun_call(struct toolrun *t, const char *name, const char *arguments,
                  struct tool_result *out);
void toolrun_bash(struct toolrun *t, const char *command, struct tool_result *out);

/* Runs a cmocka group as this user and, when that is root, once more as an unprivileged one (in
 * a child process). Returns main()'s value. */
int toolrun_as_both(int (*group)(void));
/* Whether the second of these runs is going on, or the user is unprivileged anyway. */
bool toolrun_is_plain_user(void);

/* Processes of the machine whose command line holds `marker`, those of this test left out.
 * Waits up to 3 s for none. */
unsigned toolrun_count_processes(const char *marker);
/* A process whose argv[0] is exactly `name`, 0 if there is none. */
pid_t toolrun_find_process(const char *name);

/* Whether a layer's report starts with `prefix`. */
bool toolrun_layer(const struct tool_result *r, const char *layer, const char *prefix);
uint64_t toolrun_now_ms(void);

/* Sockets that no tool may reach: a Unix socket at path that anybody may connect to as far as
 * its mode goes, and one on a free port of 127.0.0.1. Not blocking; the caller closes. */
int toolrun_listen_unix(const char *path);
int toolrun_listen_tcp(int *port);

#endif
