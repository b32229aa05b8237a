/* http_fetch: one GET, and the answer as text. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/auto.h"
#include "base/http.h"
#include "tools/body.h"

#define DEFAULT_BYTES (1 << 20)
#define DEFAULT_MS 30000
#define CONNECT_MS 10000
#define MAX_REDIRECTS 5
#define LOOK_BYTES 4096 /* of a body without a type */
#define MAX_NETWORKS 64

/* What a server put into a header, on one line. */
static void print_header(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        putchar(*p < 0x20 || *p == 0x7F ? '?' : *p);
}

static bool has_part(const char *type, const char *part)
{
    size_t n = strlen(part);
    for (; *type && *type != ';'; type++)
        if (strncasecmp(type, part, n) == 0)
            return true;
    return false;
}

/* Whether to show it: by its type; by its beginning if it has none. */
static bool is_text(const struct http_answer *a)
{
    static const char *const parts[] = {"text/",      "json", "xml",  "javascript",
                                        "urlencoded", "yaml", "toml", "csv"};
    size_t look = a->body.len < LOOK_BYTES ? a->body.len : LOOK_BYTES;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (has_part(a->type, parts[i]))
            return true;
    return !a->type[0] && !(look && memchr(a->body.data, '\0', look));
}

static void print_answer(const struct http_answer *a)
{
    printf("HTTP %ld, ", a->status);
    print_header(a->type[0] ? a->type : "no content type");
    printf(", %zu bytes%s, ", a->body.len, a->truncated ? " (cut)" : "");
    print_header(a->url);
    if (a->location[0]) {
        printf("\nredirects to ");
        print_header(a->location);
        printf(" (not followed: another host)");
    }
    printf("\n\n");
    if (a->body.len && !is_text(a))
        printf("[not a text: not shown]\n");
    else if (a->body.len)
        fwrite(a->body.data, 1, a->body.len, stdout);
    if (a->truncated)
        printf("\n[cut: only the first %zu bytes were read]\n", a->body.len);
}

int body_http_fetch(const struct body *b)
{
    const char *networks[MAX_NETWORKS + 1] = {NULL};
    const json_t *list = b->launch->fetch_networks;
    struct http_limits limits = {
        .max_bytes = (uint64_t)body_integer(b, "max_bytes", DEFAULT_BYTES),
        .timeout_ms = (uint32_t)body_integer(b, "timeout_ms", DEFAULT_MS),
        .connect_ms = CONNECT_MS,
        .max_redirects = MAX_REDIRECTS,
        .allow = networks};
    AUTO(http_answer) struct http_answer a = {.body = BUF_INIT(0)};
    struct error e;

    for (size_t i = 0; i < json_array_size(list) && i < MAX_NETWORKS; i++)
        networks[i] = json_string_value(json_array_get(list, i));
    if (http_get(body_string(b, "url", ""), &limits, &a, &e))
        return body_fail("%s", e.msg);
    print_answer(&a);
    return 0;
}
