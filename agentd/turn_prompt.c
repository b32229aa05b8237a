/* session/prompt: a prompt becomes a turn. Everything about it is in one commit: the user's
 * item, the ids, the boundary of the run to come, the turn's row with the forced list. A
 * session that is busy queues it: turn_queue.c. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cut.h"
#include "agentd/turn_internal.h"
#include "base/fault.h"

/* ---- the commit ------------------------------------------------------------------- */

json_t *turn_receipt(const char *turn, uint64_t seq)
{
    return json_pack("{s:s, s:I}", "turnId", turn, "seq", (json_int_t)seq);
}

/* There will be no turn: as it was. */
static void withdraw(struct turn *t)
{
    struct live *s = t->session;
    const char *was = t->was;

    live_pin(s);
    t->phase = TURN_OVER;
    turn_free(t);
    live_set_state(s, SESSION_IDLE, was);
    turn_queue_next(s);
    live_unpin(s);
}

/* It waited in the queue and its receipt is out: so its end belongs on the tape. */
static void fail_queued(struct turn *t, const struct commit *c)
{
    t->ledger.resident = t->counted = t->session->model.position;
    turn_fail(t, c->job.rc, &c->job.error);
    (void)turn_stops(t);
}

static void accepted(struct live *s, const struct commit *c)
{
    struct turn *t = s->turn;
    struct request *r = t->request;
    struct error e;
    enum err rc;

    t->request = NULL;
    t->is_full = c->job.rc && t->build->is_full;
    if (c->job.rc && !r) {
        fail_queued(t, c);
        return;
    }
    if (c->job.rc) {
        request_fail(r, c->job.rc, &c->job.error);
        withdraw(t);
        return;
    }
    if (c->receipt.duplicate) {
        request_reply(r, turn_receipt(c->receipt.turn, c->receipt.turn_seq));
        withdraw(t);
        return;
    }
    if (r) {
        t->receipt_seq = c->receipt.first_seq;
        request_reply(r, turn_receipt(t->id, t->receipt_seq));
    }
    t->tape_start = c->c.position;
    t->open_run = t->tape_start + t->build->n_input;
    t->ledger.resident = t->counted = s->model.seq ? s->model.position : 0;
    if ((rc = feed_from_commit(t, c, &e)))
        turn_fail(t, rc, &e);
    turn_go(t);
}

/* Adds what is only known once the segment is built: where the turn's tape begins. */
static enum err prepare(struct commit *c, struct store *st, struct error *e)
{
    enum err rc = turn_prepare_input(c, st, e);

    if (rc)
        return rc;
    const struct input_build *b = c->user;
    char start[48];
    snprintf(start, sizeof(start), ",\"tapeStart\":%llu}", (unsigned long long)b->length);
    size_t n = strlen(c->turn.params), m = strlen(start);
    char *params = arena_alloc(&c->arena, n + m + 1, e);
    if (!params)
        return e->code;
    memcpy(params, c->turn.params, n - 1); /* without its last brace */
    memcpy(params + n - 1, start, m + 1);
    c->turn.params = params;
    return OK;
}

static enum err submit(struct turn *t, const struct buf *text, struct error *e)
{
    struct live *s = t->session;
    struct commit *c = commit_new(s);
    char id[TAPE_ID_CAP];

    t->build = calloc(1, sizeof(*t->build));
    const char *kind = t->compacts ? "note" : "user";
    json_auto_t *row =
        json_pack("{s:b, s:o}", "compact", t->compacts, "forced", forced_runs_json(&t->forced));
    AUTO_FREE char *params = row ? json_dumps(row, JSON_COMPACT) : NULL;
    if (!c || !t->build || !params) {
        if (c)
            commit_free(c);
        return err_set(e, ERR_NOMEM, "prompt");
    }
    turn_item_id(t, 0, "u", id);
    commit_event(c, t->id, "item", id, kind,
                 json_pack("{s:o}", "item", events_item(id, kind, text->data, text->len)));
    commit_state(c, t->id, SESSION_QUEUED, "");
    commit_turn(c, &(struct tape_turn){.id = t->id,
                                       .client_message = t->client_message,
                                       .params = params,
                                       .state = "running",
                                       .reason = ""});
    char *user = arena_text(&c->arena, text->data, text->len, e);
    if (!user) {
        commit_free(c);
        return e->code;
    }
    *t->build = (struct input_build){.daemon = s->daemon,
                                     .config = s->config,
                                     .user = user,
                                     .n_user = text->len,
                                     .most = turn_compact_most(t),
                                     .end = s->end,
                                     .length = s->length};
    if (fault_point("turn.accept"))
        c->failed = err_set(&c->error, ERR_IO, "prompt: fault");
    c->prepare = prepare;
    c->user = t->build;
    commit_submit(c, accepted);
    return OK;
}

enum err turn_begin(struct live *s, const char *id, struct user_prompt *p, struct request *r,
                    struct error *e)
{
    struct turn *t = turn_new(s, id);
    enum err rc;

    if (!t)
        return err_set(e, ERR_NOMEM, "turn");
    t->client_message = TAKE(p->client_message);
    t->forced = p->forced;
    p->forced = (struct forced_runs){0};
    t->compacts = p->compacts;
    if ((rc = submit(t, &p->text, e))) {
        t->phase = TURN_OVER;
        turn_free(t);
        return rc;
    }
    t->request = r;
    live_set_state(s, SESSION_QUEUED, "");
    return OK;
}

/* The receipt again, if the turn in work has this message. */
static bool repeat_receipt(struct request *r, const struct live *s, const char *message)
{
    const struct turn *t = s->turn;

    if (!message || !t || !t->client_message || !t->receipt_seq ||
        strcmp(message, t->client_message) != 0)
        return false;
    request_reply(r, turn_receipt(t->id, t->receipt_seq));
    return true;
}

enum err turn_accept(struct request *r, struct live *s, struct user_prompt *p, struct error *e)
{
    char id[ULID_CHARS + 1];
    bool idle = !s->turn && !s->queue && !s->cut;

    ulid_next(&s->daemon->ulids, id);
    if (idle && (p->compacts || !cut_makes_room(s, p->text.len)))
        return turn_begin(s, id, p, r, e);
    return turn_enqueue(s, id, p, r, e);
}

void turn_prompt(struct request *r, struct live *s)
{
    AUTO(user_prompt) struct user_prompt p = {0};
    struct error e;
    enum err rc = user_prompt_read(s->daemon, r->params, &p, &e);

    if (!rc && repeat_receipt(r, s, p.client_message))
        return;
    if (!rc)
        rc = turn_accept(r, s, &p, &e);
    if (rc)
        request_fail_params(r, &e);
}
