/* What is served when a byte has changed: every byte of the files of a small store is flipped
 * in turn, packs and database; each time the store is opened, everything in it is read and the
 * state of both sessions restored. All of it is as it was, or less and says so, or is refused
 * with a reason. Never another text, token or row.
 *
 * The long form takes each byte, in two processes; the short one every 211th. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/fs.h"
#include "tests/support/store_transcript.h"
#include "tests/support/test.h"

#define MAX_FILES 8
#define PAGE_BYTES 512 /* of the database */
#define WORKERS 2

/* Which of them this process is, and the distance of two bytes that it takes. */
static size_t worker, stride = 211;

/* The files as they are, and what they say. */
struct served {
    struct store_fixture f;
    struct store_sample s;
    struct transcript want;
    struct {
        char path[200];
        struct buf bytes;
    } files[MAX_FILES]; /* the database is the first */
    size_t n_files;
};

struct tally {
    size_t bytes, flagged, refused, shorter, unclear;
};

/* ---- a small store ----------------------------------------------------------------------- */

/* Pages of 512 bytes: otherwise most of the file is the free room of fifty tables and indexes,
 * and none of their rows needs a second page. */
static void make_pages_small(const char *path)
{
    static const char sql[] = "PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM;"
                              "PRAGMA journal_mode = WAL;";
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", path, sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void take_file(struct served *t, const char *path)
{
    struct error e;
    assert_true(t->n_files < MAX_FILES);
    snprintf(t->files[t->n_files].path, sizeof t->files[0].path, "%s", path);
    t->files[t->n_files].bytes = (struct buf)BUF_INIT(1 << 24);
    assert_ok(fs_read_file(path, &t->files[t->n_files++].bytes, &e), &e);
}

static void make(struct served *t, enum layout_shape shape, enum store_encrypt encrypt)
{
    struct error e;
    memset(t, 0, sizeof *t);
    store_fixture_init_in_memory(&t->f);
    t->f.options.encrypt = encrypt;
    t->f.options.pack_bytes = 45000; /* the first one is sealed */
    assert_ok(store_fixture_open(&t->f, &e), &e);
    state_layout_replace(shape);
    store_sample_make(t->f.st, &t->s);
    state_layout_replace(LAYOUT_ODD);
    store_close(t->f.st);
    t->f.st = NULL;
    make_pages_small(t->f.db);
    take_file(t, t->f.db);
    for (int i = 1; i < MAX_FILES; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/%08d.pack", t->f.packs, i);
        if (access(path, F_OK) == 0)
            take_file(t, path);
    }
    transcript_read(&t->f, &t->s, &t->want);
    assert_int_equal(t->want.rc, OK);
    assert_true(t->want.restored[0] == SAMPLE_TOKENS && t->want.restored[1] > 0);
}

static void drop_files(struct served *t)
{
    for (size_t i = 0; i < t->n_files; i++)
        buf_fini(&t->files[i].bytes);
    t->n_files = 0;
}

static void unmake(struct served *t)
{
    drop_files(t);
    store_fixture_fini(&t->f);
}

/* ---- flips ------------------------------------------------------------------------------- */

static void write_file(const char *path, const struct buf *b)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(b->data, 1, b->len, out), b->len);
    assert_int_equal(fclose(out), 0);
}

/* What a run has left goes. */
static void put_back(struct served *t)
{
    char path[200];
    snprintf(path, sizeof path, "%s-wal", t->f.db);
    unlink(path);
    snprintf(path, sizeof path, "%s.lock", t->f.db);
    unlink(path);
    for (size_t i = 0; i < t->n_files; i++)
        write_file(t->files[i].path, &t->files[i].bytes);
}

/* What is being looked at; and for how long at most, in seconds: a damaged page has made a
 * start go round in circles. */
#define PATIENCE 60
static char what[260];

static void out_of_patience(int sig)
{
    (void)sig;
    static const char says[] = ": this does not end\n";
    if (write(STDERR_FILENO, what, strlen(what)) < 0 ||
        write(STDERR_FILENO, says, sizeof says - 1) < 0)
        _exit(3);
    _exit(2);
}

