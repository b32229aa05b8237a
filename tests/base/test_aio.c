/* base/aio: one set of tests for both back ends, on direct and buffered descriptors, with and
 * without registered memory, and once more as an unprivileged user with 8 MiB of locked memory.
 */
#include "tests/support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/aio.h"
#include "base/auto.h"
#include "base/fault.h"
#include "tests/support/tempdir.h"

#define FILE_BYTES ((size_t)24 << 20)
#define PIECE_BYTES ((size_t)256 << 10)
#define N_PIECES (FILE_BYTES / PIECE_BYTES)

static char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];
static char *memory; /* FILE_BYTES of reusable buffer */

/* The 32-bit word at byte offset 4 * i of the test file. */
static uint32_t word(uint64_t i)
{
    return (uint32_t)(i * 2654435761u) ^ (uint32_t)(i >> 7);
}

static void fill_words(void *dst, uint64_t off, size_t len)
{
    for (size_t i = 0; i < len / 4; i++)
        ((uint32_t *)dst)[i] = word(off / 4 + i);
}

static bool words_match(const void *src, uint64_t off, size_t len)
{
    for (size_t i = 0; i < len / 4; i++)
        if (((const uint32_t *)src)[i] != word(off / 4 + i))
            return false;
    return true;
}

static int make_file(void **state)
{
    (void)state;
    struct error e = {0};
    void *p;
    tempdir_make(dir);
    snprintf(path, sizeof path, "%s/file", dir);
    assert_ok(aio_buffer_new(FILE_BYTES, &p, &e), &e);
    memory = p;
    return 0;
}

static int remove_file(void **state)
{
    (void)state;
    aio_buffer_free(memory, FILE_BYTES);
    tempdir_remove(dir);
    return 0;
}

/* ---- the whole file in pieces, for every way to do it ----------------------------------- */

struct way {
    bool no_ring, direct, registered, cut;
    uint32_t depth;
};

static const char *const no_error = NULL;

/* Reads or writes all pieces of fd, as many in flight as fit. NULL, or what went wrong: this
 * also runs in a forked child, where assertions have no meaning. */
static const char *move_pieces(struct aio *a, int fd, bool write_them)
{
    static unsigned char seen[N_PIECES];
    struct aio_done done[7];
    memset(seen, 0, sizeof seen);
    for (size_t next = 0, n_back = 0; n_back < N_PIECES;) {
        for (; next < N_PIECES && aio_room(a); next++) {
            /* Backwards and every other one first: no order is promised. */
            size_t piece = next < N_PIECES / 2 ? 2 * next + 1 : 2 * (N_PIECES - 1 - next);
            char *mem = memory + piece * PIECE_BYTES;
            uint64_t off = piece * PIECE_BYTES;
            if (write_them ? aio_write(a, fd, off, mem, PIECE_BYTES, mem, NULL)
                           : aio_read(a, fd, off, mem, PIECE_BYTES, mem, NULL))
                return "a request was not taken";
        }
        size_t n;
        if (aio_wait(a, 1, done, sizeof done / sizeof done[0], &n, NULL) || n == 0)
            return "wait brought nothing";
        for (size_t i = 0; i < n; i++) {
            size_t piece = (size_t)((char *)done[i].user - memory) / PIECE_BYTES;
            if (done[i].sys)
                return strerror(done[i].sys);
            if (done[i].bytes != PIECE_BYTES || seen[piece]++)
                return "a short or a second completion";
        }
        n_back += n;
    }
    return aio_in_flight(a) ? "something is still in flight" : no_error;
}

