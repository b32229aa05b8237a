/* http_fetch against a server on the loopback device, which is reachable only because the test
 * says so; and the addresses that it never asks. */
#include "tests/support/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/http.h"
#include "tests/support/toolrun.h"

static struct toolrun t;
static const char *const loopback[] = {"127.0.0.1/32", NULL};

/* ---- the server: one connection at a time, answers by path ---- */

struct server {
    int fd, port;
    pthread_t thread;
    atomic_bool stop;
    atomic_int n_requests;
    char last[2048];
};

static void send_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k <= 0)
            return;
        text += k;
        n -= (size_t)k;
    }
}

#define SEND(literal) send_all(fd, literal, sizeof(literal) - 1)

static void send_much(int fd, const char *piece, size_t n_pieces)
{
    for (size_t i = 0; i < n_pieces; i++)
        send_all(fd, piece, strlen(piece));
}

static void answer(struct server *s, int fd, const char *path)
{
    char head[256];
    if (!strcmp(path, "/text"))
        SEND("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nhello\n");
    else if (!strcmp(path, "/missing"))
        SEND("HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n<p>no</p>");
    else if (!strcmp(path, "/binary"))
        SEND("HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\x89PNG");
    else if (!strcmp(path, "/untyped"))
        SEND("HTTP/1.1 200 OK\r\n\r\nplain");
    else if (!strcmp(path, "/nul"))
        SEND("HTTP/1.1 200 OK\r\n\r\na\0b");
    else if (!strcmp(path, "/escapes"))
        SEND("HTTP/1.1 200 \033[2J\r\nContent-Type: text/\033]0;x\a\r\n\r\n\033[31mred");
    else if (!strcmp(path, "/same"))
        SEND("HTTP/1.1 302 Found\r\nLocation: /text\r\n\r\nbody of the redirect");
    else if (!strcmp(path, "/loop"))
        SEND("HTTP/1.1 302 Found\r\nLocation: /loop\r\n\r\n");
    else if (!strcmp(path, "/other"))
        SEND("HTTP/1.1 301 Moved\r\nLocation: http://localhost:1/x\r\n\r\n");
    else if (!strcmp(path, "/file"))
        SEND("HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n");
    else if (!strcmp(path, "/headers"))
        send_much(fd, "HTTP/1.1 100 Continue\r\nX: 0123456789012345678901234567890\r\n\r\n",
                  20000);
    else if (!strcmp(path, "/huge")) {
        SEND("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n");
        send_much(fd, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n",
                  200000);
    } else if (!strcmp(path, "/slow")) {
        SEND("HTTP/1.1 200 OK\r\n");
        for (int i = 0; i < 200 && !atomic_load(&s->stop); i++) {
            snprintf(head, sizeof head, "X-%d: y\r\n", i);
            send_all(fd, head, strlen(head));
            usleep(100000);
            char byte;
            if (recv(fd, &byte, 1, MSG_DONTWAIT) == 0)
                return;
        }
    }
}

static void *serve(void *arg)
{
    struct server *s = arg;
    while (!atomic_load(&s->stop)) {
        char path[64] = "";
        AUTO_FD int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            break;
        ssize_t n = recv(fd, s->last, sizeof s->last - 1, 0);
        s->last[n > 0 ? n : 0] = '\0';
        atomic_fetch_add(&s->n_requests, n > 0);
        if (sscanf(s->last, "GET %60s", path) == 1)
            answer(s, fd, path);
        shutdown(fd, SHUT_WR);
        char rest[256]; /* so that what was sent is not lost to a reset */
        while (recv(fd, rest, sizeof rest, 0) > 0)
            ;
    }
    return NULL;
}

