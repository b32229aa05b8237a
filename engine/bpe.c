#include "engine/bpe.h"

#include <string.h>

#define NONE UINT32_MAX
#define MAX_MERGES (1u << 22)
#define MAX_PIECE (1u << 31)
/* Up to here a scan over all symbols for each merge beats the heap. */
#define SHORT_PIECE 48

static uint32_t hash_pair(uint64_t pair)
{
    pair ^= pair >> 33;
    pair *= 0xff51afd7ed558ccdull;
    pair ^= pair >> 29;
    return (uint32_t)(pair ^ pair >> 32);
}

enum err bpe_init(struct bpe *b, uint32_t n_merges, struct error *e)
{
    if (n_merges > MAX_MERGES)
        return err_set(e, ERR_LIMIT, "%u merges, at most %u", n_merges, MAX_MERGES);
    uint32_t n_slots = 64;
    while (n_slots < 2 * n_merges)
        n_slots *= 2;
    struct bpe_slot *slots = calloc(n_slots, sizeof *slots);
    if (!slots)
        return err_set(e, ERR_NOMEM, "no memory for %u merges", n_merges);
    for (uint32_t i = 0; i < n_slots; i++)
        slots[i].rank = NONE;
    b->slots = slots;
    b->mask = n_slots - 1;
    return OK;
}

void bpe_fini(struct bpe *b)
{
    free(b->slots);
    b->slots = NULL;
}

static struct bpe_slot *find_slot(const struct bpe *b, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t i = hash_pair(pair) & b->mask;
    while (b->slots[i].rank != NONE && b->slots[i].pair != pair)
        i = (i + 1) & b->mask;
    return &b->slots[i];
}

enum err bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id,
                 struct error *e)
{
    struct bpe_slot *s = find_slot(b, left, right);
    if (s->rank != NONE)
        return err_set(e, ERR_FORMAT, "merge %u is the same as merge %u", rank, s->rank);
    *s = (struct bpe_slot){(uint64_t)left << 32 | right, rank, id};
    return OK;
}

void bpe_scratch_fini(struct bpe_scratch *s)
{
    free(s->nodes);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

/* A piece of n symbols has n - 1 candidates at first, and each merge makes at most two more. */
static enum err reserve(struct bpe_scratch *s, size_t n, struct error *e)
{
    if (n > s->node_cap) {
        size_t cap = n < 256 ? 256 : n;
        struct bpe_node *nodes = reallocarray(s->nodes, cap, sizeof *nodes);
        if (!nodes)
            return err_set(e, ERR_NOMEM, "no memory for a piece of %zu bytes", n);
        s->nodes = nodes;
        s->node_cap = cap;
    }
    if (n > SHORT_PIECE && 3 * n > s->heap_cap) {
        uint64_t *heap = reallocarray(s->heap, 3 * n, sizeof *heap);
        if (!heap)
            return err_set(e, ERR_NOMEM, "no memory for a piece of %zu bytes", n);
        s->heap = heap;
        s->heap_cap = 3 * n;
    }
    return OK;
}

/* Looks up the merge of node i with the one behind it. */
static void set_rank(const struct bpe *b, struct bpe_node *nodes, uint32_t i)
{
    struct bpe_node *node = &nodes[i];
    node->rank = NONE;
    if (node->next == NONE)
        return;
    const struct bpe_slot *s = find_slot(b, node->id, nodes[node->next].id);
    node->rank = s->rank;
    node->merged_id = s->id;
}

static void start(const struct bpe *b, struct bpe_node *nodes, const uint8_t *piece, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        nodes[i].id = b->byte_ids[piece[i]];
        nodes[i].prev = i ? i - 1 : NONE;
        nodes[i].next = i + 1 < n ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i < n; i++)
        set_rank(b, nodes, i);
}

/* Node i takes in the one behind it; the ranks around it are looked up again. */
static void merge(const struct bpe *b, struct bpe_node *nodes, uint32_t i)
{
    struct bpe_node *node = &nodes[i], *gone = &nodes[node->next];
    node->id = node->merged_id;
    node->next = gone->next;
    if (node->next != NONE)
        nodes[node->next].prev = i;
    gone->rank = NONE;
    set_rank(b, nodes, i);
    if (node->prev != NONE)
        set_rank(b, nodes, node->prev);
}

static void merge_short(const struct bpe *b, struct bpe_node *nodes)
{
    for (;;) {
        uint32_t best = NONE, best_rank = NONE;
        for (uint32_t i = 0; i != NONE; i = nodes[i].next)
            if (nodes[i].rank < best_rank) {
                best = i;
                best_rank = nodes[i].rank;
            }
        if (best == NONE)
            return;
        merge(b, nodes, best);
    }
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t i = (*n)++;
    while (i && heap[(i - 1) / 2] > key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], key = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= key)
            break;
        heap[i] = heap[child];
    }
    heap[i] = key;
    return top;
}

static void push_node(uint64_t *heap, size_t *n, const struct bpe_node *nodes, uint32_t i)
{
    if (i != NONE && nodes[i].rank != NONE)
        heap_push(heap, n, (uint64_t)nodes[i].rank << 32 | i);
}

/* An entry is stale when its node was merged away or has another neighbour by now: then the
 * node's rank differs from the entry's. */
static void merge_long(const struct bpe *b, struct bpe_scratch *s, uint32_t n)
{
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        push_node(s->heap, &n_heap, s->nodes, i);
    while (n_heap) {
        uint64_t top = heap_pop(s->heap, &n_heap);
        uint32_t i = (uint32_t)top;
        if (s->nodes[i].rank != (uint32_t)(top >> 32))
            continue;
        merge(b, s->nodes, i);
        push_node(s->heap, &n_heap, s->nodes, i);
        push_node(s->heap, &n_heap, s->nodes, s->nodes[i].prev);
    }
}

enum err bpe_encode(const struct bpe *b, struct bpe_scratch *s, const uint8_t *piece, size_t n,
                    struct ids *out, struct error *e)
{
    if (n == 1)
        return ids_add(out, b->byte_ids[piece[0]], e);
    if (n > MAX_PIECE)
        return err_set(e, ERR_LIMIT, "a piece of %zu bytes, at most %u", n, MAX_PIECE);
    enum err rc = reserve(s, n, e);
    if (rc)
        return rc;
    start(b, s->nodes, piece, (uint32_t)n);
    if (n <= SHORT_PIECE)
        merge_short(b, s->nodes);
    else
        merge_long(b, s, (uint32_t)n);
    for (uint32_t i = 0; i != NONE; i = s->nodes[i].next)
        if ((rc = ids_add(out, s->nodes[i].id, e)))
            return rc;
    return OK;
}
