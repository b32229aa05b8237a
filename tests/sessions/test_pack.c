/* Packs as files: cut, swapped, lost, foreign, damaged in every byte; junk beside them. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/state_fixture.h"
#include "tests/support/test.h"

struct pack_test {
    struct store_fixture f;
    struct state_layout l;
    char id[SESSION_ID_CAP];
};

static struct pack_test *begin(enum layout_shape shape, uint64_t pack_bytes)
{
    static struct pack_test t;
    struct error e;
    store_fixture_init(&t.f, false);
    t.f.options.pack_bytes = pack_bytes;
    assert_ok(store_fixture_open(&t.f, &e), &e);
    state_layout_make(&t.l, shape);
    fixture_session(&t.f, "s", t.id);
    return &t;
}

static int setup(void **state)
{
    *state = begin(LAYOUT_ODD, 0);
    return 0;
}

static int setup_small_packs(void **state)
{
    *state = begin(LAYOUT_ODD, 150000);
    return 0;
}

static int teardown(void **state)
{
    store_fixture_fini(&((struct pack_test *)*state)->f);
    return 0;
}

static void grow(struct pack_test *t, const char *id, uint32_t first, uint64_t n)
{
    struct error e;
    uint64_t at = fixture_length(t->f.st, id);
    assert_ok(fixture_append(t->f.st, id, first, n, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(t->f.st, id, &t->l, at, at + n, true, NULL, &e), &e);
}

static void close_store(struct pack_test *t)
{
    store_close(t->f.st);
    t->f.st = NULL;
}

static void open_store(struct pack_test *t)
{
    struct error e;
    assert_ok(store_fixture_open(&t->f, &e), &e);
}

static void pack_name(struct pack_test *t, int number, char *out, size_t cap)
{
    snprintf(out, cap, "%s/%08d.pack", t->f.packs, number);
}

static uint8_t *read_all(const char *path, size_t *n)
{
    struct stat sb;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &sb), 0);
    uint8_t *p = malloc((size_t)sb.st_size + 1);
    assert_int_equal(read(fd, p, (size_t)sb.st_size), sb.st_size);
    close(fd);
    *n = (size_t)sb.st_size;
    return p;
}

static void write_all(const char *path, const uint8_t *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, n), (ssize_t)n);
    close(fd);
}

/* Restores what there is, byte for byte right or not at all; how much came. */
static uint64_t restored(struct pack_test *t, const char *id, enum head_want want)
{
    struct error e;
    struct head_restored r;
    assert_ok(state_restore(t->f.st, id, &t->l, TAPE_END, want, NULL, &r, &e), &e);
    return r.n_tokens;
}

static struct store_counters counters(struct pack_test *t)
{
    struct store_counters c;
    store_count(t->f.st, &c);
    return c;
}

/* ---- damage ------------------------------------------------------------------------------ */

/* Keeps database, packs and key as they are, to damage copies of them. */
struct snapshot {
    char dir[96];
};

static void copy_tree(const char *from, const char *to)
{
    DIR *dir = opendir(from);
    assert_non_null(dir);
    mkdir(to, 0700);
    for (struct dirent *d; (d = readdir(dir));) {
        char a[512], b[512];
        if (d->d_name[0] == '.')
            continue;
        snprintf(a, sizeof a, "%s/%s", from, d->d_name);
        snprintf(b, sizeof b, "%s/%s", to, d->d_name);
        struct stat sb;
        assert_int_equal(stat(a, &sb), 0);
        if (S_ISDIR(sb.st_mode)) {
            copy_tree(a, b);
            continue;
        }
        size_t n;
        uint8_t *p = read_all(a, &n);
        write_all(b, p, n);
        free(p);
    }
    closedir(dir);
}

static void take_snapshot(struct pack_test *t, struct snapshot *s)
{
    close_store(t);
    snprintf(s->dir, sizeof s->dir, "%s-copy", t->f.dir);
    copy_tree(t->f.dir, s->dir);
}

static void restore_snapshot(struct pack_test *t, const struct snapshot *s)
{
    close_store(t);
    remove_tree(t->f.dir);
    copy_tree(s->dir, t->f.dir);
}

/* Flips bytes of the pack, one at a time (test_flips.c has every single one): whatever comes
 * back is right, and what is damaged is noticed. */
