/* Rows of the catalog; chain.c reads them as chains. */
#include "sessions/catalog.h"

#include <string.h>

#include "sessions/identity.h"
#include "sessions/schema.h"

/* ---- layouts ----------------------------------------------------------------------------- */

enum err layout_find(struct store *st, const struct state_layout *l, int64_t *id,
                     uint8_t root[HASH_BYTES], struct error *e)
{
    uint8_t spec[IDENTITY_SPEC_BYTES(STATE_MAX_PLANES)];
    size_t n_spec = IDENTITY_SPEC_BYTES(l->n_planes), n;
    identity_spec(l, spec);
    identity_root(st->space.identity_key, l, st->block_tokens, root);
    *id = 0;
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " LAYOUT_COLS ", tag FROM layouts"
                             " WHERE namespace = ? AND fingerprint = ?",
                             e);
    if (rc)
        return rc;
    query_int(&q, st->space.id);
    query_blob(&q, l->fingerprint, sizeof l->fingerprint);
    bool row;
    if ((rc = query_step(&q, &row, e)) || !row)
        return rc;
    if ((rc = row_check(&q, "layouts", e)))
        return rc;
    const void *have = row_blob(&q, 3, &n);
    if (n != n_spec || memcmp(have, spec, n) != 0)
        return err_set(e, ERR_CONFLICT,
                       "state layout: this model's fingerprint is known with other planes");
    *id = row_int(&q, 0);
    return OK;
}

enum err layout_next_id(struct store *st, int64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, "SELECT ifnull(max(id), 0) + 1 FROM layouts", e);
    bool row = false;
    if (!rc && !(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0);
    return rc;
}

enum err layout_add(struct store *st, int64_t id, const uint8_t fingerprint[STATE_KEY_BYTES],
                    const uint8_t *spec, size_t n_spec, const uint8_t root[HASH_BYTES],
                    struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db, "INSERT INTO layouts(" LAYOUT_COLS ", tag) VALUES(?,?,?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "layouts");
    query_int(&q, id);
    query_int(&q, st->space.id);
    query_blob(&q, fingerprint, STATE_KEY_BYTES);
    query_blob(&q, spec, n_spec);
    query_blob(&q, root, HASH_BYTES);
    return query_put(&q, e);
}

enum err catalog_next_id(struct store *st, enum catalog_table t, int64_t *out, struct error *e)
{
    static const char *const sql[] = {
        [CATALOG_BLOCKS] = "SELECT ifnull(max(id), 0) + 1 FROM blocks",
        [CATALOG_TAILS] = "SELECT ifnull(max(id), 0) + 1 FROM tails",
        [CATALOG_TIPS] = "SELECT ifnull(max(id), 0) + 1 FROM tips",
    };
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql[t], e);
    bool row = false;
    if (!rc && !(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0);
    return rc;
}

/* ---- extents ----------------------------------------------------------------------------- */

/* The columns numerics, lineage, pack, off, pages, commit_no, damaged from column i on. */
static void take_place(const struct query *q, int i, struct extent_row *x)
{
    snprintf(x->numerics, sizeof x->numerics, "%s", row_text(q, i) ? row_text(q, i) : "");
    x->lineage = (uint32_t)row_int(q, i + 1);
    x->place =
        (struct pack_place){row_int(q, i + 2), row_uint(q, i + 3), (uint32_t)row_int(q, i + 4)};
    x->commit = row_uint(q, i + 5);
    x->damaged = row_int(q, i + 6) != 0;
}

static void put_place(struct query *q, const struct extent_row *x)
{
    query_text(q, x->numerics);
    query_int(q, x->lineage);
    query_int(q, x->place.pack);
    query_uint(q, x->place.off);
    query_int(q, x->place.pages);
    query_uint(q, x->commit);
    query_int(q, x->damaged);
}

static enum err take_block(struct query *q, struct block_row *out, struct error *e)
{
    struct block_row r = {.x = {.id = row_int(q, 0), .layout = row_int(q, 1)},
                          .parent = row_int(q, 2),
                          .depth = row_uint(q, 3),
                          .used_ms = row_uint(q, 13)};
    enum err rc = row_check(q, "blocks", e);
    if (rc || (rc = row_bytes(q, 4, r.key, sizeof r.key, e)) ||
        (rc = row_bytes(q, 5, r.x.digest, sizeof r.x.digest, e)))
        return rc;
    take_place(q, 6, &r.x);
    *out = r;
    return OK;
}

