/* The aio back end over io_uring. */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

#include "base/aio_internal.h"

#define MAX_REGIONS 16
#define MIN_REGION_BYTES (64u << 10)
#define MAX_REGION_BYTES (1u << 30) /* the kernel's limit for one registered buffer */

/* Registered memory; a free slot has bytes 0. Its index is the kernel's buffer index. */
struct region {
    const char *mem;
    size_t bytes;
};

struct ring_backend {
    struct io_uring ring;
    bool can_register;
    uint32_t n_inside; /* requests that the kernel has, or that stand in the submission queue */
    struct region regions[MAX_REGIONS];
};

/* Index of the region that holds [mem, mem + len), or -1. */
static int region_of(const struct ring_backend *b, const char *mem, size_t len)
{
    for (int i = 0; i < MAX_REGIONS; i++) {
        const struct region *r = &b->regions[i];
        if (mem >= r->mem && (size_t)(mem - r->mem) < r->bytes &&
            len <= r->bytes - (size_t)(mem - r->mem))
            return i;
    }
    return -1;
}

static void prepare(const struct ring_backend *b, struct io_uring_sqe *sqe,
                    struct aio_request *r)
{
    char *mem = r->mem + r->done;
    unsigned len = (unsigned)aio_next_len(r);
    uint64_t off = r->off + r->done;
    int region = region_of(b, mem, len);
    if (r->is_write && region >= 0)
        io_uring_prep_write_fixed(sqe, r->fd, mem, len, off, region);
    else if (r->is_write)
        io_uring_prep_write(sqe, r->fd, mem, len, off);
    else if (region >= 0)
        io_uring_prep_read_fixed(sqe, r->fd, mem, len, off, region);
    else
        io_uring_prep_read(sqe, r->fd, mem, len, off);
    io_uring_sqe_set_data(sqe, r);
}

static void finish(struct aio *a, struct aio_request *r)
{
    aio_list_push(&a->finished, r);
    a->n_finished++;
}

/* Moves queued requests into the ring as far as it has room. The ring is as deep as the aio, so
 * there is room for all once the kernel has taken what stands in the submission queue. */
static void fill_ring(struct aio *a)
{
    struct ring_backend *b = a->backend;
    while (a->queued.first) {
        struct io_uring_sqe *sqe = NULL;
        if (!a->queued.first->fail && !(sqe = io_uring_get_sqe(&b->ring)))
            return;
        struct aio_request *r = aio_list_pop(&a->queued);
        if (r->fail) {
            aio_advance(r, -r->fail);
            finish(a, r);
            continue;
        }
        prepare(b, sqe, r);
        b->n_inside++;
    }
}

/* Takes what has come back; the rest of a short transfer is queued again. */
static void reap(struct aio *a)
{
    struct ring_backend *b = a->backend;
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&b->ring, &cqe) == 0) {
        struct aio_request *r = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&b->ring, cqe);
        b->n_inside--;
        if (aio_advance(r, result))
            finish(a, r);
        else
            aio_list_push(&a->queued, r);
    }
}

/* Submits; waits for one completion if asked to. */
static enum err enter(struct aio *a, bool wait, struct error *e)
{
    struct ring_backend *b = a->backend;
    int n = wait ? io_uring_submit_and_wait(&b->ring, 1) : io_uring_submit(&b->ring);
    /* EAGAIN and EBUSY: the kernel wants completions reaped, or is short of memory for now. */
    if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY)
        return err_sys(e, -n, "io_uring");
    return OK;
}

static enum err ring_submit(struct aio *a, struct error *e)
{
    fill_ring(a);
    return enter(a, false, e);
}

static enum err ring_wait(struct aio *a, uint32_t want, struct error *e)
{
    struct ring_backend *b = a->backend;
    fill_ring(a);
    enum err rc = enter(a, false, e);
    reap(a);
    while (!rc && (a->n_finished < want || a->queued.first)) {
        fill_ring(a);
        rc = enter(a, a->n_finished < want && b->n_inside > 0, e);
        reap(a);
    }
    return rc;
}

static int ring_fd(const struct aio *a)
{
    return ((const struct ring_backend *)a->backend)->ring.ring_fd;
}

/* The kernel charges registered pages against RLIMIT_MEMLOCK: halve until it agrees. */
static size_t ring_add_memory(struct aio *a, void *mem, size_t bytes)
{
    struct ring_backend *b = a->backend;
    int slot = 0;
    while (slot < MAX_REGIONS && b->regions[slot].bytes)
        slot++;
    if (!b->can_register || slot == MAX_REGIONS)
        return 0;
    if (bytes > MAX_REGION_BYTES)
        bytes = MAX_REGION_BYTES;
    for (; bytes >= MIN_REGION_BYTES; bytes = bytes / 2 & ~(size_t)(AIO_ALIGN - 1)) {
        struct iovec v = {mem, bytes};
        __u64 tag = 0;
        if (io_uring_register_buffers_update_tag(&b->ring, (unsigned)slot, &v, &tag, 1) == 1) {
            b->regions[slot] = (struct region){mem, bytes};
            return bytes;
        }
    }
    return 0;
}

static void ring_drop_memory(struct aio *a, const void *mem)
{
    struct ring_backend *b = a->backend;
    for (unsigned i = 0; i < MAX_REGIONS; i++) {
        if (b->regions[i].bytes == 0 || b->regions[i].mem != mem)
            continue;
        struct iovec v = {NULL, 0};
        __u64 tag = 0;
        io_uring_register_buffers_update_tag(&b->ring, i, &v, &tag, 1);
        b->regions[i] = (struct region){NULL, 0};
    }
}

static void ring_close(struct aio *a)
{
    struct ring_backend *b = a->backend;
    io_uring_queue_exit(&b->ring);
    free(b);
}

static const struct aio_ops ring_ops = {
    .name = "io_uring",
    .submit = ring_submit,
    .wait = ring_wait,
    .fd = ring_fd,
    .add_memory = ring_add_memory,
    .drop_memory = ring_drop_memory,
    .close = ring_close,
};

enum err aio_ring_open(struct aio *a, struct error *e)
{
    struct ring_backend *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, ERR_NOMEM, "aio: no memory for a ring");
    int rc = io_uring_queue_init(a->depth, &b->ring, 0);
    if (rc < 0) {
        free(b);
        return ERR_UNSUPPORTED;
    }
    b->can_register = io_uring_register_buffers_sparse(&b->ring, MAX_REGIONS) == 0;
    a->ops = &ring_ops;
    a->backend = b;
    return OK;
}
