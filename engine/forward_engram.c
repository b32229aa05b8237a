#include "engine/forward_engram.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/engram_slots.h"
#include "engine/layer.h"

/* ---- which rows, and reading them ahead ---------------------------------------------------
 */

/* Asks the kernel for the pages of the rows that will be looked up. */
static void prefetch_pages(const uint8_t *base, size_t row_bytes, const uint64_t *ids, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < n; i++) {
        uintptr_t at = (uintptr_t)base + ids[i] * row_bytes, start = at / page * page;
        /* Advice only: when it is refused the row is read when it is used. */
        (void)madvise((void *)start, at + row_bytes - start, MADV_WILLNEED);
    }
}

static void prefetch(struct model *m, uint32_t k, const uint64_t *rows, size_t n)
{
    const struct config *c = &m->config;
    if (m->engram_cache)
        (void)engram_cache_prefetch(m->engram_cache, k, rows, n);
    else if (c->engram_rows[k] * c->engram_dim > ENGRAM_SMALL_BYTES)
        prefetch_pages(m->weights.layers[c->engram_layers[k]].engram.codes, c->engram_dim, rows,
                       n);
}

/* Compressed ids fit on the stack in pieces of this many tokens. */
#define HASH_PIECE 256

/* Rows of Engram layer k for n <= HASH_PIECE tokens, the first being ids[at]; before ids[0]
 * comes the history. */
static void hash_piece(const struct model *m, uint32_t k, const uint32_t *history,
                       const uint32_t *ids, uint64_t at, uint32_t n, uint64_t *rows)
{
    uint32_t piece[CONFIG_MAX_NGRAM + HASH_PIECE], back = m->engram.ngram - 1;
    for (uint32_t i = 0; i < back + n; i++) {
        uint64_t from = at + i; /* of history, then ids */
        uint32_t id = from < back ? history[from] : ids[from - back];
        piece[i] = id == ENGRAM_DEAD ? ENGRAM_DEAD : m->token_map[id];
    }
    engram_rows(&m->engram, k, piece, n, rows);
}

static uint32_t piece_of(uint64_t left)
{
    return left < HASH_PIECE ? (uint32_t)left : HASH_PIECE;
}

void forward_engram_ids(struct model *m, const struct run *r)
{
    struct work *b = m->work;
    uint32_t tables = m->engram.n_tables;
    for (uint32_t k = 0; k < m->config.n_engram; k++)
        for (uint32_t done = 0, n; done < r->n; done += n) {
            uint64_t *rows = b->engram_ids + ((size_t)k * b->cap + r->row + done) * tables;
            n = piece_of(r->n - done);
            hash_piece(m, k, r->history, r->ids, done, n, rows);
            prefetch(m, k, rows, (size_t)n * tables);
        }
}

void forward_engram_prefetch(struct model *m, const uint32_t *history, const uint32_t *ids,
                             uint64_t at, uint64_t n)
{
    uint64_t rows[ENGRAM_MAX_TABLES];
    uint32_t tables = m->engram.n_tables;
    for (uint32_t k = 0; k < m->config.n_engram; k++)
        for (uint64_t i = 0; i < n; i++) {
            hash_piece(m, k, history, ids, at + i, 1, rows);
            prefetch(m, k, rows, tables);
        }
}

/* Rows of the first Engram layer for what comes behind the first run; returns how many. */
static size_t hash_next(struct model *m, const struct run *r)
{
    uint32_t tables = m->engram.n_tables;
    uint32_t n = r->n_next < FORWARD_ENGRAM_NEXT ? r->n_next : FORWARD_ENGRAM_NEXT;
    if (!m->engram_next)
        m->engram_next = malloc((size_t)FORWARD_ENGRAM_NEXT * tables * sizeof(*m->engram_next));
    if (!m->engram_next)
        return 0; /* nothing is filled ahead */
    for (uint32_t i = 0; i < n; i++)
        hash_piece(m, 0, r->history, r->ids, r->n + (uint64_t)i, 1,
                   m->engram_next + (size_t)i * tables);
    return (size_t)n * tables;
}

void forward_engram_expect(struct model *m, const struct batch *batch, uint32_t k)
{
    const struct config *c = &m->config;
    uint32_t tables = m->engram.n_tables;
    if (!m->engram_slots)
        return;
    if (k < c->n_engram) {
        uint32_t first = batch_first(m, batch, c->engram_layers[k]);
        engram_slots_expect(m->engram_slots, k,
                            m->work->engram_ids + ((size_t)k * m->work->cap + first) * tables,
                            (size_t)(batch->n - first) * tables);
    } else {
        size_t n = hash_next(m, &batch->runs[0]);
        engram_slots_expect(m->engram_slots, 0, m->engram_next, n);
    }
    engram_slots_advance(m->engram_slots);
}

/* ---- looking them up ----------------------------------------------------------------------
 */

/* The rows that a look-up counts in are slots of the backend's memory; false: one is broken. */
static bool fetch_to_slots(struct model *m, uint32_t at, const uint64_t *ids, size_t n,
                           struct k_engram_rows *a)
{
    struct work *b = m->work;
    if (engram_slots_fetch(m->engram_slots, at, ids, n, b->engram_at, &m->broken))
        return false;
    work_to_device(m, b->d_engram_at, b->engram_at, n * sizeof(*b->engram_at));
    a->codes = engram_slots_codes(m->engram_slots);
    a->scales = engram_slots_scales(m->engram_slots);
    a->ids = b->d_engram_at;
    return true;
}

/* Takes n rows, number ids[i] of the tables that a names, to where ops can read them, side by
 * side, and has a name those. */