static void server_open(struct server *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    *s = (struct server){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(bind(s->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->fd, 16), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &n), 0);
    s->port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void server_close(struct server *s)
{
    atomic_store(&s->stop, true);
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
}

static void fetch(const struct server *s, const char *path, const char *more,
                  struct tool_result *r)
{
    char arguments[256];
    snprintf(arguments, sizeof arguments, "{'url': 'http://127.0.0.1:%d%s'%s}", s->port, path,
             more);
    toolrun_call(&t, "http_fetch", arguments, r);
}

static void assert_holds(const struct tool_result *r, const char *part)
{
    if (!memmem(r->text.data, r->text.len, part, strlen(part)))
        fail_msg("\"%s\" lacks \"%s\"", buf_str(&r->text), part);
}

static void open_with(const char *const *networks)
{
    toolrun_open(&t, &(struct tools_config){.may_fetch = true, .fetch_networks = networks});
}

/* ---- answers ---- */

static void test_answers(void **state)
{
    static const struct {
        const char *path, *more, *want[2];
    } cases[] = {
        {"/text",
         "",
         {"HTTP 200, text/plain; charset=utf-8, 6 bytes, http://127.0.0.1:",
          "/text\n\nhello\n"}},
        {"/missing", "", {"HTTP 404, text/html, ", "\n\n<p>no</p>"}},
        {"/binary", "", {"HTTP 200, image/png, 4 bytes", "[not a text: not shown]\n"}},
        {"/untyped", "", {"no content type", "\n\nplain"}},
        {"/nul", "", {"no content type", "[not a text: not shown]"}},
        {"/escapes", "", {"text/?]0;x?", "\n\n\033[31mred"}},
        {"/same", "", {"6 bytes", "/text\n\nhello\n"}},
        {"/other", "", {"HTTP 301", "redirects to http://localhost:1/x (not followed"}},
        {"/file", "", {"HTTP 302", "redirects to file:///etc/passwd (not followed"}},
        {"/huge",
         ", 'max_bytes': 1000",
         {"1000 bytes (cut)", "[cut: only the first 1000 bytes"}},
        {"/loop", "", {"error: ", "more than 5 redirects"}},
        {"/headers", "", {"error: ", "of headers"}},
        {"/slow", ", 'timeout_ms': 300", {"error: ", "no answer within the time limit"}},
    };
    struct server s;
    (void)state;
    open_with(loopback);
    server_open(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tool_result r;
        fetch(&s, cases[i].path, cases[i].more, &r);
        assert_holds(&r, cases[i].want[0]);
        assert_holds(&r, cases[i].want[1]);
        assert_int_equal(r.is_error, !strncmp(buf_str(&r.text), "error: ", 7));
        assert_true(r.duration_ms < 8000);
        tool_result_fini(&r);
    }
    assert_non_null(strstr(s.last, "User-Agent: agentd\r\n"));
    assert_null(strstr(s.last, "Cookie"));
    server_close(&s);
    toolrun_close(&t);
}

/* A long text comes as any long output: head and tail, the whole in a file. */
static void test_long_text_is_capped(void **state)
{
    struct server s;
    struct tool_result r;
    (void)state;
    toolrun_open(&t, &(struct tools_config){
                         .may_fetch = true, .fetch_networks = loopback, .output_bytes = 1000});
    server_open(&s);
    fetch(&s, "/huge", "", &r);
    assert_true(r.truncated && r.text.len < 1400);
    assert_non_null(r.spill_path);
    assert_true(r.output_bytes > 1 << 20 && r.output_bytes < (1 << 20) + 400);
    tool_result_fini(&r);
    server_close(&s);
    toolrun_close(&t);
}

/* ---- what is refused ---- */

static void test_off_unless_allowed(void **state)
{
    (void)state;
    struct error e;
    struct tool_run *run;
    toolrun_open(&t, NULL);
    json_auto_t *a = json_pack("{s:s}", "url", "http://127.0.0.1/");
    const struct tool_call call = {.name = "http_fetch", .arguments = a, .workspace = t.ws};
    assert_false(tools_may_fetch(t.tools));
    assert_int_equal(tool_run_start(t.tools, &call, 0, &run, &e), ERR_DENIED);
    assert_non_null(strstr(e.msg, "http_fetch is off"));
    toolrun_close(&t);
}

/* No byte reaches a server on an address that is not public, whatever it is called. */
static void test_local_addresses_are_not_asked(void **state)
{
    static const char *const urls[] = {"http://127.0.0.1:%d/text",
                                       "http://localhost:%d/text",
                                       "http://[::1]:%d/text",
                                       "http://[::ffff:127.0.0.1]:%d/text",
                                       "http://0x7f.1:%d/text",
                                       "http://2130706433:%d/text",
                                       "http://0.0.0.0:%d/text",
                                       "http://127.1:%d/text",
                                       "http://[::]:%d/text",
                                       "http://127.0.0.1.:%d/text",
                                       "http://[64:ff9b::7f00:1]:%d/text",
                                       "http://169.254.169.254:%d/latest/meta-data"};
    struct server s;
    (void)state;
    open_with(NULL);
    server_open(&s);
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        const char *hole = strstr(urls[i], "%d");
        char arguments[160];
        struct tool_result r;
        snprintf(arguments, sizeof arguments, "{'url': '%.*s%d%s', 'timeout_ms': 5000}",
                 (int)(hole - urls[i]), urls[i], s.port, hole + 2);
        toolrun_call(&t, "http_fetch", arguments, &r);
        assert_true(r.is_error);
        if (!strstr(urls[i], "127.0.0.1.:")) /* a name that may not resolve */
            assert_holds(&r, "may not be fetched from");
        tool_result_fini(&r);
    }
    assert_int_equal(atomic_load(&s.n_requests), 0);
    server_close(&s);
    toolrun_close(&t);
}

