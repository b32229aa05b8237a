#include "sessions/bundle_kv.h"

#include <stdlib.h>
#include <string.h>

#include "base/aio.h"
#include "base/encode.h"
#include "base/json.h"
#include "sessions/bundle_internal.h"
#include "sessions/identity.h"
#include "sessions/store_internal.h"
#include "sessions/tape.h"

#define PART_BYTES (16u << 20) /* about; whole blocks */

void bundle_state_fini(struct bundle_state *s)
{
    free(s->spec);
    free(s->parts);
    s->spec = NULL;
    s->parts = NULL;
}

/* ---- the tag ----------------------------------------------------------------------------- */

static void add_number(struct hash *h, uint64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    hash_field(h, b, sizeof b);
}

static void make_tag(const struct store *st, const struct bundle_state *s,
                     const struct tape_view *tape, uint8_t out[HASH_BYTES])
{
    uint8_t key[CRYPTO_KEY_BYTES], shape[HASH_BYTES];
    bool inside;
    struct hash h;
    crypto_derive(st->master, "bundle state", NULL, 0, key);
    identity_shape(key, tape, s->position, &inside, shape);
    hash_init(&h, key, HASH_BYTES);
    hash_field(&h, s->fingerprint, sizeof s->fingerprint);
    hash_field(&h, s->spec, s->n_spec);
    hash_field(&h, s->numerics, strlen(s->numerics));
    add_number(&h, s->lineage);
    add_number(&h, s->position);
    add_number(&h, s->part_tokens);
    add_number(&h, s->has_tip);
    add_number(&h, s->inside);
    hash_field(&h, s->digest, sizeof s->digest);
    add_number(&h, s->digest_rows);
    hash_field(&h, s->tip, sizeof s->tip);
    hash_field(&h, s->parts, s->n_parts * sizeof *s->parts);
    hash_field(&h, tape->ids, s->position * sizeof *tape->ids);
    hash_field(&h, shape, sizeof shape);
    hash_final(&h, out);
    crypto_wipe(key, sizeof key);
}

/* ---- sizes ------------------------------------------------------------------------------- */

static uint64_t part_end(const struct bundle_state *s, size_t i)
{
    uint64_t end = (i + 1) * s->part_tokens;
    return end < s->position ? end : s->position;
}

static uint64_t plane_bytes(const struct plane_spec *p, uint64_t from, uint64_t to)
{
    return (state_rows(p, to) - state_rows(p, from)) * p->row_bytes;
}

static uint64_t part_bytes(const struct state_layout *l, uint64_t from, uint64_t to)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->n_planes; i++)
        n += plane_bytes(&l->planes[i], from, to);
    return n;
}

/* Tokens of a part: whole blocks, of about PART_BYTES. */
static uint64_t choose_part(const struct state_layout *l, uint32_t block_tokens)
{
    uint64_t bytes = part_bytes(l, 0, block_tokens);
    uint64_t n = bytes ? PART_BYTES / bytes : 0;
    return (n ? n : 1) * block_tokens;
}

/* ---- collecting -------------------------------------------------------------------------- */

struct bundle_collector {
    struct state_layout layout;
    struct rows {
        struct state_regions regions;
        size_t bytes[STATE_MAX_PLANES];
        uint32_t n_planes;
        uint8_t *tip;
    } rows;
    struct bundle_state state;
    size_t next; /* part */
    struct buf part;
};

static void rows_fini(struct rows *r)
{
    for (uint32_t i = 0; i < r->n_planes; i++)
        aio_buffer_free(r->regions.plane[i], r->bytes[i]);
    free(r->tip);
}

