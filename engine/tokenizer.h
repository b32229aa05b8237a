/* Text to token ids and back: byte-level BPE over a tokenizer.json in the real format.
 *
 * Two ways in. tokenizer_encode() takes bytes as they are: no spelling in them, of whatever
 * special token, becomes anything but ordinary ids. tokenizer_encode_special() matches added
 * tokens first, leftmost and longest; it is for text that stands for model output and for the
 * `--special` option, never for anything a user, a file or a tool wrote.
 *
 * Between added tokens the text goes through three splits (prompt.md, section 15), then BPE
 * joins the bytes of each piece, lowest rank first, leftmost on ties. Bytes that are not UTF-8
 * are pieces of their own, so that decoding gives back every byte: decode(encode(x)) == x for
 * every x. Encoding costs O(n log n) in the length of the longest piece, and little more than
 * a comparison where the text was encoded before (token_cache.h): same ids, sooner.
 *
 * Constant after opening, but for what that remembers: any thread may use it. Source:
 * prompt.md, section 15. */
#ifndef ENGINE_TOKENIZER_H
#define ENGINE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/ids.h"
#include "engine/token_cache.h"

struct tokenizer;

#define TOKEN_NONE UINT32_MAX /* "no such token" */

/* Reads DIR/tokenizer.json. ERR_NOTFOUND, ERR_IO; ERR_FORMAT with the field at fault;
 * ERR_UNSUPPORTED for a model, normaliser or pre-tokenizer other than the one described above;
 * ERR_LIMIT for a file over 64 MiB, an id over 2^22 or a token over 4096 bytes. Every id below
 * the highest may be missing, no byte may. */
NODISCARD enum err tokenizer_open(struct tokenizer **out, const char *dir, struct error *e);
/* The same from the n bytes of such a file. */
NODISCARD enum err tokenizer_parse(struct tokenizer **out, const void *json, size_t n,
                                   struct error *e);
/* The vocabulary of a script without a model: id b is byte b, and the added tokens of section
 * 14 follow in its order from 256 (struct chat_ids in chat.h lists them). No merges. */
NODISCARD enum err tokenizer_new_bytes(struct tokenizer **out, struct error *e);
void tokenizer_free(struct tokenizer *t);

/* Another budget for text that was encoded before than TOKEN_CACHE_BYTES; what is remembered is
 * forgotten. 0: none. Not while another thread uses t. ERR_LIMIT, ERR_NOMEM: it is as before.
 */
NODISCARD enum err tokenizer_set_cache(struct tokenizer *t, size_t budget_bytes,
                                       struct error *e);
/* How well that goes; all 0 without. */
struct token_cache_use tokenizer_cache_use(const struct tokenizer *t);

/* Highest id + 1. Ids below without a token are possible (tokenizer_bytes: NULL). */
uint32_t tokenizer_size(const struct tokenizer *t);

/* Appends the ids of n bytes, added tokens disabled. ERR_LIMIT past the list's maximum,
 * ERR_NOMEM; on an error out is as it was. */
NODISCARD enum err tokenizer_encode(const struct tokenizer *t, const void *bytes, size_t n,
                                    struct ids *out, struct error *e);
/* The same with added tokens matched. */
NODISCARD enum err tokenizer_encode_special(const struct tokenizer *t, const void *bytes,
                                            size_t n, struct ids *out, struct error *e);

/* The front of a text that is not complete: appends the ids of all pieces that stay as they are
 * whatever comes behind. *used is how many bytes they stand for; what follows them is to be
 * given again with more bytes behind it, or without any to tokenizer_encode(): the ids of all
 * calls put together are those of the whole text at once. Errors as tokenizer_encode. */
NODISCARD enum err tokenizer_encode_open(const struct tokenizer *t, const void *bytes, size_t n,
                                         struct ids *out, size_t *used, struct error *e);

/* The bytes that an id stands for: any bytes for an ordinary one, the text of an added one.
 * NULL for an id that has no token. Borrowed for the tokenizer's life. */
const uint8_t *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *n);
/* Appends the spelling in the vocabulary file: each byte as its character of the GPT-2
 * alphabet; the text of an added token as it is. ERR_INVAL for an id that has no token. */
NODISCARD enum err tokenizer_spelling(const struct tokenizer *t, uint32_t id, struct buf *out,
                                      struct error *e);
bool tokenizer_is_added(const struct tokenizer *t, uint32_t id);
/* Not added, and whole characters that a JSON string holds as they are: no control character,
 * quote or backslash. */
bool tokenizer_is_text(const struct tokenizer *t, uint32_t id);
/* The id of the added token with exactly this text, or TOKEN_NONE. */
uint32_t tokenizer_added(const struct tokenizer *t, const char *text);

/* Appends the bytes of n ids. ERR_INVAL names an id that has no token; out is then as it was.
 */
NODISCARD enum err tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n,
                                    struct buf *out, struct error *e);

#endif
