#include "sessions/archive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zstd.h>

#include "base/fault.h"
#include "base/fs.h"

#define IO_BYTES (128u << 10)
#define LEVEL 3
#define WINDOW_LOG 23 /* 8 MiB: what decoding may take in memory */

/* Of a ustar header, offset and bytes. */
enum {
    AT_MODE = 100,
    AT_UID = 108,
    AT_GID = 116,
    AT_SIZE = 124,
    AT_TIME = 136,
    AT_SUM = 148,
    AT_TYPE = 156,
    AT_LINK = 157,
    AT_MAGIC = 257,
    AT_PREFIX = 345,
};

/* Sum of the header's bytes with the field of the sum itself as blanks. */
static unsigned header_sum(const uint8_t *h)
{
    unsigned sum = 8 * ' ';
    for (unsigned i = 0; i < ARCHIVE_BLOCK; i++)
        if (i < AT_SUM || i >= AT_SUM + 8)
            sum += h[i];
    return sum;
}

static size_t padding(uint64_t n)
{
    return (size_t)((ARCHIVE_BLOCK - n % ARCHIVE_BLOCK) % ARCHIVE_BLOCK);
}

/* ---- writing ----------------------------------------------------------------------------- */

struct archive_out {
    int fd;
    ZSTD_CCtx *z;
    uint64_t left; /* of the member, then its padding */
    size_t pad;
    uint8_t bytes[IO_BYTES];
};

enum err archive_out_open(int fd, struct archive_out **out, struct error *e)
{
    struct archive_out *a = calloc(1, sizeof *a);
    if (!a || !(a->z = ZSTD_createCCtx())) {
        free(a);
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    }
    a->fd = fd;
    ZSTD_CCtx_setParameter(a->z, ZSTD_c_compressionLevel, LEVEL);
    ZSTD_CCtx_setParameter(a->z, ZSTD_c_checksumFlag, 1);
    *out = a;
    return OK;
}

void archive_out_free(struct archive_out *a)
{
    if (!a)
        return;
    ZSTD_freeCCtx(a->z);
    free(a);
}

static enum err compress(struct archive_out *a, const void *p, size_t n, ZSTD_EndDirective what,
                         struct error *e)
{
    ZSTD_inBuffer in = {p, n, 0};
    for (size_t left = 1; left || in.pos < in.size;) {
        ZSTD_outBuffer o = {a->bytes, sizeof a->bytes, 0};
        left = ZSTD_compressStream2(a->z, &o, &in, what);
        if (ZSTD_isError(left))
            return err_set(e, ERR_IO, "bundle: %s", ZSTD_getErrorName(left));
        enum err rc = o.pos ? fs_write(a->fd, "bundle", a->bytes, o.pos, e) : OK;
        if (rc)
            return rc;
        if (what == ZSTD_e_continue && in.pos == in.size)
            return OK;
    }
    return OK;
}

static enum err put(struct archive_out *a, const void *p, size_t n, struct error *e)
{
    return n ? compress(a, p, n, ZSTD_e_continue, e) : OK;
}

enum err archive_out_member(struct archive_out *a, const char *name, uint64_t n,
                            struct error *e)
{
    uint8_t h[ARCHIVE_BLOCK] = {0};
    if (strlen(name) >= ARCHIVE_NAME_CAP || n >= ARCHIVE_FILE_MAX)
        return err_set(e, ERR_LIMIT, "bundle: %.60s of %llu bytes does not fit", name,
                       (unsigned long long)n);
    memcpy(h, name, strlen(name));
    memcpy(h + AT_MODE, "0000600", 7);
    memcpy(h + AT_UID, "0000000", 7);
    memcpy(h + AT_GID, "0000000", 7);
    memcpy(h + AT_TIME, "00000000000", 11);
    snprintf((char *)h + AT_SIZE, 12, "%011llo", (unsigned long long)n);
    h[AT_TYPE] = '0';
    memcpy(h + AT_MAGIC, "ustar\00000", 8);
    snprintf((char *)h + AT_SUM, 7, "%06o", header_sum(h));
    h[AT_SUM + 7] = ' ';
    a->left = n;
    a->pad = padding(n);
    return put(a, h, sizeof h, e);
}

enum err archive_out_write(struct archive_out *a, const void *p, size_t n, struct error *e)
{
    static const uint8_t zeros[ARCHIVE_BLOCK];
    enum err rc = put(a, p, n, e);
    a->left -= n;
    if (rc || a->left)
        return rc;
    size_t pad = a->pad;
    a->pad = 0;
    return put(a, zeros, pad, e);
}

enum err archive_out_finish(struct archive_out *a, struct error *e)
{
    static const uint8_t zeros[2 * ARCHIVE_BLOCK];
    return compress(a, zeros, sizeof zeros, ZSTD_e_end, e);
}

/* ---- reading ----------------------------------------------------------------------------- */

struct archive_in {
    int fd;
    ZSTD_DCtx *z;
    ZSTD_inBuffer in;
    bool ended;       /* the frame */
    uint64_t allowed; /* bytes that may be inflated still */
    uint64_t left;    /* of the member */
    size_t pad;
    uint8_t bytes[IO_BYTES];
};

enum err archive_in_open(int fd, struct archive_in **out, struct error *e)
{
    struct archive_in *a = calloc(1, sizeof *a);
    if (!a || !(a->z = ZSTD_createDCtx())) {
        free(a);
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    }
    a->fd = fd;
    a->in.src = a->bytes;
    ZSTD_DCtx_setParameter(a->z, ZSTD_d_windowLogMax, WINDOW_LOG);
    *out = a;
    return OK;
}

