#include "sessions/search.h"

#include <ctype.h>
#include <string.h>

#include "base/json.h"
#include "base/redact.h"
#include "sessions/schema.h"
#include "sessions/session_internal.h"
#include "sessions/tape_internal.h"

#define DEFAULT_HITS 50
#define BEFORE_BYTES 48 /* of a snippet, in front of the match */
#define SNIPPET_BYTES 192
#define TEXT_MAX (1u << 20) /* bytes of an item that are searched */
#define RENEW_EVENTS 32     /* of a step of search_renew */
#define MATCH_BEGIN '\002'  /* what highlight() puts in front of a match */

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* ---- what an item says ------------------------------------------------------------------- */

static enum err add_field(struct buf *out, const json_t *item, const char *field,
                          struct error *e)
{
    const json_t *v = json_object_get(item, field);
    if (!v || json_is_null(v))
        return OK;
    enum err rc = out->len ? buf_add_byte(out, ' ', e) : OK;
    if (!rc && json_is_string(v))
        rc = buf_add(out, json_string_value(v), json_string_length(v), e);
    else if (!rc)
        rc = json_write(v, JSON_COMPACT, out, e);
    return rc;
}

/* The text of an event's item, or the name and the arguments of a call; "" of anything else. */
static enum err add_item_text(const char *json, size_t n, struct buf *out, struct error *e)
{
    static const struct json_limits limits = {
        .max_bytes = TAPE_JSON_MAX, .max_depth = 1024, .allow_nul = true};
    json_auto_t *j = NULL;
    enum err rc = json_parse(json, n, &limits, &j, e);
    if (rc)
        return rc == ERR_NOMEM ? rc : OK;
    const json_t *item = json_object_get(j, "item");
    if ((rc = add_field(out, item, "text", e)) || (rc = add_field(out, item, "name", e)))
        return rc;
    return add_field(out, item, "arguments", e);
}

/* The SQL function item_text(json). Not one of SQLite's for JSON: those are not to be trusted
 * in a schema before 3.43. */
static void item_text(sqlite3_context *ctx, int n_args, sqlite3_value **args)
{
    AUTO(buf) struct buf b = BUF_INIT(4 * TAPE_JSON_MAX);
    const char *json = (const char *)sqlite3_value_text(args[0]);
    size_t n = (size_t)sqlite3_value_bytes(args[0]);
    (void)n_args;
    if (json && add_item_text(json, n, &b, NULL)) {
        sqlite3_result_error_nomem(ctx);
        return;
    }
    if (b.len > TEXT_MAX)
        b.len = TEXT_MAX;
    while (b.len && b.len == TEXT_MAX && is_continuation((char)b.data[b.len - 1]))
        b.len--;
    for (size_t i = 0; i < b.len; i++)
        if (!b.data[i])
            b.data[i] = ' ';
    sqlite3_result_text64(ctx, buf_str(&b), b.len, SQLITE_TRANSIENT, SQLITE_UTF8);
}

enum err search_register(struct db *db, struct error *e)
{
    int rc = sqlite3_create_function_v2(db->handle, "item_text", 1,
                                        SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS,
                                        NULL, item_text, NULL, NULL, NULL);
    return rc ? db_error(db, rc, e, "database") : OK;
}

/* ---- upkeep ------------------------------------------------------------------------------ */

/* One statement over the index, with two numbers; ?3 is the last id that it has. */
static enum err run(struct store *st, const char *sql, int64_t a, int64_t b, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db, sql, e);
    if (!rc) {
        query_int(&q, a);
        query_int(&q, b);
        query_int(&q, st->search_is_partial ? st->search_upto : INT64_MAX);
        rc = query_run(&q, e);
    }
    if (rc)
        db_note_index(&st->db);
    return rc;
}

/* Seq of the item's version before this one in the same strand; 0: none. */
static enum err version_before(struct store *st, int64_t strand, uint64_t seq, const char *item,
                               uint64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT ifnull(max(seq), 0) FROM events"
                             " WHERE strand = ? AND item = ? AND seq < ?",
                             e);
    if (rc)
        return rc;
    query_int(&q, strand);
    query_text(&q, item);
    query_uint(&q, seq);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *out = row_uint(&q, 0);
    return rc;
}

