#include "engine/kv_internal.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/auto.h"
#include "engine/kv_pages.h"

/* Room for n pages of source i in all. */
static enum err reserve_pages(struct kv *kv, uint32_t i, size_t n, struct error *e)
{
    if (n <= kv->cap_page[i])
        return OK;
    struct kv_page *more = reallocarray(kv->page[i], 2 * n, sizeof(*more));
    if (!more)
        return err_set(e, ERR_NOMEM, "%zu pages of KV rows", 2 * n);
    kv->page[i] = more;
    kv->cap_page[i] = 2 * n;
    return OK;
}

enum err kv_leave_behind(struct kv *kv, const struct state_fetch *fetch, struct error *e)
{
    kv->fetch = *fetch;
    if (!kv->pages)
        return err_set(e, ERR_UNSUPPORTED,
                       "rows that stay behind: only with a budget for them");
    for (uint32_t i = 0; i < kv->shape->n_sources; i++) {
        uint32_t per_page = kv_pages_rows(kv->pages, i);
        uint64_t rows = state_rows(&kv->shape->planes[2 * (size_t)i], fetch->n_tokens);
        size_t n = (size_t)(rows / per_page);
        enum err rc = reserve_pages(kv, i, n, e);
        uint64_t rest = rows - n * per_page; /* a page that is not full begins the tail */
        size_t at = n * per_page * kv->shape->planes[2 * (size_t)i].row_bytes;
        if (!rc && rest)
            rc = fetch->rows(fetch->ctx, 2 * i, n * per_page, rest,
                             (kv->landing[2 * i] ? kv->landing[2 * i] : kv->plane[2 * i]) + at,
                             e);
        if (rc)
            return rc;
        for (size_t k = 0; k < n; k++)
            kv->page[i][k] = (struct kv_page){.at = KV_PAGE_LATE};
        kv->cold[i] = n * per_page;
    }
    return OK;
}

enum err kv_read(const struct kv *kv, uint32_t source, const struct kv_want *want, size_t n,
                 struct error *e)
{
    const struct kv_origin from = {
        .owner = kv->owner, .source = source, .list = kv->page[source], .fetch = &kv->fetch};
    return kv_pages_read(kv->pages, &from, want, n, e);
}

/* n bytes of a main plane as the host can read them: where they are, or copied to *copy. */
static enum err host_view(const struct kv *kv, uint32_t plane, size_t at, size_t n, void **copy,
                          const uint8_t **out, struct error *e)
{
    struct kernels *k = kv_kernels(kv);
    if (k->host_memory || kv->landing[plane]) {
        *out = kv->landing[plane] ? kv->landing[plane] + at : kv_place(kv, plane, at);
        return OK;
    }
    if (!(*copy = malloc(n ? n : 1)))
        return err_set(e, ERR_NOMEM, "%zu bytes of plane %s", n, kv->shape->planes[plane].name);
    k->copy_out(k, *copy, kv_place(kv, plane, at), n);
    *out = *copy;
    return k->sync(k, e);
}

/* The first n bytes of a tail are another one's: what is behind them moves to its start, in
 * pieces that do not overlap. */
static enum err move_tail(struct kv *kv, uint32_t plane, size_t n, struct error *e)
{
    struct kernels *k = kv_kernels(kv);
    uint8_t *tail = kv->plane[plane];
    size_t end = kv_tail_bytes(kv, plane);
    for (size_t at = n; at < end; at += n)
        k->copy(k, tail + at - n, tail + at, end - at < n ? end - at : n);
    return k->sync(k, e);
}

