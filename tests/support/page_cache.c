#include "tests/support/page_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/store_fixture.h"

#define PAGE 4096u
#define SECTOR 512u
#define MAX_OLDER 6 /* states of one page before the newest, the synced one included */
#define MAX_EPOCHS 64
#define MAX_FILES 1024
#define MAX_FDS 1024
#define MAX_NAME_OPS 4096
#define PATH_BYTES 256

int __real_open(const char *path, int flags, ...);
int __real___open_2(const char *path, int flags);
int __real_mkostemp(char *template, int flags);
int __real_close(int fd);
ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t off);
int __real_ftruncate(int fd, off_t size);
int __real_fallocate(int fd, int mode, off_t off, off_t n);
int __real_fsync(int fd);
int __real_fdatasync(int fd);
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_mkdir(const char *path, mode_t mode);

int __wrap_open(const char *path, int flags, ...);
int __wrap___open_2(const char *path, int flags);
int __wrap_mkostemp(char *template, int flags);
int __wrap_close(int fd);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t off);
int __wrap_ftruncate(int fd, off_t size);
int __wrap_fallocate(int fd, int mode, off_t off, off_t n);
int __wrap_fsync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);
int __wrap_mkdir(const char *path, mode_t mode);

/* A page with unsynced changes: what it held before them, the synced state first. The file has
 * the newest state. */
struct page {
    struct page *next;
    uint64_t number;
    unsigned n;
    unsigned born[MAX_OLDER + 1]; /* the epoch in which each state begins, the newest, too */
    unsigned until[MAX_OLDER];    /* the epoch in which it was replaced */
    uint8_t older[MAX_OLDER][PAGE];
};

/* Cutting a file is one change of its size and contents, all or nothing: file systems journal
 * it, and SQLite counts on it. Each cut begins an epoch; what survives is of one epoch. */
struct epoch {
    uint64_t first_size, last_size;
};

struct file {
    dev_t dev;
    ino_t ino;
    int fd;          /* our own, for the crash */
    unsigned n_cuts; /* since the sync */
    struct epoch epochs[MAX_EPOCHS];
    struct page *pages;
    char path[PATH_BYTES]; /* when first seen: for lies and messages */
};

enum name_op_kind { NAME_MADE, FOLDER_MADE, NAME_GONE, NAME_MOVED };

/* One change of a folder since it was synced. */
struct name_op {
    enum name_op_kind kind;
    bool synced;
    char path[PATH_BYTES], to[PATH_BYTES]; /* `to`: of NAME_MOVED */
    char held[PATH_BYTES];                 /* a link to what lost its name; "": nothing did */
};

static struct {
    bool on;
    struct page_cache_options o;
    uint64_t random, n_ops, n_held;
    uint64_t kept_of_8; /* of the changes, by this power cut */
    struct file files[MAX_FILES];
    size_t n_files;
    struct file *of_fd[MAX_FDS];
    char folder_of_fd[MAX_FDS][PATH_BYTES]; /* "": no folder */
    struct name_op names[MAX_NAME_OPS];
    size_t n_names;
} cache;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Noreturn void give_up(const char *why)
{
    fprintf(stderr, "page cache: %s\n", why);
    abort();
}

