/* Rows and sessions. */
#include <stdlib.h>
#include <string.h>

#include "sessions/fsck_internal.h"
#include "sessions/schema.h"
#include "sessions/search.h"
#include "sessions/session_internal.h"
#include "sessions/tape.h"

/* ---- the file ---------------------------------------------------------------------------- */

/* SQLite's own look at pages and indexes: one step, however long it takes. */
enum err fsck_database(struct fsck *f, bool *done, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db, "PRAGMA integrity_check(20)", e);
    *done = true;
    for (bool row = true; !rc;) {
        rc = query_step(&q, &row, e);
        if (rc == ERR_CORRUPT) {
            fsck_say(f, "database", "none", "agentd.db: %.120s", e ? e->msg : "damaged");
            return OK;
        }
        if (rc || !row)
            return rc;
        const char *text = row_text(&q, 0);
        if (text && strcmp(text, "ok") != 0)
            fsck_say(f, "database", "none", "agentd.db: %.150s", text);
    }
    return rc;
}

/* ---- every row --------------------------------------------------------------------------- */

/* Rows with a key in (?1, ?2]; the next key there is; and how rows go that hold no content. */
struct table {
    const char *name, *select, *next, *drop, *action;
    int64_t width; /* of a step, in keys */
};

#define CONTENT "none"
#define ROWS(table, cols, key, n)                                                              \
    .name = table,                                                                             \
    .select = "SELECT " cols ", tag FROM " table " WHERE " key " > ?1 AND " key " <= ?2",      \
    .next = "SELECT ifnull(min(" key "), 0) FROM " table " WHERE " key " > ?1", .width = n

static const struct table tables[] = {
    {ROWS("meta", META_COLS, "rowid", 64), .action = CONTENT},
    {ROWS("namespaces", NAMESPACE_COLS, "id", 64), .action = CONTENT},
    {ROWS("layouts", LAYOUT_COLS, "id", 64), .action = CONTENT},
    {ROWS("sessions", SESSION_COLS, "num", 512), .action = CONTENT},
    {ROWS("configs", CONFIG_COLS, "session", 64), .action = CONTENT},
    {ROWS("strands", STRAND_COLS, "id", 1024), .action = CONTENT},
    {ROWS("tape", TAPE_COLS, "rowid", 512), .action = CONTENT},
    {ROWS("segments", SEGMENT_COLS, "strand", 8), .action = CONTENT},
    {ROWS("marks", MARK_COLS, "strand", 64), .action = CONTENT},
    {ROWS("events", EVENT_COLS, "rowid", 512), .action = CONTENT},
    {ROWS("calls", CALL_COLS, "rowid", 256), .action = CONTENT},
    {ROWS("turns", TURN_COLS, "rowid", 256), .action = CONTENT},
    {ROWS("params", PARAMS_COLS, "rowid", 256), .action = CONTENT},
    {ROWS("packs", PACK_COLS, "id", 1024), .action = CONTENT},
    {ROWS("blocks", BLOCK_COLS, "id", 1024), .drop = "DELETE FROM blocks WHERE id = ?",
     .action = "dropped: its tokens are computed again"},
    {ROWS("tails", TAIL_COLS, "id", 1024), .drop = "DELETE FROM tails WHERE id = ?",
     .action = "dropped: its tokens are computed again"},
    {ROWS("tips", TIP_COLS, "id", 1024), .drop = "DELETE FROM tips WHERE id = ?",
     .action = "dropped: a resume replays"},
    {ROWS("heads", HEAD_COLS, "session", 256), .action = "dropped: the other head is used",
     .drop = "DELETE FROM heads WHERE session = ? AND slot = ?"},
    {ROWS("holds", HOLD_COLS, "session", 512), .drop = "DELETE FROM holds WHERE session = ?",
     .action = "dropped: uses are counted from 0"},
};

#define N_TABLES (sizeof tables / sizeof tables[0])

static enum err next_key(struct fsck *f, const struct table *t, int64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db, t->next, e);
    if (rc)
        return rc;
    query_int(&q, f->at);
    bool row = false;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    *out = row ? row_int(&q, 0) : 0;
    struct error why;
    if (*out && row_above(&q, 0, f->at, &why)) {
        fsck_say(f, "database", "none", "%s: %.120s; the rest is not looked at", t->name,
                 why.msg);
        *out = 0;
    }
    return OK;
}

static enum err drop_row(struct fsck *f, const struct table *t, int64_t a, int64_t b,
                         struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db, t->drop, e);
    if (rc)
        return rc;
    query_int(&q, a);
    if (strchr(t->drop, '?') != strrchr(t->drop, '?'))
        query_int(&q, b);
    return query_run(&q, e);
}