static void every_flipped_byte_is_noticed(void **state)
{
    struct pack_test *t = *state;
    struct error e;
    char path[256];
    struct snapshot s;
    grow(t, t->id, 0, 20);
    grow(t, t->id, 100, 19);
    take_snapshot(t, &s);
    pack_name(t, 1, path, sizeof path);
    size_t n;
    uint8_t *bytes = read_all(path, &n);
    size_t stride = getenv("AGENTD_SLOW") ? 13 : 509;
    for (size_t i = 0; i < n; i += stride) {
        restore_snapshot(t, &s);
        bytes[i] ^= (uint8_t)(1 + i % 255);
        write_all(path, bytes, n);
        bytes[i] ^= (uint8_t)(1 + i % 255);
        open_store(t);
        uint64_t rows = restored(t, t->id, HEAD_ROWS);
        struct head_restored r;
        assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
        struct store_counters c = counters(t);
        /* Bytes of extents that nothing refers to (the first tip's, the gathered tail's) may be
         * anything: a second look finds all the rest whole. */
        if (c.extents_damaged + c.packs_refused == 0) {
            assert_int_equal(rows, 39);
            assert_int_equal(r.n_tokens, 39);
            assert_true(r.has_tip);
        } else {
            assert_true(rows < 39 || !r.has_tip || r.n_tokens < 39);
        }
    }
    free(bytes);
    close_store(t);
    remove_tree(s.dir);
}

/* In a pack that holds live extents only, every flip must show. */
static void no_byte_of_a_live_pack_is_unguarded(void **state)
{
    struct pack_test *t = *state;
    char path[256];
    struct snapshot s;
    grow(t, t->id, 0, 19);
    take_snapshot(t, &s);
    pack_name(t, 1, path, sizeof path);
    size_t n;
    uint8_t *bytes = read_all(path, &n);
    size_t stride = getenv("AGENTD_SLOW") ? 13 : 211;
    for (size_t i = 0; i < n; i += stride) {
        restore_snapshot(t, &s);
        bytes[i] ^= 0x10;
        write_all(path, bytes, n);
        bytes[i] ^= 0x10;
        open_store(t);
        struct error e;
        struct head_restored r;
        assert_ok(state_restore(t->f.st, t->id, &t->l, TAPE_END, HEAD_TIP, NULL, &r, &e), &e);
        assert_true(r.n_tokens < 19 || !r.has_tip);
        struct store_counters c = counters(t);
        assert_true(c.extents_damaged + c.packs_refused > 0);
    }
    free(bytes);
    close_store(t);
    remove_tree(s.dir);
}

static void damage_is_set_aside_and_mended(void **state)
{
    struct pack_test *t = *state;
    struct error e;
    char path[256];
    grow(t, t->id, 0, 100);
    close_store(t);
    pack_name(t, 1, path, sizeof path);
    size_t n;
    uint8_t *bytes = read_all(path, &n);
    bytes[n / 2] ^= 1;
    write_all(path, bytes, n);
    free(bytes);
    open_store(t);
    uint64_t got = restored(t, t->id, HEAD_ROWS);
    assert_true(got > 0 && got < 100 && got % 16 == 0);
    assert_int_equal(counters(t).extents_damaged, 1);
    assert_int_equal(restored(t, t->id, HEAD_ROWS), got);
    assert_int_equal(counters(t).extents_damaged, 1);
    /* It was recomputed, and is saved again behind what was good. */
    assert_ok(state_save(t->f.st, t->id, &t->l, got, 100, true, NULL, &e), &e);
    assert_int_equal(restored(t, t->id, HEAD_TIP), 100);
    store_fixture_reopen(&t->f);
    assert_int_equal(restored(t, t->id, HEAD_TIP), 100);
}

/* Several extents of a chain are damaged: one restore sets all of them aside, and the save that
 * follows shares none of them. */
static void all_damage_of_a_chain_is_found_at_once(void **state)
{
    struct pack_test *t = *state;
    struct error e;
    char path[256];
    struct snapshot s;
    size_t n;
    grow(t, t->id, 0, 100);
    take_snapshot(t, &s);
    pack_name(t, 1, path, sizeof path);
    uint8_t *bytes = read_all(path, &n);
    for (size_t a = 4096 + 7; a < n; a += 5 * 4096)
        for (size_t b = a + 4 * 4096; b < n; b += 7 * 4096) {
            restore_snapshot(t, &s);
            bytes[a] ^= 1;
            bytes[b] ^= 1;
            write_all(path, bytes, n);
            bytes[a] ^= 1;
            bytes[b] ^= 1;
            open_store(t);
            uint64_t got = restored(t, t->id, HEAD_TIP);
            if (got == 0) /* no tip: its rows are there */
                got = restored(t, t->id, HEAD_ROWS);
            assert_ok(state_save(t->f.st, t->id, &t->l, got, 100, true, NULL, &e), &e);
            store_fixture_reopen(&t->f);
            assert_int_equal(restored(t, t->id, HEAD_TIP), 100);
        }
    free(bytes);
    close_store(t);
    remove_tree(s.dir);
}

