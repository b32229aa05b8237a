/* bench store: a restore of the whole state, against the raw read of the same files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agentd/bench_store.h"
#include "base/aio.h"
#include "base/crypto.h"
#include "base/pool.h"
#include "sessions/head.h"
#include "sessions/store.h"
#include "sessions/tape.h"

#define SAVE_EVERY 16384u         /* tokens, as the daemon does */
#define RAW_PIECE (256u << 10)    /* of a raw read; */
#define RAW_DEPTH 64u             /* 16 MiB in flight, as a restore has */
#define MEMORY_BYTES (128u << 20) /* that a cipher is measured on: more than caches hold */
#define CHUNK 16384u              /* as the chunks of extents */
#define MAX_PACKS 4096u

/* ---- the raw read ------------------------------------------------------------------------ */

struct raw {
    struct aio *aio;
    uint8_t *mem; /* RAW_DEPTH pieces */
    int fds[MAX_PACKS];
    uint64_t sizes[MAX_PACKS];
    uint32_t n_files;
    bool direct;
};

static void raw_close_files(struct raw *r)
{
    for (uint32_t i = 0; i < r->n_files; i++)
        close(r->fds[i]);
    r->n_files = 0;
}

static void raw_fini(struct raw *r)
{
    raw_close_files(r);
    aio_close(r->aio);
    aio_buffer_free(r->mem, (size_t)RAW_DEPTH * RAW_PIECE);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_pack(const struct dirent *d)
{
    const char *dot = strrchr(d->d_name, '.');
    return dot && strcmp(dot, ".pack") == 0;
}

static enum err raw_open_file(struct raw *r, const char *path, struct error *e)
{
    struct stat sb;
    if (r->n_files == MAX_PACKS)
        return err_set(e, ERR_LIMIT, "more than %u packs", MAX_PACKS);
    enum err rc = aio_open_file(path, O_RDONLY, 0, &r->fds[r->n_files], &r->direct, e);
    if (rc)
        return rc;
    if (fstat(r->fds[r->n_files], &sb)) {
        close(r->fds[r->n_files]);
        return err_sys(e, errno, "stat %s", path);
    }
    r->sizes[r->n_files++] = (uint64_t)sb.st_size;
    return OK;
}

/* Opens all packs anew: nothing of them may be cached. */
static enum err raw_open_files(struct raw *r, const char *folder, struct error *e)
{
    struct dirent **names;
    raw_close_files(r);
    int n = scandir(folder, &names, is_pack, by_name);
    if (n < 0)
        return err_sys(e, errno, "read folder %s", folder);
    enum err rc = OK;
    for (int i = 0; i < n; i++) {
        char path[FS_PATH_BYTES];
        if (!rc && !(rc = fs_path(path, sizeof path, e, "%s/%s", folder, names[i]->d_name)))
            rc = raw_open_file(r, path, e);
        free(names[i]);
    }
    free(names);
    for (uint32_t i = 0; i < r->n_files; i++)
        posix_fadvise(r->fds[i], 0, 0, POSIX_FADV_DONTNEED);
    return rc;
}

/* Takes what has come back; *slots are free again. */
static enum err raw_reap(struct raw *r, uint8_t **slots, uint32_t *n_slots, uint64_t *bytes,
                         struct error *e)
{
    struct aio_done done[RAW_DEPTH];
    size_t n;
    enum err rc = aio_wait(r->aio, 1, done, RAW_DEPTH, &n, e);
    for (size_t i = 0; i < n; i++) {
        slots[(*n_slots)++] = done[i].user;
        *bytes += done[i].bytes;
        if (done[i].sys && !rc)
            rc = err_sys(e, done[i].sys, "raw read");
    }
    return rc;
}

/* The next run of data at or behind *off, without holes, which cost no read: what gc punched.
 * False: there is none. */
static bool next_data(const struct raw *r, uint32_t file, uint64_t *off, uint64_t *end)
{
    off_t data = *off < r->sizes[file] ? lseek(r->fds[file], (off_t)*off, SEEK_DATA) : -1;
    off_t hole = data < 0 ? -1 : lseek(r->fds[file], data, SEEK_HOLE);
    if (hole < 0)
        return false;
    *off = (uint64_t)data;
    *end = (uint64_t)hole;
    return true;
}

/* Reads the data of every file from its beginning to its end. */
static enum err raw_read(struct raw *r, uint64_t *bytes, struct error *e)
{
    uint8_t *slots[RAW_DEPTH];
    uint32_t n_slots = 0;
    enum err rc = OK;
    while (n_slots < RAW_DEPTH) {
        slots[n_slots] = r->mem + (size_t)n_slots * RAW_PIECE;
        n_slots++;
    }
    *bytes = 0;
    for (uint32_t f = 0; f < r->n_files; f++)
        for (uint64_t off = 0, end = 0; !rc && (off < end || next_data(r, f, &off, &end));) {
            while (!n_slots && !rc)
                rc = raw_reap(r, slots, &n_slots, bytes, e);
            if (rc)
                break;
            size_t n = end - off < RAW_PIECE ? (size_t)(end - off) : RAW_PIECE;
            uint8_t *to = slots[--n_slots];
            rc = aio_read(r->aio, r->fds[f], off, to, n, to, e);
            off += n;
        }
    while (aio_in_flight(r->aio) && !rc)
        rc = raw_reap(r, slots, &n_slots, bytes, e);
    return rc;
}

static enum err raw_init(struct raw *r, struct error *e)
{
    const struct aio_options o = {.depth = RAW_DEPTH};
    void *mem;
    enum err rc = aio_open(&o, &r->aio, e);
    if (rc || (rc = aio_buffer_new((size_t)RAW_DEPTH * RAW_PIECE, &mem, e)))
        return rc;
    r->mem = mem;
    return OK;
}

/* ---- ciphers ----------------------------------------------------------------------------- */

/* Memory of sealed or tagged chunks, and where they are opened to. */
struct cipher {
    bool seal;
    struct crypto_extent x;
    uint8_t *src, *dst, *tags;
    struct pool *all;
};
#define N_CHUNKS (MEMORY_BYTES / CHUNK)

static void cipher_fini(struct cipher *c)
{
    aio_buffer_free(c->src, MEMORY_BYTES);
    aio_buffer_free(c->dst, MEMORY_BYTES);
    free(c->tags);
    pool_free(c->all);
}

static enum err cipher_init(struct cipher *c, bool seal, struct error *e)
{
    void *src, *dst;
    enum err rc = aio_buffer_new(MEMORY_BYTES, &src, e);
    if (rc)
        return rc;
    c->src = src;
    if ((rc = aio_buffer_new(MEMORY_BYTES, &dst, e)))
        return rc;
    c->dst = dst;
    c->seal = seal;
    if (!(c->tags = malloc((size_t)N_CHUNKS * CRYPTO_TAG_BYTES)))
        return err_set(e, ERR_NOMEM, "bench: out of memory");
    crypto_random(&c->x, sizeof c->x);
    for (size_t i = 0; i < N_CHUNKS; i++) {
        uint8_t *p = c->src + i * CHUNK, *tag = c->tags + i * CRYPTO_TAG_BYTES;
        if (seal)
            crypto_seal(&c->x, i, p, CHUNK, p, tag);
        else
            crypto_tag(&c->x, i, p, CHUNK, tag);
    }
    return pool_new(0, &c->all, e);
}

static void open_chunks(void *arg, size_t first, size_t last, uint32_t thread)
{
    struct cipher *c = arg;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        const uint8_t *p = c->src + i * CHUNK, *tag = c->tags + i * CRYPTO_TAG_BYTES;
        enum err rc = c->seal ? crypto_open(&c->x, i, p, CHUNK, tag, c->dst + i * CHUNK, NULL)
                              : crypto_check(&c->x, i, p, CHUNK, tag, NULL);
        if (rc)
            abort(); /* memory that nobody else has */
    }
}

