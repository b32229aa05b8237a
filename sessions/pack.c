/* Superblocks, walking and reading of packs; pack_write.c writes them. */
#include "sessions/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/aio.h"
#include "base/fault.h"
#include "sessions/le.h"
#include "sessions/pack_internal.h"
#include "sessions/schema.h"

/* ---- superblock -------------------------------------------------------------------------- */

static const uint8_t magic[8] = {'A', 'G', 'D', 'P', 'A', 'C', 'K', '1'};

static void super_tag(const uint8_t key[CRYPTO_KEY_BYTES], const uint8_t *page,
                      uint8_t out[HASH_TAG_BYTES])
{
    struct hash h;
    hash_init(&h, key, HASH_TAG_BYTES);
    hash_field(&h, page, EXTENT_PAGE - HASH_TAG_BYTES);
    hash_final(&h, out);
}

void pack_super_encode(const struct pack_super *s, const uint8_t key[CRYPTO_KEY_BYTES],
                       uint8_t page[EXTENT_PAGE])
{
    memset(page, 0, EXTENT_PAGE);
    memcpy(page, magic, sizeof magic);
    le_put32(page + 8, 1);
    le_put32(page + 12, EXTENT_PAGE);
    le_put32(page + 16, EXTENT_CHUNK);
    le_put32(page + 20, (uint32_t)s->algorithm);
    le_put32(page + 24, 1);
    le_put32(page + 28, s->block_tokens);
    memcpy(page + 32, s->uuid, 16);
    memcpy(page + 48, s->store, 16);
    memcpy(page + 64, s->space, 16);
    memcpy(page + 80, s->space_name, 64);
    memcpy(page + 144, s->wrapped, sizeof s->wrapped);
    le_put64(page + 216, s->number);
    le_put64(page + 224, s->created_ms);
    super_tag(key, page, page + EXTENT_PAGE - HASH_TAG_BYTES);
}

enum err pack_super_decode(const uint8_t page[EXTENT_PAGE], const uint8_t key[CRYPTO_KEY_BYTES],
                           struct pack_super *out, struct error *e)
{
    if (memcmp(page, magic, sizeof magic) != 0)
        return err_set(e, ERR_FORMAT, "not a pack");
    uint8_t tag[HASH_TAG_BYTES];
    super_tag(key, page, tag);
    if (!crypto_equal(tag, page + EXTENT_PAGE - HASH_TAG_BYTES, sizeof tag))
        return err_set(e, ERR_CORRUPT, "superblock damaged, or of another master key");
    if (le_take32(page + 8) != 1 || le_take32(page + 12) != EXTENT_PAGE ||
        le_take32(page + 16) != EXTENT_CHUNK || le_take32(page + 24) != 1 ||
        (le_take32(page + 20) != EXTENT_TAGGED && le_take32(page + 20) != EXTENT_SEALED))
        return err_set(e, ERR_FORMAT, "pack version %u, page %u, chunk %u: not of this build",
                       le_take32(page + 8), le_take32(page + 12), le_take32(page + 16));
    struct pack_super s = {.algorithm = (enum extent_algorithm)le_take32(page + 20),
                           .block_tokens = le_take32(page + 28),
                           .number = le_take64(page + 216),
                           .created_ms = le_take64(page + 224)};
    memcpy(s.uuid, page + 32, 16);
    memcpy(s.store, page + 48, 16);
    memcpy(s.space, page + 64, 16);
    memcpy(s.space_name, page + 80, 63);
    memcpy(s.wrapped, page + 144, sizeof s.wrapped);
    *out = s;
    return OK;
}

bool pack_super_is_of(const uint8_t page[EXTENT_PAGE], const uint8_t *space_uuid)
{
    return memcmp(page + 64, space_uuid, STORE_UUID_BYTES) == 0;
}

/* ---- rows -------------------------------------------------------------------------------- */

enum err pack_path(const struct store *st, int64_t id, char *out, size_t cap, struct error *e)
{
    return fs_path(out, cap, e, "%s/%08lld.pack", st->packs_dir, (long long)id);
}

enum err pack_row_take(struct query *q, struct pack_row *out, struct error *e)
{
    enum err rc = row_check(q, "packs", e);
    if (rc)
        return rc;
    struct pack_row r = {.id = row_int(q, 0),
                         .space = row_int(q, 2),
                         .state = (enum pack_state)row_int(q, 3),
                         .length = row_uint(q, 4)};
    if ((rc = row_bytes(q, 1, r.uuid, sizeof r.uuid, e)))
        return rc;
    *out = r;
    return OK;
}

