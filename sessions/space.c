#include "sessions/space.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "sessions/forest.h"
#include "sessions/hold.h"
#include "sessions/pack.h"
#include "sessions/session_internal.h"
#include "sessions/space_internal.h"

#define BLOCK_BYTES 512u /* unit of st_blocks */

/* ---- figures ----------------------------------------------------------------------------- */

static enum err read_live(struct store *st, uint64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT (SELECT ifnull(sum(pages), 0) FROM blocks) +"
                             " (SELECT ifnull(sum(pages), 0) FROM tails) +"
                             " (SELECT ifnull(sum(pages), 0) FROM tips)",
                             e);
    bool row = false;
    if (!rc && !(rc = query_step(&q, &row, e)))
        *out = row_uint(&q, 0) * EXTENT_PAGE;
    return rc;
}

/* What the file system holds for all packs that have a row. A file that is gone holds nothing.
 */
static enum err read_blocks(struct store *st, uint64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, "SELECT id FROM packs", e);
    uint64_t n = 0;
    for (bool row = true; !rc;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            break;
        char path[FS_PATH_BYTES];
        struct stat sb;
        if (!(rc = pack_path(st, row_int(&q, 0), path, sizeof path, e)) && !stat(path, &sb))
            n += (uint64_t)sb.st_blocks * BLOCK_BYTES;
    }
    if (!rc)
        *out = n;
    return rc;
}

enum err space_read(struct store *st, struct space *out, struct error *e)
{
    struct space s = {.quota = st->quota_bytes};
    enum err rc = read_live(st, &s.live, e);
    if (!rc && !st->no_holes)
        rc = read_blocks(st, &s.used, e);
    if (rc)
        return rc;
    if (st->no_holes)
        s.used = s.live;
    st->used_bytes = s.used;
    *out = s;
    return OK;
}

bool space_is_short(const struct store *st)
{
    return st->quota_bytes && st->used_bytes > st->quota_bytes / 100 * SPACE_HIGH;
}

/* ---- admission --------------------------------------------------------------------------- */

enum err space_admit(struct store *st, uint64_t bytes, uint64_t all,
                     const struct evict_keep *keep, struct error *e)
{
    struct space s;
    if (!st->quota_bytes || st->used_bytes + bytes <= st->quota_bytes) {
        st->used_bytes += bytes;
        return OK;
    }
    /* The figure is as of the last look; and what was let go of may not be punched yet. */
    pack_flush_freed(st);
    enum err rc = space_read(st, &s, e);
    if (!rc && s.used + all > s.quota)
        rc = all > s.quota
                 ? err_set(e, ERR_LIMIT, "quota of %llu bytes: this state alone takes %llu",
                           (unsigned long long)s.quota, (unsigned long long)all)
                 : evict_room(st, s.used + all - s.quota, keep, e);
    if (!rc && (rc = space_read(st, &s, e)) == OK && s.used + bytes > s.quota)
        rc = err_set(e, ERR_LIMIT, "quota of %llu bytes: %llu are in use and stay",
                     (unsigned long long)s.quota, (unsigned long long)s.used);
    if (!rc)
        st->used_bytes += bytes;
    return rc;
}

/* ---- per session ------------------------------------------------------------------------- */

/* Bytes of what one session holds. Its nodes are walked again: a picture has no lists. */
static void sum_up(const struct forest *f, int32_t at, uint8_t *seen, struct space_session *s)
{
    for (; at >= 0 && !seen[at]; at = f->nodes[at].parent) {
        const struct node *x = &f->nodes[at];
        seen[at] = 1;
        s->held_bytes += node_bytes(x);
        s->own_bytes += x->n_holders == 1 ? node_bytes(x) : 0;
    }
}

static void unsee(const struct forest *f, int32_t at, uint8_t *seen)
{
    for (; at >= 0 && seen[at]; at = f->nodes[at].parent)
        seen[at] = 0;
}

static int32_t end_of(const struct forest *f, const struct head_row *h)
{
    int32_t at = h->tail ? forest_find(f, CATALOG_TAILS, h->tail) : -1;
    return at < 0 && h->block ? forest_find(f, CATALOG_BLOCKS, h->block) : at;
}

static int32_t tip_of(const struct forest *f, const struct head_row *h)
{
    return h->tip ? forest_find(f, CATALOG_TIPS, h->tip) : -1;
}

/* Tokens that the chain of the newest head covers. */
static enum err covered(struct store *st, const struct head_row *h, uint64_t *out,
                        struct error *e)
{
    AUTO(head_chain) struct head_chain c = {0};
    enum err rc = chain_load(st, h->layout, h->block, h->tail, h->position, &c, e);
    *out = c.position;
    return rc;
}

static enum err fill(struct store *st, const struct forest *f, int64_t num, uint8_t *seen,
                     struct space_session *s, struct error *e)
{
    struct hold hold;
    struct head_row heads[2];
    bool found[2];
    enum err rc = hold_read(st, num, &hold, e);
    for (int age = 0; age < 2 && !rc; age++)
        rc = head_row_read(st, num, age, &heads[age], &found[age], e);
    if (rc || (found[0] && (rc = covered(st, &heads[0], &s->n_tokens, e))))
        return rc;
    s->pinned = hold.pinned;
    s->weight = hold_weight(&hold, f->now_ms);
    for (int age = 0; age < 2; age++)
        if (found[age]) {
            sum_up(f, tip_of(f, &heads[age]), seen, s);
            sum_up(f, end_of(f, &heads[age]), seen, s);
        }
    for (int age = 0; age < 2; age++)
        if (found[age]) {
            unsee(f, tip_of(f, &heads[age]), seen);
            unsee(f, end_of(f, &heads[age]), seen);
        }
    return OK;
}

enum err space_sessions(struct store *st, space_session_fn *fn, void *user, struct error *e)
{
    AUTO(forest) struct forest f;
    forest_init(&f, st);
    enum err rc = forest_load(&f, e);
    if (rc)
        return rc;
    AUTO_FREE uint8_t *seen = calloc(f.n + 1, 1);
    AUTO(query) struct query q = {0};
    if (!seen)
        return err_set(e, ERR_NOMEM, "space of sessions: out of memory");
    rc = query_init(&q, &st->db,
                    "SELECT num, id, name FROM sessions WHERE num IN"
                    " (SELECT session FROM heads) ORDER BY num",
                    e);
    for (bool row = true; !rc;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        struct space_session s = {0};
        snprintf(s.id, sizeof s.id, "%s", row_text(&q, 1) ? row_text(&q, 1) : "");
        snprintf(s.name, sizeof s.name, "%s", row_text(&q, 2) ? row_text(&q, 2) : "");
        rc = fill(st, &f, row_int(&q, 0), seen, &s, e);
        if (!rc && !fn(user, &s))
            return OK;
    }
    return rc;
}
