#include "tests/support/llama_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "tests/support/bench.h"

#define START_MS 120000
#define ANSWER_BYTES (16u << 20)
#define ANSWER_S 1200

/* ---- one request --------------------------------------------------------------------------
 */

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* The whole answer; false: nobody listens, or it broke off. */
static bool exchange(uint16_t port, const char *request, size_t len, struct buf *out)
{
    const struct sockaddr_in to = loopback(port);
    const struct timeval patience = {.tv_sec = ANSWER_S};
    char piece[16384];
    ssize_t n = -1;
    struct error e;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)))
        bench_fail("no socket");
    bool ok = !connect(fd, (const struct sockaddr *)&to, sizeof(to));
    for (size_t done = 0; ok && done < len; done += (size_t)n) {
        n = send(fd, request + done, len - done, MSG_NOSIGNAL);
        if (!(ok = n > 0))
            break;
    }
    while (ok && (n = recv(fd, piece, sizeof(piece), 0)) > 0)
        if (buf_add(out, piece, (size_t)n, &e))
            bench_fail("llama-server's answer: %s", e.msg);
    close(fd);
    return ok && !n;
}

/* Its status and where its body begins; 0: that is no answer. */
static long read_head(const char *answer, const char **body)
{
    long status = 0;

    if (sscanf(answer, "HTTP/1.1 %ld", &status) != 1 || !(*body = strstr(answer, "\r\n\r\n")))
        return 0;
    *body += 4;
    return status;
}

json_t *llama_post(const struct llama_server *s, const char *path, json_t *body)
{
    AUTO(buf) struct buf request = BUF_INIT(ANSWER_BYTES), answer = BUF_INIT(ANSWER_BYTES);
    const char *text = "";
    char *json = json_dumps(body, JSON_COMPACT);
    struct error e;

    json_decref(body);
    if (!json || buf_printf(&request, &e,
                            "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                            "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                            path, strlen(json), json))
        bench_fail("%s: no request can be made", path);
    free(json);
    if (!exchange(s->port, buf_str(&request), request.len, &answer))
        bench_fail("llama-server does not answer %s; its log is %s", path, s->log);
    long status = read_head(buf_str(&answer), &text);
    json_t *r = json_loads(text, 0, NULL);
    if (status != 200 || !r)
        bench_fail("llama-server answers %s with status %ld: %.300s", path, status, text);
    return r;
}

/* ---- the process --------------------------------------------------------------------------
 */

/* One that nobody has at the moment. */
static uint16_t free_port(void)
{
    struct sockaddr_in at = loopback(0);
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) ||
        getsockname(fd, (struct sockaddr *)&at, &len))
        bench_fail("no port of the loopback is free");
    close(fd);
    return ntohs(at.sin_port);
}

_Noreturn static void become(const struct llama_options *o, uint16_t port)
{
    char number[16], threads[16], context[16];
    int log = open(o->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    snprintf(number, sizeof(number), "%u", port);
    snprintf(threads, sizeof(threads), "%u", o->threads);
    snprintf(context, sizeof(context), "%u", o->context);
    if (log >= 0 && dup2(log, 1) == 1 && dup2(log, 2) == 2 && !prctl(PR_SET_PDEATHSIG, SIGKILL))
        execl(o->program, "llama-server", "--model", o->model, "--host", "127.0.0.1", "--port",
              number, "--threads", threads, "--ctx-size", context, "--parallel", "1",
              "--slot-save-path", o->slots, (char *)NULL);
    _exit(127);
}

static bool is_up(const struct llama_server *s)
{
    static const char request[] =
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    AUTO(buf) struct buf answer = BUF_INIT(ANSWER_BYTES);
    const char *body;

    return exchange(s->port, request, sizeof(request) - 1, &answer) &&
           read_head(buf_str(&answer), &body) == 200;
}

void llama_start(struct llama_server *s, const struct llama_options *o)
{
    *s = (struct llama_server){.port = free_port()};
    snprintf(s->log, sizeof(s->log), "%s", o->log);
    s->pid = fork();
    if (s->pid < 0)
        bench_fail("no process can be made");
    if (!s->pid)
        become(o, s->port);
    for (int ms = 0; ms < START_MS; ms += 50) {
        if (is_up(s))
            return;
        if (waitpid(s->pid, NULL, WNOHANG))
            bench_fail("%s ended; its log is %s", o->program, s->log);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    bench_fail("%s does not answer; its log is %s", o->program, s->log);
}

void llama_stop(struct llama_server *s)
{
    kill(s->pid, SIGTERM);
    if (waitpid(s->pid, NULL, 0) != s->pid)
        bench_fail("llama-server is gone");
    s->pid = 0;
}