enum err pack_row_read(struct store *st, int64_t id, struct pack_row *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &st->db, "SELECT " PACK_COLS ", tag FROM packs WHERE id = ?", e);
    if (rc)
        return rc;
    query_int(&q, id);
    bool row;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    if (!row)
        return err_set(e, ERR_NOTFOUND, "no pack %lld", (long long)id);
    return pack_row_take(&q, out, e);
}

enum err pack_row_write(struct store *st, const struct pack_row *r, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db, "INSERT OR REPLACE INTO packs(" PACK_COLS ", tag) VALUES(?,?,?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "packs");
    query_int(&q, r->id);
    query_blob(&q, r->uuid, sizeof r->uuid);
    query_int(&q, r->space);
    query_int(&q, r->state);
    query_uint(&q, r->length);
    return query_put(&q, e);
}

/* ---- walking ----------------------------------------------------------------------------- */

/* Reads the header that begins at off, if one does. *out is malloc'ed; n 0: none. */
static enum err read_header(int fd, uint64_t off, uint64_t to, uint8_t **out, size_t *n,
                            struct error *e)
{
    uint8_t page[EXTENT_PAGE];
    *n = 0;
    enum err rc = fs_pread(fd, "pack", page, sizeof page, off, e);
    if (rc)
        return rc;
    uint32_t pages = extent_header_pages(page);
    size_t bytes = pages * (size_t)EXTENT_PAGE;
    if (!pages || bytes > to - off)
        return OK;
    uint8_t *h = malloc(bytes);
    if (!h)
        return err_set(e, ERR_NOMEM, "pack: header of %u pages: out of memory", pages);
    memcpy(h, page, sizeof page);
    rc = bytes > sizeof page
             ? fs_pread(fd, "pack", h + sizeof page, bytes - sizeof page, off + sizeof page, e)
             : OK;
    if (rc) {
        free(h);
        return rc;
    }
    *out = h;
    *n = bytes;
    return OK;
}

/* The next page that is worth a look: holes are skipped at once. */
static uint64_t next_page(int fd, uint64_t off, uint64_t to)
{
    uint64_t next = off + EXTENT_PAGE;
    off_t data = lseek(fd, (off_t)next, SEEK_DATA);
    if (data < 0)
        return errno == ENXIO ? to : next;
    uint64_t page = (uint64_t)data / EXTENT_PAGE * EXTENT_PAGE;
    return page > next ? page : next;
}

enum err pack_walk(struct pack_walk *w, int fd, uint64_t from, uint64_t to, struct error *e)
{
    for (uint64_t off = from; off + EXTENT_PAGE <= to;) {
        AUTO_FREE uint8_t *header = NULL;
        size_t n;
        struct extent x;
        enum err rc = read_header(fd, off, to, &header, &n, e);
        if (rc)
            return rc;
        rc = n ? extent_decode(header, n, w->header_key, w->uuid, off, &x, NULL) : ERR_FORMAT;
        bool whole = !rc && (uint64_t)x.pages * EXTENT_PAGE <= to - off;
        if (n && !whole)
            w->n_damaged++;
        if (whole && (rc = w->fn(w->user, &x, off, e)))
            return rc;
        off = whole ? off + (uint64_t)x.pages * EXTENT_PAGE : next_page(fd, off, to);
    }
    return OK;
}

enum err pack_check_extent(int fd, const struct extent *x, uint64_t off,
                           const struct extent_keys *k, struct error *e)
{
    size_t n = (size_t)x->pages * EXTENT_PAGE;
    AUTO_FREE uint8_t *bytes = malloc(n);
    if (!bytes)
        return err_set(e, ERR_NOMEM, "pack: extent of %zu bytes: out of memory", n);
    enum err rc = fs_pread(fd, "pack", bytes, n, off, e);
    for (uint32_t i = 0; i < x->n_regions && !rc; i++)
        rc = extent_open(x, bytes, &x->regions[i], k,
                         bytes + (size_t)x->regions[i].page * EXTENT_PAGE, e);
    return rc;
}

/* ---- the list ---------------------------------------------------------------------------- */

