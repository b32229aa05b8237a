/* Sealed extents, the key file and its passphrase, crypto-erase; and reads that fail. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fs.h"
#include "sessions/pack.h"
#include "tests/support/state_fixture.h"
#include "tests/support/test.h"

#define CHEAP ((struct crypto_cost){1, 8u << 10})
#define PASS(text) ((struct keys_passphrase){(text), sizeof(text) - 1})
#define NONE ((struct keys_passphrase){0})

struct crypt_test {
    struct store_fixture f;
    struct state_layout l;
    char id[SESSION_ID_CAP];
};

static struct crypt_test *begin(enum layout_shape shape, enum store_encrypt encrypt)
{
    static struct crypt_test t;
    struct error e;
    store_fixture_init(&t.f, false);
    t.f.options.encrypt = encrypt;
    t.f.options.passphrase_cost = CHEAP;
    assert_ok(store_fixture_open(&t.f, &e), &e);
    state_layout_make(&t.l, shape);
    fixture_session(&t.f, "s", t.id);
    return &t;
}

static int setup(void **state)
{
    *state = begin(LAYOUT_ODD, STORE_ENCRYPT_ON);
    return 0;
}

static int setup_pages(void **state)
{
    *state = begin(LAYOUT_PAGES, STORE_ENCRYPT_ON);
    return 0;
}

static int setup_tip(void **state)
{
    *state = begin(LAYOUT_TIP, STORE_ENCRYPT_ON);
    return 0;
}

static int teardown(void **state)
{
    fault_disarm();
    store_fixture_fini(&((struct crypt_test *)*state)->f);
    return 0;
}

static void grow(struct crypt_test *t, uint32_t first, uint64_t n)
{
    struct error e;
    uint64_t at = fixture_length(t->f.st, t->id);
    assert_ok(fixture_append(t->f.st, t->id, first, n, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(t->f.st, t->id, &t->l, at, at + n, true, NULL, &e), &e);
}

/* Tokens that come back; every byte of them is checked. */
static uint64_t restored(struct crypt_test *t, struct head_restored *r)
{
    struct error e;
    struct head_restored mine;
    r = r ? r : &mine;
    assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, NULL, r, &e), &e);
    return r->n_tokens;
}

/* ---- files ------------------------------------------------------------------------------- */

static void read_file(const char *path, struct buf *out)
{
    struct error e;
    out->len = 0;
    assert_ok(fs_read_file(path, out, &e), &e);
}

static void write_file(const char *path, const void *bytes, size_t n)
{
    struct error e;
    assert_ok(fs_write_atomic(path, bytes, n, 0600, &e), &e);
}

static void pack_file(struct crypt_test *t, int number, char *out, size_t cap)
{
    snprintf(out, cap, "%s/%08d.pack", t->f.packs, number);
}

/* Whether some 16 bytes of `bytes` stand in the file. */
static bool has_run_of(const char *path, const uint8_t *bytes, size_t n)
{
    AUTO(buf) struct buf b = BUF_INIT(64u << 20);
    read_file(path, &b);
    for (size_t i = 0; i + 16 <= n; i += 16)
        if (memmem(b.data, b.len, bytes + i, 16))
            return true;
    return false;
}

static void key_path(struct crypt_test *t, char *out, size_t cap)
{
    snprintf(out, cap, "%s/%s", t->f.state, KEYS_FILE);
}

static enum err reopen(struct crypt_test *t, struct keys_passphrase pass, struct error *e)
{
    store_close(t->f.st);
    t->f.st = NULL;
    t->f.options.passphrase = pass;
    return store_fixture_open(&t->f, e);
}

/* ---- sealed extents ---------------------------------------------------------------------- */

static void sealed_state_comes_back(void **state)
{
    struct crypt_test *t = *state;
    uint64_t at = 0;
    static const uint64_t steps[] = {1, 5, 31, 32, 100, 7};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        grow(t, (uint32_t)i * 1000, steps[i]);
        at += steps[i];
        assert_int_equal(restored(t, NULL), at);
        store_fixture_reopen(&t->f);
        assert_int_equal(restored(t, NULL), at);
    }
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.extents_damaged + c.rows_damaged + c.packs_refused, 0);
}

