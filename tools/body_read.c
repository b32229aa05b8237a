/* read_file and list_dir. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "tools/body.h"
#include "tools/confined.h"

#define MAX_ENTRIES 20000

static struct confined roots(const struct body *b)
{
    return (struct confined){b->launch->workspace, b->launch->spill_folder};
}

/* ---- read_file ---- */

/* Copies lines [first, first + count) to stdout; count 0 is all. Returns the lines there are
 * when the range starts behind the end, else 0. */
static long long copy_lines(FILE *f, long long first, long long count)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    long long at = 0;
    while ((n = getline(&line, &cap, f)) >= 0) {
        if (++at >= first)
            fwrite(line, 1, (size_t)n, stdout);
        if (count && at >= first + count - 1)
            break;
    }
    free(line);
    return at < first && first > 1 ? at + 1 : 0;
}

static int copy_all(int fd)
{
    char block[1 << 16];
    ssize_t n;
    while ((n = read(fd, block, sizeof block)) > 0)
        fwrite(block, 1, (size_t)n, stdout);
    return n < 0 ? body_fail("reading: %s", strerror(errno)) : 0;
}

int body_read_file(const struct body *b)
{
    struct error e;
    struct stat st;
    struct confined c = roots(b);
    const char *path = body_string(b, "path", "");
    long long first = body_integer(b, "offset", 1), count = body_integer(b, "limit", 0);
    AUTO_FD int fd = -1;
    /* O_NONBLOCK: opening a FIFO must not wait for its other end. */
    if (confined_open(&c, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, &fd, &e))
        return body_fail("%s", e.msg);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return body_fail("%s: %s", path,
                         S_ISDIR(st.st_mode) ? "a folder; use list_dir" : "not a regular file");
    if (first <= 1 && count == 0)
        return copy_all(fd);
    AUTO_FILE FILE *f = fdopen(fd, "r");
    if (!f)
        return body_fail("%s: %s", path, strerror(errno));
    fd = -1;
    long long beyond = copy_lines(f, first, count > INT64_MAX - first ? 0 : count);
    return beyond ? body_fail("%s: has %lld lines, line %lld was asked for", path, beyond - 1,
                              first)
                  : 0;
}

/* ---- list_dir ---- */

/* Newlines and other control bytes of a name would look like structure. */
static void print_name(const char *name)
{
    for (const unsigned char *p = (const unsigned char *)name; *p; p++) {
        if (*p < 0x20 || *p == 0x7F)
            printf("\\x%02x", *p);
        else
            putchar(*p);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The sorted names in a folder, "." and ".." left out; *n gets their number. */
static char **read_names(int fd, size_t *n)
{
    char **names = NULL;
    size_t cap = 0;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    *n = 0;
    for (struct dirent *d; dir && *n < MAX_ENTRIES && (d = readdir(dir));) {
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
            continue;
        if (*n == cap) {
            cap = cap ? 2 * cap : 64;
            char **more = realloc(names, cap * sizeof *names);
            if (!more)
                break;
            names = more;
        }
        char *name = strdup(d->d_name);
        if (!name)
            break;
        names[(*n)++] = name;
    }
    if (dir)
        closedir(dir);
    if (*n)
        qsort(names, *n, sizeof *names, by_name);
    return names;
}

struct listing {
    long long depth;
    size_t n_left; /* entries that may still be printed */
};

static void list_folder(struct listing *l, int fd, const char *prefix, long long level);

static void list_entry(struct listing *l, int parent, const char *prefix, const char *name,
                       long long level)
{
    struct stat st;
    char path[4352], target[1024];
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    snprintf(path, sizeof path, "%.4095s%.255s", prefix, name);
    print_name(path);
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlinkat(parent, name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        fputs(" -> ", stdout);
        print_name(target);
        putchar('\n');
    } else if (!S_ISDIR(st.st_mode)) {
        S_ISREG(st.st_mode) ? printf("\t%lld\n", (long long)st.st_size) : printf("\tspecial\n");
    } else {
        fputs("/\n", stdout);
        AUTO_FD int fd = -1;
        if (level < l->depth && strcmp(name, ".git") != 0)
            fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && strlen(path) < sizeof path - 1) {
            strncat(path, "/", 2);
            list_folder(l, fd, path, level + 1);
        }
    }
}

static void list_folder(struct listing *l, int fd, const char *prefix, long long level)
{
    size_t n;
    char **names = read_names(fd, &n);
    for (size_t i = 0; i < n; i++) {
        if (l->n_left > 0) {
            l->n_left--;
            list_entry(l, fd, prefix, names[i], level);
        }
        free(names[i]);
    }
    free(names);
}

int body_list_dir(const struct body *b)
{
    struct error e;
    struct confined c = roots(b);
    struct listing l = {body_integer(b, "depth", 1), MAX_ENTRIES};
    AUTO_FD int fd = -1;
    if (confined_open(&c, body_string(b, "path", "."), O_RDONLY | O_DIRECTORY, 0, &fd, &e))
        return body_fail("%s", e.msg);
    list_folder(&l, fd, "", 1);
    if (l.n_left == 0)
        printf("[only the first %d entries are shown]\n", MAX_ENTRIES);
    else if (l.n_left == MAX_ENTRIES)
        printf("[empty]\n");
    return 0;
}
