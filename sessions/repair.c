/* A tape chunk whose row is damaged or gone is made again from the token ids that lie beside
 * the rows of model state: tags say that those are what the tape once held. */
#include <stdlib.h>
#include <string.h>

#include "sessions/head_internal.h"
#include "sessions/strand.h"

#define MAX_SESSIONS 32

/* A chunk that is wanted: ids of [start, end). */
struct repair {
    struct store *st;
    int64_t strand;
    uint64_t start, end;
    uint32_t ids[STRAND_CHUNK_IDS];
};

static enum err copy_piece(struct repair *r, const struct chain_piece *p, struct error *e)
{
    uint64_t from = p->first > r->start ? p->first : r->start;
    uint64_t to = p->used < r->end ? p->used : r->end;
    if (from >= to)
        return OK;
    struct head_want_extent want = head_want_of(p);
    AUTO(head_extent) struct head_extent h = {0};
    enum err rc = head_extent_open(r->st, &want, &h, e);
    if (rc)
        return rc;
    const struct extent_region *ids = &h.x.regions[0];
    if (ids->what != REGION_IDS || ids->bytes != (p->last - p->first) * 4)
        return err_set(e, ERR_CORRUPT, "extent without token ids");
    if ((rc = head_extent_read(r->st, &want, &h, ids, e)))
        return rc;
    memcpy(r->ids + (from - r->start),
           (const uint8_t *)r->st->scratch.p + (from - p->first) * 4, (size_t)(to - from) * 4);
    return OK;
}

/* *found: some head of the session covers the chunk, and its ids verified. */
static enum err try_session(struct repair *r, int64_t num, bool *found, struct error *e)
{
    for (int age = 0; age < 2 && !*found; age++) {
        struct head_row head;
        bool has;
        AUTO(head_chain) struct head_chain c = {0};
        enum err rc = head_row_read(r->st, num, age, &head, &has, e);
        if (rc)
            return rc;
        if (!has || head.position < r->end)
            continue;
        rc = chain_load(r->st, head.layout, head.block, head.tail, r->end, &c, e);
        if (rc)
            return rc;
        *found = c.position == r->end;
        for (size_t i = 0; i < c.n_pieces && *found; i++) {
            rc = copy_piece(r, &c.pieces[i], e);
            if (rc && !head_is_damage(rc))
                return rc;
            *found = rc == OK;
        }
    }
    return OK;
}

/* Whether the tape of this strand holds the whole chunk. */
static enum err holds_chunk(struct repair *r, int64_t strand, bool *holds, struct error *e)
{
    AUTO(strand_path) struct strand_path p = {0};
    enum err rc = strand_path_load(r->st, strand, &p, e);
    *holds = false;
    for (size_t i = 0; i < p.n_parts && !rc; i++)
        if (p.parts[i].id == r->strand && p.parts[i].to >= r->end)
            *holds = true;
    return rc == ERR_CORRUPT ? OK : rc;
}

/* Sessions whose tape runs through the strand. */
static enum err list_sessions(struct repair *r, int64_t *nums, int64_t *strands, size_t *n,
                              struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &r->st->db,
                             "WITH RECURSIVE d(id) AS (SELECT ?1 UNION ALL"
                             " SELECT s.id FROM strands s JOIN d ON s.parent = d.id)"
                             " SELECT s.num, s.strand FROM sessions s JOIN d ON s.strand = d.id"
                             " ORDER BY s.strand LIMIT ?2",
                             e);
    if (rc)
        return rc;
    query_int(&q, r->strand);
    query_int(&q, MAX_SESSIONS);
    *n = 0;
    for (bool row = true; *n < MAX_SESSIONS;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        nums[*n] = row_int(&q, 0);
        strands[(*n)++] = row_int(&q, 1);
    }
    return OK;
}

enum err strand_repair_chunk(struct store *st, int64_t strand, uint64_t chunk, struct error *e)
{
    struct strand_row row;
    enum err rc = strand_read(st, strand, &row, e);
    if (rc)
        return rc;
    uint64_t grid = chunk * STRAND_CHUNK_IDS;
    struct repair r = {.st = st, .strand = strand, .start = grid, .end = row.length};
    if (r.start < row.parent_pos)
        r.start = row.parent_pos;
    if (r.end > grid + STRAND_CHUNK_IDS)
        r.end = grid + STRAND_CHUNK_IDS;
    int64_t nums[MAX_SESSIONS], strands[MAX_SESSIONS];
    size_t n = 0;
    bool found = false;
    if (r.start < r.end && (rc = list_sessions(&r, nums, strands, &n, e)))
        return rc;
    for (size_t i = 0; i < n && !found; i++) {
        bool holds;
        if ((rc = holds_chunk(&r, strands[i], &holds, e)) ||
            (holds && (rc = try_session(&r, nums[i], &found, e))))
            return rc;
    }
    if (!found)
        return err_set(e, ERR_CORRUPT,
                       "tape chunk %lld/%llu is damaged, and no state has its token ids",
                       (long long)strand, (unsigned long long)chunk);
    st->seen.chunks_rebuilt++;
    return strand_write_chunk(st, strand, chunk, r.ids, (size_t)(r.end - r.start), e);
}
