#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/redact.h"
#include "sessions/bundle_file.h"
#include "sessions/bundle_internal.h"
#include "sessions/bundle_kv.h"
#include "sessions/session_internal.h"
#include "sessions/strand.h"
#include "sessions/tape_internal.h"

#define MAX_DEPTH 1024
#define STEP_EVENTS 512u
#define STEP_SPOOLED (4u << 20)

enum phase { PHASE_STATE, PHASE_EVENTS, PHASE_TAPE, PHASE_FILE, PHASE_DONE };

/* What is written so far. Callbacks of the tape cannot return an error: the first is kept. */
struct bundle_exporter {
    struct store *st;
    char to[FS_PATH_BYTES];
    bool redact;
    const struct state_layout *layout; /* of the state that goes along, or NULL */
    enum phase phase;
    uint64_t n_redacted, n_events;
    struct strand_path path; /* of the session, and its tape, at the beginning */
    struct tape tape;
    uint64_t seq; /* of the last event that is in */
    int fd[2];    /* spools: of blobs and state [1], of the rest [0] */
    uint64_t at[2];
    uint64_t items_at,
        step_at;      /* where items.jsonl begins; what was spooled before this step */
    struct hash hash; /* of the member that is being written */
    struct bundle_manifest m;
    struct file_list {
        struct bundle_file *files; /* in order of appearance */
        size_t n, cap;
    } blobs, kv;
    struct bundle_collector *collector;
    struct bundle_file_out *file;
    json_t *session;
    struct buf line, text;
    enum err rc;
    struct error *e; /* of the call that runs */
};

static void exporter_free(struct bundle_exporter *x)
{
    if (!x)
        return;
    bundle_file_free(x->file);
    for (int i = 0; i < 2; i++)
        if (x->fd[i] >= 0)
            close(x->fd[i]);
    strand_path_fini(&x->path);
    tape_fini(&x->tape);
    bundle_manifest_fini(&x->m);
    free(x->blobs.files);
    free(x->kv.files);
    bundle_collect_free(x->collector);
    json_decref(x->session);
    buf_fini(&x->line);
    buf_fini(&x->text);
    free(x);
}

static bool keep(struct bundle_exporter *x, enum err rc)
{
    if (rc && !x->rc)
        x->rc = rc;
    return !x->rc;
}

/* ---- members ----------------------------------------------------------------------------- */

static enum err spool(struct bundle_exporter *x, int which, const void *p, size_t n,
                      struct error *e)
{
    enum err rc = n ? fs_pwrite(x->fd[which], "bundle spool", p, n, x->at[which], e) : OK;
    if (!rc)
        x->at[which] += n;
    return rc;
}

static void begin(struct bundle_exporter *x)
{
    hash_init(&x->hash, NULL, HASH_BYTES);
}

static enum err add(struct bundle_exporter *x, const void *p, size_t n, struct error *e)
{
    hash_add(&x->hash, p, n);
    return spool(x, 0, p, n, e);
}

/* What was added since begin(), and lies from `at` on, is this member. */
static enum err end(struct bundle_exporter *x, enum bundle_part part, uint64_t at,
                    struct error *e)
{
    struct bundle_file f = {.part = part, .bytes = x->at[0] - at, .at = at};
    hash_final(&x->hash, f.hash);
    return bundle_manifest_add(&x->m, f, e);
}

/* Spools bytes as a file of a list that is named by its hash. */
static enum err spool_file(struct bundle_exporter *x, struct file_list *l,
                           enum bundle_part part, const void *p, size_t n,
                           uint8_t hash[HASH_BYTES], struct error *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct bundle_file *grown = realloc(l->files, cap * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "bundle: out of memory");
        l->files = grown;
        l->cap = cap;
    }
    struct bundle_file f = {.part = part, .bytes = n, .at = x->at[1]};
    hash_bytes(NULL, p, n, f.hash);
    memcpy(hash, f.hash, sizeof f.hash);
    l->files[l->n++] = f;
    return spool(x, 1, p, n, e);
}

/* Spools bytes as a blob and writes its hash as hexadecimal. */
static enum err add_blob(struct bundle_exporter *x, const void *p, size_t n,
                         char hex[HEX_CHARS(HASH_BYTES)], struct error *e)
{
    struct bundle_file f = {.part = PART_BLOB};
    buf_clear(&x->text);
    if (x->redact) {
        enum err rc = redact_text(p, n, &x->text, &x->n_redacted, e);
        if (rc)
            return rc;
        p = buf_str(&x->text);
        n = x->text.len;
    }
    enum err rc = spool_file(x, &x->blobs, PART_BLOB, p, n, f.hash, e);
    hex_encode(f.hash, sizeof f.hash, hex);
    return rc;
}

