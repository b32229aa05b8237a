/* The part of aio that both back ends share: slots, counting, continuing short transfers. */
#include "base/aio_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"

#define DEFAULT_DEPTH 64
#define DEFAULT_THREADS 8

enum err aio_open(const struct aio_options *o, struct aio **out, struct error *e)
{
    const struct aio_options none = {0};
    if (!o)
        o = &none;
    uint32_t depth = o->depth ? o->depth : DEFAULT_DEPTH;
    uint32_t n_threads = o->n_threads ? o->n_threads : DEFAULT_THREADS;
    if (depth > AIO_MAX_DEPTH || n_threads > AIO_MAX_THREADS)
        return err_set(e, ERR_INVAL, "aio: depth %u of at most %d, %u threads of at most %d",
                       depth, AIO_MAX_DEPTH, n_threads, AIO_MAX_THREADS);
    struct aio *a = calloc(1, sizeof *a + depth * sizeof a->requests[0]);
    if (!a)
        return err_set(e, ERR_NOMEM, "aio: no memory for %u requests", depth);
    a->depth = depth;
    for (uint32_t i = 0; i < depth; i++)
        a->requests[i].next = i + 1 < depth ? &a->requests[i + 1] : NULL;
    a->unused = &a->requests[0];
    /* A refused ring is no error: the pool does the same work. */
    enum err rc = ERR_UNSUPPORTED;
    if (!o->no_ring && !fault_point("aio.ring"))
        rc = aio_ring_open(a, e);
    if (rc == ERR_UNSUPPORTED)
        rc = aio_pool_open(a, n_threads, e);
    if (rc) {
        free(a);
        return rc;
    }
    *out = a;
    return OK;
}

void aio_close(struct aio *a)
{
    if (!a)
        return;
    struct aio_done done[16];
    size_t n;
    while (a->n_taken > 0 && !aio_wait(a, 1, done, sizeof done / sizeof done[0], &n, NULL))
        ;
    a->ops->close(a);
    free(a);
}

const char *aio_backend(const struct aio *a)
{
    return a->ops->name;
}

enum err aio_open_file(const char *path, int flags, mode_t mode, int *fd_out, bool *direct_out,
                       struct error *e)
{
    bool direct = true;
    if (fault_point("aio.open"))
        return err_sys(e, fault_errno(EIO), "open %s", path);
    int fd = open(path, flags | O_CLOEXEC | O_DIRECT, mode);
    if (fd < 0 && errno == EINVAL) {
        direct = false;
        fd = open(path, flags | O_CLOEXEC, mode);
    }
    if (fd < 0)
        return err_sys(e, errno, "open %s", path);
    *fd_out = fd;
    if (direct_out)
        *direct_out = direct;
    return OK;
}

/* ---- memory ----------------------------------------------------------------------------- */

static size_t page_up(size_t bytes)
{
    return (bytes + AIO_ALIGN - 1) & ~(size_t)(AIO_ALIGN - 1);
}

static enum err map_buffer(size_t bytes, int flags, void **out, struct error *e)
{
    if (bytes == 0 || bytes > SIZE_MAX - AIO_ALIGN)
        return err_set(e, ERR_INVAL, "aio buffer of %zu bytes", bytes);
    void *p = fault_point("aio.buffer") ? MAP_FAILED
                                        : mmap(NULL, page_up(bytes), PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "aio buffer: no memory for %zu bytes", bytes);
    *out = p;
    return OK;
}

enum err aio_buffer_new(size_t bytes, void **out, struct error *e)
{
    return map_buffer(bytes, MAP_POPULATE, out, e);
}

enum err aio_buffer_reserve(size_t bytes, void **out, struct error *e)
{
    return map_buffer(bytes, MAP_NORESERVE, out, e);
}

void aio_buffer_free(void *p, size_t bytes)
{
    if (p)
        munmap(p, page_up(bytes));
}

size_t aio_register(struct aio *a, void *mem, size_t bytes)
{
    return a->ops->add_memory ? a->ops->add_memory(a, mem, bytes) : 0;
}

