#include "sessions/strand.h"

#include <stdlib.h>
#include <string.h>

#include "sessions/chunk_check.h"
#include "sessions/schema.h"
#include "sessions/search.h"

#define C STRAND_CHUNK_IDS

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "ids are stored as they lie in memory");

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void strand_path_fini(struct strand_path *p)
{
    free(p->parts);
    memset(p, 0, sizeof *p);
}

enum err strand_read(struct store *st, int64_t id, struct strand_row *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &st->db, "SELECT " STRAND_COLS ", tag FROM strands WHERE id = ?", e);
    if (rc)
        return rc;
    query_int(&q, id);
    bool row;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    if (!row)
        return err_set(e, ERR_CORRUPT, "database: strand %lld is missing", (long long)id);
    if ((rc = row_check(&q, "strands", e)))
        return rc;
    *out = (struct strand_row){
        .id = id,
        .parent = row_int(&q, 1),
        .parent_pos = row_uint(&q, 2),
        .parent_seq = row_uint(&q, 3),
        .length = row_uint(&q, 4),
        .last_seq = row_uint(&q, 5),
        .n_marks = row_uint(&q, 6),
    };
    return OK;
}

enum err strand_write(struct store *st, const struct strand_row *r, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "INSERT OR REPLACE INTO strands(" STRAND_COLS ", tag)"
                             " VALUES(?,?,?,?,?,?,?,?)",
                             e);
    if (rc)
        return rc;
    query_tagged(&q, "strands");
    query_int(&q, r->id);
    query_int(&q, r->parent);
    query_uint(&q, r->parent_pos);
    query_uint(&q, r->parent_seq);
    query_uint(&q, r->length);
    query_uint(&q, r->last_seq);
    query_uint(&q, r->n_marks);
    return query_put(&q, e);
}

enum err strand_new(struct store *st, int64_t parent, uint64_t pos, uint64_t seq,
                    int64_t *id_out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, "SELECT ifnull(max(id), 0) + 1 FROM strands", e);
    bool row = false;
    if (rc || (rc = query_step(&q, &row, e)))
        return rc;
    struct strand_row r = {row_int(&q, 0), parent, pos, seq, pos, seq, 0};
    if ((rc = strand_write(st, &r, e)))
        return rc;
    *id_out = r.id;
    return OK;
}

static enum err push_part(struct strand_path *p, size_t *cap, struct strand_part part,
                          struct error *e)
{
    if (p->n_parts == *cap) {
        size_t n = *cap ? *cap * 2 : 8;
        struct strand_part *grown =
            n > STRAND_MAX_DEPTH * 2u ? NULL : realloc(p->parts, n * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "tape: %zu strands: out of memory", n);
        p->parts = grown;
        *cap = n;
    }
    p->parts[p->n_parts++] = part;
    return OK;
}

static void reverse(struct strand_path *p)
{
    for (size_t i = 0, j = p->n_parts; i + 1 < j; i++) {
        struct strand_part tmp = p->parts[i];
        p->parts[i] = p->parts[--j];
        p->parts[j] = tmp;
    }
}

enum err strand_path_load(struct store *st, int64_t strand, struct strand_path *out,
                          struct error *e)
{
    AUTO(strand_path) struct strand_path p = {0};
    size_t cap = 0;
    uint64_t pos = UINT64_MAX, seq = UINT64_MAX; /* what the child keeps of this strand */
    for (int64_t id = strand; id;) {
        struct strand_row r;
        enum err rc = strand_read(st, id, &r, e);
        if (rc)
            return rc;
        /* A parent is always older; anything else would be a loop. */
        if (r.parent >= id || r.length < r.parent_pos || r.last_seq < r.parent_seq)
            return err_set(e, ERR_CORRUPT, "database: strand %lld makes no sense",
                           (long long)id);
        struct strand_part part = {
            .id = id,
            .own = r.parent_pos,
            .from = min_u64(r.parent_pos, pos),
            .to = min_u64(r.length, pos),
            .seq_from = min_u64(r.parent_seq, seq),
            .seq_to = min_u64(r.last_seq, seq),
            .n_marks = r.n_marks,
        };
        if ((rc = push_part(&p, &cap, part, e)))
            return rc;
        if (id == strand) {
            p.length = r.length;
            p.last_seq = r.last_seq;
        } else if (part.to != pos || part.seq_to != seq) {
            return err_set(e, ERR_CORRUPT, "database: strand %lld is shorter than its forks",
                           (long long)id);
        }
        pos = part.from;
        seq = part.seq_from;
        id = r.parent;
    }
    if (pos != 0 || seq != 0)
        return err_set(e, ERR_CORRUPT, "database: strand %lld has no beginning",
                       (long long)strand);
    reverse(&p);
    *out = p;
    memset(&p, 0, sizeof p);
    return OK;
}

