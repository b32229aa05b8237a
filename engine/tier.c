#include "engine/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fs.h"

/* ---- the shards ---------------------------------------------------------------------------
 */

struct tier_file {
    const uint8_t *map;
    uint64_t n_bytes;
    const char *name;
    int fd;
};

struct tier_files {
    size_t n;
    struct tier_file file[]; /* by address of the map */
};

static int by_map(const void *a, const void *b)
{
    const struct tier_file *x = a, *y = b;
    return x->map < y->map ? -1 : x->map > y->map;
}

enum err tier_files_open(struct tier_files **out, const char *dir, const struct safetensors *st,
                         struct error *e)
{
    size_t n = safetensors_n_shards(st);
    struct tier_files *f = calloc(1, sizeof(*f) + n * sizeof(f->file[0]));
    if (!f)
        return err_set(e, ERR_NOMEM, "%zu shards", n);
    for (size_t i = 0; i < n; i++) {
        char path[FS_PATH_BYTES];
        struct tier_file *x = &f->file[i];
        x->fd = -1;
        x->name = safetensors_shard_name(st, i);
        x->map = safetensors_shard(st, i, &x->n_bytes);
        f->n++;
        enum err rc = fs_path(path, sizeof(path), e, "%s/%s", dir, x->name);
        if (rc || (rc = aio_open_file(path, O_RDONLY, 0, &x->fd, NULL, e)) ||
            (rc = safetensors_shard_unchanged(st, i, x->fd, e))) {
            tier_files_close(f);
            return rc;
        }
    }
    qsort(f->file, f->n, sizeof(f->file[0]), by_map);
    *out = f;
    return OK;
}

void tier_files_close(struct tier_files *f)
{
    for (size_t i = 0; f && i < f->n; i++)
        if (f->file[i].fd >= 0)
            close(f->file[i].fd);
    free(f);
}

/* The shard that holds this byte of the mapped checkpoint. */
static const struct tier_file *find_file(const struct tier_files *f, const uint8_t *mapped,
                                         size_t n_bytes)
{
    size_t first = 0, last = f->n;
    while (last - first > 1) {
        size_t middle = first + (last - first) / 2;
        if (f->file[middle].map <= mapped)
            first = middle;
        else
            last = middle;
    }
    const struct tier_file *x = &f->file[first];
    bool inside = f->n && mapped >= x->map && (uint64_t)(mapped - x->map) <= x->n_bytes &&
                  n_bytes <= x->n_bytes - (uint64_t)(mapped - x->map);
    return inside ? x : NULL;
}

/* ---- requests -----------------------------------------------------------------------------
 */

size_t tier_room(size_t n_bytes)
{
    return (n_bytes + 2 * (size_t)AIO_ALIGN - 2) / AIO_ALIGN * AIO_ALIGN;
}

enum err tier_init(struct tier *t, const char *name, const struct tier_files *files,
                   uint32_t depth, struct error *e)
{
    *t = (struct tier){.files = files, .name = name};
    return aio_open(&(struct aio_options){.depth = depth}, &t->aio, e);
}

void tier_fini(struct tier *t)
{
    aio_close(t->aio);
    t->aio = NULL;
}

uint32_t tier_n_free(const struct tier *t)
{
    return aio_room(t->aio);
}

static enum err locate(const struct tier *t, struct tier_request *q, struct error *e)
{
    const struct tier_file *f = find_file(t->files, q->mapped, q->n_bytes);
    if (!f)
        return err_set(e, ERR_INVAL, "%zu bytes that are in no shard", q->n_bytes);
    q->fd = f->fd;
    q->name = f->name;
    q->at = (uint64_t)(q->mapped - f->map);
    return OK;
}

enum err tier_start(struct tier *t, struct tier_request *q, struct error *e)
{
    enum err rc = q->mapped ? locate(t, q, e) : OK;
    if (rc)
        return rc;
    q->skip = (uint32_t)(q->at % AIO_ALIGN);
    q->error = (struct error){0};
    if (fault_point("tier.read"))
        q->error.code = err_sys(&q->error, EIO, "injected");
    size_t n_pages = (q->skip + q->n_bytes + AIO_ALIGN - 1) / AIO_ALIGN;
    return aio_read(t->aio, q->fd, q->at - q->skip, q->memory, n_pages * AIO_ALIGN, q, e);
}

/* A disk with a full queue, and a file that is in the page cache, hold up the call that submits
 * as well as the one that waits. */
static enum err count_stall(struct tier *t, uint64_t start, enum err rc)
{
    tier_count(&t->stall_ns, clock_mono_ns(clock_real()) - start);
    return rc;
}

enum err tier_submit(struct tier *t, struct error *e)
{
    uint64_t start = clock_mono_ns(clock_real());
    return count_stall(t, start, aio_submit(t->aio, e));
}

/* How a request went: where and how much in the message, the owner adds what. */
static void settle(struct tier_request *q, const struct aio_done *d)
{
    int sys = q->error.code ? q->error.sys : d->sys;
    if (sys)
        q->error.code =
            err_sys(&q->error, sys, "%.80s: %zu bytes at %" PRIu64, q->name, q->n_bytes, q->at);
    else if (d->bytes < q->skip + q->n_bytes)
        q->error.code = err_set(
            &q->error, ERR_IO, "%.80s: %zu bytes at %" PRIu64 ", the file ends after %zu",
            q->name, q->n_bytes, q->at, d->bytes > q->skip ? d->bytes - q->skip : 0);
}

enum err tier_wait(struct tier *t, bool wait, struct tier_request **done, size_t cap,
                   size_t *n_done, struct error *e)
{
    struct aio_done list[32];
    size_t n = 0;
    uint64_t start = clock_mono_ns(clock_real());
    if (cap > sizeof(list) / sizeof(*list))
        cap = sizeof(list) / sizeof(*list);
    *n_done = 0;
    enum err rc = count_stall(t, start, aio_wait(t->aio, wait ? 1 : 0, list, cap, &n, e));
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        done[i] = list[i].user;
        settle(done[i], &list[i]);
        tier_count(&t->read_bytes, list[i].bytes);
    }
    *n_done = n;
    return OK;
}

struct engine_tier tier_counters(const struct tier *t)
{
#define LOAD(counter) atomic_load_explicit(&t->counter, memory_order_relaxed)
    return (struct engine_tier){.name = t->name,
                                .budget_bytes = t->budget_bytes,
                                .minimum_bytes = t->minimum_bytes,
                                .resident_bytes = LOAD(resident_bytes),
                                .hits = LOAD(hits),
                                .misses = LOAD(misses),
                                .read_bytes = LOAD(read_bytes),
                                .stall_ns = LOAD(stall_ns)};
#undef LOAD
}
