/* Opening files below a folder and nowhere else, whatever the path holds and whoever renames
 * things meanwhile: openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS), or, where the kernel or a
 * filter does not let that through, a walk from folder to folder that follows no symbolic link
 * at all.
 *
 * A path may be relative to the workspace, or absolute and inside the workspace or the spill
 * folder. Symbolic links that stay inside are followed (with openat2), others are ERR_DENIED.
 */
#ifndef TOOLS_CONFINED_H
#define TOOLS_CONFINED_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

struct confined {
    const char *workspace;    /* absolute */
    const char *spill_folder; /* absolute, may only be read; NULL: none */
};

/* Opens with `flags` (open(2); O_CLOEXEC is added) and `mode`. ERR_DENIED outside,
 * ERR_NOTFOUND, or as err_sys. The message names the path as it was given. */
NODISCARD enum err confined_open(const struct confined *c, const char *path, int flags,
                                 mode_t mode, int *fd, struct error *e);

/* Opens the folder that holds the last component of `path` (in the workspace only), making
 * missing folders if `make` is set, and copies that component to name[256]. ERR_INVAL for a
 * path that ends in
 * "..", "." or "/". */
NODISCARD enum err confined_open_parent(const struct confined *c, const char *path, bool make,
                                        int *fd, char name[256], struct error *e);

/* For tests: the walk that is used without openat2. */
NODISCARD enum err confined_walk(int dir, const char *path, int flags, mode_t mode, int *fd,
                                 struct error *e);

#endif