/* What is on disk: rows, tip and ids where they are tagged, none of them where they are sealed;
 * the same state both times, so that the scan is known to find what there is. */
static void nothing_readable_is_in_a_sealed_pack(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    char path[160];
    for (int sealed = 1; sealed >= 0; sealed--) {
        store_fixture_fini(&t->f);
        begin(LAYOUT_ODD, sealed ? STORE_ENCRYPT_ON : STORE_ENCRYPT_OFF);
        assert_int_equal(store_encrypts(t->f.st), sealed);
        grow(t, 7000, 50);
        AUTO(tape) struct tape tape = {0};
        AUTO(state_image) struct state_image image = {0};
        assert_ok(tape_load(t->f.st, t->id, &tape, &e), &e);
        state_image_make(&image, &t->l, tape.ids, 50);
        pack_file(t, 1, path, sizeof path);
        assert_int_equal(has_run_of(path, (const uint8_t *)tape.ids, 200), !sealed);
        assert_int_equal(has_run_of(path, image.tip, (size_t)t->l.tip_bytes), !sealed);
        for (uint32_t p = 0; p < t->l.n_planes; p++) {
            size_t n = (size_t)(state_rows(&t->l.planes[p], 48) * t->l.planes[p].row_bytes);
            assert_int_equal(has_run_of(path, image.regions.plane[p], n), !sealed);
        }
    }
}

static void equal_rows_are_sealed_differently(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    /* Two tips of the same bytes: nonces are never used twice. */
    grow(t, 0, 20);
    assert_ok(state_save(t->f.st, t->id, &t->l, 20, 20, true, NULL, &e), &e);
    AUTO(buf) struct buf b = BUF_INIT(64u << 20);
    char path[160];
    pack_file(t, 1, path, sizeof path);
    read_file(path, &b);
    size_t n = 0;
    const uint8_t *nonce[8];
    for (size_t off = EXTENT_PAGE; off + EXTENT_PAGE <= b.len; off += EXTENT_PAGE)
        if (extent_header_pages((uint8_t *)b.data + off) && n < 8)
            nonce[n++] = (uint8_t *)b.data + off + 40;
    assert_true(n >= 4);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(nonce[i], nonce[j], CRYPTO_NONCE_BYTES);
}

/* One byte in every KiB of every extent, padding and headers included: noticed each time. */
static void damage_is_never_decrypted(void **state)
{
    struct crypt_test *t = *state;
    char path[160];
    grow(t, 0, 40);
    store_close(t->f.st);
    t->f.st = NULL;
    pack_file(t, 1, path, sizeof path);
    AUTO(buf) struct buf good = BUF_INIT(64u << 20), db = BUF_INIT(64u << 20);
    read_file(path, &good);
    read_file(t->f.db, &db);
    uint64_t shorter = 0, n = 0;
    for (size_t off = EXTENT_PAGE + 777; off < good.len; off += 1024, n++) {
        struct error e;
        uint8_t *byte = (uint8_t *)good.data + off;
        *byte ^= 0x10;
        write_file(path, good.data, good.len);
        *byte ^= 0x10;
        write_file(t->f.db, db.data, db.len);
        assert_ok(store_fixture_open(&t->f, &e), &e);
        struct head_restored r;
        shorter += restored(t, &r) < 40 || !r.has_tip;
        store_close(t->f.st);
        t->f.st = NULL;
    }
    assert_int_equal(shorter, n);
}

static void both_kinds_stand_side_by_side(void **state)
{
    struct crypt_test *t = *state;
    grow(t, 0, 20);
    t->f.options.encrypt = STORE_ENCRYPT_OFF;
    store_fixture_reopen(&t->f);
    assert_false(store_encrypts(t->f.st));
    grow(t, 100, 20);
    assert_int_equal(restored(t, NULL), 40);
    t->f.options.encrypt = STORE_ENCRYPT_AS_IS;
    store_fixture_reopen(&t->f);
    assert_false(store_encrypts(t->f.st));
    t->f.options.encrypt = STORE_ENCRYPT_ON;
    store_fixture_reopen(&t->f);
    grow(t, 200, 20);
    t->f.options.encrypt = STORE_ENCRYPT_AS_IS;
    store_fixture_reopen(&t->f);
    assert_true(store_encrypts(t->f.st));
    assert_int_equal(restored(t, NULL), 60);
}

