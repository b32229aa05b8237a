/* The state of 1,048,576 tokens from a file into the device: whole, and bounded (index keys,
 * windows and a tail of main rows). One thread reads pieces into pinned memory, the other
 * copies what is there: disk and bus work at the same time. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/bench.h"

#define PIECE ((size_t)16 << 20)
#define N_PIECES 4 /* in flight */
#define SOURCES 5
#define RINGS 43
#define WINDOW 128

struct plan {
    size_t tokens;
    size_t main_bytes, index_bytes, rest_bytes; /* in the device; planes of all sources */
};

static struct plan plan_of(const struct bench *b, bool bounded)
{
    struct plan p = {.tokens = b->small ? 4096 : 1048576};
    size_t rows = p.tokens / 2, tail = 2048; /* rows of a tail: two chunks of tokens */
    size_t main_row = k_row_bytes(K_ROW_FP4_16, 512), key = k_row_bytes(K_ROW_FP4_32, 128);
    p.main_bytes = SOURCES * main_row * (bounded && tail < rows ? tail : rows);
    p.index_bytes = SOURCES * key * rows;
    p.rest_bytes = (size_t)RINGS * WINDOW * k_row_bytes(K_ROW_FP8_32, 512);
    return p;
}

/* ---- reading ------------------------------------------------------------------------------
 */

struct reader {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int fd;
    uint8_t *memory; /* [N_PIECES][PIECE], pinned */
    size_t bytes;    /* of the file */
    size_t n_read, n_copied;
    bool failed;
};

static size_t piece_bytes(const struct reader *r, size_t i)
{
    size_t left = r->bytes - i * PIECE;
    return left < PIECE ? left : PIECE;
}

static bool read_piece(struct reader *r, size_t i)
{
    uint8_t *to = r->memory + i % N_PIECES * PIECE;
    size_t want = (piece_bytes(r, i) + 4095) / 4096 * 4096, done = 0;
    while (done < want) {
        ssize_t n = pread(r->fd, to + done, want - done, (off_t)(i * PIECE + done));
        if (n <= 0)
            return n == 0 && done >= piece_bytes(r, i);
        done += (size_t)n;
    }
    return true;
}

static void *read_all(void *arg)
{
    struct reader *r = arg;
    for (size_t i = 0; i * PIECE < r->bytes; i++) {
        pthread_mutex_lock(&r->lock);
        while (i >= r->n_copied + N_PIECES)
            pthread_cond_wait(&r->moved, &r->lock);
        pthread_mutex_unlock(&r->lock);
        bool ok = read_piece(r, i);
        pthread_mutex_lock(&r->lock);
        r->n_read = i + 1;
        r->failed |= !ok;
        pthread_cond_signal(&r->moved);
        pthread_mutex_unlock(&r->lock);
    }
    return NULL;
}

static void copy_all(struct bench *b, struct reader *r, uint8_t *to)
{
    for (size_t i = 0; i * PIECE < r->bytes; i++) {
        pthread_mutex_lock(&r->lock);
        while (i >= r->n_read)
            pthread_cond_wait(&r->moved, &r->lock);
        pthread_mutex_unlock(&r->lock);
        b->k.copy_in(&b->k, to + i * PIECE, r->memory + i % N_PIECES * PIECE,
                     piece_bytes(r, i));
        pthread_mutex_lock(&r->lock);
        r->n_copied = i + 1;
        pthread_cond_signal(&r->moved);
        pthread_mutex_unlock(&r->lock);
    }
}

static int open_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0 && errno == EINVAL)
        fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd;
}

static bool write_file(const struct bench *b, const char *path, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    uint8_t *piece = malloc(PIECE);
    bool ok = fd >= 0 && piece;
    (void)b;
    for (size_t at = 0; ok && at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        for (size_t i = 0; i < n; i++)
            piece[i] = (uint8_t)((at + i) * 2654435761u >> 24);
        ok = write(fd, piece, n) == (ssize_t)n;
    }
    free(piece);
    if (fd >= 0)
        ok = !fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) && !close(fd) && ok;
    return ok;
}

