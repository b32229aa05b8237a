#include "tests/support/store_harm.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "sessions/pack_internal.h"
#include "tests/support/test.h"

struct harm {
    const char *path;
    uint64_t from, to;
    struct harm_place *out;
    size_t n, cap;
};

static enum err see_extent(void *user, const struct extent *x, uint64_t off, struct error *e)
{
    struct harm *h = user;
    (void)e;
    if (x->kind != EXTENT_BLOCK || x->first < h->from || x->last > h->to)
        return OK;
    for (uint32_t i = 0; i < x->n_regions; i++) {
        const struct extent_region *r = &x->regions[i];
        if (r->what != REGION_MAIN)
            continue;
        assert_true(h->n < h->cap);
        struct harm_place *p = &h->out[h->n++];
        p->off = off + (uint64_t)r->page * EXTENT_PAGE + r->bytes / 2;
        assert_true(snprintf(p->path, sizeof p->path, "%s", h->path) < (int)sizeof p->path);
    }
    return OK;
}

static void walk_pack(struct store *st, struct harm *h)
{
    struct pack_super super;
    struct error e;
    int fd = open(h->path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_ok(pack_read_super(st, fd, &super, &e), &e);
    struct pack_walk w = {
        .header_key = st->space.keys.header, .uuid = super.uuid, .fn = see_extent, .user = h};
    assert_ok(pack_walk(&w, fd, EXTENT_PAGE, (uint64_t)lseek(fd, 0, SEEK_END), &e), &e);
    assert_int_equal(close(fd), 0);
}

size_t harm_places(struct store *st, uint64_t from, uint64_t to, struct harm_place *out,
                   size_t cap)
{
    char path[FS_PATH_BYTES + 300];
    struct harm h = {.path = path, .from = from, .to = to, .out = out, .cap = cap};
    DIR *dir = opendir(st->packs_dir);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strstr(entry->d_name, ".pack")) {
            snprintf(path, sizeof path, "%s/%s", st->packs_dir, entry->d_name);
            walk_pack(st, &h);
        }
    closedir(dir);
    assert_true(h.n > 0);
    return h.n;
}

void harm_flip(const struct harm_place *p)
{
    uint8_t byte;
    int fd = open(p->path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)p->off), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)p->off), 1);
    assert_int_equal(close(fd), 0);
}

void harm_main_rows(struct store *st, uint64_t from, uint64_t to)
{
    struct harm_place places[64];
    size_t n = harm_places(st, from, to, places, sizeof places / sizeof *places);
    for (size_t i = 0; i < n; i++)
        harm_flip(&places[i]);
}