enum err search_add(struct store *st, int64_t strand, uint64_t seq, const char *item,
                    struct error *e)
{
    uint64_t before;
    enum err rc = version_before(st, strand, seq, item, &before, e);
    if (!rc && before)
        rc = run(st,
                 "INSERT INTO search(search, rowid, text) SELECT 'delete', " SEARCH_ID
                 ", item_text(json) FROM events WHERE strand = ?1 AND seq = ?2"
                 " AND " SEARCH_ID " <= ?3",
                 strand, (int64_t)before, e);
    if (!rc)
        rc = run(st,
                 "INSERT INTO search(rowid, text) SELECT " SEARCH_ID ", item_text(json)"
                 " FROM events WHERE strand = ?1 AND seq = ?2 AND " SEARCH_ID " <= ?3",
                 strand, (int64_t)seq, e);
    return rc;
}

enum err search_drop(struct store *st, int64_t strand, uint64_t seq, struct error *e)
{
    return run(st,
               "INSERT INTO search(search, rowid, text) SELECT 'delete', id, text"
               " FROM search_source WHERE id > ?1 << 32 | ?2 AND id < (?1 + 1) << 32"
               " AND id <= ?3",
               strand, (int64_t)seq, e);
}

/* An empty index first: of some damage FTS5 does not even open its tables to be made again. */
#define EMPTY_INDEX                                                                            \
    "INSERT OR REPLACE INTO search_config(k, v) VALUES('version', 4);"                         \
    "DELETE FROM search_data; DELETE FROM search_idx;"                                         \
    "INSERT INTO search_data VALUES(1, x''), (10, x'00000000000000');"

enum err search_rebuild(struct store *st, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    bool is_alone = sqlite3_get_autocommit(st->db.handle); /* else: part of one that is open */
    enum err rc = is_alone ? txn_begin(&t, &st->db, e) : OK;
    if (!rc)
        rc = db_exec(&st->db,
                     EMPTY_INDEX "INSERT INTO search(search) VALUES('rebuild');"
                                 "DELETE FROM meta WHERE key = 'search'",
                     e);
    if (!rc && is_alone)
        rc = txn_commit(&t, e);
    if (rc)
        return err_wrap(e, rc, "search index");
    st->search_is_partial = false;
    return OK;
}

/* The id up to which the next step goes; *found false: nothing is left. */
static enum err next_upto(struct store *st, bool *found, int64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &st->db,
                             "SELECT max(id) FROM (SELECT " SEARCH_ID " AS id FROM events"
                             " WHERE " SEARCH_ID " > ? ORDER BY " SEARCH_ID " LIMIT ?)",
                             e);
    bool row = false;
    if (rc)
        return rc;
    query_int(&q, st->search_upto);
    query_int(&q, RENEW_EVENTS);
    if ((rc = query_step(&q, &row, e)))
        return rc;
    *out = row ? row_int(&q, 0) : 0;
    *found = *out != 0;
    return *found ? row_above(&q, 0, st->search_upto, e) : OK;
}

/* One more stretch of ids, from a to b. */
static enum err renew_some(struct store *st, int64_t a, int64_t b, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &st->db,
                   "INSERT INTO search(rowid, text) SELECT id, text FROM search_source"
                   " WHERE id > ? AND id <= ?",
                   e);
    if (rc)
        return rc;
    query_int(&q, a);
    query_int(&q, b);
    if ((rc = query_run(&q, e)))
        return rc;
    return meta_write(st, "search", &b, sizeof b, e);
}

static enum err renew_begin(struct store *st, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    int64_t zero = 0;
    enum err rc = txn_begin(&t, &st->db, e);
    if (rc ||
        (rc = db_exec(&st->db, EMPTY_INDEX "INSERT INTO search(search) VALUES('delete-all')",
                      e)) ||
        (rc = meta_write(st, "search", &zero, sizeof zero, e)) || (rc = txn_commit(&t, e)))
        return rc;
    st->search_is_partial = true;
    st->search_upto = 0;
    return OK;
}

