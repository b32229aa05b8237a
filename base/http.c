#include "base/http.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"

#define MAX_HEADER_BYTES ((size_t)256 << 10) /* of all answers to one request together */
#define ACCEPT "Accept: text/*, application/json, application/xml;q=0.9, */*;q=0.1"

/* ---- addresses ---- */

struct network {
    const char *address;
    unsigned bits;
};

/* Source: IANA IPv4 special-purpose address registry; "globally reachable: false", and
 * multicast. */
static const struct network closed4[] = {
    {"0.0.0.0", 8},      {"10.0.0.0", 8},     {"100.64.0.0", 10}, {"127.0.0.0", 8},
    {"169.254.0.0", 16}, {"172.16.0.0", 12},  {"192.0.0.0", 24},  {"192.0.2.0", 24},
    {"192.88.99.0", 24}, {"192.168.0.0", 16}, {"198.18.0.0", 15}, {"198.51.100.0", 24},
    {"203.0.113.0", 24}, {"224.0.0.0", 4},    {"240.0.0.0", 4},
};

/* Source: IANA IPv6 address space: only 2000::/3 is global unicast; in it these are not (or
 * carry an IPv4 address that would have to be judged: Teredo, 6to4). */
static const struct network closed6[] = {
    {"2001::", 23},
    {"2001:db8::", 32},
    {"2002::", 16},
    {"3fff::", 20},
};

static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    unsigned rest = bits % 8;
    uint8_t mask = (uint8_t)(0xFF00U >> rest);

    return memcmp(a, b, bits / 8) == 0 &&
           (rest == 0 || ((a[bits / 8] ^ b[bits / 8]) & mask) == 0);
}

static bool is_in(int family, const uint8_t *address, const struct network *list, size_t n)
{
    uint8_t net[16];

    for (size_t i = 0; i < n; i++)
        if (inet_pton(family, list[i].address, net) == 1 &&
            same_bits(address, net, list[i].bits))
            return true;
    return false;
}

static bool is_public4(const uint8_t *a)
{
    return !is_in(AF_INET, a, closed4, sizeof closed4 / sizeof *closed4);
}

/* ::ffff:a.b.c.d, and 64:ff9b::a.b.c.d of NAT64 (RFC 6052): the IPv4 address inside. */
static const uint8_t *inner4(const uint8_t *a)
{
    static const uint8_t mapped[12] = {[10] = 0xFF, [11] = 0xFF};
    static const uint8_t nat64[12] = {0x00, 0x64, 0xFF, 0x9B};

    return memcmp(a, mapped, 12) == 0 || memcmp(a, nat64, 12) == 0 ? a + 12 : NULL;
}

/* The bytes of an address, and whether they are 4 or 16 of them; NULL: neither. A mapped one
 * comes as the IPv4 address it is. */
