#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "sessions/session_internal.h"

/* A damaged row may hold anything; what is shown of it is printable. */
static void make_printable(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
            *s = '?';
}

void session_row_take(struct query *q, struct session_row *r)
{
    memset(r, 0, sizeof *r);
    r->bad_row = row_check(q, "sessions", NULL) != OK;
    r->num = row_int(q, 0);
    session_copy_text(r->id, sizeof r->id, row_text(q, 1));
    session_copy_text(r->name, sizeof r->name, row_text(q, 2));
    r->space = row_int(q, 3);
    r->strand = row_int(q, 4);
    session_copy_text(r->parent, sizeof r->parent, row_text(q, 5));
    r->forked_at = row_uint(q, 6);
    session_copy_text(r->origin, sizeof r->origin, row_text(q, 7));
    session_copy_text(r->state, sizeof r->state, row_text(q, 8));
    session_copy_text(r->reason, sizeof r->reason, row_text(q, 9));
    r->damaged = r->bad_row || row_int(q, 10) != 0;
    r->created = row_uint(q, 11);
    r->updated = row_uint(q, 12);
    r->n_turns = row_uint(q, 13);
    r->n_unfinished = row_uint(q, 14);
    r->n_calls = row_uint(q, 15);
    r->n_open = row_uint(q, 16);
    if (r->bad_row) {
        make_printable(r->id);
        make_printable(r->name);
        make_printable(r->parent);
        make_printable(r->origin);
        make_printable(r->state);
        make_printable(r->reason);
    }
}

enum err session_row_read(struct store *st, const char *id, struct session_row *out,
                          struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, SESSION_SELECT "WHERE id = ?", e);
    if (rc)
        return rc;
    query_text(&q, id);
    bool row;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    if (!row)
        return err_set(e, ERR_NOTFOUND, "no session %.40s", id);
    session_row_take(&q, out);
    return OK;
}

enum err session_row_need(struct store *st, const char *id, struct session_row *out,
                          struct error *e)
{
    enum err rc = session_row_read(st, id, out, e);
    if (!rc && out->bad_row)
        rc = err_set(e, ERR_CORRUPT, "session %s is damaged: its row does not match its tag",
                     out->id);
    return rc;
}

enum err session_row_sound(struct store *st, const char *id, struct session_row *out,
                           struct error *e)
{
    enum err rc = session_row_need(st, id, out, e);
    if (!rc && out->damaged)
        rc = err_set(e, ERR_CORRUPT, "session %s is damaged and read-only", out->id);
    return rc;
}

enum err session_row_write(struct store *st, const struct session_row *r, struct error *e)
{
    AUTO(query) struct query q = {0};
    /* Not REPLACE: that would delete another session that has the name. */
    enum err rc = query_init(
        &q, &st->db,
        "INSERT INTO sessions(" SESSION_COLS ", tag) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,"
        "?) ON CONFLICT(num) DO UPDATE SET id = excluded.id, name = excluded.name,"
        " namespace = excluded.namespace, strand = excluded.strand, parent = excluded.parent,"
        " forked_at = excluded.forked_at, origin = excluded.origin, state = excluded.state,"
        " reason = excluded.reason, damaged = excluded.damaged, created = excluded.created, "
        "updated = excluded.updated,"
        " n_turns = excluded.n_turns, n_unfinished = excluded.n_unfinished,"
        " n_calls = excluded.n_calls, n_open = excluded.n_open, tag = excluded.tag",
        e);
    if (rc)
        return rc;
    query_tagged(&q, "sessions");
    query_int(&q, r->num);
    query_text(&q, r->id);
    query_text(&q, r->name);
    query_int(&q, r->space);
    query_int(&q, r->strand);
    query_text(&q, r->parent);
    query_uint(&q, r->forked_at);
    query_text(&q, r->origin);
    query_text(&q, r->state);
    query_text(&q, r->reason);
    query_int(&q, r->damaged);
    query_uint(&q, r->created);
    query_uint(&q, r->updated);
    query_uint(&q, r->n_turns);
    query_uint(&q, r->n_unfinished);
    query_uint(&q, r->n_calls);
    query_uint(&q, r->n_open);
    if (!(rc = query_put(&q, e)))
        witness_note(st, r->num, r->id);
    return rc;
}

static enum err set_word(char *dst, const char *src, const char *what, struct error *e)
{
    if (!src)
        return OK;
    if (strlen(src) >= SESSION_STATE_CAP)
        return err_set(e, ERR_LIMIT, "session %s \"%.40s\": at most %d bytes", what, src,
                       SESSION_STATE_CAP - 1);
    session_copy_text(dst, SESSION_STATE_CAP, src);
    return OK;
}

enum err session_row_set_state(struct session_row *r, const char *state, const char *reason,
                               struct error *e)
{
    enum err rc = set_word(r->state, state, "state", e);
    return rc ? rc : set_word(r->reason, reason, "reason", e);
}

static enum err mark_damaged(struct store *st, const char *id)
{
    struct session_row r;
    enum err rc = session_row_read(st, id, &r, NULL);
    if (rc || r.damaged)
        return rc;
    r.damaged = true;
    return session_row_write(st, &r, NULL);
}

enum err session_note(struct store *st, const char *id, enum err rc)
{
    /* If the mark cannot be written now, the same damage is met again next time. */
    if (rc == ERR_CORRUPT)
        (void)!mark_damaged(st, id);
    return rc;
}

/* ---- configuration -------------------------------------------------------------------------
 */

enum err session_row_write_config(struct store *st, int64_t num, const char *cwd,
                                  const char *config, struct error *e)
{
    if (strlen(cwd) > SESSION_CWD_MAX)
        return err_set(e, ERR_LIMIT, "session folder: %zu bytes, at most %u", strlen(cwd),
                       SESSION_CWD_MAX);
    if (strlen(config) > SESSION_CONFIG_MAX)
        return err_set(e, ERR_LIMIT, "session configuration: %zu bytes, at most %u",
                       strlen(config), SESSION_CONFIG_MAX);
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db, "INSERT OR REPLACE INTO configs(" CONFIG_COLS ", tag) VALUES(?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "configs");
    query_int(&q, num);
    query_text(&q, cwd);
    query_text(&q, config);
    return query_put(&q, e);
}

enum err session_row_read_config(struct store *st, int64_t num, char **cwd, char **config,
                                 struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT " CONFIG_COLS ", tag FROM configs WHERE session = ?", e);
    if (rc)
        return rc;
    query_int(&q, num);
    bool row;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    if (!row)
        return err_set(e, ERR_CORRUPT, "database: configs %lld is missing", (long long)num);
    if ((rc = row_check(&q, "configs", e)))
        return rc;
    AUTO_FREE char *c = strdup(row_text(&q, 1));
    char *g = strdup(row_text(&q, 2));
    if (!c || !g) {
        free(g);
        return err_set(e, ERR_NOMEM, "session configuration: out of memory");
    }
    *cwd = TAKE(c);
    *config = g;
    return OK;
}