/* ---- token ids --------------------------------------------------------------------------- */

/* Chunk k of a strand: *ids is borrowed from q, from position *start on. */
static enum err read_chunk(struct query *q, struct store *st, int64_t strand, uint64_t k,
                           const uint8_t **ids, size_t *n, struct error *e)
{
    enum err rc = query_init(
        q, &st->db, "SELECT " TAPE_COLS ", tag FROM tape WHERE strand = ? AND chunk = ?", e);
    if (rc)
        return rc;
    query_int(q, strand);
    query_uint(q, k);
    bool row;
    if ((rc = query_step(q, &row, e)))
        return rc;
    if (!row)
        return err_set(e, ERR_CORRUPT, "database: tape chunk %lld/%llu is missing",
                       (long long)strand, (unsigned long long)k);
    if ((rc = row_check(q, "tape", e)))
        return rc;
    size_t n_bytes;
    *ids = row_blob(q, 2, &n_bytes);
    *n = n_bytes / 4;
    return OK;
}

static enum err take_chunk(struct store *st, const struct strand_part *part, uint64_t from,
                           uint64_t to, uint32_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    const uint8_t *ids = NULL;
    size_t n = 0;
    uint64_t start = max_u64(from / C * C, part->own);
    enum err rc = read_chunk(&q, st, part->id, from / C, &ids, &n, e);
    if (rc)
        return rc;
    if (start + n < to)
        return err_set(e, ERR_CORRUPT, "database: tape chunk %lld/%llu is too short",
                       (long long)part->id, (unsigned long long)(from / C));
    memcpy(out, ids + (from - start) * 4, (size_t)(to - from) * 4);
    return OK;
}

/* [from, to) lies in one chunk, whose row cannot be used as it is. */
static enum err repair_chunk(struct store *st, const struct strand_part *part, uint64_t from,
                             uint64_t to, uint32_t *out, struct error *e)
{
    enum err rc = strand_repair_chunk(st, part->id, from / C, e);
    return rc ? rc : take_chunk(st, part, from, to, out, e);
}

static enum err read_part_chunk(struct store *st, const struct strand_part *part, uint64_t from,
                                uint64_t to, uint32_t *out, struct error *e)
{
    enum err rc = take_chunk(st, part, from, to, out, e);
    return rc == ERR_CORRUPT ? repair_chunk(st, part, from, to, out, e) : rc;
}

/* The row that q stands on is chunk *at / C: its ids up to `to`, and *at moves behind them. The
 * tag of a row that is wanted whole may be checked later. */
static enum err take_row(struct query *q, const struct strand_part *part, uint64_t *at,
                         uint64_t to, uint32_t *out, struct chunk_checks *later,
                         struct error *e)
{
    uint64_t k = *at / C, start = max_u64(k * C, part->own), end = min_u64(to, (k + 1) * C);
    size_t n_bytes;
    const uint8_t *ids = row_blob(q, 2, &n_bytes);
    bool fits = row_uint(q, 1) == k && start + n_bytes / 4 >= end;
    bool whole = fits && *at == start && n_bytes == (size_t)(end - start) * 4;
    if (fits)
        memcpy(out, ids + (*at - start) * 4, (size_t)(end - *at) * 4);
    if (!whole || !chunk_checks_put(later, q, out)) {
        enum err rc = row_check(q, "tape", e);
        if (rc)
            return rc;
    }
    if (!fits)
        return err_set(e, ERR_CORRUPT, "database: tape chunk %lld/%llu is missing or too short",
                       (long long)part->id, (unsigned long long)k);
    *at = end;
    return OK;
}

/* Ids of [*at, to) in one walk over the rows; one query each took as long as the hashing.
 * ERR_CORRUPT: at the chunk of *at. */
