#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fs.h"
#include "base/json.h"
#include "sessions/bundle_internal.h"
#include "sessions/bundle_kv.h"
#include "sessions/search.h"
#include "sessions/session_internal.h"
#include "sessions/strand.h"
#include "sessions/tape_internal.h"

#define PIECE (256u << 10)
#define NAME_TRIES 1000

/* A bundle on its way in: members lie in the spool, hashed, before any of them is looked at. */
struct importer {
    struct store *st;
    const struct bundle_import *o;
    struct bundle_manifest m;
    int spool;
    const uint8_t *bytes; /* the spool, mapped */
    json_t *session;
    struct bundle_state state; /* position 0: none */
    bool has_state;            /* and it is to be taken */
    uint64_t seq;              /* events written */
    size_t turn;               /* turns written */
    size_t restart;            /* restarts done */
    uint64_t max_position;     /* of events since the tape began anew */
    struct bundle_imported done;
};

static void importer_fini(struct importer *x)
{
    if (x->bytes)
        munmap((void *)(uintptr_t)x->bytes, (size_t)x->m.total);
    if (x->spool >= 0)
        close(x->spool);
    bundle_manifest_fini(&x->m);
    json_decref(x->session);
    bundle_state_fini(&x->state);
}

/* ---- unpacking --------------------------------------------------------------------------- */

static enum err open_file(const char *path, int *fd, struct error *e)
{
    struct stat sb;
    AUTO_FD int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f < 0)
        return err_sys(e, errno, "open %s", path);
    if (fstat(f, &sb))
        return err_sys(e, errno, "stat %s", path);
    if (!S_ISREG(sb.st_mode))
        return err_set(e, ERR_FORMAT, "%s is no file", path);
    *fd = TAKE_FD(f);
    return OK;
}

static enum err read_manifest(struct importer *x, struct archive_in *a, struct error *e)
{
    char name[ARCHIVE_NAME_CAP];
    uint64_t n;
    archive_in_allow(a, ARCHIVE_BLOCK);
    enum err rc = archive_in_member(a, name, &n, e);
    if (rc)
        return rc;
    if (strcmp(name, "manifest.json") != 0)
        return err_set(e, ERR_FORMAT, "bundle: begins with %.80s, not manifest.json", name);
    if (n == 0 || n > BUNDLE_MAX_MANIFEST)
        return err_set(e, ERR_FORMAT, "bundle: a manifest of %llu bytes",
                       (unsigned long long)n);
    AUTO_FREE char *text = malloc((size_t)n);
    if (!text)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    archive_in_allow(a, archive_member_bytes(n) - ARCHIVE_BLOCK);
    if ((rc = archive_in_read(a, text, (size_t)n, e)))
        return rc;
    return bundle_manifest_read(text, (size_t)n, &x->m, e);
}

/* One member into the spool; its hash has to be what the manifest says. */
static enum err unpack_member(struct importer *x, struct archive_in *a, struct bundle_file *f,
                              uint64_t at, uint8_t *piece, struct error *e)
{
    char name[ARCHIVE_NAME_CAP], want[ARCHIVE_NAME_CAP];
    uint64_t n;
    struct hash h;
    uint8_t hash[HASH_BYTES];
    archive_in_allow(a, archive_member_bytes(f->bytes));
    enum err rc = archive_in_member(a, name, &n, e);
    if (rc)
        return rc;
    bundle_file_name(f, want);
    if (strcmp(name, want) != 0 || n != f->bytes)
        return err_set(e, ERR_FORMAT,
                       "bundle: %.80s of %llu bytes stands where %s of %llu must", name,
                       (unsigned long long)n, want, (unsigned long long)f->bytes);
    f->at = at;
    hash_init(&h, NULL, HASH_BYTES);
    for (uint64_t done = 0; done < n && !rc;) {
        size_t k = n - done < PIECE ? (size_t)(n - done) : PIECE;
        if (!(rc = archive_in_read(a, piece, k, e)))
            rc = fs_pwrite(x->spool, "bundle spool", piece, k, at + done, e);
        hash_add(&h, piece, k);
        done += k;
    }
    hash_final(&h, hash);
    if (!rc && memcmp(hash, f->hash, sizeof hash) != 0)
        rc = err_set(e, ERR_FORMAT, "bundle: %s is not what its hash says", want);
    return rc;
}

