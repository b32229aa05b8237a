/* The tape commit: everything of one barrier in one transaction. */
#include "sessions/tape.h"

#include <string.h>

#include "base/fault.h"
#include "sessions/schema.h"
#include "sessions/search.h"
#include "sessions/session_internal.h"
#include "sessions/strand.h"
#include "sessions/tape_internal.h"

/* A commit on its way: what its steps read and change. */
struct work {
    struct store *st;
    const struct tape_commit *c;
    struct session_row session;
    struct strand_row strand;
    uint64_t now;
    struct tape_receipt receipt;
};

static const char *const call_status_names[] = {
    [CALL_WAITING] = "waiting",
    [CALL_STARTED] = "started",
    [CALL_DONE] = "done",
    [CALL_FAILED] = "failed",
    [CALL_REJECTED] = "rejected",
    [CALL_CANCELLED] = "cancelled",
    [CALL_INTERRUPTED] = "interrupted",
    [CALL_INVALID] = "invalid",
};
#define N_STATUS (sizeof call_status_names / sizeof call_status_names[0])

const char *call_status_name(enum call_status s)
{
    return call_status_names[s];
}

enum err call_status_parse(const char *name, enum call_status *out, struct error *e)
{
    for (size_t i = 0; i < N_STATUS; i++)
        if (name && strcmp(name, call_status_names[i]) == 0) {
            *out = (enum call_status)i;
            return OK;
        }
    return err_set(e, ERR_CORRUPT, "call status \"%.20s\" is unknown", name ? name : "");
}

/* ---- checks ------------------------------------------------------------------------------ */

static enum err check_id(const char *id, const char *what, struct error *e)
{
    size_t n = id ? strlen(id) : 0;
    bool good = n > 0 && n < TAPE_ID_CAP;
    for (size_t i = 0; good && i < n; i++)
        good = id[i] > 0x20 && id[i] < 0x7f;
    if (!good)
        return err_set(e, ERR_INVAL, "%s id \"%.50s\": want 1 to %d printable ASCII bytes",
                       what, id ? id : "", TAPE_ID_CAP - 1);
    return OK;
}

static enum err check_payload(const char *what, const char *text, size_t n_bytes,
                              struct error *e)
{
    size_t n = text ? strlen(text) : 0;
    if (n > TAPE_JSON_MAX || n_bytes > TAPE_JSON_MAX)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes, at most %u", what,
                       n > n_bytes ? n : n_bytes, TAPE_JSON_MAX);
    return OK;
}

/* A kind or type: ERR_LIMIT when it is no word. */
static enum err check_word(const char *what, const char *s, struct error *e)
{
    if (s && strlen(s) >= TAPE_WORD_CAP)
        return err_set(e, ERR_LIMIT, "%s \"%.40s\": at most %d bytes", what, s,
                       TAPE_WORD_CAP - 1);
    return OK;
}

/* ---- segments ---------------------------------------------------------------------------- */

static enum err segment_write(struct work *w, const struct tape_segment *s, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &w->st->db,
                             "INSERT OR REPLACE INTO segments(" SEGMENT_COLS ", tag)"
                             " VALUES(?,?,?,?,?,?,?,?,?)",
                             e);
    if (rc)
        return rc;
    query_tagged(&q, "segments");
    query_int(&q, w->strand.id);
    query_uint(&q, s->seg.start);
    query_uint(&q, s->open ? 0 : s->seg.len);
    query_int(&q, s->seg.kind);
    query_int(&q, s->seg.mode);
    query_int(&q, s->open);
    query_blob(&q, s->has_digest ? s->digest : NULL, sizeof s->digest);
    query_uint(&q, s->n_rows);
    return query_put(&q, e);
}

static enum err segment_drop(struct work *w, uint64_t start, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &w->st->db, "DELETE FROM segments WHERE strand = ? AND start = ?", e);
    if (rc)
        return rc;
    query_int(&q, w->strand.id);
    query_uint(&q, start);
    return query_run(&q, e);
}