static enum err rows_make(struct rows *r, const struct state_layout *l, uint64_t n,
                          struct error *e)
{
    r->regions.n_tokens = n;
    for (uint32_t i = 0; i < l->n_planes; i++) {
        r->bytes[i] = (size_t)plane_bytes(&l->planes[i], 0, n) + AIO_ALIGN;
        enum err rc = aio_buffer_reserve(r->bytes[i], &r->regions.plane[i], e);
        if (rc)
            return rc;
        r->n_planes = i + 1;
    }
    r->tip = malloc((size_t)l->tip_bytes + 1);
    return r->tip ? OK : err_set(e, ERR_NOMEM, "bundle: out of memory");
}

/* Restores into r what the plan means; *n is what came. */
static enum err read_rows(struct store *st, const char *session, const struct state_layout *l,
                          const struct head_plan *plan, struct rows *r,
                          struct head_restored *got, struct error *e)
{
    enum err rc = rows_make(r, l, plan->n_tokens, e);
    const struct head_restore h = {.session = session,
                                   .layout = l,
                                   .plan = plan,
                                   .dst = &r->regions,
                                   .tip = plan->has_tip ? r->tip : NULL,
                                   .keep_head = true};
    return rc ? rc : head_restore(st, &h, got, e);
}

static void describe(const struct state_layout *l, const struct head_plan *plan,
                     const struct head_restored *got, struct bundle_state *s)
{
    memcpy(s->fingerprint, l->fingerprint, sizeof s->fingerprint);
    memcpy(s->numerics, plan->numerics, sizeof s->numerics);
    identity_spec(l, s->spec);
    s->lineage = plan->lineage;
    s->position = got->n_tokens;
    s->has_tip = got->has_tip && l->tip_bytes;
    if (!s->has_tip)
        return;
    s->inside = plan->inside_segment;
    memcpy(s->digest, plan->digest, sizeof s->digest);
    s->digest_rows = plan->digest_rows;
}

void bundle_collect_free(struct bundle_collector *c)
{
    if (!c)
        return;
    rows_fini(&c->rows);
    bundle_state_fini(&c->state);
    buf_fini(&c->part);
    free(c);
}

/* Rows of several classes cannot be called one's: they are computed again instead. */
static enum err collect_rows(struct store *st, const char *session,
                             const struct head_plan *plan, struct bundle_collector *c,
                             struct error *e)
{
    struct bundle_state *s = &c->state;
    struct head_restored got = {0};
    if (!plan->n_tokens || !plan->numerics[0])
        return OK;
    enum err rc = read_rows(st, session, &c->layout, plan, &c->rows, &got, e);
    if (rc || !got.n_tokens)
        return rc;
    describe(&c->layout, plan, &got, s);
    if (c->layout.n_planes)
        s->n_parts = (size_t)((s->position + s->part_tokens - 1) / s->part_tokens);
    s->parts = calloc(s->n_parts + 1, sizeof *s->parts);
    return s->parts ? OK : err_set(e, ERR_NOMEM, "bundle: out of memory");
}

enum err bundle_collect(struct store *st, const char *session, const struct state_layout *l,
                        struct bundle_collector **out, struct error *e)
{
    struct head_plan *plan = NULL;
    struct bundle_collector *c = calloc(1, sizeof *c);
    if (!c || !(c->state.spec = malloc(IDENTITY_SPEC_BYTES(l->n_planes)))) {
        bundle_collect_free(c);
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    }
    c->layout = *l;
    c->state.n_spec = IDENTITY_SPEC_BYTES(l->n_planes);
    c->state.part_tokens = choose_part(l, st->block_tokens);
    buf_init(&c->part, BUNDLE_MAX_KV_PART);
    enum err rc = head_find(st, session, l, TAPE_END, HEAD_TIP, &plan, e);
    if (!rc)
        rc = collect_rows(st, session, plan, c, e);
    head_plan_free(plan);
    if (rc) {
        bundle_collect_free(c);
        return rc;
    }
    *out = c;
    return OK;
}