/* A database that was lost: sealed packs and the key bring the blocks back. */
static void sealed_packs_are_adopted(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    grow(t, 0, 64);
    store_close(t->f.st);
    t->f.st = NULL;
    assert_int_equal(unlink(t->f.db), 0);
    assert_ok(store_fixture_open(&t->f, &e), &e);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.blocks, 4);
    fixture_session(&t->f, "again", t->id);
    assert_ok(fixture_append(t->f.st, t->id, 0, 64, SEGMENT_INPUT, &e), &e);
    struct head_restored r;
    assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_ROWS, NULL, &r, &e), &e);
    assert_int_equal(r.n_tokens, 64);
}

/* ---- keys -------------------------------------------------------------------------------- */

static void another_key_changes_nothing(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    char key[160], path[160];
    grow(t, 0, 40);
    store_close(t->f.st);
    t->f.st = NULL;
    AUTO(buf)
    struct buf right = BUF_INIT(1024), pack = BUF_INIT(64u << 20), db = BUF_INIT(64u << 20),
               after = BUF_INIT(64u << 20);
    key_path(t, key, sizeof key);
    pack_file(t, 1, path, sizeof path);
    read_file(key, &right);
    read_file(path, &pack);
    read_file(t->f.db, &db);
    uint8_t wrong[CRYPTO_KEY_BYTES];
    crypto_random(wrong, sizeof wrong);
    write_file(key, wrong, sizeof wrong);
    assert_int_equal(store_fixture_open(&t->f, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.msg, "does not belong to this store"));
    read_file(path, &after);
    assert_int_equal(after.len, pack.len);
    assert_memory_equal(after.data, pack.data, pack.len);
    read_file(t->f.db, &after);
    assert_int_equal(after.len, db.len);
    assert_memory_equal(after.data, db.data, db.len);
    /* In another place, as --key-file says. */
    char elsewhere[160];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere.key", t->f.dir);
    write_file(elsewhere, right.data, right.len);
    t->f.options.key_path = elsewhere;
    assert_ok(store_fixture_open(&t->f, &e), &e);
    assert_int_equal(restored(t, NULL), 40);
    t->f.options.key_path = NULL;
}

static void passphrases_open_and_are_changed(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    char key[160], path[160];
    bool wrapped;
    struct crypto_cost cost;
    grow(t, 0, 40);
    key_path(t, key, sizeof key);
    pack_file(t, 1, path, sizeof path);
    assert_ok(keys_is_wrapped(key, &wrapped, NULL, &e), &e);
    assert_false(wrapped);
    assert_int_equal(reopen(t, PASS("unasked"), &e), ERR_INVAL);
    AUTO(buf) struct buf pack = BUF_INIT(64u << 20), after = BUF_INIT(64u << 20);
    read_file(path, &pack);

    assert_ok(keys_rewrap(key, NONE, PASS("first"), CHEAP, &e), &e);
    assert_ok(keys_is_wrapped(key, &wrapped, &cost, &e), &e);
    assert_true(wrapped && cost.ops == 1 && cost.mem_bytes == 8u << 10);
    assert_int_equal(reopen(t, NONE, &e), ERR_DENIED);
    assert_non_null(strstr(e.msg, "wants a passphrase"));
    assert_int_equal(reopen(t, PASS("First"), &e), ERR_DENIED);
    assert_non_null(strstr(e.msg, "wrong passphrase"));
    assert_ok(reopen(t, PASS("first"), &e), &e);
    assert_int_equal(restored(t, NULL), 40);

    assert_int_equal(keys_rewrap(key, PASS("wrong"), PASS("second"), CHEAP, &e), ERR_DENIED);
    assert_int_equal(keys_rewrap(key, PASS("first"), PASS(""), CHEAP, &e), ERR_INVAL);
    assert_ok(reopen(t, PASS("first"), &e), &e);
    assert_ok(
        keys_rewrap(key, PASS("first"), PASS("second"), (struct crypto_cost){2, 16384}, &e),
        &e);
    assert_int_equal(reopen(t, PASS("first"), &e), ERR_DENIED);
    assert_ok(reopen(t, PASS("second"), &e), &e);
    assert_int_equal(restored(t, NULL), 40);

    assert_ok(keys_rewrap(key, PASS("second"), NONE, CHEAP, &e), &e);
    assert_ok(reopen(t, NONE, &e), &e);
    assert_int_equal(restored(t, NULL), 40);
    read_file(path, &after);
    assert_int_equal(after.len, pack.len);
    assert_memory_equal(after.data, pack.data, pack.len);
}

