#include "sessions/extent.h"

#include <string.h>

#include "sessions/le.h"

#define FIELDS_BYTES 512u
#define REGION_BYTES 64u
#define TAG CRYPTO_TAG_BYTES
#define UUID_BYTES 16

static const uint8_t magic[8] = {'A', 'G', 'D', 'E', 'X', 'T', '1', '\n'};

/* ---- laying out -------------------------------------------------------------------------- */

uint32_t extent_chunks(const struct extent_region *r)
{
    uint64_t padded = extent_pages(r->bytes) * EXTENT_PAGE;
    return (uint32_t)((padded + EXTENT_CHUNK - 1) / EXTENT_CHUNK);
}

/* Bytes of the header that these regions and chunks need. */
static uint64_t header_bytes(uint64_t n_regions, uint64_t n_chunks)
{
    return FIELDS_BYTES + n_regions * REGION_BYTES + n_chunks * TAG + TAG;
}

/* Places regions whose kinds and bytes are set. */
static enum err place_regions(struct extent *x, struct error *e)
{
    uint64_t n_chunks = 0, pages = 0;
    for (uint32_t i = 0; i < x->n_regions; i++) {
        x->regions[i].chunk = (uint32_t)n_chunks;
        n_chunks += extent_chunks(&x->regions[i]);
        pages += extent_pages(x->regions[i].bytes);
        if (pages > EXTENT_MAX_PAGES)
            return err_set(e, ERR_LIMIT, "extent of more than %u pages", EXTENT_MAX_PAGES);
    }
    uint64_t header = extent_pages(header_bytes(x->n_regions, n_chunks));
    if (header > EXTENT_MAX_HEADER_PAGES || header + pages > EXTENT_MAX_PAGES)
        return err_set(e, ERR_LIMIT, "extent of %llu pages, at most %u",
                       (unsigned long long)pages, EXTENT_MAX_PAGES);
    x->header_pages = (uint32_t)header;
    x->n_chunks = (uint32_t)n_chunks;
    uint64_t page = header;
    for (uint32_t i = 0; i < x->n_regions; i++) {
        x->regions[i].page = (uint32_t)page;
        page += extent_pages(x->regions[i].bytes);
    }
    x->pages = (uint32_t)page;
    return OK;
}

static void add_planes(struct extent *x, const struct state_layout *l, enum plane_kind kind)
{
    for (uint32_t i = 0; i < l->n_planes; i++) {
        const struct plane_spec *p = &l->planes[i];
        if (p->kind != kind)
            continue;
        struct extent_region *r = &x->regions[x->n_regions++];
        *r = (struct extent_region){
            .what = kind == PLANE_INDEX ? REGION_INDEX : REGION_MAIN,
            .row_bytes = p->row_bytes,
            .ratio = p->ratio,
            .bytes = extent_rows(x->first, x->last, p->ratio) * p->row_bytes,
            .plane = i,
        };
        memcpy(r->name, p->name, strnlen(p->name, sizeof r->name));
    }
}

enum err extent_plan_rows(struct extent *x, const struct state_layout *l, struct error *e)
{
    x->n_regions = 1;
    x->regions[0] =
        (struct extent_region){.what = REGION_IDS, .bytes = (x->last - x->first) * 4};
    add_planes(x, l, PLANE_INDEX);
    add_planes(x, l, PLANE_MAIN);
    return place_regions(x, e);
}

enum err extent_plan_one(struct extent *x, enum region_kind what, uint64_t n_bytes,
                         struct error *e)
{
    x->n_regions = 1;
    x->regions[0] = (struct extent_region){.what = what, .bytes = n_bytes};
    return place_regions(x, e);
}

/* ---- writing ----------------------------------------------------------------------------- */

static void encode_fields(const struct extent *x, uint8_t *h)
{
    memcpy(h, magic, sizeof magic);
    le_put32(h + 8, 1);
    le_put32(h + 12, x->header_pages);
    le_put32(h + 16, (uint32_t)x->kind);
    le_put32(h + 20, (uint32_t)x->algorithm);
    le_put32(h + 24, x->pages);
    le_put32(h + 28, x->n_regions);
    le_put32(h + 32, x->n_chunks);
    le_put32(h + 36, x->inside_segment);
    memcpy(h + 40, x->nonce, sizeof x->nonce);
    memcpy(h + 64, x->root, sizeof x->root);
    memcpy(h + 96, x->key, sizeof x->key);
    memcpy(h + 128, x->parent, sizeof x->parent);
    memcpy(h + 160, x->digest, sizeof x->digest);
    memcpy(h + 192, x->before, sizeof x->before);
    memcpy(h + 208, x->session, sizeof x->session);
    le_put64(h + 240, x->first);
    le_put64(h + 248, x->last);
    le_put64(h + 256, x->commit);
    le_put32(h + 264, x->lineage);
    le_put32(h + 268, x->block_tokens);
    memcpy(h + 272, x->numerics, sizeof x->numerics);
    le_put64(h + 296, x->written_ms);
    memcpy(h + 304, x->segment_digest, sizeof x->segment_digest);
    le_put64(h + 336, x->digest_rows);
    memcpy(h + 344, x->fingerprint, sizeof x->fingerprint);
    le_put64(h + 376, x->tip_bytes);
}

