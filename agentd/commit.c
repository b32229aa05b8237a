#include "agentd/commit.h"

#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/events.h"
#include "agentd/store_thread.h"
#include "base/fault.h"

struct commit *commit_new(struct live *s)
{
    struct commit *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    arena_init(&c->arena, COMMIT_MAX_BYTES);
    c->session = s;
    c->c.session = s->id;
    live_pin(s);
    return c;
}

void commit_free(struct commit *c)
{
    struct live *s = c->session;

    arena_fini(&c->arena);
    free(c);
    live_unpin(s);
}

/* ---- appending -------------------------------------------------------------------- */

/* Room for one more in an array of *n objects of `size`; the array may move. NULL: failed. */
static void *room(struct commit *c, void *array, size_t n, size_t *cap, size_t size)
{
    if (c->failed)
        return NULL;
    if (n < *cap)
        return array;
    size_t more = *cap ? 2 * *cap : 8;
    void *bigger = arena_array(&c->arena, more, size, &c->error);
    if (!bigger) {
        c->failed = c->error.code;
        return NULL;
    }
    if (n)
        memcpy(bigger, array, n * size);
    *cap = more;
    return bigger;
}

/* A copy of a string; NULL stays NULL. */
static const char *text(struct commit *c, const char *s)
{
    if (!s || c->failed)
        return NULL;
    char *copy = arena_text(&c->arena, s, strlen(s), &c->error);
    if (!copy)
        c->failed = c->error.code;
    return copy;
}

void commit_ids(struct commit *c, const uint32_t *ids, size_t n)
{
    if (c->failed || n == 0)
        return;
    uint32_t *all = arena_array(&c->arena, c->c.n_ids + n, sizeof(*all), &c->error);
    if (!all) {
        c->failed = c->error.code;
        return;
    }
    if (c->c.n_ids)
        memcpy(all, c->ids, c->c.n_ids * sizeof(*all));
    memcpy(all + c->c.n_ids, ids, n * sizeof(*all));
    c->ids = all;
    c->c.n_ids += n;
}

void commit_segment(struct commit *c, const struct tape_segment *seg)
{
    void *array = room(c, c->segments, c->c.n_segments, &c->cap_segments, sizeof(*seg));

    if (!array)
        return;
    c->segments = array;
    c->segments[c->c.n_segments++] = *seg;
}

void commit_event(struct commit *c, const char *turn, const char *type, const char *item,
                  const char *kind, json_t *fields)
{
    void *array = room(c, c->events, c->c.n_events, &c->cap_events, sizeof(*c->events));
    json_t *payload = events_payload(c->session->daemon, turn, type, fields);
    char *json = payload ? json_dumps(payload, JSON_COMPACT) : NULL;

    json_decref(payload);
    if (array && json) {
        c->events = array;
        c->events[c->c.n_events++] = (struct tape_event){.position = TAPE_END,
                                                         .turn = text(c, turn),
                                                         .type = text(c, type),
                                                         .item = text(c, item),
                                                         .kind = text(c, kind),
                                                         .json = text(c, json)};
    } else if (!c->failed) {
        c->failed = err_set(&c->error, ERR_NOMEM, "event");
    }
    free(json);
}

void commit_state(struct commit *c, const char *turn, enum live_state state, const char *reason)
{
    json_t *fields = json_pack("{s:s}", "state", live_state_name(state));

    if (fields && reason[0])
        json_object_set_new(fields, "reason", json_string(reason));
    commit_event(c, turn, "state", NULL, NULL, fields);
    c->c.state = live_state_name(state);
    c->c.reason = text(c, reason);
}

void commit_call(struct commit *c, const struct tape_call *call)
{
    void *array = room(c, c->calls, c->c.n_calls, &c->cap_calls, sizeof(*call));

    if (!array)
        return;
    struct tape_call copy = *call;
    copy.id = text(c, call->id);
    copy.turn = text(c, call->turn);
    copy.item = text(c, call->item);
    copy.name = text(c, call->name);
    copy.arguments = text(c, call->arguments);
    copy.spill = text(c, call->spill);
    if (call->result && !c->failed &&
        !(copy.result = arena_text(&c->arena, call->result, call->n_result, &c->error)))
        c->failed = c->error.code;
    c->calls = array;
    c->calls[c->c.n_calls++] = copy;
}

void commit_turn(struct commit *c, const struct tape_turn *turn)
{
    c->turn = *turn;
    c->turn.id = text(c, turn->id);
    c->turn.client_message = text(c, turn->client_message);
    c->turn.params = text(c, turn->params);
    c->turn.state = text(c, turn->state);
    c->turn.reason = text(c, turn->reason);
    c->turn.ledger = text(c, turn->ledger);
    c->c.turn = &c->turn;
}

/* ---- the way there and back ------------------------------------------------------- */

static void commit_run(struct job *j, void *ctx)
{
    struct commit *c = (struct commit *)j;

    if (c->prepare && (j->rc = c->prepare(c, ctx, &j->error)))
        return;
    if ((j->rc = c->failed)) {
        j->error = c->error;
        return;
    }
    c->c.ids = c->ids;
    c->c.segments = c->segments;
    c->c.events = c->events;
    c->c.calls = c->calls;
    if (fault_point("turn.commit"))
        j->rc = err_set(&j->error, ERR_IO, "tape commit: fault");
    else
        j->rc = tape_commit(ctx, &c->c, &c->receipt, &j->error);
    if (!j->rc && fault_point("turn.committed"))
        return; /* for crash faults: durable, and nobody knows yet */
}

static void commit_done(struct job *j)
{
    struct commit *c = (struct commit *)j;
    struct live *s = c->session;

    if (!j->rc && !c->receipt.duplicate) {
        s->length = c->receipt.length;
        s->last_seq = c->receipt.last_seq;
        for (size_t i = 0; i < c->c.n_events; i++)
            events_publish(s, c->receipt.first_seq + i, c->events[i].json);
    }
    if (c->then)
        c->then(s, c);
    commit_free(c);
}

void commit_submit(struct commit *c, void (*then)(struct live *s, const struct commit *c))
{
    c->job.run = commit_run;
    c->job.done = commit_done;
    c->then = then;
    store_thread_submit(c->session->daemon->store, &c->job);
}