static enum err unpack_all(struct importer *x, struct archive_in *a, struct error *e)
{
    AUTO_FREE uint8_t *piece = calloc(1, PIECE);
    if (!piece)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    enum err rc = read_manifest(x, a, e);
    if (rc)
        return rc;
    if (x->m.redacted)
        return err_set(
            e, ERR_FORMAT,
            "bundle: redacted, its tape is left out: it can be read, not gone on from");
    if ((rc = bundle_spool_open(sqlite3_db_filename(x->st->db.handle, "main"), &x->spool, e)))
        return rc;
    uint64_t at = 0;
    for (size_t i = 0; i < x->m.n_files && !rc; i++) {
        rc = unpack_member(x, a, &x->m.files[i], at, piece, e);
        at += x->m.files[i].bytes;
    }
    return rc ? rc : archive_in_finish(a, e);
}

static enum err unpack(struct importer *x, struct error *e)
{
    struct archive_in *a = NULL;
    AUTO_FD int fd = -1;
    enum err rc = open_file(x->o->path, &fd, e);
    if (rc || (rc = archive_in_open(fd, &a, e)))
        return rc;
    rc = unpack_all(x, a, e);
    archive_in_free(a);
    if (rc || !x->m.total)
        return rc;
    void *p = mmap(NULL, (size_t)x->m.total, PROT_READ, MAP_PRIVATE, x->spool, 0);
    if (p == MAP_FAILED)
        return err_sys(e, errno, "map bundle spool");
    x->bytes = p;
    return OK;
}

static const char *member(const struct importer *x, const struct bundle_file *f)
{
    return x->bytes ? (const char *)x->bytes + f->at : "";
}

/* ---- fields ------------------------------------------------------------------------------ */

#define NEED_UINT(object, field, out)                                                          \
    do {                                                                                       \
        int64_t v_ = 0;                                                                        \
        enum err rc_ = json_need_int(object, field, 0, INT64_MAX, &v_, e);                     \
        if (rc_)                                                                               \
            return rc_;                                                                        \
        (out) = (uint64_t)v_;                                                                  \
    } while (0)

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
    *bytes = member(x, f);
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

/* ---- writing ----------------------------------------------------------------------------- */

/* Of an ERR_LIMIT: whether it is the disk's, not that of something in the bundle. */
static bool is_disk_full(const struct store *st)
{
    int code = sqlite3_errcode(st->db.handle) & 0xff;
    return code == SQLITE_FULL || code == SQLITE_IOERR;
}

/* One step of the import's transaction. Whatever the tape refuses is the bundle's fault. */
static enum err apply(struct importer *x, struct tape_commit *c, uint64_t t_ms, struct error *e)
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
static enum err write_tape(struct importer *x, struct error *e)
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
    memcpy(ids, member(x, f), (size_t)f->bytes);
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
    return apply(x, &c, store_now_ms(x->st), e);
}

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
    return apply(x, &c, created, e);
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
    if ((rc = apply(x, &c, t, e)))
        return rc;
    x->seq++;
    if (ev.position > x->max_position)
        x->max_position = ev.position;
    return OK;
}

static enum err write_items(struct importer *x, struct error *e)
{
    static const struct json_limits limits = {
        .max_bytes = 2 * (size_t)TAPE_JSON_MAX, .max_depth = 1024, .allow_nul = true};
    const struct bundle_file *f = &x->m.files[PART_ITEMS];
    const char *at = member(x, f), *end = at + f->bytes;
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
    if ((rc = apply(x, &c, created, e)))
        return rc;
    if (call_status_parse(status, &call.status, e) || call_is_open(call.status))
        return err_set(e, ERR_FORMAT, "status %.40s: want one with an outcome", status);
    call.result = result;
    call.n_result = n_result;
    return apply(x, &c, ended, e);
}