/* A tail that a block needs is damaged: the save says from where to give rows again. */
static void a_damaged_tail_asks_for_its_rows_again(void **state)
{
    struct pack_test *t = *state;
    struct error e;
    char path[256];
    grow(t, t->id, 0, 16);
    close_store(t);
    pack_name(t, 1, path, sizeof path);
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    open_store(t);
    grow(t, t->id, 100, 9);
    close_store(t);
    int fd = open(path, O_RDWR);
    uint8_t garbage[4096] = {1};
    assert_int_equal(pwrite(fd, garbage, sizeof garbage, sb.st_size + 8192), sizeof garbage);
    close(fd);
    open_store(t);
    assert_ok(fixture_append(t->f.st, t->id, 200, 20, SEGMENT_INPUT, &e), &e);
    struct head_receipt r = {0};
    assert_int_equal(state_save(t->f.st, t->id, &t->l, 25, 45, true, &r, &e), ERR_CORRUPT);
    assert_int_equal(r.retry_from, 16);
    assert_ok(state_save(t->f.st, t->id, &t->l, 16, 45, true, &r, &e), &e);
    assert_int_equal(restored(t, t->id, HEAD_TIP), 45);
}

/* ---- files ------------------------------------------------------------------------------- */

static void a_cut_pack_loses_its_end_only(void **state)
{
    struct pack_test *t = *state;
    char path[256];
    struct snapshot s;
    for (uint32_t i = 0; i < 5; i++)
        grow(t, t->id, i * 100, 20);
    take_snapshot(t, &s);
    pack_name(t, 1, path, sizeof path);
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    uint64_t before = 101;
    for (off_t size = sb.st_size - 1; size > 0;
         size = size > 14000 ? size - (4096 * 3 + 17) : size - 1700) {
        restore_snapshot(t, &s);
        assert_int_equal(truncate(path, size), 0);
        open_store(t);
        uint64_t got = restored(t, t->id, t->l.n_planes ? HEAD_ROWS : HEAD_TIP);
        assert_true(got <= before);
        before = got;
        assert_true(counters(t).rows_dropped + counters(t).packs_refused > 0);
        /* And it goes on. */
        struct error e;
        assert_ok(state_save(t->f.st, t->id, &t->l, got, 100, true, NULL, &e), &e);
        assert_int_equal(restored(t, t->id, HEAD_TIP), 100);
    }
    assert_true(before < 20);
    close_store(t);
    remove_tree(s.dir);
}

/* A save after a cut: the session's rows are given again from what is left. */
static void syv_ai_33_vllm_165_junk_is_harmless(void **state)
{
    struct pack_test *t = *state;
    char path[256];
    grow(t, t->id, 0, 40);
    close_store(t);
    static const char *const names[] = {"junk", "00000002.pack", "00000003.pack.tmp", "1.pack"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", t->f.packs, names[i]);
        write_all(path, (const uint8_t *)"garbage", 7);
    }
    snprintf(path, sizeof path, "%s/00000004.pack", t->f.packs);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/00000005.pack", t->f.packs);
    mkfifo(path, 0600);
    snprintf(path, sizeof path, "%s/00000006.pack", t->f.packs);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    snprintf(path, sizeof path, "%s/00000007.pack", t->f.packs);
    uint8_t *zeros = calloc(1, 100000);
    write_all(path, zeros, 100000);
    free(zeros);
    snprintf(path, sizeof path, "%s/junk", t->f.dir);
    write_all(path, (const uint8_t *)"x", 1);
    snprintf(path, sizeof path, "%s/junk", t->f.state);
    write_all(path, (const uint8_t *)"x", 1);
    for (int i = 0; i < 3; i++) {
        open_store(t);
        assert_int_equal(restored(t, t->id, HEAD_TIP), 40 + 20 * (uint64_t)i);
        assert_true(counters(t).junk_files >= 6);
        assert_int_equal(counters(t).packs, 1);
        grow(t, t->id, 1000, 20);
        close_store(t);
    }
}

/* The numbers of junk are never used for new packs. */
static void new_packs_step_over_junk(void **state)
{
    struct pack_test *t = *state;
    char path[256];
    for (int i = 2; i < 4; i++) {
        pack_name(t, i, path, sizeof path);
        write_all(path, (const uint8_t *)"precious", 8);
    }
    for (uint32_t i = 0; i < 12; i++)
        grow(t, t->id, i * 100, 20);
    store_fixture_reopen(&t->f);
    assert_int_equal(restored(t, t->id, HEAD_TIP), 240);
    size_t n;
    uint8_t *p = read_all(path, &n);
    assert_memory_equal(p, "precious", 8);
    free(p);
}

