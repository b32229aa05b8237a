/* Reading the tape back: every row's tag is checked, and gaps in what should have none. */
#include <stdlib.h>
#include <string.h>

#include "sessions/schema.h"
#include "sessions/session_internal.h"
#include "sessions/strand.h"
#include "sessions/tape.h"
#include "sessions/tape_internal.h"

/* ---- rows -------------------------------------------------------------------------------- */

enum err tape_take_segment(struct query *q, struct tape_segment *out, struct error *e)
{
    enum err rc = row_check(q, "segments", e);
    if (rc)
        return rc;
    struct tape_segment s = {
        .seg = {row_uint(q, 1), row_uint(q, 2), (enum segment_kind)row_int(q, 3),
                (enum prefill_mode)row_int(q, 4)},
        .open = row_int(q, 5) != 0,
        .n_rows = row_uint(q, 7),
    };
    size_t n;
    s.has_digest = row_blob(q, 6, &n) != NULL;
    if (s.has_digest && (rc = row_bytes(q, 6, s.digest, sizeof s.digest, e)))
        return rc;
    *out = s;
    return OK;
}

enum err tape_take_event(struct query *q, struct tape_event *out, struct error *e)
{
    enum err rc = row_check(q, "events", e);
    if (rc)
        return rc;
    *out = (struct tape_event){
        .seq = row_uint(q, 1),
        .t_ms = row_uint(q, 2),
        .position = row_uint(q, 3),
        .turn = row_text(q, 4),
        .type = row_text(q, 5),
        .item = row_text(q, 6),
        .kind = row_text(q, 7),
        .json = row_text(q, 8),
    };
    out->bytes = row_blob(q, 9, &out->n_bytes);
    return OK;
}

enum err tape_take_call(struct query *q, struct tape_call *out, int64_t *ord, struct error *e)
{
    enum call_status status;
    enum err rc = row_check(q, "calls", e);
    if (rc || (rc = call_status_parse(row_text(q, 9), &status, e)))
        return rc;
    *ord = row_int(q, 2);
    *out = (struct tape_call){
        .id = row_text(q, 1),
        .turn = row_text(q, 3),
        .item = row_text(q, 4),
        .name = row_text(q, 5),
        .arguments = row_text(q, 6),
        .step = (uint32_t)row_int(q, 7),
        .index = (uint32_t)row_int(q, 8),
        .status = status,
        .is_error = row_int(q, 10) != 0,
        .ingested = row_int(q, 11) != 0,
        .spill = row_text(q, 13),
        .spill_bytes = row_uint(q, 14),
        .created_ms = row_uint(q, 15),
        .ended_ms = row_uint(q, 16),
    };
    out->result = row_blob(q, 12, &out->n_result);
    return OK;
}

enum err tape_take_turn(struct query *q, struct tape_turn *out, struct turn_extra *x,
                        struct error *e)
{
    enum err rc = row_check(q, "turns", e);
    if (rc)
        return rc;
    *x = (struct turn_extra){row_int(q, 2), row_uint(q, 12)};
    *out = (struct tape_turn){
        .id = row_text(q, 1),
        .client_message = row_text(q, 3),
        .forced_next = row_uint(q, 4),
        .step = (uint32_t)row_int(q, 5),
        .state = row_text(q, 6),
        .reason = row_text(q, 7),
        .ledger = row_text(q, 8),
        .finished = row_int(q, 9) != 0,
        .first_seq = row_uint(q, 10),
        .created_ms = row_uint(q, 11),
    };
    return OK;
}

enum err tape_find_turn(struct query *q, struct store *st, int64_t session, const char *id,
                        bool *found, struct tape_turn *out, struct turn_extra *x,
                        struct error *e)
{
    enum err rc = query_init(
        q, &st->db, "SELECT " TURN_COLS ", tag FROM turns WHERE session = ? AND id = ?", e);
    if (rc)
        return rc;
    query_int(q, session);
    query_text(q, id);
    if ((rc = query_step(q, found, e)) || !*found)
        return rc;
    return tape_take_turn(q, out, x, e);
}

/* ---- path of a session ------------------------------------------------------------------- */

enum err tape_path_of(struct store *st, const char *session, struct strand_path *out,
                      struct error *e)
{
    struct session_row row;
    enum err rc = session_row_need(st, session, &row, e);
    return rc ? rc : strand_path_load(st, row.strand, out, e);
}

/* ---- events ------------------------------------------------------------------------------ */

