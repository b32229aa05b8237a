#include "engine/tip.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "engine/ahead.h"
#include "engine/resume.h"

#define TIP_MAGIC "agentTIP"
#define TIP_FIXED 144
#define TIP_OPEN 1u
#define TIP_LAST 2u

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "f32 and rows are copied as they lie");

/* ---- bytes --------------------------------------------------------------------------------
 */

static void put(uint8_t **at, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        *(*at)++ = (uint8_t)(v >> 8 * i);
}

static uint64_t take(const uint8_t **at, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint64_t) * (*at)++ << (8 * i);
    return v;
}

static size_t ring_bytes(const struct model *m)
{
    return (size_t)m->shape.window * m->shape.ring_row;
}

static size_t pending_bytes(const struct model *m)
{
    return (size_t)m->shape.n_sources * 2 * m->shape.head_dim * sizeof(float);
}

static size_t last_bytes(const struct model *m)
{
    return m->config.dim * sizeof(float);
}

uint64_t tip_bytes(const struct model *m)
{
    return TIP_FIXED + m->shape.n_rings * ring_bytes(m) + pending_bytes(m) + last_bytes(m) +
           HASH_BYTES;
}

/* What a tip's sizes follow from: a tip of another model is told from a damaged one. */
static void shape_digest(const struct model *m, uint8_t out[HASH_BYTES])
{
    const struct kv_shape *s = &m->shape;
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    hash_field(&h, "agentd tip", 10);
    hash_u32le(&h, s->n_layers);
    hash_u32le(&h, m->config.n_drafts);
    for (uint32_t i = 0; i < m->config.n_draft_targets; i++)
        hash_u32le(&h, m->config.draft_targets[i]);
    hash_u32le(&h, s->window);
    hash_u32le(&h, s->ring_row);
    hash_u32le(&h, (uint32_t)s->ring_format);
    hash_u32le(&h, s->head_dim);
    hash_u32le(&h, m->config.dim);
    hash_u32le(&h, m->config.last_source);
    for (uint32_t i = 0; i < s->n_sources; i++)
        hash_u32le(&h, s->source_ratio[i]);
    hash_final(&h, out);
}

/* ---- export -------------------------------------------------------------------------------
 */

/* A clip that no later query can notice is not part of the state: a session that was rebuilt
 * deep and one that never stopped have the same tip. Position n sees n + 1 - W and up. */
static uint64_t seen_clip(const struct kv *kv, int class)
{
    return kv->lo[class] + kv->shape->window > kv->n_tokens + 1 ? kv->lo[class] : 0;
}

static void put_head(const struct model_seq *s, uint8_t **at)
{
    const struct model *m = model_of_seq(s);
    memcpy(*at, TIP_MAGIC, 8);
    *at += 8;
    put(at, TIP_VERSION, 4);
    put(at, (uint64_t)m->precision, 4);
    put(at, tip_bytes(m), 8);
    shape_digest(m, *at);
    *at += HASH_BYTES;
    put(at, s->kv.n_tokens, 8);
    for (int k = 0; k < N_LAYER_CLASSES; k++)
        put(at, seen_clip(&s->kv, k), 8);
    put(at, (s->open.is_open ? TIP_OPEN : 0) | (s->has_last ? TIP_LAST : 0), 4);
    put(at, s->open.is_open ? (uint64_t)s->open.mode : 0, 4);
    put(at, s->open.start, 8);
    put(at, s->open.len, 8);
    for (size_t i = 0; i < CONFIG_MAX_NGRAM - 1; i++)
        put(at, s->history[i], 4);
    put(at, 0, 4);
}

