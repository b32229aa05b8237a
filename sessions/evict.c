#include "sessions/evict.h"

#include <stdlib.h>
#include <string.h>

#include "sessions/pin.h"
#include "sessions/space.h"
#include "sessions/sweep.h"

#define BATCH 64

void evict_init(struct evict *v, struct store *st)
{
    *v = (struct evict){.st = st};
    forest_init(&v->forest, st);
}

void evict_fini(struct evict *v)
{
    forest_fini(&v->forest);
    free(v->heap);
    free(v->packs);
}

/* ---- one row ----------------------------------------------------------------------------- */

static enum err note_pack(struct evict *v, int64_t pack, struct error *e)
{
    for (size_t i = v->n_packs; i-- > 0;)
        if (v->packs[i] == pack)
            return OK;
    if (v->n_packs % 64 == 0) {
        int64_t *grown = realloc(v->packs, (v->n_packs + 64) * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "gc: out of memory");
        v->packs = grown;
    }
    v->packs[v->n_packs++] = pack;
    return OK;
}

/* Whether the query, about one id, says 1. */
static enum err says(struct store *st, const char *sql, int64_t id, bool *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, id);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *out = row && row_int(&q, 0) != 0;
    return rc;
}

/* The row is still the one that the picture shows. */
static enum err is_same(struct store *st, const struct node *x, bool *same, struct error *e)
{
    static const char *const sql[] = {
        [CATALOG_BLOCKS] = "SELECT pack, off FROM blocks WHERE id = ?",
        [CATALOG_TAILS] = "SELECT pack, off FROM tails WHERE id = ?",
        [CATALOG_TIPS] = "SELECT pack, off FROM tips WHERE id = ?",
    };
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql[x->kind], e);
    if (rc)
        return rc;
    query_int(&q, x->id);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *same = row && row_int(&q, 0) == x->place.pack && row_uint(&q, 1) == x->place.off;
    return rc;
}

/* Something hangs on the extent by now. */
static enum err has_children(struct store *st, const struct node *x, bool *out, struct error *e)
{
    switch (x->kind) {
    case CATALOG_BLOCKS:
        return says(st,
                    "SELECT EXISTS(SELECT 1 FROM blocks WHERE parent = ?1)"
                    " OR EXISTS(SELECT 1 FROM tails WHERE block = ?1)"
                    " OR EXISTS(SELECT 1 FROM tips WHERE block = ?1)",
                    x->id, out, e);
    case CATALOG_TAILS:
        return says(st,
                    "SELECT EXISTS(SELECT 1 FROM tails WHERE prev = ?1)"
                    " OR EXISTS(SELECT 1 FROM tips WHERE tail = ?1)",
                    x->id, out, e);
    case CATALOG_TIPS:
        break;
    }
    *out = false;
    return OK;
}

static enum err is_meant(struct store *st, const struct node *x, bool *out, struct error *e)
{
    static const char *const sql[] = {
        [CATALOG_BLOCKS] = "SELECT EXISTS(SELECT 1 FROM heads WHERE block = ?)",
        [CATALOG_TAILS] = "SELECT EXISTS(SELECT 1 FROM heads WHERE tail = ?)",
        [CATALOG_TIPS] = "SELECT EXISTS(SELECT 1 FROM heads WHERE tip = ?)",
    };
    return says(st, sql[x->kind], x->id, out, e);
}

/* What hung on the extent hangs on what it hung on. */
static void move_back(struct head_row *h, const struct node *x)
{
    switch (x->kind) {
    case CATALOG_BLOCKS:
        h->block = x->block;
        h->tail = 0;
        break;
    case CATALOG_TAILS:
        h->block = x->block;
        h->tail = x->tail;
        break;
    case CATALOG_TIPS:
        h->tip = 0;
        break;
    }
}

/* Heads that mean the extent mean what is left. */
static enum err move_heads(struct store *st, const struct node *x, struct error *e)
{
    for (;;) {
        struct head_row h;
        bool found;
        enum err rc = head_row_naming(st, x->kind, x->id, &h, &found, e);
        if (rc || !found)
            return rc;
        move_back(&h, x);
        if ((rc = head_row_write(st, &h, e)))
            return rc;
    }
}

