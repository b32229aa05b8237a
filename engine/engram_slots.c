#include "engine/engram_slots.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/row_index.h"

/* Rows that are copied at once, at most: 256 KiB of codes of the released model, which a
 * device's table takes without waiting for what is queued. */
#define PASSING 1024

/* Missing rows on their way: side by side on the host, and where they are copied to. */
struct passing {
    size_t cap, n;
    uint32_t k;     /* their Engram layer */
    uint64_t *ids;  /* [cap] */
    uint64_t *slot; /* [cap] */
    uint64_t *at;   /* [cap] where the host's cache has them */
    uint8_t *codes, *scales;
    uint8_t *d_codes, *d_scales;
    uint64_t *d_slot;
};

struct engram_slots {
    struct tier tier; /* counters: it reads no file itself */
    const struct config *c;
    const struct weights *w;
    struct kernels *kernels;
    struct engram_cache *cache; /* NULL: rows are mapped */
    struct row_index index;
    uint8_t *d_codes, *d_scales; /* [n_slots][dim], [n_slots][dim/32] */
    struct passing passing;
    struct {
        uint32_t k;
        const uint64_t *ids;
        size_t n, done, asked; /* filled; asked the host's cache for */
    } next;
    uint64_t n_ahead_hits;
};

/* ---- sizes --------------------------------------------------------------------------------
 */

static size_t row_bytes(const struct config *c)
{
    return c->engram_dim + c->engram_dim / 32;
}

uint64_t engram_slots_min_bytes(const struct config *c)
{
    uint64_t n_tables = (uint64_t)(c->engram_ngram - 1) * c->engram_heads;
    return c->n_engram ? n_tables * row_bytes(c) : 0;
}

uint64_t engram_slots_all_bytes(const struct config *c)
{
    uint64_t n = 0;
    for (uint32_t k = 0; k < c->n_engram; k++)
        n += c->engram_rows[k];
    return n * row_bytes(c);
}

/* ---- life ---------------------------------------------------------------------------------
 */

static enum err allocate(struct engram_slots *x, struct error *e)
{
    struct kernels *k = x->kernels;
    struct passing *p = &x->passing;
    size_t d = x->c->engram_dim, n_scales = d / 32, n = x->index.n_slots;
    p->cap = n < PASSING ? n : PASSING;
    x->d_codes = k->alloc(k, n * d);
    x->d_scales = k->alloc(k, n * n_scales);
    p->d_codes = k->alloc(k, p->cap * d);
    p->d_scales = k->alloc(k, p->cap * n_scales);
    p->d_slot = k->alloc(k, p->cap * sizeof(*p->d_slot));
    p->ids = calloc(p->cap, sizeof(*p->ids));
    p->slot = calloc(p->cap, sizeof(*p->slot));
    p->at = calloc(p->cap, sizeof(*p->at));
    p->codes = malloc(p->cap * d);
    p->scales = malloc(p->cap * n_scales);
    if (!x->d_codes || !x->d_scales || !p->d_codes || !p->d_scales || !p->d_slot || !p->ids ||
        !p->slot || !p->at || !p->codes || !p->scales)
        return err_set(e, ERR_NOMEM, "%s: %zu Engram rows in its memory", k->numerics, n);
    tier_count(&x->tier.resident_bytes, n * (d + n_scales));
    return OK;
}

enum err engram_slots_new(struct engram_slots **out, const struct config *c,
                          const struct weights *w, struct engram_cache *cache,
                          uint64_t budget_bytes, struct error *e)
{
    uint64_t min = engram_slots_min_bytes(c), all = engram_slots_all_bytes(c);
    if (budget_bytes < min)
        return err_set(e, ERR_LIMIT,
                       "%" PRIu64
                       " bytes of a device for Engram rows, one token needs %" PRIu64,
                       budget_bytes, min);
    struct engram_slots *x = calloc(1, sizeof(*x));
    if (!x)
        return err_set(e, ERR_NOMEM, "slots of Engram rows");
    x->c = c, x->w = w, x->cache = cache, x->kernels = w->k;
    x->tier.name = "engram-device";
    x->tier.budget_bytes = budget_bytes;
    x->tier.minimum_bytes = min;
    size_t n = (size_t)((budget_bytes < all ? budget_bytes : all) / row_bytes(c));
    enum err rc = row_index_init(&x->index, n, e);
    if (rc || (rc = allocate(x, e))) {
        engram_slots_free(x);
        return rc;
    }
    *out = x;
    return OK;
}