static void a_new_store_under_a_passphrase(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    char key[160];
    store_fixture_fini(&t->f);
    store_fixture_init(&t->f, false);
    t->f.options.passphrase = PASS("from the beginning");
    t->f.options.passphrase_cost = CHEAP;
    assert_ok(store_fixture_open(&t->f, &e), &e);
    struct stat sb;
    key_path(t, key, sizeof key);
    assert_int_equal(stat(key, &sb), 0);
    assert_int_equal(sb.st_size, 128);
    assert_int_equal(sb.st_mode & 0777, 0600);
    assert_int_equal(keys_make(key, NONE, CHEAP, (uint8_t[32]){0}, &e), ERR_CONFLICT);
    assert_int_equal(reopen(t, NONE, &e), ERR_DENIED);
    assert_ok(reopen(t, PASS("from the beginning"), &e), &e);
}

/* Every byte of a wrapped file changed, every length: nothing opens, and the message is not
 * that the passphrase was wrong. */
static void damaged_key_files(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    char path[160];
    uint8_t master[CRYPTO_KEY_BYTES], got[CRYPTO_KEY_BYTES];
    snprintf(path, sizeof path, "%s/one.key", t->f.dir);
    assert_ok(keys_make(path, PASS("p"), CHEAP, master, &e), &e);
    AUTO(buf) struct buf file = BUF_INIT(1024);
    read_file(path, &file);
    uint8_t *b = (uint8_t *)file.data;
    for (size_t i = 0; i < file.len; i++) {
        b[i] ^= 1;
        write_file(path, b, file.len);
        b[i] ^= 1;
        assert_int_equal(keys_read(path, PASS("p"), got, &e), ERR_CORRUPT);
    }
    for (size_t n = 0; n < file.len; n++) {
        write_file(path, b, n);
        enum err rc = keys_read(path, PASS("p"), got, &e);
        assert_int_equal(rc, n == CRYPTO_KEY_BYTES ? ERR_INVAL : ERR_CORRUPT);
    }
    write_file(path, b, file.len);
    assert_ok(keys_read(path, PASS("p"), got, &e), &e);
    assert_memory_equal(got, master, sizeof master);
}

/* A file that asks for a terabyte, or for nothing: refused before anything is tried, though its
 * checksum is right. */
static void costs_are_bounded(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    char path[160];
    uint8_t master[CRYPTO_KEY_BYTES], sum[HASH_TAG_BYTES];
    static const struct crypto_cost wrong[] = {{0, 8192},          {65, 8192},
                                               {UINT32_MAX, 8192}, {1, 0},
                                               {1, 8191},          {1, (1ull << 30) + 1},
                                               {1, 1ull << 40}};
    snprintf(path, sizeof path, "%s/one.key", t->f.dir);
    assert_ok(keys_make(path, PASS("p"), CHEAP, master, &e), &e);
    AUTO(buf) struct buf file = BUF_INIT(1024);
    read_file(path, &file);
    uint8_t *b = (uint8_t *)file.data;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct hash h;
        for (int k = 0; k < 4; k++)
            b[12 + k] = (uint8_t)(wrong[i].ops >> 8 * k);
        for (int k = 0; k < 8; k++)
            b[16 + k] = (uint8_t)(wrong[i].mem_bytes >> 8 * k);
        hash_init(&h, NULL, HASH_TAG_BYTES);
        hash_add(&h, b, 112);
        hash_final(&h, sum);
        memcpy(b + 112, sum, sizeof sum);
        write_file(path, b, file.len);
        assert_int_equal(keys_read(path, PASS("p"), master, &e), ERR_CORRUPT);
        assert_non_null(strstr(e.msg, "out of bounds"));
        assert_int_equal(keys_make("/nowhere/x", PASS("p"), wrong[i], master, &e), ERR_INVAL);
    }
    /* A changed cost within bounds gives another wrapping key. */
    b[12] = 2, b[13] = b[14] = b[15] = 0;
    memset(b + 16, 0, 8), b[17] = 0x20;
    struct hash h;
    hash_init(&h, NULL, HASH_TAG_BYTES);
    hash_add(&h, b, 112);
    hash_final(&h, b + 112);
    write_file(path, b, file.len);
    assert_int_equal(keys_read(path, PASS("p"), master, &e), ERR_DENIED);
}

