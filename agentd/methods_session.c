/* Methods that the store answers: each is one job, with its parameters read on the loop thread
 * before and its result turned into JSON there after. */
#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/keeper.h"
#include "agentd/ledger.h"
#include "agentd/live.h"
#include "agentd/methods.h"
#include "agentd/names.h"
#include "agentd/session_jobs.h"
#include "agentd/spill.h"
#include "agentd/store_thread.h"
#include "base/crypto.h"
#include "base/json.h"
#include "base/log.h"
#include "sessions/session.h"
#include "sessions/tape.h"
#include "tools/tools.h"

#define NAME_TRIES 16

/* A method's job. `result` belongs to whichever thread has the job. */
struct call {
    struct job job;
    struct request *request;
    struct live *session; /* pinned, or NULL */
    char id[SESSION_ID_CAP];
    char name[SESSION_NAME_CAP]; /* given, or drawn */
    bool has_name, purge, gone;
    uint64_t draw, at_seq;
    char *cwd, *config;
    json_t *result;
    struct ledger total;
};

static void call_free(struct call *c)
{
    if (c->session)
        live_unpin(c->session);
    free(c->cwd);
    free(c->config);
    free(c);
}

static void call_done(struct job *j)
{
    struct call *c = (struct call *)j;

    if (j->rc) {
        json_decref(c->result);
        request_fail(c->request, j->rc, &j->error);
    } else {
        request_reply(c->request, c->result);
    }
    call_free(c);
}

/* NULL: answered with an error already. */
static struct call *call_new(struct request *r, struct live *s)
{
    struct call *c = calloc(1, sizeof(*c));
    struct error e;

    if (!c) {
        request_fail(r, err_set(&e, ERR_NOMEM, "%s", r->method), &e);
        return NULL;
    }
    c->request = r;
    c->session = s;
    if (s) {
        memcpy(c->id, s->id, sizeof(c->id));
        live_pin(s);
    }
    return c;
}

static void call_submit(struct call *c, void (*run)(struct job *, void *))
{
    c->job.run = run;
    if (!c->job.done)
        c->job.done = call_done;
    store_thread_submit(c->request->daemon->store, &c->job);
}

/* params.name, if there is one, and a draw for a name of our own. */
static enum err read_name(struct call *c,
                          enum err (*read)(const json_t *, const char *, const char **,
                                           size_t *, struct error *),
                          struct error *e)
{
    const char *name = NULL;
    enum err rc = read(c->request->params, "name", &name, NULL, e);

    if (rc)
        return rc;
    crypto_random(&c->draw, sizeof(c->draw));
    c->has_name = name != NULL;
    if (name && strlen(name) >= sizeof(c->name))
        return err_set(e, ERR_INVAL, "\"name\": at most %zu bytes", sizeof(c->name) - 1);
    if (name)
        memcpy(c->name, name, strlen(name) + 1);
    return OK;
}

/* ---- new, fork -------------------------------------------------------------------- */

/* Makes the session under its given name, or under the first drawn one that is free. */
static enum err with_name(struct call *c, struct store *st,
                          enum err (*make)(struct call *c, struct store *st, struct error *e),
                          struct error *e)
{
    enum err rc = ERR_CONFLICT;

    if (c->has_name)
        return make(c, st, e);
    for (unsigned i = 0; i < NAME_TRIES && rc == ERR_CONFLICT; i++) {
        name_make(c->draw, i ? i + 1 : 0, c->name, sizeof(c->name));
        rc = make(c, st, e);
    }
    return rc;
}

static enum err make_new(struct call *c, struct store *st, struct error *e)
{
    const struct session_new n = {
        .name = c->name, .cwd = c->cwd, .config = c->config, .state = "idle"};

    return session_new(st, &n, c->id, e);
}

static enum err make_fork(struct call *c, struct store *st, struct error *e)
{
    const struct session_fork f = {
        .parent = c->session->id, .at_seq = c->at_seq, .name = c->name, .config = c->config};
    enum err rc = session_fork(st, &f, c->id, e);

    return rc ? rc : session_set_state(st, c->id, "idle", NULL, e);
}

static void name_result(struct call *c)
{
    if (!c->job.rc)
        c->result = json_pack("{s:s, s:s}", "id", c->id, "name", c->name);
}

static void new_run(struct job *j, void *ctx)
{
    struct call *c = (struct call *)j;

    j->rc = with_name(c, ctx, make_new, &j->error);
    name_result(c);
}

static void fork_run(struct job *j, void *ctx)
{
    struct call *c = (struct call *)j;

    j->rc = with_name(c, ctx, make_fork, &j->error);
    name_result(c);
}

/* Whether the session is to have tools of the daemon: without a list, all of them. */
static bool wants_tools(const json_t *params)
{
    const json_t *list = json_object_get(params, "tools");

    return !json_is_array(list) || json_array_size(list) > 0;
}

static enum err read_new(struct call *c, struct error *e)
{
    const json_t *params = c->request->params;
    const char *cwd = NULL;
    enum err rc;

