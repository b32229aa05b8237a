#include "tests/support/fake_server.h"

#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct fake_server {
    char dir[32], path[64];
    int listener, fd, stop[2];
    pthread_t thread;
    pthread_mutex_t handling; /* held while a handler runs */
    fake_handler *handler;
    void *user;
};

void fake_server_sync(struct fake_server *s)
{
    pthread_mutex_lock(&s->handling);
    pthread_mutex_unlock(&s->handling);
}

void fake_send(struct fake_server *s, const char *bytes, size_t n)
{
    while (n) {
        ssize_t w = send(s->fd, bytes, n, MSG_NOSIGNAL);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return;
        bytes += w;
        n -= (size_t)w;
    }
}

static void send_json(struct fake_server *s, json_t *take)
{
    char *text = json_dumps(take, JSON_COMPACT);
    if (!text)
        errx(2, "fake server: message cannot be written");
    fake_send(s, text, strlen(text));
    fake_send(s, "\n", 1);
    free(text);
    json_decref(take);
}

void fake_answer(struct fake_server *s, const json_t *request, json_t *take_result)
{
    send_json(s, json_pack("{s:s, s:O, s:o}", "jsonrpc", "2.0", "id",
                           json_object_get(request, "id"), "result", take_result));
}

void fake_refuse(struct fake_server *s, const json_t *request, int code, const char *message,
                 json_t *take_data)
{
    send_json(s, json_pack("{s:s, s:O, s:{s:i, s:s, s:o*}}", "jsonrpc", "2.0", "id",
                           json_object_get(request, "id"), "error", "code", code, "message",
                           message, "data", take_data));
}

void fake_notify(struct fake_server *s, const char *method, json_t *take_params)
{
    send_json(s, json_pack("{s:s, s:s, s:o}", "jsonrpc", "2.0", "method", method, "params",
                           take_params));
}

bool fake_initialize(struct fake_server *s, const json_t *request)
{
    const char *method = json_string_value(json_object_get(request, "method"));
    if (!method || strcmp(method, "initialize"))
        return false;
    fake_answer(s, request,
                json_pack("{s:i, s:{s:s}, s:i}", "protocolVersion", 1, "info", "name", "fake",
                          "pid", (int)getpid()));
    return true;
}

/* Waits for bytes or for the end of the test; false for the latter. */
static bool readable(const struct fake_server *s, int fd)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    FD_SET(s->stop[0], &set);
    int top = fd > s->stop[0] ? fd : s->stop[0];
    return select(top + 1, &set, NULL, NULL, NULL) > 0 && !FD_ISSET(s->stop[0], &set);
}

static void serve(struct fake_server *s)
{
    size_t cap = 32u << 20, len = 0;
    char *in = malloc(cap);
    while (in && readable(s, s->fd)) {
        ssize_t n = recv(s->fd, in + len, cap - len, 0);
        if (n <= 0)
            break;
        len += (size_t)n;
        char *nl;
        bool go_on = true;
        while (go_on && (nl = memchr(in, '\n', len))) {
            json_t *request = json_loadb(in, (size_t)(nl - in), 0, NULL);
            pthread_mutex_lock(&s->handling);
            go_on = request && s->handler(s, s->user, request);
            pthread_mutex_unlock(&s->handling);
            json_decref(request);
            len -= (size_t)(nl + 1 - in);
            memmove(in, nl + 1, len);
        }
        if (!go_on)
            break;
    }
    free(in);
    close(s->fd);
    s->fd = -1;
}

static void *server_main(void *arg)
{
    struct fake_server *s = arg;
    while (readable(s, s->listener)) {
        s->fd = accept(s->listener, NULL, NULL);
        if (s->fd >= 0)
            serve(s);
    }
    return NULL;
}

struct fake_server *fake_server_new(fake_handler *handler, void *user)
{
    struct fake_server *s = calloc(1, sizeof *s);
    if (!s)
        errx(2, "fake server: no memory");
    s->handler = handler;
    s->user = user;
    pthread_mutex_init(&s->handling, NULL);
    s->fd = -1;
    snprintf(s->dir, sizeof s->dir, "/tmp/fake-XXXXXX");
    if (!mkdtemp(s->dir) || pipe(s->stop))
        err(2, "fake server: %s", s->dir);
    snprintf(s->path, sizeof s->path, "%s/agentd.sock", s->dir);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", s->path);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->listener < 0 || bind(s->listener, (const struct sockaddr *)&a, sizeof a) ||
        listen(s->listener, 4) || pthread_create(&s->thread, NULL, server_main, s))
        err(2, "fake server: %s", s->path);
    return s;
}

void fake_server_free(struct fake_server *s)
{
    close(s->stop[1]);
    pthread_join(s->thread, NULL);
    close(s->stop[0]);
    close(s->listener);
    unlink(s->path);
    rmdir(s->dir);
    free(s);
}

const char *fake_server_path(const struct fake_server *s)
{
    return s->path;
}
