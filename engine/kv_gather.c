#include "engine/kv_gather.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct kv_gather {
    struct kv_pages *pages;
    const struct kv_shape *shape;
    struct kernels *k;
    uint8_t *home; /* what is gathered, in the backend's memory; NULL: it is read where it is */
    uint8_t *tail; /* rows of a tail that were copied for the host: [tail_bytes] */
    size_t tail_bytes;
    size_t n_words;
    uint64_t *mark;       /* [n_words] a bit per row that is wanted; all 0 between calls */
    uint32_t *before;     /* [n_words] wanted rows in front of a word */
    struct kv_want *want; /* [cap_want] */
    size_t cap_want;
};

enum err kv_gather_new(struct kv_gather **out, struct kv_pages *pages,
                       const struct kv_shape *shape, struct kernels *k, struct error *e)
{
    struct kv_gather *g = calloc(1, sizeof(*g));
    uint64_t most = 0;
    for (uint32_t i = 0; i < shape->n_sources; i++) {
        uint64_t rows = shape->max_tokens / shape->source_ratio[i];
        size_t room = kv_pages_gather_rows(pages, i);
        most = rows > most ? rows : most;
        if (g && room > g->cap_want)
            g->cap_want = room;
    }
    if (g) {
        g->pages = pages, g->shape = shape, g->k = k;
        g->n_words = most / 64 + 1;
        g->mark = calloc(g->n_words, sizeof(*g->mark));
        g->before = calloc(g->n_words, sizeof(*g->before));
        g->want = calloc(g->cap_want + 1, sizeof(*g->want));
    }
    bool copies = g && !k->host_memory;
    if (copies) {
        g->home = k->alloc(k, kv_pages_gather_bytes(pages));
        for (uint32_t i = 0; i < shape->n_sources; i++) {
            size_t n = (size_t)kv_pages_tail_rows(pages, i) * shape->planes[2 * i].row_bytes;
            g->tail_bytes = n > g->tail_bytes ? n : g->tail_bytes;
        }
        g->tail = malloc(g->tail_bytes + 1);
    }
    if (!g || !g->mark || !g->before || !g->want || (copies && (!g->home || !g->tail))) {
        kv_gather_free(g);
        return err_set(e, ERR_NOMEM, "gathering KV rows");
    }
    *out = g;
    return OK;
}

void kv_gather_free(struct kv_gather *g)
{
    if (!g)
        return;
    g->k->free(g->k, g->home);
    free(g->tail);
    free(g->mark);
    free(g->before);
    free(g->want);
    free(g);
}

const uint8_t *kv_gather_rows(const struct kv_gather *g)
{
    return g->home ? g->home : kv_pages_gather(g->pages);
}

/* ---- which rows ---------------------------------------------------------------------------
 */

static bool is_marked(const struct kv_gather *g, int32_t row)
{
    return g->mark[row / 64] >> row % 64 & 1;
}

/* Marks the rows of one token; returns how many were not marked before. */
static size_t mark_token(struct kv_gather *g, const int32_t *sel, uint32_t width)
{
    size_t n = 0;
    for (uint32_t j = 0; j < width; j++) {
        if (sel[j] < 0 || is_marked(g, sel[j]))
            continue;
        g->mark[sel[j] / 64] |= UINT64_C(1) << sel[j] % 64;
        n++;
    }
    return n;
}

static void unmark(struct kv_gather *g, const int32_t *sel, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (sel[i] >= 0)
            g->mark[sel[i] / 64] &= ~(UINT64_C(1) << sel[i] % 64);
}

/* Marks the rows of as many tokens as fit in `room` rows; *n_rows: how many they are. */
static size_t mark_tokens(struct kv_gather *g, const int32_t *sel, uint32_t width, size_t n,
                          size_t room, size_t *n_rows)
{
    size_t i = 0, sum = 0;
    for (; i < n; i++) {
        size_t more = mark_token(g, sel + i * width, width);
        if (sum + more > room) {
            /* This one's rows go again, but for those that others want, too. */
            unmark(g, sel + i * width, width);
            for (size_t k = 0; k < i; k++)
                (void)mark_token(g, sel + k * width, width);
            break;
        }
        sum += more;
    }
    *n_rows = sum;
    return i;
}

