#include "engine/weight_digests.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/workers.h"
#include "engine/digest_cache.h"

#define STEP_BYTES (UINT64_C(64) << 20) /* that a thread hashes before it is heard of again */
#define READ_BYTES (256u << 10)         /* at once: stays in the second-level cache */
#define NOTICE_BYTES 400

/* Neighbours in one shard, hashed by one thread one after the other. */
struct run {
    uint32_t first, last; /* of hashing.order */
    uint32_t shard;
    uint64_t n_bytes;
};

struct shard_state {
    struct digest_key key;
    uint32_t first, last; /* its tensors, of hashing.by_name and .order */
    uint32_t n_runs;      /* that are not done */
    int fd;               /* -1: not open */
    bool is_cold;
    bool is_settled; /* the clock has moved on since it was last written to */
};

struct hashing {
    const struct safetensors *st;
    const struct weight_digests_options *o;
    const struct tensor *tensors;
    size_t n_tensors, n_shards;
    uint8_t (*out)[HASH_BYTES];
    struct shard_state *shards;
    uint32_t *by_name; /* [n_tensors] by shard, then name: as they are remembered */
    uint32_t *order;   /* [n_tensors] by shard, then place: as they are read */
    uint8_t *list;     /* digests of one shard on their way */
    struct run *runs;
    size_t n_runs, next_run;
    uint64_t n_done, n_total;
};

/* One thread's work on one run, step by step. */
struct stream {
    struct work work;
    struct hashing *h;
    struct run run;
    uint32_t at;     /* of hashing.order: the tensor in work */
    uint64_t offset; /* of it that is hashed */
    struct hash hash;
    uint8_t *buffer;
    uint64_t n_done; /* by the last step */
    enum err rc;     /* of the last step */
    struct error error;
};

