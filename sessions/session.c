#include "sessions/session.h"

#include <stdlib.h>
#include <string.h>

#include "sessions/head_internal.h"
#include "sessions/schema.h"
#include "sessions/search.h"
#include "sessions/session_internal.h"
#include "sessions/strand.h"
#include "sessions/tape.h"

#define MIN_PREFIX 4

void session_info_fini(struct session_info *s)
{
    free(s->cwd);
    free(s->config);
    s->cwd = s->config = NULL;
}

/* ---- info -------------------------------------------------------------------------------- */

/* Position of the newest head, 0 if there is none. Only a figure for lists: not checked. */
static enum err head_position(struct store *st, int64_t num, uint64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT position FROM heads WHERE session = ?"
                             " ORDER BY generation DESC LIMIT 1",
                             e);
    if (rc)
        return rc;
    query_int(&q, num);
    bool row;
    if (!(rc = query_step(&q, &row, e)))
        *out = row ? row_uint(&q, 0) : 0;
    return rc;
}

/* What hangs below the row. Damage there makes the session damaged, not absent. */
static enum err fill_below(struct store *st, const struct session_row *r,
                           struct session_info *s, struct error *e)
{
    struct strand_row strand;
    enum err rc = strand_read(st, r->strand, &strand, e);
    if (!rc)
        rc = session_row_read_config(st, r->num, &s->cwd, &s->config, e);
    if (!rc)
        rc = head_position(st, r->num, &s->state_position, e);
    if (!rc) {
        s->n_tokens = strand.length;
        s->last_seq = strand.last_seq;
    }
    return rc;
}

static enum err info_of(struct store *st, const struct session_row *r, struct session_info *out,
                        struct error *e)
{
    AUTO(session_info) struct session_info s = {0};
    session_copy_text(s.id, sizeof s.id, r->id);
    session_copy_text(s.name, sizeof s.name, r->name);
    session_copy_text(s.parent, sizeof s.parent, r->parent);
    session_copy_text(s.origin, sizeof s.origin, r->origin);
    session_copy_text(s.state, sizeof s.state, r->state);
    session_copy_text(s.reason, sizeof s.reason, r->reason);
    s.damaged = r->damaged;
    s.created_ms = r->created;
    s.updated_ms = r->updated;
    s.forked_at = r->forked_at;
    enum err rc = r->bad_row ? ERR_CORRUPT : fill_below(st, r, &s, e);
    if (rc == ERR_CORRUPT) {
        s.damaged = true;
        if (!s.cwd && !(s.cwd = strdup("")))
            return err_set(e, ERR_NOMEM, "session: out of memory");
        if (!s.config && !(s.config = strdup("{}")))
            return err_set(e, ERR_NOMEM, "session: out of memory");
        rc = OK;
    }
    if (rc)
        return rc;
    *out = s;
    s.cwd = s.config = NULL;
    return OK;
}

/* ---- finding and listing ----------------------------------------------------------------- */

/* Rows that the key may stand for. An exact id or name wins over prefixes. */
#define FIND_SQL                                                                               \
    SESSION_SELECT "WHERE id = ?1 OR substr(name, 1, length(?1)) = ?1 OR (length(?1) >= ?2 "   \
                   "AND substr(id, 1, length(?1)) = upper(?1)) "                               \
                   "ORDER BY id = ?1 OR name = ?1 DESC, updated DESC LIMIT 6"

enum err session_find(struct store *st, const char *key, struct session_info *out,
                      struct error *e)
{
    struct session_row first;
    size_t n = 0;
    bool exact = !*key; /* which is the beginning of everything */
    char several[ERR_MSG_BYTES] = "";
    {
        AUTO(query) struct query q = {0};
        enum err rc = query_init(&q, &st->db, FIND_SQL, e);
        if (rc)
            return rc;
        query_text(&q, key);
        query_int(&q, MIN_PREFIX);
        for (bool row = true; !exact;) {
            if ((rc = query_step(&q, &row, e)))
                return rc;
            if (!row)
                break;
            struct session_row r;
            session_row_take(&q, &r);
            if (n == 0)
                first = r;
            exact = n == 0 && (strcmp(r.id, key) == 0 || strcmp(r.name, key) == 0);
            size_t len = strlen(several);
            snprintf(several + len, sizeof several - len, "%s%s", n++ ? ", " : "", r.name);
        }
    }
    if (n == 0)
        return err_set(e, ERR_NOTFOUND, "no session \"%.64s\"", key);
    if (n > 1)
        return err_set(e, ERR_NOTFOUND, "\"%.64s\" could be %.150s%s", key, several,
                       n == 6 ? ", ..." : "");
    return info_of(st, &first, out, e);
}

