#include "engine/row_index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum err row_index_init(struct row_index *x, size_t n_slots, struct error *e)
{
    *x = (struct row_index){.n_slots = n_slots, .n_used = n_slots};
    if (n_slots >= ROW_NO_SLOT)
        return err_set(e, ERR_LIMIT, "%zu rows in memory", n_slots);
    for (x->n_buckets = 1; x->n_buckets < n_slots;)
        x->n_buckets *= 2;
    /* Zeroes that are only taken as they are touched. */
    void *p = mmap(NULL, n_slots * sizeof(*x->slots), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    x->slots = p == MAP_FAILED ? NULL : p;
    x->bucket = malloc(x->n_buckets * sizeof(*x->bucket));
    if (!x->slots || !x->bucket) {
        row_index_fini(x);
        return err_set(e, ERR_NOMEM, "cache of %zu rows", n_slots);
    }
    for (size_t i = 0; i < x->n_buckets; i++)
        x->bucket[i] = ROW_NO_SLOT;
    return OK;
}

void row_index_fini(struct row_index *x)
{
    if (x->slots)
        munmap(x->slots, x->n_slots * sizeof(*x->slots));
    free(x->bucket);
    *x = (struct row_index){0};
}

static uint32_t *bucket_of(const struct row_index *x, uint64_t key)
{
    uint64_t h = key * UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio */
    return &x->bucket[(h ^ h >> 32) & (x->n_buckets - 1)];
}

uint32_t row_index_find(const struct row_index *x, uint64_t key)
{
    uint32_t s = *bucket_of(x, key);
    while (s != ROW_NO_SLOT && x->slots[s].key != key)
        s = x->slots[s].next;
    return s;
}

static bool set_used(struct row_index *x, struct row_slot *r)
{
    bool was_ahead = r->is_ahead;
    x->n_ahead -= was_ahead;
    r->is_ahead = false;
    return was_ahead;
}

bool row_index_use(struct row_index *x, uint32_t slot)
{
    struct row_slot *r = &x->slots[slot];
    r->fetch = x->fetch;
    r->is_hot = true;
    return set_used(x, r);
}

void row_index_forget(struct row_index *x, uint32_t slot)
{
    struct row_slot *r = &x->slots[slot];
    if (r->state == ROW_EMPTY)
        return;
    uint32_t *at = bucket_of(x, r->key);
    while (*at != slot)
        at = &x->slots[*at].next;
    *at = r->next;
    set_used(x, r);
    r->state = ROW_EMPTY;
}

void row_index_forget_all(struct row_index *x)
{
    for (size_t i = 0; i < x->n_slots; i++)
        row_index_forget(x, (uint32_t)i);
}

uint32_t row_index_room(struct row_index *x)
{
    for (size_t i = 0; i < 2 * x->n_used; i++) {
        uint32_t slot = x->hand < x->n_used ? (uint32_t)x->hand : 0;
        struct row_slot *r = &x->slots[slot];
        x->hand = slot + 1 == x->n_used ? 0 : slot + (size_t)1;
        if (r->state == ROW_EMPTY)
            return slot;
        if (r->state == ROW_LOADING || r->fetch == x->fetch)
            continue;
        if (!r->is_hot)
            return slot;
        r->is_hot = false;
    }
    return ROW_NO_SLOT;
}

void row_index_put(struct row_index *x, uint32_t slot, uint64_t key, enum row_state state)
{
    row_index_forget(x, slot);
    uint32_t *bucket = bucket_of(x, key);
    x->slots[slot] = (struct row_slot){.key = key,
                                       .next = *bucket,
                                       .fetch = x->fetch - 1,
                                       .state = (uint8_t)state,
                                       .is_hot = true};
    *bucket = slot;
}