static enum err renew_step(struct store *st, bool *done, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    int64_t upto = 0;
    bool found;
    enum err rc = txn_begin(&t, &st->db, e);
    if (rc || (rc = next_upto(st, &found, &upto, e)) ||
        (found && (rc = renew_some(st, st->search_upto, upto, e))) ||
        (!found && (rc = db_exec(&st->db, "DELETE FROM meta WHERE key = 'search'", e))) ||
        (rc = txn_commit(&t, e)))
        return rc;
    st->search_is_partial = found;
    st->search_upto = upto;
    *done = !found;
    return OK;
}

enum err search_renew(struct store *st, bool *done, struct error *e)
{
    *done = false;
    enum err rc = st->search_is_partial ? renew_step(st, done, e) : renew_begin(st, e);
    return rc ? err_wrap(e, rc, "search index") : OK;
}

enum err search_open(struct store *st, struct error *e)
{
    AUTO(query) struct query q = {0};
    bool row = false;
    enum err rc = query_init(&q, &st->db, "SELECT 1 FROM meta WHERE key = 'search'", e);
    if (rc || (rc = query_step(&q, &row, e)) || !row)
        return rc;
    query_fini(&q);
    return search_rebuild(st, e);
}

enum err search_check(struct store *st, struct error *e)
{
    enum err rc = db_exec(&st->db, "INSERT INTO search(search) VALUES('integrity-check')", e);
    if (rc)
        db_note_index(&st->db);
    if (rc && st->db.index_damaged)
        rc = ERR_CORRUPT;
    st->db.index_damaged = false;
    return rc ? err_wrap(e, rc, "search index") : OK;
}

enum err search_uncover(struct store *st, int64_t strand, struct error *e)
{
    return run(st,
               "INSERT INTO search(rowid, text) SELECT id, text FROM search_source"
               " WHERE id >= ?1 << 32 AND id < (?1 + ?2) << 32"
               " AND id <= ?3 AND id NOT IN (SELECT id FROM search_docsize)",
               strand, 1, e);
}

bool search_mend(struct store *st)
{
    if (!st->db.index_damaged)
        return false;
    st->db.index_damaged = false;
    if (search_rebuild(st, NULL))
        return false;
    st->seen.indexes_rebuilt++;
    return true;
}

/* ---- the query --------------------------------------------------------------------------- */

