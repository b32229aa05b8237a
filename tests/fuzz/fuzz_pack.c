/* Walking a pack: whatever the bytes are, extents that are handed over lie inside the file,
 * make sense, and do not overlap. The input is a whole pack file, keyed with zeros; because no
 * mutation keeps a tag right, every input is walked as it is and once more with the header tags
 * put right, so that what stands behind the tags is reached, too. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sessions/pack.h"

#define MAX_BYTES (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct extent_keys keys;
static const uint8_t *const key = keys.header;
static const uint8_t uuid[STORE_UUID_BYTES];

struct seen {
    uint8_t *bytes;
    uint64_t size, end;
};

static void need(bool cond)
{
    if (!cond)
        abort();
}

static enum err see(void *user, const struct extent *x, uint64_t off, struct error *e)
{
    struct seen *s = user;
    (void)e;
    need(off >= s->end && off % EXTENT_PAGE == 0);
    s->end = off + (uint64_t)x->pages * EXTENT_PAGE;
    need(s->end <= s->size && x->header_pages <= x->pages && x->first <= x->last);
    for (uint32_t i = 0; i < x->n_regions; i++) {
        const struct extent_region *r = &x->regions[i];
        uint64_t at = (uint64_t)r->page * EXTENT_PAGE;
        need(at + extent_pages(r->bytes) * EXTENT_PAGE <= (uint64_t)x->pages * EXTENT_PAGE);
        (void)!extent_open(x, s->bytes + off, r, &keys, s->bytes + off + at, NULL);
    }
    return OK;
}

static void walk(uint8_t *bytes, size_t size)
{
    int fd = memfd_create("pack", MFD_CLOEXEC);
    need(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    struct seen s = {.bytes = bytes, .size = size};
    struct pack_walk w = {.header_key = key, .uuid = uuid, .fn = see, .user = &s};
    need(pack_walk(&w, fd, 0, size, NULL) == OK);
    uint64_t n_damaged;
    (void)!pack_check_list(fd, uuid, &keys, size, &n_damaged, NULL);
    close(fd);
}

/* The tag that the header at `off` would need. */
static void mend(uint8_t *bytes, size_t size, size_t off)
{
    uint32_t pages = extent_header_pages(bytes + off);
    size_t n = pages * (size_t)EXTENT_PAGE;
    if (!pages || n > size - off)
        return;
    struct hash h;
    hash_init(&h, key, HASH_TAG_BYTES);
    hash_field(&h, uuid, sizeof uuid);
    hash_u64le(&h, off);
    hash_field(&h, bytes + off, n - HASH_TAG_BYTES);
    hash_final(&h, bytes + off + n - HASH_TAG_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pack_super super;
    if (size > MAX_BYTES)
        return 0;
    if (size >= EXTENT_PAGE)
        (void)!pack_super_decode(data, key, &super, NULL);
    uint8_t *copy = malloc(size ? size : 1);
    need(copy != NULL);
    if (size)
        memcpy(copy, data, size);
    walk(copy, size);
    if (size)
        memcpy(copy, data, size);
    for (size_t off = 0; off + EXTENT_PAGE <= size; off += EXTENT_PAGE)
        mend(copy, size, off);
    walk(copy, size);
    free(copy);
    return 0;
}
