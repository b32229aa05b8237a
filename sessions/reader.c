#include "sessions/reader.h"

#include <string.h>

#include "base/aio.h"
#include "base/pool.h"

#define BOUNCE_BYTES (16u << 20) /* of bounce buffers, unless one job alone needs more */
#define MIN_PARALLEL (1u << 20)  /* fewer bytes are opened here, in 0.4 ms */
#define MAX_WORKERS 16u

static bool lands(const struct reader_job *j)
{
    return j->dst && j->n_used == j->n && (uintptr_t)j->dst % EXTENT_PAGE == 0;
}

/* ---- set-up ------------------------------------------------------------------------------ */

/* Threads are started for the first run that is worth them, and stay. Without any it goes
 * slower. */
static struct workers *need_workers(struct store *st, uint64_t bytes)
{
    if (!st->workers && bytes >= MIN_PARALLEL) {
        uint32_t n = pool_cpus();
        (void)!workers_new(n < MAX_WORKERS ? n : MAX_WORKERS, &st->workers, NULL);
    }
    return bytes >= MIN_PARALLEL ? st->workers : NULL;
}

/* Bounce buffers of the size of the largest job that needs one. */
static enum err need_bounces(struct reader *r, const struct reader_job *jobs, size_t n,
                             struct error *e)
{
    struct page_buffer *b = &r->st->bounces;
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        if (!lands(&jobs[i]) && jobs[i].n > most)
            most = jobs[i].n;
    r->n_free_bounces = 0;
    if (!most)
        return OK;
    size_t n_buffers = most < BOUNCE_BYTES ? BOUNCE_BYTES / most : 1;
    n_buffers = n_buffers > n ? n : n_buffers;
    n_buffers = n_buffers > READER_DEPTH ? READER_DEPTH : n_buffers;
    if (n_buffers * most > b->bytes) {
        aio_unregister(r->st->aio, b->p);
        enum err rc = page_buffer_need(b, n_buffers * most, e);
        if (rc)
            return rc;
        (void)aio_register(r->st->aio, b->p, b->bytes);
    }
    r->bounce_bytes = most;
    while (r->n_free_bounces < n_buffers) {
        r->free_bounces[r->n_free_bounces] = (uint16_t)r->n_free_bounces;
        r->n_free_bounces++;
    }
    return OK;
}

/* ---- opening ----------------------------------------------------------------------------- */

enum err reader_open_region(struct reader_job *j, uint8_t *data)
{
    return extent_open_chunks(&j->h->x, j->h->header, j->region, j->chunk, j->n_chunks, j->keys,
                              data, NULL);
}

static void open_job(struct work *w)
{
    struct reader_job *j = (struct reader_job *)w;
    j->rc = j->open(j, j->data);
    if (!j->rc && j->bounce >= 0 && j->dst)
        memcpy(j->dst, j->data, j->n_used);
}
_Static_assert(offsetof(struct reader_job, work) == 0, "a job is its work");

/* ---- running ----------------------------------------------------------------------------- */

static void finish(struct reader *r, struct reader_job *j)
{
    pack_release(r->st, j->pack);
    if (j->bounce >= 0)
        r->free_bounces[r->n_free_bounces++] = (uint16_t)j->bounce;
    r->bytes_out -= j->n;
    r->n_out--;
    r->finished(r->user, j);
}

static bool has_room(const struct reader *r, const struct reader_job *j)
{
    return aio_room(r->st->aio) && r->n_out < READER_DEPTH &&
           (!r->n_out || r->bytes_out + j->n <= READER_BYTES) &&
           (lands(j) || r->n_free_bounces);
}

/* Starts j. *started false: it has to wait. */
static enum err start(struct reader *r, struct reader_job *j, bool *started, struct error *e)
{
    const struct pack_file *f;
    *started = false;
    enum err rc = pack_hold(r->st, j->pack, &f, e);
    if (rc == ERR_BUSY && r->n_out)
        return OK;
    if (rc)
        return rc;
    j->bounce = lands(j) ? -1 : r->free_bounces[r->n_free_bounces - 1];
    j->data = j->bounce < 0 ? j->dst
                            : (uint8_t *)r->st->bounces.p + (size_t)j->bounce * r->bounce_bytes;
    j->keys = &r->st->space.keys;
    memcpy(j->uuid, f->uuid, sizeof j->uuid);
    if ((rc = aio_read(r->st->aio, f->fd, j->off, j->data, j->n, j, e))) {
        pack_release(r->st, j->pack);
        return rc;
    }
    r->n_free_bounces -= j->bounce >= 0;
    r->n_out++;
    r->bytes_out += j->n;
    *started = true;
    return OK;
}

/* Once more, and alone: an error of the device may pass. */
static void read_again(struct reader *r, struct reader_job *j)
{
    const struct pack_file *f;
    j->rc = pack_open(r->st, j->pack, &f, NULL);
    if (!j->rc)
        j->rc = fs_pread(f->fd, "pack", j->data, j->n, j->off, NULL);
}

static void arrived(struct reader *r, const struct aio_done *d)
{
    struct reader_job *j = d->user;
    r->bytes_read += d->bytes;
    j->rc = d->bytes == j->n ? OK : ERR_CORRUPT;
    if (d->sys)
        read_again(r, j);
    if (j->rc) {
        finish(r, j);
        return;
    }
    j->work.run = open_job;
    workers_submit(r->workers, &j->work);
    if (!r->workers)
        finish(r, j);
}

/* Waits until something is through. */
static enum err collect(struct reader *r, struct error *e)
{
    struct aio_done done[64];
    struct work *w;
    size_t n = 0;
    enum err rc = OK;
    if (aio_in_flight(r->st->aio))
        rc = aio_wait(r->st->aio, 1, done, sizeof done / sizeof done[0], &n, e);
    else if ((w = workers_take(r->workers, true)))
        finish(r, (struct reader_job *)w);
    for (size_t i = 0; i < n; i++)
        arrived(r, &done[i]);
    while ((w = workers_take(r->workers, false)))
        finish(r, (struct reader_job *)w);
    if (!rc && r->progress)
        r->progress(r->user);
    return rc;
}

static void pass_over(struct reader *r, struct reader_job *j, enum err why)
{
    j->rc = why;
    r->finished(r->user, j);
}

/* Nothing of ours may be in flight when the memory goes. */
static void drain(struct reader *r)
{
    while (aio_in_flight(r->st->aio) && !collect(r, NULL))
        ;
    struct work *w;
    while ((w = workers_take(r->workers, true)))
        finish(r, (struct reader_job *)w);
}

enum err reader_run(struct reader *r, struct reader_job *jobs, size_t n, struct error *e)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += jobs[i].n;
    r->workers = need_workers(r->st, bytes);
    enum err rc = need_bounces(r, jobs, n, e);
    for (size_t next = 0; !rc && (next < n || r->n_out);) {
        struct reader_job *j = next < n ? &jobs[next] : NULL;
        bool started = false;
        if (j && !r->wanted(r->user, j)) {
            pass_over(r, j, ERR_CANCELLED);
            next++;
            continue;
        }
        if (j && has_room(r, j))
            rc = start(r, j, &started, e);
        if (head_is_damage(rc)) {
            pass_over(r, j, ERR_NOTFOUND);
            rc = OK;
            started = true;
        }
        if (started)
            next++;
        else if (!rc)
            rc = collect(r, e);
    }
    drain(r);
    return rc;
}
