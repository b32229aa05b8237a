#include "evals/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fs.h"
#include "base/json.h"

#define MAX_JOURNAL_BYTES ((size_t)4 << 30)
#define HEAD "{\"crc\": \""
#define MIDDLE "\", \"record\": "
#define CRC_DIGITS 8
#define RECORD_AT (sizeof HEAD - 1 + CRC_DIGITS + sizeof MIDDLE - 1)

uint32_t journal_crc(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

/* One line without its newline. *ok: it is whole and its record was handed on. */
static enum err take_line(const char *line, size_t n, journal_record_fn *fn, void *user,
                          bool *ok, struct error *e)
{
    static const struct json_limits limits = {.max_bytes = JOURNAL_MAX_RECORD_BYTES,
                                              .max_depth = 32};
    char crc[CRC_DIGITS + 1];
    json_auto_t *record = NULL;
    *ok = false;
    if (n < RECORD_AT + 3 || memcmp(line, HEAD, sizeof HEAD - 1) ||
        memcmp(line + sizeof HEAD - 1 + CRC_DIGITS, MIDDLE, sizeof MIDDLE - 1) ||
        line[n - 1] != '}')
        return OK;
    const char *text = line + RECORD_AT;
    const size_t n_text = n - 1 - RECORD_AT;
    snprintf(crc, sizeof crc, "%08x", journal_crc(text, n_text));
    if (memcmp(line + sizeof HEAD - 1, crc, CRC_DIGITS) ||
        json_parse(text, n_text, &limits, &record, e) || !json_is_object(record))
        return OK;
    *ok = true;
    return fn(user, record, e);
}

/* Whether a line holds the beginning of another record: quotes inside a record's strings are
 * escaped, so that it was two lines before a newline was damaged. */
static bool is_two(const char *line, size_t n)
{
    return n > 0 && memmem(line + 1, n - 1, HEAD, sizeof HEAD - 1) != NULL;
}

/* All whole lines of the text; *good is where the first byte that is none stands. */
static enum err take_lines(const struct buf *text, const char *path, journal_record_fn *fn,
                           void *user, uint64_t *n_records, size_t *good, struct error *e)
{
    const char *p = buf_str(text), *end = p + text->len;
    for (*good = 0, *n_records = 0; p < end;) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        bool ok = false;
        enum err rc = newline ? take_line(p, (size_t)(newline - p), fn, user, &ok, e) : OK;
        if (rc)
            return err_wrap(e, rc, "%s:%llu", path, (unsigned long long)*n_records + 1);
        if (!ok && ((newline && newline + 1 < end) || is_two(p, (size_t)(end - p))))
            return err_set(e, ERR_CORRUPT, "%s:%llu: damaged, and more behind it", path,
                           (unsigned long long)*n_records + 1);
        if (!ok)
            return OK;
        ++*n_records;
        p = newline + 1;
        *good = text->len - (size_t)(end - p);
    }
    return OK;
}

enum err journal_read(const char *path, journal_record_fn *fn, void *user, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(MAX_JOURNAL_BYTES);
    uint64_t n;
    size_t good;
    enum err rc = fs_read_file(path, &text, e);
    return rc ? rc : take_lines(&text, path, fn, user, &n, &good, e);
}

enum err journal_open(struct journal *j, const char *path, journal_record_fn *fn, void *user,
                      struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(MAX_JOURNAL_BYTES);
    size_t good = 0;
    *j = (struct journal)JOURNAL_INIT;
    if (!(j->path = strdup(path)))
        return err_set(e, ERR_NOMEM, "no memory for a journal");
    enum err rc = fs_open(path, O_RDWR | O_CREAT | O_APPEND, 0644, &j->fd, e);
    if (rc)
        return rc;
    if (flock(j->fd, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK
                   ? err_set(e, ERR_BUSY, "%s: another process is at this run", path)
                   : err_sys(e, errno, "%s: flock", path);
    rc = fs_read_fd(j->fd, path, &text, e);
    if (!rc)
        rc = take_lines(&text, path, fn, user, &j->n_records, &good, e);
    if (rc || good == text.len)
        return rc;
    j->dropped = true;
    rc = fs_truncate(j->fd, path, good, e);
    return rc ? rc : fs_sync(j->fd, path, e);
}

enum err journal_append(struct journal *j, json_t *take_record, struct error *e)
{
    json_auto_t *record = take_record;
    AUTO(buf) struct buf line = BUF_INIT(JOURNAL_MAX_RECORD_BYTES + 64);
    AUTO(buf) struct buf text = BUF_INIT(JOURNAL_MAX_RECORD_BYTES);
    if (!record)
        return err_set(e, ERR_NOMEM, "no memory for a record");
    if (j->fd < 0)
        return err_set(e, ERR_CLOSED, "journal %s failed before", j->path ? j->path : "");
    enum err rc = json_write(record, JSON_COMPACT, &text, e);
    if (!rc)
        rc = buf_printf(&line, e, HEAD "%08x" MIDDLE "%s}\n", journal_crc(text.data, text.len),
                        buf_str(&text));
    if (!rc)
        rc = fs_write(j->fd, j->path, line.data, line.len, e);
    if (!rc)
        rc = fs_sync(j->fd, j->path, e);
    if (rc) { /* how much of the line is on disk is unknown: the next opening finds out */
        close(j->fd);
        j->fd = -1;
        return rc;
    }
    j->n_records++;
    return OK;
}

void journal_fini(struct journal *j)
{
    if (j->fd >= 0)
        close(j->fd);
    free(j->path);
    *j = (struct journal)JOURNAL_INIT;
}