static bool is_word_byte(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

/* One string of FTS5's language, whatever stands in it. */
static enum err add_string(struct buf *out, const char *s, size_t n, bool is_prefix,
                           struct error *e)
{
    enum err rc = buf_add_str(out, out->len ? " \"" : "\"", e);
    for (size_t i = 0; i < n && !rc; i++)
        rc = buf_add_str(out, s[i] == '"' ? "\"\"" : (char[]){s[i], 0}, e);
    return rc ? rc : buf_add_str(out, is_prefix ? "\"*" : "\"", e);
}

/* Nothing a user types is an operator but quotes and a star: "a AND b" is three words. */
static enum err translate(const char *s, struct buf *out, struct error *e)
{
    bool any = false;
    if (strlen(s) > SEARCH_QUERY_MAX)
        return err_set(e, ERR_INVAL, "search: a query of %zu bytes, at most %u", strlen(s),
                       SEARCH_QUERY_MAX);
    while (*(s += strspn(s, " \t\n\r"))) {
        bool quoted = *s == '"';
        s += quoted;
        size_t n = strcspn(s, quoted ? "\"" : " \t\n\r\""), words = 0;
        for (size_t i = 0; i < n; i++)
            words += is_word_byte(s[i]);
        bool star = !quoted && n && s[n - 1] == '*';
        enum err rc = words ? add_string(out, s, n - star, star, e) : OK;
        if (rc)
            return rc;
        any |= words > 0;
        s += n + (quoted && s[n] == '"');
    }
    return any ? OK : err_set(e, ERR_INVAL, "search: no word in the query");
}

/* ---- snippets ---------------------------------------------------------------------------- */

/* Bytes of text in front of its first match; marked is the same text with marks. */
static size_t match_offset(const char *marked)
{
    const char *mark = strchr(marked, MATCH_BEGIN);
    return mark ? (size_t)(mark - marked) : 0;
}

/* text[0, n) around `at`, on character borders, blanks and line ends as one blank each. */
static enum err cut_snippet(const char *text, size_t n, size_t at, struct buf *out,
                            struct error *e)
{
    size_t from = at > BEFORE_BYTES ? at - BEFORE_BYTES : 0, to = from + SNIPPET_BYTES;
    while (from > 0 && is_continuation(text[from]))
        from--;
    if (to > n)
        to = n;
    while (to < n && is_continuation(text[to]))
        to++;
    buf_clear(out);
    enum err rc = from ? buf_add_str(out, "…", e) : OK;
    bool blank = true;
    for (size_t i = from; i < to && !rc; i++) {
        bool is_blank = isspace((unsigned char)text[i]) != 0;
        if (!is_blank)
            rc = buf_add_byte(out, (uint8_t)text[i], e);
        else if (!blank)
            rc = buf_add_byte(out, ' ', e);
        blank = is_blank;
    }
    return rc || to == n ? rc : buf_add_str(out, "…", e);
}

/* ---- hits -------------------------------------------------------------------------------- */

struct finder {
    struct store *st;
    const struct search_query *q;
    search_fn *fn;
    void *user;
    struct buf clean, head, snippet;
};

static void finder_fini(struct finder *f)
{
    buf_fini(&f->clean);
    buf_fini(&f->head);
    buf_fini(&f->snippet);
}

/* Without its secrets, which a cut could leave half of. A match begins a word, so what stands
 * in front of it is as long alone as it is in the whole. */
static enum err make_snippet(struct finder *f, const char *text, const char *marked,
                             struct error *e)
{
    size_t n = strlen(text), at = match_offset(marked);
    buf_clear(&f->clean);
    buf_clear(&f->head);
    enum err rc = redact_text(text, n, &f->clean, NULL, e);
    if (!rc)
        rc = redact_text(text, at < n ? at : n, &f->head, NULL, e);
    if (rc)
        return rc;
    at = f->head.len < f->clean.len ? f->head.len : f->clean.len;
    return cut_snippet(buf_str(&f->clean), f->clean.len, at, &f->snippet, e);
}

/* The oldest session (or the wanted one) that has event seq of the strand. */
static enum err whose(struct finder *f, int64_t strand, uint64_t seq, char id[SESSION_ID_CAP],
                      struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db,
                             "WITH RECURSIVE below(id) AS (SELECT ?1 UNION SELECT s.id FROM"
                             " strands AS s JOIN below AS b ON s.parent = b.id"
                             " WHERE s.parent_seq >= ?2)"
                             " SELECT id FROM sessions WHERE strand IN (SELECT id FROM below)"
                             " AND (?3 IS NULL OR id = ?3) ORDER BY num LIMIT 1",
                             e);
    if (rc)
        return rc;
    query_int(&q, strand);
    query_uint(&q, seq);
    query_text(&q, f->q->session);
    bool row;
    if ((rc = query_step(&q, &row, e)))
        return rc;
    snprintf(id, SESSION_ID_CAP, "%s", row && row_text(&q, 0) ? row_text(&q, 0) : "");
    return OK;
}

/* Whether a strand between the session's and this one has a newer version of the item. */
static enum err is_superseded(struct finder *f, int64_t top, int64_t strand, uint64_t seq,
                              const char *item, bool *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &f->st->db,
                   "WITH RECURSIVE up(id, last) AS (SELECT ?1, 1 << 62 UNION ALL"
                   " SELECT s.parent, s.parent_seq FROM strands AS s JOIN up ON s.id = up.id"
                   " WHERE up.id <> ?2 AND s.parent <> 0)"
                   " SELECT EXISTS(SELECT 1 FROM up JOIN events AS e ON e.strand = up.id"
                   " WHERE e.item = ?4 AND e.seq > ?3 AND e.seq <= up.last)",
                   e);
    if (rc)
        return rc;
    query_int(&q, top);
    query_int(&q, strand);
    query_uint(&q, seq);
    query_text(&q, item);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *out = row_int(&q, 0) != 0;
    return rc;
}