static const uint8_t *bytes_of(const struct sockaddr *address, int *family)
{
    *family = address->sa_family;
    if (address->sa_family == AF_INET)
        return (const uint8_t *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
    if (address->sa_family != AF_INET6)
        return NULL;
    const uint8_t *a =
        (const uint8_t *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    if (inner4(a))
        *family = AF_INET;
    return inner4(a) ? inner4(a) : a;
}

bool http_address_is_public(const struct sockaddr *address)
{
    static const struct network global = {"2000::", 3};
    int family;
    const uint8_t *a = bytes_of(address, &family);

    if (!a)
        return false;
    if (family == AF_INET)
        return is_public4(a);
    return is_in(AF_INET6, a, &global, 1) &&
           !is_in(AF_INET6, a, closed6, sizeof closed6 / sizeof *closed6);
}

static bool matches_network(int family, const uint8_t *a, const char *text)
{
    char address[INET6_ADDRSTRLEN + 1];
    const char *slash = strchr(text, '/');
    uint8_t net[16];

    if (!slash || (size_t)(slash - text) >= sizeof address)
        return false;
    size_t n = (size_t)(slash - text);
    memcpy(address, text, n);
    address[n] = '\0';
    char *end;
    unsigned long bits = strtoul(slash + 1, &end, 10);
    if (end == slash + 1 || *end || bits > (family == AF_INET ? 32 : 128))
        return false;
    return inet_pton(family, address, net) == 1 && same_bits(a, net, (unsigned)bits);
}

bool http_address_is_in(const struct sockaddr *address, const char *const *networks)
{
    int family;
    const uint8_t *a = bytes_of(address, &family);

    for (; a && networks && *networks; networks++)
        if (matches_network(family, a, *networks))
            return true;
    return false;
}

/* ---- URLs ---- */

static void curlu_fini(CURLU **u)
{
    curl_url_cleanup(*u);
}

/* One part of a URL into out; false: there is none. */
static bool url_part(const CURLU *u, CURLUPart part, char *out, size_t cap)
{
    char *text = NULL;

    if (curl_url_get((CURLU *)(uintptr_t)u, part, &text, 0) != CURLUE_OK)
        return false;
    int n = snprintf(out, cap, "%s", text);
    curl_free(text);
    return n >= 0 && (size_t)n < cap;
}

enum err http_url_host(const char *url, char out[HTTP_HOST_BYTES], struct error *e)
{
    __attribute__((cleanup(curlu_fini))) CURLU *u = curl_url();
    char scheme[16], host[HTTP_HOST_BYTES];

    if (!u)
        return err_set(e, ERR_NOMEM, "url");
    if (strlen(url) >= HTTP_URL_BYTES)
        return err_set(e, ERR_INVAL, "url: more than %d bytes", HTTP_URL_BYTES - 1);
    CURLUcode rc = curl_url_set(u, CURLUPART_URL, url, 0);
    if (rc != CURLUE_OK)
        return err_set(e, ERR_INVAL, "url \"%.80s\": %s", url, curl_url_strerror(rc));
    if (!url_part(u, CURLUPART_SCHEME, scheme, sizeof scheme) ||
        (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
        return err_set(e, ERR_INVAL, "url \"%.80s\": only http and https are fetched", url);
    char *any = NULL;
    if (curl_url_get(u, CURLUPART_USER, &any, 0) == CURLUE_OK ||
        curl_url_get(u, CURLUPART_PASSWORD, &any, 0) == CURLUE_OK) {
        curl_free(any);
        return err_set(e, ERR_INVAL, "url: a user name or password in it is not sent");
    }
    if (!url_part(u, CURLUPART_HOST, host, sizeof host) || !host[0])
        return err_set(e, ERR_INVAL, "url \"%.80s\": no host", url);
    size_t n = 0;
    for (const char *p = host; *p; p++)
        if (*p != '[' && *p != ']')
            out[n++] = (char)(*p >= 'A' && *p <= 'Z' ? *p + 32 : *p);
    while (n > 1 && out[n - 1] == '.') /* the root's dot names the same host */
        n--;
    out[n] = '\0';
    return OK;
}

/* ---- the request ---- */

struct request {
    const struct http_limits *limits;
    struct http_answer *answer;
    unsigned n_refused; /* addresses that may not be connected to */
    char refused[64];   /* one of them */
    size_t n_header_bytes;
};

/* curl asks here for a socket to connect to exactly this address. */
static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct request *r = user;

    if (purpose != CURLSOCKTYPE_IPCXN || (!http_address_is_public(&a->addr) &&
                                          !http_address_is_in(&a->addr, r->limits->allow))) {
        int family;
        const uint8_t *bytes = bytes_of(&a->addr, &family);
        r->n_refused++;
        if (!bytes || !inet_ntop(family, bytes, r->refused, sizeof r->refused))
            r->refused[0] = '\0';
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static size_t take_body(char *data, size_t size, size_t n, void *user)
{
    struct request *r = user;
    struct buf *b = &r->answer->body;
    size_t len = size * n, room = b->max - b->len, fits = len < room ? len : room;

    if (buf_add(b, data, fits, NULL))
        return 0;
    r->answer->truncated = r->answer->truncated || fits < len;
    return fits < len ? 0 : len; /* 0 ends the transfer */
}

/* A new answer begins: what an earlier one (a redirect) had in its body is dropped. */
static size_t take_header(char *data, size_t size, size_t n, void *user)
{
    struct request *r = user;

    if (size * n >= 5 && memcmp(data, "HTTP/", 5) == 0) {
        buf_clear(&r->answer->body);
        r->answer->truncated = false;
    }
    r->n_header_bytes += size * n;
    return r->n_header_bytes > MAX_HEADER_BYTES ? 0 : size * n;
}

static enum err set_options(CURL *c, struct request *r, struct curl_slist *headers,
                            struct error *e)
{
    const struct http_limits *l = r->limits;
    CURLcode rc = CURLE_OK;
#define SET(option, value) rc = rc ? rc : curl_easy_setopt(c, option, value)
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_NOPROXY, "*");
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_HTTPHEADER, headers);
    SET(CURLOPT_USERAGENT, HTTP_USER_AGENT);
    SET(CURLOPT_ACCEPT_ENCODING, ""); /* what curl can undo; the limit counts what comes out */
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)l->connect_ms);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, (void *)r);
    SET(CURLOPT_WRITEFUNCTION, take_body);
    SET(CURLOPT_WRITEDATA, (void *)r);
    SET(CURLOPT_HEADERFUNCTION, take_header);
    SET(CURLOPT_HEADERDATA, (void *)r);
    SET(CURLOPT_HTTP09_ALLOWED, 0L);
#undef SET
    return rc ? err_set(e, ERR_UNSUPPORTED, "http: %s", curl_easy_strerror(rc)) : OK;
}