static enum err write_calls(struct importer *x, struct error *e)
{
    json_t *calls = NULL;
    enum err rc = json_need_arr(x->session, "calls", &calls, e);
    for (size_t i = 0; !rc && i < json_array_size(calls); i++)
        if ((rc = write_call(x, json_array_get(calls, i), e)))
            return err_wrap(e, rc, "call %zu", i);
    x->done.calls = json_array_size(calls);
    return rc;
}

/* ---- the session ------------------------------------------------------------------------- */

static enum err name_taken(struct importer *x, const char *name, bool *taken, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &x->st->db, "SELECT 1 FROM sessions WHERE name = ?", e);
    if (rc)
        return rc;
    query_text(&q, name);
    return query_step(&q, taken, e);
}

/* The name that was asked for; or the bundle's, with a number behind when it is taken. */
static enum err choose_name(struct importer *x, struct error *e)
{
    const char *name = x->o->name;
    if (name) {
        if (strlen(name) >= SESSION_NAME_CAP)
            return err_set(e, ERR_INVAL, "session name of %zu bytes", strlen(name));
        snprintf(x->done.name, sizeof x->done.name, "%s", name);
        return OK;
    }
    for (int i = 1; i <= NAME_TRIES; i++) {
        bool taken;
        if (i == 1)
            snprintf(x->done.name, sizeof x->done.name, "%s", x->m.name);
        else
            snprintf(x->done.name, sizeof x->done.name, "%.*s-%d", SESSION_NAME_CAP - 13,
                     x->m.name, i);
        enum err rc = name_taken(x, x->done.name, &taken, e);
        if (rc || !taken)
            return rc;
    }
    return err_set(e, ERR_CONFLICT, "session \"%s\" exists already", x->m.name);
}

static enum err add_session(struct importer *x, struct error *e)
{
    json_t *config = NULL;
    struct session_row row;
    enum err rc = json_need_obj(x->session, "config", &config, e);
    if (rc)
        return rc;
    bundle_reset_permissions(config);
    AUTO_FREE char *text = json_dumps(config, JSON_COMPACT);
    if (!text)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    if (x->o->check_config && (rc = x->o->check_config(text, e)))
        return rc == ERR_NOMEM ? rc : ERR_FORMAT;
    if ((rc = choose_name(x, e)))
        return rc;
    struct session_new s = {
        .name = x->done.name, .cwd = x->o->cwd, .config = text, .origin = "import"};
    rc = session_add(x->st, &s, &row, e);
    if (rc == ERR_INVAL && !x->o->name)
        rc = ERR_FORMAT;
    if (!rc)
        memcpy(x->done.id, row.id, sizeof row.id);
    return rc;
}

static enum err read_session(struct importer *x, struct error *e)
{
    static const struct json_limits limits = {
        .max_bytes = BUNDLE_MAX_SESSION, .max_depth = 1024, .allow_nul = true};
    const struct bundle_file *f = &x->m.files[PART_SESSION];
    json_t *turns = NULL, *restarts = NULL;
    uint64_t tokens;
    enum err rc = json_parse(member(x, f), (size_t)f->bytes, &limits, &x->session, e);
    if (rc)
        return rc == ERR_LIMIT ? ERR_FORMAT : rc;
    NEED_UINT(x->session, "tokens", tokens);
    if (tokens != x->m.files[PART_TAPE].bytes / 4)
        return err_set(e, ERR_FORMAT, "%llu tokens, " BUNDLE_TAPE " has %llu",
                       (unsigned long long)tokens,
                       (unsigned long long)x->m.files[PART_TAPE].bytes / 4);
    if ((rc = json_opt_arr(x->session, "restarts", &restarts, e)))
        return rc;
    return json_need_arr(x->session, "turns", &turns, e);
}

/* ---- model state ------------------------------------------------------------------------- */

static const void *kv_member(void *user, const uint8_t hash[HASH_BYTES], uint64_t *n)
{
    const struct importer *x = user;
    const struct bundle_file *f = bundle_find(&x->m, PART_KV, hash);
    *n = f ? f->bytes : 0;
    return f ? member(x, f) : NULL;
}