/* Whatever fails in a change of passphrase: the old one opens the file, or the new one does. */
static void rewrapping_fails_whole(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    char path[160];
    uint8_t master[CRYPTO_KEY_BYTES], got[CRYPTO_KEY_BYTES];
    snprintf(path, sizeof path, "%s/one.key", t->f.dir);
    assert_ok(keys_make(path, PASS("old"), CHEAP, master, &e), &e);
    bool clean = false;
    uint64_t failures = 0;
    for (uint64_t n = 1; !clean; n++) {
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = keys_rewrap(path, PASS("old"), PASS("new"), CHEAP, &e);
        clean = !fault_disarm();
        bool is_new = !keys_read(path, PASS("new"), got, &e);
        if (!is_new)
            assert_ok(keys_read(path, PASS("old"), got, &e), &e);
        assert_memory_equal(got, master, sizeof master);
        failures += rc != OK;
        assert_true(is_new || rc);
        if (is_new && !clean)
            assert_ok(keys_rewrap(path, PASS("new"), PASS("old"), CHEAP, &e), &e);
    }
    assert_true(failures > 4);
}

/* ---- crypto-erase ------------------------------------------------------------------------ */

static bool folder_has(const char *folder, const uint8_t *bytes, size_t n)
{
    DIR *d = opendir(folder);
    bool found = false;
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char path[512];
        struct stat sb;
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (!stat(path, &sb) && S_ISREG(sb.st_mode))
            found = found || has_run_of(path, bytes, n);
    }
    closedir(d);
    return found;
}

static void an_erased_namespace_is_gone(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    char data[160], path[160];
    snprintf(data, sizeof data, "%s/data", t->f.dir);
    grow(t, 0, 100);
    uint8_t wrapped[sizeof t->f.st->space.wrapped];
    memcpy(wrapped, t->f.st->space.wrapped, sizeof wrapped);
    assert_true(folder_has(data, wrapped + 24, 48));
    assert_true(folder_has(t->f.packs, wrapped + 24, 48));
    AUTO(buf) struct buf pack = BUF_INIT(64u << 20);
    pack_file(t, 1, path, sizeof path);
    read_file(path, &pack);

    uint64_t n_packs;
    assert_ok(namespace_erase(t->f.st, &n_packs, &e), &e);
    assert_int_equal(n_packs, 1);
    assert_false(folder_has(data, wrapped + 24, 48));
    assert_false(folder_has(t->f.packs, wrapped + 24, 48));
    assert_int_equal(restored(t, NULL), 0);
    /* Bytes that were copied before, without the superblock, are junk: also under a number that
     * is known. */
    memset(pack.data, 0, EXTENT_PAGE);
    write_file(path, pack.data, pack.len);
    store_fixture_reopen(&t->f);
    struct store_counters c;
    store_count(t->f.st, &c);
    assert_int_equal(c.blocks + c.tails + c.tips + c.extents_adopted, 0);
    assert_int_equal(c.junk_files, 1);
    /* The session goes on, under a new key. */
    assert_true(store_encrypts(t->f.st));
    assert_int_equal(fixture_length(t->f.st, t->id), 100);
    assert_ok(state_save(t->f.st, t->id, &t->l, 0, 100, true, NULL, &e), &e);
    store_fixture_reopen(&t->f);
    assert_int_equal(restored(t, NULL), 100);
    assert_memory_not_equal(wrapped, t->f.st->space.wrapped, sizeof wrapped);
}

/* A damaged superblock holds the wrapped key still. */
static void a_damaged_pack_is_erased_too(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    char path[160];
    grow(t, 0, 40);
    pack_file(t, 1, path, sizeof path);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, "x", 1, 2000) == 1);
    close(fd);
    store_fixture_reopen(&t->f);
    uint64_t n_packs;
    assert_ok(namespace_erase(t->f.st, &n_packs, &e), &e);
    assert_int_equal(n_packs, 1);
    assert_int_equal(access(path, F_OK), -1);
}

