#include "sessions/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/aio.h"
#include "base/hash.h"
#include "base/pool.h"
#include "base/workers.h"
#include "sessions/migrate.h"
#include "sessions/reader.h"
#include "sessions/scan.h"
#include "sessions/schema.h"
#include "sessions/search.h"
#include "sessions/space.h"
#include "sessions/store_internal.h"

#define MIN_PARALLEL (1u << 20) /* fewer bytes are opened where they are, in 0.4 ms */
#define MAX_WORKERS 16u

uint64_t store_now_ms(const struct store *st)
{
    int64_t t = clock_wall_ms(st->clock);
    return t < 0 ? 0 : (uint64_t)t;
}

/* ---- meta -------------------------------------------------------------------------------- */

enum err meta_read(struct store *st, const char *key, void *dst, size_t n, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &st->db, "SELECT " META_COLS ", tag FROM meta WHERE key = ?", e);
    if (rc)
        return rc;
    query_text(&q, key);
    bool row;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    if (!row)
        return err_set(e, ERR_CORRUPT, "database: meta has no %s", key);
    if ((rc = row_check(&q, "meta", e)))
        return rc;
    return row_bytes(&q, 1, dst, n, e);
}

enum err meta_write(struct store *st, const char *key, const void *src, size_t n,
                    struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, "INSERT OR REPLACE INTO meta VALUES(?, ?, ?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "meta");
    query_text(&q, key);
    query_blob(&q, src, n);
    return query_put(&q, e);
}

/* ---- keys -------------------------------------------------------------------------------- */

/* The store's uuid before there is a key to check its row with. *found false: the database is
 * empty, and new. */
static enum err read_uuid(struct store *st, bool *found, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT (SELECT value FROM meta WHERE key = 'store'),"
                             " EXISTS(SELECT 1 FROM meta) OR EXISTS(SELECT 1 FROM sessions)",
                             e);
    bool row = false;
    if (rc || (rc = query_step(&q, &row, e)))
        return rc;
    *found = row_int(&q, 1) != 0;
    return *found ? row_bytes(&q, 0, st->uuid, sizeof st->uuid, e) : OK;
}

static enum err load_master(struct store *st, const struct store_options *o, bool may_make,
                            struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = o->key_path ? fs_path(path, sizeof path, e, "%s", o->key_path)
                              : fs_path(path, sizeof path, e, "%s/%s", o->state_dir, KEYS_FILE);
    struct crypto_cost cost = o->passphrase_cost.ops ? o->passphrase_cost : CRYPTO_COST_DEFAULT;
    if (!rc)
        rc = keys_read(path, o->passphrase, st->master, e);
    if (rc != ERR_NOTFOUND)
        return rc;
    if (may_make)
        return keys_make(path, o->passphrase, cost, st->master, e);
    return err_set(e, ERR_CORRUPT, "%s is missing: without it this store cannot be read", path);
}

static void derive_store_keys(struct store *st)
{
    crypto_derive(st->master, "database rows", st->uuid, sizeof st->uuid, st->db.row_key);
    crypto_derive(st->master, "pack superblock", NULL, 0, st->superblock_key);
}

/* ---- opening ----------------------------------------------------------------------------- */

/* The first transaction of a new store: who it is and what it was made with. */
static enum err found_store(struct store *st, const struct store_options *o, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &st->db, e);
    if (rc)
        return rc;
    uint64_t zero = 0;
    uint32_t block_tokens = o->block_tokens ? o->block_tokens : STORE_BLOCK_TOKENS;
    st->block_tokens = block_tokens;
    if ((rc = meta_write(st, "store", st->uuid, sizeof st->uuid, e)) ||
        (rc = meta_write(st, "block_tokens", &block_tokens, sizeof block_tokens, e)) ||
        (rc = meta_write(st, "state_commit", &zero, sizeof zero, e)) ||
        (rc = namespace_open(st, o->encrypt, e)))
        return rc;
    return txn_commit(&t, e);
}