static enum err delete_row(struct store *st, const struct node *x, struct error *e)
{
    static const char *const sql[] = {
        [CATALOG_BLOCKS] = "DELETE FROM blocks WHERE id = ?",
        [CATALOG_TAILS] = "DELETE FROM tails WHERE id = ?",
        [CATALOG_TIPS] = "DELETE FROM tips WHERE id = ?",
    };
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql[x->kind], e);
    if (rc)
        return rc;
    query_int(&q, x->id);
    return query_run(&q, e);
}

/* Takes the row out, if it is still as it was and may go. */
static enum err drop(struct evict *v, struct node *x, bool is_garbage, bool *dropped,
                     struct error *e)
{
    bool same, children = false, meant = false;
    enum err rc = is_same(v->st, x, &same, e);
    *dropped = false;
    if (rc || !same || (!v->ignore_plans && pin_holds(v->st, x->kind, x->id)))
        return rc;
    if ((rc = has_children(v->st, x, &children, e)) || children)
        return rc;
    if (is_garbage && ((rc = is_meant(v->st, x, &meant, e)) || meant))
        return rc;
    if ((!is_garbage && (rc = move_heads(v->st, x, e))) || (rc = delete_row(v->st, x, e)) ||
        (rc = note_pack(v, x->place.pack, e)))
        return rc;
    v->freed += node_bytes(x);
    *dropped = true;
    return OK;
}

/* ---- garbage ----------------------------------------------------------------------------- */

static void count_garbage(struct gc_report *r, enum catalog_table kind)
{
    r->blocks += kind == CATALOG_BLOCKS;
    r->tails += kind == CATALOG_TAILS;
    r->tips += kind == CATALOG_TIPS;
}

/* From the last node back: tips, then tails, then blocks, children mostly before parents. What
 * is met before a child of it is gone is left to a second round. */
static enum err garbage_batch(struct evict *v, struct error *e)
{
    struct forest *f = &v->forest;
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &v->st->db, e);
    for (size_t n = 0; n < BATCH && v->at > 0 && !rc;) {
        struct node *x = &f->nodes[--v->at];
        bool dropped;
        if (x->n_holders || x->pinned || x->gone)
            continue;
        n++;
        if ((rc = drop(v, x, true, &dropped, e)) || !dropped)
            continue;
        x->gone = true;
        v->again = v->again || (x->parent > 0 && (size_t)x->parent >= v->at);
        count_garbage(&v->report, x->kind);
    }
    return rc ? rc : txn_commit(&t, e);
}

enum err evict_garbage(struct evict *v, bool *done, struct error *e)
{
    if (!v->started) {
        if (!v->ignore_plans)
            pin_forest(v->st, &v->forest);
        v->at = v->forest.n;
        v->started = true;
    }
    v->st->n_collections++;
    enum err rc = garbage_batch(v, e);
    *done = v->at == 0 && !v->again;
    if (v->at == 0 && v->again) {
        v->at = v->forest.n;
        v->again = false;
    }
    return rc;
}

/* ---- the heap ---------------------------------------------------------------------------- */

static double score(const struct node *x)
{
    return x->damaged ? 0 : x->weight * x->tokens / x->place.pages;
}

static bool goes_before(const struct forest *f, int32_t a, int32_t b)
{
    const struct node *x = &f->nodes[a], *y = &f->nodes[b];
    double sx = score(x), sy = score(y);
    if (sx < sy || sx > sy)
        return sx < sy;
    return x->commit != y->commit ? x->commit < y->commit : a < b;
}

static void swap(struct evict *v, size_t i, size_t j)
{
    int32_t tmp = v->heap[i];
    v->heap[i] = v->heap[j];
    v->heap[j] = tmp;
}