/* The rings, then the unfinished groups; what may not be read is zero. */
static void put_windows(struct model *m, const struct kv *kv, uint8_t *out)
{
    const struct kv_shape *s = &m->shape;
    m->k.copy_out(&m->k, out, kv->ring, s->n_rings * ring_bytes(m));
    for (uint32_t l = 0; l < s->n_rings; l++)
        for (uint32_t slot = 0; slot < s->window; slot++) {
            uint64_t position;
            if (!kv_ring_position(kv, l, slot, &position))
                memset(out + l * ring_bytes(m) + (size_t)slot * s->ring_row, 0, s->ring_row);
        }
    out += s->n_rings * ring_bytes(m);
    if (s->n_sources)
        m->k.copy_out(&m->k, out, kv->pending, pending_bytes(m));
    for (uint32_t i = 0; i < s->n_sources; i++)
        if (kv->n_tokens % s->source_ratio[i] == 0)
            memset(out + i * (pending_bytes(m) / s->n_sources), 0,
                   pending_bytes(m) / s->n_sources);
}

enum err model_seq_export_tip(const struct seq *seq, void *dst, struct error *e)
{
    struct model_seq view;
    const struct model_seq *s = &view;
    ahead_view(seq_of_const(seq), &view);
    struct model *m = model_of_seq(s);
    uint8_t *at = dst;
    if (s->failed || s->importing)
        return err_set(e, ERR_CONFLICT, "tip: %s",
                       s->failed ? "the sequence has failed" : "an import is open");
    put_head(s, &at);
    assert(at - (uint8_t *)dst == TIP_FIXED);
    put_windows(m, &s->kv, at);
    at += m->shape.n_rings * ring_bytes(m) + pending_bytes(m);
    if (s->has_last)
        m->k.copy_out(&m->k, at, s->last, last_bytes(m));
    else
        memset(at, 0, last_bytes(m));
    enum err rc = m->k.sync(&m->k, e);
    if (rc)
        return rc;
    at += last_bytes(m);
    hash_bytes(NULL, dst, (size_t)(at - (uint8_t *)dst), at);
    return OK;
}

/* ---- import -------------------------------------------------------------------------------
 */

struct tip_head {
    uint64_t position, lo[N_LAYER_CLASSES];
    struct open_segment open;
    bool has_last;
    uint32_t history[CONFIG_MAX_NGRAM - 1];
};

static enum err check_frame(const struct model *m, const uint8_t *tip, size_t n,
                            struct error *e)
{
    uint8_t shape[HASH_BYTES], sum[HASH_BYTES];
    const uint8_t *at = tip + 8;
    if (memcmp(tip, TIP_MAGIC, 8) != 0)
        return err_set(e, ERR_FORMAT, "tip: not a tip");
    uint64_t version = take(&at, 4), precision = take(&at, 4), n_bytes = take(&at, 8);
    if (version != TIP_VERSION)
        return err_set(e, ERR_FORMAT, "tip: version %" PRIu64 ", want %d", version,
                       TIP_VERSION);
    shape_digest(m, shape);
    if (precision != (uint64_t)m->precision || n_bytes != n ||
        memcmp(at, shape, HASH_BYTES) != 0)
        return err_set(e, ERR_FORMAT, "tip: of another model or precision mode");
    hash_bytes(NULL, tip, n - HASH_BYTES, sum);
    if (memcmp(sum, tip + n - HASH_BYTES, HASH_BYTES) != 0)
        return err_set(e, ERR_FORMAT, "tip: its checksum does not match");
    return OK;
}

static enum err read_head(const struct model *m, const uint8_t *tip, struct tip_head *h,
                          struct error *e)
{
    const uint8_t *at = tip + 56;
    *h = (struct tip_head){.position = take(&at, 8)};
    for (int k = 0; k < N_LAYER_CLASSES; k++)
        h->lo[k] = take(&at, 8);
    uint64_t flags = take(&at, 4), mode = take(&at, 4);
    h->open = (struct open_segment){flags & TIP_OPEN, take(&at, 8), 0, PREFILL_CED};
    h->open.len = take(&at, 8);
    h->has_last = flags & TIP_LAST;
    if (flags & ~(uint64_t)(TIP_OPEN | TIP_LAST) || mode > PREFILL_FULL)
        return err_set(e, ERR_FORMAT, "tip: flags %" PRIu64 ", prefill mode %" PRIu64, flags,
                       mode);
    h->open.mode = (enum prefill_mode)mode;
    for (size_t i = 0; i < CONFIG_MAX_NGRAM - 1; i++) {
        h->history[i] = (uint32_t)take(&at, 4);
        if (h->history[i] != ENGRAM_DEAD && h->history[i] >= m->config.vocab_size)
            return err_set(e, ERR_FORMAT, "tip: id %u, the vocabulary has %u", h->history[i],
                           m->config.vocab_size);
    }
    uint64_t rest = take(&at, 4);
    assert(at - tip == TIP_FIXED);
    return rest ? err_set(e, ERR_FORMAT, "tip: %" PRIu64 " where a zero stands", rest) : OK;
}