/* A part of the state, or the tip. */
static enum err add_kv(void *user, const void *p, size_t n, uint8_t hash[HASH_BYTES],
                       struct error *e)
{
    struct bundle_exporter *x = user;
    return spool_file(x, &x->kv, PART_KV, p, n, hash, e);
}

static int by_hash(const void *a, const void *b)
{
    const struct bundle_file *x = a, *y = b;
    return memcmp(x->hash, y->hash, HASH_BYTES);
}

/* Files into the manifest: sorted, each once. */
static enum err end_list(struct bundle_exporter *x, struct file_list *l, struct error *e)
{
    enum err rc = OK;
    if (l->n)
        qsort(l->files, l->n, sizeof *l->files, by_hash);
    for (size_t i = 0; i < l->n && !rc; i++)
        if (i == 0 || by_hash(&l->files[i - 1], &l->files[i]) != 0)
            rc = bundle_manifest_add(&x->m, l->files[i], e);
    return rc;
}

/* ---- JSON -------------------------------------------------------------------------------- */

/* The first value that cannot be made or put in its place is kept as an error: a bundle never
 * lacks a field silently. */
static void set(struct bundle_exporter *x, json_t *o, const char *field, json_t *value)
{
    if (json_object_set_new(o, field, value))
        keep(x,
             err_set(x->e, ERR_FORMAT, "bundle: \"%s\" is not UTF-8, or out of memory", field));
}

static void set_str(struct bundle_exporter *x, json_t *o, const char *field, const char *text)
{
    if (text)
        set(x, o, field, json_string(text));
}

static void append(struct bundle_exporter *x, const char *list, json_t *value)
{
    if (json_array_append_new(json_object_get(x->session, list), value))
        keep(x, err_set(x->e, ERR_FORMAT,
                        "bundle: an entry of %s is not UTF-8, or out of memory", list));
}

/* ---- redaction --------------------------------------------------------------------------- */

/* A JSON string of text, without its secrets if they are to go. NULL text: NULL. */
static json_t *text_json(struct bundle_exporter *x, const char *text)
{
    if (!text || !x->redact)
        return text ? json_string(text) : NULL;
    buf_clear(&x->text);
    if (!keep(x, redact_text(text, strlen(text), &x->text, &x->n_redacted, x->e)))
        return NULL;
    return json_string(buf_str(&x->text));
}

static void redact_string(struct bundle_exporter *x, const char *field, json_t *j)
{
    buf_clear(&x->text);
    bool all = field && redact_is_secret_name(field) && json_string_length(j) > 0;
    x->n_redacted += all;
    enum err rc = all ? buf_add_str(&x->text, REDACT_MARK, x->e)
                      : redact_text(json_string_value(j), json_string_length(j), &x->text,
                                    &x->n_redacted, x->e);
    if (keep(x, rc) && json_string_setn(j, buf_str(&x->text), x->text.len))
        keep(x, err_set(x->e, ERR_FORMAT, "bundle: text is not UTF-8"));
}

/* The same for every string in a value, in place of it. field: its name, NULL if it has none.
 */
static void redact_json(struct bundle_exporter *x, const char *field, json_t *j)
{
    const char *key;
    json_t *v;
    size_t i;
    if (json_is_string(j)) {
        redact_string(x, field, j);
    } else if (json_is_object(j)) {
        json_object_foreach(j, key, v)
            redact_json(x, key, v);
    } else {
        json_array_foreach(j, i, v)
            redact_json(x, field, v);
    }
}

/* JSON text of the store as a value; *out NULL for NULL. */
static enum err parse(struct bundle_exporter *x, const char *text, json_t **out,
                      struct error *e)
{
    static const struct json_limits limits = {
        .max_bytes = TAPE_JSON_MAX, .max_depth = MAX_DEPTH, .allow_nul = true};
    enum err rc = text ? json_parse(text, strlen(text), &limits, out, e) : OK;
    if (!rc && *out && x->redact)
        redact_json(x, NULL, *out);
    return rc ? rc : x->rc;
}

/* ---- items ------------------------------------------------------------------------------- */