/* Rows of source i from cold[i] up to `to`, whole pages, go to the spill file. */
static enum err spill(struct kv *kv, uint32_t i, uint64_t to, struct error *e)
{
    uint32_t per_page = kv_pages_rows(kv->pages, i), plane = 2 * i;
    size_t had = kv->cold[i] / per_page, n = to / per_page - had;
    size_t row = kv->shape->planes[plane].row_bytes, page = kv->memory->page_bytes;
    size_t from = kv->cold[i] * row, end = to * row;
    AUTO_FREE void *copy = NULL;
    const uint8_t *rows = NULL;
    enum err rc = reserve_pages(kv, i, had + n, e);
    if (rc || (rc = host_view(kv, plane, from, end - from, &copy, &rows, e)))
        return rc;
    rc = kv_pages_write(kv->pages, i, rows, n, kv->page[i] + had, e);
    if (rc)
        return err_wrap(e, rc, "plane %s", kv->shape->planes[plane].name);
    struct kernels *k = kv_kernels(kv);
    if (!kv_is_tail(kv, plane))
        k->discard(k, kv->plane[plane], from / page * page, end / page * page);
    else if (!kv->landing[plane] && (rc = move_tail(kv, plane, end - from, e)))
        return rc;
    kv->cold[i] = to;
    return OK;
}

enum err kv_make_room(struct kv *kv, uint64_t below, uint64_t n, struct error *e)
{
    if (below > kv->n_firm)
        below = kv->n_firm;
    for (uint32_t i = 0; kv->pages && i < kv->shape->n_sources; i++) {
        const struct plane_spec *p = &kv->shape->planes[2 * (size_t)i];
        uint64_t rows = state_rows(p, kv->n_tokens > below ? kv->n_tokens : below);
        uint64_t after = rows + (n + p->ratio - 1) / p->ratio;
        uint64_t most = kv_pages_tail_rows(kv->pages, i);
        if (after - kv->cold[i] <= most)
            continue;
        uint64_t firm = state_rows(p, below);
        uint64_t to = firm / kv_pages_rows(kv->pages, i) * kv_pages_rows(kv->pages, i);
        enum err rc = to > kv->cold[i] ? spill(kv, i, to, e) : OK;
        if (rc)
            return rc;
        if (after - kv->cold[i] > most)
            return err_set(e, ERR_LIMIT,
                           "plane %s: %" PRIu64
                           " rows may be dropped still, memory is for %" PRIu64,
                           p->name, after - kv->cold[i], most);
    }
    return OK;
}

/* Cold rows of source i. */
static enum err read_cold(const struct kv *kv, uint32_t i, uint64_t row0, uint64_t n,
                          uint8_t *dst, struct error *e)
{
    uint32_t per_page = kv_pages_rows(kv->pages, i);
    size_t row = kv->shape->planes[2 * (size_t)i].row_bytes;
    while (n) {
        struct kv_want want[64];
        size_t n_want = 0;
        for (; n && n_want < sizeof(want) / sizeof(*want); n_want++) {
            uint32_t first = (uint32_t)(row0 % per_page);
            uint32_t take = n < per_page - first ? (uint32_t)n : per_page - first;
            want[n_want] = (struct kv_want){(uint32_t)(row0 / per_page), first, take, dst};
            row0 += take;
            n -= take;
            dst += take * row;
        }
        enum err rc = kv_read(kv, i, want, n_want, e);
        if (rc)
            return rc;
    }
    return OK;
}

enum err kv_copy_rows(const struct kv *kv, uint32_t plane, uint64_t row0, uint64_t n, void *dst,
                      struct error *e)
{
    size_t row = kv->shape->planes[plane].row_bytes;
    uint64_t cold = plane % 2 || !kv->pages ? 0 : kv->cold[plane / 2];
    uint64_t n_cold = row0 >= cold ? 0 : cold - row0 < n ? cold - row0 : n;
    enum err rc = n_cold ? read_cold(kv, plane / 2, row0, n_cold, dst, e) : OK;
    if (rc)
        return rc;
    struct kernels *k = kv_kernels(kv);
    if (n > n_cold)
        k->copy_out(k, (uint8_t *)dst + n_cold * row,
                    kv_place(kv, plane, (row0 + n_cold) * row), (n - n_cold) * row);
    return k->sync(k, e);
}

void kv_cold_fini(struct kv *kv)
{
    for (uint32_t i = 0; kv->has_joined && i < kv->shape->n_sources; i++) {
        kv_pages_drop(kv->pages, kv->page[i], kv->cold[i] / kv_pages_rows(kv->pages, i));
        free(kv->page[i]);
    }
    if (kv->has_joined)
        kv_pages_leave(kv->pages, kv->owner);
    if (kv->fetch.close)
        kv->fetch.close(kv->fetch.ctx);
}
