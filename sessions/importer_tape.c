#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/encode.h"
#include "sessions/importer.h"
#include "sessions/session_internal.h"
#include "sessions/strand.h"
#include "sessions/tape_internal.h"

/* ---- fields --------------------------------------------------------------------------------
 */

static enum err need_u32(const json_t *o, const char *field, uint32_t *out, struct error *e)
{
    int64_t v = 0;
    enum err rc = json_need_int(o, field, 0, UINT32_MAX, &v, e);
    *out = (uint32_t)v;
    return rc;
}

/* The bytes of the blob that a field names; NULL without one. */
static enum err opt_blob(const struct importer *x, const json_t *o, const char *field,
                         const void **bytes, size_t *n, struct error *e)
{
    const char *hex = NULL;
    size_t n_hex = 0;
    uint8_t hash[HASH_BYTES];
    enum err rc = json_opt_str(o, field, &hex, &n_hex, e);
    if (rc || !hex || (rc = hex_decode(hex, n_hex, hash, sizeof hash, e)))
        return rc;
    const struct bundle_file *f = bundle_find(&x->m, PART_BLOB, hash);
    if (!f)
        return err_set(e, ERR_FORMAT, "\"%s\": blob %.80s is not in the bundle", field, hex);
    *bytes = importer_member(x, f);
    *n = (size_t)f->bytes;
    return OK;
}

/* Text that has to be a JSON object. */
static enum err need_object_text(const json_t *o, const char *field, const char **out,
                                 struct error *e)
{
    static const struct json_limits limits = {
        .max_bytes = TAPE_JSON_MAX, .max_depth = 1024, .allow_nul = true};
    json_auto_t *j = NULL;
    size_t n = 0;
    const char *text = NULL;
    enum err rc = json_need_str(o, field, &text, NULL, e);
    if (rc)
        return rc;
    n = strlen(text);
    if ((rc = json_parse(text, n, &limits, &j, e)) || !json_is_object(j))
        return err_set(e, rc == ERR_NOMEM ? rc : ERR_FORMAT, "\"%s\": want a JSON object in it",
                       field);
    *out = text;
    return OK;
}

/* ---- the tape ------------------------------------------------------------------------------
 */

/* Of an ERR_LIMIT: whether it is the disk's, not that of something in the bundle. */
static bool is_disk_full(const struct store *st)
{
    int code = sqlite3_errcode(st->db.handle) & 0xff;
    return code == SQLITE_FULL || code == SQLITE_IOERR;
}

/* One step of the import's transaction. Whatever the tape refuses is the bundle's fault. */
enum err importer_apply(struct importer *x, struct tape_commit *c, uint64_t t_ms,
                        struct error *e)
{
    struct tape_receipt r;
    c->session = x->done.id;
    enum err rc = tape_apply(x->st, c, t_ms, &r, e);
    if (!rc && r.duplicate)
        rc = err_set(e, ERR_FORMAT, "turn %s has the client message of another", c->turn->id);
    if (rc == ERR_INVAL || rc == ERR_CONFLICT || rc == ERR_CORRUPT ||
        (rc == ERR_LIMIT && !is_disk_full(x->st)))
        rc = ERR_FORMAT;
    return rc;
}

static enum err read_segment(const json_t *j, struct tape_segment *s, struct error *e)
{
    static const char *const kinds[] = {"input", "generated", NULL};
    const char *mode = NULL, *digest = NULL;
    size_t n_digest = 0;
    int kind = 0;
    enum err rc;
    NEED_UINT(j, "start", s->seg.start);
    NEED_UINT(j, "len", s->seg.len);
    if ((rc = json_need_enum(j, "kind", kinds, &kind, e)) ||
        (rc = json_need_str(j, "mode", &mode, NULL, e)) ||
        (rc = prefill_mode_parse(mode, &s->seg.mode, e)) ||
        (rc = json_opt_str(j, "digest", &digest, &n_digest, e)))
        return rc;
    s->seg.kind = kind ? SEGMENT_GENERATED : SEGMENT_INPUT;
    s->has_digest = digest != NULL;
    if (!digest)
        return OK;
    NEED_UINT(j, "rows", s->n_rows);
    return hex_decode(digest, n_digest, s->digest, sizeof s->digest, e);
}

