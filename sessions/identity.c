#include "sessions/identity.h"

#include <string.h>

#include "sessions/le.h"

static void begin(struct hash *h, const uint8_t key[HASH_KEY_BYTES], const char *domain)
{
    hash_init(h, key, HASH_BYTES);
    hash_field(h, domain, strlen(domain));
}

static void field_u32(struct hash *h, uint32_t v)
{
    uint8_t b[4];
    le_put32(b, v);
    hash_field(h, b, sizeof b);
}

static void field_u64(struct hash *h, uint64_t v)
{
    uint8_t b[8];
    le_put64(b, v);
    hash_field(h, b, sizeof b);
}

void identity_spec(const struct state_layout *l, uint8_t *out)
{
    le_put64(out, l->tip_bytes);
    out += 8;
    for (uint32_t i = 0; i < l->n_planes; i++, out += IDENTITY_PLANE_BYTES) {
        const struct plane_spec *p = &l->planes[i];
        memset(out, 0, 24);
        memcpy(out, p->name, strnlen(p->name, sizeof p->name));
        le_put32(out + 24, (uint32_t)p->kind);
        le_put32(out + 28, p->row_bytes);
        le_put32(out + 32, p->ratio);
    }
}

void identity_root(const uint8_t key[HASH_KEY_BYTES], const struct state_layout *l,
                   uint32_t block_tokens, uint8_t out[HASH_BYTES])
{
    uint8_t spec[IDENTITY_SPEC_BYTES(STATE_MAX_PLANES)];
    struct hash h;
    identity_spec(l, spec);
    begin(&h, key, "root");
    hash_field(&h, l->fingerprint, sizeof l->fingerprint);
    hash_field(&h, spec, IDENTITY_SPEC_BYTES(l->n_planes));
    field_u32(&h, block_tokens);
    hash_final(&h, out);
}

void identity_block(const uint8_t key[HASH_KEY_BYTES], const uint8_t parent[HASH_BYTES],
                    const uint32_t *ids, uint32_t n, uint8_t out[HASH_BYTES])
{
    struct hash h;
    begin(&h, key, "block");
    hash_field(&h, parent, HASH_BYTES);
    field_u32(&h, n);
    hash_field(&h, ids, (size_t)n * 4);
    hash_final(&h, out);
}

void identity_shape(const uint8_t key[HASH_KEY_BYTES], const struct tape_view *tape,
                    uint64_t position, bool *inside, uint8_t out[HASH_BYTES])
{
    struct hash h;
    bool in = false;
    begin(&h, key, "shape");
    for (size_t i = 0; i < tape->n_segments && tape->segments[i].start < position; i++) {
        const struct segment *s = &tape->segments[i];
        bool input = s->kind == SEGMENT_INPUT;
        field_u64(&h, s->start);
        field_u32(&h, (uint32_t)s->kind);
        field_u32(&h, input ? (uint32_t)s->mode : 0);
        in = input && s->start + s->len > position;
    }
    hash_field(&h, "marks", 5);
    for (size_t i = 0; i < tape->n_marks && tape->marks[i].at <= position; i++) {
        field_u64(&h, tape->marks[i].at);
        field_u64(&h, tape->marks[i].from);
    }
    field_u32(&h, in);
    hash_final(&h, out);
    if (inside)
        *inside = in;
}

void identity_tip(const uint8_t key[HASH_KEY_BYTES], const uint8_t block[HASH_BYTES],
                  const uint32_t *ids, uint32_t n, const uint8_t shape[HASH_BYTES],
                  uint8_t out[HASH_BYTES])
{
    struct hash h;
    begin(&h, key, "tip");
    hash_field(&h, block, HASH_BYTES);
    field_u32(&h, n);
    hash_field(&h, ids, (size_t)n * 4);
    hash_field(&h, shape, HASH_BYTES);
    hash_final(&h, out);
}

void identity_chain(const uint8_t key[HASH_KEY_BYTES], const uint8_t root[HASH_BYTES],
                    const uint32_t *ids, uint64_t position, uint32_t block_tokens,
                    uint8_t out[HASH_BYTES])
{
    uint8_t at[HASH_BYTES];
    memcpy(at, root, sizeof at);
    for (uint64_t i = 0; i + block_tokens <= position; i += block_tokens)
        identity_block(key, at, ids + i, block_tokens, at);
    memcpy(out, at, sizeof at);
}