void engram_slots_free(struct engram_slots *x)
{
    if (!x)
        return;
    struct kernels *k = x->kernels;
    struct passing *p = &x->passing;
    row_index_fini(&x->index);
    k->free(k, x->d_codes);
    k->free(k, x->d_scales);
    k->free(k, p->d_codes);
    k->free(k, p->d_scales);
    k->free(k, p->d_slot);
    free(p->ids);
    free(p->slot);
    free(p->at);
    free(p->codes);
    free(p->scales);
    free(x);
}

size_t engram_slots_rows(const struct engram_slots *x)
{
    return x->index.n_slots;
}

const uint8_t *engram_slots_codes(const struct engram_slots *x)
{
    return x->d_codes;
}

const uint8_t *engram_slots_scales(const struct engram_slots *x)
{
    return x->d_scales;
}

const struct tier *engram_slots_tier(const struct engram_slots *x)
{
    return &x->tier;
}

uint64_t engram_slots_ahead_hits(const struct engram_slots *x)
{
    return x->n_ahead_hits;
}

/* ---- rows that pass -----------------------------------------------------------------------
 */

/* Rows [first, first + n) that pass, from the host's cache. */
static enum err take_cached(struct engram_slots *x, size_t first, size_t n, struct error *e)
{
    struct passing *p = &x->passing;
    size_t d = x->c->engram_dim, n_scales = d / 32;
    enum err rc = engram_cache_fetch(x->cache, p->k, p->ids + first, n, p->at, e);
    for (size_t i = 0; i < n && !rc; i++) {
        memcpy(p->codes + (first + i) * d, engram_cache_codes(x->cache) + p->at[i] * d, d);
        memcpy(p->scales + (first + i) * n_scales,
               engram_cache_scales(x->cache) + p->at[i] * n_scales, n_scales);
    }
    return rc;
}

static enum err take_mapped(struct engram_slots *x, struct error *e)
{
    struct passing *p = &x->passing;
    uint32_t layer = x->c->engram_layers[p->k];
    const struct engram_weights *t = &x->w->layers[layer].engram;
    size_t d = x->c->engram_dim, n_scales = d / 32;
    for (size_t i = 0; i < p->n; i++) {
        const uint8_t *scales = t->scales + p->ids[i] * n_scales;
        enum err rc = engram_check(x->c, layer, p->ids[i], scales, e);
        if (rc)
            return rc;
        memcpy(p->codes + i * d, t->codes + p->ids[i] * d, d);
        memcpy(p->scales + i * n_scales, scales, n_scales);
    }
    return OK;
}

static enum err take_rows(struct engram_slots *x, struct error *e)
{
    struct passing *p = &x->passing;
    enum err rc = OK;
    if (!x->cache)
        return take_mapped(x, e);
    size_t most = engram_cache_rows(x->cache);
    for (size_t i = 0, n; i < p->n && !rc; i += n) {
        n = p->n - i < most ? p->n - i : most;
        rc = take_cached(x, i, n, e);
    }
    return rc;
}

/* What passes goes into its slots; after a failure it has none. */
static enum err flush(struct engram_slots *x, struct error *e)
{
    struct passing *p = &x->passing;
    struct kernels *k = x->kernels;
    size_t d = x->c->engram_dim, n = p->n;
    enum err rc = take_rows(x, e);
    p->n = 0;
    if (rc) {
        for (size_t i = 0; i < n; i++)
            row_index_forget(&x->index, (uint32_t)p->slot[i]);
        return rc;
    }
    k->copy_in(k, p->d_codes, p->codes, n * d);
    k->copy_in(k, p->d_scales, p->scales, n * (d / 32));
    k->copy_in(k, p->d_slot, p->slot, n * sizeof(*p->slot));
    k->engram_put(k, &(struct k_engram_put){.codes = x->d_codes,
                                            .scales = x->d_scales,
                                            .from_codes = p->d_codes,
                                            .from_scales = p->d_scales,
                                            .at = p->d_slot,
                                            .n = n,
                                            .d = (uint32_t)d});
    tier_count(&x->tier.read_bytes, n * row_bytes(x->c));
    return OK;
}