static void flip(struct served *t, size_t file, size_t off, struct tally *n)
{
    static struct transcript got;
    uint8_t mask = (uint8_t)(1u << (off / 7 + off) % 8),
            *byte = &t->files[file].bytes.data[off];
    *byte ^= mask;
    put_back(t);
    *byte ^= mask;
    snprintf(what, sizeof what, "%s byte %zu ^ 0x%x", t->files[file].path, off, mask);
    alarm(PATIENCE);
    transcript_read(&t->f, &t->s, &got);
    alarm(0);
    n->bytes++;
    n->flagged += transcript_compare(&t->want, &got, what);
    n->refused += got.refused;
    /* The schema's version may be that of a newer build. */
    if (got.refused && got.rc != ERR_CORRUPT && got.rc != ERR_UNSUPPORTED) {
        print_error("%s: refused with %s (%s), which does not say damaged\n", what,
                    err_name(got.rc), got.e.msg);
        n->unclear++;
    }
    for (int i = 0; i < 2 && !got.refused; i++)
        n->shorter += got.restored[i] < t->want.restored[i];
}

static size_t page_of(const char *path, const char *table)
{
    sqlite3 *db;
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT rootpage FROM sqlite_schema WHERE name = ?",
                                        -1, &q, NULL),
                     SQLITE_OK);
    sqlite3_bind_text(q, 1, table, -1, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    size_t page = (size_t)sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return page;
}

/* Each byte of the page that a start walks in steps, in the short form, too: rows that came
 * out of order there have kept it going round in circles. */
static void the_page_of_packs(void **state)
{
    (void)state;
    static struct served t;
    struct tally n = {0};
    make(&t, LAYOUT_SMALL, STORE_ENCRYPT_OFF);
    put_back(&t);
    size_t at = (page_of(t.f.db, "packs") - 1) * PAGE_BYTES;
    for (size_t off = at; off < at + PAGE_BYTES; off++)
        flip(&t, 0, off, &n);
    assert_int_equal(n.bytes, PAGE_BYTES);
    assert_true(n.unclear == 0 && n.shorter > 10);
    unmake(&t);
}

static void flip_files(enum layout_shape shape, enum store_encrypt encrypt, bool database)
{
    static struct served t;
    struct tally n = {0};
    make(&t, shape, encrypt);
    assert_true(t.n_files > 2 || shape == LAYOUT_SMALL_TIP);
    size_t first = database ? 0 : 1, end = database ? 1 : t.n_files;
    for (size_t file = first; file < end; file++)
        for (size_t off = worker; off < t.files[file].bytes.len; off += stride)
            flip(&t, file, off, &n);
    fprintf(stderr, "%zu bytes of %s flipped: %zu flagged, %zu refused, %zu with less state\n",
            n.bytes, database ? "the database" : "packs", n.flagged, n.refused, n.shorter);
    assert_int_equal(n.unclear, 0);
    assert_true(database ? n.flagged > 0 : n.shorter > 0);
    unmake(&t);
}

/* ---- a process that died ----------------------------------------------------------------- */

static void commit(struct served *t, const char *id, const char *item)
{
    uint32_t ids[] = {7, 8, 9};
    struct error e;
    struct tape_segment s = {
        .seg = {fixture_length(t->f.st, id), 3, SEGMENT_INPUT, PREFILL_CED}};
    struct tape_event ev = {.type = "item",
                            .item = item,
                            .kind = "user",
                            .json = "{\"text\":\"again\"}",
                            .position = TAPE_END};
    struct tape_commit c = {.session = id,
                            .position = s.seg.start,
                            .ids = ids,
                            .n_ids = 3,
                            .segments = &s,
                            .n_segments = 1,
                            .events = &ev,
                            .n_events = 1};
    if (tape_commit(t->f.st, &c, NULL, &e))
        _exit(2);
}

