/* Tool calls of a tape commit: what is given is laid over what is there, and an outcome stays.
 */
#include "sessions/tape_work.h"

#include <string.h>

#include "sessions/schema.h"
#include "sessions/tape_internal.h"

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

static enum err call_write(struct tape_work *w, const struct tape_call *c, int64_t ord,
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

static enum err call_insert(struct tape_work *w, const struct tape_call *given, struct error *e)
{
    if (!given->turn || !given->name || !given->arguments)
        return err_set(e, ERR_INVAL, "call %s: a new call needs turn, name and arguments",
                       given->id);
    struct tape_call c = *given;
    c.created_ms = w->now;
    c.ended_ms = call_is_open(c.status) ? 0 : w->now;
    int64_t ord = 0;
    enum err rc = tape_next_ord(
        w, "SELECT ifnull(max(ord), 0) + 1 FROM calls WHERE session = ?", &ord, e);
    if (rc || (rc = tape_count_call(w, c.turn, e)))
        return rc;
    w->session.n_calls++;
    w->session.n_open += call_is_open(c.status);
    return call_write(w, &c, ord, e);
}

/* What is given, laid over what is there. */
static enum err call_merge(struct tape_work *w, const struct tape_call *old,
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

enum err tape_put_call(struct tape_work *w, const struct tape_call *c, struct error *e)
{
    enum err rc = tape_check_id(c->id, "call", e);
    if (rc || (rc = tape_check_payload("call arguments", c->arguments, c->n_result, e)) ||
        (c->turn && (rc = tape_check_id(c->turn, "turn", e))) ||
        (c->item && (rc = tape_check_id(c->item, "item", e))))
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
