#include "sessions/reader.h"

#include <string.h>

#include "base/aio.h"

#define BOUNCE_BYTES ((size_t)READER_BOUNCE_PAGES * EXTENT_PAGE)

static bool lands(const struct reader_job *j)
{
    return j->dst && j->n_used == j->n && (uintptr_t)j->dst % EXTENT_PAGE == 0;
}

/* ---- set-up ------------------------------------------------------------------------------ */

/* Room for bounce buffers, cut out page by page as jobs need it; the pages stay. */
static enum err need_bounces(struct store *st, struct error *e)
{
    struct page_buffer *b = &st->bounces;
    if (b->p)
        return OK;
    enum err rc = aio_buffer_reserve(BOUNCE_BYTES, &b->p, e);
    b->bytes = rc ? 0 : BOUNCE_BYTES;
    return rc;
}

static bool is_taken(const struct reader *r, uint32_t page)
{
    return r->taken[page / 64] >> (page % 64) & 1;
}

static void flip(struct reader *r, int64_t first, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes / EXTENT_PAGE; i++)
        r->taken[((size_t)first + i) / 64] ^= 1ull << (((size_t)first + i) % 64);
}

/* First of n free pages in a row, the lowest there are: those have been touched; -1: none. */
static int64_t find_pages(const struct reader *r, size_t n_bytes)
{
    uint32_t n = (uint32_t)(n_bytes / EXTENT_PAGE), run = 0;
    for (uint32_t page = 0; page < READER_BOUNCE_PAGES; page++) {
        run = is_taken(r, page) ? 0 : run + 1;
        if (run == n)
            return page + 1 - n;
    }
    return -1;
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
        flip(r, j->bounce, j->n);
    r->bytes_out -= j->n;
    r->n_out--;
    r->finished(r->user, j);
}

static bool has_room(const struct reader *r, const struct reader_job *j)
{
    return aio_room(r->st->aio) && r->n_out < READER_DEPTH &&
           (!r->n_out || r->bytes_out + j->n <= READER_BYTES);
}

/* Where a job's bytes go first. False: there is no room for them now. */
static bool place(struct reader *r, struct reader_job *j)
{
    j->bounce = -1;
    j->data = j->dst;
    if (lands(j))
        return true;
    if ((j->bounce = find_pages(r, j->n)) < 0)
        return false;
    j->data = (uint8_t *)r->st->bounces.p + j->bounce * EXTENT_PAGE;
    return true;
}

/* Starts j. *started false: it has to wait. */
static enum err start(struct reader *r, struct reader_job *j, bool *started, struct error *e)
{
    const struct pack_file *f;
    *started = false;
    if (!place(r, j))
        return r->n_out ? OK : err_set(e, ERR_LIMIT, "restore: a read of %zu bytes", j->n);
    enum err rc = pack_hold(r->st, j->pack, &f, e);
    if (rc == ERR_BUSY && r->n_out)
        return OK;
    if (rc)
        return rc;
    j->keys = &r->st->space.keys;
    memcpy(j->uuid, f->uuid, sizeof j->uuid);
    if ((rc = aio_read(r->st->aio, f->fd, j->off, j->data, j->n, j, e))) {
        pack_release(r->st, j->pack);
        return rc;
    }
    if (j->bounce >= 0) {
        flip(r, j->bounce, j->n);
    }
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

enum err reader_run(struct reader *r, struct error *e)
{
    r->workers = store_workers(r->st, r->n_bytes);
    enum err rc = need_bounces(r->st, e);
    for (size_t next = 0; !rc && (next < *r->n_jobs || r->n_out);) {
        struct reader_job *j = next < *r->n_jobs ? &r->jobs[next] : NULL;
        bool started = false;
        if (j && !r->wanted(r->user, j)) {
            next++;
            pass_over(r, j, ERR_CANCELLED);
            continue;
        }
        if (j && has_room(r, j))
            rc = start(r, j, &started, e);
        if (head_is_damage(rc)) {
            next++;
            pass_over(r, j, ERR_NOTFOUND);
            rc = OK;
            continue;
        }
        if (started)
            next++;
        else if (!rc)
            rc = collect(r, e);
    }
    drain(r);
    return rc;
}
