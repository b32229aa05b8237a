#include "engine/script_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096u
#define N_LOGITS 16
#define TIP_VERSION 1
#define TIP_BODY_BYTES (8 + 3 * 8 + 4 * 4 + SCRIPT_WINDOW * 8 + SCRIPT_KV_BYTES)
#define TIP_BYTES (TIP_BODY_BYTES + HASH_TAG_BYTES)

static const char tip_magic[8] = {'S', 'C', 'R', 'I', 'P', 'T', 'I', 'P'};

/* Flags of a window entry; the value of an entry that was never written is 0. */
enum { ENTRY_USED = 1, ENTRY_BEGINS = 2, ENTRY_GENERATED = 4, ENTRY_MODE_SHIFT = 8 };

void script_layout(struct state_layout *l)
{
    l->n_planes = 2;
    l->planes[0] = (struct plane_spec){"S.kv", PLANE_MAIN, SCRIPT_KV_BYTES, 1};
    l->planes[1] = (struct plane_spec){"S.index", PLANE_INDEX, SCRIPT_INDEX_BYTES, 2};
    l->tip_bytes = TIP_BYTES;
    l->replay_tokens = SCRIPT_WINDOW;
    l->window = SCRIPT_WINDOW;
}

void script_state_fini(struct script_state *s)
{
    free(s->kv);
    free(s->index);
    *s = (struct script_state){0};
}

/* ---- room ----------------------------------------------------------------------- */

static size_t page_up(uint64_t n_bytes)
{
    return (size_t)((n_bytes + PAGE - 1) / PAGE * PAGE);
}

enum err script_reserve(struct script_state *s, uint64_t n_tokens, struct error *e)
{
    if (n_tokens > SCRIPT_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%llu tokens, the context holds %u",
                       (unsigned long long)n_tokens, SCRIPT_MAX_TOKENS);
    if (n_tokens <= s->cap_tokens)
        return OK;
    uint64_t cap = s->cap_tokens ? s->cap_tokens : 512;
    while (cap < n_tokens)
        cap *= 2;
    uint8_t *kv = aligned_alloc(PAGE, page_up(cap * SCRIPT_KV_BYTES));
    uint8_t *index = aligned_alloc(PAGE, page_up(cap / 2 * SCRIPT_INDEX_BYTES));
    if (!kv || !index) {
        free(kv);
        free(index);
        return err_set(e, ERR_NOMEM, "state of %llu tokens", (unsigned long long)cap);
    }
    if (s->position) {
        memcpy(kv, s->kv, s->position * SCRIPT_KV_BYTES);
        memcpy(index, s->index, s->position / 2 * SCRIPT_INDEX_BYTES);
    }
    free(s->kv);
    free(s->index);
    s->kv = kv;
    s->index = index;
    s->cap_tokens = cap;
    return OK;
}

/* ---- rows ----------------------------------------------------------------------- */

static uint8_t *kv_row(const struct script_state *s, uint64_t i)
{
    return s->kv + i * SCRIPT_KV_BYTES;
}

static uint8_t *index_row(const struct script_state *s, uint64_t j)
{
    return s->index + j * SCRIPT_INDEX_BYTES;
}

static void make_half(struct script_state *s, uint64_t i)
{
    struct hash h;
    hash_init(&h, NULL, HASH_TAG_BYTES);
    hash_field(&h, "half", 4);
    hash_field(&h, kv_row(s, i), SCRIPT_KV_BYTES);
    hash_final(&h, s->half);
}

/* Adds the rows that token i completed to the hash over all rows. */
static void hash_rows(struct script_state *s, uint64_t i)
{
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    hash_add(&h, s->rows_hash, HASH_BYTES);
    hash_add(&h, kv_row(s, i), SCRIPT_KV_BYTES);
    if (i % 2)
        hash_add(&h, index_row(s, i / 2), SCRIPT_INDEX_BYTES);
    hash_final(&h, s->rows_hash);
}

static void write_rows(struct script_state *s, uint64_t i, uint32_t id)
{
    struct hash h;
    hash_init(&h, NULL, HASH_TAG_BYTES);
    if (i)
        hash_add(&h, kv_row(s, i - 1), SCRIPT_KV_BYTES);
    hash_u32le(&h, id);
    hash_final(&h, kv_row(s, i));
    if (i % 2 == 0) {
        make_half(s, i);
    } else {
        hash_init(&h, NULL, HASH_BYTES);
        hash_add(&h, s->half, SCRIPT_KV_BYTES);
        hash_u32le(&h, id);
        hash_final(&h, index_row(s, i / 2));
    }
    hash_rows(s, i);
}

