#include "sessions/hold.h"

#include <math.h>

#include "sessions/schema.h"
#include "sessions/session_internal.h"

#define MILLIONTHS 1e6

enum err hold_read(struct store *st, int64_t session, struct hold *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &st->db, "SELECT " HOLD_COLS ", tag FROM holds WHERE session = ?", e);
    if (rc)
        return rc;
    query_int(&q, session);
    bool row;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    *out = (struct hold){0};
    if (row && row_check(&q, "holds", NULL) == OK)
        *out = (struct hold){row_int(&q, 1) != 0, (double)row_uint(&q, 2) / MILLIONTHS,
                             row_uint(&q, 3)};
    return OK;
}

static enum err hold_write(struct store *st, int64_t session, const struct hold *h,
                           struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db, "INSERT OR REPLACE INTO holds(" HOLD_COLS ", tag) VALUES(?,?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "holds");
    query_int(&q, session);
    query_int(&q, h->pinned);
    query_uint(&q, (uint64_t)(h->uses * MILLIONTHS));
    query_uint(&q, h->used_ms);
    return query_put(&q, e);
}

double hold_weight(const struct hold *h, uint64_t now_ms)
{
    double age = now_ms > h->used_ms ? (double)(now_ms - h->used_ms) : 0;
    return h->uses * exp2(-age / (double)HOLD_HALF_LIFE_MS);
}

enum err hold_touch(struct store *st, int64_t session, struct error *e)
{
    struct hold h;
    enum err rc = hold_read(st, session, &h, e);
    if (rc)
        return rc;
    uint64_t now = store_now_ms(st);
    h.uses = hold_weight(&h, now) + 1;
    h.used_ms = now;
    return hold_write(st, session, &h, e);
}

enum err hold_pin(struct store *st, const char *session, bool pinned, struct error *e)
{
    struct session_row r;
    struct hold h;
    enum err rc = session_row_need(st, session, &r, e);
    if (rc || (rc = hold_read(st, r.num, &h, e)))
        return rc;
    h.pinned = pinned;
    return hold_write(st, r.num, &h, e);
}