/* The segment of this strand that begins at start; start UINT64_MAX: its last one. */
static enum err segment_find(struct work *w, uint64_t start, bool *found,
                             struct tape_segment *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &w->st->db,
                             "SELECT " SEGMENT_COLS ", tag FROM segments WHERE strand = ?1"
                             " AND (start = ?2 OR ?2 < 0) ORDER BY start DESC LIMIT 1",
                             e);
    if (rc)
        return rc;
    query_int(&q, w->strand.id);
    query_int(&q, start > INT64_MAX ? -1 : (int64_t)start);
    if ((rc = query_step(&q, found, e)) || !*found)
        return rc;
    return tape_take_segment(&q, out, e);
}

/* Changes a segment that is there: an open one may end, and a digest may be added. */
static enum err segment_update(struct work *w, const struct tape_segment *old,
                               const struct tape_segment *s, struct error *e)
{
    unsigned long long start = s->seg.start;
    if (old->seg.kind != s->seg.kind || old->seg.mode != s->seg.mode)
        return err_set(e, ERR_INVAL, "segment at %llu: kind and mode cannot change", start);
    if (!old->open && (s->open || s->seg.len != old->seg.len))
        return err_set(e, ERR_INVAL, "segment at %llu has ended with %llu tokens", start,
                       (unsigned long long)old->seg.len);
    if (!s->open && s->seg.len == 0)
        return segment_drop(w, s->seg.start, e);
    return segment_write(w, s, e);
}

static enum err segment_upsert(struct work *w, const struct tape_segment *s, struct error *e)
{
    struct tape_segment old;
    bool found, has_last;
    unsigned long long start = s->seg.start;
    if (s->seg.start > w->strand.length ||
        (!s->open && s->seg.len > w->strand.length - s->seg.start))
        return err_set(e, ERR_INVAL, "segment at %llu: goes past the tape's end", start);
    enum err rc = segment_find(w, s->seg.start, &found, &old, e);
    if (rc)
        return rc;
    if (found)
        return segment_update(w, &old, s, e);
    /* A fork computes again what it shares; the digest is its parent's to keep. */
    if (!s->open && s->has_digest && s->seg.len &&
        s->seg.start + s->seg.len <= w->strand.parent_pos)
        return OK;
    if ((rc = segment_find(w, UINT64_MAX, &has_last, &old, e)))
        return rc;
    if (has_last && old.open)
        return err_set(e, ERR_INVAL, "segment at %llu: the one at %llu is still open", start,
                       (unsigned long long)old.seg.start);
    uint64_t end = has_last ? old.seg.start + old.seg.len : w->strand.parent_pos;
    if (s->seg.start != end)
        return err_set(e, ERR_INVAL, "segment at %llu: the next one begins at %llu", start,
                       (unsigned long long)end);
    if (!s->open && s->seg.len == 0)
        return OK;
    return segment_write(w, s, e);
}

static enum err put_segments(struct work *w, struct error *e)
{
    const struct tape_commit *c = w->c;
    enum err rc = OK;
    for (size_t i = 0; i < c->n_segments && !rc; i++)
        rc = segment_upsert(w, &c->segments[i], e);
    if (rc || (!c->n_ids && !c->n_segments))
        return rc;
    struct tape_segment last;
    bool found;
    if ((rc = segment_find(w, UINT64_MAX, &found, &last, e)))
        return rc;
    uint64_t end = found ? last.seg.start + last.seg.len : w->strand.parent_pos;
    if (!(found && last.open) && end != w->strand.length)
        return err_set(e, ERR_INVAL, "tape has %llu tokens, its segments end at %llu",
                       (unsigned long long)w->strand.length, (unsigned long long)end);
    return OK;
}

static enum err put_mark(struct work *w, const struct replay_mark *m, struct error *e)
{
    if (m->at > w->strand.length || m->at < w->strand.parent_pos || m->from >= m->at)
        return err_set(e, ERR_INVAL, "replay mark at %llu from %llu: tape is %llu to %llu",
                       (unsigned long long)m->at, (unsigned long long)m->from,
                       (unsigned long long)w->strand.parent_pos,
                       (unsigned long long)w->strand.length);
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &w->st->db, "INSERT OR REPLACE INTO marks(" MARK_COLS ", tag) VALUES(?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "marks");
    query_int(&q, w->strand.id);
    query_uint(&q, m->at);
    query_uint(&q, m->from);
    rc = query_put(&q, e);
    return rc ? rc : strand_count_marks(w->st, w->strand.id, &w->strand.n_marks, e);
}

