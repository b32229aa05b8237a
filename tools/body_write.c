/* write_file and edit. Files are replaced whole by a rename, so that a kill leaves the old or
 * the new content; only what has several names (links) is written in place, to keep them one
 * file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "tools/body.h"
#include "tools/confined.h"

#define MAX_EDIT_BYTES (64 << 20)

static enum err write_all(int fd, const void *data, size_t n, const char *path, struct error *e)
{
    const char *p = data;
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return err_sys(e, errno, "%.160s: write", path);
        p += k;
        n -= (size_t)k;
    }
    return OK;
}

static enum err write_in_place(const struct confined *c, const char *path, const void *data,
                               size_t n, struct error *e)
{
    AUTO_FD int fd = -1;
    struct stat st;
    enum err rc = confined_open(c, path, O_WRONLY | O_NONBLOCK | O_NOCTTY, 0, &fd, e);
    if (rc)
        return rc;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return err_set(e, ERR_INVAL, "%.160s: not a regular file", path);
    if (ftruncate(fd, 0) != 0)
        return err_sys(e, errno, "%.160s: truncate", path);
    return write_all(fd, data, n, path, e);
}

/* A new file under a temporary name, then renamed over the old one. `st` is that of the old
 * file or NULL. */
static enum err write_by_rename(int dir, const char *name, const struct stat *st,
                                const char *path, const void *data, size_t n, struct error *e)
{
    char temp[64];
    snprintf(temp, sizeof temp, ".agentd-%d.tmp", (int)getpid());
    unlinkat(dir, temp, 0);
    AUTO_FD int fd =
        openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_sys(e, errno, "%.160s", path);
    enum err rc = write_all(fd, data, n, path, e);
    if (!rc && st && fchmod(fd, st->st_mode & 07777) != 0)
        rc = err_sys(e, errno, "%.160s: mode", path);
    if (!rc && renameat(dir, temp, dir, name) != 0)
        rc = err_sys(e, errno, "%.160s", path);
    if (rc)
        unlinkat(dir, temp, 0);
    return rc;
}

/* Creates or replaces a file. *created tells which. */
static enum err store(const struct confined *c, const char *path, const void *data, size_t n,
                      bool *created, struct error *e)
{
    AUTO_FD int dir = -1;
    char name[256];
    struct stat st;
    enum err rc = confined_open_parent(c, path, true, &dir, name, e);
    if (rc)
        return rc;
    *created = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0;
    if (*created && errno != ENOENT)
        return err_sys(e, errno, "%.160s", path);
    if (*created)
        return write_by_rename(dir, name, NULL, path, data, n, e);
    if (S_ISLNK(st.st_mode) || (S_ISREG(st.st_mode) && st.st_nlink > 1))
        return write_in_place(c, path, data, n, e);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_INVAL, "%.160s: %s", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    return write_by_rename(dir, name, &st, path, data, n, e);
}

static bool is_read_only(const struct body *b)
{
    return b->launch->mode == TOOL_MODE_READ_ONLY;
}

int body_write_file(const struct body *b)
{
    struct error e;
    struct confined c = {b->launch->workspace, NULL};
    const char *path = body_string(b, "path", "");
    const json_t *content = json_object_get(b->launch->arguments, "content");
    size_t n = json_string_length(content);
    bool created = false;
    if (is_read_only(b))
        return body_fail("%s: the sandbox is read-only", path);
    if (store(&c, path, json_string_value(content), n, &created, &e))
        return body_fail("%s", e.msg);
    printf("%s %s (%zu bytes)\n", created ? "created" : "replaced", path, n);
    return 0;
}

/* ---- edit ---- */

static enum err load(const struct confined *c, const char *path, struct buf *out,
                     struct error *e)
{
    AUTO_FD int fd = -1;
    struct stat st;
    char block[1 << 16];
    enum err rc = confined_open(c, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, &fd, e);
    if (rc)
        return rc;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return err_set(e, ERR_INVAL, "%.160s: not a regular file", path);
    for (ssize_t n; (n = read(fd, block, sizeof block)) != 0;) {
        if (n < 0)
            return err_sys(e, errno, "%.160s: read", path);
        if ((rc = buf_add(out, block, (size_t)n, e)))
            return err_wrap(e, rc, "%.160s", path);
    }
    return OK;
}

struct text {
    const char *data;
    size_t len;
};

static struct text argument_text(const struct body *b, const char *name)
{
    const json_t *v = json_object_get(b->launch->arguments, name);
    return (struct text){json_string_value(v), json_string_length(v)};
}

/* Occurrences, those that overlap counted each: any second one makes the place ambiguous. */
static size_t count(struct text in, struct text what)
{
    size_t n = 0;
    const char *p = in.data, *end = in.data + in.len;
    while (p && (p = memmem(p, (size_t)(end - p), what.data, what.len))) {
        n++;
        p++;
    }
    return n;
}

static size_t line_of(struct text in, const char *at)
{
    size_t line = 1;
    for (const char *p = in.data; p < at; p++)
        line += *p == '\n';
    return line;
}

static enum err replace(struct text in, struct text old, struct text new, struct buf *out,
                        size_t *n, struct error *e)
{
    const char *p = in.data, *end = in.data + in.len;
    enum err rc = OK;
    *n = 0;
    for (const char *hit; !rc && (hit = memmem(p, (size_t)(end - p), old.data, old.len));
         p = hit + old.len) {
        rc = buf_add(out, p, (size_t)(hit - p), e);
        if (!rc)
            rc = buf_add(out, new.data, new.len, e);
        ++*n;
    }
    return rc ? rc : buf_add(out, p, (size_t)(end - p), e);
}

int body_edit(const struct body *b)
{
    struct error e;
    struct confined c = {b->launch->workspace, NULL};
    const char *path = body_string(b, "path", "");
    struct text old = argument_text(b, "old_string"), new = argument_text(b, "new_string");
    AUTO(buf) struct buf before = BUF_INIT(MAX_EDIT_BYTES), after = BUF_INIT(MAX_EDIT_BYTES);
    bool created, all = body_flag(b, "replace_all");
    size_t n_done;
    if (is_read_only(b))
        return body_fail("%s: the sandbox is read-only", path);
    if (old.len == new.len && !memcmp(old.data, new.data, old.len))
        return body_fail("old_string and new_string are the same");
    if (load(&c, path, &before, &e))
        return body_fail("%s", e.msg);
    struct text in = {buf_str(&before), before.len};
    size_t n = count(in, old);
    if (n == 0)
        return body_fail("%s: old_string does not occur", path);
    if (n > 1 && !all)
        return body_fail(
            "%s: old_string occurs %zu times; give more of its surroundings, or set "
            "replace_all",
            path, n);
    size_t line = line_of(in, memmem(in.data, in.len, old.data, old.len));
    if (replace(in, old, new, &after, &n_done, &e) ||
        store(&c, path, buf_str(&after), after.len, &created, &e))
        return body_fail("%s", e.msg);
    printf("replaced %zu occurrence%s in %s, first at line %zu\n", n_done,
           n_done == 1 ? "" : "s", path, line);
    return 0;
}