    if ((rc = json_need_str(params, "cwd", &cwd, NULL, e)) ||
        (rc = read_name(c, json_opt_str, e)))
        return rc;
    if (cwd[0] != '/')
        return err_set(e, ERR_INVAL, "\"cwd\": want an absolute path");
    if (wants_tools(params) && (rc = tools_ready(c->request->daemon->tools, e)))
        return err_wrap(e, ERR_UNSUPPORTED,
                        "this daemon has no tools (\"tools\": [] makes a session without)");
    uint64_t seed;
    crypto_random(&seed, sizeof(seed));
    if (!(c->cwd = strdup(cwd)))
        return err_set(e, ERR_NOMEM, "session");
    return session_config_from_params(params, seed, c->request->daemon->model->vocab_size,
                                      tools_may_fetch(c->request->daemon->tools), &c->config,
                                      e);
}

void method_session_new(struct request *r)
{
    struct call *c = call_new(r, NULL);
    struct error e;

    if (!c)
        return;
    if (read_new(c, &e)) {
        request_fail_params(r, &e);
        call_free(c);
        return;
    }
    call_submit(c, new_run);
}

static void fork_session(struct request *r, struct live *s)
{
    struct call *c = call_new(r, s);
    int64_t at = 0;
    struct error e;

    if (!c)
        return;
    if (json_opt_int(r->params, "atSeq", 1, INT64_MAX, &at, &e) ||
        read_name(c, json_opt_str, &e)) {
        request_fail_params(r, &e);
        call_free(c);
        return;
    }
    c->at_seq = (uint64_t)at;
    /* A place before the summary was written has what the summary stands for. */
    if (s->config->summary && at > 0 && c->at_seq <= s->config->summary_seq &&
        session_config_with_summary(s->config, NULL, 0, &c->config, &e)) {
        request_fail(r, e.code, &e);
        call_free(c);
        return;
    }
    call_submit(c, fork_run);
}

void method_session_fork(struct request *r)
{
    live_resolve(r, fork_session);
}

/* ---- list, get -------------------------------------------------------------------- */

/* Rows are copied on the store's thread and become JSON on the loop's, where the live ones are.
 */
struct rows {
    struct job job;
    struct request *request;
    struct session_info *rows;
    size_t n, cap;
    bool is_list;
    char id[SESSION_ID_CAP];
};

static bool add_row(void *user, const struct session_info *s)
{
    struct rows *r = user;

    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 64;
        struct session_info *bigger = realloc(r->rows, cap * sizeof(*bigger));
        if (!bigger)
            return false;
        r->rows = bigger;
        r->cap = cap;
    }
    r->rows[r->n] = *s;
    r->rows[r->n].cwd = s->cwd ? strdup(s->cwd) : NULL;
    r->rows[r->n].config = s->config ? strdup(s->config) : NULL;
    r->n++;
    return true;
}

static void rows_run(struct job *j, void *ctx)
{
    struct rows *r = (struct rows *)j;

    if (r->is_list) {
        j->rc = session_list(ctx, add_row, r, &j->error);
        return;
    }
    r->rows = calloc(1, sizeof(*r->rows));
    j->rc = r->rows ? session_find(ctx, r->id, r->rows, &j->error)
                    : err_set(&j->error, ERR_NOMEM, "session");
    r->n = !j->rc;
}

static void rows_done(struct job *j)
{
    struct rows *r = (struct rows *)j;
    struct daemon *d = r->request->daemon;
    json_t *list = json_array();

    for (size_t i = 0; i < r->n; i++) {
        json_array_append_new(list,
                              live_json(&r->rows[i], live_find(d, r->rows[i].id), !r->is_list));
        session_info_fini(&r->rows[i]);
    }
    if (j->rc)
        request_fail(r->request, j->rc, &j->error);
    else if (r->is_list)
        request_reply(r->request, json_pack("{s:O}", "sessions", list));
    else
        request_reply(r->request, json_incref(json_array_get(list, 0)));
    json_decref(list);
    free(r->rows);
    free(r);
}

static void read_rows(struct request *r, const struct live *s)
{
    struct rows *rows = calloc(1, sizeof(*rows));
    struct error e;

    if (!rows) {
        request_fail(r, err_set(&e, ERR_NOMEM, "%s", r->method), &e);
        return;
    }
    rows->job = (struct job){.run = rows_run, .done = rows_done};
    rows->request = r;
    rows->is_list = !s;
    if (s)
        memcpy(rows->id, s->id, sizeof(rows->id));
    store_thread_submit(r->daemon->store, &rows->job);
}

void method_session_list(struct request *r)
{
    read_rows(r, NULL);
}

static void get_session(struct request *r, struct live *s)
{
    read_rows(r, s);
}

void method_session_get(struct request *r)
{
    live_resolve(r, get_session);
}

/* ---- rename, delete --------------------------------------------------------------- */

static void rename_run(struct job *j, void *ctx)
{
    struct call *c = (struct call *)j;

    j->rc = session_rename(ctx, c->id, c->name, &j->error);
    name_result(c);
}

