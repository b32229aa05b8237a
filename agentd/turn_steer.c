/* session/steer: text for the turn that is in work. It is durable in the turn's row when it is
 * acknowledged, and reaches the model behind the run that is being written: together with the
 * results of its calls, or, if it made none, instead of ending the turn. A turn that is stopped
 * or out of steps ends without it, and says so. A text that its client has named is taken once:
 * its event on the tape is looked for first. What a fork has of its parent does not count: its
 * names are its own, as those of its prompts are. */
#include <stdlib.h>
#include <string.h>

#include "agentd/store_thread.h"
#include "agentd/turn_internal.h"
#include "base/json.h"

#define MAX_STEERS 16 /* waiting at a time */

/* ---- the list --------------------------------------------------------------------- */

static void steer_free(struct steer *x)
{
    buf_fini(&x->text);
    free(x->message);
    free(x);
}

void steers_free(struct turn *t)
{
    while (t->steers) {
        struct steer *x = t->steers;
        t->steers = x->next;
        steer_free(x);
    }
}

static struct steer **find(struct turn *t, const char *item)
{
    struct steer **link = &t->steers;

    while (*link && strcmp((*link)->item, item) != 0)
        link = &(*link)->next;
    return link;
}

static size_t count(const struct turn *t)
{
    size_t n = 0;

    for (const struct steer *x = t->steers; x; x = x->next)
        n++;
    return n;
}

/* At the end of the list; takes the text. NULL: out of memory. */
static struct steer *append(struct turn *t, const char *item, struct buf *text,
                            const char *message)
{
    struct steer *x = calloc(1, sizeof(*x)), **link = &t->steers;

    if (!x || (message && !(x->message = strdup(message)))) {
        free(x);
        return NULL;
    }
    snprintf(x->item, sizeof(x->item), "%s", item);
    x->text = *text;
    buf_init(text, text->max);
    while (*link)
        link = &(*link)->next;
    *link = x;
    return x;
}

json_t *steers_json(const struct turn *t)
{
    json_t *list = json_array();

    for (const struct steer *x = t->steers; x; x = x->next)
        if (!x->taken)
            json_array_append_new(list, json_pack("{s:s, s:o, s:s*}", "item", x->item, "text",
                                                  json_stringn(buf_str(&x->text), x->text.len),
                                                  "message", x->message));
    return list;
}

enum err steers_read(struct turn *t, const json_t *list, struct error *e)
{
    const json_t *entry;
    size_t i;

    json_array_foreach(list, i, entry) {
        AUTO(buf) struct buf text = BUF_INIT(RPC_MAX_LINE);
        const char *item = NULL, *s = NULL, *message = NULL;
        size_t n = 0;
        enum err rc;
        if ((rc = json_need_str(entry, "item", &item, NULL, e)) ||
            (rc = json_need_str(entry, "text", &s, &n, e)) ||
            (rc = json_opt_str(entry, "message", &message, NULL, e)) ||
            (rc = buf_add(&text, s, n, e)))
            return rc;
        struct steer *x = append(t, item, &text, message);
        if (!x)
            return err_set(e, ERR_NOMEM, "steering");
        x->durable = true;
    }
    return OK;
}

/* ---- what readers see ------------------------------------------------------------- */

static void commit_item(struct turn *t, struct commit *c, const struct steer *x,
                        const char *status)
{
    json_t *item = events_item(x->item, "user", x->text.data, x->text.len);

    json_object_set_new(item, "status", json_string(status));
    if (x->message)
        json_object_set_new(item, "clientMessageId", json_string(x->message));
    commit_event(c, t->id, "item", x->item, "user", json_pack("{s:o}", "item", item));
}

/* ---- out -------------------------------------------------------------------------- */

void steers_take(struct turn *t, struct commit *c, struct input_build *b)
{
    size_t n = count(t);

    if (!n)
        return;
    b->steers = arena_array(&c->arena, n, sizeof(*b->steers), &c->error);
    if (!b->steers) {
        c->failed = c->error.code;
        return;
    }
    for (struct steer *x = t->steers; x; x = x->next) {
        if (!x->durable)
            continue; /* its own commit is on the way */
        x->taken = true;
        commit_item(t, c, x, "delivered");
        b->steers[b->n_steers++] = x;
    }
}

void steers_drop_taken(struct turn *t)
{
    struct steer **link = &t->steers;

    while (*link) {
        struct steer *x = *link;
        if (!x->taken) {
            link = &x->next;
            continue;
        }
        *link = x->next;
        steer_free(x);
    }
}

void steers_commit_end(struct turn *t, struct commit *c)
{
    for (const struct steer *x = t->steers; x; x = x->next)
        commit_item(t, c, x, "undelivered");
}

/* ---- in --------------------------------------------------------------------------- */

/* A commit of one text. */
struct steering {
    struct request *request;
    char turn[TAPE_ID_CAP], item[TAPE_ID_CAP];
};

static void settle(struct turn *t, const char *item, bool durable)
{
    struct steer **link = find(t, item), *x = *link;

    if (!x)
        return;
    x->durable = durable;
    if (durable)
        return;
    *link = x->next;
    steer_free(x);
}

static json_t *steer_receipt(const char *turn, const char *item, uint64_t seq)
{
    json_t *receipt = turn_receipt(turn, seq);

    json_object_set_new(receipt, "itemId", json_string(item));
    json_object_set_new(receipt, "steered", json_true());
    return receipt;
}

