#include "engine/engram_cache.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/loader.h"
#include "engine/row_index.h"

#define N_READS 64 /* rows in flight; each is a read of codes and one of scales */

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
    size_t n_scales;         /* of a row */
    uint8_t *codes, *scales; /* [n_slots][dim], [n_slots][n_scales] */
    struct row_index index;
    size_t n_used;
    struct read reads[N_READS], *unused;
    uint8_t *memory; /* of the reads' buffers */
    size_t memory_bytes;
};

/* ---- sizes --------------------------------------------------------------------------------
 */

static size_t row_bytes(const struct config *c)
{
    return c->engram_dim + c->engram_dim / 32 + ROW_INDEX_BYTES;
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
    x->codes = map_zeroes(x->index.n_slots * x->c->engram_dim);
    x->scales = map_zeroes(x->index.n_slots * x->n_scales);
    if (!x->codes || !x->scales)
        return err_set(e, ERR_NOMEM, "cache of %zu Engram rows", x->index.n_slots);
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
    size_t n_slots = (size_t)((budget_bytes < all ? budget_bytes : all) / row_bytes(c));
    enum err rc = row_index_init(&x->index, n_slots, e);
    if (rc || (rc = allocate(x, e)) ||
        (rc = tier_init(&x->tier, "engram", files, 2 * N_READS, e))) {
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
    unmap(x->codes, x->index.n_slots * x->c->engram_dim);
    unmap(x->scales, x->index.n_slots * x->n_scales);
    row_index_fini(&x->index);
    aio_buffer_free(x->memory, x->memory_bytes);
    free(x);
}

size_t engram_cache_rows(const struct engram_cache *x)
{
    return x->index.n_slots;
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

/* ---- loading ------------------------------------------------------------------------------
 */

/* Starts to read a row. ROW_NO_SLOT: there is no room, or too much is in flight. */
static uint32_t load(struct engram_cache *x, uint32_t k, uint64_t id)
{
    const struct engram_weights *t = &x->w->layers[x->c->engram_layers[k]].engram;
    uint32_t slot = x->unused ? row_index_room(&x->index) : ROW_NO_SLOT;
    if (slot == ROW_NO_SLOT)
        return slot;
    struct read *q = x->unused;
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
    row_index_put(&x->index, slot, row_key(k, id), ROW_LOADING);
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
    struct row_slot *r = &x->index.slots[q->slot];
    uint32_t layer = x->c->engram_layers[row_key_layer(r->key)];
    uint64_t id = row_key_row(r->key);
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
        row_index_forget(&x->index, q->slot);
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
        bool needed = x->index.slots[q->slot].fetch == x->index.fetch;
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

bool engram_cache_has(const struct engram_cache *x, uint32_t k, uint64_t id)
{
    uint32_t slot = row_index_find(&x->index, row_key(k, id));
    return slot != ROW_NO_SLOT && x->index.slots[slot].state == ROW_READY;
}

size_t engram_cache_prefetch(struct engram_cache *x, uint32_t k, const uint64_t *ids, size_t n)
{
    struct row_index *index = &x->index;
    size_t i = 0;
    bool any = false;
    if (collect(x, false, NULL))
        return 0; /* the fetch will meet it again */
    for (; i < n && x->unused && index->n_ahead < index->n_slots / 2; i++) {
        uint32_t slot = row_index_find(index, row_key(k, ids[i]));
        if (slot != ROW_NO_SLOT)
            continue;
        if ((slot = load(x, k, ids[i])) == ROW_NO_SLOT)
            break;
        index->slots[slot].is_ahead = true;
        index->n_ahead++;
        any = true;
    }
    if (any && tier_submit(&x->tier, NULL))
        return i; /* likewise */
    return i;
}

/* Marks the rows that are there or on their way; counts. */
static size_t mark(struct engram_cache *x, uint32_t k, const uint64_t *ids, size_t n)
{
    size_t n_found = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = row_index_find(&x->index, row_key(k, ids[i]));
        if (slot == ROW_NO_SLOT)
            continue;
        (void)row_index_use(&x->index, slot);
        n_found++;
    }
    return n_found;
}

enum err engram_cache_fetch(struct engram_cache *x, uint32_t k, const uint64_t *ids, size_t n,
                            uint64_t *at, struct error *e)
{
    struct row_index *index = &x->index;
    enum err rc = OK;
    assert(n <= index->n_slots);
    index->fetch++;
    size_t n_found = mark(x, k, ids, n);
    tier_count(&x->tier.hits, n_found);
    tier_count(&x->tier.misses, n - n_found);
    for (size_t i = 0, asked = 0; i < n && !rc;) {
        for (; asked < n; asked++) { /* as far ahead as there is room */
            uint32_t slot = row_index_find(index, row_key(k, ids[asked]));
            if (slot == ROW_NO_SLOT && (slot = load(x, k, ids[asked])) == ROW_NO_SLOT)
                break;
            index->slots[slot].fetch = index->fetch;
        }
        for (; i < asked; i++) {
            uint32_t slot = row_index_find(index, row_key(k, ids[i]));
            if (index->slots[slot].state != ROW_READY)
                break;
            at[i] = slot;
        }
        if (i < n)
            rc = collect(x, true, e);
    }
    return rc;
}
