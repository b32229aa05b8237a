/* The turn of a tape commit: upserted by its id, and found again by its client message. */
#include "sessions/tape_work.h"

#include <string.h>

#include "sessions/schema.h"
#include "sessions/tape_internal.h"

enum err tape_check_turn(const struct tape_turn *t, struct error *e)
{
    if (!t)
        return OK;
    enum err rc = tape_check_id(t->id, "turn", e);
    if (!rc && t->client_message && strlen(t->client_message) > 256)
        rc = err_set(e, ERR_LIMIT, "clientMessageId: %zu bytes, at most 256",
                     strlen(t->client_message));
    if (!rc)
        rc = tape_check_payload("turn params", t->params, 0, e);
    return rc ? rc : tape_check_payload("turn ledger", t->ledger, 0, e);
}

/* Fills the receipt if the client's message was seen before, in another turn. */
enum err tape_find_duplicate(struct tape_work *w, struct error *e)
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

static enum err params_write(struct tape_work *w, const struct tape_turn *t, struct error *e)
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

static enum err turn_write(struct tape_work *w, const struct tape_turn *t, struct turn_extra x,
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

static enum err turn_insert(struct tape_work *w, const struct tape_turn *given, struct error *e)
{
    if (!given->params)
        return err_set(e, ERR_INVAL, "turn %s: a new turn needs its params", given->id);
    struct tape_turn t = *given;
    t.created_ms = w->now;
    t.first_seq = w->strand.last_seq + 1; /* of this commit's events, which come next */
    struct turn_extra x = {0};
    enum err rc = tape_next_ord(
        w, "SELECT ifnull(max(ord), 0) + 1 FROM turns WHERE session = ?", &x.ord, e);
    w->session.n_turns++;
    w->session.n_unfinished += !t.finished;
    return rc ? rc : turn_write(w, &t, x, e);
}

enum err tape_put_turn(struct tape_work *w, struct error *e)
{
    const struct tape_turn *given = w->c->turn;
    if (!given)
        return OK;
    AUTO(query) struct query q = {0};
    bool found;
    struct tape_turn t = *given, old;
    struct turn_extra x;
    enum err rc = tape_find_turn(&q, w->st, w->session.num, given->id, &found, &old, &x, e);
    if (rc || (rc = params_write(w, given, e)))
        return rc;
    if (!found)
        return turn_insert(w, given, e);
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

/* Notes in the row of a turn that it has one more call. */
enum err tape_count_call(struct tape_work *w, const char *turn, struct error *e)
{
    AUTO(query) struct query q = {0};
    bool found;
    struct tape_turn t;
    struct turn_extra x;
    enum err rc = tape_find_turn(&q, w->st, w->session.num, turn, &found, &t, &x, e);
    if (rc || !found)
        return rc;
    x.n_calls++;
    return turn_write(w, &t, x, e);
}
