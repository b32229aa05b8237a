/* What the two back ends of aio share with aio.c; nobody else includes this. */
#ifndef BASE_AIO_INTERNAL_H
#define BASE_AIO_INTERNAL_H

#include <sys/types.h>

#include "base/aio.h"

#define AIO_MAX_THREADS 64
#define AIO_MAX_TRANSFER                                                                       \
    (1u << 30) /* bytes of one system call: the kernel stops near 2 GiB                        \
                */

/* One request from aio_read or aio_write to its completion; always on exactly one list. */
struct aio_request {
    struct aio_request *next;
    void *user;
    char *mem;
    uint64_t off;
    size_t len, done; /* bytes asked for, transferred */
    int fd, sys;
    int fail; /* an errno to complete with instead of doing anything (fault points) */
    bool is_write;
    bool cut; /* the next transfer is cut in half (fault points) */
};

struct aio_list {
    struct aio_request *first, **end; /* end NULL: never used */
};

static inline void aio_list_push(struct aio_list *l, struct aio_request *r)
{
    r->next = NULL;
    if (!l->first)
        l->end = &l->first;
    *l->end = r;
    l->end = &r->next;
}

static inline struct aio_request *aio_list_pop(struct aio_list *l)
{
    struct aio_request *r = l->first;
    if (r)
        l->first = r->next;
    return r;
}

/* A back end. submit() moves everything from `queued` into its hands; wait() does that, too,
 * and returns when n_finished >= want. */
struct aio_ops {
    const char *name;
    enum err (*submit)(struct aio *a, struct error *e);
    enum err (*wait)(struct aio *a, uint32_t want, struct error *e);
    int (*fd)(const struct aio *a);
    size_t (*add_memory)(struct aio *a, void *mem,
                         size_t bytes); /* NULL: nothing to register */
    void (*drop_memory)(struct aio *a, const void *mem);
    void (*close)(struct aio *a); /* nothing is in flight */
};

struct aio {
    const struct aio_ops *ops;
    void *backend;
    uint32_t depth;
    uint32_t n_taken;    /* requests not handed back yet */
    uint32_t n_finished; /* of those, on `finished` */
    struct aio_request *unused;
    struct aio_list queued, finished;
    struct aio_request requests[]; /* depth */
};

/* ERR_UNSUPPORTED (without a message): this machine refuses rings. */
enum err aio_ring_open(struct aio *a, struct error *e);
enum err aio_pool_open(struct aio *a, uint32_t n_threads, struct error *e);

/* Bytes of the next system call for r. */
size_t aio_next_len(const struct aio_request *r);
/* Takes the result of one (bytes, or a negative errno). True: r is complete, with done and sys
 * set. False: the rest wants another call. */
bool aio_advance(struct aio_request *r, ssize_t n);

#endif