/* version: of the schema as it was found. */
static enum err open_identity(struct store *st, const struct store_options *o, int64_t version,
                              struct error *e)
{
    bool found;
    enum err rc = read_uuid(st, &found, e);
    if (rc || (rc = load_master(st, o, !found, e)))
        return rc;
    if (!found)
        crypto_random(st->uuid, sizeof st->uuid);
    derive_store_keys(st);
    if (version > 0 && version < SCHEMA_VERSION && (rc = migrate(&st->db, version, e)))
        return rc;
    if (!found && (rc = found_store(st, o, e)))
        return rc;
    uint8_t uuid[STORE_UUID_BYTES];
    if ((rc = meta_read(st, "store", uuid, sizeof uuid, e)))
        return err_wrap(e, rc, "the master key in %s does not belong to this store",
                        o->state_dir);
    if ((rc = meta_read(st, "block_tokens", &st->block_tokens, sizeof st->block_tokens, e)))
        return rc;
    if (o->block_tokens && o->block_tokens != st->block_tokens)
        return err_set(e, ERR_INVAL, "block size %u: this store was made with %u",
                       o->block_tokens, st->block_tokens);
    return namespace_open(st, o->encrypt, e);
}

static enum err check_local(const char *path, struct error *e)
{
    bool network;
    const char *name;
    enum err rc = fs_is_network(path, &network, &name, e);
    if (!rc && network)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "%s lies on a network file system (%s), where locks and fsync promise "
                     "too little: choose a local folder",
                     path, name);
    return rc;
}

/* The folder that a path lies in. */
static enum err folder_of(const char *path, char *out, size_t cap, struct error *e)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return fs_path(out, cap, e, ".");
    return fs_path(out, cap, e, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

/* A folder that cannot be written would show at the first state commit only. */
static enum err check_writable(const char *folder, struct error *e)
{
    if (faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS))
        return err_sys(e, errno, "folder %s", folder);
    return OK;
}

static enum err open_folders(struct store *st, const struct store_options *o, struct error *e)
{
    char folder[FS_PATH_BYTES], lock[FS_PATH_BYTES];
    enum err rc = folder_of(o->db_path, folder, sizeof folder, e);
    if (!rc)
        rc = fs_path(lock, sizeof lock, e, "%s.lock", o->db_path);
    if (!rc)
        rc = fs_path(st->packs_dir, sizeof st->packs_dir, e, "%s", o->packs_dir);
    if (rc || (rc = fs_mkdir_p(folder, e)) || (rc = fs_mkdir_p(o->packs_dir, e)) ||
        (rc = fs_mkdir_p(o->state_dir, e)) || (rc = check_local(folder, e)) ||
        (rc = check_local(o->packs_dir, e)) || (rc = check_writable(folder, e)) ||
        (rc = check_writable(o->packs_dir, e)))
        return rc;
    rc = fs_lock(lock, &st->lock_fd, e);
    if (rc == ERR_BUSY)
        return err_set(e, ERR_BUSY, "%s is in use by another process", o->db_path);
    return rc ? rc : witness_read(st->lock_fd, o->db_path, &st->seen.wal_lost, e);
}

static enum err check_options(const struct store_options *o, struct error *e)
{
    size_t n_name = o->namespace ? strlen(o->namespace) : 1;
    if (n_name == 0 || n_name >= sizeof((struct store_namespace *)0)->name)
        return err_set(e, ERR_INVAL, "namespace \"%.70s\": want 1 to 63 bytes", o->namespace);
    uint32_t b = o->block_tokens;
    if (b && (b > 65536 || (b & (b - 1))))
        return err_set(e, ERR_INVAL, "block size %u: want a power of two up to 65536", b);
    return OK;
}

static enum err store_start(struct store *st, const struct store_options *o, struct error *e)
{
    struct aio_options io = o->aio;
    int64_t version;
    if (!io.depth)
        io.depth = READER_DEPTH;
    enum err rc = open_folders(st, o, e);
    if (rc || (rc = db_open(&st->db, o->db_path, e)) || (rc = search_register(&st->db, e)) ||
        (rc = schema_version(&st->db, &version, e)) ||
        (version == 0 && (rc = schema_create(&st->db, e))) ||
        (rc = aio_open(&io, &st->aio, e)) || (rc = open_identity(st, o, version, e)) ||
        (rc = witness_compare(st, e)) || (rc = search_open(st, e)) || (rc = scan_packs(st, e)))
        return rc;
    struct space space;
    if ((rc = space_read(st, &space, e)) || (rc = witness_open(st->lock_fd, o->db_path, e)))
        return rc;
    st->is_open = true;
    return OK;
}