void pack_trailer_encode(const uint8_t *uuid, const uint8_t header_key[CRYPTO_KEY_BYTES],
                         uint64_t list_off, uint8_t page[EXTENT_PAGE])
{
    struct hash h;
    memset(page, 0, EXTENT_PAGE);
    memcpy(page, PACK_TRAILER_MAGIC, 8);
    le_put64(page + 8, list_off);
    hash_init(&h, header_key, HASH_TAG_BYTES);
    hash_field(&h, uuid, STORE_UUID_BYTES);
    hash_field(&h, page, EXTENT_PAGE - HASH_TAG_BYTES);
    hash_final(&h, page + EXTENT_PAGE - HASH_TAG_BYTES);
}

/* The body of the list that the trailer of a pack points to; *n entries, malloc'ed. */
static enum err read_list(int fd, const uint8_t *uuid, const struct extent_keys *k,
                          uint64_t size, uint8_t **out, uint64_t *n, struct error *e)
{
    uint8_t page[EXTENT_PAGE], want[EXTENT_PAGE];
    if (size < 2 * EXTENT_PAGE || size % EXTENT_PAGE)
        return err_set(e, ERR_NOTFOUND, "pack without a list");
    uint64_t end = size - EXTENT_PAGE;
    enum err rc = fs_pread(fd, "pack", page, sizeof page, end, e);
    if (rc)
        return rc;
    if (memcmp(page, PACK_TRAILER_MAGIC, 8) != 0)
        return err_set(e, ERR_NOTFOUND, "pack without a list");
    uint64_t off = le_take64(page + 8);
    pack_trailer_encode(uuid, k->header, off, want);
    if (memcmp(page, want, sizeof page) != 0 || off >= end)
        return err_set(e, ERR_CORRUPT, "pack: its trailer is damaged");
    AUTO_FREE uint8_t *header = NULL;
    AUTO_FREE uint8_t *list = NULL;
    size_t n_header;
    struct extent x;
    if ((rc = read_header(fd, off, end, &header, &n_header, e)))
        return rc;
    rc = n_header ? extent_decode(header, n_header, k->header, uuid, off, &x, e) : ERR_CORRUPT;
    if (rc || x.kind != EXTENT_LIST || x.n_regions != 1 ||
        (uint64_t)x.pages * EXTENT_PAGE != end - off)
        return err_set(e, ERR_CORRUPT, "pack: its list is damaged");
    size_t padded = (size_t)extent_pages(x.regions[0].bytes) * EXTENT_PAGE;
    if (!(list = malloc(padded + 1)))
        return err_set(e, ERR_NOMEM, "pack: list of %zu bytes: out of memory", padded);
    uint64_t at = off + (uint64_t)x.regions[0].page * EXTENT_PAGE;
    if ((padded && (rc = fs_pread(fd, "pack", list, padded, at, e))) ||
        (rc = extent_open(&x, header, &x.regions[0], k, list, e)))
        return rc;
    *n = x.regions[0].bytes / PACK_LIST_BYTES;
    *out = TAKE(list);
    return OK;
}

/* Whether the page at off is all zeros: what a punched extent reads as. */
static bool is_punched(int fd, uint64_t off)
{
    static const uint8_t zeros[EXTENT_PAGE];
    uint8_t page[EXTENT_PAGE];
    return !fs_pread(fd, "pack", page, sizeof page, off, NULL) &&
           memcmp(page, zeros, sizeof page) == 0;
}

enum err pack_check_list(int fd, const uint8_t *uuid, const struct extent_keys *k,
                         uint64_t size, uint64_t *n_damaged, struct error *e)
{
    AUTO_FREE uint8_t *list = NULL;
    uint64_t n = 0, damaged = 0;
    enum err rc = read_list(fd, uuid, k, size, &list, &n, e);
    for (uint64_t i = 0; i < n && !rc; i++) {
        AUTO_FREE uint8_t *header = NULL;
        uint64_t off = le_take64(list + i * PACK_LIST_BYTES);
        size_t n_header;
        struct extent x;
        if ((rc = read_header(fd, off, size, &header, &n_header, e)))
            break;
        bool whole =
            n_header && !extent_decode(header, n_header, k->header, uuid, off, &x, NULL);
        damaged += !whole && !is_punched(fd, off);
    }
    if (!rc)
        *n_damaged = damaged;
    return rc;
}

/* ---- reading ----------------------------------------------------------------------------- */

enum err pack_open_fd(const struct store *st, const char *path, int flags, int *fd,
                      bool *direct, struct error *e)
{
    if (!st->no_direct_io)
        return aio_open_file(path, flags, 0600, fd, direct, e);
    *direct = false;
    *fd = open(path, flags | O_CLOEXEC, 0600);
    return *fd < 0 ? err_sys(e, errno, "open %s", path) : OK;
}

