#include "tests/support/store_harm.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "sessions/pack_internal.h"
#include "tests/support/test.h"

struct harm {
    int fd;
    uint64_t first;
    unsigned n; /* bits flipped */
};

static void flip(int fd, uint64_t off)
{
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, (off_t)off), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)off), 1);
}

static enum err harm_extent(void *user, const struct extent *x, uint64_t off, struct error *e)
{
    struct harm *h = user;
    (void)e;
    for (uint32_t i = 0; i < x->n_regions; i++) {
        const struct extent_region *r = &x->regions[i];
        if (x->kind != EXTENT_BLOCK || x->first != h->first || r->what != REGION_MAIN)
            continue;
        flip(h->fd, off + (uint64_t)r->page * EXTENT_PAGE + r->bytes / 2);
        h->n++;
    }
    return OK;
}

static void harm_pack(struct store *st, const char *path, struct harm *h)
{
    struct pack_super super;
    struct error e;
    h->fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(h->fd >= 0);
    assert_ok(pack_read_super(st, h->fd, &super, &e), &e);
    struct pack_walk w = {
        .header_key = st->space.keys.header, .uuid = super.uuid, .fn = harm_extent, .user = h};
    off_t end = lseek(h->fd, 0, SEEK_END);
    assert_ok(pack_walk(&w, h->fd, EXTENT_PAGE, (uint64_t)end, &e), &e);
    assert_int_equal(close(h->fd), 0);
}

void harm_main_rows(struct store *st, uint64_t first)
{
    struct harm h = {.first = first};
    char path[FS_PATH_BYTES + 300];
    DIR *dir = opendir(st->packs_dir);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strstr(entry->d_name, ".pack")) {
            snprintf(path, sizeof path, "%s/%s", st->packs_dir, entry->d_name);
            harm_pack(st, path, &h);
        }
    closedir(dir);
    assert_true(h.n > 0);
}
