/* session/prompt: a prompt becomes a turn. Everything about it is in one commit: the user's
 * item, the ids, the boundary of the run to come, the turn's row with the forced list. */
#include <stdlib.h>
#include <string.h>

#include "agentd/turn_internal.h"
#include "base/fault.h"
#include "base/json.h"

#define MAX_CLIENT_MESSAGE 128
#define MAX_FORCED_RUNS 4096
#define MAX_FORCED_IDS ((size_t)4 << 20)

/* ---- forced runs ------------------------------------------------------------------ */

static enum err read_ids(const json_t *list, uint32_t vocab, struct ids *out, struct error *e)
{
    const json_t *v;
    size_t i;
    enum err rc = OK;

    json_array_foreach(list, i, v)
    {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= (json_int_t)vocab)
            return err_set(e, ERR_INVAL, "ids[%zu]: want an id below %u", i, vocab);
        if ((rc = ids_add(out, (uint32_t)id, e)))
            return rc;
    }
    return rc;
}

static enum err read_forced_run(const struct daemon *d, const json_t *entry, struct ids *out,
                                struct error *e)
{
    const char *text = NULL;
    size_t len = 0;
    json_t *list = NULL;
    enum err rc;

    if (!json_is_object(entry))
        return err_set(e, ERR_INVAL, "want {ids} or {text}");
    if ((rc = json_opt_str(entry, "text", &text, &len, e)) ||
        (rc = json_opt_arr(entry, "ids", &list, e)))
        return rc;
    if ((text != NULL) == (list != NULL))
        return err_set(e, ERR_INVAL, "want either ids or text");
    rc = list ? read_ids(list, d->model->vocab_size, out, e)
              : tokenizer_encode_special(d->model->tokenizer, text, len, out, e);
    for (size_t i = 0; !rc && i + 1 < out->n; i++)
        if (out->v[i] == d->chat.eos)
            return err_set(e, ERR_INVAL, "EOS inside a run");
    if (!rc && (out->n == 0 || out->v[out->n - 1] != d->chat.eos))
        rc = ids_add(out, d->chat.eos, e);
    return rc;
}

enum err turn_read_forced(struct turn *t, const json_t *list, struct error *e)
{
    size_t n = json_array_size(list), total = 0;

    if (n > MAX_FORCED_RUNS)
        return err_set(e, ERR_INVAL, "\"forced\": %zu runs, at most %d", n, MAX_FORCED_RUNS);
    if (n == 0)
        return OK;
    t->forced.runs = calloc(n, sizeof(*t->forced.runs));
    if (!t->forced.runs)
        return err_set(e, ERR_NOMEM, "forced runs");
    t->forced.n = n;
    for (size_t i = 0; i < n; i++) {
        t->forced.runs[i].max = MAX_FORCED_IDS - total;
        enum err rc =
            read_forced_run(t->session->daemon, json_array_get(list, i), &t->forced.runs[i], e);
        if (rc)
            return err_wrap(e, rc, "\"forced\"[%zu]", i);
        total += t->forced.runs[i].n;
    }
    return OK;
}

static json_t *forced_json(const struct turn *t)
{
    json_t *list = json_array();

    for (size_t i = 0; i < t->forced.n; i++) {
        json_t *ids = json_array();
        for (size_t k = 0; k < t->forced.runs[i].n; k++)
            json_array_append_new(ids, json_integer(t->forced.runs[i].v[k]));
        json_array_append_new(list, json_pack("{s:o}", "ids", ids));
    }
    return list;
}

/* ---- parameters ------------------------------------------------------------------- */

/* Text parts are joined by a blank line. */
static enum err read_content(const json_t *params, struct buf *out, struct error *e)
{
    json_t *list = NULL, *part;
    enum err rc = json_need_arr(params, "content", &list, e);
    size_t i;

    if (rc)
        return rc;
    json_array_foreach(list, i, part)
    {
        const char *type = NULL, *text = NULL;
        size_t len = 0;
        if (!json_is_object(part))
            return err_set(e, ERR_FORMAT, "\"content\"[%zu]: want an object", i);
        if ((rc = json_need_str(part, "type", &type, NULL, e)))
            return err_wrap(e, rc, "\"content\"[%zu]", i);
        if (strcmp(type, "text") != 0)
            return err_set(e, ERR_INVAL,
                           "\"content\"[%zu]: type \"%.32s\" is not taken, only "
                           "text",
                           i, type);
        if ((rc = json_need_str(part, "text", &text, &len, e)))
            return err_wrap(e, rc, "\"content\"[%zu]", i);
        if ((i > 0 && (rc = buf_add_str(out, "\n\n", e))) || (rc = buf_add(out, text, len, e)))
            return rc;
    }
    return out->len ? OK : err_set(e, ERR_INVAL, "\"content\": is empty");
}