static enum err put_part(struct bundle_collector *c, size_t i, bundle_kv_put *put, void *user,
                         struct error *e)
{
    uint64_t from = i * c->state.part_tokens, to = part_end(&c->state, i);
    enum err rc = OK;
    buf_clear(&c->part);
    for (uint32_t k = 0; k < c->layout.n_planes && !rc; k++) {
        const struct plane_spec *p = &c->layout.planes[k];
        const uint8_t *rows = c->rows.regions.plane[k];
        rc = buf_add(&c->part, rows + state_rows(p, from) * p->row_bytes,
                     (size_t)plane_bytes(p, from, to), e);
    }
    return rc ? rc : put(user, buf_str(&c->part), c->part.len, c->state.parts[i], e);
}

enum err bundle_collect_step(struct bundle_collector *c, bundle_kv_put *put, void *user,
                             bool *done, struct error *e)
{
    struct bundle_state *s = &c->state;
    enum err rc = OK;
    if (c->next < s->n_parts)
        rc = put_part(c, c->next++, put, user, e);
    *done = c->next == s->n_parts;
    if (!rc && *done && s->has_tip)
        rc = put(user, c->rows.tip, (size_t)c->layout.tip_bytes, s->tip, e);
    return rc;
}

uint64_t bundle_collect_position(const struct bundle_collector *c)
{
    return c->state.position;
}

/* ---- JSON -------------------------------------------------------------------------------- */

static json_t *hex_json(const void *p, size_t n)
{
    AUTO_FREE char *hex = malloc(HEX_CHARS(n));
    if (!hex)
        return NULL;
    hex_encode(p, n, hex);
    return json_string(hex);
}

static json_t *state_json(const struct bundle_state *s)
{
    json_t *parts = json_array();
    for (size_t i = 0; i < s->n_parts; i++)
        json_array_append_new(parts, hex_json(s->parts[i], HASH_BYTES));
    json_t *j = json_pack("{s:o, s:o, s:s, s:I, s:I, s:I, s:o, s:o}", "fingerprint",
                          hex_json(s->fingerprint, sizeof s->fingerprint), "planes",
                          hex_json(s->spec, s->n_spec), "numerics", s->numerics, "lineage",
                          (json_int_t)s->lineage, "position", (json_int_t)s->position,
                          "partTokens", (json_int_t)s->part_tokens, "parts", parts, "tag",
                          hex_json(s->tag, sizeof s->tag));
    if (j && s->has_tip) {
        json_object_set_new(j, "tip", hex_json(s->tip, sizeof s->tip));
        json_object_set_new(j, "inside", json_boolean(s->inside));
        json_object_set_new(j, "digest", hex_json(s->digest, sizeof s->digest));
        json_object_set_new(j, "digestRows", json_integer((json_int_t)s->digest_rows));
    }
    return j;
}

json_t *bundle_collect_json(struct bundle_collector *c, const struct store *st,
                            const struct tape_view *tape)
{
    if (!c->state.position)
        return NULL;
    make_tag(st, &c->state, tape, c->state.tag);
    return state_json(&c->state);
}

static enum err need_hex(const json_t *j, const char *field, void *dst, size_t n,
                         struct error *e)
{
    const char *hex = NULL;
    size_t n_hex = 0;
    enum err rc = json_need_str(j, field, &hex, &n_hex, e);
    if (!rc && (rc = hex_decode(hex, n_hex, dst, n, e)))
        rc = err_wrap(e, ERR_FORMAT, "\"%s\"", field);
    return rc;
}

static enum err read_spec(const json_t *j, struct bundle_state *s, struct error *e)
{
    const char *hex = NULL;
    size_t n_hex = 0;
    enum err rc = json_need_str(j, "planes", &hex, &n_hex, e);
    if (rc)
        return rc;
    if (n_hex % 2 || n_hex / 2 > IDENTITY_SPEC_BYTES(STATE_MAX_PLANES))
        return err_set(e, ERR_FORMAT, "\"planes\": %zu characters", n_hex);
    s->n_spec = n_hex / 2;
    if (!(s->spec = malloc(s->n_spec + 1)))
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    return need_hex(j, "planes", s->spec, s->n_spec, e);
}