/* SplitMix64. */
static uint64_t draw(uint64_t below)
{
    uint64_t z = (cache.random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static bool is_below_root(const char *path)
{
    size_t n = strlen(cache.o.root);
    return strncmp(path, cache.o.root, n) == 0 && (path[n] == '/' || !path[n]);
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static void copy_path(char dst[PATH_BYTES], const char *path)
{
    if (snprintf(dst, PATH_BYTES, "%s", path) >= PATH_BYTES)
        give_up("path too long");
}

/* Whether path lies directly in folder. */
static bool is_in(const char *path, const char *folder)
{
    const char *slash = strrchr(path, '/');
    size_t n = strlen(folder);
    return slash && (size_t)(slash - path) == n && strncmp(path, folder, n) == 0;
}

/* ---- files ------------------------------------------------------------------------------- */

static uint64_t size_of(int fd)
{
    struct stat sb;
    if (fstat(fd, &sb))
        give_up("fstat");
    return (uint64_t)sb.st_size;
}

static void see_file(int fd, const char *path)
{
    struct stat sb;
    if (fd < 0 || !is_below_root(path) || fstat(fd, &sb))
        return;
    if (fd >= MAX_FDS)
        give_up("too many descriptors");
    if (S_ISDIR(sb.st_mode)) {
        copy_path(cache.folder_of_fd[fd], path);
        return;
    }
    struct file *f = NULL;
    for (size_t i = 0; i < cache.n_files; i++)
        if (cache.files[i].dev == sb.st_dev && cache.files[i].ino == sb.st_ino)
            f = &cache.files[i];
    if (!f && S_ISREG(sb.st_mode)) {
        if (cache.n_files == MAX_FILES)
            give_up("too many files");
        f = &cache.files[cache.n_files++];
        *f = (struct file){.dev = sb.st_dev, .ino = sb.st_ino};
        f->epochs[0] = (struct epoch){(uint64_t)sb.st_size, (uint64_t)sb.st_size};
        /* Held open, the inode's number is not used again. */
        if ((f->fd = __real_open(path, O_RDWR | O_CLOEXEC)) < 0)
            give_up("cannot hold a file");
        copy_path(f->path, path);
    }
    cache.of_fd[fd] = f;
}

static struct file *file_of(int fd)
{
    return cache.on && fd >= 0 && fd < MAX_FDS ? cache.of_fd[fd] : NULL;
}

static void read_page(const struct file *f, uint64_t number, uint8_t out[PAGE])
{
    memset(out, 0, PAGE);
    if (pread(f->fd, out, PAGE, (off_t)(number * PAGE)) < 0)
        give_up("pread");
}

/* Keeps what a page holds now, before it changes in this epoch (or, cut, with the end of it).
 * Of too many states one in the middle goes. */
static void keep_page(struct file *f, uint64_t number, bool cut)
{
    struct page *p = f->pages;
    while (p && p->number != number)
        p = p->next;
    if (!p) {
        if (!(p = malloc(sizeof *p)))
            give_up("out of memory");
        p->next = f->pages;
        p->number = number;
        p->n = 0;
        p->born[0] = 0;
        f->pages = p;
    }
    if (p->n == MAX_OLDER) {
        p->n--;
        memmove(p->older[2], p->older[3], (MAX_OLDER - 3) * (size_t)PAGE);
        memmove(&p->until[2], &p->until[3], (MAX_OLDER - 3) * sizeof p->until[0]);
        memmove(&p->born[2], &p->born[3], (MAX_OLDER - 2) * sizeof p->born[0]);
    }
    p->until[p->n] = f->n_cuts;
    read_page(f, number, p->older[p->n++]);
    p->born[p->n] = f->n_cuts + cut;
}

static void keep_range(struct file *f, uint64_t off, uint64_t n, bool cut)
{
    for (uint64_t i = off / PAGE; n && i <= (off + n - 1) / PAGE; i++)
        keep_page(f, i, cut);
}

static void forget_changes(struct file *f)
{
    while (f->pages) {
        struct page *p = f->pages;
        f->pages = p->next;
        free(p);
    }
    uint64_t size = size_of(f->fd);
    f->n_cuts = 0;
    f->epochs[0] = (struct epoch){size, size};
}

static bool is_lie(const struct file *f)
{
    unsigned kind = ends_in(f->path, ".pack")  ? LIE_PACK_DATA
                    : ends_in(f->path, "-wal") ? LIE_WAL_DATA
                    : ends_in(f->path, ".db")  ? LIE_DB_DATA
                                               : LIE_OTHER_DATA;
    return (cache.o.lies & kind) != 0;
}

/* ---- names ------------------------------------------------------------------------------- */

static struct name_op *add_name_op(enum name_op_kind kind, const char *path)
{
    if (cache.n_names == MAX_NAME_OPS)
        give_up("too many changes of names");
    struct name_op *op = &cache.names[cache.n_names++];
    *op = (struct name_op){.kind = kind};
    copy_path(op->path, path);
    return op;
}

/* A second name, outside the root, for a file that is about to lose its own. */
static void hold(struct name_op *op, const char *path)
{
    char held[PATH_BYTES];
    if (snprintf(held, sizeof held, "%s" PAGE_CACHE_HELD "/%llu", cache.o.root,
                 (unsigned long long)cache.n_held++) >= PATH_BYTES)
        give_up("path too long");
    if (link(path, held) == 0)
        copy_path(op->held, held);
    else if (errno != ENOENT)
        give_up("link");
}

static void drop_held(struct name_op *op)
{
    if (op->held[0])
        __real_unlink(op->held);
    op->held[0] = '\0';
}

static void sync_folder(const char *folder)
{
    for (size_t i = 0; i < cache.n_names; i++) {
        struct name_op *op = &cache.names[i];
        if (!op->synced && is_in(op->path, folder)) {
            op->synced = true;
            drop_held(op);
        }
    }
}

static void undo(const struct name_op *op)
{
    int rc = 0;
    if (op->kind == NAME_MADE)
        rc = __real_unlink(op->path);
    else if (op->kind == FOLDER_MADE)
        remove_tree(op->path);
    else if (op->kind == NAME_GONE)
        rc = __real_rename(op->held, op->path);
    else if ((rc = __real_rename(op->to, op->path)) == 0 && op->held[0])
        rc = __real_rename(op->held, op->to);
    /* The folder itself may be one that was lost. */
    if (rc && errno != ENOENT)
        give_up("a name cannot be put back");
}

static bool is_named(const struct name_op *op, const char *path)
{
    return path[0] && (strcmp(op->path, path) == 0 || strcmp(op->to, path) == 0);
}

/* Newest first: a change is undone only when all later ones of its names were. */
static void crash_names(void)
{
    for (size_t i = cache.n_names; i-- > 0;) {
        struct name_op *op = &cache.names[i];
        bool kept = op->synced || draw(8) < cache.kept_of_8;
        for (size_t k = i + 1; k < cache.n_names && !kept; k++)
            kept = cache.names[k].synced &&
                   (is_named(&cache.names[k], op->path) || is_named(&cache.names[k], op->to));
        /* From here on `synced` says that it stands. */
        op->synced = kept;
        if (!kept)
            undo(op);
        drop_held(op);
    }
}

/* ---- the power cut ----------------------------------------------------------------------- */

/* One of the states that a page had in this epoch, or two neighbouring ones torn at some
 * sector.
 */
static void crash_page(const struct file *f, const struct page *p, unsigned epoch)
{
    uint8_t newest[PAGE], out[PAGE];
    unsigned first = 0, last;
    read_page(f, p->number, newest);
    while (first < p->n && p->until[first] < epoch)
        first++;
    for (last = first; last < p->n && p->born[last + 1] <= epoch;)
        last++;
    unsigned which = last;
    if (last > first && draw(8) >= cache.kept_of_8)
        which = first + (unsigned)draw(last - first);
    memcpy(out, which < p->n ? p->older[which] : newest, PAGE);
    if (which < last && draw(4) == 0) {
        const uint8_t *next = which + 1 < p->n ? p->older[which + 1] : newest;
        size_t cut = (1 + (size_t)draw(PAGE / SECTOR - 1)) * SECTOR;
        if (draw(2))
            memcpy(out, next, cut);
        else
            memcpy(out + cut, next + cut, PAGE - cut);
    }
    if (__real_pwrite(f->fd, out, PAGE, (off_t)(p->number * PAGE)) != PAGE)
        give_up("pwrite");
}

static void crash_file(const struct file *f)
{
    unsigned epoch = draw(8) < cache.kept_of_8 ? f->n_cuts : (unsigned)draw(f->n_cuts + 1);
    const struct epoch *x = &f->epochs[epoch];
    uint64_t size = x->first_size;
    if (x->last_size > size && draw(8) < cache.kept_of_8)
        size = x->last_size;
    else if (x->last_size > size && draw(2))
        size += draw(x->last_size - size + 1);
    for (const struct page *p = f->pages; p; p = p->next)
        crash_page(f, p, epoch);
    if (__real_ftruncate(f->fd, (off_t)size))
        give_up("ftruncate");
}

/* With the lock held. */
static _Noreturn void crash(void)
{
    cache.on = false;
    /* Everything, often: a commit that nobody heard of must be whole. */
    uint64_t kept = draw(12);
    cache.kept_of_8 = kept < 8 ? kept : 8;
    for (size_t i = 0; i < cache.n_files; i++)
        if (cache.files[i].pages || cache.files[i].n_cuts ||
            cache.files[i].epochs[0].last_size != cache.files[i].epochs[0].first_size)
            crash_file(&cache.files[i]);
    crash_names();
    _exit(PAGE_CACHE_EXIT);
}

/* Counts a change that was just made (or a sync that is about to be). */
static void step(void)
{
    if (++cache.n_ops == cache.o.crash_at)
        crash();
}

void page_cache_start(const struct page_cache_options *o)
{
    cache.o = *o;
    cache.random = o->seed;
    char held[PATH_BYTES];
    snprintf(held, sizeof held, "%s" PAGE_CACHE_HELD, o->root);
    if (__real_mkdir(held, 0700) && errno != EEXIST)
        give_up("mkdir");
    cache.on = true;
}

uint64_t page_cache_ops(void)
{
    return cache.n_ops;
}

void page_cache_crash(void)
{
    pthread_mutex_lock(&lock);
    crash();
}

/* ---- the wrapped calls ------------------------------------------------------------------- */

static int wrapped_open(const char *path, int flags, mode_t mode)
{
    struct stat sb;
    pthread_mutex_lock(&lock);
    bool below = is_below_root(path);
    bool made = below && (flags & O_CREAT) && lstat(path, &sb) != 0;
    if (below && (flags & O_TRUNC) && !made)
        give_up("O_TRUNC is not modelled");
    int fd = __real_open(path, flags, mode);
    if (fd >= 0) {
        see_file(fd, path);
        if (made) {
            add_name_op(NAME_MADE, path);
            step();
        }
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

int __wrap_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & (O_CREAT | __O_TMPFILE)) {
        va_list ap;
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    return cache.on ? wrapped_open(path, flags, mode) : __real_open(path, flags, mode);
}

int __wrap___open_2(const char *path, int flags)
{
    return cache.on ? wrapped_open(path, flags, 0) : __real___open_2(path, flags);
}

int __wrap_mkostemp(char *template, int flags)
{
    if (!cache.on)
        return __real_mkostemp(template, flags);
    pthread_mutex_lock(&lock);
    int fd = __real_mkostemp(template, flags);
    if (fd >= 0 && is_below_root(template)) {
        see_file(fd, template);
        add_name_op(NAME_MADE, template);
        step();
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

int __wrap_close(int fd)
{
    if (cache.on && fd >= 0 && fd < MAX_FDS) {
        pthread_mutex_lock(&lock);
        cache.of_fd[fd] = NULL;
        cache.folder_of_fd[fd][0] = '\0';
        pthread_mutex_unlock(&lock);
    }
    return __real_close(fd);
}

static ssize_t write_at(struct file *f, int fd, const void *p, size_t n, off_t off)
{
    pthread_mutex_lock(&lock);
    keep_range(f, (uint64_t)off, n, false);
    ssize_t done = __real_pwrite(fd, p, n, off);
    f->epochs[f->n_cuts].last_size = size_of(f->fd);
    step();
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t off)
{
    struct file *f = file_of(fd);
    return f ? write_at(f, fd, p, n, off) : __real_pwrite(fd, p, n, off);
}

ssize_t __wrap_write(int fd, const void *p, size_t n)
{
    struct file *f = file_of(fd);
    if (!f)
        return __real_write(fd, p, n);
    off_t off = lseek(fd, 0, SEEK_CUR);
    ssize_t done = write_at(f, fd, p, n, off);
    if (done > 0)
        lseek(fd, off + done, SEEK_SET);
    return done;
}

int __wrap_ftruncate(int fd, off_t size)
{
    struct file *f = file_of(fd);
    if (!f)
        return __real_ftruncate(fd, size);
    pthread_mutex_lock(&lock);
    uint64_t now = size_of(fd);
    bool cuts = (uint64_t)size < now;
    if (cuts)
        keep_range(f, (uint64_t)size, now - (uint64_t)size, true);
    int rc = __real_ftruncate(fd, size);
    if (cuts && f->n_cuts + 1 == MAX_EPOCHS)
        give_up("too many cuts");
    if (cuts)
        f->epochs[++f->n_cuts] = (struct epoch){(uint64_t)size, (uint64_t)size};
    f->epochs[f->n_cuts].last_size = size_of(fd);
    step();
    pthread_mutex_unlock(&lock);
    return rc;
}

int __wrap_fallocate(int fd, int mode, off_t off, off_t n)
{
    struct file *f = file_of(fd);
    if (!f)
        return __real_fallocate(fd, mode, off, n);
    pthread_mutex_lock(&lock);
    uint64_t end = size_of(fd), from = (uint64_t)off;
    if (!(mode & FALLOC_FL_KEEP_SIZE))
        give_up("fallocate that changes the size is not modelled");
    if (mode & FALLOC_FL_PUNCH_HOLE && from < end)
        keep_range(f, from, (uint64_t)n < end - from ? (uint64_t)n : end - from, false);
    int rc = __real_fallocate(fd, mode, off, n);
    step();
    pthread_mutex_unlock(&lock);
    return rc;
}

static int sync_file(struct file *f)
{
    pthread_mutex_lock(&lock);
    step();
    if (!is_lie(f))
        forget_changes(f);
    pthread_mutex_unlock(&lock);
    return 0;
}

int __wrap_fdatasync(int fd)
{
    struct file *f = file_of(fd);
    return f ? sync_file(f) : __real_fdatasync(fd);
}

int __wrap_fsync(int fd)
{
    struct file *f = file_of(fd);
    if (f)
        return sync_file(f);
    if (!cache.on || fd < 0 || fd >= MAX_FDS || !cache.folder_of_fd[fd][0])
        return __real_fsync(fd);
    pthread_mutex_lock(&lock);
    step();
    if (!(cache.o.lies & LIE_FOLDER))
        sync_folder(cache.folder_of_fd[fd]);
    pthread_mutex_unlock(&lock);
    return 0;
}

int __wrap_rename(const char *from, const char *to)
{
    if (!cache.on || !is_below_root(from))
        return __real_rename(from, to);
    pthread_mutex_lock(&lock);
    struct name_op *op = add_name_op(NAME_MOVED, from);
    copy_path(op->to, to);
    hold(op, to);
    int rc = __real_rename(from, to);
    if (rc) {
        drop_held(op);
        cache.n_names--;
    }
    step();
    pthread_mutex_unlock(&lock);
    return rc;
}

int __wrap_unlink(const char *path)
{
    if (!cache.on || !is_below_root(path))
        return __real_unlink(path);
    pthread_mutex_lock(&lock);
    struct name_op *op = add_name_op(NAME_GONE, path);
    hold(op, path);
    int rc = __real_unlink(path);
    if (rc) {
        drop_held(op);
        cache.n_names--;
    }
    step();
    pthread_mutex_unlock(&lock);
    return rc;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    if (!cache.on || !is_below_root(path))
        return __real_mkdir(path, mode);
    pthread_mutex_lock(&lock);
    int rc = __real_mkdir(path, mode);
    if (rc == 0) {
        add_name_op(FOLDER_MADE, path);
        step();
    }
    pthread_mutex_unlock(&lock);
    return rc;
}
