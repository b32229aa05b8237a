/* Namespaces: one data key each, wrapped by the master key; and forgetting it. */
#include <stdlib.h>
#include <string.h>

#include "sessions/migrate.h"
#include "sessions/pack.h"
#include "sessions/scan.h"
#include "sessions/schema.h"
#include "sessions/store_internal.h"

/* ---- wrapping ---------------------------------------------------------------------------- */

/* Nonce, wrapped key and tag in a row: what the database and every pack's superblock hold. */
static void wrap_extent(const struct store *st, const struct store_namespace *n,
                        struct crypto_extent *x)
{
    crypto_derive(st->master, "namespace key", n->uuid, sizeof n->uuid, x->key);
    memcpy(x->nonce, n->wrapped, sizeof x->nonce);
}

static void wrap(const struct store *st, struct store_namespace *n)
{
    struct crypto_extent x;
    crypto_random(n->wrapped, CRYPTO_NONCE_BYTES);
    wrap_extent(st, n, &x);
    uint8_t *sealed = n->wrapped + CRYPTO_NONCE_BYTES;
    crypto_seal(&x, 0, n->key, sizeof n->key, sealed, sealed + CRYPTO_KEY_BYTES);
    crypto_wipe(&x, sizeof x);
}

enum err namespace_unwrap(const struct store *st, struct store_namespace *n, struct error *e)
{
    struct crypto_extent x;
    wrap_extent(st, n, &x);
    const uint8_t *sealed = n->wrapped + CRYPTO_NONCE_BYTES;
    enum err rc =
        crypto_open(&x, 0, sealed, sizeof n->key, sealed + CRYPTO_KEY_BYTES, n->key, e);
    crypto_wipe(&x, sizeof x);
    if (rc)
        return err_wrap(e, rc, "key of namespace %s", n->name);
    crypto_derive(n->key, "identity", NULL, 0, n->identity_key);
    crypto_derive(n->key, "row digest", NULL, 0, n->digest_key);
    crypto_derive(n->key, "extent header", NULL, 0, n->keys.header);
    crypto_derive(n->key, "chunk tag", NULL, 0, n->keys.tag);
    crypto_derive(n->key, "chunk seal", NULL, 0, n->keys.seal);
    return OK;
}

/* A fresh uuid and data key. */
static enum err make(const struct store *st, struct store_namespace *n, struct error *e)
{
    crypto_random(n->uuid, sizeof n->uuid);
    crypto_random(n->key, sizeof n->key);
    wrap(st, n);
    return namespace_unwrap(st, n, e);
}

/* ---- rows -------------------------------------------------------------------------------- */

/* Also replaces the row with this id. */
static enum err write_row(struct store *st, const struct store_namespace *n, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db,
        "INSERT OR REPLACE INTO namespaces(" NAMESPACE_COLS ", tag) VALUES(?,?,?,?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "namespaces");
    query_int(&q, n->id);
    query_blob(&q, n->uuid, sizeof n->uuid);
    query_text(&q, n->name);
    query_int(&q, n->algorithm);
    query_blob(&q, n->wrapped, sizeof n->wrapped);
    query_uint(&q, n->created_ms);
    return query_put(&q, e);
}

/* Loads the namespace of this name; *found says whether it was there. A damaged row may be the
 * one that is wanted: making another in its place would hide every pack. */
