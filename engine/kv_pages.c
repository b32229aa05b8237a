#include "engine/kv_pages.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/fs.h"

#define DEPTH 64      /* reads in flight */
#define BATCH 64      /* pages of one write */
#define TAIL_CHUNKS 2 /* runs that fit in a tail */
#define NO_SLOT UINT32_MAX

enum slot_state { SLOT_EMPTY, SLOT_LOADING, SLOT_READY };

struct slot {
    uint64_t key;
    uint32_t next;              /* in its bucket */
    uint8_t state;              /* enum slot_state */
    bool is_hot;                /* second chance */
    const struct kv_want *want; /* while loading: who waits */
    uint64_t seal;
    struct tier_request request;
};

struct kv_pages {
    struct tier tier;
    const struct kv_shape *shape;
    int fd;
    size_t page_bytes;
    uint64_t tail_tokens, tail_bytes; /* of one sequence */
    size_t gather_bytes;
    uint32_t n_joined, n_owners;
    /* The cache. */
    uint8_t *memory;       /* [n_slots][page_bytes] */
    struct slot *slots;    /* [n_slots] */
    uint32_t *bucket;      /* [n_buckets] */
    size_t n_slots, limit; /* slots there are; that may be used now */
    size_t n_buckets, hand;
    /* The file. */
    struct crypto_extent *key;
    uint64_t n_seals;
    uint32_t *unused; /* pages given back */
    size_t n_unused, cap_unused, n_file;
    uint8_t *batch; /* [BATCH][page_bytes] */
    uint8_t *gather;
};

/* ---- sizes --------------------------------------------------------------------------------
 */

static size_t align(size_t n)
{
    return (n + AIO_ALIGN - 1) / AIO_ALIGN * AIO_ALIGN;
}

static size_t row_bytes(const struct kv_shape *s, uint32_t source)
{
    return s->planes[2 * source].row_bytes;
}

static size_t widest_row(const struct kv_shape *s)
{
    size_t most = 0;
    for (uint32_t i = 0; i < s->n_sources; i++)
        most = row_bytes(s, i) > most ? row_bytes(s, i) : most;
    return most;
}

/* A page holds whole rows and the tag of its seal. */
static size_t page_size(const struct kv_shape *s)
{
    return align(widest_row(s) + CRYPTO_TAG_BYTES);
}

static uint32_t page_rows(const struct kv_shape *s, uint32_t source)
{
    return (uint32_t)((page_size(s) - CRYPTO_TAG_BYTES) / row_bytes(s, source));
}

/* Rows of one source above the cold ones: what a run adds, one group that was not finished,
 * and a page that is not full. */
static uint64_t tail_rows(const struct kv_shape *s, uint32_t source, uint64_t n_tokens)
{
    return n_tokens / s->source_ratio[source] + 1 + page_rows(s, source);
}

static uint64_t tail_size(const struct kv_shape *s, uint64_t n_tokens)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->n_sources; i++) /* it starts and ends inside pages of memory */
        sum += align(tail_rows(s, i, n_tokens) * row_bytes(s, i)) + AIO_ALIGN;
    return sum;
}

uint64_t kv_pages_min_bytes(const struct kv_pages_options *o)
{
    return align(o->top_k * widest_row(o->shape)) + tail_size(o->shape, o->least_tokens) +
           page_size(o->shape);
}

/* ---- life ---------------------------------------------------------------------------------
 */

static void divide(struct kv_pages *p, const struct kv_pages_options *o, uint32_t *chunk)
{
    uint64_t least = align(o->top_k * widest_row(o->shape));
    uint64_t gather = align((uint64_t)o->top_k * o->chunk_tokens * widest_row(o->shape));
    uint32_t n = o->chunk_tokens > o->least_tokens ? o->chunk_tokens : o->least_tokens;
    while (n > o->least_tokens &&
           tail_size(o->shape, (uint64_t)TAIL_CHUNKS * n) > o->budget_bytes / 4)
        n = n / 2 > o->least_tokens ? n / 2 : o->least_tokens;
    *chunk = n < *chunk ? n : *chunk;
    p->tail_tokens = n > o->least_tokens ? (uint64_t)TAIL_CHUNKS * n : n;
    p->tail_bytes = tail_size(o->shape, p->tail_tokens);
    gather = gather < o->budget_bytes / 4 ? gather : o->budget_bytes / 4;
    p->gather_bytes = align(gather > least ? gather : least);
    if (p->gather_bytes + p->tail_bytes + p->page_bytes > o->budget_bytes)
        p->gather_bytes = least;
}

