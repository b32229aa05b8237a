/* The tape commit: everything of one barrier in one transaction. Ids and events are written
 * here; segments, turns and calls have files of their own. */
#include "sessions/tape.h"

#include <string.h>

#include "sessions/schema.h"
#include "sessions/search.h"
#include "sessions/tape_internal.h"
#include "sessions/tape_work.h"

/* ---- what the steps share ---------------------------------------------------------------- */

enum err tape_check_id(const char *id, const char *what, struct error *e)
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

enum err tape_check_payload(const char *what, const char *text, size_t n_bytes, struct error *e)
{
    size_t n = text ? strlen(text) : 0;
    if (n > TAPE_JSON_MAX || n_bytes > TAPE_JSON_MAX)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes, at most %u", what,
                       n > n_bytes ? n : n_bytes, TAPE_JSON_MAX);
    return OK;
}

/* Next ord of a table for this session. */
enum err tape_next_ord(struct tape_work *w, const char *sql, int64_t *out, struct error *e)
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

/* ---- token ids --------------------------------------------------------------------------- */

static enum err put_ids(struct tape_work *w, struct error *e)
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

/* A kind or type: ERR_LIMIT when it is no word. */
static enum err check_word(const char *what, const char *s, struct error *e)
{
    if (s && strlen(s) >= TAPE_WORD_CAP)
        return err_set(e, ERR_LIMIT, "%s \"%.40s\": at most %d bytes", what, s,
                       TAPE_WORD_CAP - 1);
    return OK;
}

static enum err check_event(struct tape_work *w, const struct tape_event *ev, uint64_t position,
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
        rc = tape_check_id(ev->turn, "turn", e);
    if (!rc && ev->item)
        rc = tape_check_id(ev->item, "item", e);
    if (rc || (rc = check_word("event type", ev->type, e)) ||
        (rc = check_word("item kind", ev->kind, e)))
        return rc;
    return tape_check_payload("event", ev->json, ev->n_bytes, e);
}

static enum err put_event(struct tape_work *w, const struct tape_event *ev, struct error *e)
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

/* ---- the commit -------------------------------------------------------------------------- */

static enum err put_session(struct tape_work *w, struct error *e)
{
    enum err rc = session_row_set_state(&w->session, w->c->state, w->c->reason, e);
    if (rc)
        return rc;
    w->session.updated = w->now;
    return session_row_write(w->st, &w->session, e);
}

static enum err put_all(struct tape_work *w, struct error *e)
{
    const struct tape_commit *c = w->c;
    enum err rc = put_ids(w, e);
    if (!rc)
        rc = tape_put_segments(w, e);
    for (size_t i = 0; i < c->n_marks && !rc; i++)
        rc = tape_put_mark(w, &c->marks[i], e);
    if (!rc)
        rc = tape_put_turn(w, e);
    for (size_t i = 0; i < c->n_calls && !rc; i++)
        rc = tape_put_call(w, &c->calls[i], e);
    for (size_t i = 0; i < c->n_events && !rc; i++)
        rc = put_event(w, &c->events[i], e);
    if (!rc)
        rc = put_session(w, e);
    return rc ? rc : strand_write(w->st, &w->strand, e);
}

static enum err apply(struct tape_work *w, struct error *e)
{
    enum err rc = tape_check_turn(w->c->turn, e);
    if (rc || (rc = session_row_sound(w->st, w->c->session, &w->session, e)) ||
        (rc = strand_read(w->st, w->session.strand, &w->strand, e)) ||
        (rc = tape_find_duplicate(w, e)) || (!w->receipt.duplicate && (rc = put_all(w, e))))
        return rc;
    w->receipt.length = w->strand.length;
    w->receipt.last_seq = w->strand.last_seq;
    return OK;
}

enum err tape_apply(struct store *st, const struct tape_commit *c, uint64_t now_ms,
                    struct tape_receipt *r, struct error *e)
{
    struct tape_work w = {.st = st, .c = c, .now = now_ms};
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