static enum err walk_rows(struct store *st, const struct strand_part *part, uint64_t *at,
                          uint64_t to, uint32_t *out, struct chunk_checks *later,
                          struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " TAPE_COLS ", tag FROM tape"
                             " WHERE strand = ? AND chunk >= ? ORDER BY chunk",
                             e);
    if (rc)
        return rc;
    query_int(&q, part->id);
    query_uint(&q, *at / C);
    for (uint64_t from = *at; *at < to && !rc;) {
        bool row;
        if ((rc = query_step(&q, &row, e)))
            return rc;
        if (!row)
            return err_set(e, ERR_CORRUPT, "database: tape chunk %lld/%llu is missing",
                           (long long)part->id, (unsigned long long)(*at / C));
        rc = take_row(&q, part, at, to, out + (*at - from), later, e);
    }
    return rc;
}

/* The same, and what was put off is checked, and repaired where it can be. ERR_CORRUPT: the
 * chunk of *at is damaged, and everything before it is sound. */
static enum err read_run(struct store *st, const struct strand_part *part, uint64_t *at,
                         uint64_t to, uint32_t *out, struct error *e)
{
    AUTO(chunk_checks) struct chunk_checks later = {0};
    uint64_t from = *at, k;
    enum err rc = chunk_checks_init(&later, st, (size_t)((to - from) / C + 2), e);
    if (rc)
        return rc;
    rc = walk_rows(st, part, at, to, out, &later, e);
    chunk_checks_end(&later);
    while (chunk_checks_bad(&later, &k)) {
        uint64_t start = max_u64(k * C, part->own), end = min_u64(to, (k + 1) * C);
        enum err bad = repair_chunk(st, part, start, end, out + (start - from), e);
        if (!bad)
            continue;
        *at = start;
        return bad;
    }
    return rc;
}

enum err strand_read_ids(struct store *st, const struct strand_path *p, uint64_t from,
                         uint64_t to, uint32_t *out, uint64_t *n_good, struct error *e)
{
    uint64_t at = from;
    enum err rc = OK;
    for (size_t i = 0; i < p->n_parts && !rc; i++) {
        const struct strand_part *part = &p->parts[i];
        uint64_t end = min_u64(to, part->to);
        while (at < end && at >= part->from && !rc) {
            rc = read_run(st, part, &at, end, out + (at - from), e);
            if (rc != ERR_CORRUPT)
                continue;
            uint64_t next = min_u64(end, (at / C + 1) * C);
            if (!(rc = repair_chunk(st, part, at, next, out + (at - from), e)))
                at = next;
        }
    }
    if (n_good)
        *n_good = at - from;
    if (!rc && at < to)
        rc = err_set(e, ERR_INVAL, "tape positions %llu to %llu: the tape has %llu",
                     (unsigned long long)from, (unsigned long long)to,
                     (unsigned long long)p->length);
    return rc;
}

enum err strand_write_chunk(struct store *st, int64_t strand, uint64_t k, const uint32_t *ids,
                            size_t n, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db, "INSERT OR REPLACE INTO tape(" TAPE_COLS ", tag) VALUES(?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "tape");
    query_int(&q, strand);
    query_uint(&q, k);
    query_blob(&q, ids, n * 4);
    return query_put(&q, e);
}

/* Cuts or extends the chunk that position `at` lies in to [start, at) plus n more ids. */
static enum err extend_chunk(struct store *st, const struct strand_row *r, uint64_t at,
                             const uint32_t *ids, size_t n, struct error *e)
{
    uint32_t chunk[C];
    uint64_t start = max_u64(at / C * C, r->parent_pos);
    size_t have = (size_t)(at - start);
    if (have) {
        struct strand_part part = {.id = r->id, .own = r->parent_pos};
        enum err rc = read_part_chunk(st, &part, start, at, chunk, e);
        if (rc)
            return rc;
    }
    if (n)
        memcpy(chunk + have, ids, n * 4);
    return strand_write_chunk(st, r->id, at / C, chunk, have + n, e);
}

enum err strand_append(struct store *st, struct strand_row *r, const uint32_t *ids, uint64_t n,
                       struct error *e)
{
    for (uint64_t done = 0; done < n;) {
        uint64_t at = r->length + done;
        size_t part = (size_t)min_u64(n - done, C - at % C);
        enum err rc = extend_chunk(st, r, at, ids + done, part, e);
        if (rc)
            return rc;
        done += part;
    }
    r->length += n;
    return OK;
}