uint64_t kv_pages_device_bytes(const struct kv_pages_options *o)
{
    struct kv_pages p = {.page_bytes = page_size(o->shape)};
    uint32_t chunk = o->chunk_tokens;
    divide(&p, o, &chunk);
    return p.gather_bytes + p.tail_bytes;
}

static enum err open_file(struct kv_pages *p, const char *dir, struct error *e)
{
    char path[FS_PATH_BYTES];
    uint64_t name;
    crypto_random(&name, sizeof(name));
    enum err rc = fs_path(path, sizeof(path), e, "%s/kv-%016" PRIx64 ".spill", dir, name);
    if (rc || (rc = aio_open_file(path, O_RDWR | O_CREAT | O_EXCL, 0600, &p->fd, NULL, e)))
        return rc;
    if (unlink(path))
        return err_sys(e, errno, "unlink %s", path);
    return OK;
}

static void *map_zeroes(size_t n)
{
    void *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return m == MAP_FAILED ? NULL : m;
}

static enum err allocate(struct kv_pages *p, struct error *e)
{
    void *batch = NULL;
    for (p->n_buckets = 1; p->n_buckets < p->n_slots;)
        p->n_buckets *= 2;
    p->memory = map_zeroes(p->n_slots * p->page_bytes);
    p->slots = map_zeroes(p->n_slots * sizeof(*p->slots));
    p->bucket = malloc(p->n_buckets * sizeof(*p->bucket));
    p->gather = map_zeroes(p->gather_bytes);
    p->key = crypto_secret_new(sizeof(*p->key));
    if (!p->memory || !p->slots || !p->bucket || !p->gather || !p->key)
        return err_set(e, ERR_NOMEM, "cache of %zu pages of KV rows", p->n_slots);
    for (size_t i = 0; i < p->n_buckets; i++)
        p->bucket[i] = NO_SLOT;
    crypto_random(p->key, sizeof(*p->key));
    enum err rc = aio_buffer_new(BATCH * p->page_bytes, &batch, e);
    p->batch = batch;
    return rc;
}

static enum err init(struct kv_pages *p, const struct kv_pages_options *o, uint32_t *chunk,
                     struct error *e)
{
    p->fd = -1;
    p->shape = o->shape;
    p->page_bytes = page_size(o->shape);
    divide(p, o, chunk);
    p->n_slots = (size_t)((o->budget_bytes - p->gather_bytes - p->tail_bytes) / p->page_bytes);
    if (p->n_slots >= NO_SLOT)
        p->n_slots = NO_SLOT - 1;
    p->limit = p->n_slots;
    enum err rc = tier_init(&p->tier, "kv", NULL, DEPTH, e);
    if (rc || (rc = open_file(p, o->dir, e)))
        return rc;
    p->tier.budget_bytes = o->budget_bytes;
    p->tier.minimum_bytes = kv_pages_min_bytes(o);
    tier_count(&p->tier.resident_bytes, p->gather_bytes);
    return allocate(p, e);
}

enum err kv_pages_new(struct kv_pages **out, const struct kv_pages_options *o,
                      uint32_t *chunk_tokens, struct error *e)
{
    uint64_t min = kv_pages_min_bytes(o);
    if (o->budget_bytes < min)
        return err_set(e, ERR_LIMIT,
                       "%" PRIu64 " bytes of memory for KV rows, one sequence needs %" PRIu64,
                       o->budget_bytes, min);
    struct kv_pages *p = calloc(1, sizeof(*p));
    if (!p)
        return err_set(e, ERR_NOMEM, "cache of KV rows");
    enum err rc = init(p, o, chunk_tokens, e);
    if (rc) {
        kv_pages_free(p);
        return rc;
    }
    *out = p;
    return OK;
}

static void unmap(void *p, size_t n)
{
    if (p)
        munmap(p, n);
}

void kv_pages_free(struct kv_pages *p)
{
    if (!p)
        return;
    tier_fini(&p->tier);
    unmap(p->memory, p->n_slots * p->page_bytes);
    unmap(p->slots, p->n_slots * sizeof(*p->slots));
    unmap(p->gather, p->gather_bytes);
    free(p->bucket);
    free(p->unused);
    aio_buffer_free(p->batch, BATCH * p->page_bytes);
    crypto_secret_free(p->key, sizeof(*p->key));
    if (p->fd >= 0)
        close(p->fd);
    free(p);
}

uint32_t kv_pages_rows(const struct kv_pages *p, uint32_t source)
{
    return page_rows(p->shape, source);
}

