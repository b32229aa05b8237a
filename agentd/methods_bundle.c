/* session/export and session/import: jobs of the store's thread. An export goes in steps, so
 * that commits of other sessions come in between. */
#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/live.h"
#include "agentd/methods.h"
#include "agentd/session_config.h"
#include "agentd/store_thread.h"
#include "base/json.h"
#include "sessions/bundle.h"

struct bundle_job {
    struct job job;
    struct request *request;
    struct live *session; /* pinned; NULL: an import */
    char id[SESSION_ID_CAP];
    char *path, *name, *cwd;
    bool redact, dry_run, with_kv, trust_kv;
    struct bundle_exporter *exporter; /* of an export that is under way */
    bool finished;
    struct bundle_exported exported;
    struct bundle_imported imported;
};

static void job_free(struct bundle_job *b)
{
    if (b->session)
        live_unpin(b->session);
    bundle_export_end(b->exporter, NULL);
    free(b->path);
    free(b->name);
    free(b->cwd);
    free(b);
}

/* An optional string of params, copied. */
static enum err take_str(const json_t *params, const char *field, char **out, struct error *e)
{
    const char *s = NULL;
    enum err rc = json_opt_str(params, field, &s, NULL, e);

    if (rc || !s)
        return rc;
    *out = strdup(s);
    return *out ? OK : err_set(e, ERR_NOMEM, "%s", field);
}

static enum err take_path(const json_t *params, const char *field, char **out, struct error *e)
{
    enum err rc = take_str(params, field, out, e);

    if (!rc && *out && (*out)[0] != '/')
        rc = err_set(e, ERR_INVAL, "\"%s\": want an absolute path", field);
    return rc;
}

/* Of the state that this daemon's model can use; NULL: it is not stored. */
static const struct state_layout *layout_of(const struct request *r)
{
    const struct engine_info *model = r->daemon->model;

    return model->storable ? model->layout : NULL;
}

static enum err read_params(struct bundle_job *b, struct error *e)
{
    const json_t *p = b->request->params;
    enum err rc;

    if ((rc = take_path(p, "path", &b->path, e)) || (rc = take_path(p, "cwd", &b->cwd, e)) ||
        (rc = take_str(p, "name", &b->name, e)) ||
        (rc = json_opt_bool(p, "redact", &b->redact, e)) ||
        (rc = json_opt_bool(p, "dryRun", &b->dry_run, e)) ||
        (rc = json_opt_bool(p, "withKv", &b->with_kv, e)) ||
        (rc = json_opt_bool(p, "trustKv", &b->trust_kv, e)))
        return rc;
    if (b->with_kv && b->redact)
        return err_set(e, ERR_INVAL, "\"withKv\": not together with \"redact\"");
    if (b->with_kv && !layout_of(b->request))
        return err_set(e, ERR_UNSUPPORTED, "\"withKv\": this model's state is not stored");
    if (!b->path)
        return err_set(e, ERR_INVAL, "\"path\" is missing");
    return OK;
}

static void start(struct request *r, struct live *s, void (*run)(struct job *, void *),
                  void (*done)(struct job *))
{
    struct bundle_job *b = calloc(1, sizeof(*b));
    struct error e;

    if (!b) {
        request_fail(r, err_set(&e, ERR_NOMEM, "%s", r->method), &e);
        return;
    }
    b->request = r;
    if (s) {
        b->session = s;
        memcpy(b->id, s->id, sizeof(b->id));
        live_pin(s);
    }
    if (read_params(b, &e)) {
        request_fail_params(r, &e);
        job_free(b);
        return;
    }
    b->job = (struct job){.run = run, .done = done};
    store_thread_submit(r->daemon->store, &b->job);
}

/* ---- export ----------------------------------------------------------------------- */

static void export_run(struct job *j, void *ctx)
{
    struct bundle_job *b = (struct bundle_job *)j;
    const struct bundle_export x = {.session = b->id,
                                    .path = b->path,
                                    .redact = b->redact,
                                    .layout = b->with_kv ? layout_of(b->request) : NULL};

    j->rc = b->exporter ? OK : bundle_export_begin(ctx, &x, &b->exporter, &j->error);
    if (!j->rc)
        j->rc = bundle_export_step(b->exporter, &b->finished, &j->error);
    if (!j->rc && !b->finished)
        return;
    bundle_export_end(b->exporter, j->rc ? NULL : &b->exported);
    b->exporter = NULL;
}

static void export_done(struct job *j)
{
    struct bundle_job *b = (struct bundle_job *)j;
    const struct bundle_exported *x = &b->exported;

    if (!j->rc && !b->finished && b->request->daemon->stopping)
        j->rc = err_set(&j->error, ERR_BUSY, "the daemon is stopping");
    if (!j->rc && !b->finished) {
        store_thread_submit(b->request->daemon->store, &b->job);
        return;
    }
    if (j->rc)
        request_fail(b->request, j->rc, &j->error);
    else
        request_reply(b->request,
                      json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:b, s:I, s:I}", "id", b->id,
                                "path", b->path, "bytes", (json_int_t)x->bytes, "tokens",
                                (json_int_t)x->tokens, "events", (json_int_t)x->events, "blobs",
                                (json_int_t)x->blobs, "redacted", b->redact, "secrets",
                                (json_int_t)x->redacted, "kvTokens", (json_int_t)x->kv_tokens));
    job_free(b);
}

static void export_session(struct request *r, struct live *s)
{
    start(r, s, export_run, export_done);
}

void method_session_export(struct request *r)
{
    live_resolve(r, export_session);
}

/* ---- import ----------------------------------------------------------------------- */

/* A configuration that no turn could be run with is refused here, not met at the first prompt.
 */
static enum err check_config(const char *text, struct error *e)
{
    struct session_config *c = NULL;
    enum err rc = session_config_load(text, &c, e);

    session_config_free(c);
    return rc;
}

/* The folder that the bundle lies in: what a session works in when nothing else was said. */
static enum err default_folder(struct bundle_job *b, struct error *e)
{
    size_t n = (size_t)(strrchr(b->path, '/') - b->path);

    b->cwd = b->cwd ? b->cwd : strndup(b->path, n ? n : 1);
    return b->cwd ? OK : err_set(e, ERR_NOMEM, "session/import");
}

static void import_run(struct job *j, void *ctx)
{
    struct bundle_job *b = (struct bundle_job *)j;

    if ((j->rc = default_folder(b, &j->error)))
        return;
    const struct bundle_import m = {.path = b->path,
                                    .name = b->name,
                                    .cwd = b->cwd,
                                    .dry_run = b->dry_run,
                                    .layout = layout_of(b->request),
                                    .trust_kv = b->trust_kv,
                                    .check_config = check_config};
    j->rc = bundle_import(ctx, &m, &b->imported, &j->error);
}

static void import_done(struct job *j)
{
    struct bundle_job *b = (struct bundle_job *)j;
    const struct bundle_imported *m = &b->imported;

    if (j->rc)
        request_fail(b->request, j->rc, &j->error);
    else
        request_reply(b->request,
                      json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:s*}",
                                "id", m->id, "name", m->name, "origin", m->origin, "tokens",
                                (json_int_t)m->tokens, "events", (json_int_t)m->events, "turns",
                                (json_int_t)m->turns, "calls", (json_int_t)m->calls, "blobs",
                                (json_int_t)m->blobs, "dryRun", b->dry_run, "kvTokens",
                                (json_int_t)m->kv_tokens, "kvNote",
                                m->kv_note[0] ? m->kv_note : NULL));
    job_free(b);
}

void method_session_import(struct request *r)
{
    start(r, NULL, import_run, import_done);
}