void archive_in_free(struct archive_in *a)
{
    if (!a)
        return;
    ZSTD_freeDCtx(a->z);
    free(a);
}

void archive_in_allow(struct archive_in *a, uint64_t more_bytes)
{
    a->allowed += more_bytes;
}

/* More of the file into a->in; *n 0 at its end. */
static enum err refill(struct archive_in *a, size_t *n, struct error *e)
{
    ssize_t got;
    do
        got = fault_point("fs.read") ? (errno = EIO, -1) : read(a->fd, a->bytes, IO_BYTES);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return err_sys(e, errno, "read bundle");
    a->in = (ZSTD_inBuffer){a->bytes, (size_t)got, 0};
    *n = (size_t)got;
    return OK;
}

/* Inflates exactly n bytes. */
static enum err take(struct archive_in *a, uint8_t *dst, size_t n, struct error *e)
{
    ZSTD_outBuffer o = {dst, n, 0};
    if (n > a->allowed)
        return err_set(e, ERR_FORMAT, "bundle: holds more than its manifest says");
    while (o.pos < n) {
        if (a->ended)
            return err_set(e, ERR_FORMAT, "bundle: cut off");
        size_t before = o.pos;
        size_t rc = ZSTD_decompressStream(a->z, &o, &a->in);
        if (ZSTD_isError(rc))
            return err_set(e, ERR_FORMAT, "bundle: not a zstd frame, or damaged (%s)",
                           ZSTD_getErrorName(rc));
        a->ended = rc == 0;
        if (a->ended || o.pos > before || a->in.pos < a->in.size)
            continue;
        size_t got;
        enum err io = refill(a, &got, e);
        if (io)
            return io;
        if (!got)
            return err_set(e, ERR_FORMAT, "bundle: cut off");
    }
    a->allowed -= n;
    return OK;
}

static bool octal(const uint8_t *p, size_t n, uint64_t *out)
{
    uint64_t v = 0;
    size_t i = 0;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
        v = v * 8 + (uint64_t)(p[i] - '0');
    bool digits = i > 0;
    for (; i < n; i++)
        if (p[i] != ' ' && p[i] != 0)
            return false;
    *out = v;
    return digits;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static enum err check_header(const uint8_t *h, uint64_t *size, struct error *e)
{
    uint64_t sum;
    if (memcmp(h + AT_MAGIC, "ustar\00000", 8) != 0)
        return err_set(e, ERR_FORMAT, "bundle: not a ustar archive");
    if (!octal(h + AT_SUM, 8, &sum) || sum != header_sum(h))
        return err_set(e, ERR_FORMAT, "bundle: the checksum of a member's header is wrong");
    if (h[AT_TYPE] != '0' || !all_zero(h + AT_LINK, 100))
        return err_set(e, ERR_FORMAT, "bundle: holds a link, a folder or something else (%c)",
                       h[AT_TYPE]);
    if (h[ARCHIVE_NAME_CAP - 1] || !all_zero(h + AT_PREFIX, 155))
        return err_set(e, ERR_FORMAT, "bundle: a member's name is too long");
    if (!octal(h + AT_SIZE, 12, size) || *size >= ARCHIVE_FILE_MAX)
        return err_set(e, ERR_FORMAT, "bundle: a member's size makes no sense");
    return OK;
}

enum err archive_in_member(struct archive_in *a, char name[ARCHIVE_NAME_CAP], uint64_t *n,
                           struct error *e)
{
    uint8_t h[ARCHIVE_BLOCK];
    uint64_t size = 0;
    enum err rc = take(a, h, sizeof h, e);
    if (rc || (rc = check_header(h, &size, e)))
        return rc;
    memcpy(name, h, ARCHIVE_NAME_CAP);
    a->left = *n = size;
    a->pad = padding(size);
    return OK;
}

enum err archive_in_read(struct archive_in *a, void *dst, size_t n, struct error *e)
{
    uint8_t pad[ARCHIVE_BLOCK];
    if (n > a->left)
        return err_set(e, ERR_FORMAT, "bundle: a member is shorter than its manifest says");
    enum err rc = take(a, dst, n, e);
    if (rc)
        return rc;
    a->left -= n;
    if (a->left || !a->pad)
        return OK;
    size_t k = a->pad;
    a->pad = 0;
    rc = take(a, pad, k, e);
    return rc || all_zero(pad, k) ? rc : err_set(e, ERR_FORMAT, "bundle: padding is not empty");
}

enum err archive_in_finish(struct archive_in *a, struct error *e)
{
    uint8_t end[2 * ARCHIVE_BLOCK], more;
    a->allowed += sizeof end;
    enum err rc = take(a, end, sizeof end, e);
    if (rc)
        return rc;
    if (!all_zero(end, sizeof end))
        return err_set(e, ERR_FORMAT, "bundle: holds members that its manifest does not name");
    /* The frame's end may stand in bytes that were not looked at yet. */
    while (!a->ended) {
        ZSTD_outBuffer o = {&more, 1, 0};
        size_t z = ZSTD_decompressStream(a->z, &o, &a->in), got = 1;
        if (ZSTD_isError(z) || o.pos)
            return err_set(e, ERR_FORMAT, "bundle: goes on behind its end");
        a->ended = z == 0;
        if (!a->ended && a->in.pos == a->in.size && (rc = refill(a, &got, e)))
            return rc;
        if (!got)
            return err_set(e, ERR_FORMAT, "bundle: cut off");
    }
    size_t got = a->in.size - a->in.pos;
    if (!got && (rc = refill(a, &got, e)))
        return rc;
    return got ? err_set(e, ERR_FORMAT, "bundle: goes on behind its end") : OK;
}
