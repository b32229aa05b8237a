#include "agentd/bus_error.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "base/log.h"

/* "START-END perms offset dev inode   /path": the numbers in hexadecimal, the first slash is
 * the path's. */
struct line {
    unsigned long start, end;
    bool has_start, has_end;
    unsigned long n; /* of the path */
};

static void take(struct line *l, char c, char *out, unsigned long cap)
{
    unsigned long *number = l->has_start ? &l->end : &l->start;
    unsigned long digit = (unsigned long)(c <= '9' ? c - '0' : c - 'a' + 10);
    if (l->n || c == '/') {
        if (l->n + 1 < cap)
            out[l->n++] = c;
    } else if (c == ' ') {
        l->has_end = true;
    } else if (c == '-' && !l->has_end) {
        l->has_start = true;
    } else if (!l->has_end) {
        *number = *number << 4 | (digit & 15);
    }
}

void bus_error_find(int fd, unsigned long address, char *out, unsigned long cap)
{
    struct line l = {0};
    char bytes[1024];
    ssize_t n;
    while ((n = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] != '\n') {
                take(&l, bytes[i], out, cap);
                continue;
            }
            out[l.n] = '\0';
            if (address >= l.start && address < l.end)
                return;
            l = (struct line){0};
        }
    out[0] = '\0';
}

/* Raised by an access of this very thread to memory of a file, so neither the log nor malloc is
 * in the middle of anything here: writing a record is safe, unlike in most handlers. One that
 * another process sent may come anywhere and says nothing. */
static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    char path[512];
    (void)context;
    if (info->si_code <= 0) {
        raise(sig);
        return;
    }
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    path[0] = '\0';
    if (fd >= 0)
        bus_error_find(fd, (unsigned long)(uintptr_t)info->si_addr, path, sizeof path);
    log_error("bus error in %s: it was cut short while it was mapped, or its disk fails; the "
              "daemon ends here",
              path[0] ? path : "memory of no file");
    /* The access is made once more on return, without a handler. */
}

void bus_error_report(void)
{
    struct sigaction a = {.sa_sigaction = on_bus_error,
                          .sa_flags = SA_SIGINFO | (int)SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    sigaction(SIGBUS, &a, NULL);
}