/* ---- from where ---------------------------------------------------------------------------
 */

static void add_cold(struct kv_gather *g, size_t *n, uint64_t row, uint32_t per_page,
                     uint8_t *dst, size_t row_bytes)
{
    uint32_t page = (uint32_t)(row / per_page), first = (uint32_t)(row % per_page);
    struct kv_want *last = *n ? &g->want[*n - 1] : NULL;
    bool goes_on = last && last->page == page && last->first + last->n == first &&
                   last->dst + last->n * row_bytes == dst;
    if (goes_on)
        last->n++;
    else
        g->want[(*n)++] = (struct kv_want){page, first, 1, dst};
}

/* The rows from the first that is not cold up to the last that is marked, as the host can read
 * them. */
static const uint8_t *read_tail(struct kv_gather *g, const struct kv *kv, uint32_t source)
{
    const uint8_t *rows = kv_rows(kv, source, kv->cold[source]);
    size_t w = g->n_words;
    if (!g->home)
        return rows;
    while (w && !g->mark[w - 1])
        w--;
    uint64_t end = w ? w * 64 - (uint64_t)__builtin_clzll(g->mark[w - 1]) : 0;
    if (end > kv->cold[source]) {
        size_t n = (size_t)(end - kv->cold[source]) * g->shape->planes[2 * source].row_bytes;
        assert(n <= g->tail_bytes);
        g->k->copy_out(g->k, g->tail, rows, n);
    }
    return g->tail;
}

/* Copies what is in the tail and lists the rest; numbers the rows. Returns the list's length.
 */
static size_t place_rows(struct kv_gather *g, const struct kv *kv, uint32_t source)
{
    size_t row_bytes = g->shape->planes[2 * (size_t)source].row_bytes, n = 0;
    const uint8_t *tail = read_tail(g, kv, source);
    uint32_t per_page = kv_pages_rows(g->pages, source), at = 0;
    uint8_t *dst = kv_pages_gather(g->pages);
    for (size_t w = 0; w < g->n_words; w++) {
        g->before[w] = at;
        for (uint64_t bits = g->mark[w]; bits; bits &= bits - 1, at++) {
            uint64_t row = w * 64 + (uint64_t)__builtin_ctzll(bits);
            uint8_t *to = dst + at * row_bytes;
            if (row < kv->cold[source])
                add_cold(g, &n, row, per_page, to, row_bytes);
            else
                memcpy(to, tail + (row - kv->cold[source]) * row_bytes, row_bytes);
        }
    }
    return n;
}

enum err kv_gather_take(struct kv_gather *g, const struct kv *kv, uint32_t source,
                        const int32_t *sel, uint32_t width, size_t n, int32_t *at,
                        size_t *n_done, struct error *e)
{
    size_t n_rows = 0, room = kv_pages_gather_rows(g->pages, source);
    size_t done = mark_tokens(g, sel, width, n, room, &n_rows);
    assert(done && n_rows <= room); /* the smallest budget is for one token */
    size_t n_want = place_rows(g, kv, source);
    for (size_t i = 0; i < done * width; i++) {
        int32_t row = sel[i];
        uint64_t below = row < 0 ? 0 : g->mark[row / 64] & ((UINT64_C(1) << row % 64) - 1);
        at[i] = row < 0 ? row : (int32_t)g->before[row / 64] + __builtin_popcountll(below);
    }
    unmark(g, sel, done * width);
    *n_done = done;
    enum err rc = kv_read(kv, source, g->want, n_want, e);
    if (!rc && g->home)
        g->k->copy_in(g->k, g->home, kv_pages_gather(g->pages),
                      n_rows * g->shape->planes[2 * (size_t)source].row_bytes);
    return rc;
}
