/* Prompts that wait. A busy session takes more prompts: each is durable as the row of a turn
 * that has not begun, with its text and forced runs in the row, and becomes a turn of its own
 * when the one before it is over. Rows of a session are ordered, so a restart finds the queue
 * again as it was. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cut.h"
#include "agentd/turn_internal.h"
#include "agentd/wait.h"
#include "base/json.h"
#include "base/log.h"

void queued_prompt_free(struct queued_prompt *q)
{
    user_prompt_fini(&q->prompt);
    free(q);
}

static struct queued_prompt *find(const struct live *s, const char *id)
{
    struct queued_prompt *q = s->queue;

    while (q && strcmp(q->id, id) != 0)
        q = q->next;
    return q;
}

static void append(struct live *s, struct queued_prompt *q)
{
    struct queued_prompt **link = &s->queue;

    while (*link)
        link = &(*link)->next;
    *link = q;
    s->n_queued++;
}

static void take_out(struct live *s, struct queued_prompt *q)
{
    struct queued_prompt **link = &s->queue;

    while (*link != q)
        link = &(*link)->next;
    *link = q->next;
    q->next = NULL;
    s->n_queued--;
}

bool turn_is_pending(const struct live *s, const char *turn)
{
    const struct queued_prompt *q = find(s, turn);

    return (s->turn && strcmp(s->turn->id, turn) == 0) || (q && !q->withdrawn);
}

/* ---- what readers see ------------------------------------------------------------- */

/* A note of its own, not the user's item: that one comes when the turn begins, in its place. */
static void commit_note(struct commit *c, const char *turn, const struct buf *text,
                        const char *status)
{
    char id[TAPE_ID_CAP];

    snprintf(id, sizeof(id), "%.32s.q", turn);
    json_t *item = events_item(id, "note", text->data, text->len);
    json_object_set_new(item, "status", json_string(status));
    commit_event(c, turn, "item", id, "note", json_pack("{s:o}", "item", item));
}

/* ---- withdrawing ------------------------------------------------------------------ */

static void withdrawn(struct live *s, const struct commit *c)
{
    if (c->job.rc)
        log_error("a prompt of session=%s that was withdrawn is still on the tape: %s", s->id,
                  c->job.error.msg);
    wait_wake(s);
}

/* Takes it off the queue and off the tape's list of turns to come. Frees it. */
static void withdraw(struct live *s, struct queued_prompt *q)
{
    struct commit *c = commit_new(s);

    take_out(s, q);
    if (c) {
        commit_note(c, q->id, &q->prompt.text, "withdrawn");
        commit_turn(c,
                    &(struct tape_turn){
                        .id = q->id, .state = "idle", .reason = "cancelled", .finished = true});
        commit_submit(c, withdrawn);
    } else {
        log_error("no memory to withdraw turn=%s of session=%s", q->id, s->id);
    }
    queued_prompt_free(q);
}

bool turn_queue_cancel(struct live *s, const char *turn)
{
    struct queued_prompt *next;
    bool any = false;

    for (struct queued_prompt *q = s->queue; q; q = next) {
        next = q->next;
        if (turn && strcmp(turn, q->id) != 0)
            continue;
        any = true;
        if (q->durable)
            withdraw(s, q);
        else
            q->withdrawn = true; /* its commit is on the way: enqueued() does it */
    }
    return any;
}

/* ---- in --------------------------------------------------------------------------- */

static void enqueued(struct live *s, const struct commit *c)
{
    struct request *r = c->user;
    struct queued_prompt *q = find(s, c->turn.id);
    struct error e;

    if (c->job.rc || c->receipt.duplicate) {
        if (c->job.rc)
            request_fail(r, c->job.rc, &c->job.error);
        else
            request_reply(r, turn_receipt(c->receipt.turn, c->receipt.turn_seq));
        take_out(s, q);
        queued_prompt_free(q);
    } else if (q->withdrawn) {
        err_set(&e, ERR_CANCELLED, "the prompt was withdrawn");
        request_fail(r, ERR_CANCELLED, &e);
        withdraw(s, q);
    } else {
        q->durable = true;
        q->receipt_seq = c->receipt.first_seq;
        json_t *receipt = turn_receipt(q->id, q->receipt_seq);
        json_object_set_new(receipt, "queued", json_integer((json_int_t)s->n_queued));
        request_reply(r, receipt);
    }
    turn_queue_next(s);
}