static void erasing_fails_and_goes_on(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    grow(t, 0, 100);
    bool clean = false;
    /* Each of the first failures, then fewer and fewer; all of them in the long run. */
    uint64_t slow = getenv("AGENTD_SLOW") ? UINT64_MAX : 8;
    for (uint64_t n = 1; !clean; n += 1 + n / slow) {
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = namespace_erase(t->f.st, NULL, &e);
        clean = !fault_disarm();
        assert_true(rc == OK || !clean);
        /* Nothing that is left is wrong; and the store can be used. */
        (void)restored(t, NULL);
        assert_ok(state_save(t->f.st, t->id, &t->l, 0, 100, true, NULL, &e), &e);
        assert_int_equal(restored(t, NULL), 100);
    }
}

/* ---- many reads at once, and reads that fail --------------------------------------------- */

/* Enough for worker threads; damage in the middle. */
static void large_states_are_opened_in_parallel(void **state)
{
    struct crypt_test *t = *state;
    char path[160];
    for (uint32_t i = 0; i < 4; i++)
        grow(t, i * 10000, 500);
    assert_null(t->f.st->workers);
    struct head_restored r;
    assert_int_equal(restored(t, &r), 2000);
    assert_true(r.has_tip && r.index_ns <= r.total_ns);
    assert_non_null(t->f.st->workers);
    struct stat sb;
    pack_file(t, 1, path, sizeof path);
    assert_int_equal(stat(path, &sb), 0);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, "damage", 6, sb.st_size / 2) == 6);
    close(fd);
    uint64_t n = restored(t, &r);
    assert_true(n < 2000 && n > 0 && r.extents_damaged >= 1);
}

/* A device that fails once is asked again. One that goes on failing: the extents are set aside,
 * so that what is computed again is written again, once. */
static void reads_that_fail(void **state)
{
    struct crypt_test *t = *state;
    struct error e;
    struct head_restored r;
    struct head_receipt receipt;
    grow(t, 0, 100);
    fault_arm(FAULT_FAIL, "aio.read", 3);
    assert_int_equal(restored(t, &r), 100);
    assert_true(fault_disarm() && r.has_tip && r.extents_damaged == 0);

    fault_arm(FAULT_FAIL_FROM, "aio.read", 1);
    fault_arm(FAULT_FAIL_FROM, "fs.read", 1);
    assert_int_equal(restored(t, &r), 0);
    assert_true(fault_disarm() && r.extents_damaged > 5);
    assert_ok(state_save(t->f.st, t->id, &t->l, 0, 100, true, &receipt, &e), &e);
    assert_int_equal(receipt.blocks_new, 6);
    assert_int_equal(receipt.blocks_shared, 0);
    assert_int_equal(restored(t, &r), 100);
    assert_int_equal(r.extents_damaged, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sealed_state_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(sealed_state_comes_back, setup_pages, teardown),
        cmocka_unit_test_setup_teardown(sealed_state_comes_back, setup_tip, teardown),
        cmocka_unit_test_setup_teardown(nothing_readable_is_in_a_sealed_pack, setup, teardown),
        cmocka_unit_test_setup_teardown(equal_rows_are_sealed_differently, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_never_decrypted, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_never_decrypted, setup_tip, teardown),
        cmocka_unit_test_setup_teardown(both_kinds_stand_side_by_side, setup, teardown),
        cmocka_unit_test_setup_teardown(sealed_packs_are_adopted, setup, teardown),
        cmocka_unit_test_setup_teardown(another_key_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(passphrases_open_and_are_changed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_new_store_under_a_passphrase, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_key_files, setup, teardown),
        cmocka_unit_test_setup_teardown(costs_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(rewrapping_fails_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(an_erased_namespace_is_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_pack_is_erased_too, setup, teardown),
        cmocka_unit_test_setup_teardown(erasing_fails_and_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(large_states_are_opened_in_parallel, setup_pages,
                                        teardown),
        cmocka_unit_test_setup_teardown(reads_that_fail, setup, teardown),
    };
    return !!run_with_both_shapes(tests);
}