/* Bytes a second, on the pool's threads. */
static double cipher_rate(struct cipher *c, struct pool *pool, const struct clock *clock)
{
    uint64_t t0 = clock_mono_ns(clock);
    pool_run(pool, open_chunks, c, N_CHUNKS);
    return MEMORY_BYTES / ((double)(clock_mono_ns(clock) - t0) / 1e9);
}

/* The best of three: a ceiling. */
static enum err measure_ceiling(const struct bench *b, bool seal, struct bench_ceiling *out,
                                struct error *e)
{
    AUTO(cipher) struct cipher c = {0};
    enum err rc = cipher_init(&c, seal, e);
    for (int i = 0; i < 3 && !rc; i++) {
        double one = cipher_rate(&c, NULL, b->clock), all = cipher_rate(&c, c.all, b->clock);
        out->one = one > out->one ? one : out->one;
        out->all = all > out->all ? all : out->all;
    }
    return rc;
}

/* ---- pairs ------------------------------------------------------------------------------- */

struct run {
    struct bench *b;
    struct bench_restore *out;
    struct bench_room room;
    struct raw raw;
    struct cipher cipher;
};

static void run_fini(struct run *r)
{
    bench_room_fini(&r->room);
    raw_fini(&r->raw);
    cipher_fini(&r->cipher);
}