/* What arrived is what was written. */
static bool is_there(struct bench *b, const uint8_t *d, size_t bytes)
{
    static const double places[] = {0, 0.25, 0.5, 0.999};
    uint8_t got[64];
    for (size_t k = 0; k < 4; k++) {
        size_t at = (size_t)(places[k] * (double)(bytes - sizeof(got)));
        b->k.copy_out(&b->k, got, d + at, sizeof(got));
        for (size_t i = 0; i < sizeof(got); i++)
            if (got[i] != (uint8_t)((at + i) * 2654435761u >> 24))
                return false;
    }
    return true;
}

/* ---- the whole ----------------------------------------------------------------------------
 */

static void resume(struct bench *b, const char *path, const char *what, bool bounded)
{
    struct plan p = plan_of(b, bounded);
    size_t bytes = p.main_bytes + p.index_bytes + p.rest_bytes;
    struct reader r = {.lock = PTHREAD_MUTEX_INITIALIZER,
                       .moved = PTHREAD_COND_INITIALIZER,
                       .fd = open_file(path),
                       .bytes = bytes};
    struct error e = {0};
    pthread_t thread;
    void *memory = NULL;
    if (r.fd < 0 || posix_memalign(&memory, 4096, N_PIECES * PIECE))
        bench_ok(b, err_sys(&e, errno, "%s", path), &e);
    r.memory = memory;
    memset(r.memory, 0, N_PIECES * PIECE);
    (void)b->k.pin(&b->k, r.memory, N_PIECES * PIECE);
    struct k_device before, after;
    bench_ok(b, b->k.describe(&b->k, &before, &e), &e);
    uint64_t start = clock_mono_ns(b->clock);
    uint8_t *to = b->k.reserve(&b->k, bytes);
    bench_ok(b, to ? b->k.grow(&b->k, to, 0, bytes, &e) : ERR_NOMEM, &e);
    if (pthread_create(&thread, NULL, read_all, &r))
        abort();
    copy_all(b, &r, to);
    bench_ok(b, b->k.sync(&b->k, &e), &e);
    double t = (double)(clock_mono_ns(b->clock) - start) / 1e9;
    pthread_join(thread, NULL);
    bench_ok(b, b->k.describe(&b->k, &after, &e), &e);
    if (r.failed || !is_there(b, to, bytes))
        bench_ok(b, err_set(&e, ERR_CORRUPT, "%s: what arrived is not what was written", what),
                 &e);
    double device = (double)(before.free_bytes - after.free_bytes);
    printf("{\"what\": \"%s\", \"tokens\": %zu, \"bytes\": %zu, \"device_bytes\": %.0f, "
           "\"ms\": %.2f, \"gb_per_s\": %.2f}\n",
           what, p.tokens, bytes, device, t * 1e3, (double)bytes / t / 1e9);
    fprintf(stderr, "%-28s %7zu tokens, %6.1f MB in the device %18.2f ms  %6.2f GB/s\n", what,
            p.tokens, device / 1e6, t * 1e3, (double)bytes / t / 1e9);
    b->k.release(&b->k, to, bytes);
    b->k.unpin(&b->k, r.memory);
    free(memory);
    close(r.fd);
}

void bench_resume(struct bench *b)
{
    struct plan p = plan_of(b, false);
    struct error e = {0};
    char path[512];
    snprintf(path, sizeof(path), "%s/bench-resume.%ld", b->folder, (long)getpid());
    bool ok = write_file(b, path, p.main_bytes + p.index_bytes + p.rest_bytes);
    if (ok) {
        resume(b, path, "resume, whole", false);
        resume(b, path, "resume, bounded", true);
    }
    unlink(path);
    if (!ok)
        bench_ok(b, err_sys(&e, errno, "%s", path), &e);
}