enum err session_list(struct store *st, session_fn *fn, void *user, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, SESSION_SELECT "ORDER BY updated DESC, num DESC", e);
    for (bool row = true; !rc;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        struct session_row r;
        session_row_take(&q, &r);
        AUTO(session_info) struct session_info s = {0};
        if ((rc = info_of(st, &r, &s, e)) || !fn(user, &s))
            return rc;
    }
    return rc;
}

static enum err drop_rows(struct store *st, const char *sql, int64_t num, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (rc)
        return rc;
    query_int(&q, num);
    return query_run(&q, e);
}

/* ---- making ------------------------------------------------------------------------------ */

static enum err check_id(const char *id, struct error *e)
{
    if (!ulid_is_valid(id, strlen(id)))
        return err_set(e, ERR_INVAL, "session id \"%.40s\" is not a ULID", id);
    return OK;
}

static enum err check_name(const char *name, struct error *e)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = name ? strlen(name) : 0;
    if (n == 0 || n >= SESSION_NAME_CAP || !strchr(first, name[0]) || strspn(name, rest) != n)
        return err_set(e, ERR_INVAL,
                       "session name \"%.70s\": want 1 to %d of a-z 0-9 . _ -, the first a "
                       "letter or digit",
                       name ? name : "", SESSION_NAME_CAP - 1);
    return OK;
}

static enum err next_num(struct store *st, int64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, "SELECT ifnull(max(num), 0) + 1 FROM sessions", e);
    bool row = false;
    if (!rc && !(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0);
    return rc;
}

/* Fills and inserts a row whose strand and parent are set. In a transaction. */
static enum err insert(struct store *st, struct session_row *r, const char *id,
                       const char *name, const char *state, struct error *e)
{
    enum err rc = check_name(name, e);
    if (!rc && id)
        rc = check_id(id, e);
    if (rc || (rc = next_num(st, &r->num, e)) ||
        (rc = session_row_set_state(r, state ? state : "idle", "", e)))
        return rc;
    if (id)
        session_copy_text(r->id, sizeof r->id, id);
    else
        ulid_next(&st->ulid, r->id);
    session_copy_text(r->name, sizeof r->name, name);
    r->space = st->space.id;
    r->created = r->updated = store_now_ms(st);
    rc = session_row_write(st, r, e);
    if (rc == ERR_CONFLICT)
        return err_set(e, ERR_CONFLICT, "session \"%s\" exists already", name);
    return rc;
}

enum err session_add(struct store *st, const struct session_new *s, struct session_row *out,
                     struct error *e)
{
    struct session_row r = {0};
    session_copy_text(r.origin, sizeof r.origin, s->origin ? s->origin : "new");
    enum err rc = strand_new(st, 0, 0, 0, &r.strand, e);
    if (rc || (rc = insert(st, &r, s->id, s->name, s->state, e)) ||
        (rc = session_row_write_config(st, r.num, s->cwd ? s->cwd : "",
                                       s->config ? s->config : "{}", e)))
        return rc;
    *out = r;
    return OK;
}

enum err session_new(struct store *st, const struct session_new *s, char *id_out,
                     struct error *e)
{
    AUTO(txn) struct txn t = {0};
    struct session_row r;
    enum err rc = txn_begin(&t, &st->db, e);
    if (rc || (rc = session_add(st, s, &r, e)) || (rc = txn_commit(&t, e)))
        return rc;
    if (id_out)
        memcpy(id_out, r.id, sizeof r.id);
    return OK;
}

/* The strand to fork from: the oldest one that has everything up to seq. */
static enum err fork_strand(struct store *st, int64_t strand, uint64_t seq, int64_t *out,
                            struct error *e)
{
    for (;;) {
        struct strand_row r;
        enum err rc = strand_read(st, strand, &r, e);
        if (rc)
            return rc;
        *out = strand;
        if (!r.parent || seq > r.parent_seq)
            return OK;
        strand = r.parent;
    }
}