static enum err take_tail(struct query *q, struct tail_row *out, struct error *e)
{
    struct tail_row r = {.x = {.id = row_int(q, 0), .layout = row_int(q, 1)},
                         .block = row_int(q, 2),
                         .prev = row_int(q, 3),
                         .first = row_uint(q, 4),
                         .last = row_uint(q, 5)};
    enum err rc = row_check(q, "tails", e);
    if (rc || (rc = row_bytes(q, 6, r.x.digest, sizeof r.x.digest, e)))
        return rc;
    take_place(q, 7, &r.x);
    *out = r;
    return OK;
}

static enum err take_tip(struct query *q, struct tip_row *out, struct error *e)
{
    struct tip_row r = {.x = {.id = row_int(q, 0), .layout = row_int(q, 1)},
                        .position = row_uint(q, 3),
                        .inside = row_int(q, 4) != 0,
                        .block = row_int(q, 5),
                        .tail = row_int(q, 6),
                        .digest_rows = row_uint(q, 8)};
    enum err rc = row_check(q, "tips", e);
    if (rc || (rc = row_bytes(q, 2, r.key, sizeof r.key, e)) ||
        (rc = row_bytes(q, 7, r.x.digest, sizeof r.x.digest, e)))
        return rc;
    take_place(q, 9, &r.x);
    *out = r;
    return OK;
}

/* Stands q on the row with this id. */
static enum err find_id(struct query *q, struct store *st, const char *sql, int64_t id,
                        struct error *e)
{
    enum err rc = query_init(q, &st->db, sql, e);
    if (rc)
        return rc;
    query_int(q, id);
    bool row;
    if ((rc = query_step(q, &row, e)))
        return rc;
    return row ? OK : err_set(e, ERR_NOTFOUND, "extent %lld is gone", (long long)id);
}

enum err block_read(struct store *st, int64_t id, struct block_row *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = find_id(&q, st, "SELECT " BLOCK_COLS ", tag FROM blocks WHERE id = ?", id, e);
    return rc ? rc : take_block(&q, out, e);
}

enum err tail_read(struct store *st, int64_t id, struct tail_row *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = find_id(&q, st, "SELECT " TAIL_COLS ", tag FROM tails WHERE id = ?", id, e);
    return rc ? rc : take_tail(&q, out, e);
}

enum err tip_read(struct store *st, int64_t id, struct tip_row *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = find_id(&q, st, "SELECT " TIP_COLS ", tag FROM tips WHERE id = ?", id, e);
    return rc ? rc : take_tip(&q, out, e);
}

enum err block_write(struct store *st, const struct block_row *r, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "INSERT OR REPLACE INTO blocks(" BLOCK_COLS ", tag)"
                             " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                             e);
    if (rc)
        return rc;
    query_tagged(&q, "blocks");
    query_int(&q, r->x.id);
    query_int(&q, r->x.layout);
    query_int(&q, r->parent);
    query_uint(&q, r->depth);
    query_blob(&q, r->key, sizeof r->key);
    query_blob(&q, r->x.digest, sizeof r->x.digest);
    put_place(&q, &r->x);
    query_uint(&q, r->used_ms);
    return query_put(&q, e);
}

enum err tail_write(struct store *st, const struct tail_row *r, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "INSERT OR REPLACE INTO tails(" TAIL_COLS ", tag)"
                             " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                             e);
    if (rc)
        return rc;
    query_tagged(&q, "tails");
    query_int(&q, r->x.id);
    query_int(&q, r->x.layout);
    query_int(&q, r->block);
    query_int(&q, r->prev);
    query_uint(&q, r->first);
    query_uint(&q, r->last);
    query_blob(&q, r->x.digest, sizeof r->x.digest);
    put_place(&q, &r->x);
    return query_put(&q, e);
}

enum err tip_write(struct store *st, const struct tip_row *r, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "INSERT OR REPLACE INTO tips(" TIP_COLS ", tag)"
                             " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                             e);
    if (rc)
        return rc;
    query_tagged(&q, "tips");
    query_int(&q, r->x.id);
    query_int(&q, r->x.layout);
    query_blob(&q, r->key, sizeof r->key);
    query_uint(&q, r->position);
    query_int(&q, r->inside);
    query_int(&q, r->block);
    query_int(&q, r->tail);
    query_blob(&q, r->x.digest, sizeof r->x.digest);
    query_uint(&q, r->digest_rows);
    put_place(&q, &r->x);
    return query_put(&q, e);
}