uint64_t kv_pages_tail_rows(const struct kv_pages *p, uint32_t source)
{
    return tail_rows(p->shape, source, p->tail_tokens);
}

uint8_t *kv_pages_gather(struct kv_pages *p)
{
    return p->gather;
}

size_t kv_pages_gather_bytes(const struct kv_pages *p)
{
    return p->gather_bytes;
}

size_t kv_pages_gather_rows(const struct kv_pages *p, uint32_t source)
{
    return p->gather_bytes / row_bytes(p->shape, source);
}

struct tier *kv_pages_tier(struct kv_pages *p)
{
    return &p->tier;
}

/* ---- the cache ----------------------------------------------------------------------------
 */

#define PAGE_BITS 27
#define SOURCE_BITS 5

static_assert(CONFIG_MAX_SOURCES <= 1 << SOURCE_BITS, "a key holds the source");

static uint64_t key_of(uint32_t owner, uint32_t source, uint32_t page)
{
    assert(page >> PAGE_BITS == 0);
    return (uint64_t)owner << 32 | source << PAGE_BITS | page;
}

static uint32_t *bucket_of(struct kv_pages *p, uint64_t key)
{
    uint64_t h = key * UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio */
    return &p->bucket[(h ^ h >> 32) & (p->n_buckets - 1)];
}

static uint8_t *slot_memory(const struct kv_pages *p, uint32_t slot)
{
    return p->memory + slot * p->page_bytes;
}

static uint32_t find(struct kv_pages *p, uint64_t key)
{
    uint32_t s = *bucket_of(p, key);
    while (s != NO_SLOT && p->slots[s].key != key)
        s = p->slots[s].next;
    return s;
}

static void forget(struct kv_pages *p, uint32_t slot)
{
    struct slot *s = &p->slots[slot];
    uint32_t *at = bucket_of(p, s->key);
    if (s->state == SLOT_EMPTY)
        return;
    while (*at != slot)
        at = &p->slots[*at].next;
    *at = s->next;
    s->state = SLOT_EMPTY;
}

static void put(struct kv_pages *p, uint32_t slot, uint64_t key, enum slot_state state)
{
    struct slot *s = &p->slots[slot];
    uint32_t *bucket = bucket_of(p, key);
    forget(p, slot);
    if (!s->request.memory) {
        s->request.memory = slot_memory(p, slot);
        tier_count(&p->tier.resident_bytes, p->page_bytes);
    }
    s->key = key;
    s->next = *bucket;
    s->state = (uint8_t)state;
    s->is_hot = true;
    *bucket = slot;
}

/* A slot that may be filled; NO_SLOT while all are in flight. */
static uint32_t find_room(struct kv_pages *p)
{
    for (size_t i = 0; i < 2 * p->limit; i++) {
        p->hand = p->hand + 1 < p->limit ? p->hand + 1 : 0;
        struct slot *s = &p->slots[p->hand];
        if (s->state == SLOT_EMPTY || (s->state == SLOT_READY && !s->is_hot))
            return (uint32_t)p->hand;
        s->is_hot = s->is_hot && s->state == SLOT_LOADING;
    }
    return NO_SLOT;
}

/* ---- who shares the budget ----------------------------------------------------------------
 */

static void set_limit(struct kv_pages *p)
{
    uint64_t used = p->gather_bytes + p->n_joined * p->tail_bytes;
    size_t limit = (size_t)((p->tier.budget_bytes - used) / p->page_bytes);
    limit = limit < p->n_slots ? limit : p->n_slots;
    for (size_t i = limit; i < p->limit; i++) { /* nothing is in flight between steps */
        forget(p, (uint32_t)i);
        if (!p->slots[i].request.memory)
            continue;
        (void)madvise(slot_memory(p, (uint32_t)i), p->page_bytes, MADV_DONTNEED);
        p->slots[i].request.memory = NULL;
        atomic_fetch_sub(&p->tier.resident_bytes, p->page_bytes);
    }
    p->limit = limit;
}

enum err kv_pages_join(struct kv_pages *p, uint32_t *owner, struct error *e)
{
    uint64_t least = p->gather_bytes + p->page_bytes;
    if (least + (p->n_joined + (uint64_t)1) * p->tail_bytes > p->tier.budget_bytes)
        return err_set(e, ERR_LIMIT,
                       "memory for KV rows: %" PRIu64
                       " bytes are %u sequences, each takes %" PRIu64,
                       p->tier.budget_bytes, p->n_joined, p->tail_bytes);
    p->n_joined++;
    set_limit(p);
    tier_count(&p->tier.resident_bytes, p->tail_bytes);
    *owner = p->n_owners++;
    return OK;
}