static void codex_11634_a_lost_pack_is_a_shorter_prefix(void **state)
{
    struct pack_test *t = *state;
    struct error e;
    char path[256];
    for (uint32_t i = 0; i < 12; i++)
        grow(t, t->id, i * 100, 20);
    assert_true(counters(t).packs >= 3);
    close_store(t);
    pack_name(t, 2, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    open_store(t);
    assert_true(counters(t).rows_dropped > 0);
    uint64_t got = restored(t, t->id, HEAD_ROWS);
    assert_true(got > 0 && got < 240);
    assert_ok(state_save(t->f.st, t->id, &t->l, got, 240, true, NULL, &e), &e);
    assert_int_equal(restored(t, t->id, HEAD_TIP), 240);
}

static void llama_cpp_27148_swapped_packs_are_refused(void **state)
{
    struct pack_test *t = *state;
    char a[256], b[256], c[256];
    for (uint32_t i = 0; i < 12; i++)
        grow(t, t->id, i * 100, 20);
    close_store(t);
    pack_name(t, 1, a, sizeof a);
    pack_name(t, 2, b, sizeof b);
    snprintf(c, sizeof c, "%s/x", t->f.packs);
    assert_int_equal(rename(a, c), 0);
    assert_int_equal(rename(b, a), 0);
    assert_int_equal(rename(c, b), 0);
    open_store(t);
    assert_int_equal(counters(t).packs_refused, 2);
    assert_int_equal(restored(t, t->id, HEAD_ROWS), 0);
    close_store(t);
    assert_int_equal(rename(b, c), 0);
    assert_int_equal(rename(a, b), 0);
    assert_int_equal(rename(c, a), 0);
    open_store(t);
    assert_int_equal(restored(t, t->id, HEAD_TIP), 240);
}

/* Two extents of the same size in each other's place: each has good tags, but not there. */
static void swapped_extents_are_refused(void **state)
{
    struct pack_test *t = *state;
    char path[256];
    grow(t, t->id, 0, 96);
    close_store(t);
    pack_name(t, 1, path, sizeof path);
    size_t n;
    uint8_t *p = read_all(path, &n);
    size_t first = 4096, size = 0;
    while (memcmp(p + first + size + 4096, "AGDEXT1\n", 8) != 0)
        size += 4096;
    size += 4096;
    uint8_t *swap = malloc(size);
    memcpy(swap, p + first, size);
    memmove(p + first, p + first + size, size);
    memcpy(p + first + size, swap, size);
    free(swap);
    write_all(path, p, n);
    free(p);
    open_store(t);
    assert_int_equal(restored(t, t->id, HEAD_ROWS), 0);
    assert_int_equal(counters(t).extents_damaged, 2);
}

static void packs_of_another_key_are_refused(void **state)
{
    struct pack_test *t = *state;
    char from[256], to[256];
    struct error e;
    struct store_fixture other;
    store_fixture_init(&other, false);
    assert_ok(store_fixture_open(&other, &e), &e);
    char id[SESSION_ID_CAP];
    fixture_session(&other, "s", id);
    assert_ok(fixture_append(other.st, id, 0, 100, SEGMENT_INPUT, &e), &e);
    assert_ok(state_save(other.st, id, &t->l, 0, 100, true, NULL, &e), &e);
    store_close(other.st);
    other.st = NULL;
    close_store(t);
    snprintf(from, sizeof from, "%s/00000001.pack", other.packs);
    pack_name(t, 1, to, sizeof to);
    size_t n;
    uint8_t *p = read_all(from, &n);
    write_all(to, p, n);
    free(p);
    open_store(t);
    assert_int_equal(counters(t).packs_refused, 1);
    assert_ok(fixture_append(t->f.st, t->id, 0, 100, SEGMENT_INPUT, &e), &e);
    assert_int_equal(restored(t, t->id, HEAD_ROWS), 0);
    store_fixture_fini(&other);
}

/* ---- the database ------------------------------------------------------------------------ */

static void remove_database(struct pack_test *t)
{
    close_store(t);
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < 3; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s%s", t->f.db, ends[i]);
        unlink(path);
    }
}

