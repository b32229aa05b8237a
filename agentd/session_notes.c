#include "agentd/session_notes.h"

#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/live.h"
#include "agentd/store_thread.h"
#include "base/json.h"

void session_notes_fini(struct session_notes *n)
{
    free(n->cwd);
    json_decref(n->todo);
    *n = (struct session_notes){0};
}

void session_notes_take(struct session_notes *n, const json_t *fields)
{
    const char *cwd = json_string_value(json_object_get(fields, "cwd"));
    json_t *todo = json_object_get(fields, "todo");

    if (cwd) {
        free(n->cwd);
        n->cwd = strdup(cwd);
    }
    if (json_is_array(todo)) {
        json_decref(n->todo);
        n->todo = json_deep_copy(todo);
    }
}

/* ---- looking them up -------------------------------------------------------------- */

struct search {
    struct job job;
    struct live *session; /* pinned */
    void (*then)(void *user, enum err rc, const struct error *e);
    void *user;
    struct session_notes found;
};

static bool look_at(void *user, const struct tape_event *ev)
{
    const struct json_limits limits = {
        .max_bytes = TAPE_JSON_MAX, .max_depth = 64, .allow_nul = true};
    struct search *x = user;
    json_auto_t *fields = NULL;

    /* Most results have neither word, and need no parsing. */
    if (!ev->kind || strcmp(ev->kind, "tool_result") != 0 || !ev->json ||
        (!strstr(ev->json, "\"cwd\"") && !strstr(ev->json, "\"todo\"")))
        return true;
    if (json_parse(ev->json, strlen(ev->json), &limits, &fields, NULL) == OK)
        session_notes_take(&x->found, json_object_get(fields, "item"));
    return true;
}

/* Store's thread. */
static void search_run(struct job *j, void *ctx)
{
    struct search *x = (struct search *)j;

    j->rc = tape_events(ctx, x->session->id, 0, 0, look_at, x, &j->error);
}

static void search_done(struct job *j)
{
    struct search *x = (struct search *)j;
    struct live *s = x->session;

    if (!j->rc && !s->notes.known) { /* another search may have been first */
        s->notes = x->found;
        s->notes.known = true;
        x->found = (struct session_notes){0};
    }
    session_notes_fini(&x->found);
    x->then(x->user, j->rc, &j->error);
    live_unpin(s);
    free(x);
}

void session_notes_load(struct live *s,
                        void (*then)(void *user, enum err rc, const struct error *e),
                        void *user)
{
    struct error e = {0};
    struct search *x = s->notes.known ? NULL : calloc(1, sizeof(*x));

    if (!x) {
        then(user, s->notes.known ? OK : err_set(&e, ERR_NOMEM, "notes of a session"), &e);
        return;
    }
    x->job = (struct job){.run = search_run, .done = search_done};
    x->session = s;
    x->then = then;
    x->user = user;
    live_pin(s);
    store_thread_submit(s->daemon->store, &x->job);
}