enum err session_fork(struct store *st, const struct session_fork *f, char *id_out,
                      struct error *e)
{
    struct session_row parent, r = {0};
    AUTO_FREE char *cwd = NULL;
    AUTO_FREE char *config = NULL;
    enum err rc = session_row_need(st, f->parent, &parent, e);
    if (rc || (rc = session_row_read_config(st, parent.num, &cwd, &config, e)))
        return rc;
    struct strand_row last;
    uint64_t position, seq = f->at_seq;
    if ((rc = strand_read(st, parent.strand, &last, e)) ||
        (rc = tape_position_of(st, f->parent, seq, &position, e)))
        return rc;
    if (seq == 0)
        seq = last.last_seq;
    AUTO(txn) struct txn t = {0};
    int64_t from = parent.strand;
    if ((rc = txn_begin(&t, &st->db, e)))
        return rc;
    /* Everything: then there may be tokens behind the last event. */
    if (f->at_seq && (rc = fork_strand(st, parent.strand, seq, &from, e)))
        return rc;
    if (from != parent.strand && (rc = strand_read(st, from, &last, e)))
        return rc;
    if (position > last.length)
        return err_set(e, ERR_NOTFOUND,
                       "the tokens of event %llu are gone with the session that kept them",
                       (unsigned long long)seq);
    session_copy_text(r.parent, sizeof r.parent, parent.id);
    session_copy_text(r.origin, sizeof r.origin, "fork");
    r.forked_at = position;
    if ((rc = strand_new(st, from, position, seq, &r.strand, e)) ||
        (rc = insert(st, &r, f->id, f->name, NULL, e)) ||
        (rc = session_row_write_config(st, r.num, f->cwd ? f->cwd : cwd,
                                       f->config ? f->config : config, e)) ||
        (rc = head_fork(st, parent.num, r.num, position, e)) || (rc = txn_commit(&t, e)))
        return rc;
    if (id_out)
        memcpy(id_out, r.id, sizeof r.id);
    return OK;
}

/* ---- cutting ----------------------------------------------------------------------------- */

/* Position and seq of the cut, and the strand that has both. */
static enum err cut_place(struct store *st, const struct session_cut *c,
                          const struct session_row *r, int64_t *from, uint64_t *position,
                          uint64_t *seq, struct error *e)
{
    struct strand_row last;
    enum err rc = strand_read(st, r->strand, &last, e);
    *from = r->strand;
    *position = 0;
    *seq = c->restart ? last.last_seq : c->at_seq;
    if (rc || c->restart)
        return rc;
    if (c->at_seq && (rc = tape_position_of(st, c->id, c->at_seq, position, e)))
        return rc;
    return fork_strand(st, r->strand, *seq, from, e);
}

/* The session that has everything: on the same strand, which the other is about to leave. */
static enum err cut_keep(struct store *st, const struct session_cut *c,
                         const struct session_row *r, const char *cwd, const char *config,
                         struct session_row *keep, struct error *e)
{
    struct strand_row strand;
    enum err rc = strand_read(st, r->strand, &strand, e);
    *keep = (struct session_row){.strand = r->strand, .forked_at = strand.length};
    session_copy_text(keep->parent, sizeof keep->parent, r->id);
    session_copy_text(keep->origin, sizeof keep->origin, c->restart ? "compact" : "rewind");
    if (rc || (rc = insert(st, keep, NULL, c->keep_name, r->state, e)) ||
        (rc = session_row_write_config(st, keep->num, cwd, config, e)))
        return rc;
    return head_fork(st, r->num, keep->num, strand.length, e);
}

/* What a fork would not have. Turns that have not ended are prompts that still wait. */
static enum err cut_turns(struct store *st, struct session_row *r, struct error *e)
{
    enum err rc = drop_rows(st,
                            "DELETE FROM params WHERE session = ?1 AND id IN"
                            " (SELECT id FROM turns WHERE session = ?1 AND finished = 1)",
                            r->num, e);
    if (!rc)
        rc = drop_rows(st, "DELETE FROM turns WHERE session = ? AND finished = 1", r->num, e);
    if (!rc)
        rc = drop_rows(st, "DELETE FROM calls WHERE session = ?", r->num, e);
    r->n_turns = r->n_unfinished;
    r->n_calls = r->n_open = 0;
    return rc;
}