void aio_unregister(struct aio *a, const void *mem)
{
    if (a->ops->drop_memory)
        a->ops->drop_memory(a, mem);
}

/* ---- requests --------------------------------------------------------------------------- */

static enum err enqueue(struct aio *a, struct aio_request r, struct error *e)
{
    if (r.len == 0 || r.off > INT64_MAX || r.len > INT64_MAX - r.off)
        return err_set(e, ERR_INVAL, "aio: %zu bytes at offset %llu", r.len,
                       (unsigned long long)r.off);
    struct aio_request *slot = a->unused;
    if (!slot)
        return err_set(e, ERR_BUSY, "aio: %u requests in flight already", a->depth);
    a->unused = slot->next;
    a->n_taken++;
    if (fault_point(r.is_write ? "aio.write" : "aio.read"))
        r.fail = fault_errno(EIO);
    if (fault_point("aio.short"))
        r.cut = true;
    *slot = r;
    aio_list_push(&a->queued, slot);
    return OK;
}

enum err aio_read(struct aio *a, int fd, uint64_t off, void *dst, size_t len, void *user,
                  struct error *e)
{
    return enqueue(
        a, (struct aio_request){.fd = fd, .off = off, .mem = dst, .len = len, .user = user}, e);
}

enum err aio_write(struct aio *a, int fd, uint64_t off, const void *src, size_t len, void *user,
                   struct error *e)
{
    return enqueue(a,
                   (struct aio_request){.fd = fd,
                                        .off = off,
                                        .mem = (void *)(uintptr_t)src,
                                        .len = len,
                                        .user = user,
                                        .is_write = true},
                   e);
}

uint32_t aio_room(const struct aio *a)
{
    return a->depth - a->n_taken;
}

uint32_t aio_in_flight(const struct aio *a)
{
    return a->n_taken;
}

enum err aio_submit(struct aio *a, struct error *e)
{
    return a->ops->submit(a, e);
}

enum err aio_wait(struct aio *a, uint32_t min, struct aio_done *done, size_t cap,
                  size_t *n_done, struct error *e)
{
    *n_done = 0;
    uint32_t want = min < a->n_taken ? min : a->n_taken;
    want = want < cap ? want : (uint32_t)cap;
    enum err rc = a->ops->wait(a, want, e);
    struct aio_request *r;
    while (!rc && *n_done < cap && (r = aio_list_pop(&a->finished))) {
        done[(*n_done)++] = (struct aio_done){r->user, r->done, r->sys};
        a->n_finished--;
        a->n_taken--;
        r->next = a->unused;
        a->unused = r;
    }
    return rc;
}

int aio_fd(const struct aio *a)
{
    return a->ops->fd(a);
}

/* ---- one transfer ----------------------------------------------------------------------- */

size_t aio_next_len(const struct aio_request *r)
{
    size_t left = r->len - r->done;
    if (left > AIO_MAX_TRANSFER)
        left = AIO_MAX_TRANSFER;
    /* A transfer that a test wants to be short: half, and still whole pages. */
    if (r->cut && left >= 2 * AIO_ALIGN)
        left = left / 2 & ~(size_t)(AIO_ALIGN - 1);
    return left;
}

/* Whether a short read stopped at the end of a regular file, in the middle of a page. */
static bool at_end(const struct aio_request *r)
{
    struct stat st;
    return r->done % AIO_ALIGN != 0 && fstat(r->fd, &st) == 0 && S_ISREG(st.st_mode) &&
           r->off + r->done >= (uint64_t)st.st_size;
}

bool aio_advance(struct aio_request *r, ssize_t n)
{
    r->cut = false;
    if (n == -EINTR || n == -EAGAIN)
        return false;
    if (n < 0) {
        r->sys = (int)-n;
        return true;
    }
    r->done += (size_t)n;
    if (n == 0 && r->is_write)
        r->sys = EIO;
    /* At the end of the file the rest of a direct read would be misaligned: do not try it. */
    return n == 0 || r->done == r->len || (!r->is_write && at_end(r));
}
