/* The three splits in front of BPE, as a hand-written matcher.
 *
 * Each split cuts what the one before left over into matches and gaps, and both become pieces:
 * numbers in groups of three; runs of CJK ideographs and kana; then words, punctuation and
 * white space. A byte that is not UTF-8 is a piece of its own and ends whatever stands before
 * it.
 *
 *     struct pretokenizer p = pretokenizer_start(bytes, n);
 *     while ((len = pretokenizer_next(&p, &piece)))
 *         ...
 *
 * Linear in n. Source: prompt.md, section 15. */
#ifndef ENGINE_PRETOKENIZER_H
#define ENGINE_PRETOKENIZER_H

#include <stddef.h>
#include <stdint.h>

struct pretokenizer {
    const uint8_t *at, *end;
    const uint8_t *span_end; /* end of the span that the third split works on; == at: none */
};

struct pretokenizer pretokenizer_start(const uint8_t *bytes, size_t n);
/* Length of the next piece, which begins at *piece; 0 at the end. */
size_t pretokenizer_next(struct pretokenizer *p, const uint8_t **piece);

/* The regular expressions that this file implements, in tokenizer.json's spelling. */
extern const char *const pretokenizer_patterns[3];

#endif
