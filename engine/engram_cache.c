#include "engine/engram_cache.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/loader.h"

#define N_READS 64 /* rows in flight; each is a read of codes and one of scales */
#define NO_SLOT UINT32_MAX

enum row_state { ROW_EMPTY, ROW_LOADING, ROW_READY };

struct row {
    uint64_t key;   /* layer number and row */
    uint32_t next;  /* in its bucket */
    uint32_t fetch; /* the last one that asked for it */
    uint8_t state;  /* enum row_state */
    bool is_hot;    /* second chance */
    bool is_ahead;  /* prefetched, not used yet */
};

/* Buffers of one row in flight. */
struct read {
    struct read *next; /* unused ones */
    uint32_t slot, n_pending;
    struct tier_request codes, scales;
};

struct engram_cache {
    struct tier tier;
    const struct config *c;
    const struct weights *w;
    size_t n_slots, n_scales; /* scales of a row */
    uint8_t *codes, *scales;  /* [n_slots][dim], [n_slots][n_scales] */
    struct row *rows;         /* [n_slots] */
    uint32_t *bucket;         /* [n_buckets] first slot, or NO_SLOT */
    size_t n_buckets;         /* a power of two */
    size_t hand, n_ahead, n_used;
    uint32_t fetch; /* number of the fetch now */
    struct read reads[N_READS], *unused;
    uint8_t *memory; /* of the reads' buffers */
    size_t memory_bytes;
};

/* ---- sizes --------------------------------------------------------------------------------
 */

static size_t row_bytes(const struct config *c)
{
    return c->engram_dim + c->engram_dim / 32 + sizeof(struct row) + 2 * sizeof(uint32_t);
}

static uint64_t n_tables(const struct config *c)
{
    return (uint64_t)(c->engram_ngram - 1) * c->engram_heads;
}

uint64_t engram_cache_min_bytes(const struct config *c)
{
    return c->n_engram ? n_tables(c) * row_bytes(c) : 0;
}

uint64_t engram_cache_all_bytes(const struct config *c)
{
    uint64_t n = 0;
    for (uint32_t k = 0; k < c->n_engram; k++)
        n += c->engram_rows[k];
    return n * row_bytes(c);
}

/* ---- life ---------------------------------------------------------------------------------
 */