static void rows_to_device(struct model *m, const uint64_t *ids, size_t n,
                           struct k_engram_rows *a)
{
    struct work *b = m->work;
    size_t d = a->d, n_scales = d / 32;
    for (size_t i = 0; i < n; i++) {
        uint64_t id = ids[i];
        memcpy(b->engram_codes + i * d, a->codes + id * d, d);
        memcpy(b->engram_scales + i * n_scales, a->scales + id * n_scales, n_scales);
        b->engram_at[i] = i;
    }
    work_to_device(m, b->d_engram_codes, b->engram_codes, n * d);
    work_to_device(m, b->d_engram_scales, b->engram_scales, n * n_scales);
    work_to_device(m, b->d_engram_at, b->engram_at, n * sizeof(*b->engram_at));
    a->codes = b->d_engram_codes;
    a->scales = b->d_engram_scales;
    a->ids = b->d_engram_at;
}

/* Expands the Engram rows of n rows of the batch from `first` on, into `rows` (of its first
 * one); at: number of the Engram layer. */
static void look_up(struct model *m, uint32_t layer, uint32_t at, uint32_t first, size_t n,
                    float *rows)
{
    const struct config *c = &m->config;
    const struct engram_weights *w = &m->weights.layers[layer].engram;
    struct work *b = m->work;
    uint32_t tables = m->engram.n_tables;
    const size_t offset = ((size_t)at * b->cap + first) * tables;
    const uint64_t *ids = b->engram_ids + offset;
    struct k_engram_rows a = {.codes = w->codes,
                              .scales = w->scales,
                              .ids = b->d_engram_ids + offset,
                              .out = rows + (size_t)first * tables * c->engram_dim,
                              .n = n,
                              .n_id = tables,
                              .d = c->engram_dim};
    if (m->engram_slots) {
        if (fetch_to_slots(m, at, ids, n * tables, &a))
            m->k.engram_rows(&m->k, &a);
        return;
    }
    if (m->engram_cache) {
        if (engram_cache_fetch(m->engram_cache, at, ids, n * tables, b->engram_at, &m->broken))
            return;
        a.codes = engram_cache_codes(m->engram_cache);
        a.scales = engram_cache_scales(m->engram_cache);
        a.ids = b->d_engram_at;
    }
    for (size_t i = 0; i < n * tables && !m->engram_cache; i++)
        if (engram_check(c, layer, ids[i], w->scales + ids[i] * (c->engram_dim / 32),
                         &m->broken))
            return;
    if (!m->k.host_memory)
        rows_to_device(m, m->engram_cache ? b->engram_at : ids, n * tables, &a);
    m->k.engram_rows(&m->k, &a);
}

/* Most rows that are looked up at once. */
static size_t most_rows(const struct model *m)
{
    if (m->engram_slots)
        return engram_slots_rows(m->engram_slots);
    return m->engram_cache ? engram_cache_rows(m->engram_cache) : SIZE_MAX;
}

/* Where the expanded rows of Engram layer `at` are: those of a steady batch side by side, as
 * they are looked up before the first layer. */
static float *rows_of(const struct model *m, const struct batch *batch, uint32_t at)
{
    size_t row = (size_t)m->engram.n_tables * m->config.engram_dim;
    return m->work->engram + (batch->is_steady ? (size_t)at * batch->n * row : 0);
}

static void look_up_all(struct model *m, const struct batch *batch, uint32_t layer, uint32_t at,
                        uint32_t first)
{
    uint32_t tables = m->engram.n_tables, most = batch->n;
    if (most_rows(m) / tables < most)
        most = (uint32_t)(most_rows(m) / tables);
    for (uint32_t i = first, n; i < batch->n; i += n) { /* as many tokens as the cache holds */
        n = batch->n - i < most ? batch->n - i : most;
        look_up(m, layer, at, i, n, rows_of(m, batch, at));
        if (m->broken.code)
            return;
    }
    forward_engram_expect(m, batch, at + 1);
}

/* ---- into the streams ---------------------------------------------------------------------
 */

void forward_engram_rows(struct model *m, const struct batch *batch)
{
    for (uint32_t at = 0; at < m->config.n_engram && !m->broken.code; at++)
        look_up_all(m, batch, m->config.engram_layers[at], at, 0);
}

void forward_engram(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct config *c = &m->config;
    uint32_t at = config_engram_at(c, layer), first = layer_stream_first(m, batch, layer);
    if (at == CONFIG_NO_LAYER && m->engram_slots && !batch->is_steady)
        engram_slots_advance(m->engram_slots);
    if (at == CONFIG_NO_LAYER || first == batch->n)
        return;
    const struct engram_weights *w = &m->weights.layers[layer].engram;
    struct work *b = m->work;
    uint32_t tables = m->engram.n_tables;
    if (!batch->is_steady)
        look_up_all(m, batch, layer, at, first);
    if (m->broken.code)
        return;
    layer_product(m, &w->wkv, rows_of(m, batch, at), b->engram_kv, first, batch->n - first);
    m->k.engram_gate(&m->k, &(struct k_engram_gate){
                                .x = b->x + (size_t)first * c->hc * c->dim,
                                .kv = b->engram_kv + (size_t)first * (c->hc + 1) * c->dim,
                                .qw = w->q,
                                .kw = w->k,
                                .gate = b->engram_gate + (size_t)first * c->hc,
                                .n = batch->n - first,
                                .hc = c->hc,
                                .d = c->dim,
                                .eps = c->norm_eps,
                                .round = m->rounding.value});
    layer_observe(m, batch, "engram_rows", layer, first, tables, OBSERVED_U64,
                  tables * sizeof(*b->engram_ids),
                  b->engram_ids + (size_t)at * b->cap * tables);
    layer_observe_f32(m, batch, "engram_gate", layer, first, c->hc, b->engram_gate);
}