/* Events of one part with seq > after; *next is the seq that must come next. */
static enum err part_events(struct store *st, const struct strand_part *part, uint64_t after,
                            uint64_t *left, bool *more, tape_event_fn *fn, void *user,
                            struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " EVENT_COLS ", tag FROM events"
                             " WHERE strand = ? AND seq > ? AND seq <= ? ORDER BY seq",
                             e);
    if (rc)
        return rc;
    uint64_t next = (after > part->seq_from ? after : part->seq_from) + 1;
    query_int(&q, part->id);
    query_uint(&q, next - 1);
    query_uint(&q, part->seq_to);
    for (; next <= part->seq_to && *left && *more; next++, (*left)--) {
        bool row;
        struct tape_event ev;
        if ((rc = query_step(&q, &row, e)))
            return rc;
        if (!row || row_uint(&q, 1) != next)
            return err_set(e, ERR_CORRUPT, "database: event %llu is missing",
                           (unsigned long long)next);
        if ((rc = tape_take_event(&q, &ev, e)))
            return rc;
        *more = fn(user, &ev);
    }
    return OK;
}

enum err tape_path_events(struct store *st, const struct strand_path *p, uint64_t after,
                          uint64_t limit, tape_event_fn *fn, void *user, struct error *e)
{
    uint64_t left = limit ? limit : UINT64_MAX;
    bool more = true;
    enum err rc = OK;
    for (size_t i = 0; i < p->n_parts && !rc && left && more; i++)
        if (p->parts[i].seq_to > after)
            rc = part_events(st, &p->parts[i], after, &left, &more, fn, user, e);
    return rc;
}

enum err tape_events(struct store *st, const char *session, uint64_t after_seq, uint64_t limit,
                     tape_event_fn *fn, void *user, struct error *e)
{
    AUTO(strand_path) struct strand_path p = {0};
    enum err rc = tape_path_of(st, session, &p, e);
    if (!rc)
        rc = tape_path_events(st, &p, after_seq, limit, fn, user, e);
    return session_note(st, session, rc);
}

static bool keep_position(void *user, const struct tape_event *ev)
{
    *(uint64_t *)user = ev->position;
    return false;
}

enum err tape_position_of(struct store *st, const char *session, uint64_t seq, uint64_t *out,
                          struct error *e)
{
    AUTO(strand_path) struct strand_path p = {0};
    enum err rc = tape_path_of(st, session, &p, e);
    if (!rc && seq > p.last_seq)
        return err_set(e, ERR_NOTFOUND, "session %s has no event %llu, its last is %llu",
                       session, (unsigned long long)seq, (unsigned long long)p.last_seq);
    uint64_t position = p.length;
    if (!rc && seq)
        rc = tape_path_events(st, &p, seq - 1, 1, keep_position, &position, e);
    if (!rc)
        *out = position;
    return session_note(st, session, rc);
}

/* ---- items ------------------------------------------------------------------------------- */

/* One event of an item: where its newest version stands is the last of its seqs. */
struct item_ref {
    char item[TAPE_ID_CAP];
    uint64_t first, last;
};

struct item_list {
    struct item_ref *refs;
    size_t n, cap;
    bool no_memory;
};

static void item_list_fini(struct item_list *l)
{
    free(l->refs);
}

static bool add_ref(void *user, const struct tape_event *ev)
{
    struct item_list *l = user;
    if (!ev->item)
        return true;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct item_ref *grown = realloc(l->refs, cap * sizeof *grown);
        if (!grown) {
            l->no_memory = true;
            return false;
        }
        l->refs = grown;
        l->cap = cap;
    }
    struct item_ref *r = &l->refs[l->n++];
    snprintf(r->item, sizeof r->item, "%s", ev->item);
    r->first = r->last = ev->seq;
    return true;
}

static int by_item(const void *a, const void *b)
{
    const struct item_ref *x = a, *y = b;
    int c = strcmp(x->item, y->item);
    return c ? c : (x->first > y->first) - (x->first < y->first);
}

static int by_first(const void *a, const void *b)
{
    const struct item_ref *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Leaves one ref for each item, in order of first appearance. */
static void collapse(struct item_list *l)
{
    if (l->n == 0)
        return;
    qsort(l->refs, l->n, sizeof *l->refs, by_item);
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (n && strcmp(l->refs[n - 1].item, l->refs[i].item) == 0)
            l->refs[n - 1].last = l->refs[i].last;
        else
            l->refs[n++] = l->refs[i];
    }
    l->n = n;
    qsort(l->refs, l->n, sizeof *l->refs, by_first);
}

struct item_call {
    tape_event_fn *fn;
    void *user;
    bool more;
};

static bool hand_over(void *user, const struct tape_event *ev)
{
    struct item_call *c = user;
    c->more = c->fn(c->user, ev);
    return c->more;
}