/* ---- token ids --------------------------------------------------------------------------- */

static enum err put_ids(struct work *w, struct error *e)
{
    const struct tape_commit *c = w->c;
    if (!c->n_ids)
        return OK;
    if (c->position != w->strand.length)
        return err_set(e, ERR_CONFLICT, "ids at position %llu: the tape has %llu",
                       (unsigned long long)c->position, (unsigned long long)w->strand.length);
    if (c->n_ids > TAPE_TOKENS_MAX - w->strand.length)
        return err_set(e, ERR_LIMIT, "tape: more than %llu tokens", TAPE_TOKENS_MAX);
    return strand_append(w->st, &w->strand, c->ids, c->n_ids, e);
}

/* ---- events ------------------------------------------------------------------------------ */

static enum err check_event(struct work *w, const struct tape_event *ev, uint64_t position,
                            struct error *e)
{
    enum err rc = OK;
    if (!ev->type || !*ev->type)
        return err_set(e, ERR_INVAL, "event without a type");
    if (position > TAPE_TOKENS_MAX ||
        (!w->c->any_position &&
         (position > w->strand.length || position < w->strand.parent_pos)))
        return err_set(e, ERR_INVAL, "event at position %llu: tape is %llu to %llu",
                       (unsigned long long)position, (unsigned long long)w->strand.parent_pos,
                       (unsigned long long)w->strand.length);
    if (ev->turn)
        rc = check_id(ev->turn, "turn", e);
    if (!rc && ev->item)
        rc = check_id(ev->item, "item", e);
    if (rc || (rc = check_word("event type", ev->type, e)) ||
        (rc = check_word("item kind", ev->kind, e)))
        return rc;
    return check_payload("event", ev->json, ev->n_bytes, e);
}

static enum err put_event(struct work *w, const struct tape_event *ev, struct error *e)
{
    uint64_t position = ev->position == TAPE_END ? w->strand.length : ev->position;
    enum err rc = check_event(w, ev, position, e);
    if (rc)
        return rc;
    AUTO(query) struct query q = {0};
    rc = query_init(&q, &w->st->db,
                    "INSERT INTO events(" EVENT_COLS ", tag) VALUES(?,?,?,?,?,?,?,?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "events");
    query_int(&q, w->strand.id);
    query_uint(&q, w->strand.last_seq + 1);
    query_uint(&q, w->now);
    query_uint(&q, position);
    query_text(&q, ev->turn);
    query_text(&q, ev->type);
    query_text(&q, ev->item);
    query_text(&q, ev->kind);
    query_text(&q, ev->json);
    query_blob(&q, ev->bytes, ev->n_bytes);
    if ((rc = query_put(&q, e)) ||
        (ev->item &&
         (rc = search_add(w->st, w->strand.id, w->strand.last_seq + 1, ev->item, e))))
        return rc;
    w->strand.last_seq++;
    if (!w->receipt.first_seq)
        w->receipt.first_seq = w->strand.last_seq;
    return OK;
}

/* ---- turns ------------------------------------------------------------------------------- */

/* Next ord of a table for this session. */
static enum err next_ord(struct work *w, const char *sql, int64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &w->st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, w->session.num);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0);
    return rc;
}

static enum err params_write(struct work *w, const struct tape_turn *t, struct error *e)
{
    if (!t->params)
        return OK;
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &w->st->db,
                   "INSERT OR REPLACE INTO params(" PARAMS_COLS ", tag) VALUES(?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "params");
    query_int(&q, w->session.num);
    query_text(&q, t->id);
    query_text(&q, t->params);
    return query_put(&q, e);
}