static double seconds_since(const struct run *r, uint64_t t0)
{
    return (double)(clock_mono_ns(r->b->clock) - t0) / 1e9;
}

static enum err write_all(struct run *r, struct error *e)
{
    struct bench *b = r->b;
    struct bench_room room;
    struct head_receipt receipt;
    uint64_t written = 0;
    uint64_t step = b->o->n_tokens < SAVE_EVERY ? b->o->n_tokens : SAVE_EVERY;
    enum err rc = bench_room_new(&room, &b->layout, step, e);
    if (rc)
        return rc;
    uint64_t t0 = clock_mono_ns(b->clock);
    for (uint64_t at = 0; at < b->o->n_tokens && !rc;) {
        uint64_t n = b->o->n_tokens - at < step ? b->o->n_tokens - at : step;
        rc = bench_append(b, &room, at, n, &receipt, e);
        written += receipt.bytes_written;
        at += n;
    }
    r->out->write_bps = (double)written / seconds_since(r, t0);
    bench_room_fini(&room);
    return rc;
}

static enum err measure_raw(struct run *r, struct bench_pair *p, struct error *e)
{
    uint64_t bytes;
    enum err rc = raw_open_files(&r->raw, r->b->packs, e);
    if (rc)
        return rc;
    uint64_t t0 = clock_mono_ns(r->b->clock);
    if ((rc = raw_read(&r->raw, &bytes, e)))
        return rc;
    r->out->stored = bytes;
    p->raw_bps = (double)bytes / seconds_since(r, t0);
    return OK;
}

static enum err restore(struct run *r, const struct head_plan *plan, struct head_restored *got,
                        struct error *e)
{
    struct bench *b = r->b;
    const struct head_restore h = {.session = b->session,
                                   .layout = &b->layout,
                                   .plan = plan,
                                   .dst = &r->room.regions,
                                   .tip = r->room.tip};
    enum err rc = head_restore(b->store, &h, got, e);
    if (!rc && (got->n_tokens != b->o->n_tokens || !got->has_tip))
        rc = err_set(e, ERR_CORRUPT, "restored %llu of %llu tokens, %u extents damaged",
                     (unsigned long long)got->n_tokens, (unsigned long long)b->o->n_tokens,
                     got->extents_damaged);
    return rc;
}

/* Find and restore by a store that has just been opened, as after a restart. */
static enum err measure_restore(struct run *r, struct bench_pair *p, struct error *e)
{
    struct bench *b = r->b;
    struct head_plan *plan;
    struct head_restored got;
    uint64_t t0 = clock_mono_ns(b->clock);
    enum err rc = bench_reopen(b, e);
    if (rc || (rc = raw_open_files(&r->raw, b->packs, e)))
        return rc;
    r->out->open_ms = seconds_since(r, t0) * 1e3;
    t0 = clock_mono_ns(b->clock);
    if ((rc = head_find(b->store, b->session, &b->layout, TAPE_END, HEAD_TIP, &plan, e)))
        return rc;
    p->find_ms = seconds_since(r, t0) * 1e3;
    rc = restore(r, plan, &got, e);
    double whole = seconds_since(r, t0);
    head_plan_free(plan);
    if (rc)
        return rc;
    r->out->bytes = got.bytes_read;
    p->restore_bps = (double)got.bytes_read / whole;
    p->whole_ms = whole * 1e3;
    p->first_ms = p->find_ms + (double)got.index_ns / 1e6;
    return OK;
}