static void test_urls_that_are_refused(void **state)
{
    static const char *const urls[] = {"file:///etc/passwd",
                                       "ftp://127.0.0.1/",
                                       "gopher://127.0.0.1/",
                                       "http://user:pw@127.0.0.1/",
                                       "http://",
                                       "nothing",
                                       "dict://127.0.0.1:11211/",
                                       "http://127.0.0.1:99999/",
                                       "/etc/passwd",
                                       "http://a b/",
                                       "https://user@127.0.0.1/"};
    (void)state;
    open_with(loopback);
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        char arguments[128];
        struct tool_result r;
        snprintf(arguments, sizeof arguments, "{'url': '%s', 'timeout_ms': 3000}", urls[i]);
        toolrun_call(&t, "http_fetch", arguments, &r);
        assert_true(r.is_error);
        assert_holds(&r, "error: ");
        tool_result_fini(&r);
    }
    toolrun_close(&t);
}

static bool is_public(const char *address)
{
    struct sockaddr_in a4 = {.sin_family = AF_INET};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, address, &a4.sin_addr) == 1)
        return http_address_is_public((struct sockaddr *)&a4);
    assert_int_equal(inet_pton(AF_INET6, address, &a6.sin6_addr), 1);
    return http_address_is_public((struct sockaddr *)&a6);
}

static void test_which_addresses_are_public(void **state)
{
    static const char *const yes[] = {"8.8.8.8",          "1.1.1.1",         "172.15.255.255",
                                      "172.32.0.0",       "100.63.255.255",  "100.128.0.0",
                                      "223.255.255.255",  "2606:4700::1111", "::ffff:8.8.8.8",
                                      "64:ff9b::808:808", "192.167.255.255", "11.0.0.0"};
    static const char *const no[] = {"0.0.0.0",
                                     "10.0.0.1",
                                     "10.255.255.255",
                                     "127.0.0.1",
                                     "127.255.255.255",
                                     "169.254.169.254",
                                     "172.16.0.1",
                                     "172.31.255.255",
                                     "192.168.1.1",
                                     "100.64.0.1",
                                     "100.127.255.255",
                                     "192.0.0.1",
                                     "192.0.2.1",
                                     "198.18.0.1",
                                     "198.19.255.255",
                                     "198.51.100.1",
                                     "203.0.113.1",
                                     "224.0.0.1",
                                     "239.1.1.1",
                                     "240.0.0.1",
                                     "255.255.255.255",
                                     "::",
                                     "::1",
                                     "fe80::1",
                                     "fc00::1",
                                     "fd12::1",
                                     "ff02::1",
                                     "::ffff:10.0.0.1",
                                     "::ffff:127.0.0.1",
                                     "::10.0.0.1",
                                     "64:ff9b::a00:1",
                                     "64:ff9b:1::1",
                                     "2001:db8::1",
                                     "2002:a00:1::",
                                     "2001::1",
                                     "3fff::1",
                                     "fec0::1",
                                     "100::1",
                                     "4000::1"};
    (void)state;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!is_public(yes[i]))
            fail_msg("%s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (is_public(no[i]))
            fail_msg("%s", no[i]);
    struct sockaddr other = {.sa_family = AF_UNIX};
    assert_false(http_address_is_public(&other));
    struct sockaddr_in a = {.sin_family = AF_INET};
    static const char *const junk[] = {
        "", "/", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/8x", "x/8", "::1/128", NULL};
    inet_pton(AF_INET, "10.1.2.3", &a.sin_addr);
    assert_false(http_address_is_in((struct sockaddr *)&a, junk));
    static const char *const good[] = {"9.0.0.0/8", "10.1.0.0/16", NULL};
    assert_true(http_address_is_in((struct sockaddr *)&a, good));
}

/* The process that fetches has the network and nothing else. */
static void test_its_layers(void **state)
{
    struct server s;
    struct tool_result r;
    (void)state;
    for (int mode = TOOL_MODE_READ_ONLY; mode <= TOOL_MODE_FULL_ACCESS; mode++) {
        open_with(loopback);
        t.mode = (enum tool_mode)mode;
        server_open(&s);
        fetch(&s, "/text", "", &r);
        assert_holds(&r, "hello");
        assert_true(toolrun_layer(&r, "network", "addresses that http_fetch may ask"));
        assert_true(toolrun_layer(&r, "no_new_privs", "yes"));
        assert_true(toolrun_layer(&r, "control_socket", "unix sockets refused by seccomp"));
        assert_false(toolrun_layer(&r, "uid", "0"));
        tool_result_fini(&r);
        server_close(&s);
        toolrun_close(&t);
    }
}

static int group(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_long_text_is_capped),
        cmocka_unit_test(test_off_unless_allowed),
        cmocka_unit_test(test_local_addresses_are_not_asked),
        cmocka_unit_test(test_urls_that_are_refused),
        cmocka_unit_test(test_which_addresses_are_public),
        cmocka_unit_test(test_its_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return toolrun_as_both(group);
}