static enum err event_line(struct bundle_exporter *x, const struct tape_event *ev,
                           struct error *e)
{
    json_auto_t *data = NULL;
    char hex[HEX_CHARS(HASH_BYTES)];
    enum err rc = parse(x, ev->json, &data, e);
    if (rc)
        return rc;
    json_auto_t *o =
        json_pack("{s:I, s:I, s:I, s:s}", "seq", (json_int_t)ev->seq, "t", (json_int_t)ev->t_ms,
                  "position", (json_int_t)(x->redact ? 0 : ev->position), "type", ev->type);
    set_str(x, o, "turn", ev->turn);
    set_str(x, o, "item", ev->item);
    set_str(x, o, "kind", ev->kind);
    if (data)
        set(x, o, "data", json_incref(data));
    if (ev->bytes) {
        if ((rc = add_blob(x, ev->bytes, ev->n_bytes, hex, e)))
            return rc;
        set_str(x, o, "blob", hex);
    }
    buf_clear(&x->line);
    if ((rc = x->rc) || (rc = json_write(o, JSON_COMPACT, &x->line, e)) ||
        (rc = buf_add_byte(&x->line, '\n', e)))
        return rc;
    x->n_events++;
    return add(x, x->line.data, x->line.len, e);
}

static bool on_event(void *user, const struct tape_event *ev)
{
    struct bundle_exporter *x = user;
    enum err rc = event_line(x, ev, x->e);
    x->seq = ev->seq;
    return keep(x, rc ? err_wrap(x->e, rc, "event %llu", (unsigned long long)ev->seq) : OK) &&
           x->at[0] + x->at[1] - x->step_at < STEP_SPOOLED;
}

/* ---- session ----------------------------------------------------------------------------- */

static void add_segments(struct bundle_exporter *x, const struct tape *t)
{
    for (size_t i = 0; i < t->view.n_segments && !x->redact; i++) {
        const struct tape_segment *s = &t->tape_segments[i];
        char hex[HEX_CHARS(HASH_BYTES)];
        /* One that is being written has no end here but the tape's. */
        if (!s->seg.len)
            continue;
        json_t *o = json_pack("{s:I, s:I, s:s, s:s}", "start", (json_int_t)s->seg.start, "len",
                              (json_int_t)s->seg.len, "kind",
                              s->seg.kind == SEGMENT_INPUT ? "input" : "generated", "mode",
                              prefill_mode_name(s->seg.mode));
        if (s->has_digest && !s->open) {
            hex_encode(s->digest, sizeof s->digest, hex);
            set_str(x, o, "digest", hex);
            set(x, o, "rows", json_integer((json_int_t)s->n_rows));
        }
        append(x, "segments", o);
    }
    for (size_t i = 0; i < t->view.n_marks && !x->redact; i++)
        append(x, "marks",
               json_pack("{s:I, s:I}", "at", (json_int_t)t->marks[i].at, "from",
                         (json_int_t)t->marks[i].from));
}

/* Highest position of the events that a part of the path contributes. */
static enum err last_position(struct bundle_exporter *x, const struct strand_part *p,
                              uint64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &x->st->db,
                             "SELECT ifnull(max(position), 0) FROM events"
                             " WHERE strand = ? AND seq > ? AND seq <= ?",
                             e);
    if (rc)
        return rc;
    query_int(&q, p->id);
    query_uint(&q, p->seq_from);
    query_uint(&q, p->seq_to);
    bool row = false;
    if (!(rc = query_step(&q, &row, e)))
        *out = row_uint(&q, 0);
    return rc;
}

/* Behind which events the tape began anew: a compaction leaves a strand with more tokens than
 * the next one goes on from. */
static enum err add_restarts(struct bundle_exporter *x, struct error *e)
{
    uint64_t reached = 0, at = 0;
    enum err rc = OK;
    for (size_t i = 0; i < x->path.n_parts && !rc; i++) {
        const struct strand_part *p = &x->path.parts[i];
        if (reached > p->own) {
            append(x, "restarts", json_integer((json_int_t)p->seq_from));
            reached = 0;
        }
        if (!(rc = last_position(x, p, &at, e)) && at > reached)
            reached = at;
    }
    return rc;
}