static void encode_region(const struct extent_region *r, uint8_t *p)
{
    memcpy(p, r->name, sizeof r->name);
    le_put32(p + 24, (uint32_t)r->what);
    le_put32(p + 28, r->row_bytes);
    le_put32(p + 32, r->ratio);
    le_put32(p + 36, r->page);
    le_put64(p + 40, r->bytes);
    le_put32(p + 48, r->chunk);
    le_put32(p + 52, r->plane);
}

static const uint8_t *tag_of(const struct extent *x, const uint8_t *header, uint32_t chunk)
{
    return header + FIELDS_BYTES + x->n_regions * REGION_BYTES + (size_t)chunk * TAG;
}

static void header_tag(const uint8_t *key, const uint8_t *uuid, uint64_t off,
                       const uint8_t *header, size_t n_bytes, uint8_t out[TAG])
{
    struct hash h;
    hash_init(&h, key, HASH_TAG_BYTES);
    hash_field(&h, uuid, UUID_BYTES);
    hash_u64le(&h, off);
    hash_field(&h, header, n_bytes - TAG);
    hash_final(&h, out);
}

/* Bytes of chunk i of a region. */
static size_t chunk_bytes(const struct extent_region *r, uint32_t i)
{
    uint64_t left = extent_pages(r->bytes) * EXTENT_PAGE - (uint64_t)i * EXTENT_CHUNK;
    return left < EXTENT_CHUNK ? (size_t)left : EXTENT_CHUNK;
}

/* Key and nonce of an extent's chunks. */
static struct crypto_extent cipher_of(const struct extent *x, const struct extent_keys *k)
{
    struct crypto_extent c;
    memcpy(c.key, x->algorithm == EXTENT_SEALED ? k->seal : k->tag, sizeof c.key);
    memcpy(c.nonce, x->nonce, sizeof c.nonce);
    return c;
}

void extent_seal(const struct extent *x, const struct extent_keys *k, const uint8_t *pack_uuid,
                 uint64_t off, uint8_t *bytes)
{
    size_t n_header = (size_t)x->header_pages * EXTENT_PAGE;
    memset(bytes, 0, n_header);
    encode_fields(x, bytes);
    struct crypto_extent c = cipher_of(x, k);
    uint8_t *tags = bytes + FIELDS_BYTES + x->n_regions * REGION_BYTES;
    for (uint32_t i = 0; i < x->n_regions; i++) {
        const struct extent_region *r = &x->regions[i];
        encode_region(r, bytes + FIELDS_BYTES + i * REGION_BYTES);
        uint8_t *data = bytes + (size_t)r->page * EXTENT_PAGE;
        for (uint32_t j = 0; j < extent_chunks(r); j++) {
            uint8_t *chunk = data + (size_t)j * EXTENT_CHUNK;
            uint8_t *tag = tags + (size_t)(r->chunk + j) * TAG;
            if (x->algorithm == EXTENT_SEALED)
                crypto_seal(&c, r->chunk + j, chunk, chunk_bytes(r, j), chunk, tag);
            else
                crypto_tag(&c, r->chunk + j, chunk, chunk_bytes(r, j), tag);
        }
    }
    extent_move(bytes, n_header, k, pack_uuid, off);
    crypto_wipe(&c, sizeof c);
}

void extent_move(uint8_t *header, size_t n_bytes, const struct extent_keys *k,
                 const uint8_t *pack_uuid, uint64_t off)
{
    header_tag(k->header, pack_uuid, off, header, n_bytes, header + n_bytes - TAG);
}

/* ---- reading ----------------------------------------------------------------------------- */

uint32_t extent_header_pages(const uint8_t page[EXTENT_PAGE])
{
    uint32_t n = le_take32(page + 12);
    if (memcmp(page, magic, sizeof magic) != 0 || n == 0 || n > EXTENT_MAX_HEADER_PAGES)
        return 0;
    return n;
}

static void decode_fields(const uint8_t *h, struct extent *x)
{
    x->header_pages = le_take32(h + 12);
    x->kind = (enum extent_kind)le_take32(h + 16);
    x->algorithm = (enum extent_algorithm)le_take32(h + 20);
    x->pages = le_take32(h + 24);
    x->n_regions = le_take32(h + 28);
    x->n_chunks = le_take32(h + 32);
    x->inside_segment = le_take32(h + 36) & 1;
    memcpy(x->nonce, h + 40, sizeof x->nonce);
    memcpy(x->root, h + 64, sizeof x->root);
    memcpy(x->key, h + 96, sizeof x->key);
    memcpy(x->parent, h + 128, sizeof x->parent);
    memcpy(x->digest, h + 160, sizeof x->digest);
    memcpy(x->before, h + 192, sizeof x->before);
    memcpy(x->session, h + 208, sizeof x->session);
    x->session[sizeof x->session - 1] = '\0';
    x->first = le_take64(h + 240);
    x->last = le_take64(h + 248);
    x->commit = le_take64(h + 256);
    x->lineage = le_take32(h + 264);
    x->block_tokens = le_take32(h + 268);
    memcpy(x->numerics, h + 272, sizeof x->numerics);
    x->numerics[sizeof x->numerics - 1] = '\0';
    x->written_ms = le_take64(h + 296);
    memcpy(x->segment_digest, h + 304, sizeof x->segment_digest);
    x->digest_rows = le_take64(h + 336);
    memcpy(x->fingerprint, h + 344, sizeof x->fingerprint);
    x->tip_bytes = le_take64(h + 376);
}