enum err store_open(struct store **out, const struct store_options *o, struct error *e)
{
    enum err rc = check_options(o, e);
    if (rc)
        return rc;
    struct store *st = crypto_secret_new(sizeof *st);
    if (!st)
        return err_set(e, ERR_NOMEM, "store: out of memory");
    st->lock_fd = -1;
    if (!(st->packs = packs_new())) {
        store_close(st);
        return err_set(e, ERR_NOMEM, "store: out of memory");
    }
    if (o->namespace)
        snprintf(st->space.name, sizeof st->space.name, "%s", o->namespace);
    else
        snprintf(st->space.name, sizeof st->space.name, "uid-%u", (unsigned)getuid());
    st->clock = o->clock ? o->clock : clock_real();
    st->pack_bytes = o->pack_bytes ? o->pack_bytes : STORE_PACK_BYTES;
    st->no_direct_io = o->no_direct_io;
    st->quota_bytes = o->quota_bytes;
    ulid_init(&st->ulid, st->clock);
    if ((rc = store_start(st, o, e))) {
        store_close(st);
        return err_wrap(e, rc, "store");
    }
    *out = st;
    return OK;
}

struct workers *store_workers(struct store *st, uint64_t bytes)
{
    if (bytes < MIN_PARALLEL)
        return NULL;
    if (!st->workers) {
        uint32_t n = pool_cpus();
        (void)!workers_new(n < MAX_WORKERS ? n : MAX_WORKERS, &st->workers, NULL);
    }
    return st->workers;
}

void store_close(struct store *st)
{
    if (!st)
        return;
    pack_flush_freed(st);
    pack_close_all(st);
    aio_close(st->aio);
    workers_free(st->workers);
    page_buffer_fini(&st->bounces);
    page_buffer_fini(&st->extent);
    page_buffer_fini(&st->scratch);
    /* One that did not open all the way has told nobody what is lost, and may not know it: it
     * leaves the witness as it was, and so the -wal. */
    if (st->db.handle && (!st->is_open || witness_close(st->lock_fd, NULL)))
        db_keep_wal(&st->db);
    db_close(&st->db);
    if (st->lock_fd >= 0)
        close(st->lock_fd);
    crypto_secret_free(st, sizeof *st);
}

const char *store_namespace_name(const struct store *st)
{
    return st->space.name;
}

uint32_t store_block_tokens(const struct store *st)
{
    return st->block_tokens;
}

bool store_encrypts(const struct store *st)
{
    return st->space.algorithm == EXTENT_SEALED;
}

static uint64_t count(struct store *st, const char *sql)
{
    AUTO(query) struct query q = {0};
    bool row = false;
    if (query_init(&q, &st->db, sql, NULL) || query_step(&q, &row, NULL) || !row)
        return 0;
    return row_uint(&q, 0);
}

void store_count(struct store *st, struct store_counters *out)
{
    *out = st->seen;
    out->rows_damaged = st->db.rows_damaged;
    out->sessions = count(st, "SELECT count(*) FROM sessions");
    out->sessions_damaged = count(st, "SELECT count(*) FROM sessions WHERE damaged");
    out->packs = count(st, "SELECT count(*) FROM packs");
    out->pack_bytes = count(st, "SELECT ifnull(sum(length), 0) FROM packs");
    out->blocks = count(st, "SELECT count(*) FROM blocks WHERE NOT damaged");
    out->tails = count(st, "SELECT count(*) FROM tails WHERE NOT damaged");
    out->tips = count(st, "SELECT count(*) FROM tips WHERE NOT damaged");
}

void store_note_lost(struct store *st, const char *id)
{
    if (!ulid_is_valid(id, strlen(id)) || st->n_lost == STORE_MAX_LOST)
        return;
    for (size_t i = 0; i < st->n_lost; i++)
        if (strcmp(st->lost[i], id) == 0)
            return;
    memcpy(st->lost[st->n_lost++], id, ULID_CHARS + 1);
}

void store_lost_sessions(const struct store *st, store_name_fn *fn, void *user)
{
    for (size_t i = 0; i < st->n_lost; i++)
        fn(user, st->lost[i]);
}