/* ---- letting go -------------------------------------------------------------------------- */

/* One statement with a strand and a bound. */
static enum err drop_rows(struct store *st, const char *sql, int64_t id, uint64_t bound,
                          struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, id);
    query_uint(&q, bound);
    return query_run(&q, e);
}

static enum err drop_behind(struct store *st, int64_t id, uint64_t pos, uint64_t seq,
                            struct error *e)
{
    enum err rc;
    if ((rc = drop_rows(st, "DELETE FROM segments WHERE strand = ? AND start >= ?", id, pos,
                        e)) ||
        (rc = drop_rows(st, "DELETE FROM marks WHERE strand = ? AND at >= ?", id, pos, e)) ||
        (rc = search_drop(st, id, seq, e)) ||
        (rc = drop_rows(st, "DELETE FROM events WHERE strand = ? AND seq > ?", id, seq, e)))
        return rc;
    return drop_rows(st, "DELETE FROM tape WHERE strand = ? AND chunk >= ?", id,
                     (pos + C - 1) / C, e);
}

enum err strand_count_marks(struct store *st, int64_t id, uint64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, "SELECT count(*) FROM marks WHERE strand = ?", e);
    if (rc)
        return rc;
    query_int(&q, id);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *out = row_uint(&q, 0);
    return rc;
}

/* Keeps positions before pos and seqs up to seq. What a compacted session needs may end before
 * the strand's own tokens: then it needs less of the parent, too. */
static enum err trim(struct store *st, struct strand_row *r, uint64_t pos, uint64_t seq,
                     struct error *e)
{
    enum err rc = drop_behind(st, r->id, pos > r->parent_pos ? pos : 0, seq, e);
    if (!rc)
        rc = search_uncover(st, r->id, e);
    if (!rc && pos % C && pos > r->parent_pos && pos < r->length)
        rc = extend_chunk(st, r, pos, NULL, 0, e);
    if (rc || (rc = strand_count_marks(st, r->id, &r->n_marks, e)))
        return rc;
    r->length = pos;
    r->last_seq = seq;
    r->parent_pos = min_u64(r->parent_pos, pos);
    r->parent_seq = min_u64(r->parent_seq, seq);
    return strand_write(st, r, e);
}

/* What others still hold of a strand: sessions hold it whole, forks up to where they left. */
static enum err holders(struct store *st, int64_t id, bool *whole, uint64_t *pos, uint64_t *seq,
                        struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT EXISTS(SELECT 1 FROM sessions WHERE strand = ?1),"
                             " count(*), ifnull(max(parent_pos), 0), ifnull(max(parent_seq), 0)"
                             " FROM strands WHERE parent = ?1",
                             e);
    if (rc)
        return rc;
    query_int(&q, id);
    bool row = false;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    *whole = row_int(&q, 0) != 0;
    bool forked = row_int(&q, 1) > 0;
    *pos = forked ? row_uint(&q, 2) : 0;
    *seq = forked ? row_uint(&q, 3) : 0;
    if (!forked)
        *pos = UINT64_MAX; /* nobody */
    return OK;
}

static enum err drop_strand(struct store *st, int64_t id, struct error *e)
{
    enum err rc = drop_behind(st, id, 0, 0, e);
    if (!rc)
        rc = drop_rows(st, "DELETE FROM strands WHERE id = ? AND id > ?", id, 0, e);
    return rc;
}

enum err strand_release(struct store *st, int64_t id, struct error *e)
{
    while (id) {
        struct strand_row r;
        bool whole;
        uint64_t pos, seq;
        enum err rc = holders(st, id, &whole, &pos, &seq, e);
        if (rc)
            return rc;
        if (whole)
            return OK;
        if ((rc = strand_read(st, id, &r, e)))
            return rc;
        bool needed = pos != UINT64_MAX;
        if (needed && pos >= r.length && seq >= r.last_seq)
            return OK;
        bool needs_parent = needed && pos >= r.parent_pos && seq >= r.parent_seq;
        rc = needed ? trim(st, &r, pos, seq, e) : drop_strand(st, id, e);
        if (rc || needs_parent)
            return rc;
        id = r.parent;
    }
    return OK;
}
