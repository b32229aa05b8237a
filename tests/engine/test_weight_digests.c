/* Digests of weights: what is remembered is believed for the same file in the same state alone,
 * whatever the cache holds and whoever writes to it; a shard that changes under a hash is seen.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fault.h"
#include "engine/digest_cache.h"
#include "engine/weight_digests.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#define N_TENSORS 5
#define LATER_MS INT64_C(10000) /* by which what was just written is old */
#define LARGE (UINT64_C(200) << 20)

/* ---- a checkpoint of two shards -----------------------------------------------------------
 */

static char dir[TEMPDIR_BYTES], cache[TEMPDIR_BYTES + 8];

static const char *path_of(const char *name)
{
    static char path[TEMPDIR_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_shard(const char *name, const char *header, size_t n_data, uint64_t n_all)
{
    uint8_t bytes[1024] = {(uint8_t)strlen(header), (uint8_t)(strlen(header) >> 8)};
    size_t n = 8 + strlen(header);
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    memcpy(bytes + 8, header, n - 8);
    for (size_t i = 0; i < n_data; i++)
        bytes[n++] = (uint8_t)(i * 7 + n_data);
    assert_int_equal(write(fd, bytes, n), n);
    if (n_all)
        assert_int_equal(ftruncate(fd, (off_t)(8 + strlen(header) + n_all)), 0);
    close(fd);
}

#define A "a.safetensors"
#define B "b.safetensors"

/* In B the order of names is not that of places, and one is empty. */
static int setup(void **state)
{
    static const char index[] = "{\"weight_map\":{\"v\":\"" B "\",\"w\":\"" A "\",\"x\":\"" B
                                "\",\"y\":\"" A "\",\"z\":\"" B "\"}}";
    (void)state;
    tempdir_make(dir);
    snprintf(cache, sizeof cache, "%s/cache", dir);
    write_shard(A,
                "{\"w\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
                "\"y\":{\"dtype\":\"U8\",\"shape\":[11],\"data_offsets\":[5,16]}}",
                16, 0);
    write_shard(B,
                "{\"z\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[0,7]},"
                "\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[7,7]},"
                "\"v\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[7,10]}}",
                10, 0);
    FILE *f = fopen(path_of("model.safetensors.index.json"), "we");
    assert_true(fputs(index, f) >= 0);
    assert_int_equal(fclose(f), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tempdir_remove(dir);
    return 0;
}

/* Changes a byte in place and sets mtime back to what it was. */
static void spoil(const char *name, off_t from_end)
{
    struct stat st;
    uint8_t b;
    int fd = open(path_of(name), O_RDWR | O_CLOEXEC);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(pread(fd, &b, 1, st.st_size - from_end), 1);
    b ^= 1;
    assert_int_equal(pwrite(fd, &b, 1, st.st_size - from_end), 1);
    assert_int_equal(futimens(fd, (struct timespec[]){st.st_atim, st.st_mtim}), 0);
    close(fd);
}

/* ---- one look at it -----------------------------------------------------------------------
 */

struct seen {
    uint32_t n_notices;
    uint64_t n_hashed;    /* bytes */
    char notice[400];     /* the last one */
    void (*meddle)(void); /* once, when `at` bytes are hashed */
    uint64_t at;
};

static void on_hashing(void *user, uint64_t done, uint64_t total)
{
    struct seen *s = user;
    assert_true(done <= total);
    assert_true(done >= s->n_hashed);
    s->n_hashed = done;
    if (s->meddle && done >= s->at) {
        s->meddle();
        s->meddle = NULL;
    }
}

static void on_notice(void *user, const char *text)
{
    struct seen *s = user;
    s->n_notices++;
    snprintf(s->notice, sizeof s->notice, "%s", text);
}

static enum err look_with(struct weight_digests_options o, struct seen *s,
                          uint8_t out[N_TENSORS][HASH_BYTES], struct error *e)
{
    const struct engine_watch watch = {s, on_hashing, on_notice};
    struct fake_clock clock;
    struct safetensors *st = NULL;
    fake_clock_init(&clock, clock_wall_ms(clock_real()) + LATER_MS);
    o.dir = dir;
    o.watch = &watch;
    o.clock = o.clock ? o.clock : &clock.clock;
    o.n_threads = o.n_threads ? o.n_threads : 2;
    enum err rc = safetensors_open_dir(&st, dir, e);
    if (!rc)
        rc = weight_digests(st, &o, out, e);
    safetensors_free(st);
    return rc;
}

/* What the digests have to be, from the mapping. */
static void expect_right(uint8_t have[N_TENSORS][HASH_BYTES])
{
    struct safetensors *st = NULL;
    struct error e = {0};
    uint8_t want[HASH_BYTES];
    size_t n = 0;
    assert_ok(safetensors_open_dir(&st, dir, &e), &e);
    const struct tensor *t = safetensors_list(st, &n);
    assert_int_equal(n, N_TENSORS);
    for (size_t i = 0; i < n; i++) {
        hash_bytes(NULL, t[i].data, t[i].n_bytes, want);
        assert_memory_equal(have[i], want, HASH_BYTES);
    }
    safetensors_free(st);
}

/* Looks, with a cache, and expects that many bytes to be hashed and that many notices. */
static void look(uint64_t n_hashed, uint32_t n_notices)
{
    struct seen s = {0};
    struct error e = {0};
    uint8_t out[N_TENSORS][HASH_BYTES] = {{0}};
    assert_ok(look_with((struct weight_digests_options){.cache_dir = cache}, &s, out, &e), &e);
    expect_right(out);
    assert_int_equal(s.n_hashed, n_hashed);
    if (s.n_notices != n_notices)
        fail_msg("%u notices, the last: %s", s.n_notices, s.notice);
}

/* ---- hits and misses ----------------------------------------------------------------------
 */

static void test_hit(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads < 4; threads++) {
        struct seen s = {0};
        struct error e = {0};
        uint8_t out[N_TENSORS][HASH_BYTES] = {{0}};
        assert_ok(look_with((struct weight_digests_options){.n_threads = threads}, &s, out, &e),
                  &e);
        expect_right(out);
        assert_int_equal(s.n_hashed, 26);
    }
    assert_int_equal(access(cache, F_OK), -1); /* nothing is kept where nobody said so */
    look(26, 0);
    look(0, 0);
    look(0, 0);
}

static void test_verify(void **state)
{
    struct seen s = {0};
    struct error e = {0};
    uint8_t out[N_TENSORS][HASH_BYTES];
    (void)state;
    look(26, 0);
    assert_ok(look_with((struct weight_digests_options){.cache_dir = cache, .verify = true}, &s,
                        out, &e),
              &e);
    expect_right(out);
    assert_int_equal(s.n_hashed, 26);
    look(0, 0);
}

/* Only the shard that is another one now is hashed. */
static void test_changed(void **state)
{
    char other[TEMPDIR_BYTES + 64];
    (void)state;
    look(26, 0);
    spoil(A, 3); /* its mtime is set back: ctime tells */
    look(16, 0);
    look(0, 0);
    assert_int_equal(utimensat(AT_FDCWD, path_of(B), NULL, 0), 0);
    look(10, 0);
    snprintf(other, sizeof other, "%s/other", dir);
    assert_int_equal(rename(path_of(B), other), 0); /* ctime, on most file systems */
    assert_int_equal(rename(other, path_of(B)), 0);
    look(10, 0);
    assert_int_equal(chmod(path_of(A), 0400), 0);
    look(16, 0);
    look(0, 0);
}

static void test_each_field(void **state)
{
    const struct digest_key key = {{1, 2, 3, 4, 5}, {6}, 2};
    uint8_t digests[2 * HASH_BYTES] = {7}, out[3 * HASH_BYTES];
    struct error e = {0};
    (void)state;
    assert_ok(digest_cache_keep(cache, &key, digests, &e), &e);
    assert_ok(digest_cache_find(cache, &key, out, &e), &e);
    assert_memory_equal(out, digests, sizeof digests);
    for (int i = 0; i < 8; i++) {
        struct digest_key k = key;
        AUTO(buf) struct buf file = BUF_INIT(4096);
        k.file.dev += i == 0;
        k.file.ino += i == 1;
        k.file.n_bytes += i == 2;
        k.file.mtime_ns += i == 3;
        k.file.ctime_ns += i == 4;
        k.header[31] ^= i == 5;
        k.n_tensors += i == 6;
        k.n_tensors -= i == 7;
        enum err rc = digest_cache_find(cache, &k, out, &e);
        /* One digest too many for its file is longer than what may be there. */
        assert_int_equal(rc, i == 7 ? ERR_CORRUPT : ERR_NOTFOUND);
        /* Also where the name of the file does not tell. */
        assert_ok(digest_cache_format(&key, digests, &file, &e), &e);
        assert_int_equal(digest_cache_parse(file.data, file.len, &k, out, &e), ERR_NOTFOUND);
    }
}

/* A write within the same tick of the clock may leave the same ctime. */
static void test_too_fresh(void **state)
{
    struct seen s = {0};
    struct error e = {0};
    uint8_t out[N_TENSORS][HASH_BYTES];
    struct stat st;
    struct fake_clock clock;
    (void)state;
    assert_int_equal(stat(path_of(A), &st), 0);
    fake_clock_init(&clock, st.st_ctim.tv_sec * 1000 + st.st_ctim.tv_nsec / 1000000 + 5);
    const struct weight_digests_options o = {.cache_dir = cache, .clock = &clock.clock};
    assert_ok(look_with(o, &s, out, &e), &e);
    assert_int_equal(s.n_notices, 2);
    assert_non_null(strstr(s.notice, "remembered the next time"));
    look(26, 0);
}

/* ---- a cache that is not what it should be ------------------------------------------------
 */

static const char *cache_file(const char *shard)
{
    static char path[TEMPDIR_BYTES + 64];
    struct stat st;
    assert_int_equal(stat(path_of(shard), &st), 0);
    snprintf(path, sizeof path, "%s/%" PRIx64 "-%" PRIx64 ".digests", cache,
             (uint64_t)st.st_dev, (uint64_t)st.st_ino);
    return path;
}

/* Every byte flipped, and every length. */
static void test_damaged(void **state)
{
    const struct digest_key key = {{1, 2, 3, 4, 5}, {6}, 2};
    uint8_t digests[2 * HASH_BYTES] = {7}, out[2 * HASH_BYTES], none[2 * HASH_BYTES] = {0};
    AUTO(buf) struct buf file = BUF_INIT(4096);
    struct error e = {0};
    (void)state;
    assert_ok(digest_cache_format(&key, digests, &file, &e), &e);
    for (size_t i = 0; i < file.len; i++) {
        memset(out, 0, sizeof out);
        assert_int_equal(digest_cache_parse(file.data, i, &key, out, &e), ERR_CORRUPT);
        for (int bit = 0; bit < 8; bit++) {
            file.data[i] ^= (uint8_t)(1 << bit);
            assert_int_equal(digest_cache_parse(file.data, file.len, &key, out, &e),
                             ERR_CORRUPT);
            file.data[i] ^= (uint8_t)(1 << bit);
        }
        assert_memory_equal(out, none, sizeof out);
    }
    assert_ok(digest_cache_parse(file.data, file.len, &key, out, &e), &e);
}

static void test_foreign(void **state)
{
    static const char *const CONTENTS[] = {"", "agentd digests 1", "something else"};
    (void)state;
    look(26, 0);
    for (size_t i = 0; i < sizeof CONTENTS / sizeof *CONTENTS; i++) {
        FILE *f = fopen(cache_file(A), "we");
        assert_true(fputs(CONTENTS[i], f) >= 0);
        assert_int_equal(fclose(f), 0);
        look(16, 1); /* said, hashed, and replaced */
        look(0, 0);
    }
    assert_int_equal(truncate(cache_file(A), 100 << 20), 0);
    look(16, 1);
    assert_int_equal(unlink(cache_file(A)), 0);
    assert_int_equal(mkdir(cache_file(A), 0700), 0);
    look(16, 2); /* cannot be read, nor replaced */
    assert_int_equal(rmdir(cache_file(A)), 0);
    assert_int_equal(symlink("/nowhere/at/all", cache_file(A)), 0);
    look(16, 0); /* a link is replaced, not followed for writing */
    look(0, 0);
    /* B's under the name of A's: of another shard. */
    char b[TEMPDIR_BYTES + 64];
    snprintf(b, sizeof b, "%s", cache_file(B));
    assert_int_equal(rename(b, cache_file(A)), 0);
    look(26, 1); /* longer than A's may be */
    look(0, 0);
}

/* As a user who may read everything here and write nothing. Returns the number of notices. */
static int look_as_somebody(void)
{
    int status = 0;
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(chmod(path_of(A), 0644), 0);
    assert_int_equal(chmod(path_of(B), 0644), 0);
    assert_int_equal(chmod(cache, 0555), 0);
    pid_t pid = fork();
    if (!pid) {
        struct seen s = {0};
        uint8_t out[N_TENSORS][HASH_BYTES];
        if (!geteuid() && setuid(65534))
            _exit(100);
        if (look_with((struct weight_digests_options){.cache_dir = cache}, &s, out, NULL))
            _exit(101);
        _exit((int)s.n_notices);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_no_folder(void **state)
{
    (void)state;
    int fd = open(cache, O_WRONLY | O_CREAT | O_CLOEXEC, 0600); /* a file is in its place */
    close(fd);
    look(26, 4);
    assert_int_equal(unlink(cache), 0);
    assert_int_equal(mkdir(cache, 0500), 0);
    assert_int_equal(look_as_somebody(), 2);
    assert_int_equal(chmod(cache, 0700), 0);
}

/* With the folder full, the file that was written first goes. */
static void test_full_folder(void **state)
{
    const struct digest_key key = {{1, 2, 3, 4, 5}, {6}, 0};
    struct error e = {0};
    char path[TEMPDIR_BYTES + 64];
    (void)state;
    assert_int_equal(mkdir(cache, 0700), 0);
    for (int i = 0; i < DIGEST_CACHE_MAX_FILES; i++) {
        const struct timespec t = {1000 + (i ? i : 77), 0};
        snprintf(path, sizeof path, "%s/%x", cache, (unsigned)i);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(futimens(fd, (struct timespec[]){t, t}), 0);
        close(fd);
    }
    assert_ok(digest_cache_keep(cache, &key, NULL, &e), &e);
    assert_ok(digest_cache_find(cache, &key, NULL, &e), &e);
    snprintf(path, sizeof path, "%s/1", cache);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof path, "%s/2", cache);
    assert_int_equal(access(path, F_OK), 0);
}

/* Each call that can fail does: what comes out is right, or nothing does. */
static void test_faults(void **state)
{
    struct error e = {0};
    uint32_t n_refused = 0, n_told = 0;
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct seen s = {0};
        uint8_t out[N_TENSORS][HASH_BYTES] = {{0}};
        if (!access(cache, F_OK))
            tempdir_remove(cache);
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc =
            look_with((struct weight_digests_options){.cache_dir = cache}, &s, out, &e);
        bool hit = fault_disarm();
        if (!rc)
            expect_right(out);
        n_refused += rc != OK;
        n_told += !rc && s.n_notices;
        if (!hit) {
            assert_ok(rc, &e);
            break;
        }
    }
    assert_true(n_refused > 10 && n_told > 10);
}

/* ---- others -------------------------------------------------------------------------------
 */

static void test_processes(void **state)
{
    pid_t child[4];
    (void)state;
    for (int c = 0; c < 4; c++) {
        child[c] = fork();
        if (child[c])
            continue;
        for (int i = 0; i < 6; i++) {
            struct seen s = {0};
            uint8_t out[N_TENSORS][HASH_BYTES];
            struct weight_digests_options o = {.cache_dir = cache, .verify = i % 2};
            if (look_with(o, &s, out, NULL) || s.n_notices)
                _exit(1);
        }
        _exit(0);
    }
    for (int c = 0; c < 4; c++) {
        int status;
        assert_int_equal(waitpid(child[c], &status, 0), child[c]);
        assert_int_equal(status, 0);
    }
    look(0, 0);
}

static void write_to_a(void)
{
    spoil(A, 1);
}

static void cut_a(void)
{
    assert_int_equal(truncate(path_of(A), 100), 0);
}

static void replace_a(void)
{
    char other[TEMPDIR_BYTES + 64];
    snprintf(other, sizeof other, "%s", path_of("other"));
    write_shard("other",
                "{\"w\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
                "\"y\":{\"dtype\":\"U8\",\"shape\":[11],\"data_offsets\":[5,16]}}",
                16, 0);
    assert_int_equal(rename(other, path_of(A)), 0);
}

static void test_changed_while_open(void **state)
{
    static const struct {
        void (*meddle)(void);
        const char *says;
    } CASES[] = {{write_to_a, A ": written to while it was in use"},
                 {cut_a, A ": changed while it was in use, from 131 to 100 bytes"},
                 {replace_a, A ": another file took its place while it was in use"}};
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct seen s = {.meddle = CASES[i].meddle};
        struct error e = {0};
        uint8_t out[N_TENSORS][HASH_BYTES];
        teardown(NULL);
        setup(NULL);
        enum err rc =
            look_with((struct weight_digests_options){.cache_dir = cache}, &s, out, &e);
        assert_int_equal(rc, ERR_CONFLICT);
        if (!strstr(e.msg, CASES[i].says))
            fail_msg("\"%s\", want \"%s\"", e.msg, CASES[i].says);
    }
}

static void write_to_large(void)
{
    spoil("large", 1);
}

static void cut_large(void)
{
    assert_int_equal(truncate(path_of("large"), 100 << 20), 0);
}

/* Between two steps of one tensor. */
static void test_changed_while_hashed(void **state)
{
    char header[128];
    (void)state;
    tempdir_remove(dir);
    tempdir_make(dir);
    snprintf(header, sizeof header,
             "{\"t\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[0,%" PRIu64
             "]}}",
             LARGE, LARGE);
    write_shard("large", header, 16, LARGE);
    assert_int_equal(symlink("large", path_of("model.safetensors")), 0);
    struct seen s = {.meddle = write_to_large, .at = LARGE / 2};
    struct error e = {0};
    uint8_t out[N_TENSORS][HASH_BYTES];
    const struct weight_digests_options o = {.cache_dir = cache};
    assert_int_equal(look_with(o, &s, out, &e), ERR_CONFLICT);
    assert_non_null(strstr(e.msg, "written to while it was in use"));
    assert_int_equal(s.n_hashed, LARGE);
    s = (struct seen){.meddle = cut_large, .at = LARGE / 2};
    assert_int_equal(look_with(o, &s, out, &e), ERR_FORMAT); /* it ends early */
    assert_non_null(strstr(e.msg, "tensor t: "));
    assert_int_equal(access(cache, F_OK), -1);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_hit),
        TEST(test_verify),
        TEST(test_changed),
        TEST(test_each_field),
        TEST(test_too_fresh),
        TEST(test_damaged),
        TEST(test_foreign),
        TEST(test_no_folder),
        TEST(test_full_folder),
        TEST(test_faults),
        TEST(test_processes),
        TEST(test_changed_while_open),
        TEST(test_changed_while_hashed),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