/* Ids, segments and marks: the whole tape in one step. */
enum err importer_write_tape(struct importer *x, struct error *e)
{
    const struct bundle_file *f = &x->m.files[PART_TAPE];
    json_t *segments = NULL, *marks = NULL;
    enum err rc;
    if ((rc = json_need_arr(x->session, "segments", &segments, e)) ||
        (rc = json_need_arr(x->session, "marks", &marks, e)))
        return rc;
    size_t n_segments = json_array_size(segments), n_marks = json_array_size(marks);
    AUTO_FREE uint32_t *ids = malloc((size_t)f->bytes + 4);
    AUTO_FREE struct tape_segment *s = calloc(n_segments + 1, sizeof *s);
    AUTO_FREE struct replay_mark *m = calloc(n_marks + 1, sizeof *m);
    if (!ids || !s || !m)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    memcpy(ids, importer_member(x, f), (size_t)f->bytes);
    for (size_t i = 0; i < n_segments; i++)
        if ((rc = read_segment(json_array_get(segments, i), &s[i], e)))
            return err_wrap(e, ERR_FORMAT, "segment %zu", i);
    for (size_t i = 0; i < n_marks; i++) {
        NEED_UINT(json_array_get(marks, i), "at", m[i].at);
        NEED_UINT(json_array_get(marks, i), "from", m[i].from);
    }
    x->done.tokens = f->bytes / 4;
    struct tape_commit c = {.ids = ids,
                            .n_ids = f->bytes / 4,
                            .segments = s,
                            .n_segments = n_segments,
                            .marks = m,
                            .n_marks = n_marks};
    return importer_apply(x, &c, store_now_ms(x->st), e);
}

/* ---- items, and turns between them ---------------------------------------------------------
 */

static enum err write_turn(struct importer *x, const json_t *j, struct error *e)
{
    struct tape_turn t = {.finished = true};
    uint64_t created;
    enum err rc;
    if ((rc = json_need_str(j, "id", &t.id, NULL, e)) ||
        (rc = json_opt_str(j, "clientMessageId", &t.client_message, NULL, e)) ||
        (rc = need_object_text(j, "params", &t.params, e)) ||
        (rc = need_object_text(j, "ledger", &t.ledger, e)) ||
        (rc = json_need_str(j, "state", &t.state, NULL, e)) ||
        (rc = json_need_str(j, "reason", &t.reason, NULL, e)) ||
        (rc = need_u32(j, "step", &t.step, e)))
        return rc;
    NEED_UINT(j, "forcedNext", t.forced_next);
    NEED_UINT(j, "createdMs", created);
    struct tape_commit c = {.turn = &t};
    return importer_apply(x, &c, created, e);
}

/* Turns whose receipt is the event that comes next: their row says so, made at this point. */
static enum err write_turns_before(struct importer *x, struct error *e)
{
    const json_t *turns = json_object_get(x->session, "turns");
    for (; x->turn < json_array_size(turns); x->turn++) {
        const json_t *j = json_array_get(turns, x->turn);
        uint64_t first;
        NEED_UINT(j, "firstSeq", first);
        if (first != x->seq + 1)
            break;
        enum err rc = write_turn(x, j, e);
        if (rc)
            return err_wrap(e, rc, "turn %zu", x->turn);
    }
    return OK;
}

/* As a compaction does it: the session goes on from nothing, on a strand of its own, so that
 * no fork of what was said before takes tokens for it that were said after. */
static enum err begin_anew(struct importer *x, struct error *e)
{
    struct session_row row;
    enum err rc = session_row_read(x->st, x->done.id, &row, e);
    if (rc || (rc = strand_new(x->st, row.strand, 0, x->seq, &row.strand, e)))
        return rc;
    x->max_position = 0;
    x->restart++;
    return session_row_write(x->st, &row, e);
}

static enum err restarts_before(struct importer *x, struct error *e)
{
    const json_t *restarts = json_object_get(x->session, "restarts");
    const json_t *next = json_array_get(restarts, x->restart);
    if (!next)
        return OK;
    if (!json_is_integer(next) || json_integer_value(next) < (json_int_t)x->seq)
        return err_set(e, ERR_FORMAT, "restart %zu: want a seq, in order", x->restart);
    return json_integer_value(next) == (json_int_t)x->seq ? begin_anew(x, e) : OK;
}

