#include "engine/kv_pages.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "engine/row_index.h"

#define DEPTH 64      /* reads in flight */
#define TAIL_CHUNKS 2 /* runs that fit in a tail */

/* What row_index does not know of a slot. */
struct slot {
    const struct kv_want *want; /* while loading: who waits */
    uint64_t seal;
    struct tier_request request; /* its memory: NULL before the slot was ever used */
};

struct kv_pages {
    struct tier tier;
    const struct kv_shape *shape;
    struct kv_spill spill;
    size_t page_bytes;
    uint64_t tail_tokens, tail_bytes; /* of one sequence */
    size_t gather_bytes;
    uint32_t n_joined, n_owners;
    struct row_index index; /* of pages */
    uint8_t *memory;        /* [n_slots][page_bytes] */
    struct slot *slots;     /* [n_slots] */
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
    return kv_spill_page_bytes(widest_row(s));
}

static uint32_t page_rows(const struct kv_shape *s, uint32_t source)
{
    return (uint32_t)(kv_spill_room(page_size(s)) / row_bytes(s, source));
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

static void *map_zeroes(size_t n)
{
    void *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return m == MAP_FAILED ? NULL : m;
}

static enum err allocate(struct kv_pages *p, size_t n_slots, struct error *e)
{
    enum err rc = row_index_init(&p->index, n_slots, e);
    if (rc)
        return rc;
    p->memory = map_zeroes(n_slots * p->page_bytes);
    p->slots = map_zeroes(n_slots * sizeof(*p->slots));
    p->gather = map_zeroes(p->gather_bytes);
    if (!p->memory || !p->slots || !p->gather)
        return err_set(e, ERR_NOMEM, "cache of %zu pages of KV rows", n_slots);
    return OK;
}

static enum err init(struct kv_pages *p, const struct kv_pages_options *o, uint32_t *chunk,
                     struct error *e)
{
    p->spill.fd = -1;
    p->shape = o->shape;
    p->page_bytes = page_size(o->shape);
    divide(p, o, chunk);
    uint64_t n = (o->budget_bytes - p->gather_bytes - p->tail_bytes) / p->page_bytes;
    enum err rc = tier_init(&p->tier, "kv", NULL, DEPTH, e);
    if (rc || (rc = kv_spill_init(&p->spill, o->dir, p->page_bytes, e)))
        return rc;
    p->tier.budget_bytes = o->budget_bytes;
    p->tier.minimum_bytes = kv_pages_min_bytes(o);
    tier_count(&p->tier.resident_bytes, p->gather_bytes);
    return allocate(p, n < ROW_NO_SLOT ? (size_t)n : ROW_NO_SLOT - 1, e);
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
    unmap(p->memory, p->index.n_slots * p->page_bytes);
    unmap(p->slots, p->index.n_slots * sizeof(*p->slots));
    unmap(p->gather, p->gather_bytes);
    row_index_fini(&p->index);
    kv_spill_fini(&p->spill);
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

static uint8_t *slot_memory(const struct kv_pages *p, uint32_t slot)
{
    return p->memory + slot * p->page_bytes;
}

static void put(struct kv_pages *p, uint32_t slot, uint64_t key, enum row_state state)
{
    struct slot *s = &p->slots[slot];
    row_index_put(&p->index, slot, key, state);
    if (!s->request.memory) {
        s->request.memory = slot_memory(p, slot);
        tier_count(&p->tier.resident_bytes, p->page_bytes);
    }
}

/* ---- who shares the budget ----------------------------------------------------------------
 */

static void set_limit(struct kv_pages *p)
{
    uint64_t used = p->gather_bytes + p->n_joined * p->tail_bytes;
    size_t limit = (size_t)((p->tier.budget_bytes - used) / p->page_bytes);
    limit = limit < p->index.n_slots ? limit : p->index.n_slots;
    for (size_t i = limit; i < p->index.n_used; i++) { /* nothing is in flight between steps */
        row_index_forget(&p->index, (uint32_t)i);
        if (!p->slots[i].request.memory)
            continue;
        (void)madvise(slot_memory(p, (uint32_t)i), p->page_bytes, MADV_DONTNEED);
        p->slots[i].request.memory = NULL;
        atomic_fetch_sub(&p->tier.resident_bytes, p->page_bytes);
    }
    p->index.n_used = limit;
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
    for (uint32_t i = 0; i < p->index.n_used; i++)
        if (p->index.slots[i].state == ROW_READY && p->index.slots[i].key >> 32 == owner)
            row_index_forget(&p->index, i);
    p->n_joined--;
    atomic_fetch_sub(&p->tier.resident_bytes, p->tail_bytes);
    set_limit(p);
}

/* ---- writing ------------------------------------------------------------------------------
 */

static size_t page_rows_bytes(const struct kv_pages *p, uint32_t source)
{
    return page_rows(p->shape, source) * row_bytes(p->shape, source);
}

enum err kv_pages_write(struct kv_pages *p, uint32_t source, const uint8_t *rows, size_t n,
                        struct kv_page *out, struct error *e)
{
    return kv_spill_write(&p->spill, rows, page_rows_bytes(p, source), n, out, e);
}

void kv_pages_drop(struct kv_pages *p, const struct kv_page *list, size_t n)
{
    kv_spill_drop(&p->spill, list, n);
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
    if (s->request.error.code) {
        if (e)
            *e = s->request.error;
        return err_wrap(e, s->request.error.code, "plane %s, page %u", plane, s->want->page);
    }
    if (kv_spill_open(&p->spill, s->seal, s->request.memory, page_rows_bytes(p, source)))
        return err_set(e, ERR_CORRUPT, "plane %s, page %u: the spilled rows are damaged", plane,
                       s->want->page);
    return OK;
}

/* Starts to read a page; false: no room now. */
static bool start(struct kv_pages *p, uint64_t key, const struct kv_page *at,
                  const struct kv_want *w)
{
    uint32_t slot = tier_n_free(&p->tier) ? row_index_room(&p->index) : ROW_NO_SLOT;
    if (slot == ROW_NO_SLOT)
        return false;
    put(p, slot, key, ROW_LOADING);
    struct slot *s = &p->slots[slot];
    s->want = w;
    s->seal = at->seal;
    s->request.fd = p->spill.fd;
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
        p->index.slots[slot].state = ROW_READY;
        enum err bad = open_page(p, source, s, failed ? NULL : e);
        if (bad)
            row_index_forget(&p->index, slot);
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
    while (k < n && k < KV_SPILL_BATCH && want[k].page == want[0].page + k &&
           from->list[want[k].page].at == KV_PAGE_LATE &&
           row_index_find(&p->index, key_of(from->owner, from->source, want[k].page)) ==
               ROW_NO_SLOT)
        k++;
    return k;
}

static enum err fetch_late(struct kv_pages *p, const struct kv_origin *from,
                           const struct kv_want *want, size_t n, struct error *e)
{
    uint32_t per_page = page_rows(p->shape, from->source);
    size_t bytes = page_rows_bytes(p, from->source);
    uint64_t start = clock_mono_ns(clock_real());
    enum err rc =
        from->fetch->rows(from->fetch->ctx, 2 * from->source, want[0].page * (uint64_t)per_page,
                          n * per_page, p->spill.batch, e);
    tier_count(&p->tier.stall_ns, clock_mono_ns(clock_real()) - start);
    if (rc)
        return err_wrap(e, rc, "plane %s, %zu pages from %u on",
                        p->shape->planes[2 * (size_t)from->source].name, n, want[0].page);
    tier_count(&p->tier.read_bytes, n * bytes);
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = row_index_room(&p->index);
        const uint8_t *page = p->spill.batch + i * bytes;
        memcpy(want[i].dst, page + want[i].first * row_bytes(p->shape, from->source),
               want[i].n * row_bytes(p->shape, from->source));
        if (slot == ROW_NO_SLOT)
            continue; /* all are in flight: it is not kept */
        put(p, slot, key_of(from->owner, from->source, want[i].page), ROW_READY);
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
        uint32_t slot = row_index_find(&p->index, key);
        if (slot != ROW_NO_SLOT && p->index.slots[slot].state == ROW_READY) {
            p->index.slots[slot].is_hot = true;
            copy_rows(p, source, slot, &want[i]);
            n_hits++;
            i++;
        } else if ((k = n_late(p, from, want + i, n - i))) {
            rc = fetch_late(p, from, want + i, k, e);
            i += k;
        } else if (slot == ROW_NO_SLOT && start(p, key, &from->list[want[i].page], &want[i])) {
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