/* Gives a row a slot and lets it pass. ROW_NO_SLOT: each is needed by the fetch now. */
static uint32_t pass(struct engram_slots *x, uint32_t k, uint64_t id)
{
    struct passing *p = &x->passing;
    uint32_t slot = row_index_room(&x->index);
    assert(p->n < p->cap);
    if (slot == ROW_NO_SLOT)
        return slot;
    row_index_put(&x->index, slot, row_key(k, id), ROW_READY); /* by the time it is read */
    x->index.slots[slot].fetch =
        x->index.fetch; /* or one op would write it twice, in any order */
    p->k = k;
    p->ids[p->n] = id;
    p->slot[p->n++] = slot;
    return slot;
}

/* ---- ahead --------------------------------------------------------------------------------
 */

void engram_slots_expect(struct engram_slots *x, uint32_t k, const uint64_t *ids, size_t n)
{
    x->next.k = k;
    x->next.ids = ids;
    x->next.n = n;
    x->next.done = x->next.asked = 0;
}

/* Whether the host has this row without waiting. Asks for those that follow when it has not. */
static bool is_on_host(struct engram_slots *x, uint64_t id)
{
    uint32_t k = x->next.k;
    if (!x->cache)
        return x->c->engram_rows[k] * x->c->engram_dim <= ENGRAM_SMALL_BYTES;
    if (engram_cache_has(x->cache, k, id))
        return true;
    if (x->next.asked < x->next.done)
        x->next.asked = x->next.done;
    x->next.asked += engram_cache_prefetch(x->cache, k, x->next.ids + x->next.asked,
                                           x->next.n - x->next.asked);
    return engram_cache_has(x->cache, k, id);
}

void engram_slots_advance(struct engram_slots *x)
{
    struct row_index *index = &x->index;
    size_t most = index->n_slots / 2;
    for (; x->next.done < x->next.n && index->n_ahead < most; x->next.done++) {
        uint64_t id = x->next.ids[x->next.done];
        if (row_index_find(index, row_key(x->next.k, id)) != ROW_NO_SLOT)
            continue;
        if (x->passing.n == x->passing.cap || !is_on_host(x, id))
            break;
        uint32_t slot = pass(x, x->next.k, id);
        if (slot == ROW_NO_SLOT)
            break;
        index->slots[slot].is_ahead = true;
        index->n_ahead++;
    }
    if (x->passing.n && flush(x, NULL))
        engram_slots_expect(x, 0, NULL, 0); /* the fetch will meet it again */
}

/* ---- the fetch ----------------------------------------------------------------------------
 */

enum err engram_slots_fetch(struct engram_slots *x, uint32_t k, const uint64_t *ids, size_t n,
                            uint64_t *at, struct error *e)
{
    struct row_index *index = &x->index;
    size_t n_missing = 0;
    enum err rc = OK;
    assert(n <= index->n_slots);
    index->fetch++;
    for (size_t i = 0; i < n; i++) { /* first, so that none of them is given away */
        uint32_t slot = row_index_find(index, row_key(k, ids[i]));
        if (slot != ROW_NO_SLOT)
            x->n_ahead_hits += row_index_use(index, slot);
    }
    for (size_t i = 0; i < n && !rc; i++) {
        uint32_t slot = row_index_find(index, row_key(k, ids[i]));
        if (slot == ROW_NO_SLOT) {
            n_missing++;
            slot = pass(x, k, ids[i]);
            assert(slot !=
                   ROW_NO_SLOT); /* a fetch is never of more rows than there are slots */
            (void)row_index_use(index, slot);
        }
        at[i] = slot;
        if (x->passing.n == x->passing.cap)
            rc = flush(x, e);
    }
    if (!rc && x->passing.n)
        rc = flush(x, e);
    tier_count(&x->tier.misses, n_missing);
    tier_count(&x->tier.hits, n - n_missing);
    return rc;
}

void engram_slots_forget(struct engram_slots *x)
{
    row_index_forget_all(&x->index);
    engram_slots_expect(x, 0, NULL, 0);
}