static enum err read_params(struct turn *t, const json_t *params, struct buf *text,
                            struct error *e)
{
    const char *message = NULL;
    size_t len = 0;
    json_t *forced = NULL;
    enum err rc;

    if ((rc = read_content(params, text, e)) ||
        (rc = json_opt_str(params, "clientMessageId", &message, &len, e)) ||
        (rc = json_opt_arr(params, "forced", &forced, e)) ||
        (rc = turn_read_forced(t, forced, e)))
        return rc;
    if (!message)
        return OK;
    if (len == 0 || len > MAX_CLIENT_MESSAGE)
        return err_set(e, ERR_INVAL, "\"clientMessageId\": want 1 to %d bytes",
                       MAX_CLIENT_MESSAGE);
    t->client_message = strdup(message);
    return t->client_message ? OK : err_set(e, ERR_NOMEM, "prompt");
}

/* ---- the commit ------------------------------------------------------------------- */

static json_t *receipt(const char *turn, uint64_t seq)
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
    live_unpin(s);
}

static void accepted(struct live *s, const struct commit *c)
{
    struct turn *t = s->turn;
    struct request *r = t->request;
    struct error e;
    enum err rc;

    t->request = NULL;
    if (c->job.rc) {
        request_fail(r, c->job.rc, &c->job.error);
        withdraw(t);
        return;
    }
    if (c->receipt.duplicate) {
        request_reply(r, receipt(c->receipt.turn, c->receipt.turn_seq));
        withdraw(t);
        return;
    }
    t->receipt_seq = c->receipt.first_seq;
    request_reply(r, receipt(t->id, t->receipt_seq));
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
    json_auto_t *row = json_pack("{s:o}", "forced", forced_json(t));
    AUTO_FREE char *params = row ? json_dumps(row, JSON_COMPACT) : NULL;
    if (!c || !t->build || !params) {
        if (c)
            commit_free(c);
        return err_set(e, ERR_NOMEM, "prompt");
    }
    turn_item_id(t, 0, "u", id);
    commit_event(c, t->id, "item", id, "user",
                 json_pack("{s:o}", "item", events_item(id, "user", text->data, text->len)));
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
                                     .end = s->end,
                                     .length = s->length};
    if (fault_point("turn.accept"))
        c->failed = err_set(&c->error, ERR_IO, "prompt: fault");
    c->prepare = prepare;
    c->user = t->build;
    commit_submit(c, accepted);
    return OK;
}

/* A session that is busy takes no second prompt, but repeats the receipt of the one it has. */
static void refuse_busy(struct request *r, struct live *s)
{
    const char *message = json_string_value(json_object_get(r->params, "clientMessageId"));
    const struct turn *t = s->turn;
    struct error e;

    if (message && t->client_message && t->receipt_seq && !strcmp(message, t->client_message)) {
        request_reply(r, receipt(t->id, t->receipt_seq));
        return;
    }
    err_set(&e, ERR_BUSY, "session %s is %s", s->name, live_state_name(s->state));
    request_fail(r, ERR_BUSY, &e);
}

void turn_prompt(struct request *r, struct live *s)
{
    AUTO(buf) struct buf text = BUF_INIT(RPC_MAX_LINE);
    char id[ULID_CHARS + 1];
    struct error e;
    enum err rc;

    if (s->turn) {
        refuse_busy(r, s);
        return;
    }
    ulid_next(&s->daemon->ulids, id);
    struct turn *t = turn_new(s, id);
    if (!t) {
        request_fail(r, err_set(&e, ERR_NOMEM, "turn"), &e);
        return;
    }
    if ((rc = read_params(t, r->params, &text, &e)) || (rc = submit(t, &text, &e))) {
        request_fail_params(r, &e);
        t->phase = TURN_OVER;
        turn_free(t);
        return;
    }
    t->request = r;
    live_set_state(s, SESSION_QUEUED, "");
}
