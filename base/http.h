/* One HTTP(S) request at a time, for fetching text from the network without trusting it.
 *
 * Everything is bounded by struct http_limits. Only http and https, no proxy, no cookies, no
 * credentials (those in a URL are refused), no file written. The addresses that a name resolves
 * to are judged one by one at the moment a socket is made for them, which is the address that
 * is connected to: a name server that gives another answer the second time gains nothing.
 *
 * Blocking; for a thread or a process of its own. */
#ifndef BASE_HTTP_H
#define BASE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/err.h"

#define HTTP_HOST_BYTES 256
#define HTTP_URL_BYTES 4096
#define HTTP_TYPE_BYTES 128
#define HTTP_USER_AGENT "agentd"

struct http_limits {
    uint64_t max_bytes;     /* of the body, decompressed */
    uint32_t timeout_ms;    /* for everything together */
    uint32_t connect_ms;    /* for one connection */
    uint32_t max_redirects; /* on the same host; one to another host is not followed */
    /* Networks that may be connected to although they are not public: "10.1.0.0/16",
     * "::1/128", "127.0.0.1/32"; NULL ends; NULL: none. */
    const char *const *allow;
};

struct http_answer {
    long status;                   /* of the last answer */
    char type[HTTP_TYPE_BYTES];    /* Content-Type; "" when there was none */
    char url[HTTP_URL_BYTES];      /* that the answer is from */
    char location[HTTP_URL_BYTES]; /* where a redirect that was not followed leads; "" */
    char address[64];              /* that was connected to */
    struct buf body;               /* to be finished */
    bool truncated;                /* there was more than max_bytes */
};
void http_answer_fini(struct http_answer *a);

/* Gets a URL. Any status is OK: it is the server's answer. ERR_INVAL: not a URL that may be
 * asked for; ERR_DENIED: every address of the host is one that may not be connected to;
 * ERR_TIMEOUT; ERR_IO with the reason; ERR_NOMEM. */
NODISCARD enum err http_get(const char *url, const struct http_limits *limits,
                            struct http_answer *out, struct error *e);

/* The host of an http or https URL as it would be asked for: lower case, no brackets, no port.
 * ERR_INVAL: it is none, or has a user name in it. */
NODISCARD enum err http_url_host(const char *url, char out[HTTP_HOST_BYTES], struct error *e);

/* Whether an address is in a network that anybody on the internet can be asked for: not this
 * host, private, link-local, shared, multicast, reserved, or one of those inside an IPv6 form
 * (mapped, NAT64, 6to4, Teredo). Sources: the IANA special-purpose address registries (RFC 6890
 * and its successors). */
bool http_address_is_public(const struct sockaddr *address);
/* Whether it lies in one of these networks ("ADDRESS/BITS"; NULL ends). An entry that cannot be
 * read matches nothing. */
bool http_address_is_in(const struct sockaddr *address, const char *const *networks);

#endif