static void rename_done(struct job *j)
{
    struct call *c = (struct call *)j;

    if (!j->rc)
        memcpy(c->session->name, c->name, sizeof(c->name));
    call_done(j);
}

static void rename_session(struct request *r, struct live *s)
{
    struct call *c = call_new(r, s);
    struct error e;

    if (!c)
        return;
    if (read_name(c, json_need_str, &e)) {
        request_fail_params(r, &e);
        call_free(c);
        return;
    }
    c->job.done = rename_done;
    call_submit(c, rename_run);
}

void method_session_rename(struct request *r)
{
    live_resolve(r, rename_session);
}

static bool is_no_fork(void *user, const struct session_info *s)
{
    const char **parent = user;

    if (strcmp(s->parent, *parent) == 0)
        *parent = NULL;
    return *parent != NULL;
}

/* A fork shows calls of its parent, and with them where their whole output is. */
static bool has_forks(struct store *st, const char *id)
{
    const char *parent = id;
    struct error e;

    return session_list(st, is_no_fork, &parent, &e) != OK || !parent;
}

static void delete_run(struct job *j, void *ctx)
{
    struct call *c = (struct call *)j;

    j->rc = session_delete(ctx, c->id, &j->error);
    c->gone = j->rc == OK;
    if (c->gone && (c->purge || !has_forks(ctx, c->id)))
        j->rc = spill_remove(c->request->daemon->spill_dir, c->id, c->purge, &j->error);
    if (c->gone)
        c->result = json_pack("{s:s, s:b, s:I}", "id", c->id, "purged", c->purge, "bytes",
                              (json_int_t)0);
}

/* The row is gone: what only this session used is found by a run of gc. */
static void delete_done(struct job *j)
{
    struct call *c = (struct call *)j;

    c->session->deleting = c->gone;
    if (j->rc || !c->purge) {
        call_done(j);
        return;
    }
    keeper_run_with(c->request, GC_PURGE, c->result);
    call_free(c);
}

static void delete_session(struct request *r, struct live *s)
{
    bool purge = false;
    struct error e;

    if (json_opt_bool(r->params, "purge", &purge, &e)) {
        request_fail_params(r, &e);
        return;
    }
    if (s->turn || s->queue || s->cut) {
        err_set(&e, ERR_BUSY, "session %s is %s: cancel its turn first", s->name,
                live_state_name(s->state));
        request_fail(r, ERR_BUSY, &e);
        return;
    }
    if (s->saver) {
        r->next_waiting = s->deletions;
        s->deletions = r;
        return;
    }
    struct call *c = call_new(r, s);
    if (!c)
        return;
    c->purge = purge;
    s->deleting = true; /* nobody finds it any more */
    session_jobs_end(s);
    live_drop_seq(s);
    c->job.done = delete_done;
    call_submit(c, delete_run);
}

void method_session_delete(struct request *r)
{
    live_resolve(r, delete_session);
}

void session_delete_on_saver(struct live *s)
{
    struct request *r = s->saver ? NULL : s->deletions;

    for (struct request *next; r; r = next) {
        next = r->next_waiting;
        s->deletions = next;
        method_session_delete(r); /* from the start: much may have happened */
    }
}

/* ---- usage ------------------------------------------------------------------------ */

/* A turn's last event says that the session is idle; it comes behind its usage. */
static void note_end(json_t *turns, const struct tape_event *ev)
{
    json_t *turn = json_array_get(turns, json_array_size(turns) - 1);
    const char *id = json_string_value(json_object_get(turn, "turnId"));

    if (id && ev->turn && strcmp(id, ev->turn) == 0)
        json_object_set_new(turn, "lastSeq", json_integer((json_int_t)ev->seq));
}

static bool add_usage(void *user, const struct tape_event *ev)
{
    struct call *c = user;

    if (!ev->type || !ev->json)
        return true;
    if (strcmp(ev->type, "state") == 0)
        note_end(json_object_get(c->result, "turns"), ev);
    if (strcmp(ev->type, "usage") != 0)
        return true;
    json_t *j = json_loads(ev->json, 0, NULL), *ledger = json_object_get(j, "ledger");
    struct ledger one = {0};
    ledger_from_json(&one, ledger);
    ledger_add(&c->total, &one);
    json_array_append_new(json_object_get(c->result, "turns"),
                          json_pack("{s:s, s:O}", "turnId", ev->turn ? ev->turn : "", "ledger",
                                    ledger ? ledger : json_null()));
    json_decref(j);
    return true;
}

static void usage_run(struct job *j, void *ctx)
{
    struct call *c = (struct call *)j;

    c->result = json_pack("{s:s, s:[]}", "id", c->id, "turns");
    j->rc = tape_events(ctx, c->id, 0, 0, add_usage, c, &j->error);
    json_object_set_new(c->result, "total", ledger_json(&c->total));
}

static void session_usage(struct request *r, struct live *s)
{
    struct call *c = call_new(r, s);

    if (c)
        call_submit(c, usage_run);
}

void method_session_usage(struct request *r)
{
    live_resolve(r, session_usage);
}
