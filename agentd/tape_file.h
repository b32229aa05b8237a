/* A tape as bytes, from the daemon to the process that verifies it.
 *
 * "AGTAPE01", then u64 little-endian counts of ids, segments and replay marks; per segment
 * start, len, kind, mode, open, has_digest, n_rows as u64 and 32 bytes of digest; per mark at,
 * from as u64; the ids as u32. Both ends are the same build on the same machine. */
#ifndef AGENTD_TAPE_FILE_H
#define AGENTD_TAPE_FILE_H

#include "sessions/tape.h"

/* Writes t to fd at its current position. */
NODISCARD enum err tape_file_write(int fd, const struct tape *t, struct error *e);
/* Reads it back; the caller finishes *out. ERR_FORMAT: not what it should be. */
NODISCARD enum err tape_file_read(int fd, struct tape *out, struct error *e);

#endif
