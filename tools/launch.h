/* What the daemon tells the launcher, and by which descriptors they talk.
 *
 * The launcher gets no arguments, and of the environment PATH and HOME. It reads one JSON
 * object from LAUNCH_SPEC_FD (a memory file), runs the tool, and writes one JSON line to
 * LAUNCH_STATUS_FD:
 *
 *     {"end": "exited"|"signalled"|"killed"|"refused"|"lost", "status": N, "killed": N,
 *      "message": "...", "layers": {...}, "cwd": "/..."}      cwd: if the shell left one
 *
 * Output of the tool, and nothing else, is on descriptors 1 and 2. When LAUNCH_CONTROL_FD hangs
 * up (a kill, or the daemon is gone) everything that the tool started is killed. */
#ifndef TOOLS_LAUNCH_H
#define TOOLS_LAUNCH_H

#include <jansson.h>

#include "base/err.h"
#include "tools/tools.h"

enum { LAUNCH_STATUS_FD = 3, LAUNCH_CONTROL_FD = 4, LAUNCH_SPEC_FD = 5, LAUNCH_FDS = 6 };

#define LAUNCH_MAX_SPEC_BYTES (64 << 20)
#define LAUNCH_PROBE "-probe" /* a tool that does nothing, with the sandbox of `run` */

struct launch {
    json_t *spec; /* owns everything below */
    const char *tool;
    const json_t *arguments;
    const char *workspace;    /* absolute, resolved */
    const char *spill_folder; /* readable; NULL: none */
    const char *cwd;          /* where a command begins; NULL: in the workspace */
    enum tool_mode mode;
    uint32_t max_processes;
    uint64_t max_file_bytes;
    const json_t *hidden;     /* array of absolute paths */
    const json_t *read_paths; /* array of absolute paths */
    const json_t *without;    /* array of layer names to do without: tests of the fallbacks */
    const json_t *fetch_networks; /* array of networks that are fetched from besides */
};

/* Makes the memory file that holds the spec; the caller closes it. Fields may be NULL. */
NODISCARD enum err launch_write(const struct launch *l, int *fd, struct error *e);
/* Reads it back. ERR_FORMAT when it is not one. */
NODISCARD enum err launch_read(int fd, struct launch *out, struct error *e);
void launch_fini(struct launch *l);

/* Whether the spec asks to do without a layer. */
bool launch_is_without(const struct launch *l, const char *layer);
/* Whether the tool executes what the model says, and so needs a limit of processes. */
bool launch_executes(const struct launch *l);
/* Whether it talks to the network, and does nothing else. */
bool launch_fetches(const struct launch *l);
/* Whether `path` is `folder` or inside it, by name. */
bool path_is_inside(const char *path, const char *folder);

#endif
