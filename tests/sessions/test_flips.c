/* Every byte that the store has written is under a check.
 *
 * Packs: each byte of a pack that is sealed, open, encrypted or not is flipped in turn, and
 * what it belongs to is read again as a restore or a start would: superblock, an extent's
 * header, a chunk, the list, the trailer. No byte belongs to nothing. Rows: each byte of each
 * column of each row of every table is flipped behind the store's back, and the row's tag is
 * compared.
 *
 * What is served then is the business of test_pack.c, test_rows.c and test_crypt.c. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/fs.h"
#include "sessions/hold.h"
#include "sessions/pack_internal.h"
#include "sessions/schema.h"
#include "tests/support/store_sample.h"
#include "tests/support/test.h"

struct flip_test {
    struct store_fixture f;
    struct state_layout l;
    char id[SESSION_ID_CAP];
};

static size_t stride(size_t fast)
{
    return getenv("AGENTD_SLOW") ? 1 : fast;
}

static void open_store(struct flip_test *t, enum layout_shape shape, enum store_encrypt encrypt,
                       uint64_t pack_bytes)
{
    struct error e;
    store_fixture_init_in_memory(&t->f);
    t->f.options.encrypt = encrypt;
    t->f.options.pack_bytes = pack_bytes;
    assert_ok(store_fixture_open(&t->f, &e), &e);
    state_layout_make(&t->l, shape);
}

/* ---- packs ------------------------------------------------------------------------------- */

/* A pack in memory, and where its extents begin. */
struct pack_copy {
    int fd; /* a memory file */
    uint64_t size;
    uint8_t uuid[STORE_UUID_BYTES];
    uint64_t at[64], end[64];
    size_t n;
    bool sealed;
};

static enum err see_extent(void *user, const struct extent *x, uint64_t off, struct error *e)
{
    struct pack_copy *p = user;
    (void)e;
    assert_true(p->n < 64);
    p->at[p->n] = off;
    p->end[p->n++] = off + (uint64_t)x->pages * EXTENT_PAGE;
    p->sealed = p->sealed || x->kind == EXTENT_LIST;
    return OK;
}

static enum err read_super(const struct flip_test *t, int fd, struct pack_super *out)
{
    uint8_t page[EXTENT_PAGE];
    enum err rc = fs_pread(fd, "pack", page, sizeof page, 0, NULL);
    return rc ? rc : pack_super_decode(page, t->f.st->superblock_key, out, NULL);
}

static void copy_pack(struct flip_test *t, int number, struct pack_copy *p)
{
    char path[160];
    struct error e;
    struct pack_super super;
    AUTO(buf) struct buf b = BUF_INIT(1 << 26);
    snprintf(path, sizeof path, "%s/%08d.pack", t->f.packs, number);
    assert_ok(fs_read_file(path, &b, &e), &e);
    *p = (struct pack_copy){.fd = memfd_create("pack", MFD_CLOEXEC), .size = b.len};
    assert_ok(fs_pwrite(p->fd, "copy", b.data, b.len, 0, &e), &e);
    assert_int_equal(read_super(t, p->fd, &super), OK);
    memcpy(p->uuid, super.uuid, sizeof p->uuid);
    struct pack_walk w = {
        .header_key = t->f.st->space.keys.header, .uuid = p->uuid, .fn = see_extent, .user = p};
    assert_ok(pack_walk(&w, p->fd, EXTENT_PAGE, p->size, &e), &e);
    assert_int_equal(w.n_damaged, 0);
    /* Superblock, extents, trailer: one behind the other, and nothing else. */
    uint64_t end = EXTENT_PAGE;
    for (size_t i = 0; i < p->n; i++) {
        assert_int_equal(p->at[i], end);
        end = p->end[i];
    }
    assert_int_equal(p->size, end + (p->sealed ? EXTENT_PAGE : 0));
}

/* The extent at off, whole and in its place. */
static enum err read_extent(struct flip_test *t, const struct pack_copy *p, size_t i)
{
    struct extent x;
    size_t n = (size_t)(p->end[i] - p->at[i]);
    AUTO_FREE uint8_t *bytes = malloc(n);
    enum err rc = fs_pread(p->fd, "copy", bytes, n, p->at[i], NULL);
    uint32_t pages = rc ? 0 : extent_header_pages(bytes);
    if (rc || !pages || (size_t)pages * EXTENT_PAGE > n)
        return ERR_CORRUPT;
    rc = extent_decode(bytes, (size_t)pages * EXTENT_PAGE, t->f.st->space.keys.header, p->uuid,
                       p->at[i], &x, NULL);
    return rc ? rc : pack_check_extent(p->fd, &x, p->at[i], &t->f.st->space.keys, NULL);
}