static enum err read_parts(const json_t *j, struct bundle_state *s, struct error *e)
{
    json_t *parts = NULL;
    enum err rc = json_need_arr(j, "parts", &parts, e);
    if (rc)
        return rc;
    s->n_parts = json_array_size(parts);
    uint64_t most = (s->position + s->part_tokens - 1) / s->part_tokens;
    if (s->n_parts && s->n_parts != most)
        return err_set(e, ERR_FORMAT, "%zu parts for %llu tokens, want %llu", s->n_parts,
                       (unsigned long long)s->position, (unsigned long long)most);
    if (!(s->parts = calloc(s->n_parts + 1, sizeof *s->parts)))
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    for (size_t i = 0; i < s->n_parts; i++) {
        const json_t *p = json_array_get(parts, i);
        if (!json_is_string(p) ||
            hex_decode(json_string_value(p), json_string_length(p), s->parts[i], HASH_BYTES, e))
            return err_set(e, ERR_FORMAT, "part %zu: want a hash", i);
    }
    return OK;
}

static enum err read_tip(const json_t *j, struct bundle_state *s, struct error *e)
{
    int64_t rows = 0;
    enum err rc;
    s->has_tip = json_object_get(j, "tip") != NULL;
    if (!s->has_tip)
        return OK;
    if ((rc = need_hex(j, "tip", s->tip, sizeof s->tip, e)) ||
        (rc = json_need_bool(j, "inside", &s->inside, e)) ||
        (rc = need_hex(j, "digest", s->digest, sizeof s->digest, e)) ||
        (rc = json_need_int(j, "digestRows", 0, INT64_MAX, &rows, e)))
        return rc;
    s->digest_rows = (uint64_t)rows;
    return OK;
}

enum err bundle_state_read(const json_t *j, struct bundle_state *out, struct error *e)
{
    AUTO(bundle_state) struct bundle_state s = {0};
    const char *numerics = NULL;
    int64_t lineage = 0, position = 0, part = 0;
    enum err rc;
    if ((rc = need_hex(j, "fingerprint", s.fingerprint, sizeof s.fingerprint, e)) ||
        (rc = read_spec(j, &s, e)) || (rc = json_need_str(j, "numerics", &numerics, NULL, e)) ||
        (rc = json_need_int(j, "lineage", 0, UINT32_MAX, &lineage, e)) ||
        (rc = json_need_int(j, "position", 1, TAPE_TOKENS_MAX, &position, e)) ||
        (rc = json_need_int(j, "partTokens", 1, TAPE_TOKENS_MAX, &part, e)))
        return rc;
    if (!*numerics || strlen(numerics) >= sizeof s.numerics)
        return err_set(e, ERR_FORMAT, "\"numerics\": %zu bytes", strlen(numerics));
    snprintf(s.numerics, sizeof s.numerics, "%s", numerics);
    s.lineage = (uint32_t)lineage;
    s.position = (uint64_t)position;
    s.part_tokens = (uint64_t)part;
    if ((rc = read_parts(j, &s, e)) || (rc = read_tip(j, &s, e)) ||
        (rc = need_hex(j, "tag", s.tag, sizeof s.tag, e)))
        return rc;
    *out = s;
    s.spec = NULL;
    s.parts = NULL;
    return OK;
}

/* ---- taking ------------------------------------------------------------------------------ */

static bool is_of_layout(const struct bundle_state *s, const struct state_layout *l)
{
    uint8_t spec[IDENTITY_SPEC_BYTES(STATE_MAX_PLANES)];
    if (!l || memcmp(s->fingerprint, l->fingerprint, sizeof s->fingerprint) != 0 ||
        s->n_spec != IDENTITY_SPEC_BYTES(l->n_planes))
        return false;
    identity_spec(l, spec);
    return memcmp(spec, s->spec, s->n_spec) == 0;
}

