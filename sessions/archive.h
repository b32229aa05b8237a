/* The container of a bundle: a ustar archive in one zstd frame, written and read as a stream.
 *
 * The reader is for hostile input. It knows regular files with a plain name of at most 99 bytes
 * and nothing else: no links, folders, devices, sparse or extended headers. It inflates no byte
 * more than it was allowed to (archive_in_allow), whatever the frame says, and takes no frame
 * that asks for a window above 8 MiB. Names are compared, never opened.
 *
 * All refusals are ERR_FORMAT and say what is wrong; ERR_IO and ERR_NOMEM are this machine's.
 */
#ifndef SESSIONS_ARCHIVE_H
#define SESSIONS_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ARCHIVE_BLOCK 512u
#define ARCHIVE_NAME_CAP 100
#define ARCHIVE_FILE_MAX (8ull << 30) /* what eleven octal digits can say */

/* Bytes that a member of n bytes takes, header and padding included. */
static inline uint64_t archive_member_bytes(uint64_t n)
{
    return ARCHIVE_BLOCK + (n + ARCHIVE_BLOCK - 1) / ARCHIVE_BLOCK * ARCHIVE_BLOCK;
}

struct archive_out;

/* fd is borrowed, written from its current position. */
NODISCARD enum err archive_out_open(int fd, struct archive_out **out, struct error *e);
/* Begins a member of exactly n bytes, which follow in any pieces. */
NODISCARD enum err archive_out_member(struct archive_out *a, const char *name, uint64_t n,
                                      struct error *e);
NODISCARD enum err archive_out_write(struct archive_out *a, const void *p, size_t n,
                                     struct error *e);
/* Ends archive and frame. */
NODISCARD enum err archive_out_finish(struct archive_out *a, struct error *e);
void archive_out_free(struct archive_out *a);

struct archive_in;

/* fd is borrowed, read from its current position. Nothing may be inflated yet. */
NODISCARD enum err archive_in_open(int fd, struct archive_in **out, struct error *e);
void archive_in_allow(struct archive_in *a, uint64_t more_bytes);
/* The next member, once the one before was read to its end. */
NODISCARD enum err archive_in_member(struct archive_in *a, char name[ARCHIVE_NAME_CAP],
                                     uint64_t *n, struct error *e);
/* Exactly n bytes of the member. */
NODISCARD enum err archive_in_read(struct archive_in *a, void *dst, size_t n, struct error *e);
/* Two blocks of zeros, the end of the frame, the end of the file. */
NODISCARD enum err archive_in_finish(struct archive_in *a, struct error *e);
void archive_in_free(struct archive_in *a);

#endif