enum err block_find(struct store *st, int64_t layout, const uint8_t key[HASH_BYTES],
                    const char *numerics, struct block_row *out, size_t cap, size_t *n,
                    struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " BLOCK_COLS ", tag FROM blocks"
                             " WHERE layout = ?1 AND key = ?2 AND damaged = 0"
                             " ORDER BY lineage, numerics != ?3, id",
                             e);
    if (rc)
        return rc;
    query_int(&q, layout);
    query_blob(&q, key, HASH_BYTES);
    query_text(&q, numerics);
    *n = 0;
    for (bool row = true; *n < cap;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        /* A damaged row is as good as none. */
        if (take_block(&q, &out[*n], NULL) == OK)
            (*n)++;
    }
    return OK;
}

enum err block_find_same(struct store *st, int64_t layout, const uint8_t key[HASH_BYTES],
                         const uint8_t digest[HASH_BYTES], struct block_row *out, bool *found,
                         struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &st->db,
                   "SELECT " BLOCK_COLS ", tag FROM blocks"
                   " WHERE layout = ? AND key = ? AND digest = ? ORDER BY damaged, id",
                   e);
    if (rc)
        return rc;
    query_int(&q, layout);
    query_blob(&q, key, HASH_BYTES);
    query_blob(&q, digest, HASH_BYTES);
    *found = false;
    for (bool row = true; !*found;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        *found = take_block(&q, out, NULL) == OK;
    }
    return OK;
}

enum err tip_find(struct store *st, int64_t layout, const uint8_t key[HASH_BYTES],
                  const char *numerics, struct tip_row *out, bool *found, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " TIP_COLS ", tag FROM tips"
                             " WHERE layout = ?1 AND key = ?2 AND damaged = 0"
                             " ORDER BY lineage, numerics != ?3, id DESC",
                             e);
    if (rc)
        return rc;
    query_int(&q, layout);
    query_blob(&q, key, HASH_BYTES);
    query_text(&q, numerics);
    *found = false;
    for (bool row = true; !*found;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        *found = take_tip(&q, out, NULL) == OK;
    }
    return OK;
}

enum err catalog_set_aside(struct store *st, enum catalog_table t, int64_t id, struct error *e)
{
    struct block_row b;
    struct tail_row l;
    struct tip_row p;
    enum err rc;
    st->seen.extents_damaged++;
    switch (t) {
    case CATALOG_BLOCKS:
        if ((rc = block_read(st, id, &b, e)))
            return rc;
        b.x.damaged = true;
        return block_write(st, &b, e);
    case CATALOG_TAILS:
        if ((rc = tail_read(st, id, &l, e)))
            return rc;
        l.x.damaged = true;
        return tail_write(st, &l, e);
    case CATALOG_TIPS:
        break;
    }
    if ((rc = tip_read(st, id, &p, e)))
        return rc;
    p.x.damaged = true;
    return tip_write(st, &p, e);
}

/* ---- heads ------------------------------------------------------------------------------- */

static void take_head(const struct query *q, struct head_row *out)
{
    *out = (struct head_row){
        .session = row_int(q, 0),
        .generation = row_uint(q, 2),
        .layout = row_int(q, 3),
        .position = row_uint(q, 4),
        .block = row_int(q, 5),
        .tail = row_int(q, 6),
        .tip = row_int(q, 7),
        .lineage = (uint32_t)row_int(q, 9),
        .commit = row_uint(q, 10),
    };
    snprintf(out->numerics, sizeof out->numerics, "%s", row_text(q, 8));
}

enum err head_row_read(struct store *st, int64_t session, int age, struct head_row *out,
                       bool *found, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " HEAD_COLS ", tag FROM heads WHERE session = ?"
                             " ORDER BY generation DESC LIMIT 1 OFFSET ?",
                             e);
    if (rc)
        return rc;
    query_int(&q, session);
    query_int(&q, age);
    *found = false;
    bool row;
    if ((rc = query_step(&q, &row, e)) || !row)
        return rc;
    if (row_check(&q, "heads", NULL))
        return OK;
    *found = true;
    take_head(&q, out);
    return OK;
}

enum err head_row_naming(struct store *st, enum catalog_table t, int64_t id,
                         struct head_row *out, bool *found, struct error *e)
{
    static const char *const sql[] = {
        [CATALOG_BLOCKS] = "SELECT " HEAD_COLS ", tag FROM heads WHERE block = ?",
        [CATALOG_TAILS] = "SELECT " HEAD_COLS ", tag FROM heads WHERE tail = ?",
        [CATALOG_TIPS] = "SELECT " HEAD_COLS ", tag FROM heads WHERE tip = ?",
    };
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql[t], e);
    if (rc)
        return rc;
    query_int(&q, id);
    *found = false;
    for (bool row = true; !*found;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        *found = row_check(&q, "heads", NULL) == OK;
    }
    take_head(&q, out);
    return OK;
}

