#include "sessions/forest.h"

#include <stdlib.h>
#include <string.h>

#include "sessions/hold.h"

#define STEP_ROWS 2048
#define STEP_WALK 16384u /* nodes walked in a step of HOLD */
#define MAX_NODES ((size_t)1 << 24)

/* What an exact resume saves, until a layout has said so: 127 * 40 + 1 tokens of V4.1-Flash. */
#define REPLAY_TOKENS 5081u

void forest_init(struct forest *f, struct store *st)
{
    *f = (struct forest){.st = st, .now_ms = store_now_ms(st)};
}

void forest_fini(struct forest *f)
{
    free(f->nodes);
    f->nodes = NULL;
}

/* ---- loading ----------------------------------------------------------------------------- */

static enum err push(struct forest *f, const struct node *n, struct error *e)
{
    if (f->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 1024;
        struct node *grown = cap > MAX_NODES ? NULL : realloc(f->nodes, cap * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "catalog of %zu extents: out of memory", f->n);
        f->nodes = grown;
        f->cap = cap;
    }
    f->nodes[f->n++] = *n;
    return OK;
}

static uint32_t tokens_of(const struct forest *f, enum catalog_table kind,
                          const struct query *q)
{
    uint64_t most = f->st->replay_tokens ? f->st->replay_tokens : REPLAY_TOKENS;
    uint64_t at = row_uint(q, 8);
    switch (kind) {
    case CATALOG_BLOCKS:
        return f->st->block_tokens;
    case CATALOG_TAILS:
        return (uint32_t)(row_uint(q, 9) - at);
    case CATALOG_TIPS:
        break;
    }
    return (uint32_t)(at < most ? at : most);
}

static enum err load_rows(struct forest *f, enum catalog_table kind, const char *sql,
                          bool *more, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, f->at);
    query_int(&q, STEP_ROWS);
    int n = 0;
    for (bool row = true;; n++) {
        if ((rc = query_step(&q, &row, e)))
            return rc;
        if (!row)
            break;
        if ((rc = row_above(&q, 0, f->at, e)))
            return rc;
        struct node x = {
            .kind = kind,
            .id = row_int(&q, 0),
            .place = {row_int(&q, 1), row_uint(&q, 2), (uint32_t)row_int(&q, 3)},
            .commit = row_uint(&q, 4),
            .damaged = row_int(&q, 5) != 0,
            .block = row_int(&q, 6),
            .tail = row_int(&q, 7),
            .parent = -1,
        };
        x.tokens = tokens_of(f, kind, &q);
        if ((rc = push(f, &x, e)))
            return rc;
        f->at = x.id;
    }
    *more = n == STEP_ROWS;
    return OK;
}

#define PLACE "SELECT id, pack, off, pages, commit_no, damaged, "

static enum err load_step(struct forest *f, struct error *e)
{
    static const char *const sql[] = {
        PLACE "parent, 0, 0, 0 FROM blocks WHERE id > ? ORDER BY id LIMIT ?",
        PLACE "block, prev, first, last FROM tails WHERE id > ? ORDER BY id LIMIT ?",
        PLACE "block, tail, position, 0 FROM tips WHERE id > ? ORDER BY id LIMIT ?",
    };
    bool more;
    enum err rc = load_rows(f, (enum catalog_table)f->phase, sql[f->phase], &more, e);
    if (rc || more)
        return rc;
    f->at = 0;
    f->phase++;
    f->first[f->phase] = f->n;
    return OK;
}

/* ---- linking ----------------------------------------------------------------------------- */

int32_t forest_find(const struct forest *f, enum catalog_table kind, int64_t id)
{
    size_t lo = f->first[kind], hi = f->first[kind + 1];
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (f->nodes[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < f->first[kind + 1] && f->nodes[lo].id == id ? (int32_t)lo : -1;
}

/* Behind a tail that is gone the block is known still. */
static int32_t find_end(const struct forest *f, int64_t block, int64_t tail)
{
    int32_t at = tail ? forest_find(f, CATALOG_TAILS, tail) : -1;
    return at < 0 && block ? forest_find(f, CATALOG_BLOCKS, block) : at;
}

static void link_step(struct forest *f)
{
    size_t end = (size_t)f->at + 8 * (size_t)STEP_ROWS;
    for (; (size_t)f->at < end && (size_t)f->at < f->n; f->at++) {
        struct node *x = &f->nodes[f->at];
        x->parent = find_end(f, x->block, x->tail);
        if (x->parent >= 0)
            f->nodes[x->parent].n_children++;
    }
    if ((size_t)f->at < f->n)
        return;
    f->at = 0;
    f->phase = FOREST_HOLD;
}

/* ---- holding ----------------------------------------------------------------------------- */

/* Everything that `at` hangs on, up to what this session was seen to hold already. */
static size_t walk(struct forest *f, int32_t at, double weight, bool pinned)
{
    size_t n = 0;
    for (; at >= 0 && f->nodes[at].stamp != f->stamp; at = f->nodes[at].parent, n++) {
        struct node *x = &f->nodes[at];
        x->stamp = f->stamp;
        x->weight += weight;
        x->pinned = x->pinned || pinned;
        x->n_holders++;
    }
    return n;
}

/* The heads of the first session behind f->at, newest first: what only an older one means is
 * held, and worth nothing while the newest is there. *n: nodes walked. */
static enum err hold_session(struct forest *f, bool *found, size_t *n, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db,
                             "SELECT session, block, tail, tip FROM heads WHERE session ="
                             " (SELECT min(session) FROM heads WHERE session > ?)"
                             " ORDER BY generation DESC",
                             e);
    if (rc)
        return rc;
    query_int(&q, f->at);
    struct hold h = {0};
    *found = false;
    for (bool row = true;;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        if (!*found && (rc = row_above(&q, 0, f->at, e)))
            return rc;
        f->at = row_int(&q, 0);
        if (!*found && (rc = hold_read(f->st, f->at, &h, e)))
            return rc;
        double weight = *found ? 0 : hold_weight(&h, f->now_ms);
        f->stamp += !*found;
        *found = true;
        int64_t tip = row_int(&q, 3);
        *n += walk(f, tip ? forest_find(f, CATALOG_TIPS, tip) : -1, weight, h.pinned);
        *n += walk(f, find_end(f, row_int(&q, 1), row_int(&q, 2)), weight, h.pinned);
    }
}

static enum err hold_step(struct forest *f, struct error *e)
{
    for (size_t n = 0; n < STEP_WALK; n += 16) {
        bool found;
        enum err rc = hold_session(f, &found, &n, e);
        if (rc)
            return rc;
        if (!found) {
            f->phase = FOREST_READY;
            return OK;
        }
    }
    return OK;
}

/* ---- the whole --------------------------------------------------------------------------- */

enum err forest_step(struct forest *f, struct error *e)
{
    switch (f->phase) {
    case FOREST_BLOCKS:
    case FOREST_TAILS:
    case FOREST_TIPS:
        return load_step(f, e);
    case FOREST_LINK:
        link_step(f);
        return OK;
    case FOREST_HOLD:
        return hold_step(f, e);
    case FOREST_READY:
        break;
    }
    return OK;
}

enum err forest_load(struct forest *f, struct error *e)
{
    enum err rc = OK;
    while (!rc && f->phase != FOREST_READY)
        rc = forest_step(f, e);
    return rc;
}

void forest_pin(struct forest *f, int32_t at)
{
    for (; at >= 0 && !f->nodes[at].pinned; at = f->nodes[at].parent)
        f->nodes[at].pinned = true;
}