static enum err turn_write(struct work *w, const struct tape_turn *t, struct turn_extra x,
                           struct error *e)
{
    AUTO(query) struct query q = {0};
    /* Not REPLACE: a client message that another turn has is a conflict, not its end. */
    enum err rc =
        query_init(&q, &w->st->db,
                   "INSERT INTO turns(" TURN_COLS ", tag) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
                   " ON CONFLICT(session, id) DO UPDATE SET forced_next = excluded.forced_next,"
                   " step = excluded.step, state = excluded.state, reason = excluded.reason,"
                   " ledger = excluded.ledger, finished = excluded.finished,"
                   " n_calls = excluded.n_calls, tag = excluded.tag",
                   e);
    if (rc)
        return rc;
    query_tagged(&q, "turns");
    query_int(&q, w->session.num);
    query_text(&q, t->id);
    query_int(&q, x.ord);
    query_text(&q, t->client_message);
    query_uint(&q, t->forced_next);
    query_int(&q, t->step);
    query_text(&q, t->state ? t->state : "");
    query_text(&q, t->reason ? t->reason : "");
    query_text(&q, t->ledger ? t->ledger : "{}");
    query_int(&q, t->finished);
    query_uint(&q, t->first_seq);
    query_uint(&q, t->created_ms);
    query_uint(&q, x.n_calls);
    return query_put(&q, e);
}

static enum err turn_insert(struct work *w, const struct tape_turn *given, struct error *e)
{
    if (!given->params)
        return err_set(e, ERR_INVAL, "turn %s: a new turn needs its params", given->id);
    struct tape_turn t = *given;
    t.created_ms = w->now;
    t.first_seq = w->strand.last_seq + 1; /* of this commit's events, which come next */
    struct turn_extra x = {0};
    enum err rc =
        next_ord(w, "SELECT ifnull(max(ord), 0) + 1 FROM turns WHERE session = ?", &x.ord, e);
    w->session.n_turns++;
    w->session.n_unfinished += !t.finished;
    return rc ? rc : turn_write(w, &t, x, e);
}

static enum err put_turn(struct work *w, struct error *e)
{
    const struct tape_turn *given = w->c->turn;
    if (!given)
        return OK;
    AUTO(query) struct query q = {0};
    bool found;
    enum err rc = query_init(
        &q, &w->st->db, "SELECT " TURN_COLS ", tag FROM turns WHERE session = ? AND id = ?", e);
    if (rc)
        return rc;
    query_int(&q, w->session.num);
    query_text(&q, given->id);
    if ((rc = query_step(&q, &found, e)) || (rc = params_write(w, given, e)))
        return rc;
    if (!found)
        return turn_insert(w, given, e);
    struct tape_turn t, old;
    struct turn_extra x;
    if ((rc = tape_take_turn(&q, &old, &x, e)))
        return rc;
    t = *given;
    w->session.n_unfinished -= !old.finished;
    w->session.n_unfinished += !t.finished;
    t.client_message = old.client_message;
    t.state = t.state ? t.state : old.state;
    t.reason = t.reason ? t.reason : old.reason;
    t.ledger = t.ledger ? t.ledger : old.ledger;
    t.first_seq = old.first_seq;
    t.created_ms = old.created_ms;
    return turn_write(w, &t, x, e);
}

/* Fills the receipt if the client's message was seen before, in another turn. */
static enum err find_duplicate(struct work *w, struct error *e)
{
    const struct tape_turn *t = w->c->turn;
    if (!t || !t->client_message)
        return OK;
    AUTO(query) struct query q = {0};
    bool found;
    enum err rc = query_init(
        &q, &w->st->db,
        "SELECT " TURN_COLS ", tag FROM turns WHERE session = ? AND client_message = ?", e);
    if (rc)
        return rc;
    query_int(&q, w->session.num);
    query_text(&q, t->client_message);
    struct tape_turn first;
    struct turn_extra x;
    if ((rc = query_step(&q, &found, e)) || !found ||
        (rc = tape_take_turn(&q, &first, &x, e)) || strcmp(first.id, t->id) == 0)
        return rc;
    w->receipt.duplicate = true;
    w->receipt.turn_seq = first.first_seq;
    snprintf(w->receipt.turn, sizeof w->receipt.turn, "%s", first.id);
    return OK;
}