static int open_way(const struct way *w)
{
    struct error e = {0};
    bool direct = false;
    int fd;
    if (w->direct) {
        assert_ok(aio_open_file(path, O_RDWR | O_CREAT, 0600, &fd, &direct, &e), &e);
        return fd;
    }
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static const char *round_trip(const struct way *w, int fd, size_t *n_registered)
{
    struct aio *a;
    struct aio_options o = {.depth = w->depth, .n_threads = 3, .no_ring = w->no_ring};
    if (aio_open(&o, &a, NULL))
        return "aio_open";
    *n_registered = w->registered ? aio_register(a, memory, FILE_BYTES) : 0;
    fill_words(memory, 0, FILE_BYTES);
    if (w->cut)
        fault_arm(FAULT_FAIL_FROM, "aio.short", 1);
    const char *wrong = move_pieces(a, fd, true);
    memset(memory, 0, FILE_BYTES);
    if (!wrong)
        wrong = move_pieces(a, fd, false);
    fault_disarm();
    aio_unregister(a, memory);
    aio_close(a);
    if (!wrong && !words_match(memory, 0, FILE_BYTES))
        return "other bytes came back";
    return wrong;
}

static const struct way ways[] = {
    {.depth = 64, .direct = true},
    {.depth = 64, .direct = true, .registered = true},
    {.depth = 64, .direct = true, .registered = true, .cut = true},
    {.depth = 1, .direct = true},
    {.depth = 5},
    {.depth = 64, .registered = true, .cut = true},
    {.depth = 64, .no_ring = true, .direct = true, .registered = true},
    {.depth = 64, .no_ring = true, .direct = true, .cut = true},
    {.depth = 1, .no_ring = true, .direct = true},
    {.depth = 5, .no_ring = true, .cut = true},
};

static void test_round_trips(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        size_t n_registered;
        unlink(path);
        AUTO_FD int fd = open_way(&ways[i]);
        const char *wrong = round_trip(&ways[i], fd, &n_registered);
        if (wrong)
            fail_msg("way %zu: %s", i, wrong);
    }
}

/* As nobody (where we may become that), with RLIMIT_MEMLOCK at 8 MiB: everything works, and no
 * more than that is registered. */
static void test_round_trips_unprivileged(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        unlink(path);
        AUTO_FD int fd = open_way(&ways[i]);
        pid_t pid = fork();
        if (pid == 0) {
            size_t n_registered = 0;
            struct rlimit limit = {8 << 20, 8 << 20};
            if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0)
                _exit(2);
            if (getuid() == 0 && (setgid(65534) < 0 || setuid(65534) < 0))
                _exit(3);
            const char *wrong = round_trip(&ways[i], fd, &n_registered);
            if (wrong || n_registered > (8 << 20)) {
                fprintf(stderr, "way %zu: %s, %zu bytes registered\n", i, wrong ? wrong : "",
                        n_registered);
                _exit(1);
            }
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

/* ---- edges, on both back ends ----------------------------------------------------------- */

static struct aio *open_backend(bool no_ring, uint32_t depth)
{
    struct aio *a;
    struct error e = {0};
    struct aio_options o = {.depth = depth, .no_ring = no_ring};
    assert_ok(aio_open(&o, &a, &e), &e);
    return a;
}

static struct aio_done one_read(struct aio *a, int fd, uint64_t off, void *dst, size_t len)
{
    struct error e = {0};
    struct aio_done done;
    size_t n;
    assert_ok(aio_read(a, fd, off, dst, len, NULL, &e), &e);
    assert_ok(aio_wait(a, 1, &done, 1, &n, &e), &e);
    assert_int_equal(n, 1);
    return done;
}

/* The file's end at every interesting place: a read gives what there is, without an error. */
static void test_end_of_file(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 4, 512, 4096, 4100, 8192 - 512, 8192, 12288 - 4, 12288};
    for (int k = 0; k < 4; k++) {
        struct way w = {.direct = k & 1};
        struct aio *a = open_backend(k & 2, 4);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            unlink(path);
            AUTO_FD int fd = open_way(&w);
            AUTO_FD int plain = open(path, O_WRONLY | O_CLOEXEC);
            fill_words(memory, 0, sizes[i]);
            assert_int_equal(write(plain, memory, sizes[i]), sizes[i]);
            for (size_t off = 0; off <= 12288; off += 4096) {
                memset(memory, 0x5a, 12288);
                struct aio_done done = one_read(a, fd, off, memory, 12288);
                assert_int_equal(done.sys, 0);
                assert_int_equal(done.bytes, off < sizes[i] ? sizes[i] - off : 0);
                assert_true(words_match(memory, off, done.bytes));
            }
        }
        aio_close(a);
    }
}

