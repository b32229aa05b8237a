#include "agentd/cut.h"

#include <stdlib.h>
#include <string.h>

#include "agentd/commit.h"
#include "agentd/daemon.h"
#include "agentd/events.h"
#include "agentd/peer.h"
#include "agentd/store_thread.h"
#include "agentd/turn_internal.h"
#include "agentd/wait.h"
#include "base/json.h"
#include "base/log.h"

#define KEEP_TRIES 10000 /* names of what is kept: NAME.1, NAME.2, ... */

struct cut {
    struct job job;
    struct live *session;    /* pinned */
    struct request *request; /* session/rewind; NULL: compaction */
    uint64_t to_seq, was;    /* was: tokens before */
    char *config;            /* of a compaction */
    bool submitted;
    char kept_id[SESSION_ID_CAP], kept_name[SESSION_NAME_CAP];
    struct session_info info; /* of the session, after */
};

static void cut_free(struct cut *c)
{
    struct live *s = c->session;

    session_info_fini(&c->info);
    free(c->config);
    free(c);
    live_unpin(s);
}

/* ---- store's thread --------------------------------------------------------------- */

static enum err cut_as(struct cut *c, struct store *st, unsigned n, struct error *e)
{
    const struct session_cut cut = {.id = c->session->id,
                                    .at_seq = c->to_seq,
                                    .restart = c->config != NULL,
                                    .keep_name = c->kept_name,
                                    .config = c->config};

    snprintf(c->kept_name, sizeof(c->kept_name), "%.50s.%u", c->session->name, n);
    return session_cut(st, &cut, c->kept_id, e);
}

static void run(struct job *j, void *ctx)
{
    struct cut *c = (struct cut *)j;

    j->rc = ERR_CONFLICT;
    for (unsigned n = 1; n < KEEP_TRIES && j->rc == ERR_CONFLICT; n++)
        j->rc = cut_as(c, ctx, n, &j->error);
    if (!j->rc)
        j->rc = session_find(ctx, c->session->id, &c->info, &j->error);
}

/* ---- loop ------------------------------------------------------------------------- */

static json_t *kept_json(const struct cut *c)
{
    return json_pack("{s:s, s:s}", "id", c->kept_id, "name", c->kept_name);
}

/* For readers of the log: what happened here, and where the rest is. */
static void note(struct cut *c)
{
    struct live *s = c->session;
    struct commit *k = commit_new(s);
    char id[TAPE_ID_CAP], text[256];

    if (!k)
        return;
    snprintf(id, sizeof(id), "cut.%llu", (unsigned long long)s->last_seq + 1);
    int n = c->config ? snprintf(text, sizeof(text),
                                 "compacted: %llu tokens became a summary; they are kept as %s",
                                 (unsigned long long)c->was, c->kept_name)
                      : snprintf(text, sizeof(text),
                                 "rewound to @%llu; what came after is kept as %s",
                                 (unsigned long long)c->to_seq, c->kept_name);
    json_t *item = events_item(id, "note", text, (size_t)n);
    json_object_set_new(item, "kept", kept_json(c));
    commit_event(k, NULL, "item", id, "note", json_pack("{s:o}", "item", item));
    commit_submit(k, NULL);
}

/* The session as the store has it now. */
static void reload(struct cut *c, struct error *e)
{
    struct live *s = c->session;
    struct session_config *config = NULL;

    live_drop_seq(s);
    session_notes_fini(&s->notes);
    s->length = c->info.n_tokens;
    s->last_seq = c->info.last_seq;
    s->end = (struct tape_end){0};
    s->resume = (struct resume_record){0};
    if (!c->config) {
        s->last = (struct last_turn){0};
        s->reason = "";
    }
    if (c->config && session_config_load(c->info.config, &config, e) == OK) {
        session_config_free(s->config);
        s->config = config;
    }
    events_cut(s, kept_json(c));
}

static void done(struct job *j)
{
    struct cut *c = (struct cut *)j;
    struct live *s = c->session;
    struct error e;

    s->cut = NULL;
    if (!j->rc) {
        reload(c, &e);
        log_info("session=%s cut at seq=%llu tokens=%llu kept=%s", s->id,
                 (unsigned long long)s->last_seq, (unsigned long long)s->length, c->kept_id);
        note(c);
    }
    if (j->rc && !c->request)
        turn_say_error(s, &j->error);
    else if (j->rc)
        request_fail(c->request, j->rc, &j->error);
    else if (c->request)
        request_reply(c->request, json_pack("{s:s, s:I, s:I, s:o}", "id", s->id, "seq",
                                            (json_int_t)s->last_seq, "tokens",
                                            (json_int_t)s->length, "kept", kept_json(c)));
    wait_wake(s);
    turn_queue_next(s);
    cut_free(c);
}