static enum err submit(struct live *s, const struct queued_prompt *q, struct request *r,
                       struct error *e)
{
    struct commit *c = commit_new(s);
    json_auto_t *row = json_pack(
        "{s:o, s:b, s:o}", "text", json_stringn(buf_str(&q->prompt.text), q->prompt.text.len),
        "compact", q->prompt.compacts, "forced", forced_runs_json(&q->prompt.forced));
    AUTO_FREE char *params = row ? json_dumps(row, JSON_COMPACT) : NULL;

    if (!c || !params) {
        if (c)
            commit_free(c);
        return err_set(e, ERR_NOMEM, "prompt");
    }
    commit_note(c, q->id, &q->prompt.text, QUEUED_STATE);
    commit_turn(c, &(struct tape_turn){.id = q->id,
                                       .client_message = q->prompt.client_message,
                                       .params = params,
                                       .state = QUEUED_STATE,
                                       .reason = ""});
    c->user = r;
    commit_submit(c, enqueued);
    return OK;
}

/* The receipt again, if a prompt that waits has this message. */
static bool repeat_receipt(struct request *r, const struct live *s, const char *message)
{
    for (const struct queued_prompt *q = s->queue; q && message; q = q->next) {
        const char *its = q->prompt.client_message;
        if (!q->durable || !its || strcmp(its, message) != 0)
            continue;
        request_reply(r, turn_receipt(q->id, q->receipt_seq));
        return true;
    }
    return false;
}

enum err turn_enqueue(struct live *s, const char *id, struct user_prompt *p, struct request *r,
                      struct error *e)
{
    if (repeat_receipt(r, s, p->client_message))
        return OK;
    if (s->n_queued >= QUEUE_MAX_PROMPTS)
        return err_set(e, ERR_BUSY, "session %s is %s, and %d more prompts wait already",
                       s->name, live_state_name(s->state), QUEUE_MAX_PROMPTS);
    struct queued_prompt *q = calloc(1, sizeof(*q));
    if (!q)
        return err_set(e, ERR_NOMEM, "prompt");
    snprintf(q->id, sizeof(q->id), "%s", id);
    q->prompt = *p;
    *p = (struct user_prompt){0};
    enum err rc = submit(s, q, r, e);
    if (rc)
        queued_prompt_free(q);
    else
        append(s, q);
    return rc;
}

static enum err read_row(const struct daemon *d, const char *params, struct user_prompt *p,
                         struct error *e)
{
    const struct json_limits limits = {.max_bytes = TAPE_JSON_MAX, .max_depth = 64};
    json_auto_t *row = NULL;
    json_t *forced = NULL;
    const char *text = NULL;
    size_t len = 0;
    enum err rc;

    buf_init(&p->text, RPC_MAX_LINE);
    if ((rc = json_parse(params, strlen(params), &limits, &row, e)) ||
        (rc = json_need_str(row, "text", &text, &len, e)) ||
        (rc = json_opt_bool(row, "compact", &p->compacts, e)) ||
        (rc = json_opt_arr(row, "forced", &forced, e)) ||
        (rc = forced_runs_read(d, forced, &p->forced, e)))
        return rc;
    return buf_add(&p->text, text, len, e);
}

enum err turn_requeue(struct live *s, const char *id, uint64_t receipt_seq,
                      const char *client_message, const char *params, struct error *e)
{
    struct queued_prompt *q = calloc(1, sizeof(*q));

    if (!q)
        return err_set(e, ERR_NOMEM, "prompt");
    snprintf(q->id, sizeof(q->id), "%s", id);
    q->durable = true;
    q->receipt_seq = receipt_seq;
    enum err rc = read_row(s->daemon, params, &q->prompt, e);
    if (!rc && client_message && !(q->prompt.client_message = strdup(client_message)))
        rc = err_set(e, ERR_NOMEM, "prompt");
    if (rc)
        queued_prompt_free(q);
    else
        append(s, q);
    return rc;
}

/* ---- out -------------------------------------------------------------------------- */

void turn_queue_next(struct live *s)
{
    struct error e;

    while (s->queue && s->queue->durable && !s->turn && !s->cut && !s->daemon->stopping) {
        struct queued_prompt *q = s->queue;
        if (!q->prompt.compacts && cut_makes_room(s, q->prompt.text.len))
            return;
        take_out(s, q);
        enum err rc = turn_begin(s, q->id, &q->prompt, NULL, &e);
        if (rc) { /* no memory: it stays on the tape and begins after a restart */
            log_error("turn=%s of session=%s does not begin: %s", q->id, s->id, e.msg);
            turn_say_error(s, &e);
        } else {
            s->turn->receipt_seq = q->receipt_seq;
        }
        queued_prompt_free(q);
    }
}
