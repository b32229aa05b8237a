#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sessions/importer.h"
#include "sessions/search.h"
#include "sessions/session_internal.h"
#include "sessions/tape_internal.h"

#define NAME_TRIES 1000

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
    enum err rc = json_parse(importer_member(x, f), (size_t)f->bytes, &limits, &x->session, e);
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
    return f ? importer_member(x, f) : NULL;
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
    if ((rc = importer_write_items(x, e)))
        return rc;
    if ((rc = importer_write_tape(x, e)))
        return err_wrap(e, rc, BUNDLE_SESSION);
    if (x->max_position > x->done.tokens)
        return err_set(e, ERR_FORMAT, BUNDLE_ITEMS ": an event at position %llu of %llu",
                       (unsigned long long)x->max_position, (unsigned long long)x->done.tokens);
    if ((rc = importer_write_calls(x, e)) || (rc = check_state(x, e)))
        return rc;
    struct tape_commit last = {.state = "idle", .reason = x->turn ? "cancelled" : ""};
    const json_t *turns = json_object_get(x->session, "turns");
    if (x->turn)
        last.reason =
            json_string_value(json_object_get(json_array_get(turns, x->turn - 1), "reason"));
    return importer_apply(x, &last, store_now_ms(x->st), e);
}

static enum err import_once(struct store *st, const struct bundle_import *m,
                            struct bundle_imported *out, struct error *e)
{
    AUTO(importer) struct importer x = {.st = st, .o = m, .spool = -1};
    AUTO(txn) struct txn t = {0};
    enum err rc = importer_unpack(&x, e);
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