static enum err check_turn(const struct tape_turn *t, struct error *e)
{
    if (!t)
        return OK;
    enum err rc = check_id(t->id, "turn", e);
    if (!rc && t->client_message && strlen(t->client_message) > 256)
        rc = err_set(e, ERR_LIMIT, "clientMessageId: %zu bytes, at most 256",
                     strlen(t->client_message));
    if (!rc)
        rc = check_payload("turn params", t->params, 0, e);
    return rc ? rc : check_payload("turn ledger", t->ledger, 0, e);
}

/* ---- calls ------------------------------------------------------------------------------- */

static enum err call_write(struct work *w, const struct tape_call *c, int64_t ord,
                           struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &w->st->db,
                             "INSERT OR REPLACE INTO calls(" CALL_COLS ", tag)"
                             " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                             e);
    if (rc)
        return rc;
    query_tagged(&q, "calls");
    query_int(&q, w->session.num);
    query_text(&q, c->id);
    query_int(&q, ord);
    query_text(&q, c->turn);
    query_text(&q, c->item);
    query_text(&q, c->name);
    query_text(&q, c->arguments);
    query_int(&q, c->step);
    query_int(&q, c->index);
    query_text(&q, call_status_name(c->status));
    query_int(&q, c->is_error);
    query_int(&q, c->ingested);
    query_blob(&q, c->result, c->n_result);
    query_text(&q, c->spill);
    query_uint(&q, c->spill_bytes);
    query_uint(&q, c->created_ms);
    query_uint(&q, c->ended_ms);
    return query_put(&q, e);
}

/* Notes in the row of a turn that it has one more call. */
static enum err count_call(struct work *w, const char *turn, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &w->st->db, "SELECT " TURN_COLS ", tag FROM turns WHERE session = ? AND id = ?", e);
    if (rc)
        return rc;
    query_int(&q, w->session.num);
    query_text(&q, turn);
    bool found;
    struct tape_turn t;
    struct turn_extra x;
    if ((rc = query_step(&q, &found, e)) || !found || (rc = tape_take_turn(&q, &t, &x, e)))
        return rc;
    x.n_calls++;
    return turn_write(w, &t, x, e);
}

static enum err call_insert(struct work *w, const struct tape_call *given, struct error *e)
{
    if (!given->turn || !given->name || !given->arguments)
        return err_set(e, ERR_INVAL, "call %s: a new call needs turn, name and arguments",
                       given->id);
    struct tape_call c = *given;
    c.created_ms = w->now;
    c.ended_ms = call_is_open(c.status) ? 0 : w->now;
    int64_t ord = 0;
    enum err rc =
        next_ord(w, "SELECT ifnull(max(ord), 0) + 1 FROM calls WHERE session = ?", &ord, e);
    if (rc || (rc = count_call(w, c.turn, e)))
        return rc;
    w->session.n_calls++;
    w->session.n_open += call_is_open(c.status);
    return call_write(w, &c, ord, e);
}

/* What is given, laid over what is there. */
static enum err call_merge(struct work *w, const struct tape_call *old,
                           const struct tape_call *given, struct tape_call *out,
                           struct error *e)
{
    *out = *given;
    if (!call_is_open(old->status) && given->status != old->status)
        return err_set(e, ERR_CONFLICT, "call %s is %s already, not %s", given->id,
                       call_status_name(old->status), call_status_name(given->status));
    if ((given->turn && strcmp(given->turn, old->turn) != 0) ||
        (given->name && strcmp(given->name, old->name) != 0))
        return err_set(e, ERR_CONFLICT, "call %s was used before in this session", given->id);
    out->turn = old->turn;
    out->name = old->name;
    out->arguments = given->arguments ? given->arguments : old->arguments;
    out->item = given->item ? given->item : old->item;
    out->step = old->step;
    out->index = old->index;
    if (!given->result) {
        out->result = old->result;
        out->n_result = old->n_result;
    }
    if (!given->spill) {
        out->spill = old->spill;
        out->spill_bytes = old->spill_bytes;
    }
    out->ingested |= old->ingested;
    out->created_ms = old->created_ms;
    out->ended_ms =
        call_is_open(old->status) && !call_is_open(given->status) ? w->now : old->ended_ms;
    return OK;
}