/* A commit in each session, in a process that dies. Files: database, -wal, lock file, packs. */
static void make_dead(struct served *t, struct transcript *after)
{
    char path[200];
    int status;
    make(t, LAYOUT_SMALL, STORE_ENCRYPT_OFF);
    pid_t pid = fork();
    if (pid == 0) {
        if (store_fixture_open(&t->f, NULL))
            _exit(1);
        commit(t, t->s.id, "i5");
        commit(t, t->s.fork, "i6");
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    drop_files(t);
    take_file(t, t->f.db);
    snprintf(path, sizeof path, "%s-wal", t->f.db);
    take_file(t, path);
    snprintf(path, sizeof path, "%s.lock", t->f.db);
    take_file(t, path);
    put_back(t);
    transcript_read(&t->f, &t->s, after);
    assert_int_equal(after->rc, OK);
    assert_false(after->loss_told);
    assert_false(transcript_same(after, &t->want, 0) || transcript_same(after, &t->want, 1));
}

/* Each session has both of its commits, or is as it was before and named. */
static size_t check_both(struct served *t, const struct transcript *after)
{
    static struct transcript got;
    size_t n = 0;
    put_back(t);
    transcript_read(&t->f, &t->s, &got);
    if (got.refused)
        fail_msg("%s: refused (%s)", what, got.e.msg);
    for (int i = 0; i < 2; i++) {
        bool whole = transcript_same(after, &got, i);
        if (!whole && !transcript_same(&t->want, &got, i))
            fail_msg("%s: session %d is neither as it was before nor as it was after", what, i);
        if (got.lost[i] == whole)
            fail_msg("%s: session %d %s", what, i,
                     whole ? "is whole, and said to have lost commits"
                           : "has lost commits, and is not named");
        n += !whole;
    }
    assert_int_equal(got.loss_told, n > 0);
    return n;
}

/* Each byte of the -wal changed, and the -wal cut at each byte and removed: what SQLite then
 * does not read was acknowledged. */
static void a_damaged_wal(void **state)
{
    (void)state;
    static struct served t;
    static struct transcript after;
    size_t n = 0, n_lost = 0;
    make_dead(&t, &after);
    struct buf *wal = &t.files[1].bytes;
    for (size_t off = worker; off < wal->len; off += stride, n++) {
        uint8_t mask = (uint8_t)(1u << (off / 7 + off) % 8);
        snprintf(what, sizeof what, "-wal, byte %zu ^ 0x%x", off, mask);
        wal->data[off] ^= mask;
        n_lost += check_both(&t, &after);
        wal->data[off] ^= mask;
    }
    size_t whole = wal->len;
    for (wal->len = worker; wal->len < whole; wal->len += stride) {
        snprintf(what, sizeof what, "-wal of %zu bytes", wal->len);
        assert_true(check_both(&t, &after) > 0);
    }
    wal->len = whole;
    fprintf(stderr, "%zu bytes of a -wal flipped: %zu times a session lost its commit\n", n,
            n_lost);
    assert_true(n_lost > n / 4);
    unmake(&t);
}

/* Nothing is lost: whatever the lock file says, nobody is told so. */
static void a_damaged_lock_file(void **state)
{
    (void)state;
    static struct served t;
    static struct transcript after;
    make_dead(&t, &after);
    struct buf *lock = &t.files[2].bytes;
    for (size_t off = 0; off < lock->len; off += off < 16 || off >= 4096 ? 1 : 173) {
        snprintf(what, sizeof what, "lock file, byte %zu", off);
        lock->data[off] ^= 0x20;
        assert_int_equal(check_both(&t, &after), 0);
        lock->data[off] ^= 0x20;
    }
    unmake(&t);
}

static void the_database(void **state)
{
    (void)state;
    flip_files(LAYOUT_SMALL, STORE_ENCRYPT_OFF, true);
    flip_files(LAYOUT_SMALL, STORE_ENCRYPT_ON, true);
}

static void packs(void **state)
{
    (void)state;
    flip_files(LAYOUT_SMALL, STORE_ENCRYPT_OFF, false);
    flip_files(LAYOUT_SMALL, STORE_ENCRYPT_ON, false);
}

static void packs_of_tips_alone(void **state)
{
    (void)state;
    flip_files(LAYOUT_SMALL_TIP, STORE_ENCRYPT_OFF, false);
    flip_files(LAYOUT_SMALL_TIP, STORE_ENCRYPT_ON, false);
}

/* The first worker is this process; of the others only failures are shown. */
static void start_workers(pid_t *pids)
{
    stride = WORKERS;
    for (size_t i = 1; i < WORKERS && !worker; i++)
        if ((pids[i] = fork()) == 0) {
            worker = i;
            int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
            dup2(fd, STDOUT_FILENO);
            close(fd);
        }
}

static bool workers_failed(const pid_t *pids)
{
    bool failed = false;
    for (size_t i = 1; i < WORKERS && !worker; i++) {
        int status = -1;
        failed |= pids[i] < 0 || waitpid(pids[i], &status, 0) != pids[i] || status != 0;
    }
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_of_packs),
        cmocka_unit_test(the_database),
        cmocka_unit_test(packs),
        cmocka_unit_test(packs_of_tips_alone),
        cmocka_unit_test(a_damaged_wal),
        cmocka_unit_test(a_damaged_lock_file),
    };
    pid_t pids[WORKERS] = {0};
    signal(SIGALRM, out_of_patience);
    bool slow = getenv("AGENTD_SLOW") != NULL;
    if (slow)
        start_workers(pids);
    bool failed = cmocka_run_group_tests(tests, NULL, NULL) != 0;
    return (slow && workers_failed(pids)) || failed;
}