static bool on_turn(void *user, const char *session, const struct tape_turn *t)
{
    struct bundle_exporter *x = user;
    (void)session;
    json_t *o = json_pack("{s:s, s:I, s:I, s:s, s:s, s:I, s:I}", "id", t->id, "forcedNext",
                          (json_int_t)t->forced_next, "step", (json_int_t)t->step, "state",
                          t->finished ? t->state : "idle", "reason",
                          t->finished ? t->reason : "cancelled", "firstSeq",
                          (json_int_t)t->first_seq, "createdMs", (json_int_t)t->created_ms);
    set_str(x, o, "clientMessageId", t->client_message);
    set(x, o, "params", text_json(x, t->params));
    set(x, o, "ledger", text_json(x, t->ledger));
    append(x, "turns", o);
    return keep(x, OK);
}

static bool on_call(void *user, const struct tape_call *c)
{
    struct bundle_exporter *x = user;
    char hex[HEX_CHARS(HASH_BYTES)];
    bool open = call_is_open(c->status);
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:s, s:b, s:b, s:I, s:I}", "id", c->id, "turn", c->turn,
        "name", c->name, "step", (json_int_t)c->step, "index", (json_int_t)c->index, "status",
        call_status_name(open ? CALL_INTERRUPTED : c->status), "isError", open || c->is_error,
        "ingested", c->ingested, "createdMs", (json_int_t)c->created_ms, "endedMs",
        (json_int_t)(open ? c->created_ms : c->ended_ms));
    set_str(x, o, "item", c->item);
    set(x, o, "arguments", text_json(x, c->arguments));
    if (c->result && keep(x, add_blob(x, c->result, c->n_result, hex, x->e)))
        set_str(x, o, "result", hex);
    append(x, "calls", o);
    return keep(x, OK);
}

/* session.json as a value; what becomes of model state comes into it later. */
static enum err take_json(struct bundle_exporter *x, const struct session_info *s,
                          struct error *e)
{
    json_t *config = NULL;
    enum err rc = parse(x, s->config, &config, e);
    if (rc) {
        json_decref(config);
        return err_wrap(e, rc, "configuration");
    }
    bundle_reset_permissions(config);
    x->session = json_pack("{s:o, s:I, s:[], s:[], s:[], s:[], s:[]}", "config", config,
                           "tokens", (json_int_t)(x->redact ? 0 : x->tape.view.n_ids),
                           "restarts", "segments", "marks", "turns", "calls");
    if (!x->session)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    add_segments(x, &x->tape);
    if ((rc = x->rc) || (rc = add_restarts(x, e)) ||
        (rc = tape_turns(x->st, s->id, on_turn, x, e)) || (rc = x->rc) ||
        (rc = tape_calls(x->st, s->id, NULL, false, on_call, x, e)))
        return rc;
    return x->rc;
}

static enum err add_session(struct bundle_exporter *x, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(BUNDLE_MAX_SESSION);
    enum err rc = json_write(x->session, JSON_COMPACT, &text, e);
    if (rc)
        return rc;
    begin(x);
    rc = add(x, text.data, text.len, e);
    return rc ? rc : end(x, PART_SESSION, x->at[0] - text.len, e);
}

/* ---- the steps --------------------------------------------------------------------------- */

/* Everything that may change meanwhile is read at the beginning: the tape, its path, what hangs
 * on the session. Events on a path stay what they are. */
static enum err take_session(struct bundle_exporter *x, const struct session_info *s,
                             struct error *e)
{
    enum err rc = tape_path_of(x->st, s->id, &x->path, e);
    if (!rc)
        rc = tape_load(x->st, s->id, &x->tape, e);
    if (!rc && (x->tape.damaged || s->damaged))
        rc =
            err_set(e, ERR_CORRUPT, "session %s is damaged: a bundle would hide that", s->name);
    if (!rc && x->layout)
        rc = bundle_collect(x->st, s->id, x->layout, &x->collector, e);
    return rc ? rc : take_json(x, s, e);
}

/* One part of the state; behind the last, session.json is known whole. */
static enum err step_state(struct bundle_exporter *x, struct error *e)
{
    bool done = true;
    enum err rc = x->collector ? bundle_collect_step(x->collector, add_kv, x, &done, e) : OK;
    if (rc || !done)
        return rc;
    if (x->collector && bundle_collect_position(x->collector))
        set(x, x->session, "state", bundle_collect_json(x->collector, x->st, &x->tape.view));
    if ((rc = x->rc) || (rc = add_session(x, e)))
        return rc;
    x->items_at = x->at[0];
    begin(x);
    x->phase++;
    return OK;
}

