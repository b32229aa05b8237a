#include "engine/ids.h"

#include <string.h>

void ids_fini(struct ids *l)
{
    free(l->v);
    l->v = NULL;
    l->n = l->cap = 0;
}

enum err ids_reserve(struct ids *l, size_t n, struct error *e)
{
    if (n > l->max - l->n)
        return err_set(e, ERR_LIMIT, "ids: %zu and %zu more, at most %zu", l->n, n, l->max);
    if (l->n + n <= l->cap)
        return OK;
    size_t cap = l->cap < 64 ? 64 : l->cap;
    while (cap < l->n + n)
        cap = cap > l->max / 2 ? l->max : cap * 2;
    if (cap > l->max)
        cap = l->max;
    uint32_t *v = reallocarray(l->v, cap, sizeof *v);
    if (!v)
        return err_set(e, ERR_NOMEM, "ids: no memory for %zu", cap);
    l->v = v;
    l->cap = cap;
    return OK;
}

enum err ids_add(struct ids *l, uint32_t id, struct error *e)
{
    return ids_add_all(l, &id, 1, e);
}

enum err ids_add_all(struct ids *l, const uint32_t *v, size_t n, struct error *e)
{
    enum err rc = ids_reserve(l, n, e);
    if (rc)
        return rc;
    if (n)
        memcpy(l->v + l->n, v, n * sizeof *v);
    l->n += n;
    return OK;
}