static enum err heap_push(struct evict *v, int32_t at, struct error *e)
{
    if (v->n_heap == v->cap_heap) {
        size_t cap = v->cap_heap ? 2 * v->cap_heap : 256;
        int32_t *grown = realloc(v->heap, cap * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "gc: out of memory");
        v->heap = grown;
        v->cap_heap = cap;
    }
    size_t i = v->n_heap++;
    v->heap[i] = at;
    for (; i > 0 && goes_before(&v->forest, v->heap[i], v->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(v, i, (i - 1) / 2);
    return OK;
}

static int32_t heap_pop(struct evict *v)
{
    int32_t top = v->heap[0];
    v->heap[0] = v->heap[--v->n_heap];
    for (size_t i = 0;;) {
        size_t least = i, l = 2 * i + 1, r = l + 1;
        if (l < v->n_heap && goes_before(&v->forest, v->heap[l], v->heap[least]))
            least = l;
        if (r < v->n_heap && goes_before(&v->forest, v->heap[r], v->heap[least]))
            least = r;
        if (least == i)
            return top;
        swap(v, i, least);
        i = least;
    }
}

static enum err push_leaf(struct evict *v, int32_t at, struct error *e)
{
    const struct node *x = &v->forest.nodes[at];
    return x->n_children || x->pinned || x->gone ? OK : heap_push(v, at, e);
}

/* A child of the node went: it may be a leaf now. */
static enum err lose_child(struct evict *v, int32_t parent, struct error *e)
{
    if (parent < 0)
        return OK;
    v->forest.nodes[parent].n_children--;
    return push_leaf(v, parent, e);
}

static enum err make_heap(struct evict *v, struct error *e)
{
    enum err rc = OK;
    if (!v->ignore_plans)
        pin_forest(v->st, &v->forest);
    /* What garbage_batch took has left its parents. */
    for (size_t i = 0; i < v->forest.n; i++)
        if (v->forest.nodes[i].gone && v->forest.nodes[i].parent >= 0)
            v->forest.nodes[v->forest.nodes[i].parent].n_children--;
    for (size_t i = 0; i < v->forest.n && !rc; i++)
        rc = push_leaf(v, (int32_t)i, e);
    v->has_heap = true;
    return rc;
}

/* ---- eviction ---------------------------------------------------------------------------- */

static enum err leaves_batch(struct evict *v, uint64_t goal, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &v->st->db, e);
    for (size_t n = 0; n < BATCH && v->n_heap && v->freed < goal && !rc; n++) {
        struct node *x = &v->forest.nodes[heap_pop(v)];
        bool dropped;
        if ((rc = drop(v, x, false, &dropped, e)) || !dropped)
            continue;
        x->gone = true;
        v->report.evicted++;
        rc = lose_child(v, x->parent, e);
    }
    return rc ? rc : txn_commit(&t, e);
}

enum err evict_leaves(struct evict *v, uint64_t goal, bool *done, struct error *e)
{
    enum err rc = v->has_heap ? OK : make_heap(v, e);
    v->st->n_collections++;
    if (!rc)
        rc = leaves_batch(v, goal, e);
    *done = v->freed >= goal || !v->n_heap;
    return rc;
}

/* ---- at once ----------------------------------------------------------------------------- */

static void keep_all(struct forest *f, const struct evict_keep *k)
{
    for (size_t i = 0; i < k->n_blocks; i++)
        forest_pin(f, forest_find(f, CATALOG_BLOCKS, k->blocks[i]));
    if (k->tail)
        forest_pin(f, forest_find(f, CATALOG_TAILS, k->tail));
    if (k->tip)
        forest_pin(f, forest_find(f, CATALOG_TIPS, k->tip));
}

static uint64_t evictable(const struct forest *f)
{
    uint64_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        n += f->nodes[i].pinned ? 0 : node_bytes(&f->nodes[i]);
    return n;
}

enum err evict_room(struct store *st, uint64_t bytes, const struct evict_keep *keep,
                    struct error *e)
{
    AUTO(evict) struct evict v;
    evict_init(&v, st);
    enum err rc = forest_load(&v.forest, e);
    if (rc)
        return rc;
    keep_all(&v.forest, keep);
    pin_forest(st, &v.forest);
    uint64_t most = evictable(&v.forest);
    if (most < bytes)
        return err_set(e, ERR_LIMIT,
                       "quota: %llu bytes are wanted, %llu could be evicted, the rest is "
                       "pinned or needed",
                       (unsigned long long)bytes, (unsigned long long)most);
    for (bool done = false; !done && !rc;)
        rc = evict_leaves(&v, bytes, &done, e);
    if (!rc)
        rc = sweep_packs(st, v.packs, v.n_packs, e);
    return rc;
}