static enum err hand_over(struct finder *f, const struct session_row *s,
                          const struct tape_event *ev, const struct query *match, bool *go_on,
                          struct error *e)
{
    enum err rc = make_snippet(f, row_text(match, 1), row_text(match, 2), e);
    if (rc)
        return rc;
    struct search_hit hit = {.session = s->id,
                             .name = s->name,
                             .seq = ev->seq,
                             .t_ms = ev->t_ms,
                             .item = ev->item,
                             .kind = ev->kind ? ev->kind : "",
                             .turn = ev->turn,
                             .snippet = buf_str(&f->snippet)};
    *go_on = f->fn(f->user, &hit);
    return OK;
}

/* The event of a match, if a session shows it. The index only points: what is shown has a tag
 * that holds. *shown: it counts as a hit. */
static enum err take_match(struct finder *f, const struct query *match, bool *shown,
                           bool *go_on, struct error *e)
{
    uint64_t id = row_uint(match, 0), seq = id & UINT32_MAX;
    int64_t strand = (int64_t)(id >> 32);
    struct session_row s;
    struct tape_event ev;
    char session[SESSION_ID_CAP];
    bool found = false, old = false;
    enum err rc = row_text(match, 1) ? whose(f, strand, seq, session, e) : OK;
    *shown = false;
    if (rc || !row_text(match, 1) || !session[0])
        return rc;
    if ((rc = session_row_read(f->st, session, &s, e)) || s.bad_row)
        return rc;
    AUTO(query) struct query q = {0};
    rc = query_init(&q, &f->st->db,
                    "SELECT " EVENT_COLS ", tag FROM events WHERE strand = ? AND seq = ?", e);
    if (rc)
        return rc;
    query_int(&q, strand);
    query_uint(&q, seq);
    if ((rc = query_step(&q, &found, e)) || !found || tape_take_event(&q, &ev, NULL) ||
        (rc = is_superseded(f, s.strand, strand, seq, ev.item, &old, e)) || old)
        return rc;
    *shown = true;
    return hand_over(f, &s, &ev, match, go_on, e);
}

static enum err run_query(struct finder *f, const char *match, bool *more, struct error *e)
{
    uint32_t left = f->q->limit ? f->q->limit : DEFAULT_HITS;
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &f->st->db,
                             "SELECT rowid, text, highlight(search, 0, char(2), '') FROM search"
                             " WHERE search MATCH ? ORDER BY rank",
                             e);
    if (rc) {
        db_note_index(&f->st->db);
        return rc;
    }
    query_text(&q, match);
    for (bool row = true, shown, go_on = true; go_on;) {
        if ((rc = query_step(&q, &row, e)))
            db_note_index(&f->st->db);
        if (rc || !row)
            return rc;
        if (left == 0) {
            *more = true;
            return OK;
        }
        if ((rc = take_match(f, &q, &shown, &go_on, e)))
            return rc;
        left -= shown;
    }
    return OK;
}

enum err search_run(struct store *st, const struct search_query *q, search_fn *fn, void *user,
                    bool *more, struct error *e)
{
    AUTO(buf) struct buf match = BUF_INIT(4 * SEARCH_QUERY_MAX);
    AUTO(finder) struct finder f = {.st = st, .q = q, .fn = fn, .user = user};
    struct session_row s;
    bool cut = false;
    buf_init(&f.clean, 4 * TEXT_MAX); /* a mark may be longer than what it hides */
    buf_init(&f.head, 4 * TEXT_MAX);
    buf_init(&f.snippet, 4 * SNIPPET_BYTES);
    if (st->search_is_partial)
        return err_set(e, ERR_BUSY, "the search index is being made again: try again");
    if (q->limit > SEARCH_MAX_HITS)
        return err_set(e, ERR_INVAL, "search: at most %u hits", SEARCH_MAX_HITS);
    enum err rc = translate(q->text, &match, e);
    if (!rc && q->session)
        rc = session_row_need(st, q->session, &s, e);
    if (!rc)
        rc = run_query(&f, buf_str(&match), &cut, e);
    /* Before any hit was shown or after: nobody has a right answer from a damaged index. */
    if (rc && search_mend(st))
        return err_set(e, ERR_BUSY,
                       "the search index was damaged and is made again: try again");
    if (!rc && more)
        *more = cut;
    return rc;
}