/* Zeroed memory that is only taken as it is touched. */
static void *map_zeroes(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void unmap(void *p, size_t n)
{
    if (p)
        munmap(p, n);
}

static enum err make_reads(struct engram_cache *x, struct error *e)
{
    size_t codes = tier_room(x->c->engram_dim), scales = tier_room(x->n_scales);
    void *p = NULL;
    x->memory_bytes = N_READS * (codes + scales);
    enum err rc = aio_buffer_new(x->memory_bytes, &p, e);
    if (rc)
        return rc;
    x->memory = p;
    for (size_t i = 0; i < N_READS; i++) {
        struct read *r = &x->reads[i];
        r->codes = (struct tier_request){.n_bytes = x->c->engram_dim,
                                         .memory = x->memory + i * (codes + scales),
                                         .owner = r};
        r->scales = (struct tier_request){
            .n_bytes = x->n_scales, .memory = r->codes.memory + codes, .owner = r};
        r->next = x->unused;
        x->unused = r;
    }
    return OK;
}

static enum err allocate(struct engram_cache *x, struct error *e)
{
    size_t n = x->n_slots;
    for (x->n_buckets = 1; x->n_buckets < n;)
        x->n_buckets *= 2;
    x->codes = map_zeroes(n * x->c->engram_dim);
    x->scales = map_zeroes(n * x->n_scales);
    x->rows = map_zeroes(n * sizeof(*x->rows));
    x->bucket = malloc(x->n_buckets * sizeof(*x->bucket));
    if (!x->codes || !x->scales || !x->rows || !x->bucket)
        return err_set(e, ERR_NOMEM, "cache of %zu Engram rows", n);
    for (size_t i = 0; i < x->n_buckets; i++)
        x->bucket[i] = NO_SLOT;
    return make_reads(x, e);
}

enum err engram_cache_new(struct engram_cache **out, const struct config *c,
                          const struct weights *w, const struct tier_files *files,
                          uint64_t budget_bytes, struct error *e)
{
    uint64_t min = engram_cache_min_bytes(c), all = engram_cache_all_bytes(c);
    if (budget_bytes < min)
        return err_set(e, ERR_LIMIT,
                       "%" PRIu64 " bytes of memory for Engram rows, one token needs %" PRIu64,
                       budget_bytes, min);
    struct engram_cache *x = calloc(1, sizeof(*x));
    if (!x)
        return err_set(e, ERR_NOMEM, "cache of Engram rows");
    x->c = c, x->w = w;
    x->n_scales = c->engram_dim / 32;
    x->n_slots = (size_t)((budget_bytes < all ? budget_bytes : all) / row_bytes(c));
    enum err rc = x->n_slots >= NO_SLOT
                      ? err_set(e, ERR_LIMIT, "%zu Engram rows in memory", x->n_slots)
                      : allocate(x, e);
    if (rc || (rc = tier_init(&x->tier, "engram", files, 2 * N_READS, e))) {
        engram_cache_free(x);
        return rc;
    }
    x->tier.budget_bytes = budget_bytes;
    x->tier.minimum_bytes = min;
    *out = x;
    return OK;
}

void engram_cache_free(struct engram_cache *x)
{
    if (!x)
        return;
    tier_fini(&x->tier);
    unmap(x->codes, x->n_slots * x->c->engram_dim);
    unmap(x->scales, x->n_slots * x->n_scales);
    unmap(x->rows, x->n_slots * sizeof(*x->rows));
    free(x->bucket);
    aio_buffer_free(x->memory, x->memory_bytes);
    free(x);
}

size_t engram_cache_rows(const struct engram_cache *x)
{
    return x->n_slots;
}

const uint8_t *engram_cache_codes(const struct engram_cache *x)
{
    return x->codes;
}

const uint8_t *engram_cache_scales(const struct engram_cache *x)
{
    return x->scales;
}

const struct tier *engram_cache_tier(const struct engram_cache *x)
{
    return &x->tier;
}

enum err engram_check(const struct config *c, uint32_t layer, uint64_t row,
                      const uint8_t *scales, struct error *e)
{
    size_t width = c->engram_dim / 32, nan = find_nan_scale(scales, width);
    return nan == width
               ? OK
               : err_set(e, ERR_FORMAT,
                         "tensor layers.%u.engram.embed.scale [%" PRIu64 ", %zu] is NaN", layer,
                         row, nan);
}

/* ---- finding and evicting -----------------------------------------------------------------
 */

#define KEY_ROW_BITS 56

static uint64_t key_of(uint32_t k, uint64_t row)
{
    return (uint64_t)k << KEY_ROW_BITS | row;
}

static uint32_t *bucket_of(struct engram_cache *x, uint64_t key)
{
    uint64_t h = key * UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio */
    return &x->bucket[(h ^ h >> 32) & (x->n_buckets - 1)];
}

static uint32_t find(struct engram_cache *x, uint64_t key)
{
    uint32_t s = *bucket_of(x, key);
    while (s != NO_SLOT && x->rows[s].key != key)
        s = x->rows[s].next;
    return s;
}

static void set_used(struct engram_cache *x, struct row *r)
{
    x->n_ahead -= r->is_ahead;
    r->is_ahead = false;
}

static void forget(struct engram_cache *x, uint32_t slot)
{
    struct row *r = &x->rows[slot];
    uint32_t *at = bucket_of(x, r->key);
    if (r->state == ROW_EMPTY)
        return;
    while (*at != slot)
        at = &x->rows[*at].next;
    *at = r->next;
    set_used(x, r);
    r->state = ROW_EMPTY;
}

/* A slot that may be filled; NO_SLOT while each is needed or in flight. */
static uint32_t find_room(struct engram_cache *x)
{
    for (size_t i = 0; i < 2 * x->n_slots; i++) {
        uint32_t slot = (uint32_t)x->hand;
        struct row *r = &x->rows[slot];
        x->hand = x->hand + 1 == x->n_slots ? 0 : x->hand + 1;
        if (r->state == ROW_EMPTY)
            return slot;
        if (r->state == ROW_LOADING || r->fetch == x->fetch)
            continue;
        if (!r->is_hot)
            return slot;
        r->is_hot = false;
    }
    return NO_SLOT;
}

/* ---- loading ------------------------------------------------------------------------------
 */

/* Starts to read a row. NO_SLOT: there is no room, or too much is in flight. */
static uint32_t load(struct engram_cache *x, uint32_t k, uint64_t id)
{
    const struct engram_weights *t = &x->w->layers[x->c->engram_layers[k]].engram;
    uint32_t slot = x->unused ? find_room(x) : NO_SLOT;
    if (slot == NO_SLOT)
        return slot;
    struct read *q = x->unused;
    struct row *r = &x->rows[slot];
    forget(x, slot);
    q->codes.mapped = t->codes + id * x->c->engram_dim;
    q->scales.mapped = t->scales + id * x->n_scales;
    enum err rc = tier_start(&x->tier, &q->codes, NULL);
    if (!rc)
        rc = tier_start(&x->tier, &q->scales, NULL);
    assert(!rc); /* there are two requests for each read, and the row is of a shard */
    (void)rc;
    x->unused = q->next;
    q->slot = slot;
    q->n_pending = 2;
    uint64_t key = key_of(k, id);
    uint32_t *bucket = bucket_of(x, key);
    *r = (struct row){.key = key, .next = *bucket, .state = ROW_LOADING, .is_hot = true};
    r->fetch = x->fetch - 1; /* not of this one yet */
    *bucket = slot;
    if (slot >= x->n_used) {
        x->n_used = slot + (size_t)1;
        atomic_store_explicit(&x->tier.resident_bytes, x->n_used * row_bytes(x->c),
                              memory_order_relaxed);
    }
    return slot;
}

/* Both parts of a row are there, or not. */
static enum err settle(struct engram_cache *x, const struct read *q, struct error *e)
{
    struct row *r = &x->rows[q->slot];
    uint32_t layer = x->c->engram_layers[r->key >> KEY_ROW_BITS];
    uint64_t id = r->key & ((UINT64_C(1) << KEY_ROW_BITS) - 1);
    const struct tier_request *bad = q->codes.error.code    ? &q->codes
                                     : q->scales.error.code ? &q->scales
                                                            : NULL;
    const uint8_t *scales = q->scales.memory + q->scales.skip;
    enum err rc;
    if (bad) {
        if (e)
            *e = bad->error;
        rc = err_wrap(e, bad->error.code, "tensor layers.%u.engram.embed%s row %" PRIu64, layer,
                      bad == &q->scales ? ".scale" : "", id);
    } else {
        rc = engram_check(x->c, layer, id, scales, e);
    }
    if (rc) {
        forget(x, q->slot);
        return rc;
    }
    memcpy(x->codes + q->slot * (size_t)x->c->engram_dim, q->codes.memory + q->codes.skip,
           x->c->engram_dim);
    memcpy(x->scales + q->slot * x->n_scales, scales, x->n_scales);
    r->state = ROW_READY;
    return OK;
}

/* Takes what has arrived. A failure counts if the fetch now needs that row. */
static enum err collect(struct engram_cache *x, bool wait, struct error *e)
{
    struct tier_request *done[32];
    size_t n = 0;
    enum err first = OK, rc = tier_wait(&x->tier, wait, done, 32, &n, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        struct read *q = done[i]->owner;
        struct error why = {0};
        if (--q->n_pending)
            continue;
        bool needed = x->rows[q->slot].fetch == x->fetch;
        rc = settle(x, q, &why);
        q->next = x->unused;
        x->unused = q;
        if (rc && needed && !first) {
            first = rc;
            if (e)
                *e = why;
        }
    }
    return first;
}

/* ---- the two calls ------------------------------------------------------------------------
 */

void engram_cache_prefetch(struct engram_cache *x, uint32_t k, const uint64_t *ids, size_t n)
{
    bool any = false;
    if (collect(x, false, NULL))
        return; /* the fetch will meet it again */
    for (size_t i = 0; i < n && x->unused && x->n_ahead < x->n_slots / 2; i++) {
        uint32_t slot = find(x, key_of(k, ids[i]));
        if (slot != NO_SLOT)
            continue;
        if ((slot = load(x, k, ids[i])) == NO_SLOT)
            break;
        x->rows[slot].is_ahead = true;
        x->n_ahead++;
        any = true;
    }
    if (any && tier_submit(&x->tier, NULL))
        return; /* likewise */
}

/* Marks the rows that are there or on their way; counts. */
static size_t mark(struct engram_cache *x, uint32_t k, const uint64_t *ids, size_t n)
{
    size_t n_found = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = find(x, key_of(k, ids[i]));
        if (slot == NO_SLOT)
            continue;
        x->rows[slot].fetch = x->fetch;
        x->rows[slot].is_hot = true;
        set_used(x, &x->rows[slot]);
        n_found++;
    }
    return n_found;
}

enum err engram_cache_fetch(struct engram_cache *x, uint32_t k, const uint64_t *ids, size_t n,
                            uint64_t *at, struct error *e)
{
    enum err rc = OK;
    assert(n <= x->n_slots);
    x->fetch++;
    size_t n_found = mark(x, k, ids, n);
    tier_count(&x->tier.hits, n_found);
    tier_count(&x->tier.misses, n - n_found);
    for (size_t i = 0, asked = 0; i < n && !rc;) {
        for (; asked < n; asked++) { /* as far ahead as there is room */
            uint32_t slot = find(x, key_of(k, ids[asked]));
            if (slot == NO_SLOT && (slot = load(x, k, ids[asked])) == NO_SLOT)
                break;
            x->rows[slot].fetch = x->fetch;
        }
        while (i < asked && x->rows[at[i] = find(x, key_of(k, ids[i]))].state == ROW_READY)
            i++;
        if (i < n)
            rc = collect(x, true, e);
    }
    return rc;
}