static enum err check_part(const struct bundle_state *s, const struct state_layout *l, size_t i,
                           bundle_kv_get *get, void *user, struct error *e)
{
    uint64_t n = 0, want = part_bytes(l, i * s->part_tokens, part_end(s, i));
    if (!get(user, s->parts[i], &n))
        return err_set(e, ERR_FORMAT, "part %zu is not in the bundle", i);
    if (n != want)
        return err_set(e, ERR_FORMAT, "part %zu has %llu bytes, its rows %llu", i,
                       (unsigned long long)n, (unsigned long long)want);
    return OK;
}

static enum err check_parts(const struct store *st, const struct bundle_state *s,
                            const struct state_layout *l, bundle_kv_get *get, void *user,
                            struct error *e)
{
    uint64_t n = 0;
    enum err rc = OK;
    if (s->n_parts == 0 && part_bytes(l, 0, s->position))
        return err_set(e, ERR_FORMAT, "no parts for %llu tokens",
                       (unsigned long long)s->position);
    if (s->part_tokens % st->block_tokens)
        for (uint32_t i = 0; i < l->n_planes; i++)
            if (s->part_tokens % l->planes[i].ratio)
                return err_set(e, ERR_FORMAT, "parts of %llu tokens cut a row",
                               (unsigned long long)s->part_tokens);
    for (size_t i = 0; i < s->n_parts && !rc; i++)
        rc = check_part(s, l, i, get, user, e);
    if (!rc && s->has_tip && (!get(user, s->tip, &n) || n != l->tip_bytes))
        rc = err_set(e, ERR_FORMAT, "the tip has %llu bytes, want %llu", (unsigned long long)n,
                     (unsigned long long)l->tip_bytes);
    return rc;
}

enum err bundle_state_check(struct store *st, const struct bundle_state *s,
                            const struct state_layout *l, const struct tape_view *tape,
                            bool trust, bundle_kv_get *get, void *user, struct error *e)
{
    uint8_t tag[HASH_BYTES];
    if (s->position > tape->n_ids)
        return err_set(e, ERR_FORMAT, "state of %llu tokens, the tape has %llu",
                       (unsigned long long)s->position, (unsigned long long)tape->n_ids);
    if (!is_of_layout(s, l))
        return err_set(e, ERR_UNSUPPORTED, "it is the state of another model");
    enum err rc = check_parts(st, s, l, get, user, e);
    if (rc)
        return rc;
    make_tag(st, s, tape, tag);
    if (!trust && !crypto_equal(tag, s->tag, sizeof tag))
        return err_set(e, ERR_DENIED, "it was not written under this store's master key");
    return OK;
}

enum err bundle_state_save(struct store *st, const char *session, const struct bundle_state *s,
                           const struct state_layout *l, bundle_kv_get *get, void *user,
                           struct error *e)
{
    struct state_layout layout = *l;
    size_t n_saves = s->n_parts ? s->n_parts : 1;
    enum err rc = OK;
    memcpy(layout.numerics, s->numerics, sizeof layout.numerics);
    for (size_t i = 0; i < n_saves && !rc; i++) {
        uint64_t n, from = i * s->part_tokens;
        struct head_save h = {.session = session,
                              .layout = &layout,
                              .from = from,
                              .to = s->n_parts ? part_end(s, i) : s->position,
                              .lineage = s->lineage};
        const uint8_t *rows = s->n_parts ? get(user, s->parts[i], &n) : NULL;
        for (uint32_t p = 0; p < l->n_planes && rows; p++) {
            h.plane[p] = rows;
            rows += plane_bytes(&l->planes[p], h.from, h.to);
        }
        if (i + 1 == n_saves && s->has_tip) {
            h.tip = get(user, s->tip, &n);
            h.inside_segment = s->inside;
            memcpy(h.digest, s->digest, sizeof h.digest);
            h.digest_rows = s->digest_rows;
        }
        rc = head_save(st, &h, NULL, e);
    }
    return rc;
}