/* ---- one token ------------------------------------------------------------------ */

static uint32_t entry_flags(enum segment_kind kind, enum prefill_mode mode, bool begins)
{
    return ENTRY_USED | (begins ? ENTRY_BEGINS : 0u) |
           (kind == SEGMENT_GENERATED ? ENTRY_GENERATED : (uint32_t)mode << ENTRY_MODE_SHIFT);
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static void put_u64(uint8_t *p, uint64_t v)
{
    put_u32(p, (uint32_t)v);
    put_u32(p + 4, (uint32_t)(v >> 32));
}

/* The row's stand-in for logits: N_LOGITS finite f32 as bytes, little-endian. */
static void logits_of(const struct script_state *s, uint8_t out[N_LOGITS * 4])
{
    uint8_t seed[HASH_BYTES];
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    hash_add(&h, s->rows_hash, HASH_BYTES);
    hash_u64le(&h, s->n_runs);
    hash_u32le(&h, s->n_replays);
    for (uint64_t k = 0; k < SCRIPT_WINDOW; k++) {
        const struct script_entry *w = &s->window[(s->position + k) % SCRIPT_WINDOW];
        hash_u32le(&h, w->id);
        hash_u32le(&h, w->flags);
    }
    hash_final(&h, seed);
    for (int i = 0; i < N_LOGITS; i++) /* exponent 127: values in [1, 2) */
        put_u32(out + 4 * i, 0x3f800000u | (uint32_t)seed[2 * i] << 8 | seed[2 * i + 1]);
}

static void digest_row(struct script_state *s, uint64_t position)
{
    uint8_t logits[N_LOGITS * 4];
    logits_of(s, logits);
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    hash_add(&h, s->digest.d, HASH_BYTES);
    hash_u64le(&h, position);
    hash_add(&h, logits, sizeof logits);
    hash_final(&h, s->digest.d);
    s->digest.n_rows++;
}

void script_begin(struct script_state *s, enum segment_kind kind, enum prefill_mode mode)
{
    s->seg = (struct script_segment){s->position, kind, mode, kind == SEGMENT_INPUT};
    s->digest = (struct seq_digest){0};
    s->n_runs += kind == SEGMENT_GENERATED;
}

void script_append(struct script_state *s, uint32_t id)
{
    uint64_t i = s->position;
    assert(i < s->cap_tokens);
    write_rows(s, i, id);
    s->window[i % SCRIPT_WINDOW] =
        (struct script_entry){id, entry_flags(s->seg.kind, s->seg.mode, i == s->seg.start)};
    s->position = i + 1;
    digest_row(s, i);
}

/* ---- tip ------------------------------------------------------------------------ */

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t read_u64(const uint8_t *p)
{
    return read_u32(p) | (uint64_t)read_u32(p + 4) << 32;
}

/* The check sum tells damage from a tip, it does not authenticate: that is the store's. */
static void tip_sum(const uint8_t *tip, uint8_t out[HASH_TAG_BYTES])
{
    struct hash h;
    hash_init(&h, NULL, HASH_TAG_BYTES);
    hash_add(&h, tip, TIP_BODY_BYTES);
    hash_final(&h, out);
}

void script_export_tip(const struct script_state *s, uint8_t *tip)
{
    uint8_t *p = tip;
    memcpy(p, tip_magic, sizeof tip_magic);
    p += sizeof tip_magic;
    const uint64_t wide[] = {s->position, s->n_runs, s->seg.start};
    for (size_t i = 0; i < 3; i++, p += 8)
        put_u64(p, wide[i]);
    const uint32_t narrow[] = {TIP_VERSION, s->n_replays,
                               (uint32_t)s->seg.kind | (s->seg.open ? 2u : 0u),
                               (uint32_t)s->seg.mode};
    for (size_t i = 0; i < 4; i++, p += 4)
        put_u32(p, narrow[i]);
    for (size_t i = 0; i < SCRIPT_WINDOW; i++, p += 8) {
        put_u32(p, s->window[i].id);
        put_u32(p + 4, s->window[i].flags);
    }
    memcpy(p, s->half, SCRIPT_KV_BYTES);
    tip_sum(tip, tip + TIP_BODY_BYTES);
}

/* Reads the fields of a tip into *t, which is zeroed. */
static enum err read_tip(struct script_state *t, const uint8_t *tip, struct error *e)
{
    uint8_t sum[HASH_TAG_BYTES];
    tip_sum(tip, sum);
    if (memcmp(tip, tip_magic, sizeof tip_magic) ||
        memcmp(sum, tip + TIP_BODY_BYTES, HASH_TAG_BYTES))
        return err_set(e, ERR_FORMAT, "tip: damaged, or not one of a script");
    const uint8_t *p = tip + sizeof tip_magic;
    t->position = read_u64(p);
    t->n_runs = read_u64(p + 8);
    t->seg.start = read_u64(p + 16);
    p += 3 * 8;
    uint32_t version = read_u32(p), kind = read_u32(p + 8), mode = read_u32(p + 12);
    t->n_replays = read_u32(p + 4);
    if (version != TIP_VERSION)
        return err_set(e, ERR_FORMAT, "tip: version %u, want %u", version, TIP_VERSION);
    if (kind > 2 || mode > PREFILL_FULL || t->seg.start > t->position)
        return err_set(e, ERR_FORMAT, "tip: segment kind %u, mode %u, start %llu", kind, mode,
                       (unsigned long long)t->seg.start);
    t->seg.kind = kind & 1 ? SEGMENT_GENERATED : SEGMENT_INPUT;
    t->seg.open = kind & 2;
    t->seg.mode = (enum prefill_mode)mode;
    p += 4 * 4;
    for (size_t i = 0; i < SCRIPT_WINDOW; i++, p += 8)
        t->window[i] = (struct script_entry){read_u32(p), read_u32(p + 4)};
    memcpy(t->half, p, SCRIPT_KV_BYTES);
    return OK;
}

/* What the tip does not hold: the hash over the rows as they stand in the planes. */
static void rehash_rows(struct script_state *s)
{
    memset(s->rows_hash, 0, sizeof s->rows_hash);
    for (uint64_t i = 0; i < s->position; i++)
        hash_rows(s, i);
}

static void keep_planes(struct script_state *t, const struct script_state *s)
{
    t->kv = s->kv;
    t->index = s->index;
    t->cap_tokens = s->cap_tokens;
}

enum err script_import_tip(struct script_state *s, const uint8_t *tip, uint64_t n_tokens,
                           const struct seq_digest *digest, struct error *e)
{
    struct script_state t = {0};
    enum err rc = read_tip(&t, tip, e);
    if (rc)
        return rc;
    if (t.position != n_tokens)
        return err_set(e, ERR_FORMAT, "tip: of position %llu, want %llu",
                       (unsigned long long)t.position, (unsigned long long)n_tokens);
    keep_planes(&t, s);
    t.digest = digest ? *digest : (struct seq_digest){0};
    rehash_rows(&t);
    *s = t;
    return OK;
}

/* ---- from the tape -------------------------------------------------------------- */

static uint32_t count_replays(const struct tape_view *tape, uint64_t n_tokens, bool replay)
{
    uint32_t n = 0;
    bool now = false; /* the mark of this very resume is on the tape already */
    for (size_t i = 0; i < tape->n_marks; i++) {
        n += tape->marks[i].at <= n_tokens;
        now = now || tape->marks[i].at == n_tokens;
    }
    return n + (replay && !now);
}

/* Counters, and the segment that the last of n_tokens belongs to. */
static void read_segments(struct script_state *t, const struct tape_view *tape,
                          uint64_t n_tokens)
{
    for (size_t i = 0; i < tape->n_segments && tape->segments[i].start < n_tokens; i++) {
        const struct segment *g = &tape->segments[i];
        if (!g->len)
            continue;
        bool generated = g->kind == SEGMENT_GENERATED;
        t->seg = (struct script_segment){g->start, g->kind, generated ? PREFILL_CED : g->mode,
                                         !generated && g->start + g->len > n_tokens};
        t->n_runs += generated;
    }
}

uint64_t script_rebuild(const struct script_state *s, const struct tape_view *tape,
                        uint64_t n_tokens, bool replay, struct script_state *out)
{
    struct script_state t = {.position = n_tokens};
    uint64_t from = n_tokens > SCRIPT_WINDOW ? n_tokens - SCRIPT_WINDOW : 0;
    keep_planes(&t, s);
    t.n_replays = count_replays(tape, n_tokens, replay);
    read_segments(&t, tape, n_tokens);
    for (size_t i = 0; i < tape->n_segments; i++) {
        const struct segment *g = &tape->segments[i];
        uint64_t end = g->start + g->len < n_tokens ? g->start + g->len : n_tokens;
        for (uint64_t p = g->start > from ? g->start : from; p < end; p++)
            t.window[p % SCRIPT_WINDOW] = (struct script_entry){
                tape->ids[p], entry_flags(g->kind, g->mode, p == g->start)};
    }
    if (n_tokens % 2)
        make_half(&t, n_tokens - 1);
    rehash_rows(&t);
    *out = t;
    return n_tokens - from;
}