static void a_lost_database_finds_its_blocks_again(void **state)
{
    struct pack_test *t = *state;
    struct error e;
    char id[SESSION_ID_CAP];
    for (uint32_t i = 0; i < 12; i++)
        grow(t, t->id, i * 100, 20);
    assert_true(counters(t).packs >= 3);
    remove_database(t);
    open_store(t);
    assert_int_equal(counters(t).extents_adopted, 15);
    assert_int_equal(counters(t).extents_damaged, 0);
    assert_int_equal(counters(t).blocks, 15);
    fixture_session(&t->f, "again", id);
    for (uint32_t i = 0; i < 12; i++)
        assert_ok(fixture_append(t->f.st, id, i * 100, 20, SEGMENT_INPUT, &e), &e);
    assert_int_equal(restored(t, id, HEAD_ROWS), 240);
    assert_ok(state_save(t->f.st, id, &t->l, 240, 240, true, NULL, &e), &e);
    store_fixture_reopen(&t->f);
    assert_int_equal(restored(t, id, HEAD_TIP), 240);
}

/* Every byte of a sealed pack, list and trailer included: seen when its catalog is rebuilt. */
static void a_damaged_list_is_noticed(void **state)
{
    struct pack_test *t = *state;
    char path[256];
    for (uint32_t i = 0; i < 8; i++)
        grow(t, t->id, i * 100, 20);
    remove_database(t);
    pack_name(t, 1, path, sizeof path);
    size_t n;
    uint8_t *p = read_all(path, &n);
    assert_memory_equal(p + n - 4096, "AGDLIST1", 8);
    for (size_t i = n - 3 * 4096; i < n; i += getenv("AGENTD_SLOW") ? 1 : 501) {
        if (i == n - 4096)
            i += 8; /* without its magic there is no trailer, as in a pack never sealed */
        p[i] ^= 4;
        write_all(path, p, n);
        p[i] ^= 4;
        open_store(t);
        assert_true(counters(t).extents_damaged > 0);
        remove_database(t);
    }
    free(p);
}

static void name_lost(void *user, const char *id)
{
    char(*out)[SESSION_ID_CAP] = user;
    memcpy(*out, id, SESSION_ID_CAP);
}

/* The WAL is deleted while nobody has the store: the database is then as old as its file, and
 * all that it refers to must be there still. */
static void a_deleted_wal_is_noticed(void **state)
{
    struct pack_test *t = *state;
    grow(t, t->id, 0, 20);
    close_store(t);
    pid_t pid = fork();
    if (pid == 0) {
        open_store(t);
        grow(t, t->id, 100, 20);
        grow(t, t->id, 200, 20);
        grow(t, t->id, 300, 20);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    char path[256];
    snprintf(path, sizeof path, "%s-wal", t->f.db);
    assert_int_equal(unlink(path), 0);
    open_store(t);
    assert_int_equal(counters(t).commits_lost, 3);
    char lost[SESSION_ID_CAP] = "";
    store_lost_sessions(t->f.st, name_lost, &lost);
    assert_string_equal(lost, t->id);
    assert_int_equal(fixture_length(t->f.st, t->id), 20);
    assert_int_equal(restored(t, t->id, HEAD_TIP), 20);
    grow(t, t->id, 100, 20);
    assert_int_equal(restored(t, t->id, HEAD_TIP), 40);
    store_fixture_reopen(&t->f);
    assert_int_equal(counters(t).commits_lost, 0);
    assert_int_equal(restored(t, t->id, HEAD_TIP), 40);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
#define U(fn, s) cmocka_unit_test_setup_teardown(fn, s, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(every_flipped_byte_is_noticed),
        T(no_byte_of_a_live_pack_is_unguarded),
        T(damage_is_set_aside_and_mended),
        T(all_damage_of_a_chain_is_found_at_once),
        T(a_cut_pack_loses_its_end_only),
        T(syv_ai_33_vllm_165_junk_is_harmless),
        U(new_packs_step_over_junk, setup_small_packs),
        U(codex_11634_a_lost_pack_is_a_shorter_prefix, setup_small_packs),
        U(llama_cpp_27148_swapped_packs_are_refused, setup_small_packs),
        T(swapped_extents_are_refused),
        T(packs_of_another_key_are_refused),
        U(a_lost_database_finds_its_blocks_again, setup_small_packs),
        U(a_damaged_list_is_noticed, setup_small_packs),
        T(a_deleted_wal_is_noticed),
    };
    /* This is about rows. */
    const struct CMUnitTest with_planes[] = {
        T(a_damaged_tail_asks_for_its_rows_again),
    };
    int failed = run_with_both_shapes(tests);
    return !!(failed + cmocka_run_group_tests(with_planes, NULL, NULL));
}