static enum err step_events(struct bundle_exporter *x, struct error *e)
{
    struct session_row row;
    x->step_at = x->at[0] + x->at[1];
    uint64_t before = x->seq;
    enum err rc = tape_path_events(x->st, &x->path, x->seq, STEP_EVENTS, on_event, x, e);
    if (rc == ERR_CORRUPT && session_row_read(x->st, x->m.id, &row, NULL) == ERR_NOTFOUND)
        return err_set(e, ERR_NOTFOUND, "the session was deleted meanwhile");
    if (rc || (rc = x->rc) || x->seq > before)
        return rc;
    if ((rc = end(x, PART_ITEMS, x->items_at, e)))
        return rc;
    x->phase++;
    return OK;
}

static enum err step_tape(struct bundle_exporter *x, struct error *e)
{
    uint64_t at = x->at[0];
    enum err rc = OK;
    begin(x);
    if (!x->redact)
        rc = add(x, x->tape.ids, (size_t)x->tape.view.n_ids * 4, e);
    if (rc || (rc = end(x, PART_TAPE, at, e)) || (rc = end_list(x, &x->blobs, e)) ||
        (rc = end_list(x, &x->kv, e)) ||
        (rc = bundle_file_open(x->to, &x->m, x->fd, store_now_ms(x->st), &x->file, e)))
        return rc;
    x->phase++;
    return OK;
}

static enum err step_file(struct bundle_exporter *x, struct error *e)
{
    bool done;
    enum err rc = bundle_file_step(x->file, &done, e);
    if (!rc && done)
        x->phase++;
    return rc;
}

enum err bundle_export_step(struct bundle_exporter *x, bool *done, struct error *e)
{
    static enum err (*const steps[])(struct bundle_exporter *, struct error *) = {
        step_state, step_events, step_tape, step_file};
    struct error own;
    x->e = e = e ? e : &own;
    enum err rc = x->phase == PHASE_DONE ? OK : steps[x->phase](x, e);
    *done = x->phase == PHASE_DONE;
    return rc ? err_wrap(e, rc, "export %s", x->m.name) : OK;
}

enum err bundle_export_begin(struct store *st, const struct bundle_export *b,
                             struct bundle_exporter **out, struct error *e)
{
    AUTO(session_info) struct session_info s = {0};
    struct session_row row;
    struct error own;
    struct bundle_exporter *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    x->st = st;
    x->redact = x->m.redacted = b->redact;
    x->layout = b->layout;
    x->fd[0] = x->fd[1] = -1;
    x->e = e = e ? e : &own;
    buf_init(&x->line, 4 * (size_t)TAPE_JSON_MAX);
    buf_init(&x->text, 2 * (size_t)TAPE_JSON_MAX);
    enum err rc = session_row_read(st, b->session, &row, e);
    if (!rc && b->redact && b->layout)
        rc = err_set(e, ERR_INVAL, "model state says what the text says: not with redaction");
    if (rc || (rc = fs_path(x->to, sizeof x->to, e, "%s", b->path)) ||
        (rc = session_find(st, b->session, &s, e)) ||
        (rc = bundle_spool_open(b->path, &x->fd[0], e)) ||
        (rc = bundle_spool_open(b->path, &x->fd[1], e)) || (rc = take_session(x, &s, e))) {
        bundle_export_end(x, NULL);
        return err_wrap(e, rc, "export");
    }
    snprintf(x->m.id, sizeof x->m.id, "%s", s.id);
    snprintf(x->m.name, sizeof x->m.name, "%s", s.name);
    *out = x;
    return OK;
}

void bundle_export_end(struct bundle_exporter *x, struct bundle_exported *out)
{
    if (x && out)
        *out = (struct bundle_exported){
            .tokens = x->m.n_files > PART_TAPE ? x->m.files[PART_TAPE].bytes / 4 : 0,
            .events = x->n_events,
            .blobs = x->m.n_of[PART_BLOB],
            .kv_tokens = x->collector ? bundle_collect_position(x->collector) : 0,
            .bytes = x->file ? bundle_file_bytes(x->file) : 0,
            .redacted = x->n_redacted};
    exporter_free(x);
}

enum err bundle_export(struct store *st, const struct bundle_export *b,
                       struct bundle_exported *out, struct error *e)
{
    struct bundle_exporter *x = NULL;
    enum err rc = bundle_export_begin(st, b, &x, e);
    for (bool done = false; !rc && !done;)
        rc = bundle_export_step(x, &done, e);
    bundle_export_end(x, rc ? NULL : out);
    return rc;
}
