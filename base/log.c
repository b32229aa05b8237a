#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/auto.h"
#include "base/clock.h"

static const char *const level_names[] = {"error", "warn", "info", "debug"};

/* The one permitted global: where records go. The lock keeps the file open while one is
 * written. */
static struct {
    pthread_mutex_t lock;
    _Atomic int level;
    int fd; /* -1: stderr */
} sink = {PTHREAD_MUTEX_INITIALIZER, LOG_INFO, -1};

static void switch_to(int fd)
{
    pthread_mutex_lock(&sink.lock);
    int old = sink.fd;
    sink.fd = fd;
    pthread_mutex_unlock(&sink.lock);
    if (old >= 0)
        close(old);
}

enum err log_open(const char *path, enum log_level level, struct error *e)
{
    int fd = -1;
    if (path) {
        fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
        if (fd < 0)
            return err_sys(e, errno, "log %s", path);
    }
    switch_to(fd);
    atomic_store(&sink.level, (int)level);
    return OK;
}

void log_close(void)
{
    switch_to(-1);
}

enum err log_level_parse(const char *s, enum log_level *out, struct error *e)
{
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strcmp(s, level_names[i]) == 0) {
            *out = (enum log_level)i;
            return OK;
        }
    }
    return err_set(e, ERR_INVAL, "log level \"%s\": want error, warn, info or debug", s);
}

/* Appends one byte of a record as it may be seen on a terminal: at most 4 characters. */
static size_t put_visible(char *dst, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    if (c >= 0x20 && c != 0x7f) {
        dst[0] = (char)c;
        return 1;
    }
    dst[0] = '\\';
    if (c == '\n' || c == '\t') {
        dst[1] = c == '\n' ? 'n' : 't';
        return 2;
    }
    dst[1] = 'x';
    dst[2] = hex[c >> 4];
    dst[3] = hex[c & 15];
    return 4;
}

void log_write(enum log_level level, const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(&sink.level, memory_order_relaxed))
        return;
    char text[LOG_RECORD_BYTES], line[LOG_RECORD_BYTES], when[CLOCK_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n_text = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n_text < 0)
        return;
    clock_text(clock_wall_ms(clock_real()), when);
    size_t n = (size_t)snprintf(line, sizeof line, "%s %-5s ", when, level_names[level]);
    const char *c = text;
    for (; *c && n + 4 + sizeof "...\n" <= sizeof line; c++)
        n += put_visible(line + n, (unsigned char)*c);
    bool cut = *c || (size_t)n_text >= sizeof text;
    memcpy(line + n, cut ? "...\n" : "\n", cut ? 4 : 1);
    n += cut ? 4 : 1;
    pthread_mutex_lock(&sink.lock);
    int fd = sink.fd >= 0 ? sink.fd : STDERR_FILENO;
    while (write(fd, line, n) < 0 && errno == EINTR)
        ;
    pthread_mutex_unlock(&sink.lock);
}