static void copy_text(char *out, size_t cap, const char *text)
{
    snprintf(out, cap, "%s", text ? text : "");
}

static enum err explain(CURLcode rc, const struct request *r, const char *url, struct error *e)
{
    if (r->n_refused)
        return err_set(e, ERR_DENIED,
                       "%.100s: its address %s is not a public one and may not be fetched from",
                       url, r->refused);
    if (r->n_header_bytes > MAX_HEADER_BYTES)
        return err_set(e, ERR_LIMIT, "%.100s: more than %zu bytes of headers", url,
                       MAX_HEADER_BYTES);
    if (rc == CURLE_OPERATION_TIMEDOUT)
        return err_set(e, ERR_TIMEOUT, "%.100s: no answer within the time limit", url);
    return err_set(e, rc == CURLE_OUT_OF_MEMORY ? ERR_NOMEM : ERR_IO, "%.100s: %s", url,
                   curl_easy_strerror(rc));
}

/* One answer; the status, the type and the target of a redirect go to r->answer. */
static enum err get_once(CURL *c, struct request *r, const char *url, uint32_t left_ms,
                         struct error *e)
{
    struct http_answer *a = r->answer;
    char *text = NULL;

    if (curl_easy_setopt(c, CURLOPT_URL, url) != CURLE_OK ||
        curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)left_ms) != CURLE_OK)
        return err_set(e, ERR_NOMEM, "http");
    r->n_refused = 0;
    CURLcode rc = curl_easy_perform(c);
    if (rc != CURLE_OK && !(rc == CURLE_WRITE_ERROR && a->truncated))
        return explain(rc, r, url, e);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &a->status);
    curl_easy_getinfo(c, CURLINFO_CONTENT_TYPE, &text);
    copy_text(a->type, sizeof a->type, text);
    text = NULL;
    curl_easy_getinfo(c, CURLINFO_PRIMARY_IP, &text);
    copy_text(a->address, sizeof a->address, text);
    text = NULL;
    curl_easy_getinfo(c, CURLINFO_REDIRECT_URL, &text);
    copy_text(a->location, sizeof a->location, text);
    copy_text(a->url, sizeof a->url, url);
    return OK;
}

/* Whether a redirect is to be followed: the same host, and not from https back to http. */
static bool is_same_place(const char *from, const char *to)
{
    char a[HTTP_HOST_BYTES], b[HTTP_HOST_BYTES];
    bool weaker = strncasecmp(from, "https:", 6) == 0 && strncasecmp(to, "https:", 6) != 0;

    return !weaker && http_url_host(from, a, NULL) == OK && http_url_host(to, b, NULL) == OK &&
           strcmp(a, b) == 0;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static enum err get_all(CURL *c, struct request *r, const char *first, struct error *e)
{
    struct http_answer *a = r->answer;
    char url[HTTP_URL_BYTES];
    uint64_t end = now_ms() + r->limits->timeout_ms;

    copy_text(url, sizeof url, first);
    for (uint32_t n = 0;; n++) {
        uint64_t now = now_ms();
        if (now >= end)
            return err_set(e, ERR_TIMEOUT, "%.100s: no answer within the time limit", first);
        enum err rc = get_once(c, r, url, (uint32_t)(end - now), e);
        if (rc || !a->location[0] || !is_same_place(url, a->location))
            return rc;
        if (n == r->limits->max_redirects)
            return err_set(e, ERR_LIMIT, "%.100s: more than %u redirects", first,
                           r->limits->max_redirects);
        copy_text(url, sizeof url, a->location);
    }
}

static void curl_fini(CURL **c)
{
    curl_easy_cleanup(*c);
}

static void slist_fini(struct curl_slist **l)
{
    curl_slist_free_all(*l);
}

void http_answer_fini(struct http_answer *a)
{
    buf_fini(&a->body);
}

enum err http_get(const char *url, const struct http_limits *limits, struct http_answer *out,
                  struct error *e)
{
    char host[HTTP_HOST_BYTES];
    struct http_answer a = {.body = BUF_INIT((size_t)limits->max_bytes)};
    struct request r = {.limits = limits, .answer = &a};
    enum err rc = http_url_host(url, host, e);

    if (rc)
        return rc;
    __attribute__((cleanup(curl_fini))) CURL *c = curl_easy_init();
    __attribute__((cleanup(slist_fini))) struct curl_slist *headers =
        curl_slist_append(NULL, ACCEPT);
    if (!c || !headers)
        return err_set(e, ERR_NOMEM, "http");
    if ((rc = set_options(c, &r, headers, e)) || (rc = get_all(c, &r, url, e))) {
        http_answer_fini(&a);
        return rc;
    }
    *out = a;
    return OK;
}
