#include "agentd/live.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/cut.h"
#include "agentd/daemon.h"
#include "agentd/events.h"
#include "agentd/peer.h"
#include "agentd/saver.h"
#include "agentd/seq_job.h"
#include "agentd/session_jobs.h"
#include "agentd/store_thread.h"
#include "agentd/turn_internal.h"
#include "agentd/wait.h"
#include "base/json.h"
#include "sessions/late.h"
#include "tools/rules.h"

const char *live_state_name(enum live_state s)
{
    static const char *const names[] = {
        [SESSION_QUEUED] = "queued",
        [SESSION_PREFILL] = "prefill",
        [SESSION_GENERATING] = "generating",
        [SESSION_TOOL] = "tool",
        [SESSION_REQUIRES_ACTION] = "requires_action",
        [SESSION_IDLE] = "idle",
    };
    return names[s];
}

/* Why an idle session is idle, as a constant string. */
static const char *idle_reason(const char *s)
{
    static const char *const known[] = {"end", "length", "cancelled", "failed", "loop"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i], s) == 0)
            return known[i];
    return "";
}

/* ---- life ------------------------------------------------------------------------- */

struct live *live_find(struct daemon *d, const char *id_or_name)
{
    for (struct live *s = d->sessions; s; s = s->next)
        if (strcmp(s->id, id_or_name) == 0 || strcmp(s->name, id_or_name) == 0)
            return s;
    return NULL;
}

static void live_free(struct live *s)
{
    if (s->link) {
        *s->link = s->next;
        if (s->next)
            s->next->link = s->link;
    }
    while (s->queue) {
        struct queued_prompt *q = s->queue;
        s->queue = q->next;
        queued_prompt_free(q);
    }
    session_config_free(s->config);
    session_jobs_free(s);
    session_notes_fini(&s->notes);
    rules_free(s->granted);
    json_decref(s->approved);
    free(s->cwd);
    free(s);
}

enum err live_add(struct daemon *d, const struct session_info *info, struct live **out,
                  struct error *e)
{
    struct live *s = calloc(1, sizeof(*s));
    enum err rc;

    if (!s || !(s->cwd = strdup(info->cwd ? info->cwd : "/")) ||
        !(s->approved = json_object())) {
        if (s)
            live_free(s);
        return err_set(e, ERR_NOMEM, "session %s", info->id);
    }
    if ((rc = session_config_load(info->config ? info->config : "", &s->config, e))) {
        live_free(s);
        return err_wrap(e, rc, "session %s", info->id);
    }
    s->daemon = d;
    memcpy(s->id, info->id, sizeof(s->id));
    memcpy(s->name, info->name, sizeof(s->name));
    s->state = SESSION_IDLE;
    s->reason = idle_reason(info->reason);
    s->length = s->reached = info->n_tokens;
    s->last_seq = info->last_seq;
    s->next = d->sessions;
    s->link = &d->sessions;
    if (s->next)
        s->next->link = &s->next;
    d->sessions = s;
    *out = s;
    return OK;
}

void live_pin(struct live *s)
{
    s->pins++;
}

static bool is_held(const struct live *s)
{
    return s->pins > 0 || s->turn || s->queue || s->saver || s->model.seq || s->waiters ||
           s->deletions || s->subscriptions;
}

void live_unpin(struct live *s)
{
    assert(s->pins > 0);
    s->pins--;
    if (!is_held(s))
        live_free(s);
}

/* ---- finding ---------------------------------------------------------------------- */

struct lookup {
    struct job job;
    struct request *request;
    void (*then)(struct request *r, struct live *s);
    char key[SESSION_NAME_CAP];
    struct session_info info;
};

static void lookup_run(struct job *j, void *ctx)
{
    struct lookup *l = (struct lookup *)j;

    j->rc = session_find(ctx, l->key, &l->info, &j->error);
}

static void lookup_done(struct job *j)
{
    struct lookup *l = (struct lookup *)j;
    struct live *s = NULL;
    enum err rc = j->rc;

    if (!rc && !(s = live_find(l->request->daemon, l->info.id)))
        rc = live_add(l->request->daemon, &l->info, &s, &j->error);
    if (rc) {
        request_fail(l->request, rc, &j->error);
    } else {
        live_pin(s);
        l->then(l->request, s);
        live_unpin(s);
    }
    session_info_fini(&l->info);
    free(l);
}