/* The session is idle. Takes request and config. */
static void begin(struct live *s, struct request *r, uint64_t to_seq, char *config)
{
    struct cut *c = calloc(1, sizeof(*c));
    struct error e;

    if (!c) {
        err_set(&e, ERR_NOMEM, "cut");
        if (r)
            request_fail(r, ERR_NOMEM, &e);
        free(config);
        return;
    }
    c->job = (struct job){.run = run, .done = done};
    c->session = s;
    c->request = r;
    c->to_seq = to_seq;
    c->was = s->length;
    c->config = config;
    live_pin(s);
    s->cut = c;
    cut_on_saver(s);
}

void cut_on_saver(struct live *s)
{
    if (!s->cut || s->cut->submitted || s->saver)
        return;
    s->cut->submitted = true;
    store_thread_submit(s->daemon->store, &s->cut->job);
}

void cut_rewind(struct request *r, struct live *s)
{
    int64_t to = 0;
    struct error e;

    if (json_need_int(r->params, "toSeq", 0, INT64_MAX, &to, &e)) {
        request_fail_params(r, &e);
        return;
    }
    if (s->turn || s->queue || s->cut) {
        err_set(&e, ERR_BUSY, "session %s is %s: cancel its turn first", s->name,
                live_state_name(s->state));
        request_fail(r, ERR_BUSY, &e);
        return;
    }
    begin(s, r, (uint64_t)to, NULL);
}

void cut_drop(struct live *s)
{
    struct cut *c = s->cut;

    if (!c)
        return;
    session_info_fini(&c->info);
    free(c->config);
    free(c);
}

/* ---- compaction ------------------------------------------------------------------- */

static const char ask_summary[] =
    "Write a summary of this conversation for yourself: it will replace everything above. "
    "Keep what is needed to go on: what was asked for, what was decided and why, what was done "
    "and with which results, names and places of files, what is left to do. Answer with the "
    "summary alone, and call no tools.";

static enum err summary_prompt(const struct live *s, const json_t *params,
                               struct user_prompt *p, struct error *e)
{
    json_t *forced = NULL;
    enum err rc;

    p->compacts = true;
    buf_init(&p->text, sizeof(ask_summary));
    if ((rc = buf_add_str(&p->text, ask_summary, e)) ||
        (params && (rc = json_opt_arr(params, "forced", &forced, e))))
        return rc;
    return forced_runs_read(s->daemon, forced, &p->forced, e);
}

void cut_compact(struct request *r, struct live *s)
{
    AUTO(user_prompt) struct user_prompt p = {0};
    struct error e;
    enum err rc = summary_prompt(s, r->params, &p, &e);

    if (!rc && s->length == 0)
        rc = err_set(&e, ERR_CONFLICT, "session %s has nothing to summarise", s->name);
    if (!rc)
        rc = turn_accept(r, s, &p, &e);
    if (rc)
        request_fail_params(r, &e);
}

bool cut_makes_room(struct live *s, size_t prompt_bytes)
{
    AUTO(user_prompt) struct user_prompt p = {0};
    uint64_t context = s->daemon->model->max_tokens, reserve = context / 8;
    char id[ULID_CHARS + 1];
    struct error e;

    /* The answer's budget is reserved first. Text has about 4 bytes a token; 3 is on the safe
     * side without compacting long before it is due. */
    if (s->config->max_tokens < reserve)
        reserve = s->config->max_tokens;
    if (s->length == 0 || s->compacted || s->length + prompt_bytes / 3 + reserve < context)
        return false;
    ulid_next(&s->daemon->ulids, id);
    enum err rc = summary_prompt(s, NULL, &p, &e);
    if (!rc)
        rc = turn_begin(s, id, &p, NULL, &e);
    if (rc)
        log_error("session=%s is not compacted: %s", s->id, e.msg);
    else
        log_info("session=%s is compacted: %llu of %llu tokens", s->id,
                 (unsigned long long)s->length, (unsigned long long)context);
    return !rc;
}

void cut_restart(struct live *s, const char *summary)
{
    char *config = NULL;
    struct error e;

    if (session_config_with_summary(s->config, summary, s->last_seq, &config, &e))
        turn_say_error(s, &e);
    else
        begin(s, NULL, 0, config);
}