/* The first damaged row of the step; rows that are dropped do not come again. *found 0: none.
 */
static enum err check_range(struct fsck *f, const struct table *t, int64_t to, uint64_t skip,
                            bool *found, int64_t key[2], struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db, t->select, e);
    if (rc)
        return rc;
    query_int(&q, f->at);
    query_int(&q, to);
    *found = false;
    for (bool row = true; !*found;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        f->report.rows += skip == 0;
        if (row_check(&q, t->name, NULL) == OK || skip-- > 0)
            continue;
        *found = true;
        key[0] = row_int(&q, 0);
        key[1] = row_int(&q, 1);
        const char *text = row_text(&q, 0);
        fsck_say(f, "row", t->action, "%s %.40s: the row does not match its tag", t->name,
                 text ? text : "?");
    }
    return OK;
}

static enum err check_step(struct fsck *f, const struct table *t, int64_t to, struct error *e)
{
    uint64_t skip = 0;
    for (;;) {
        bool found;
        int64_t key[2] = {0};
        enum err rc = check_range(f, t, to, skip, &found, key, e);
        if (rc || !found)
            return rc;
        if (f->repair && t->drop)
            rc = drop_row(f, t, key[0], key[1], e);
        else
            skip++;
        if (rc)
            return rc;
    }
}

enum err fsck_rows(struct fsck *f, bool *done, struct error *e)
{
    const struct table *t = &tables[f->table];
    int64_t next;
    enum err rc = next_key(f, t, &next, e);
    if (rc)
        return rc;
    if (next <= f->at) {
        f->at = 0;
        *done = ++f->table == N_TABLES;
        return OK;
    }
    f->at = next - 1;
    if ((rc = check_step(f, t, next - 1 + t->width, e)))
        return rc;
    f->at = next - 1 + t->width;
    return OK;
}

/* ---- sessions, through the doors of their readers ---------------------------------------- */

static bool see_event(void *user, const struct tape_event *ev)
{
    (void)user, (void)ev;
    return true;
}

static bool see_call(void *user, const struct tape_call *call)
{
    (void)user, (void)call;
    return true;
}

static bool see_turn(void *user, const char *session, const struct tape_turn *turn)
{
    (void)user, (void)session, (void)turn;
    return true;
}

/* ERR_CORRUPT: something a reader needs is missing or damaged, counters included. */
static enum err read_session(struct fsck *f, const char *id, struct error *e)
{
    AUTO(tape) struct tape t = {0};
    AUTO(session_info) struct session_info info = {0};
    enum err rc = session_find(f->st, id, &info, e);
    if (rc || (rc = tape_load(f->st, id, &t, e)))
        return rc;
    f->report.tokens += t.view.n_ids;
    if (t.damaged)
        return err_set(e, ERR_CORRUPT, "its tape is damaged behind %llu tokens",
                       (unsigned long long)t.view.n_ids);
    if ((rc = tape_events(f->st, id, 0, 0, see_event, NULL, e)) ||
        (rc = tape_items(f->st, id, see_event, NULL, e)) ||
        (rc = tape_turns(f->st, id, see_turn, NULL, e)) ||
        (rc = tape_calls(f->st, id, NULL, false, see_call, NULL, e)))
        return rc;
    return OK;
}

/* Nothing is wrong with it any more. */
static enum err clear_mark(struct fsck *f, struct session_row *r, struct error *e)
{
    fsck_say(f, "session", "the mark is taken off", "session %s is marked damaged and is whole",
             r->id);
    r->damaged = false;
    return f->repair ? session_row_write(f->st, r, e) : OK;
}

static enum err check_session(struct fsck *f, const char *id, struct error *e)
{
    struct session_row r;
    struct error why = {0};
    uint64_t rebuilt = f->st->seen.chunks_rebuilt;
    enum err rc = session_row_read(f->st, id, &r, e);
    if (rc == ERR_NOTFOUND || (!rc && r.bad_row)) /* that is a row's finding */
        return OK;
    bool was_marked = r.damaged;
    if (rc || ((rc = read_session(f, id, &why)) && rc != ERR_CORRUPT))
        return rc;
    f->report.sessions++;
    if (f->st->seen.chunks_rebuilt > rebuilt)
        fsck_say(f, "session", "made again from the ids beside its state",
                 "session %s: %llu chunks of its tape were damaged", id,
                 (unsigned long long)(f->st->seen.chunks_rebuilt - rebuilt));
    if (rc == ERR_CORRUPT)
        fsck_say(f, "session", "none", "session %s: %.120s; it is served up to there", id,
                 why.msg);
    return rc == OK && was_marked ? clear_mark(f, &r, e) : OK;
}