/* The superblock, through memory that O_DIRECT accepts. */
enum err pack_read_super(const struct store *st, int fd, struct pack_super *out,
                         struct error *e)
{
    _Alignas(EXTENT_PAGE) uint8_t page[EXTENT_PAGE];
    enum err rc = fs_pread(fd, "pack", page, sizeof page, 0, e);
    return rc ? rc : pack_super_decode(page, st->superblock_key, out, e);
}

static struct pack_file *find_open(struct store *st, int64_t id)
{
    for (size_t i = 0; i < PACK_MAX_OPEN; i++)
        if (st->packs->open[i].id == id)
            return &st->packs->open[i];
    return NULL;
}

static void close_file(struct pack_file *f)
{
    if (f->id)
        close(f->fd);
    memset(f, 0, sizeof *f);
}

static struct pack_file *free_slot(struct store *st)
{
    struct pack_file *oldest = NULL;
    for (size_t i = 0; i < PACK_MAX_OPEN; i++) {
        struct pack_file *f = &st->packs->open[i];
        if (!f->n_holds && (!oldest || f->used < oldest->used))
            oldest = f;
    }
    if (oldest)
        close_file(oldest);
    return oldest;
}

static enum err open_file(struct store *st, int64_t id, struct pack_file **out, struct error *e)
{
    struct pack_file *f = find_open(st, id);
    if (!f) {
        struct pack_row row;
        struct pack_super super;
        char path[FS_PATH_BYTES];
        bool direct;
        AUTO_FD int fd = -1;
        enum err rc = pack_row_read(st, id, &row, e);
        if (rc || (rc = pack_path(st, id, path, sizeof path, e)) ||
            (rc = pack_open_fd(st, path, O_RDONLY, &fd, &direct, e)) ||
            (rc = pack_read_super(st, fd, &super, e)))
            return err_wrap(e, rc, "pack %lld", (long long)id);
        if (memcmp(super.uuid, row.uuid, sizeof row.uuid) != 0)
            return err_set(e, ERR_CORRUPT, "pack %lld: another pack stands in its place",
                           (long long)id);
        if (!(f = free_slot(st)))
            return err_set(e, ERR_BUSY, "%d packs are being read", PACK_MAX_OPEN);
        *f = (struct pack_file){.id = id, .fd = TAKE_FD(fd), .direct = direct};
        memcpy(f->uuid, row.uuid, sizeof f->uuid);
    }
    f->used = ++st->packs->clock;
    *out = f;
    return OK;
}

enum err pack_open(struct store *st, int64_t id, const struct pack_file **out, struct error *e)
{
    struct pack_file *f;
    enum err rc = open_file(st, id, &f, e);
    if (!rc)
        *out = f;
    return rc;
}

enum err pack_hold(struct store *st, int64_t id, const struct pack_file **out, struct error *e)
{
    struct pack_file *f;
    enum err rc = open_file(st, id, &f, e);
    if (rc)
        return rc;
    f->n_holds++;
    *out = f;
    return OK;
}

void pack_release(struct store *st, int64_t id)
{
    struct pack_file *f = find_open(st, id);
    if (f && f->n_holds)
        f->n_holds--;
}

enum err pack_is_there(struct store *st, int64_t id, bool *out, struct error *e)
{
    const struct pack_file *f;
    struct stat sb;
    enum err rc = pack_open(st, id, &f, e);
    if (rc == ERR_NOMEM)
        return rc;
    *out = !rc && fstat(f->fd, &sb) == 0 && sb.st_nlink > 0;
    return OK;
}

void pack_forget(struct store *st, int64_t id)
{
    struct pack_file *f = find_open(st, id);
    if (f)
        close_file(f);
}

void pack_forget_all(struct store *st)
{
    pack_close_writer(st);
    for (size_t i = 0; i < PACK_MAX_OPEN; i++)
        close_file(&st->packs->open[i]);
}

struct packs *packs_new(void)
{
    struct packs *p = calloc(1, sizeof *p);
    if (p)
        p->writer.fd = -1;
    return p;
}

void pack_close_all(struct store *st)
{
    if (!st->packs)
        return;
    pack_undo(st);
    for (size_t i = 0; i < PACK_MAX_OPEN; i++)
        close_file(&st->packs->open[i]);
    free(st->packs->touched);
    free(st->packs);
    st->packs = NULL;
}