static enum err measure_pair(struct run *r, struct bench_pair *p, struct error *e)
{
    p->ceiling_bps = cipher_rate(&r->cipher, r->cipher.all, r->b->clock);
    enum err rc = measure_raw(r, p, e);
    return rc ? rc : measure_restore(r, p, e);
}

/* ---- figures ----------------------------------------------------------------------------- */

/* What a restore of the pair cannot be faster than. */
static double bound(const struct run *r, const struct bench_pair *p)
{
    bool by_cipher = r->b->o->encrypt && p->ceiling_bps < p->raw_bps;
    return by_cipher ? p->ceiling_bps : p->raw_bps;
}

static double median_of(const struct run *r,
                        double (*f)(const struct run *, const struct bench_pair *))
{
    double v[BENCH_MAX_PAIRS];
    for (uint32_t i = 0; i < r->b->o->n_pairs; i++)
        v[i] = f(r, &r->out->pairs[i]);
    return bench_median(v, r->b->o->n_pairs);
}

#define FIGURE(name, value)                                                                    \
    static double name(const struct run *r, const struct bench_pair *p)                        \
    {                                                                                          \
        (void)r;                                                                               \
        return value;                                                                          \
    }
FIGURE(raw_of, p->raw_bps)
FIGURE(restore_of, p->restore_bps)
FIGURE(ceiling_of, p->ceiling_bps)
FIGURE(find_of, p->find_ms)
FIGURE(first_of, p->first_ms)
FIGURE(whole_of, p->whole_ms)
FIGURE(ratio_of, p->restore_bps / bound(r, p))
FIGURE(share_of, p->first_ms / p->whole_ms)

static void sum_up(struct run *r)
{
    struct bench_restore *out = r->out;
    out->median = (struct bench_pair){median_of(r, raw_of),     median_of(r, restore_of),
                                      median_of(r, ceiling_of), median_of(r, find_of),
                                      median_of(r, first_of),   median_of(r, whole_of)};
    out->ratio = median_of(r, ratio_of);
    out->first_of_whole = median_of(r, share_of);
    out->lines[0] = (struct bench_line){r->b->o->encrypt ? "restore_of_min_raw_and_cipher"
                                                         : "restore_of_raw",
                                        out->ratio, 0.85, true};
    out->lines[1] =
        (struct bench_line){"first_usable_of_whole", out->first_of_whole, 0.25, false};
    out->n_lines = 2;
    out->n_packs = r->raw.n_files;
    out->direct = r->raw.direct;
    out->backend = aio_backend(r->raw.aio);
    out->n_cores = pool_threads(r->cipher.all);
}

enum err bench_restore(struct bench *b, struct bench_restore *out, struct error *e)
{
    AUTO(run) struct run r = {.b = b, .out = out};
    *out = (struct bench_restore){0};
    enum err rc = raw_init(&r.raw, e);
    if (rc || (rc = cipher_init(&r.cipher, b->o->encrypt, e)) ||
        (rc = measure_ceiling(b, false, &out->tag, e)) ||
        (rc = measure_ceiling(b, true, &out->seal, e)) || (rc = write_all(&r, e)) ||
        (rc = bench_room_new(&r.room, &b->layout, b->o->n_tokens, e)))
        return rc;
    for (uint32_t i = 0; i < b->o->n_pairs && !rc; i++)
        rc = measure_pair(&r, &out->pairs[i], e);
    if (rc || (rc = bench_room_check(&r.room, &b->layout, b->o->n_tokens, e)))
        return rc;
    sum_up(&r);
    return OK;
}
