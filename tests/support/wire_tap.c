#include "tests/support/wire_tap.h"

#include <err.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_CONNECTIONS 64
#define MAX_LINE ((size_t)1 << 20)

/* One direction of one connection. */
struct flow {
    const char *from;
    char *bytes;
    size_t n;
};

struct connection {
    int client, daemon; /* -1: closed */
    struct flow up, down;
};

struct wire_tap {
    char daemon[108]; /* a sun_path */
    int listener, stop[2];
    pthread_t thread;
    json_t *lines; /* of the thread until it has ended */
    struct connection all[MAX_CONNECTIONS];
    int n;
};

static void address(struct sockaddr_un *a, const char *path)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(a->sun_path, sizeof a->sun_path, "%s", path);
}

static void accept_one(struct wire_tap *t)
{
    struct sockaddr_un a;
    struct connection *c = &t->all[t->n];

    if (t->n == MAX_CONNECTIONS)
        errx(2, "wire tap: too many connections");
    address(&a, t->daemon);
    *c = (struct connection){.client = accept(t->listener, NULL, NULL),
                             .daemon = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
                             .up = {.from = "client", .bytes = malloc(MAX_LINE)},
                             .down = {.from = "daemon", .bytes = malloc(MAX_LINE)}};
    if (c->client < 0 || connect(c->daemon, (struct sockaddr *)&a, sizeof a))
        err(2, "wire tap: %s", t->daemon);
    t->n++;
}

static void keep_lines(struct wire_tap *t, int connection, struct flow *f)
{
    char *nl;

    while ((nl = memchr(f->bytes, '\n', f->n))) {
        size_t len = (size_t)(nl - f->bytes);
        json_t *line = json_loadb(f->bytes, len, JSON_DECODE_ANY, NULL);
        if (!line)
            errx(2, "wire tap: no JSON: %.*s", (int)len, f->bytes);
        json_array_append_new(t->lines, json_pack("{s:i, s:s, s:o}", "connection", connection,
                                                  "from", f->from, "line", line));
        f->n -= len + 1;
        memmove(f->bytes, nl + 1, f->n);
    }
}

/* What there is from one side to the other. False: the connection has ended. */
static bool relay(struct wire_tap *t, int connection, struct flow *f, int from, int to)
{
    ssize_t n = read(from, f->bytes + f->n, MAX_LINE - f->n);

    if (n <= 0)
        return false;
    for (ssize_t sent = 0; sent < n;) {
        ssize_t w = send(to, f->bytes + f->n + sent, (size_t)(n - sent), MSG_NOSIGNAL);
        if (w <= 0)
            return false;
        sent += w;
    }
    f->n += (size_t)n;
    keep_lines(t, connection, f);
    return true;
}

static void hang_up(struct connection *c)
{
    close(c->client);
    close(c->daemon);
    c->client = c->daemon = -1;
}

static void serve(struct wire_tap *t, const struct pollfd *fds)
{
    int n = t->n; /* one that comes now has no events yet */

    for (int i = 0; i < n; i++) {
        struct connection *c = &t->all[i];
        if (c->client >= 0 && fds[2 * i].revents && !relay(t, i, &c->up, c->client, c->daemon))
            hang_up(c);
        if (c->client >= 0 && fds[2 * i + 1].revents &&
            !relay(t, i, &c->down, c->daemon, c->client))
            hang_up(c);
    }
}

static void *run(void *arg)
{
    struct wire_tap *t = arg;

    for (;;) {
        struct pollfd fds[2 * MAX_CONNECTIONS + 2];
        nfds_t n = 2 * (nfds_t)t->n;
        for (int i = 0; i < t->n; i++) {
            fds[2 * i] = (struct pollfd){.fd = t->all[i].client, .events = POLLIN};
            fds[2 * i + 1] = (struct pollfd){.fd = t->all[i].daemon, .events = POLLIN};
        }
        fds[n] = (struct pollfd){.fd = t->listener, .events = POLLIN};
        fds[n + 1] = (struct pollfd){.fd = t->stop[0], .events = POLLIN};
        if (poll(fds, n + 2, -1) <= 0)
            continue;
        serve(t, fds);
        if (fds[n].revents)
            accept_one(t);
        if (fds[n + 1].revents)
            return NULL;
    }
}

struct wire_tap *wire_tap_new(const char *path, const char *daemon)
{
    struct wire_tap *t = calloc(1, sizeof *t);
    struct sockaddr_un a;

    if (!t || !(t->lines = json_array()))
        errx(2, "wire tap: no memory");
    snprintf(t->daemon, sizeof t->daemon, "%s", daemon);
    address(&a, path);
    t->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(t->listener, (struct sockaddr *)&a, sizeof a) || listen(t->listener, 16) ||
        pipe(t->stop) || pthread_create(&t->thread, NULL, run, t))
        err(2, "wire tap: %s", path);
    return t;
}

json_t *wire_tap_free(struct wire_tap *t)
{
    json_t *lines = t->lines;

    if (write(t->stop[1], "x", 1) != 1)
        err(2, "wire tap");
    pthread_join(t->thread, NULL);
    for (int i = 0; i < t->n; i++) {
        if (t->all[i].client >= 0)
            hang_up(&t->all[i]);
        free(t->all[i].up.bytes);
        free(t->all[i].down.bytes);
    }
    close(t->listener);
    close(t->stop[0]);
    close(t->stop[1]);
    free(t);
    return lines;
}