enum err head_row_write(struct store *st, const struct head_row *r, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "INSERT OR REPLACE INTO heads(" HEAD_COLS ", tag)"
                             " VALUES(?,?,?,?,?,?,?,?,?,?,?,?)",
                             e);
    if (rc)
        return rc;
    query_tagged(&q, "heads");
    query_int(&q, r->session);
    query_int(&q, (int64_t)(r->generation % 2));
    query_uint(&q, r->generation);
    query_int(&q, r->layout);
    query_uint(&q, r->position);
    query_int(&q, r->block);
    query_int(&q, r->tail);
    query_int(&q, r->tip);
    query_text(&q, r->numerics);
    query_int(&q, r->lineage);
    query_uint(&q, r->commit);
    return query_put(&q, e);
}

/* Whether the one-column query says 1 for this id. */
static enum err is_used(struct store *st, const char *sql, int64_t id, bool *used,
                        struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, id);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *used = row && row_int(&q, 0) != 0;
    return rc;
}

static enum err drop_id(struct store *st, const char *sql, int64_t id, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, id);
    return query_run(&q, e);
}

/* Deletes a tip that no head means any more. *tail: the one it stood behind. */
static enum err release_tip(struct store *st, int64_t id, struct pack_place *dropped,
                            size_t cap, size_t *n, int64_t *tail, struct error *e)
{
    bool used;
    struct tip_row tip;
    enum err rc = is_used(st, "SELECT EXISTS(SELECT 1 FROM heads WHERE tip = ?)", id, &used, e);
    *tail = 0;
    if (rc || used || *n == cap || tip_read(st, id, &tip, NULL))
        return rc;
    dropped[(*n)++] = tip.x.place;
    *tail = tip.tail;
    return drop_id(st, "DELETE FROM tips WHERE id = ?", id, e);
}

/* Deletes a tail that nothing means any more, and those before it likewise. */
static enum err release_tails(struct store *st, int64_t id, struct pack_place *dropped,
                              size_t cap, size_t *n, struct error *e)
{
    while (id && *n < cap) {
        bool used;
        struct tail_row tail;
        enum err rc = is_used(st,
                              "SELECT EXISTS(SELECT 1 FROM heads WHERE tail = ?1)"
                              " OR EXISTS(SELECT 1 FROM tips WHERE tail = ?1)"
                              " OR EXISTS(SELECT 1 FROM tails WHERE prev = ?1)",
                              id, &used, e);
        if (rc || used || tail_read(st, id, &tail, NULL))
            return rc;
        dropped[(*n)++] = tail.x.place;
        if ((rc = drop_id(st, "DELETE FROM tails WHERE id = ?", id, e)))
            return rc;
        id = tail.prev;
    }
    return OK;
}

/* A damaged row would stay the newest for ever. */
static enum err drop_damaged_head(struct store *st, int64_t session, int slot, struct error *e)
{
    {
        AUTO(query) struct query q = {0};
        enum err rc = query_init(
            &q, &st->db, "SELECT " HEAD_COLS ", tag FROM heads WHERE session = ? AND slot = ?",
            e);
        if (rc)
            return rc;
        query_int(&q, session);
        query_int(&q, slot);
        bool row;
        if ((rc = query_step(&q, &row, e)) || !row || row_check(&q, "heads", NULL) == OK)
            return rc;
    }
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &st->db, "DELETE FROM heads WHERE session = ? AND slot = ?", e);
    if (rc)
        return rc;
    query_int(&q, session);
    query_int(&q, slot);
    return query_run(&q, e);
}

enum err head_row_push(struct store *st, struct head_row *r, struct pack_place *dropped,
                       size_t cap, size_t *n, struct error *e)
{
    struct head_row newest, oldest;
    bool has_newest, has_oldest;
    *n = 0;
    enum err rc;
    if ((rc = drop_damaged_head(st, r->session, 0, e)) ||
        (rc = drop_damaged_head(st, r->session, 1, e)) ||
        (rc = head_row_read(st, r->session, 0, &newest, &has_newest, e)) ||
        (rc = head_row_read(st, r->session, 1, &oldest, &has_oldest, e)))
        return rc;
    r->generation = has_newest ? newest.generation + 1 : 1;
    if ((rc = head_row_write(st, r, e)) || !has_oldest)
        return rc;
    int64_t behind_tip = 0;
    if (oldest.tip && (rc = release_tip(st, oldest.tip, dropped, cap, n, &behind_tip, e)))
        return rc;
    if ((rc = release_tails(st, oldest.tail, dropped, cap, n, e)))
        return rc;
    return behind_tip != oldest.tail ? release_tails(st, behind_tip, dropped, cap, n, e) : OK;
}