static void test_errors_are_reported(void **state)
{
    (void)state;
    for (int no_ring = 0; no_ring < 2; no_ring++) {
        struct error e = {0};
        struct aio *a = open_backend(no_ring, 2);
        AUTO_FD int fd = open("/dev/full", O_RDWR | O_CLOEXEC);
        struct aio_done done[2];
        size_t n;
        assert_int_equal(one_read(a, -1, 0, memory, 4096).sys, EBADF);
        assert_int_equal(one_read(a, fd, 0, memory, 4096).sys, 0);
        assert_ok(aio_write(a, fd, 0, memory, 4096, memory, &e), &e);
        assert_ok(aio_read(a, fd, 0, memory + 4096, 4096, NULL, &e), &e);
        assert_int_equal(aio_read(a, fd, 0, memory, 4096, NULL, &e), ERR_BUSY);
        assert_string_equal(e.msg, "aio: 2 requests in flight already");
        assert_ok(aio_wait(a, 2, done, 2, &n, &e), &e);
        assert_int_equal(n, 2);
        int write_at = done[0].user == memory ? 0 : 1;
        assert_int_equal(done[write_at].sys, ENOSPC);
        assert_int_equal(done[!write_at].sys, 0);
        assert_int_equal(aio_read(a, fd, 0, memory, 0, NULL, &e), ERR_INVAL);
        assert_int_equal(aio_read(a, fd, UINT64_MAX, memory, 1, NULL, &e), ERR_INVAL);
        assert_int_equal(aio_write(a, fd, INT64_MAX, memory, 1, NULL, &e), ERR_INVAL);
        assert_ok(aio_wait(a, 5, done, 2, &n, &e), &e);
        assert_int_equal(n, 0);
        aio_close(a);
    }
    aio_close(NULL);
}

/* The n-th read of a batch fails; all others are whole. */
static void test_one_of_many_fails(void **state)
{
    (void)state;
    for (int no_ring = 0; no_ring < 2; no_ring++) {
        struct error e = {0};
        struct way w = {.direct = true};
        struct aio *a = open_backend(no_ring, 16);
        unlink(path);
        AUTO_FD int fd = open_way(&w);
        fill_words(memory, 0, 16 * 4096);
        struct aio_done done[16];
        size_t n;
        assert_ok(aio_write(a, fd, 0, memory, 16 * 4096, NULL, &e), &e);
        assert_ok(aio_wait(a, 1, done, 16, &n, &e), &e);
        for (uint64_t nth = 1; nth <= 16; nth++) {
            memset(memory, 0, 16 * 4096);
            fault_arm(FAULT_FAIL, "aio.read", nth);
            for (size_t i = 0; i < 16; i++)
                assert_ok(
                    aio_read(a, fd, i * 4096, memory + i * 4096, 4096, memory + i * 4096, &e),
                    &e);
            assert_ok(aio_submit(a, &e), &e);
            assert_true(fault_disarm());
            assert_ok(aio_wait(a, 16, done, 16, &n, &e), &e);
            assert_int_equal(n, 16);
            for (size_t i = 0; i < 16; i++) {
                size_t k = (size_t)((char *)done[i].user - memory) / 4096;
                assert_int_equal(done[i].sys, k + 1 == nth ? EIO : 0);
                if (k + 1 != nth)
                    assert_true(words_match(memory + k * 4096, k * 4096, 4096));
            }
        }
        aio_close(a);
    }
}

static void test_descriptor_tells_of_completions(void **state)
{
    (void)state;
    for (int no_ring = 0; no_ring < 2; no_ring++) {
        struct error e = {0};
        struct aio *a = open_backend(no_ring, 4);
        struct pollfd p = {.fd = aio_fd(a), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 0), 0);
        AUTO_FD int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
        assert_ok(aio_read(a, fd, 0, memory, 4096, NULL, &e), &e);
        assert_ok(aio_submit(a, &e), &e);
        assert_int_equal(poll(&p, 1, 10000), 1);
        struct aio_done done[4];
        size_t n;
        assert_ok(aio_wait(a, 0, done, 4, &n, &e), &e);
        assert_int_equal(n, 1);
        assert_int_equal(poll(&p, 1, 0), 0);
        aio_close(a);
    }
}