static void steered(struct live *s, const struct commit *c)
{
    struct steering *g = c->user;

    if (s->turn && strcmp(s->turn->id, g->turn) == 0)
        settle(s->turn, g->item, !c->job.rc);
    if (c->job.rc) {
        request_fail(g->request, c->job.rc, &c->job.error);
    } else {
        request_reply(g->request, steer_receipt(g->turn, g->item, c->receipt.first_seq));
    }
    free(g);
}

static enum err submit(struct turn *t, struct buf *text, const char *message, struct request *r,
                       struct error *e)
{
    char what[24];

    for (const struct steer *x = t->steers; x && message; x = x->next)
        if (!x->durable && x->message && strcmp(x->message, message) == 0)
            return err_set(e, ERR_BUSY, "the same text is on its way: ask again");
    if (count(t) >= MAX_STEERS)
        return err_set(e, ERR_BUSY, "%d texts wait for turn %s already", MAX_STEERS, t->id);
    struct steering *g = calloc(1, sizeof(*g));
    struct commit *c = g ? commit_new(t->session) : NULL;
    struct steer *x = NULL;
    if (c) {
        g->request = r;
        snprintf(what, sizeof(what), "s%u", t->n_steered);
        turn_item_id(t, t->step, what, g->item);
        snprintf(g->turn, sizeof(g->turn), "%s", t->id);
        x = append(t, g->item, text, message);
    }
    if (!x) {
        if (c)
            commit_free(c);
        free(g);
        return err_set(e, ERR_NOMEM, "steering");
    }
    t->n_steered++;
    commit_item(t, c, x, "pending");
    turn_commit_row(t, c, true);
    c->user = g;
    commit_submit(c, steered);
    return OK;
}

/* A turn that has not begun or is about to end takes no text: then it is a prompt. */
static bool can_steer(const struct turn *t)
{
    return t && t->phase != TURN_ACCEPT && t->phase < TURN_END && !t->cancelled && !t->failed &&
           !t->ending;
}

static void take(struct request *r, struct live *s, const char *message)
{
    AUTO(buf) struct buf text = BUF_INIT(RPC_MAX_LINE);
    struct error e;
    enum err rc;

    if (!can_steer(s->turn)) {
        turn_prompt(r, s);
        return;
    }
    if ((rc = user_prompt_read_text(r->params, &text, &e)) ||
        (rc = submit(s->turn, &text, message, r, &e)))
        request_fail_params(r, &e);
}

/* ---- repeated messages ------------------------------------------------------------ */

/* Whether a message was taken before: as a prompt, or as text for a turn. Its event says so for
 * as long as the session lives. */
struct lookup {
    struct job job;
    struct request *request;
    struct live *session; /* pinned */
    char message[USER_PROMPT_MAX_MESSAGE + 1];
    char turn[TAPE_ID_CAP], item[TAPE_ID_CAP]; /* found; item "": it was a prompt */
    uint64_t seq;
    uint64_t own_seq; /* first event of the session's own turns; 0: there are none */
};

static bool is_prompt(void *user, const char *session, const struct tape_turn *t)
{
    struct lookup *l = user;

    (void)session;
    if (!l->own_seq)
        l->own_seq = t->first_seq;
    if (!t->client_message || strcmp(t->client_message, l->message) != 0)
        return true;
    snprintf(l->turn, sizeof(l->turn), "%s", t->id);
    l->seq = t->first_seq;
    return false;
}

static bool is_steer(void *user, const struct tape_event *ev)
{
    struct lookup *l = user;

    if (!ev->turn || !ev->item || !ev->json || !strstr(ev->json, "\"clientMessageId\""))
        return true;
    json_auto_t *j = json_loads(ev->json, 0, NULL);
    const char *message =
        json_string_value(json_object_get(json_object_get(j, "item"), "clientMessageId"));
    if (!message || strcmp(message, l->message) != 0)
        return true;
    snprintf(l->turn, sizeof(l->turn), "%s", ev->turn);
    snprintf(l->item, sizeof(l->item), "%s", ev->item);
    l->seq = ev->seq;
    return false;
}

static void lookup_run(struct job *j, void *ctx)
{
    struct lookup *l = (struct lookup *)j;

    j->rc = tape_turns(ctx, l->session->id, is_prompt, l, &j->error);
    if (!j->rc && !l->turn[0] && l->own_seq)
        j->rc = tape_events(ctx, l->session->id, l->own_seq - 1, 0, is_steer, l, &j->error);
}

static void lookup_done(struct job *j)
{
    struct lookup *l = (struct lookup *)j;
    struct error e;

    if (j->rc)
        request_fail(l->request, j->rc, &j->error);
    else if (l->item[0])
        request_reply(l->request, steer_receipt(l->turn, l->item, l->seq));
    else if (l->turn[0])
        request_reply(l->request, turn_receipt(l->turn, l->seq));
    else if (l->session->deleting)
        request_fail(l->request, err_set(&e, ERR_NOTFOUND, "the session was deleted"), &e);
    else
        take(l->request, l->session, l->message);
    live_unpin(l->session);
    free(l);
}

void turn_steer(struct request *r, struct live *s)
{
    const char *message = NULL;
    struct error e;
    enum err rc = user_prompt_read_message(r->params, &message, &e);

    if (rc) {
        request_fail_params(r, &e);
        return;
    }
    if (!message) {
        take(r, s, NULL);
        return;
    }
    struct lookup *l = calloc(1, sizeof(*l));
    if (!l) {
        request_fail(r, err_set(&e, ERR_NOMEM, "session/steer"), &e);
        return;
    }
    l->job = (struct job){.run = lookup_run, .done = lookup_done};
    l->request = r;
    l->session = s;
    live_pin(s);
    snprintf(l->message, sizeof(l->message), "%s", message);
    store_thread_submit(s->daemon->store, &l->job);
}