void live_resolve(struct request *r, void (*then)(struct request *r, struct live *s))
{
    const char *key = NULL;
    struct error e;
    enum err rc = json_need_str(r->params, "id", &key, NULL, &e);

    if (rc) {
        request_fail_params(r, &e);
        return;
    }
    struct live *s = live_find(r->daemon, key);
    if (s && !s->deleting) {
        live_pin(s);
        then(r, s);
        live_unpin(s);
        return;
    }
    struct lookup *l = strlen(key) < sizeof(l->key) ? calloc(1, sizeof(*l)) : NULL;
    if (!l) {
        err_set(&e, ERR_NOTFOUND, "no session is called %.80s", key);
        request_fail(r, ERR_NOTFOUND, &e);
        return;
    }
    l->job = (struct job){.run = lookup_run, .done = lookup_done};
    l->request = r;
    l->then = then;
    memcpy(l->key, key, strlen(key) + 1);
    store_thread_submit(r->daemon->store, &l->job);
}

/* ---- state and memory ------------------------------------------------------------- */

void live_set_state(struct live *s, enum live_state state, const char *reason)
{
    if (s->state == state && strcmp(s->reason, reason) == 0)
        return;
    s->state = state;
    s->reason = reason;
    events_state(s);
    if (state == SESSION_IDLE || state == SESSION_REQUIRES_ACTION)
        wait_wake(s);
}

void live_drop_seq(struct live *s)
{
    if (!s->model.seq)
        return;
    seq_job_free(s, s->model.seq);
    saver_forget_seq(s);
    late_unref(s->model.late);
    s->model = (struct residency){0};
}

static bool can_evict(const struct live *s)
{
    return s->model.seq && !s->turn && !s->saver;
}

void live_evict(struct daemon *d)
{
    for (;;) {
        struct live *oldest = NULL;
        uint32_t n = 0;
        for (struct live *s = d->sessions; s; s = s->next) {
            n += s->model.seq != NULL;
            if (can_evict(s) && (!oldest || s->used_ns < oldest->used_ns))
                oldest = s;
        }
        if (n <= d->max_resident || !oldest)
            break;
        live_pin(oldest);
        live_drop_seq(oldest);
        live_unpin(oldest);
    }
    turns_on_memory(d);
}

void live_free_all(struct daemon *d)
{
    while (d->sessions) {
        struct live *s = d->sessions;
        live_pin(s);
        if (s->turn)
            turn_free(s->turn);
        s->model.seq = NULL; /* freed with the engine */
        late_unref(s->model.late);
        free(s->saver);
        cut_drop(s);
        live_free(s);
    }
}

/* ---- JSON ------------------------------------------------------------------------- */

json_t *live_json(const struct session_info *info, const struct live *live, bool whole)
{
    const char *state = live ? live_state_name(live->state) : info->state;
    const char *reason = live ? live->reason : info->reason;
    json_t *config = json_loads(info->config ? info->config : "{}", 0, NULL);
    json_t *j =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:b, s:o}", "id",
                  info->id, "name", info->name, "cwd", info->cwd ? info->cwd : "", "state",
                  state, "reason", reason, "damaged", info->damaged, "createdMs",
                  (json_int_t)info->created_ms, "updatedMs", (json_int_t)info->updated_ms,
                  "tokens", (json_int_t)(live ? live->length : info->n_tokens), "lastSeq",
                  (json_int_t)(live ? live->last_seq : info->last_seq), "statePosition",
                  (json_int_t)info->state_position, "resident", live && live->model.seq,
                  "config", config ? config : json_object());

    if (!whole)
        json_object_del(config, "functions");
    if (live && live->n_queued)
        json_object_set_new(j, "queued", json_integer((json_int_t)live->n_queued));
    json_object_set_new(j, "origin", json_string(info->origin));
    if (info->parent[0])
        json_object_set_new(j, "parent", json_string(info->parent));
    if (info->parent[0])
        json_object_set_new(j, "forkedAt", json_integer((json_int_t)info->forked_at));
    if (live && live->resume.happened)
        json_object_set_new(j, "resume", resume_json(&live->resume));
    return j;
}
