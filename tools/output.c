#include "tools/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"

enum err output_init(struct output *o, uint64_t cap, uint64_t max, const char *spill_path,
                     struct error *e)
{
    *o = (struct output){.cap = cap, .head = cap / 2, .max = max, .spill_fd = -1};
    o->kept = malloc((size_t)cap);
    o->spill_path = spill_path ? strdup(spill_path) : NULL;
    if (o->kept && (o->spill_path || !spill_path))
        return OK;
    output_fini(o);
    return err_set(e, ERR_NOMEM, "tool output: no memory for %llu bytes",
                   (unsigned long long)cap);
}

void output_fini(struct output *o)
{
    if (o->spill_fd >= 0)
        close(o->spill_fd);
    free(o->spill_path);
    free(o->kept);
    *o = (struct output){.spill_fd = -1};
}

/* ---- taking it in ---- */

static ssize_t write_some(int fd, const uint8_t *data, size_t n)
{
    if (!fault_point("tool.spill"))
        return write(fd, data, n);
    errno = ENOSPC;
    return -1;
}

static void spill_write(struct output *o, const uint8_t *data, size_t n)
{
    while (n > 0 && !o->spill_error) {
        ssize_t k = write_some(o->spill_fd, data, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            o->spill_error = k < 0 ? errno : EIO;
            unlink(o->spill_path); /* half of it would pass for the whole */
            return;
        }
        data += k;
        n -= (size_t)k;
    }
}

/* Called with output that does not fit any more, before it is added to the ring. */
static void spill(struct output *o, const uint8_t *data, size_t n)
{
    if (!o->spill_path || o->spill_error)
        return;
    if (!o->is_spilled) {
        o->spill_fd =
            open(o->spill_path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (o->spill_fd < 0) {
            o->spill_error = errno;
            return;
        }
        o->is_spilled = true;
        spill_write(o, o->kept, (size_t)o->total);
    }
    spill_write(o, data, n);
}

static void keep(struct output *o, const uint8_t *data, size_t n)
{
    if (o->total + n > o->cap)
        spill(o, data, n);
    while (n > 0) {
        uint64_t at =
            o->total < o->head ? o->total : o->head + (o->total - o->head) % (o->cap - o->head);
        uint64_t end = o->total < o->head ? o->head : o->cap;
        size_t k = n < end - at ? n : (size_t)(end - at);
        memcpy(o->kept + at, data, k);
        o->total += k;
        data += k;
        n -= k;
    }
}

bool output_add(struct output *o, const uint8_t *data, size_t n)
{
    uint64_t room = o->max > o->total ? o->max - o->total : 0;
    keep(o, data, n < room ? n : (size_t)room);
    return n <= room;
}

void output_fresh(const struct output *o, uint64_t before, struct buf *fresh)
{
    uint64_t sure = o->head - 4, end = o->total < sure ? o->total : sure;
    if (end > before && buf_add(fresh, o->kept + before, (size_t)(end - before), NULL))
        return; /* full: its owner wants no more */
}

/* ---- as text ---- */

static bool is_continuation(uint8_t byte)
{
    return (byte & 0xC0) == 0x80;
}

/* Cuts at characters, so that what is UTF-8 stays so; bytes that are not lose 3 at most. */
static size_t trim_end(const uint8_t *p, size_t n)
{
    size_t k = n;
    while (k > 0 && n - k < 3 && is_continuation(p[k - 1]))
        k--;
    if (k == 0 || p[k - 1] < 0xC0)
        return n;
    size_t want = p[k - 1] >= 0xF0 ? 4 : p[k - 1] >= 0xE0 ? 3 : 2;
    return n - k + 1 < want ? k - 1 : n;
}

static size_t trim_start(const uint8_t *p, size_t n)
{
    size_t k = 0;
    while (k < n && k < 3 && is_continuation(p[k]))
        k++;
    return k;
}

static enum err add_cut(const struct output *o, struct buf *text, struct error *e)
{
    uint64_t ring = o->cap - o->head, at = (o->total - o->head) % ring;
    AUTO(buf) struct buf tail = BUF_INIT((size_t)ring);
    enum err rc = buf_add(&tail, o->kept + o->head + at, (size_t)(ring - at), e);
    if (!rc)
        rc = buf_add(&tail, o->kept + o->head, (size_t)at, e);
    if (rc)
        return rc;
    size_t head = trim_end(o->kept, (size_t)o->head), skip = trim_start(tail.data, tail.len);
    uint64_t lost = o->total - head - (tail.len - skip);
    rc = buf_add(text, o->kept, head, e);
    if (rc)
        return rc;
    if (o->is_spilled && !o->spill_error)
        rc = buf_printf(text, e, "\n[... %llu bytes left out; all %llu are in %s ...]\n",
                        (unsigned long long)lost, (unsigned long long)o->total, o->spill_path);
    else
        rc = buf_printf(text, e, "\n[... %llu of %llu bytes left out%s%s ...]\n",
                        (unsigned long long)lost, (unsigned long long)o->total,
                        o->spill_error ? "; the whole could not be stored: " : "",
                        o->spill_error ? strerror(o->spill_error) : "");
    return rc ? rc : buf_add(text, tail.data + skip, tail.len - skip, e);
}

/* Appends bytes [from, to), which are kept; all in the head, or all in the ring. */
static void add_kept(const struct output *o, uint64_t from, uint64_t to, struct buf *out)
{
    uint64_t ring = o->cap - o->head;

    while (from < to) {
        uint64_t at = from < o->head ? from : o->head + (from - o->head) % ring;
        uint64_t end = from < o->head ? o->head : o->cap;
        uint64_t n = to - from < end - at ? to - from : end - at;
        if (buf_add(out, o->kept + at, (size_t)n, NULL))
            return;
        from += n;
    }
}

uint64_t output_since(const struct output *o, uint64_t from, bool all, struct buf *out)
{
    uint64_t tail = o->total > o->cap ? o->total - (o->cap - o->head) : o->head;
    uint64_t gap = from > o->head ? from : o->head; /* first byte that may be lost */
    size_t start = out->len;

    if (from < o->head)
        add_kept(o, from, o->total < o->head ? o->total : o->head, out);
    if (gap < tail) {
        if (buf_printf(out, NULL, "\n[... %llu bytes left out ...]\n",
                       (unsigned long long)(tail - gap)))
            return o->total;
        start = out->len;
        add_kept(o, tail, o->total, out);
    } else {
        add_kept(o, gap, o->total, out);
    }
    if (all || out->len == start)
        return o->total;
    size_t n = out->len - start, kept = trim_end(out->data + start, n);
    out->len = start + kept;
    out->data[out->len] = '\0';
    return o->total - (n - kept);
}

bool output_is_cut(const struct output *o)
{
    return o->total > o->cap;
}

enum err output_text(const struct output *o, struct buf *out, struct error *e)
{
    return output_is_cut(o) ? add_cut(o, out, e) : buf_add(out, o->kept, (size_t)o->total, e);
}

char *output_take_spill(struct output *o)
{
    return o->is_spilled && !o->spill_error ? TAKE(o->spill_path) : NULL;
}