/* Reads what the byte at off belongs to. */
static enum err read_around(struct flip_test *t, const struct pack_copy *p, uint64_t off)
{
    struct pack_super super;
    uint64_t n_damaged = 0;
    if (off < EXTENT_PAGE)
        return read_super(t, p->fd, &super);
    for (size_t i = 0; i < p->n; i++)
        if (off >= p->at[i] && off < p->end[i])
            return read_extent(t, p, i);
    enum err rc =
        pack_check_list(p->fd, p->uuid, &t->f.st->space.keys, p->size, &n_damaged, NULL);
    return rc ? rc : n_damaged ? ERR_CORRUPT : OK;
}

static void flip(int fd, uint64_t off, uint8_t mask)
{
    uint8_t b;
    assert_int_equal(pread(fd, &b, 1, (off_t)off), 1);
    b ^= mask;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)off), 1);
}

static void flip_all(struct flip_test *t, int number, bool *sealed)
{
    struct pack_copy p;
    copy_pack(t, number, &p);
    *sealed = p.sealed;
    for (uint64_t off = 0; off < p.size; off += stride(101)) {
        uint8_t mask = (uint8_t)(1u << (off / 7 + off) % 8);
        flip(p.fd, off, mask);
        if (read_around(t, &p, off) == OK)
            fail_msg("pack %d: byte %llu flipped by 0x%x, and nothing is seen", number,
                     (unsigned long long)off, mask);
        flip(p.fd, off, mask);
        if (off % 4096 < stride(101))
            assert_int_equal(read_around(t, &p, off), OK);
    }
    close(p.fd);
}

static void flip_packs(enum layout_shape shape, enum store_encrypt encrypt)
{
    static struct flip_test t;
    struct error e;
    bool first_sealed, last_sealed;
    open_store(&t, shape, encrypt, 90000);
    fixture_session(&t.f, "s", t.id);
    /* Blocks, tails and tips; the first pack gets full on the way. */
    struct store_counters c = {0};
    for (uint64_t at = 0; c.packs < 2; at += 11) {
        assert_ok(fixture_append(t.f.st, t.id, (uint32_t)at, 11, SEGMENT_INPUT, &e), &e);
        assert_ok(state_save(t.f.st, t.id, &t.l, at, at + 11, true, NULL, &e), &e);
        store_count(t.f.st, &c);
    }
    flip_all(&t, 1, &first_sealed);
    flip_all(&t, (int)c.packs, &last_sealed);
    assert_true(first_sealed && !last_sealed);
    store_fixture_fini(&t.f);
}

static void ds4_146_plain_packs(void **state)
{
    (void)state;
    flip_packs(LAYOUT_ODD, STORE_ENCRYPT_OFF);
    flip_packs(LAYOUT_TIP, STORE_ENCRYPT_OFF);
}

static void ds4_146_encrypted_packs(void **state)
{
    (void)state;
    flip_packs(LAYOUT_ODD, STORE_ENCRYPT_ON);
    flip_packs(LAYOUT_TIP, STORE_ENCRYPT_ON);
}

/* ---- rows -------------------------------------------------------------------------------- */

static sqlite3_stmt *prepare(sqlite3 *db, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static sqlite3_stmt *prepare(sqlite3 *db, const char *fmt, ...)
{
    char sql[256];
    sqlite3_stmt *q;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sql, sizeof sql, fmt, ap);
    va_end(ap);
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    return q;
}

