/* Takes secrets out of text that is about to leave: exports, search results, logs.
 *
 * A secret is what looks like one: keys and tokens with a known beginning (AKIA, ghp_, sk-,
 * ...), JSON web tokens, `Bearer` and `Basic` credentials, PEM private keys, the password in a
 * URL, and the value behind a name that ends in password, secret, token, api_key and the like.
 * Each is replaced by REDACT_MARK; everything else stays byte for byte. What has no such form
 * is not found: redaction lowers the risk of sharing a text, it does not remove it.
 *
 * Never used on what is stored: a replay needs the exact bytes. Any thread. */
#ifndef BASE_REDACT_H
#define BASE_REDACT_H

#include <stdbool.h>

#include "base/buf.h"

#define REDACT_MARK "[redacted]"

/* Appends text[0, n) (any bytes) to out without its secrets. *n_found (may be NULL) is raised
 * by their number. Errors of buf_add. */
NODISCARD enum err redact_text(const char *text, size_t n, struct buf *out, uint64_t *n_found,
                               struct error *e);

/* Whether a field of this name holds a secret ("api_key", "DB_PASSWORD"). */
bool redact_is_secret_name(const char *name);

#endif