static void decode_region(const uint8_t *p, struct extent_region *r)
{
    memset(r, 0, sizeof *r);
    memcpy(r->name, p, sizeof r->name);
    r->name[sizeof r->name - 1] = '\0';
    r->what = (enum region_kind)le_take32(p + 24);
    r->row_bytes = le_take32(p + 28);
    r->ratio = le_take32(p + 32);
    r->page = le_take32(p + 36);
    r->bytes = le_take64(p + 40);
    r->chunk = le_take32(p + 48);
    r->plane = le_take32(p + 52);
}

/* The tag says that we wrote it; this says that what we wrote makes sense, so that no later
 * code has to ask. */
static bool is_sane(const struct extent *x)
{
    uint32_t page = x->header_pages, chunk = 0;
    if (x->last < x->first || x->pages > EXTENT_MAX_PAGES)
        return false;
    for (uint32_t i = 0; i < x->n_regions; i++) {
        const struct extent_region *r = &x->regions[i];
        if (r->page != page || r->chunk != chunk || r->bytes > (uint64_t)x->pages * EXTENT_PAGE)
            return false;
        page += (uint32_t)extent_pages(r->bytes);
        chunk += extent_chunks(r);
    }
    return page == x->pages && chunk == x->n_chunks;
}

enum err extent_decode(const uint8_t *header, size_t n_bytes,
                       const uint8_t header_key[CRYPTO_KEY_BYTES], const uint8_t *pack_uuid,
                       uint64_t off, struct extent *out, struct error *e)
{
    uint32_t n_pages = n_bytes < EXTENT_PAGE ? 0 : extent_header_pages(header);
    if (!n_pages || n_pages * (size_t)EXTENT_PAGE != n_bytes)
        return err_set(e, ERR_FORMAT, "no extent at %llu", (unsigned long long)off);
    uint8_t tag[TAG];
    header_tag(header_key, pack_uuid, off, header, n_bytes, tag);
    if (!crypto_equal(tag, header + n_bytes - TAG, TAG))
        return err_set(e, ERR_CORRUPT, "extent at %llu: the header's tag does not match",
                       (unsigned long long)off);
    if (le_take32(header + 8) != 1)
        return err_set(e, ERR_FORMAT, "extent at %llu: version %u", (unsigned long long)off,
                       le_take32(header + 8));
    struct extent x = {0};
    decode_fields(header, &x);
    if (x.n_regions > EXTENT_MAX_REGIONS || header_bytes(x.n_regions, x.n_chunks) > n_bytes ||
        (x.algorithm != EXTENT_TAGGED && x.algorithm != EXTENT_SEALED))
        return err_set(e, ERR_FORMAT, "extent at %llu: %u regions, %u chunks, algorithm %u",
                       (unsigned long long)off, x.n_regions, x.n_chunks, (unsigned)x.algorithm);
    for (uint32_t i = 0; i < x.n_regions; i++)
        decode_region(header + FIELDS_BYTES + i * REGION_BYTES, &x.regions[i]);
    if (!is_sane(&x))
        return err_set(e, ERR_FORMAT, "extent at %llu: regions make no sense",
                       (unsigned long long)off);
    *out = x;
    return OK;
}

enum err extent_open_chunks(const struct extent *x, const uint8_t *header,
                            const struct extent_region *r, uint32_t first, uint32_t n,
                            const struct extent_keys *k, void *data, struct error *e)
{
    struct crypto_extent c = cipher_of(x, k);
    uint8_t *p = data;
    enum err rc = OK;
    for (uint32_t i = first; i < first + n && !rc; i++, p += EXTENT_CHUNK) {
        const uint8_t *tag = tag_of(x, header, r->chunk + i);
        size_t bytes = chunk_bytes(r, i);
        rc = x->algorithm == EXTENT_SEALED ? crypto_open(&c, r->chunk + i, p, bytes, tag, p, e)
                                           : crypto_check(&c, r->chunk + i, p, bytes, tag, e);
    }
    crypto_wipe(&c, sizeof c);
    return rc ? err_wrap(e, rc, "region %.23s", r->name) : OK;
}

enum err extent_open(const struct extent *x, const uint8_t *header,
                     const struct extent_region *r, const struct extent_keys *k, void *data,
                     struct error *e)
{
    return extent_open_chunks(x, header, r, 0, extent_chunks(r), k, data, e);
}
