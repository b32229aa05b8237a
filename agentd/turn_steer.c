/* session/steer: text for the turn that is in work. It is durable in the turn's row when it is
 * acknowledged, and reaches the model behind the run that is being written: together with the
 * results of its calls, or, if it made none, instead of ending the turn. A turn that is stopped
 * or out of steps ends without it, and says so. */
#include <stdlib.h>
#include <string.h>

#include "agentd/turn_internal.h"
#include "base/json.h"

#define MAX_STEERS 16 /* waiting at a time */

/* ---- the list --------------------------------------------------------------------- */

static void steer_free(struct steer *x)
{
    buf_fini(&x->text);
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
static struct steer *append(struct turn *t, const char *item, struct buf *text)
{
    struct steer *x = calloc(1, sizeof(*x)), **link = &t->steers;

    if (!x)
        return NULL;
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
            json_array_append_new(list,
                                  json_pack("{s:s, s:o}", "item", x->item, "text",
                                            json_stringn(buf_str(&x->text), x->text.len)));
    return list;
}

enum err steers_read(struct turn *t, const json_t *list, struct error *e)
{
    const json_t *entry;
    size_t i;

    json_array_foreach(list, i, entry)
    {
        AUTO(buf) struct buf text = BUF_INIT(RPC_MAX_LINE);
        const char *item = NULL, *s = NULL;
        size_t n = 0;
        enum err rc;
        if ((rc = json_need_str(entry, "item", &item, NULL, e)) ||
            (rc = json_need_str(entry, "text", &s, &n, e)) || (rc = buf_add(&text, s, n, e)))
            return rc;
        struct steer *x = append(t, item, &text);
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

static void steered(struct live *s, const struct commit *c)
{
    struct steering *g = c->user;

    if (s->turn && strcmp(s->turn->id, g->turn) == 0)
        settle(s->turn, g->item, !c->job.rc);
    if (c->job.rc) {
        request_fail(g->request, c->job.rc, &c->job.error);
    } else {
        json_t *answer = turn_receipt(g->turn, c->receipt.first_seq);
        json_object_set_new(answer, "itemId", json_string(g->item));
        json_object_set_new(answer, "steered", json_true());
        request_reply(g->request, answer);
    }
    free(g);
}

static enum err submit(struct turn *t, struct buf *text, struct request *r, struct error *e)
{
    char what[24];

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
        x = append(t, g->item, text);
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

void turn_steer(struct request *r, struct live *s)
{
    AUTO(buf) struct buf text = BUF_INIT(RPC_MAX_LINE);
    struct error e;
    enum err rc;

    if (!can_steer(s->turn)) {
        turn_prompt(r, s);
        return;
    }
    if ((rc = user_prompt_read_text(r->params, &text, &e)) ||
        (rc = submit(s->turn, &text, r, &e)))
        request_fail_params(r, &e);
}