/* Whether every part is named by the state: nothing comes along unseen. */
static enum err check_named(const struct importer *x, struct error *e)
{
    size_t n = x->state.has_tip;
    for (size_t i = 0; i < x->state.n_parts; i++)
        n++;
    if (x->m.n_of[PART_KV] > n)
        return err_set(e, ERR_FORMAT,
                       "%zu parts of state in the bundle, %zu in " BUNDLE_SESSION,
                       x->m.n_of[PART_KV], n);
    return OK;
}

/* Looks at the state, against the tape as it was written; what is not ours is left out. */
static enum err check_state(struct importer *x, struct error *e)
{
    AUTO(tape) struct tape t = {0};
    struct error why;
    json_t *j = NULL;
    enum err rc = json_opt_obj(x->session, "state", &j, e);
    if (!rc && j)
        rc = bundle_state_read(j, &x->state, e);
    if (rc || (rc = check_named(x, e)) || !j || (rc = tape_load(x->st, x->done.id, &t, e)))
        return rc;
    rc = bundle_state_check(x->st, &x->state, x->o->layout, &t.view, x->o->trust_kv, kv_member,
                            x, &why);
    x->has_state = rc == OK;
    if (rc == ERR_UNSUPPORTED || rc == ERR_DENIED) {
        snprintf(x->done.kv_note, sizeof x->done.kv_note, "%.150s", why.msg);
        return OK;
    }
    x->done.kv_tokens = rc ? 0 : x->state.position;
    return rc ? err_set(e, rc, "state: %.200s", why.msg) : OK;
}

/* After the session is there: whatever fails now costs time later, not the session. */
static void take_state(struct importer *x)
{
    struct error why;
    if (!x->has_state)
        return;
    if (bundle_state_save(x->st, x->done.id, &x->state, x->o->layout, kv_member, x, &why)) {
        snprintf(x->done.kv_note, sizeof x->done.kv_note, "%.150s", why.msg);
        x->done.kv_tokens = 0;
    }
}

/* Everything in one transaction, which is the caller's to commit. */
static enum err write_all(struct importer *x, struct error *e)
{
    enum err rc;
    if ((rc = read_session(x, e)) || (rc = add_session(x, e)))
        return rc == ERR_CONFLICT ? rc : err_wrap(e, rc, BUNDLE_SESSION);
    /* The tape is the last strand's. */
    if ((rc = write_items(x, e)))
        return rc;
    if ((rc = write_tape(x, e)))
        return err_wrap(e, rc, BUNDLE_SESSION);
    if (x->max_position > x->done.tokens)
        return err_set(e, ERR_FORMAT, BUNDLE_ITEMS ": an event at position %llu of %llu",
                       (unsigned long long)x->max_position, (unsigned long long)x->done.tokens);
    if ((rc = write_calls(x, e)) || (rc = check_state(x, e)))
        return rc;
    struct tape_commit last = {.state = "idle", .reason = x->turn ? "cancelled" : ""};
    const json_t *turns = json_object_get(x->session, "turns");
    if (x->turn)
        last.reason =
            json_string_value(json_object_get(json_array_get(turns, x->turn - 1), "reason"));
    return apply(x, &last, store_now_ms(x->st), e);
}

static enum err import_once(struct store *st, const struct bundle_import *m,
                            struct bundle_imported *out, struct error *e)
{
    AUTO(importer) struct importer x = {.st = st, .o = m, .spool = -1};
    AUTO(txn) struct txn t = {0};
    enum err rc = unpack(&x, e);
    if (!rc)
        rc = txn_begin(&t, &st->db, e);
    if (!rc)
        rc = write_all(&x, e);
    if (!rc && !m->dry_run)
        rc = txn_commit(&t, e);
    if (rc)
        return err_wrap(e, rc, "import");
    if (!m->dry_run)
        take_state(&x);
    x.done.events = x.seq;
    x.done.turns = x.turn;
    x.done.blobs = x.m.n_of[PART_BLOB];
    memcpy(x.done.origin, x.m.id, sizeof x.m.id);
    if (m->dry_run)
        x.done.id[0] = '\0';
    *out = x.done;
    return OK;
}

enum err bundle_import(struct store *st, const struct bundle_import *m,
                       struct bundle_imported *out, struct error *e)
{
    enum err rc = import_once(st, m, out, e);
    return rc && search_mend(st) ? import_once(st, m, out, e) : rc;
}
