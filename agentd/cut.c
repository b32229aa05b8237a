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
#include "base/fault.h"
#include "base/json.h"
#include "base/log.h"

#define KEEP_TRIES 10000 /* names of what is kept: NAME.1, NAME.2, ... */

struct cut {
    struct job job;
    struct live *session;          /* pinned */
    struct request *request;       /* session/rewind; NULL: compaction */
    cut_fn *then;                  /* NULL: nobody waits for a compaction */
    struct session_config *loaded; /* of `config` */
    uint64_t to_seq, was;          /* was: tokens before */
    char *config;                  /* of a compaction */
    bool submitted;
    struct cut_kept kept;
    struct session_info info; /* of the session, after */
};

static void cut_free(struct cut *c)
{
    struct live *s = c->session;

    session_info_fini(&c->info);
    session_config_free(c->loaded);
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
                                    .keep_name = c->kept.name,
                                    .config = c->config};

    snprintf(c->kept.name, sizeof(c->kept.name), "%.50s.%u", c->session->name, n);
    return session_cut(st, &cut, c->kept.id, e);
}

static void run(struct job *j, void *ctx)
{
    struct cut *c = (struct cut *)j;

    j->rc = fault_point("cut.begin") ? err_set(&j->error, ERR_IO, "cut: fault") : ERR_CONFLICT;
    for (unsigned n = 1; n < KEEP_TRIES && j->rc == ERR_CONFLICT; n++)
        j->rc = cut_as(c, ctx, n, &j->error);
    if (!j->rc)
        j->rc = session_find(ctx, c->session->id, &c->info, &j->error);
    if (!j->rc && fault_point("cut.done"))
        return; /* for crash faults: durable, and nobody knows yet */
}

/* ---- loop ------------------------------------------------------------------------- */

static json_t *kept_json(const struct cut_kept *k)
{
    return json_pack("{s:s, s:s}", "id", k->id, "name", k->name);
}

static json_t *note_item(const char *id, const char *text, const struct cut_kept *kept)
{
    json_t *item = events_item(id, "note", text, strlen(text));

    if (item && kept->id[0])
        json_object_set_new(item, "kept", kept_json(kept));
    return item;
}

json_t *cut_item(const char *id, uint64_t was, const struct cut_kept *kept)
{
    char text[256];

    snprintf(text, sizeof(text), "compacted: %llu tokens became a summary%s%s",
             (unsigned long long)was, kept->id[0] ? "; they are kept as " : "", kept->name);
    return note_item(id, text, kept);
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
    snprintf(text, sizeof(text), "rewound to @%llu; what came after is kept as %s",
             (unsigned long long)c->to_seq, c->kept.name);
    json_t *item = c->config ? cut_item(id, c->was, &c->kept) : note_item(id, text, &c->kept);
    commit_event(k, NULL, "item", id, "note", json_pack("{s:o}", "item", item));
    commit_submit(k, NULL);
}

/* The session as the store has it now. */
static void reload(struct cut *c)
{
    struct live *s = c->session;

    live_drop_seq(s);
    session_notes_fini(&s->notes);
    s->length = c->info.n_tokens;
    if (s->reached > s->length)
        s->reached = s->length;
    s->last_seq = c->info.last_seq;
    s->end = (struct tape_end){0};
    s->resume = (struct resume_record){0};
    if (!c->config) {
        s->last = (struct last_turn){0};
        s->reason = "";
    }
    if (c->loaded) {
        session_config_free(s->config);
        s->config = TAKE(c->loaded);
    }
    events_cut(s, kept_json(&c->kept));
}

static void done(struct job *j)
{
    struct cut *c = (struct cut *)j;
    struct live *s = c->session;

    s->cut = NULL;
    if (!j->rc) {
        reload(c);
        log_info("session=%s cut at seq=%llu tokens=%llu kept=%s", s->id,
                 (unsigned long long)s->last_seq, (unsigned long long)s->length, c->kept.id);
        if (!c->then)
            note(c);
    }
    if (c->then)
        c->then(s, j->rc, &c->kept, &j->error);
    else if (j->rc && !c->request)
        turn_say_error(s, &j->error);
    else if (j->rc)
        request_fail(c->request, j->rc, &j->error);
    else if (c->request)
        request_reply(c->request,
                      json_pack("{s:s, s:I, s:I, s:o}", "id", s->id, "seq",
                                (json_int_t)s->last_seq, "tokens", (json_int_t)s->length,
                                "kept", kept_json(&c->kept)));
    wait_wake(s);
    turn_queue_next(s);
    turns_on_memory(s->daemon); /* what is cut has left it */
    cut_free(c);
}

/* The session is idle, or its turn waits for this. c is on the heap, with what is asked for;
 * taken. */
static void begin(struct live *s, struct cut *c)
{
    c->job = (struct job){.run = run, .done = done};
    c->session = s;
    c->was = s->length;
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
    struct cut *c = calloc(1, sizeof(*c));
    if (!c) {
        request_fail(r, err_set(&e, ERR_NOMEM, "cut"), &e);
        return;
    }
    c->request = r;
    c->to_seq = (uint64_t)to;
    begin(s, c);
}

void cut_drop(struct live *s)
{
    struct cut *c = s->cut;

    if (!c)
        return;
    session_info_fini(&c->info);
    session_config_free(c->loaded);
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

uint64_t cut_summary_room(const struct daemon *d)
{
    uint64_t room = d->context / 16 + 512;

    return room < d->context / 4 ? room : d->context / 4;
}

uint64_t cut_answer_room(const struct daemon *d, uint64_t budget)
{
    return budget < d->context / 8 ? budget : d->context / 8;
}

bool cut_makes_room(struct live *s, size_t prompt_bytes)
{
    AUTO(user_prompt) struct user_prompt p = {0};
    const struct daemon *d = s->daemon;
    uint64_t context = d->context, room = cut_summary_room(d);
    char id[ULID_CHARS + 1];
    struct error e;

    /* The answer's budget is reserved first. Text has about 4 bytes a token; 3 is on the safe
     * side without compacting long before it is due. */
    if (s->length == 0 || s->compacted ||
        s->length + prompt_bytes / 3 + cut_answer_room(d, s->config->max_tokens) + room <
            context)
        return false;
    if (s->length + sizeof(ask_summary) / 3 + room / 4 > context)
        return false; /* nothing could be asked any more: the prompt's own error says so */
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

void cut_restart(struct live *s, const char *summary, cut_fn *then)
{
    struct cut *c = calloc(1, sizeof(*c));
    struct error e;
    enum err rc = c ? OK : err_set(&e, ERR_NOMEM, "cut");

    if (!rc)
        rc = session_config_with_summary(s->config, summary, s->last_seq, &c->config, &e);
    if (!rc && !(rc = session_config_load(c->config, &c->loaded, &e))) {
        c->then = then;
        begin(s, c);
        return;
    }
    if (c)
        free(c->config);
    free(c);
    if (then)
        then(s, rc, NULL, &e);
    else
        turn_say_error(s, &e);
}