enum err tape_items(struct store *st, const char *session, tape_event_fn *fn, void *user,
                    struct error *e)
{
    AUTO(strand_path) struct strand_path p = {0};
    AUTO(item_list) struct item_list l = {0};
    enum err rc = tape_path_of(st, session, &p, e);
    if (rc)
        return session_note(st, session, rc);
    /* Every event's tag is checked: a damaged newer version must not let an older one show. */
    enum err scan = tape_path_events(st, &p, 0, 0, add_ref, &l, e);
    if (l.no_memory)
        return err_set(e, ERR_NOMEM, "items: %zu events: out of memory", l.n);
    if (scan && scan != ERR_CORRUPT)
        return scan;
    collapse(&l);
    struct item_call c = {fn, user, true};
    for (size_t i = 0; i < l.n && c.more; i++)
        if ((rc = tape_path_events(st, &p, l.refs[i].last - 1, 1, hand_over, &c, e)))
            return session_note(st, session, rc);
    return session_note(st, session, scan);
}

/* ---- counts ------------------------------------------------------------------------------ */

/* A row whose key was damaged is not found any more: only its absence shows. */
static enum err check_count(struct store *st, const char *sql, int64_t key, uint64_t want,
                            uint64_t want_open, const char *what, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, key);
    bool row = false;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    if (row_uint(&q, 0) != want || row_uint(&q, 1) != want_open)
        return err_set(e, ERR_CORRUPT, "database: %llu %s instead of %llu",
                       (unsigned long long)row_uint(&q, 0), what, (unsigned long long)want);
    return OK;
}

static enum err check_turns(struct store *st, const struct session_row *s, struct error *e)
{
    return check_count(
        st, "SELECT count(*), ifnull(sum(finished = 0), 0) FROM turns WHERE session = ?",
        s->num, s->n_turns, s->n_unfinished, "turns", e);
}

static enum err check_calls(struct store *st, const struct session_row *s, struct error *e)
{
    return check_count(st,
                       "SELECT count(*), ifnull(sum(status IN ('waiting', 'started')), 0)"
                       " FROM calls WHERE session = ?",
                       s->num, s->n_calls, s->n_open, "calls", e);
}

/* Calls of one turn, as its row counts them. */
static enum err check_turn_calls(struct store *st, const struct session_row *s,
                                 const char *turn, struct error *e)
{
    AUTO(query) struct query q = {0};
    bool found;
    struct tape_turn t;
    struct turn_extra x;
    enum err rc = tape_find_turn(&q, st, s->num, turn, &found, &t, &x, e);
    if (rc || !found)
        return rc;
    AUTO(query) struct query c = {0};
    if ((rc = query_init(&c, &st->db,
                         "SELECT count(*) FROM calls WHERE session = ? AND turn = ?", e)))
        return rc;
    query_int(&c, s->num);
    query_text(&c, turn);
    if ((rc = query_step(&c, &found, e)))
        return rc;
    if (row_uint(&c, 0) != x.n_calls)
        return err_set(e, ERR_CORRUPT, "database: turn %s has %llu calls instead of %llu", turn,
                       (unsigned long long)row_uint(&c, 0), (unsigned long long)x.n_calls);
    return OK;
}

/* ---- calls and turns --------------------------------------------------------------------- */

enum err tape_calls(struct store *st, const char *session, const char *turn, bool only_open,
                    tape_call_fn *fn, void *user, struct error *e)
{
    struct session_row row;
    AUTO(query) struct query q = {0};
    enum err rc = session_row_need(st, session, &row, e);
    if (rc || (rc = check_calls(st, &row, e)) ||
        (turn && (rc = check_turn_calls(st, &row, turn, e))) ||
        (rc = query_init(&q, &st->db,
                         "SELECT " CALL_COLS ", tag FROM calls WHERE session = ?1"
                         " AND (?2 IS NULL OR turn = ?2)"
                         " AND (NOT ?3 OR status IN ('waiting', 'started')) ORDER BY ord",
                         e)))
        return session_note(st, session, rc);
    query_int(&q, row.num);
    query_text(&q, turn);
    query_int(&q, only_open);
    for (bool found = true; !rc;) {
        struct tape_call c;
        int64_t ord;
        if ((rc = query_step(&q, &found, e)) || !found)
            break;
        if ((rc = tape_take_call(&q, &c, &ord, e)) || !fn(user, &c))
            break;
    }
    return session_note(st, session, rc);
}

