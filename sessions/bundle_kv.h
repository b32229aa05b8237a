/* Model state in a bundle: rows of all planes in parts, and the tip.
 *
 * session.json has an object "state": whose state (fingerprint, planes, numerics class,
 * lineage), how far (position; of the tip: digest and place in its segment), the names of the
 * parts in order and of the tip, and a tag. A part is the rows of partTokens tokens (the last
 * of fewer), plane after plane. The tag is keyed with the master key, over all of these and
 * over the tape up to there, its segments and marks: whoever has not that key cannot say that
 * these rows belong to these tokens. */
#ifndef SESSIONS_BUNDLE_KV_H
#define SESSIONS_BUNDLE_KV_H

#include <jansson.h>

#include "base/hash.h"
#include "sessions/head.h"

struct store;

struct bundle_state {
    uint8_t fingerprint[STATE_KEY_BYTES];
    uint8_t *spec; /* identity_spec() of the planes; owned */
    size_t n_spec;
    char numerics[STATE_CLASS_BYTES];
    uint32_t lineage;
    uint64_t position, part_tokens;
    bool has_tip, inside; /* inside: of the tip, as in head_save */
    uint8_t digest[HASH_BYTES];
    uint64_t digest_rows;
    uint8_t (*parts)[HASH_BYTES]; /* owned */
    size_t n_parts;
    uint8_t tip[HASH_BYTES];
    uint8_t tag[HASH_BYTES];
};
void bundle_state_fini(struct bundle_state *s);

/* Takes the bytes of a part or of the tip; says their hash. */
typedef enum err bundle_kv_put(void *user, const void *p, size_t n, uint8_t hash[HASH_BYTES],
                               struct error *e);
/* What the store has of a session's state, on its way into a bundle: read whole at the
 * beginning (the rows are held in memory together; the head of the session stays as it is),
 * then handed over part by part. */
struct bundle_collector;
NODISCARD enum err bundle_collect(struct store *st, const char *session,
                                  const struct state_layout *l, struct bundle_collector **out,
                                  struct error *e);
/* The next part; *done: that was the last thing. */
NODISCARD enum err bundle_collect_step(struct bundle_collector *c, bundle_kv_put *put,
                                       void *user, bool *done, struct error *e);
/* Afterwards: what session.json says. NULL: there was nothing, or no memory. */
json_t *bundle_collect_json(struct bundle_collector *c, const struct store *st,
                            const struct tape_view *tape);
/* Tokens whose state goes along. */
uint64_t bundle_collect_position(const struct bundle_collector *c);
void bundle_collect_free(struct bundle_collector *c);

/* ERR_FORMAT names the field. */
NODISCARD enum err bundle_state_read(const json_t *j, struct bundle_state *out,
                                     struct error *e);

/* The bytes of a member; NULL: the bundle has none of this hash. */
typedef const void *bundle_kv_get(void *user, const uint8_t hash[HASH_BYTES], uint64_t *n);

/* Whether state of this layout would be taken for this tape: OK. ERR_UNSUPPORTED: it is another
 * model's. ERR_DENIED: the tag is not of our master key. Both say so; then it is left out.
 * ERR_FORMAT: a part is missing or has another size than its rows: the bundle is refused. */
NODISCARD enum err bundle_state_check(struct store *st, const struct bundle_state *s,
                                      const struct state_layout *l,
                                      const struct tape_view *tape, bool trust,
                                      bundle_kv_get *get, void *user, struct error *e);
/* Makes it the state of the session, part by part. Errors of head_save; what was saved before
 * stays. */
NODISCARD enum err bundle_state_save(struct store *st, const char *session,
                                     const struct bundle_state *s, const struct state_layout *l,
                                     bundle_kv_get *get, void *user, struct error *e);

#endif