static enum err check_open(const struct model *m, const struct tip_head *h, struct error *e)
{
    const struct open_segment *o = &h->open;
    const uint64_t most = m->config.max_tokens;
    if (!o->is_open && (o->start || o->len))
        return err_set(e, ERR_FORMAT, "tip: a closed segment at %" PRIu64, o->start);
    if (!o->is_open)
        return OK;
    if (o->start > most || o->len > most - o->start)
        return err_set(e, ERR_FORMAT,
                       "tip: a segment %" PRIu64 "+%" PRIu64 ", the context holds %" PRIu64,
                       o->start, o->len, most);
    if (o->start >= h->position || o->start + o->len <= h->position)
        return err_set(e, ERR_FORMAT,
                       "tip: position %" PRIu64 " is not inside the segment %" PRIu64
                       "+%" PRIu64,
                       h->position, o->start, o->len);
    return OK;
}

/* A window may begin behind the position only where the open segment's mode skips layers up to
 * there: any other layer would be left out of the tokens before, and their rows be wrong. */
static enum err check_windows(const struct model *m, const struct tip_head *h, struct error *e)
{
    const struct open_segment *o = &h->open;
    uint64_t most[N_LAYER_CLASSES] = {h->position, h->position, h->position};
    if (o->is_open)
        resume_clip(&m->config, o->start, o->len, o->mode, most);
    for (int k = 0; k < N_LAYER_CLASSES; k++)
        if (h->lo[k] > most[k])
            return err_set(e, ERR_FORMAT, "tip: a window from %" PRIu64 ", position %" PRIu64,
                           h->lo[k], h->position);
    return OK;
}

enum err model_seq_import_tip(struct seq *seq, const void *tip, size_t n_bytes,
                              const struct seq_digest *digest, struct error *e)
{
    struct model_seq *s = seq_of(seq);
    struct model *m = model_of_seq(s);
    struct tip_head h;
    if (!s->importing || s->work.kind != WORK_NONE)
        return err_set(e, ERR_CONFLICT, "tip: %s",
                       s->importing ? "work is queued already" : "no import is open");
    enum err rc = check_frame(m, tip, n_bytes, e);
    if (rc || (rc = read_head(m, tip, &h, e)) || (rc = check_open(m, &h, e)) ||
        (rc = check_windows(m, &h, e)))
        return rc;
    if (h.position != s->importing)
        return err_set(e, ERR_FORMAT, "tip: position %" PRIu64 ", %" PRIu64 " tokens of planes",
                       h.position, s->importing);
    if ((rc = kv_make_room(&s->kv, s->importing, 0, e)) ||
        (rc = kv_land(&s->kv, s->importing, e)))
        return rc;
    const uint8_t *at = (const uint8_t *)tip + TIP_FIXED;
    m->k.copy_in(&m->k, s->kv.ring, at, m->shape.n_rings * ring_bytes(m));
    at += m->shape.n_rings * ring_bytes(m);
    if (m->shape.n_sources)
        m->k.copy_in(&m->k, s->kv.pending, at, pending_bytes(m));
    at += pending_bytes(m);
    m->k.copy_in(&m->k, s->last, at, last_bytes(m));
    if ((rc = m->k.sync(&m->k, e)))
        return rc;
    memcpy(s->kv.lo, h.lo, sizeof(h.lo));
    memcpy(s->history, h.history, sizeof(h.history));
    s->has_last = h.has_last;
    s->open = h.open;
    s->digest = digest ? *digest : (struct seq_digest){0};
    s->kv.n_tokens = h.position;
    s->importing = 0;
    return OK;
}