static enum err put_call(struct work *w, const struct tape_call *c, struct error *e)
{
    enum err rc = check_id(c->id, "call", e);
    if (rc || (rc = check_payload("call arguments", c->arguments, c->n_result, e)) ||
        (c->turn && (rc = check_id(c->turn, "turn", e))) ||
        (c->item && (rc = check_id(c->item, "item", e))))
        return rc;
    AUTO(query) struct query q = {0};
    bool found;
    rc = query_init(&q, &w->st->db,
                    "SELECT " CALL_COLS ", tag FROM calls WHERE session = ? AND id = ?", e);
    if (rc)
        return rc;
    query_int(&q, w->session.num);
    query_text(&q, c->id);
    if ((rc = query_step(&q, &found, e)))
        return rc;
    if (!found)
        return call_insert(w, c, e);
    struct tape_call old, merged;
    int64_t ord;
    if ((rc = tape_take_call(&q, &old, &ord, e)) || (rc = call_merge(w, &old, c, &merged, e)))
        return rc;
    w->session.n_open -= call_is_open(old.status) && !call_is_open(merged.status);
    /* merged borrows from the row q stands on, which stays until q is reset. */
    return call_write(w, &merged, ord, e);
}

/* ---- the commit -------------------------------------------------------------------------- */

static enum err put_session(struct work *w, struct error *e)
{
    enum err rc = session_row_set_state(&w->session, w->c->state, w->c->reason, e);
    if (rc)
        return rc;
    w->session.updated = w->now;
    return session_row_write(w->st, &w->session, e);
}

static enum err put_all(struct work *w, struct error *e)
{
    const struct tape_commit *c = w->c;
    enum err rc = put_ids(w, e);
    if (!rc)
        rc = put_segments(w, e);
    for (size_t i = 0; i < c->n_marks && !rc; i++)
        rc = put_mark(w, &c->marks[i], e);
    if (!rc)
        rc = put_turn(w, e);
    for (size_t i = 0; i < c->n_calls && !rc; i++)
        rc = put_call(w, &c->calls[i], e);
    for (size_t i = 0; i < c->n_events && !rc; i++)
        rc = put_event(w, &c->events[i], e);
    if (!rc)
        rc = put_session(w, e);
    return rc ? rc : strand_write(w->st, &w->strand, e);
}

static enum err apply(struct work *w, struct error *e)
{
    enum err rc = check_turn(w->c->turn, e);
    if (rc || (rc = session_row_sound(w->st, w->c->session, &w->session, e)) ||
        (rc = strand_read(w->st, w->session.strand, &w->strand, e)) ||
        (rc = find_duplicate(w, e)) || (!w->receipt.duplicate && (rc = put_all(w, e))))
        return rc;
    w->receipt.length = w->strand.length;
    w->receipt.last_seq = w->strand.last_seq;
    return OK;
}

enum err tape_apply(struct store *st, const struct tape_commit *c, uint64_t now_ms,
                    struct tape_receipt *r, struct error *e)
{
    struct work w = {.st = st, .c = c, .now = now_ms};
    enum err rc = apply(&w, e);
    if (!rc)
        *r = w.receipt;
    return rc;
}

static enum err commit_once(struct store *st, const struct tape_commit *c,
                            struct tape_receipt *r, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &st->db, e);
    if (!rc)
        rc = tape_apply(st, c, store_now_ms(st), r, e);
    if (!rc && !r->duplicate)
        rc = txn_commit(&t, e);
    return rc;
}

enum err tape_commit(struct store *st, const struct tape_commit *c, struct tape_receipt *r,
                     struct error *e)
{
    struct tape_receipt receipt;
    enum err rc = commit_once(st, c, &receipt, e);
    if (rc && search_mend(st))
        rc = commit_once(st, c, &receipt, e);
    if (rc)
        return session_note(st, c->session, rc);
    if (r)
        *r = receipt;
    return OK;
}