enum err session_cut(struct store *st, const struct session_cut *c, char *keep_id,
                     struct error *e)
{
    struct session_row r, keep;
    AUTO_FREE char *cwd = NULL;
    AUTO_FREE char *config = NULL;
    AUTO(txn) struct txn t = {0};
    uint64_t position, seq;
    int64_t from;
    enum err rc = session_row_sound(st, c->id, &r, e);
    if (rc || (rc = session_row_read_config(st, r.num, &cwd, &config, e)) ||
        (rc = cut_place(st, c, &r, &from, &position, &seq, e)) ||
        (rc = txn_begin(&t, &st->db, e)) || (rc = cut_keep(st, c, &r, cwd, config, &keep, e)) ||
        (rc = strand_new(st, from, position, seq, &r.strand, e)) ||
        (rc = drop_rows(st, "DELETE FROM heads WHERE session = ?", r.num, e)) ||
        (position && (rc = head_fork(st, keep.num, r.num, position, e))) ||
        (!c->restart && (rc = cut_turns(st, &r, e))) ||
        (c->config && (rc = session_row_write_config(st, r.num, cwd, c->config, e))))
        return rc;
    r.updated = store_now_ms(st);
    if ((rc = session_row_write(st, &r, e)) || (rc = txn_commit(&t, e)))
        return rc;
    if (keep_id)
        memcpy(keep_id, keep.id, sizeof keep.id);
    return OK;
}

/* ---- changing ---------------------------------------------------------------------------- */

/* In a transaction of its own. */
static enum err write_alone(struct store *st, const struct session_row *r, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &st->db, e);
    if (rc || (rc = session_row_write(st, r, e)))
        return rc;
    return txn_commit(&t, e);
}

enum err session_rename(struct store *st, const char *id, const char *name, struct error *e)
{
    struct session_row r;
    enum err rc = check_name(name, e);
    if (rc || (rc = session_row_sound(st, id, &r, e)))
        return rc;
    session_copy_text(r.name, sizeof r.name, name);
    rc = write_alone(st, &r, e);
    if (rc == ERR_CONFLICT)
        return err_set(e, ERR_CONFLICT, "session \"%s\" exists already", name);
    return rc;
}

enum err session_configure(struct store *st, const char *id, const char *config,
                           struct error *e)
{
    struct session_row r;
    AUTO_FREE char *cwd = NULL;
    AUTO_FREE char *old = NULL;
    enum err rc = session_row_sound(st, id, &r, e);
    if (rc || (rc = session_note(st, id, session_row_read_config(st, r.num, &cwd, &old, e))))
        return rc;
    AUTO(txn) struct txn t = {0};
    if ((rc = txn_begin(&t, &st->db, e)) ||
        (rc = session_row_write_config(st, r.num, cwd, config, e)))
        return rc;
    witness_note(st, r.num, r.id);
    return txn_commit(&t, e);
}

enum err session_set_state(struct store *st, const char *id, const char *state,
                           const char *reason, struct error *e)
{
    struct session_row r;
    enum err rc = session_row_sound(st, id, &r, e);
    if (rc || (rc = session_row_set_state(&r, state, reason, e)))
        return rc;
    r.updated = store_now_ms(st);
    return write_alone(st, &r, e);
}

static enum err delete_once(struct store *st, const char *id, struct error *e)
{
    struct session_row r;
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, &st->db, e);
    if (rc || (rc = session_row_read(st, id, &r, e)) ||
        (rc = drop_rows(st, "DELETE FROM configs WHERE session = ?", r.num, e)) ||
        (rc = drop_rows(st, "DELETE FROM calls WHERE session = ?", r.num, e)) ||
        (rc = drop_rows(st, "DELETE FROM turns WHERE session = ?", r.num, e)) ||
        (rc = drop_rows(st, "DELETE FROM params WHERE session = ?", r.num, e)) ||
        (rc = drop_rows(st, "DELETE FROM heads WHERE session = ?", r.num, e)) ||
        (rc = drop_rows(st, "DELETE FROM holds WHERE session = ?", r.num, e)) ||
        (rc = drop_rows(st, "DELETE FROM sessions WHERE num = ?", r.num, e)))
        return rc;
    /* A strand that cannot be trusted stays behind; fsck finds it. */
    if (!r.bad_row && (rc = strand_release(st, r.strand, e)) &&
        (rc != ERR_CORRUPT || st->db.index_damaged))
        return rc;
    witness_note(st, r.num, r.id);
    return txn_commit(&t, e);
}

enum err session_delete(struct store *st, const char *id, struct error *e)
{
    enum err rc = delete_once(st, id, e);
    return rc && search_mend(st) ? delete_once(st, id, e) : rc;
}
