#include "tests/support/bundle_fixture.h"

#include <fcntl.h>
#include <unistd.h>

#include <zstd.h>

#include "base/encode.h"
#include "base/fs.h"
#include "sessions/archive.h"
#include "tests/support/test.h"

static void need(enum err rc)
{
    if (rc)
        abort();
}

void bundle_session_text(uint64_t n, struct buf *out)
{
    need(buf_printf(out, NULL,
                    "{\"config\":{\"approve\":\"ask\"},\"tokens\":%llu,\"segments\":[",
                    (unsigned long long)n));
    if (n)
        need(buf_printf(out, NULL,
                        "{\"start\":0,\"len\":%llu,\"kind\":\"input\",\"mode\":\"ced\"}",
                        (unsigned long long)n));
    need(buf_add_str(out, "],\"marks\":[],\"turns\":[],\"calls\":[]}", NULL));
}

void bundle_blob_name(const void *bytes, size_t n, char out[100])
{
    uint8_t hash[HASH_BYTES];
    memcpy(out, "blobs/", 6);
    hash_bytes(NULL, bytes, n, hash);
    hex_encode(hash, sizeof hash, out + 6);
}

void bundle_manifest_text(const struct bundle_member *m, size_t n, struct buf *out)
{
    need(buf_add_str(out,
                     "{\"format\":\"agentd-bundle\",\"version\":1,\"session\":{\"id\":"
                     "\"01HZZZZZZZZZZZZZZZZZZZZZZZ\",\"name\":\"otter\"},\"exportedMs\":1,"
                     "\"redacted\":false,\"files\":[",
                     NULL));
    for (size_t i = 0; i < n; i++) {
        uint8_t hash[HASH_BYTES];
        char hex[HEX_CHARS(HASH_BYTES)];
        hash_bytes(NULL, m[i].bytes, m[i].n, hash);
        hex_encode(hash, sizeof hash, hex);
        need(buf_printf(out, NULL, "%s{\"name\":\"%s\",\"bytes\":%zu,\"blake2b\":\"%s\"}",
                        i ? "," : "", m[i].name, m[i].n, hex));
    }
    need(buf_add_str(out, "]}", NULL));
}

static void add_member(struct archive_out *a, const char *name, const void *p, size_t n)
{
    need(archive_out_member(a, name, n, NULL));
    need(archive_out_write(a, p, n, NULL));
}

void bundle_write(const char *path, const char *manifest, const struct bundle_member *m,
                  size_t n)
{
    struct archive_out *a;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        abort();
    need(archive_out_open(fd, &a, NULL));
    add_member(a, "manifest.json", manifest, strlen(manifest));
    for (size_t i = 0; i < n; i++)
        add_member(a, m[i].name, m[i].bytes, m[i].n);
    need(archive_out_finish(a, NULL));
    archive_out_free(a);
    close(fd);
}

void bundle_write_members(const char *path, const struct bundle_member *m, size_t n)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    bundle_manifest_text(m, n, &text);
    bundle_write(path, buf_str(&text), m, n);
}

void bundle_write_frame(const char *path, const void *bytes, size_t n)
{
    size_t cap = ZSTD_compressBound(n);
    AUTO_FREE void *z = malloc(cap);
    size_t got = z ? ZSTD_compress(z, cap, bytes, n, 1) : 0;
    if (!z || ZSTD_isError(got))
        abort();
    need(fs_write_atomic(path, z, got, 0600, NULL));
}

void bundle_inflate(const char *path, struct buf *out)
{
    AUTO(buf) struct buf z = BUF_INIT(1 << 26);
    need(fs_read_file(path, &z, NULL));
    ZSTD_DCtx *d = ZSTD_createDCtx();
    ZSTD_inBuffer in = {z.data, z.len, 0};
    uint8_t piece[4096];
    for (size_t left = 1; left;) {
        ZSTD_outBuffer o = {piece, sizeof piece, 0};
        left = ZSTD_decompressStream(d, &o, &in);
        if (ZSTD_isError(left) || (!o.pos && in.pos == in.size && left))
            abort();
        need(buf_add(out, piece, o.pos, NULL));
    }
    ZSTD_freeDCtx(d);
}

const uint8_t *bundle_member_of(const struct buf *tar, const char *name, size_t *n)
{
    for (size_t at = 0; at + ARCHIVE_BLOCK <= tar->len && tar->data[at];) {
        const char *header = (const char *)tar->data + at;
        *n = strtoul(header + 124, NULL, 8);
        if (strcmp(header, name) == 0)
            return tar->data + at + ARCHIVE_BLOCK;
        at += archive_member_bytes(*n);
    }
    return NULL;
}

void bundles_same(const char *one, const char *two)
{
    static const char *const names[] = {"session.json", "items.jsonl", "tape.u32"};
    AUTO(buf) struct buf a = BUF_INIT(1 << 26);
    AUTO(buf) struct buf b = BUF_INIT(1 << 26);
    size_t n, m;
    bundle_inflate(one, &a);
    bundle_inflate(two, &b);
    for (size_t i = 0; i < 3; i++) {
        const uint8_t *x = bundle_member_of(&a, names[i], &n);
        const uint8_t *y = bundle_member_of(&b, names[i], &m);
        assert_non_null(x);
        assert_non_null(y);
        if (n != m || memcmp(x, y, n) != 0)
            fail_msg("%s: %s differs from\n%.*s\n\n%.*s", two, names[i], (int)n,
                     (const char *)x, (int)m, (const char *)y);
    }
    const char *x = (const char *)bundle_member_of(&a, "manifest.json", &n);
    const char *y = (const char *)bundle_member_of(&b, "manifest.json", &m);
    x = strstr(x, "\"redacted\"");
    y = strstr(y, "\"redacted\"");
    assert_non_null(x);
    assert_non_null(y);
    assert_string_equal(x, y);
    assert_int_equal(a.len, b.len);
}