static enum err next_session(struct fsck *f, char id[SESSION_ID_CAP], bool *found,
                             struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &f->st->db, "SELECT num, id FROM sessions WHERE num > ? ORDER BY num LIMIT 1", e);
    if (rc)
        return rc;
    query_int(&q, f->at);
    if ((rc = query_step(&q, found, e)) || !*found)
        return rc;
    struct error why;
    if (row_above(&q, 0, f->at, &why)) {
        fsck_say(f, "database", "none", "sessions: %.120s; the rest is not looked at", why.msg);
        *found = false;
        return OK;
    }
    f->at = row_int(&q, 0);
    snprintf(id, SESSION_ID_CAP, "%s", row_text(&q, 1) ? row_text(&q, 1) : "");
    return OK;
}

enum err fsck_sessions(struct fsck *f, bool *done, struct error *e)
{
    char id[SESSION_ID_CAP];
    bool found;
    enum err rc = next_session(f, id, &found, e);
    *done = !found;
    return rc || !found ? rc : check_session(f, id, e);
}

/* ---- what belongs to nobody -------------------------------------------------------------- */

#define OF_NOBODY "session NOT IN (SELECT num FROM sessions)"
/* Strands that some session's path goes through. */
#define USED_STRANDS                                                                           \
    "(WITH RECURSIVE s(id) AS (SELECT strand FROM sessions UNION"                              \
    " SELECT parent FROM strands JOIN s ON strands.id = s.id) SELECT id FROM s)"

static const struct {
    const char *name, *count, *drop;
} orphans[] = {
#define OF_SESSIONS(table)                                                                     \
    {                                                                                          \
        table, "SELECT count(*) FROM " table " WHERE " OF_NOBODY,                              \
            "DELETE FROM " table " WHERE " OF_NOBODY                                           \
    }
#define OF_STRANDS(table, key)                                                                 \
    {                                                                                          \
        table, "SELECT count(*) FROM " table " WHERE " key " NOT IN " USED_STRANDS,            \
            "DELETE FROM " table " WHERE " key " NOT IN " USED_STRANDS                         \
    }
    OF_SESSIONS("configs"),        OF_SESSIONS("calls"),
    OF_SESSIONS("turns"),          OF_SESSIONS("params"),
    OF_SESSIONS("heads"),          OF_SESSIONS("holds"),
    OF_STRANDS("tape", "strand"),  OF_STRANDS("segments", "strand"),
    OF_STRANDS("marks", "strand"), OF_STRANDS("events", "strand"),
    OF_STRANDS("strands", "id"),
};

/* A session row that cannot be trusted may be the owner: then nothing is taken from it. */
static enum err trusts_sessions(struct fsck *f, bool *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db, "SELECT " SESSION_COLS ", tag FROM sessions", e);
    *out = true;
    for (bool row = true; !rc && *out;) {
        if ((rc = query_step(&q, &row, e)) || !row)
            return rc;
        *out = row_check(&q, "sessions", NULL) == OK;
    }
    return rc;
}

static enum err count_of(struct fsck *f, const char *sql, uint64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db, sql, e);
    bool row = false;
    if (!rc && !(rc = query_step(&q, &row, e)))
        *out = row_uint(&q, 0);
    return rc;
}

static enum err run_sql(struct fsck *f, const char *sql, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db, sql, e);
    return rc ? rc : query_run(&q, e);
}

enum err fsck_orphans(struct fsck *f, bool *done, struct error *e)
{
    uint64_t n;
    bool trusted;
    enum err rc = count_of(f, orphans[f->table].count, &n, e);
    if (rc || (rc = trusts_sessions(f, &trusted, e)))
        return rc;
    if (n)
        fsck_say(f, "orphan", trusted ? "dropped" : "none", "%s: %llu rows of no session",
                 orphans[f->table].name, (unsigned long long)n);
    if (n && trusted && f->repair && (rc = run_sql(f, orphans[f->table].drop, e)))
        return rc;
    *done = ++f->table == sizeof orphans / sizeof orphans[0];
    return OK;
}

/* ---- the words --------------------------------------------------------------------------- */

/* One step, however long it takes. */
enum err fsck_search(struct fsck *f, bool *done, struct error *e)
{
    struct error why = {0};
    enum err rc = search_check(f->st, &why);
    *done = true;
    if (rc != ERR_CORRUPT)
        return rc ? err_set(e, rc, "%s", why.msg) : OK;
    fsck_say(f, "index", "made again from the events", "search: %.150s", why.msg);
    return f->repair ? search_rebuild(f->st, e) : OK;
}