static enum err load_row(struct store *st, struct store_namespace *n, bool *found,
                         struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " NAMESPACE_COLS ", tag FROM namespaces ORDER BY id", e);
    *found = false;
    for (bool row = true; !rc;) {
        if ((rc = query_step(&q, &row, e)) || !row || (rc = row_check(&q, "namespaces", e)))
            break;
        const char *name = row_text(&q, 2);
        if (*found || !name || strcmp(name, n->name) != 0)
            continue;
        if ((rc = row_bytes(&q, 1, n->uuid, sizeof n->uuid, e)) ||
            (rc = row_bytes(&q, 4, n->wrapped, sizeof n->wrapped, e)))
            break;
        n->id = row_int(&q, 0);
        n->algorithm = (enum extent_algorithm)row_int(&q, 3);
        n->created_ms = row_uint(&q, 5);
        *found = true;
    }
    if (!rc && *found && n->algorithm != EXTENT_TAGGED && n->algorithm != EXTENT_SEALED)
        rc = err_set(e, ERR_UNSUPPORTED, "namespace %s: algorithm %d is not of this build",
                     n->name, (int)n->algorithm);
    return rc || !*found ? rc : namespace_unwrap(st, n, e);
}

static enum err next_id(struct store *st, int64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, "SELECT ifnull(max(id), 0) + 1 FROM namespaces", e);
    bool row = false;
    if (!rc && !(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0);
    return rc;
}

enum err namespace_open(struct store *st, enum store_encrypt encrypt, struct error *e)
{
    struct store_namespace *n = &st->space;
    bool found;
    enum err rc = load_row(st, n, &found, e);
    if (rc)
        return rc;
    enum extent_algorithm had = found ? n->algorithm : EXTENT_TAGGED;
    n->algorithm = encrypt == STORE_ENCRYPT_AS_IS ? had
                   : encrypt == STORE_ENCRYPT_ON  ? EXTENT_SEALED
                                                  : EXTENT_TAGGED;
    if (found)
        return n->algorithm == had ? OK : write_row(st, n, e);
    n->created_ms = store_now_ms(st);
    /* Packs that are older than this database may have the key still. */
    if ((rc = next_id(st, &n->id, e)) || (rc = scan_namespace(st, &found, e)) ||
        (!found && (rc = make(st, n, e))))
        return rc;
    return write_row(st, n, e);
}

/* ---- erasing ----------------------------------------------------------------------------- */

static enum err run(struct store *st, const char *sql, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, st->space.id);
    return query_run(&q, e);
}

#define LAYOUTS "(SELECT id FROM layouts WHERE namespace = ?1)"

static enum err drop_rows(struct store *st, struct error *e)
{
    static const char *const drops[] = {
        "DELETE FROM heads WHERE layout IN " LAYOUTS,
        "DELETE FROM tips WHERE layout IN " LAYOUTS,
        "DELETE FROM tails WHERE layout IN " LAYOUTS,
        "DELETE FROM blocks WHERE layout IN " LAYOUTS,
        "DELETE FROM packs WHERE namespace = ?1",
        "DELETE FROM layouts WHERE namespace = ?1",
    };
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &st->db, e);
    for (size_t i = 0; i < sizeof drops / sizeof drops[0] && !rc; i++)
        rc = run(st, drops[i], e);
    return rc ? rc : txn_commit(&t, e);
}

enum err namespace_erase(struct store *st, uint64_t *n_packs, struct error *e)
{
    struct store_namespace fresh = st->space;
    uint64_t n = 0;
    st->n_collections++; /* plans made before are made again */
    st->n_freed = 0;     /* pack numbers may be used again */
    st->freed_bytes = 0;
    enum err rc = drop_rows(st, e);
    if (!rc && !(rc = scan_erase(st, &n, e)) && !(rc = make(st, &fresh, e)) &&
        !(rc = write_row(st, &fresh, e))) {
        st->space = fresh;
        rc = migrate_drop_copies(&st->db, e);
    }
    /* Free pages hold old bytes; only a new file has none. */
    if (!rc)
        rc = db_exec(&st->db, "VACUUM", e);
    crypto_wipe(&fresh, sizeof fresh);
    if (!rc)
        rc = db_exec(&st->db, "PRAGMA wal_checkpoint(TRUNCATE)", e);
    if (rc)
        return err_wrap(e, rc, "erase namespace %s", st->space.name);
    if (n_packs)
        *n_packs = n;
    return OK;
}
