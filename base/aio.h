/* Asynchronous file reads and writes: many in flight, one thread in charge.
 *
 * Back end: io_uring; a pool of pread/pwrite threads where a ring is refused (old kernels,
 * seccomp, kernel.io_uring_disabled). Both behave the same. Use descriptors of aio_open_file():
 * O_DIRECT where the file system takes it, so the page cache is neither filled nor copied from.
 * For direct descriptors buffers, offsets and lengths are multiples of AIO_ALIGN.
 *
 *     while (more || in flight) {
 *         while (more && aio_room(a))
 *             rc = aio_read(a, fd, off, buf, len, req, e);
 *         rc = aio_wait(a, 1, done, N, &n_done, e);       (submits what is queued, too)
 *         for each done: done[i].user, done[i].bytes, done[i].sys
 *     }
 *
 * A request completes exactly once, in any order. Short transfers are continued inside: a read
 * gives fewer bytes than asked only at the end of the file (sys 0), a write only with an error.
 * The bytes of a failed request are unspecified. A completed write is not durable: fs_sync().
 *
 * An aio belongs to one thread. Fault points: aio.open, aio.read, aio.write (that request
 * completes with EIO), aio.short (its first transfer is cut in half), aio.ring (the ring is
 * refused), aio.buffer. */
#ifndef BASE_AIO_H
#define BASE_AIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define AIO_ALIGN 4096
#define AIO_MAX_DEPTH 1024

struct aio;

struct aio_options {
    uint32_t depth;     /* most requests in flight, 1..AIO_MAX_DEPTH; 0: 64 */
    uint32_t n_threads; /* of the pread pool, when it is used; 0: 8 */
    bool no_ring;       /* use the pread pool in any case */
};

struct aio_done {
    void *user;   /* as given with the request */
    size_t bytes; /* transferred in all */
    int sys;      /* 0, or the errno */
};

/* o NULL: all defaults. ERR_INVAL, ERR_NOMEM, ERR_LIMIT (threads). */
NODISCARD enum err aio_open(const struct aio_options *o, struct aio **out, struct error *e);
/* Waits for what is in flight, forgets its results. NULL is fine. */
void aio_close(struct aio *a);

/* "io_uring" or "threads". */
const char *aio_backend(const struct aio *a);

/* open(2) with O_CLOEXEC, and with O_DIRECT if this file system takes it; *direct_out (may be
 * NULL) says so. */
NODISCARD enum err aio_open_file(const char *path, int flags, mode_t mode, int *fd_out,
                                 bool *direct_out, struct error *e);

/* Page-aligned memory for reuse, faulted in now: the first touch of a fresh page costs far more
 * than reading into it. bytes is rounded up to AIO_ALIGN. ERR_NOMEM. */
NODISCARD enum err aio_buffer_new(size_t bytes, void **out, struct error *e);
/* The same, but each page is faulted in when it is first used: for much room of which little
 * may be needed. */
NODISCARD enum err aio_buffer_reserve(size_t bytes, void **out, struct error *e);
void aio_buffer_free(void *p, size_t bytes);

/* Registers memory with the ring as far as RLIMIT_MEMLOCK allows; requests inside it then skip
 * the pinning of pages. Returns how many bytes from the start of mem are registered: 0 is fine,
 * everything works unregistered. At most 16 regions. While registered the memory may not be
 * unmapped: aio_unregister(a, mem) first, with nothing in flight on it. */
size_t aio_register(struct aio *a, void *mem, size_t bytes);
void aio_unregister(struct aio *a, const void *mem);

/* Queues one request; nothing happens before aio_submit or aio_wait. Memory and descriptor stay
 * the caller's and must live until the completion. ERR_BUSY when depth requests are in flight,
 * ERR_INVAL for len 0 or an offset past INT64_MAX. */
NODISCARD enum err aio_read(struct aio *a, int fd, uint64_t off, void *dst, size_t len,
                            void *user, struct error *e);
NODISCARD enum err aio_write(struct aio *a, int fd, uint64_t off, const void *src, size_t len,
                             void *user, struct error *e);
/* Requests that may still be queued now; and those not yet handed back. */
uint32_t aio_room(const struct aio *a);
uint32_t aio_in_flight(const struct aio *a);

/* Starts what is queued. ERR_IO when the kernel refuses the ring itself. */
NODISCARD enum err aio_submit(struct aio *a, struct error *e);
/* Submits, waits until at least `min` requests are complete (at most those in flight; 0 does
 * not wait) and hands back up to cap of them. ERR_IO as aio_submit: then what is in flight is
 * lost, and its memory may not be reused before aio_close. */
NODISCARD enum err aio_wait(struct aio *a, uint32_t min, struct aio_done *done, size_t cap,
                            size_t *n_done, struct error *e);

/* Readable when a completion may be waiting: for a thread that polls other things, too. */
int aio_fd(const struct aio *a);

#endif