static void test_close_waits_for_what_is_in_flight(void **state)
{
    (void)state;
    for (int no_ring = 0; no_ring < 2; no_ring++) {
        struct error e = {0};
        struct aio *a = open_backend(no_ring, 64);
        struct way w = {.direct = true};
        AUTO_FD int fd = open_way(&w);
        for (size_t i = 0; i < 64; i++)
            assert_ok(aio_read(a, fd, i * 4096, memory + i * 4096, 4096, NULL, &e), &e);
        if (no_ring)
            assert_ok(aio_submit(a, &e), &e);
        aio_close(a);
    }
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    for (int no_ring = 0; no_ring < 2; no_ring++) {
        uint64_t nth = 1;
        for (;; nth++) {
            struct error e = {0};
            struct aio *a = NULL;
            struct aio_options o = {.no_ring = no_ring};
            fault_arm(FAULT_FAIL, "alloc", nth);
            enum err rc = aio_open(&o, &a, &e);
            if (!fault_disarm()) {
                assert_ok(rc, &e);
                aio_close(a);
                break;
            }
            assert_int_equal(rc, ERR_NOMEM);
            assert_null(a);
        }
        assert_int_equal(nth, 3);
    }
    struct error e = {0};
    void *p;
    fault_arm(FAULT_FAIL, "aio.buffer", 1);
    assert_int_equal(aio_buffer_new(4096, &p, &e), ERR_NOMEM);
    fault_disarm();
    assert_int_equal(aio_buffer_new(0, &p, &e), ERR_INVAL);
    assert_int_equal(aio_buffer_new(SIZE_MAX, &p, &e), ERR_INVAL);
}

static void test_a_refused_ring_falls_back(void **state)
{
    (void)state;
    struct error e = {0};
    struct aio *a;
    fault_arm(FAULT_FAIL, "aio.ring", 1);
    assert_ok(aio_open(NULL, &a, &e), &e);
    fault_disarm();
    assert_string_equal(aio_backend(a), "threads");
    aio_close(a);
    struct aio_options o = {.depth = AIO_MAX_DEPTH + 1};
    assert_int_equal(aio_open(&o, &a, &e), ERR_INVAL);
}

/* So that a run shows whether the ring was tested at all; a kernel may refuse it. */
static void test_ring_is_available(void **state)
{
    (void)state;
    struct aio *a = open_backend(false, 4);
    bool ring = strcmp(aio_backend(a), "io_uring") == 0;
    aio_close(a);
    if (!ring)
        skip();
}

/* Registered memory serves requests inside it, requests across its end go the plain way, and
 * after unregistering the same addresses work on. */
static void test_registration(void **state)
{
    (void)state;
    const size_t size = 1 << 20;
    struct way w = {.direct = true};
    unlink(path);
    AUTO_FD int fd = open_way(&w);
    fill_words(memory, 0, 2 * size);
    assert_int_equal(pwrite(fd, memory, 2 * size, 0), 2 * size);
    struct aio *a = open_backend(false, 4);
    size_t n = aio_register(a, memory + size, size);
    for (int round = 0; round < 2; round++) {
        for (size_t from = 0; from <= 2 * size - size / 2; from += size / 4) {
            memset(memory, 0, 2 * size);
            struct aio_done done = one_read(a, fd, from, memory + from, size / 2);
            assert_int_equal(done.sys, 0);
            assert_int_equal(done.bytes, size / 2);
            assert_true(words_match(memory + from, from, size / 2));
        }
        aio_unregister(a, memory + size);
    }
    bool ring = strcmp(aio_backend(a), "io_uring") == 0;
    aio_close(a);
    if (!ring)
        assert_int_equal(n, 0);
    if (n == 0)
        skip(); /* no ring, or a kernel before 5.19 */
    assert_int_equal(n, size);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_is_available),
        cmocka_unit_test(test_registration),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_round_trips_unprivileged),
        cmocka_unit_test(test_end_of_file),
        cmocka_unit_test(test_errors_are_reported),
        cmocka_unit_test(test_one_of_many_fails),
        cmocka_unit_test(test_descriptor_tells_of_completions),
        cmocka_unit_test(test_close_waits_for_what_is_in_flight),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_a_refused_ring_falls_back),
    };
    return !!cmocka_run_group_tests(tests, make_file, remove_file);
}