/* Hands over a turn whose row q stands on, with its params. */
static enum err give_turn(struct store *st, struct query *q, const char *session,
                          tape_turn_fn *fn, void *user, bool *more, struct error *e)
{
    struct tape_turn t;
    struct turn_extra x;
    AUTO(query) struct query p = {0};
    enum err rc = tape_take_turn(q, &t, &x, e);
    if (rc || (rc = query_init(
                   &p, &st->db,
                   "SELECT " PARAMS_COLS ", tag FROM params WHERE session = ? AND id = ?", e)))
        return rc;
    query_int(&p, row_int(q, 0));
    query_text(&p, t.id);
    bool found;
    if ((rc = query_step(&p, &found, e)))
        return rc;
    if (!found)
        return err_set(e, ERR_CORRUPT, "database: params of turn %s are missing", t.id);
    if ((rc = row_check(&p, "params", e)))
        return rc;
    t.params = row_text(&p, 2);
    *more = fn(user, session, &t);
    return OK;
}

/* sql: turns of one session, in order. */
static enum err give_turns(struct store *st, const struct session_row *s, const char *sql,
                           bool *more, tape_turn_fn *fn, void *user, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = check_turns(st, s, e);
    if (rc || (rc = query_init(&q, &st->db, sql, e)))
        return rc;
    query_int(&q, s->num);
    while (*more && !rc) {
        bool found;
        if ((rc = query_step(&q, &found, e)) || !found)
            return rc;
        rc = give_turn(st, &q, s->id, fn, user, more, e);
    }
    return rc;
}

static enum err session_unfinished(struct store *st, const struct session_row *s, bool *more,
                                   tape_turn_fn *fn, void *user, struct error *e)
{
    return give_turns(st, s,
                      "SELECT " TURN_COLS ", tag FROM turns"
                      " WHERE session = ? AND finished = 0 ORDER BY ord",
                      more, fn, user, e);
}

enum err tape_turns(struct store *st, const char *session, tape_turn_fn *fn, void *user,
                    struct error *e)
{
    struct session_row row;
    bool more = true;
    enum err rc = session_row_need(st, session, &row, e);
    if (!rc)
        rc = give_turns(st, &row,
                        "SELECT " TURN_COLS ", tag FROM turns WHERE session = ? ORDER BY ord",
                        &more, fn, user, e);
    return session_note(st, session, rc);
}

/* The id of the n-th session with unfinished turns, the one whose oldest such turn is oldest
 * first. */
static enum err next_unfinished(struct store *st, int64_t n, char id[SESSION_ID_CAP],
                                bool *found, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT s.id FROM sessions s LEFT JOIN turns t"
                             " ON t.session = s.num AND t.finished = 0"
                             " WHERE t.id IS NOT NULL OR s.n_unfinished > 0 GROUP BY s.num"
                             " ORDER BY min(t.created), s.num LIMIT 1 OFFSET ?",
                             e);
    if (rc)
        return rc;
    query_int(&q, n);
    if (!(rc = query_step(&q, found, e)) && *found)
        snprintf(id, SESSION_ID_CAP, "%s", row_text(&q, 0));
    return rc;
}

enum err tape_unfinished(struct store *st, const char *session, tape_turn_fn *fn, void *user,
                         struct error *e)
{
    bool more = true;
    struct session_row row;
    if (session) {
        enum err rc = session_row_need(st, session, &row, e);
        if (!rc)
            rc = session_unfinished(st, &row, &more, fn, user, e);
        return session_note(st, session, rc);
    }
    /* One damaged session must not keep the others from going on: it is marked and passed over.
     */
    for (int64_t n = 0; more; n++) {
        char id[SESSION_ID_CAP];
        bool found;
        enum err rc = next_unfinished(st, n, id, &found, e);
        if (rc || !found)
            return rc;
        rc = session_row_sound(st, id, &row, e);
        if (!rc)
            rc = session_note(st, id, session_unfinished(st, &row, &more, fn, user, e));
        if (rc && rc != ERR_CORRUPT)
            return rc;
    }
    return OK;
}

enum err tape_turn(struct store *st, const char *session, const char *turn, tape_turn_fn *fn,
                   void *user, struct error *e)
{
    struct session_row row;
    AUTO(query) struct query q = {0};
    enum err rc = session_row_need(st, session, &row, e);
    if (!rc)
        rc = session_note(st, session, check_turns(st, &row, e));
    if (rc || (rc = query_init(&q, &st->db,
                               "SELECT " TURN_COLS ", tag FROM turns WHERE session = ?1"
                               " AND (?2 IS NULL OR id = ?2) ORDER BY ord DESC",
                               e)))
        return rc;
    query_int(&q, row.num);
    query_text(&q, turn);
    bool found, more = true, any = false;
    while (more && !rc) {
        if ((rc = query_step(&q, &found, e)))
            return rc;
        if (!found)
            break;
        any = true;
        rc = give_turn(st, &q, row.id, fn, user, &more, e);
    }
    if (!any)
        return err_set(e, ERR_NOTFOUND, "session %s has no turn %s", session,
                       turn ? turn : "yet");
    return session_note(st, session, rc);
}
