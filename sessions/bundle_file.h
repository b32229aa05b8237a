/* The file of a bundle while it is written: manifest and members from spools through tar and
 * zstd into a temporary file beside the target, which takes its name once it is durable. */
#ifndef SESSIONS_BUNDLE_FILE_H
#define SESSIONS_BUNDLE_FILE_H

#include "sessions/bundle_internal.h"

struct bundle_file_out;

/* Makes the temporary file and writes the manifest. m and the spools (of blobs and state [1],
 * of the rest [0]) are borrowed. */
NODISCARD enum err bundle_file_open(const char *path, const struct bundle_manifest *m,
                                    const int spools[2], uint64_t now_ms,
                                    struct bundle_file_out **out, struct error *e);
/* Some MiB of members. *done: all are in, and the file has its name. */
NODISCARD enum err bundle_file_step(struct bundle_file_out *f, bool *done, struct error *e);
/* Of the whole file, once it is done. */
uint64_t bundle_file_bytes(const struct bundle_file_out *f);
/* Removes what is not done. NULL is fine. */
void bundle_file_free(struct bundle_file_out *f);

#endif