static void run(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

/* The value of a column, and its bytes. */
struct value {
    int type;
    int64_t number;
    uint8_t bytes[4096];
    size_t n;
};

static void take(sqlite3_stmt *q, int col, struct value *v)
{
    v->type = sqlite3_column_type(q, col);
    v->n = 0;
    if (v->type == SQLITE_INTEGER) {
        v->number = sqlite3_column_int64(q, col);
        v->n = sizeof v->number;
        return;
    }
    const void *p = sqlite3_column_blob(q, col);
    v->n = (size_t)sqlite3_column_bytes(q, col);
    assert_true(v->n <= sizeof v->bytes);
    if (v->n)
        memcpy(v->bytes, p, v->n);
}

static void bind_flipped(sqlite3_stmt *q, const struct value *v, size_t at, uint8_t mask)
{
    struct value x = *v;
    if (v->type == SQLITE_INTEGER)
        x.number = (int64_t)((uint64_t)v->number ^ (uint64_t)mask << 8 * at);
    else
        x.bytes[at] ^= mask;
    if (v->type == SQLITE_INTEGER)
        sqlite3_bind_int64(q, 1, x.number);
    else if (v->type == SQLITE_TEXT)
        sqlite3_bind_text(q, 1, (const char *)x.bytes, (int)x.n, SQLITE_TRANSIENT);
    else
        sqlite3_bind_blob(q, 1, x.bytes, (int)x.n, SQLITE_TRANSIENT);
}

/* Checks every row of a table as the store does; how many do not match. */
static size_t count_damaged(struct db *db, const char *table)
{
    size_t n = 0;
    struct query q = {.db = db, .handle = prepare(db->handle, "SELECT * FROM %s", table)};
    while (sqlite3_step(q.handle) == SQLITE_ROW)
        n += row_check(&q, table, NULL) != OK;
    sqlite3_finalize(q.handle);
    return n;
}

/* Flips each byte of one column of the row with this tag. How many bytes an index allowed. */
static size_t flip_column(struct db *db, const char *table, const char *column,
                          const struct value *v, const struct value *tag)
{
    size_t n = 0;
    sqlite3_stmt *q =
        prepare(db->handle, "UPDATE OR IGNORE %s SET %s = ?1 WHERE tag = ?2", table, column);
    for (size_t at = 0; at < v->n; at += stride(v->n > 40 ? 11 : 3)) {
        uint8_t mask = (uint8_t)(1u << (at + n) % 8);
        run(db->handle, "BEGIN");
        bind_flipped(q, v, at, mask);
        sqlite3_bind_blob(q, 2, tag->bytes, (int)tag->n, SQLITE_TRANSIENT);
        bool changed = sqlite3_step(q) == SQLITE_DONE && sqlite3_changes(db->handle) == 1;
        sqlite3_reset(q);
        if (changed && count_damaged(db, table) != 1)
            fail_msg("%s.%s: byte %zu flipped by 0x%x, and nothing is seen", table, column, at,
                     mask);
        n += changed;
        run(db->handle, "ROLLBACK");
    }
    sqlite3_finalize(q);
    return n;
}

static size_t flip_row(struct db *db, const char *table, int row)
{
    static struct value v, tag;
    size_t n = 0;
    sqlite3_stmt *q =
        prepare(db->handle, "SELECT * FROM %s ORDER BY tag LIMIT 1 OFFSET %d", table, row);
    if (sqlite3_step(q) == SQLITE_ROW) {
        int n_columns = sqlite3_column_count(q);
        take(q, n_columns - 1, &tag);
        assert_string_equal(sqlite3_column_name(q, n_columns - 1), "tag");
        for (int col = 0; col < n_columns; col++) {
            take(q, col, &v);
            n += flip_column(db, table, sqlite3_column_name(q, col), &v, &tag);
        }
    }
    sqlite3_finalize(q);
    return n;
}

static void every_column_is_under_its_tag(void **state)
{
    (void)state;
    static struct flip_test t;
    static struct store_sample sample;
    open_store(&t, LAYOUT_ODD, STORE_ENCRYPT_OFF, 0);
    store_sample_make(t.f.st, &sample);
    struct error e;
    assert_ok(hold_pin(t.f.st, sample.id, true, &e), &e);
    struct db *db = &t.f.st->db;
    size_t n_tables, n_bytes = 0;
    const struct schema_table *tables = schema_tables(&n_tables);
    for (size_t i = 0; i < n_tables; i++) {
        size_t n = 0, n_row = 1;
        if (!strstr(tables[i].create, "tag BLOB NOT NULL"))
            continue;
        assert_int_equal(count_damaged(db, tables[i].name), 0);
        for (int row = 0; n_row; row++)
            n += n_row = flip_row(db, tables[i].name, row);
        if (!n)
            fail_msg("no row of %s was changed", tables[i].name);
        n_bytes += n;
    }
    fprintf(stderr, "%zu bytes of rows flipped\n", n_bytes);
    db->rows_damaged = 0;
    store_fixture_fini(&t.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ds4_146_plain_packs),
        cmocka_unit_test(ds4_146_encrypted_packs),
        cmocka_unit_test(every_column_is_under_its_tag),
    };
    return !!run_with_both_shapes(tests);
}