static enum err write_event(struct importer *x, const json_t *j, struct error *e)
{
    struct tape_event ev = {0};
    uint64_t seq, t;
    enum err rc;
    NEED_UINT(j, "seq", seq);
    NEED_UINT(j, "t", t);
    NEED_UINT(j, "position", ev.position);
    if (seq != x->seq + 1)
        return err_set(e, ERR_FORMAT, "has seq %llu", (unsigned long long)seq);
    const json_t *data = json_object_get(j, "data");
    if (data && !json_is_object(data))
        return err_set(e, ERR_FORMAT, "\"data\": want an object");
    if ((rc = json_need_str(j, "type", &ev.type, NULL, e)) ||
        (rc = json_opt_str(j, "turn", &ev.turn, NULL, e)) ||
        (rc = json_opt_str(j, "item", &ev.item, NULL, e)) ||
        (rc = json_opt_str(j, "kind", &ev.kind, NULL, e)) ||
        (rc = opt_blob(x, j, "blob", &ev.bytes, &ev.n_bytes, e)))
        return rc;
    AUTO_FREE char *text = data ? json_dumps(data, JSON_COMPACT) : NULL;
    if (data && !text)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    ev.json = text;
    struct tape_commit c = {.events = &ev, .n_events = 1, .any_position = true};
    if ((rc = importer_apply(x, &c, t, e)))
        return rc;
    x->seq++;
    if (ev.position > x->max_position)
        x->max_position = ev.position;
    return OK;
}

enum err importer_write_items(struct importer *x, struct error *e)
{
    static const struct json_limits limits = {
        .max_bytes = 2 * (size_t)TAPE_JSON_MAX, .max_depth = 1024, .allow_nul = true};
    const struct bundle_file *f = &x->m.files[PART_ITEMS];
    const char *at = importer_member(x, f), *end = at + f->bytes;
    while (at < end) {
        json_auto_t *line = NULL;
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        enum err rc = nl ? OK : err_set(e, ERR_FORMAT, "has no end of line");
        if (!rc)
            rc = json_parse(at, (size_t)(nl - at), &limits, &line, e);
        if (rc == ERR_LIMIT)
            rc = ERR_FORMAT;
        if (!rc)
            rc = restarts_before(x, e);
        if (!rc)
            rc = write_turns_before(x, e);
        if (!rc)
            rc = write_event(x, line, e);
        if (rc)
            return err_wrap(e, rc, BUNDLE_ITEMS " line %llu", (unsigned long long)x->seq + 1);
        at = nl + 1;
    }
    enum err rc = restarts_before(x, e);
    if (!rc)
        rc = write_turns_before(x, e);
    if (!rc && x->restart < json_array_size(json_object_get(x->session, "restarts")))
        rc = err_set(e, ERR_FORMAT, "restart %zu: there is no such event", x->restart);
    if (!rc && x->turn < json_array_size(json_object_get(x->session, "turns")))
        rc = err_set(e, ERR_FORMAT, "turn %zu: no event is its first", x->turn);
    return rc;
}

/* ---- calls ---------------------------------------------------------------------------------
 */

static enum err write_call(struct importer *x, const json_t *j, struct error *e)
{
    struct tape_call call = {0};
    const char *status = NULL;
    const void *result = NULL;
    size_t n_result = 0;
    uint64_t created, ended;
    enum err rc;
    if ((rc = json_need_str(j, "id", &call.id, NULL, e)) ||
        (rc = json_need_str(j, "turn", &call.turn, NULL, e)) ||
        (rc = json_opt_str(j, "item", &call.item, NULL, e)) ||
        (rc = json_need_str(j, "name", &call.name, NULL, e)) ||
        (rc = json_need_str(j, "arguments", &call.arguments, NULL, e)) ||
        (rc = need_u32(j, "step", &call.step, e)) ||
        (rc = need_u32(j, "index", &call.index, e)) ||
        (rc = json_need_str(j, "status", &status, NULL, e)) ||
        (rc = json_need_bool(j, "isError", &call.is_error, e)) ||
        (rc = json_need_bool(j, "ingested", &call.ingested, e)) ||
        (rc = opt_blob(x, j, "result", &result, &n_result, e)))
        return rc;
    NEED_UINT(j, "createdMs", created);
    NEED_UINT(j, "endedMs", ended);
    struct tape_commit c = {.calls = &call, .n_calls = 1};
    call.status = CALL_STARTED;
    if ((rc = importer_apply(x, &c, created, e)))
        return rc;
    if (call_status_parse(status, &call.status, e) || call_is_open(call.status))
        return err_set(e, ERR_FORMAT, "status %.40s: want one with an outcome", status);
    call.result = result;
    call.n_result = n_result;
    return importer_apply(x, &c, ended, e);
}

enum err importer_write_calls(struct importer *x, struct error *e)
{
    json_t *calls = NULL;
    enum err rc = json_need_arr(x->session, "calls", &calls, e);
    for (size_t i = 0; !rc && i < json_array_size(calls); i++)
        if ((rc = write_call(x, json_array_get(calls, i), e)))
            return err_wrap(e, rc, "call %zu", i);
    x->done.calls = json_array_size(calls);
    return rc;
}