void kv_pages_leave(struct kv_pages *p, uint32_t owner)
{
    for (uint32_t i = 0; i < p->limit; i++)
        if (p->slots[i].state == SLOT_READY && p->slots[i].key >> 32 == owner)
            forget(p, i);
    p->n_joined--;
    atomic_fetch_sub(&p->tier.resident_bytes, p->tail_bytes);
    set_limit(p);
}

/* ---- writing ------------------------------------------------------------------------------
 */

void kv_pages_drop(struct kv_pages *p, const struct kv_page *list, size_t n)
{
    if (p->n_unused + n > p->cap_unused) {
        size_t cap = 2 * (p->n_unused + n);
        uint32_t *more = reallocarray(p->unused, cap, sizeof(*more));
        if (!more)
            return; /* these pages of the file are not used again */
        p->unused = more;
        p->cap_unused = cap;
    }
    for (size_t i = 0; i < n; i++)
        if (list[i].at != KV_PAGE_LATE)
            p->unused[p->n_unused++] = list[i].at;
}

static void seal_page(struct kv_pages *p, uint32_t source, const uint8_t *rows, uint8_t *dst,
                      uint64_t seal)
{
    size_t n = page_rows(p->shape, source) * row_bytes(p->shape, source);
    memset(dst + n, 0, p->page_bytes - n);
    crypto_seal(p->key, seal, rows, n, dst, dst + p->page_bytes - CRYPTO_TAG_BYTES);
}

/* At most BATCH pages: neighbours in the file where it grows, else one by one. */
static enum err write_batch(struct kv_pages *p, uint32_t source, const uint8_t *rows, size_t n,
                            struct kv_page *out, struct error *e)
{
    size_t bytes = page_rows(p->shape, source) * row_bytes(p->shape, source);
    enum err rc = OK;
    for (size_t i = 0; i < n; i++) {
        out[i].seal = p->n_seals++;
        out[i].at = p->n_unused ? p->unused[--p->n_unused] : (uint32_t)p->n_file++;
        seal_page(p, source, rows + i * bytes, p->batch + i * p->page_bytes, out[i].seal);
    }
    for (size_t i = 0, k; i < n && !rc; i = k) {
        for (k = i + 1; k < n && out[k].at == out[k - 1].at + 1;)
            k++;
        rc = fs_pwrite(p->fd, "spill of KV rows", p->batch + i * p->page_bytes,
                       (k - i) * p->page_bytes, out[i].at * (uint64_t)p->page_bytes, e);
    }
    if (rc)
        kv_pages_drop(p, out, n);
    return rc;
}

enum err kv_pages_write(struct kv_pages *p, uint32_t source, const uint8_t *rows, size_t n,
                        struct kv_page *out, struct error *e)
{
    size_t bytes = page_rows(p->shape, source) * row_bytes(p->shape, source);
    for (size_t done = 0, k; done < n; done += k) {
        k = n - done < BATCH ? n - done : BATCH;
        enum err rc = write_batch(p, source, rows + done * bytes, k, out + done, e);
        if (rc) {
            kv_pages_drop(p, out, done);
            return rc;
        }
    }
    return OK;
}

/* ---- reading ------------------------------------------------------------------------------
 */

static void copy_rows(const struct kv_pages *p, uint32_t source, uint32_t slot,
                      const struct kv_want *w)
{
    size_t row = row_bytes(p->shape, source);
    memcpy(w->dst, slot_memory(p, slot) + w->first * row, w->n * row);
}

static enum err open_page(struct kv_pages *p, uint32_t source, struct slot *s, struct error *e)
{
    const char *plane = p->shape->planes[2 * source].name;
    size_t n = page_rows(p->shape, source) * row_bytes(p->shape, source);
    uint8_t *m = s->request.memory;
    if (s->request.error.code) {
        if (e)
            *e = s->request.error;
        return err_wrap(e, s->request.error.code, "plane %s, page %u", plane, s->want->page);
    }
    if (crypto_open(p->key, s->seal, m, n, m + p->page_bytes - CRYPTO_TAG_BYTES, m, NULL))
        return err_set(e, ERR_CORRUPT, "plane %s, page %u: the spilled rows are damaged", plane,
                       s->want->page);
    return OK;
}

