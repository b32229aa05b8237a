/* Strings as Python sees them: code points, str.lower(), str.strip().
 *
 * Input is UTF-8; bytes that are not count as U+FFFD, one each. Case mapping is utf8proc's plus
 * what Python adds to the simple mapping: U+0130, and the sigma at the end of a word. */
#ifndef EVALS_PYTEXT_H
#define EVALS_PYTEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "evals/wordlist.h"

struct pytext {
    uint32_t *v; /* code points */
    size_t n;
};

void pytext_fini(struct pytext *t);
/* ERR_NOMEM. */
NODISCARD enum err pytext_decode(const char *s, size_t n, struct pytext *out, struct error *e);
/* s.lower(), appended as UTF-8. */
NODISCARD enum err pytext_lower(const char *s, size_t n, struct buf *out, struct error *e);
/* str.isspace() of one character. */
bool pytext_is_space(uint32_t cp);
/* s.split(), appended. */
NODISCARD enum err pytext_split(const char *s, size_t n, struct wordlist *out, struct error *e);
/* s.strip(): moves *s and *n. */
void pytext_strip(const char **s, size_t *n);

#endif