static void notice(const struct hashing *h, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void notice(const struct hashing *h, const char *fmt, ...)
{
    char text[NOTICE_BYTES];
    const struct engine_watch *w = h->o->watch;
    va_list ap;
    if (!w || !w->notice)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    w->notice(w->user, text);
}

static void tell(const struct hashing *h)
{
    const struct engine_watch *w = h->o->watch;
    if (w && w->hashing && h->n_total)
        w->hashing(w->user, h->n_done, h->n_total);
}

/* ---- what is remembered -------------------------------------------------------------------
 */

/* A file that is written to again within one tick of the clock keeps its ctime. A file system
 * that counts in whole seconds has two of them. */
static bool is_settled(const struct fs_identity *f, const struct clock *clock)
{
    const int64_t tick = f->ctime_ns % 1000000000 ? 100000000 : 2000000000;
    return f->ctime_ns < clock_wall_ms(clock) * 1000000 - tick;
}

static void describe_shard(struct hashing *h, uint32_t i)
{
    struct shard_state *s = &h->shards[i];
    uint64_t n_bytes;
    const uint8_t *map = safetensors_shard(h->st, i, &n_bytes);
    s->key.file = *safetensors_shard_identity(h->st, i);
    s->key.n_tensors = s->last - s->first;
    hash_bytes(NULL, map, (size_t)safetensors_shard_header(h->st, i), s->key.header);
    s->is_settled = is_settled(&s->key.file, h->o->clock);
}

/* Digests of a shard in the order of names, from or to where they belong. */
static void spread(struct hashing *h, const struct shard_state *s, uint8_t *list, bool to_list)
{
    for (uint32_t k = s->first; k < s->last; k++) {
        uint8_t *one = list + (size_t)(k - s->first) * HASH_BYTES;
        uint8_t *place = h->out[h->by_name[k]];
        memcpy(to_list ? one : place, to_list ? place : one, HASH_BYTES);
    }
}

static void recall(struct hashing *h, struct shard_state *s, uint8_t *list)
{
    struct error why;
    s->is_cold = true;
    if (!h->o->cache_dir || h->o->verify)
        return;
    enum err rc = digest_cache_find(h->o->cache_dir, &s->key, list, &why);
    if (rc && rc != ERR_NOTFOUND)
        notice(h, "remembered digests are not used: %s", why.msg);
    if (rc)
        return;
    s->is_cold = false;
    spread(h, s, list, false);
}

static void remember(struct hashing *h, const struct shard_state *s)
{
    const char *name = safetensors_shard_name(h->st, (size_t)(s - h->shards));
    struct error why;
    if (!h->o->cache_dir)
        return;
    if (!s->is_settled) {
        notice(h, "%s was written to just now: its digests are remembered the next time", name);
        return;
    }
    spread(h, s, h->list, true);
    if (digest_cache_keep(h->o->cache_dir, &s->key, h->list, &why))
        notice(h, "digests of %s are not remembered: %s", name, why.msg);
}

/* ---- lists --------------------------------------------------------------------------------
 */

static int by_place(const void *a, const void *b, void *tensors)
{
    const uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    const struct tensor *t = tensors, *x = &t[i], *y = &t[k];
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return i < k ? -1 : i > k; /* empty ones */
}

/* The tensors of each shard: a share of by_name and of order. */
static void list_tensors(struct hashing *h)
{
    uint32_t at = 0;
    for (size_t i = 0; i < h->n_tensors; i++) {
        h->shards[h->tensors[i].shard].last++;
        h->order[i] = (uint32_t)i;
    }
    for (size_t i = 0; i < h->n_shards; i++) {
        struct shard_state *s = &h->shards[i];
        uint32_t n = s->last;
        s->first = s->last = at;
        at += n;
    }
    for (size_t i = 0; i < h->n_tensors; i++) /* which are in order of name */
        h->by_name[h->shards[h->tensors[i].shard].last++] = (uint32_t)i;
    if (h->n_tensors)
        qsort_r(h->order, h->n_tensors, sizeof(*h->order), by_place,
                (void *)(uintptr_t)h->tensors);
}

/* Cuts the cold shards into runs of about a step; one tensor is never cut. */
static void cut_runs(struct hashing *h)
{
    for (uint32_t i = 0; i < h->n_shards; i++) {
        struct shard_state *s = &h->shards[i];
        struct run *r = NULL;
        for (uint32_t k = s->first; k < s->last && s->is_cold; k++) {
            uint64_t n = h->tensors[h->order[k]].n_bytes;
            if (!r || r->n_bytes + n > STEP_BYTES) {
                r = &h->runs[h->n_runs++];
                *r = (struct run){.first = k, .shard = i};
                s->n_runs++;
            }
            r->last = k + 1;
            r->n_bytes += n;
            h->n_total += n;
        }
    }
}

/* Large tensors first, so that none is left alone at the end; else as the files lie. */
static int large_first(const void *a, const void *b)
{
    const struct run *x = a, *y = b;
    uint64_t m = x->n_bytes > STEP_BYTES ? x->n_bytes : 0;
    uint64_t n = y->n_bytes > STEP_BYTES ? y->n_bytes : 0;
    if (m != n)
        return m > n ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static enum err prepare(struct hashing *h, struct error *e)
{
    size_t n = h->n_tensors ? h->n_tensors : 1;
    h->shards = calloc(h->n_shards, sizeof(*h->shards));
    h->by_name = calloc(n, sizeof(*h->by_name));
    h->order = calloc(n, sizeof(*h->order));
    h->runs = calloc(n, sizeof(*h->runs));
    h->list = malloc(n * HASH_BYTES);
    if (!h->shards || !h->by_name || !h->order || !h->runs || !h->list)
        return err_set(e, ERR_NOMEM, "digests of %zu tensors", h->n_tensors);
    for (size_t i = 0; i < h->n_shards; i++)
        h->shards[i].fd = -1;
    list_tensors(h);
    for (uint32_t i = 0; i < h->n_shards; i++) {
        describe_shard(h, i);
        recall(h, &h->shards[i], h->list);
    }
    cut_runs(h);
    qsort(h->runs, h->n_runs, sizeof(*h->runs), large_first);
    return OK;
}

static void hashing_fini(struct hashing *h)
{
    for (size_t i = 0; h->shards && i < h->n_shards; i++)
        if (h->shards[i].fd >= 0)
            close(h->shards[i].fd);
    free(h->shards);
    free(h->by_name);
    free(h->order);
    free(h->runs);
    free(h->list);
}

/* ---- hashing ------------------------------------------------------------------------------
 */

/* On a worker: up to STEP_BYTES of the stream's run. */
static void hash_step(struct work *work)
{
    struct stream *s = (struct stream *)(void *)work; /* its first member */
    struct hashing *h = s->h;
    const uint8_t *map = safetensors_shard(h->st, s->run.shard, &(uint64_t){0});
    const char *name = safetensors_shard_name(h->st, s->run.shard);
    s->n_done = 0;
    while (s->at < s->run.last && s->n_done < STEP_BYTES) {
        const struct tensor *t = &h->tensors[h->order[s->at]];
        uint64_t left = t->n_bytes - s->offset, from = (uint64_t)(t->data - map) + s->offset;
        size_t n = left < READ_BYTES ? (size_t)left : READ_BYTES;
        if (!s->offset)
            hash_init(&s->hash, NULL, HASH_BYTES);
        if (n && (s->rc = fs_pread(h->shards[s->run.shard].fd, name, s->buffer, n, from,
                                   &s->error))) {
            err_wrap(&s->error, s->rc, "tensor %.100s", t->name);
            return;
        }
        hash_add(&s->hash, s->buffer, n);
        s->offset += n;
        s->n_done += n;
        if (s->offset < t->n_bytes)
            continue;
        hash_final(&s->hash, h->out[h->order[s->at++]]);
        s->offset = 0;
    }
}

static enum err open_shard(struct hashing *h, uint32_t i, struct error *e)
{
    struct shard_state *s = &h->shards[i];
    char path[FS_PATH_BYTES];
    if (s->fd >= 0)
        return OK;
    enum err rc =
        fs_path(path, sizeof(path), e, "%s/%s", h->o->dir, safetensors_shard_name(h->st, i));
    if (rc || (rc = fs_open(path, O_RDONLY | O_NONBLOCK, 0, &s->fd, e)) ||
        (rc = safetensors_shard_unchanged(h->st, i, s->fd, e)))
        return rc;
    posix_fadvise(s->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return OK;
}

/* All runs of a shard are done: what was hashed has to be what is there. */
static enum err close_shard(struct hashing *h, uint32_t i, struct error *e)
{
    struct shard_state *s = &h->shards[i];
    enum err rc = safetensors_shard_unchanged(h->st, i, s->fd, e);
    close(s->fd);
    s->fd = -1;
    if (!rc)
        remember(h, s);
    return rc;
}

/* Gives the stream the next run, if there is one. */
static enum err begin_run(struct workers *w, struct stream *s, struct error *e)
{
    struct hashing *h = s->h;
    if (h->next_run == h->n_runs)
        return OK;
    s->run = h->runs[h->next_run++];
    s->at = s->run.first;
    s->offset = 0;
    enum err rc = open_shard(h, s->run.shard, e);
    if (!rc)
        workers_submit(w, &s->work);
    return rc;
}

/* What a step of a stream has come to. */
static enum err follow(struct workers *w, struct stream *s, struct error *e)
{
    struct hashing *h = s->h;
    if (s->rc) {
        if (e)
            *e = s->error;
        return s->rc;
    }
    h->n_done += s->n_done;
    tell(h);
    if (s->at < s->run.last) {
        workers_submit(w, &s->work);
        return OK;
    }
    enum err rc = OK;
    if (!--h->shards[s->run.shard].n_runs)
        rc = close_shard(h, s->run.shard, e);
    return rc ? rc : begin_run(w, s, e);
}

static enum err run_streams(struct hashing *h, struct workers *w, struct stream *streams,
                            uint32_t n, struct error *e)
{
    enum err rc = OK;
    struct work *done;
    tell(h);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = begin_run(w, &streams[i], e);
    while ((done = workers_take(w, true)))
        if (!rc)
            rc = follow(w, (struct stream *)(void *)done, e);
    return rc;
}

static enum err hash_runs(struct hashing *h, struct error *e)
{
    uint32_t n = h->o->n_threads < h->n_runs ? h->o->n_threads : (uint32_t)h->n_runs;
    struct workers *w = NULL;
    if (!n)
        return OK;
    n = n < WORKERS_MAX_THREADS ? n : WORKERS_MAX_THREADS;
    struct stream *streams = calloc(n, sizeof(*streams));
    uint8_t *buffers = malloc((size_t)n * READ_BYTES);
    enum err rc = streams && buffers ? workers_new(n, &w, e)
                                     : err_set(e, ERR_NOMEM, "hashing on %u threads", n);
    for (uint32_t i = 0; i < n && !rc; i++) {
        streams[i].work.run = hash_step;
        streams[i].h = h;
        streams[i].buffer = buffers + (size_t)i * READ_BYTES;
    }
    if (!rc)
        rc = run_streams(h, w, streams, n, e);
    workers_free(w);
    free(buffers);
    free(streams);
    return rc;
}

enum err weight_digests(const struct safetensors *st, const struct weight_digests_options *o,
                        uint8_t (*out)[HASH_BYTES], struct error *e)
{
    struct hashing h = {.st = st, .o = o, .out = out, .n_shards = safetensors_n_shards(st)};
    h.tensors = safetensors_list(st, &h.n_tensors);
    enum err rc = prepare(&h, e);
    if (!rc)
        rc = hash_runs(&h, e);
    hashing_fini(&h);
    return rc;
}