/* Starts to read a page; false: no room now. */
static bool start(struct kv_pages *p, uint64_t key, const struct kv_page *at,
                  const struct kv_want *w)
{
    uint32_t slot = tier_n_free(&p->tier) ? find_room(p) : NO_SLOT;
    if (slot == NO_SLOT)
        return false;
    put(p, slot, key, SLOT_LOADING);
    struct slot *s = &p->slots[slot];
    s->want = w;
    s->seal = at->seal;
    s->request.fd = p->fd;
    s->request.name = "spill of KV rows";
    s->request.at = at->at * (uint64_t)p->page_bytes;
    s->request.n_bytes = p->page_bytes;
    s->request.owner = s;
    enum err rc = tier_start(&p->tier, &s->request, NULL);
    assert(!rc); /* there is room for it */
    (void)rc;
    return true;
}

/* Takes what has arrived to its place. The first failure counts. */
static enum err collect(struct kv_pages *p, uint32_t source, enum err failed, struct error *e)
{
    struct tier_request *done[32];
    size_t n = 0;
    enum err rc = tier_wait(&p->tier, true, done, 32, &n, failed ? NULL : e);
    for (size_t i = 0; i < n; i++) {
        struct slot *s = done[i]->owner;
        uint32_t slot = (uint32_t)(s - p->slots);
        s->state = SLOT_READY;
        enum err bad = open_page(p, source, s, failed ? NULL : e);
        if (bad)
            forget(p, slot);
        else
            copy_rows(p, source, slot, s->want);
        failed = failed ? failed : bad;
    }
    return failed ? failed : rc;
}

/* Late pages from want[0] on that are neighbours and not cached: one call of the owner's. */
static size_t n_late(struct kv_pages *p, const struct kv_origin *from,
                     const struct kv_want *want, size_t n)
{
    size_t k = 0;
    while (k < n && k < BATCH && want[k].page == want[0].page + k &&
           from->list[want[k].page].at == KV_PAGE_LATE &&
           find(p, key_of(from->owner, from->source, want[k].page)) == NO_SLOT)
        k++;
    return k;
}

static enum err fetch_late(struct kv_pages *p, const struct kv_origin *from,
                           const struct kv_want *want, size_t n, struct error *e)
{
    uint32_t per_page = page_rows(p->shape, from->source);
    size_t bytes = per_page * row_bytes(p->shape, from->source);
    uint64_t start = clock_mono_ns(clock_real());
    enum err rc =
        from->fetch->rows(from->fetch->ctx, 2 * from->source, want[0].page * (uint64_t)per_page,
                          n * per_page, p->batch, e);
    tier_count(&p->tier.stall_ns, clock_mono_ns(clock_real()) - start);
    if (rc)
        return err_wrap(e, rc, "plane %s, %zu pages from %u on",
                        p->shape->planes[2 * (size_t)from->source].name, n, want[0].page);
    tier_count(&p->tier.read_bytes, n * bytes);
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = find_room(p);
        const uint8_t *page = p->batch + i * bytes;
        memcpy(want[i].dst, page + want[i].first * row_bytes(p->shape, from->source),
               want[i].n * row_bytes(p->shape, from->source));
        if (slot == NO_SLOT)
            continue; /* all are in flight: it is not kept */
        put(p, slot, key_of(from->owner, from->source, want[i].page), SLOT_READY);
        memcpy(slot_memory(p, slot), page, bytes);
    }
    return OK;
}

enum err kv_pages_read(struct kv_pages *p, const struct kv_origin *from,
                       const struct kv_want *want, size_t n, struct error *e)
{
    uint32_t source = from->source;
    enum err rc = OK;
    size_t n_hits = 0;
    for (size_t i = 0, k; i < n && !rc;) {
        uint64_t key = key_of(from->owner, source, want[i].page);
        uint32_t slot = find(p, key);
        if (slot != NO_SLOT && p->slots[slot].state == SLOT_READY) {
            p->slots[slot].is_hot = true;
            copy_rows(p, source, slot, &want[i]);
            n_hits++;
            i++;
        } else if ((k = n_late(p, from, want + i, n - i))) {
            rc = fetch_late(p, from, want + i, k, e);
            i += k;
        } else if (slot == NO_SLOT && start(p, key, &from->list[want[i].page], &want[i])) {
            i++;
        } else {
            rc = collect(p, source, OK, e);
        }
    }
    /* Nothing may be under way when this returns; a ring that is refused is lost. */
    for (uint32_t n_left = 0; aio_in_flight(p->tier.aio) != n_left;) {
        n_left = aio_in_flight(p->tier.aio);
        rc = collect(p, source, rc, e);
    }
    tier_count(&p->tier.hits, n_hits);
    tier_count(&p->tier.misses, n - n_hits);
    return rc;
}
