/* search and session/diff: what the store is asked about what was said. One job of the store's
 * thread each; text is made of tokens on the loop's. */
#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/events.h"
#include "agentd/live.h"
#include "agentd/methods.h"
#include "agentd/store_thread.h"
#include "base/json.h"
#include "engine/tokenizer.h"
#include "sessions/search.h"
#include "sessions/tape.h"

/* ---- search ----------------------------------------------------------------------- */

struct search_job {
    struct job job;
    struct request *request;
    struct live *session; /* pinned; NULL: all sessions */
    char *text;
    int64_t limit;
    json_t *hits;
    bool more;
};

static void search_free(struct search_job *s)
{
    if (s->session)
        live_unpin(s->session);
    json_decref(s->hits);
    free(s->text);
    free(s);
}

static bool add_hit(void *user, const struct search_hit *h)
{
    struct search_job *s = user;
    json_t *j = json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s*, s:o}", "id", h->session, "name",
                          h->name, "seq", (json_int_t)h->seq, "tMs", (json_int_t)h->t_ms,
                          "itemId", h->item, "kind", h->kind, "turnId", h->turn, "snippet",
                          events_text(h->snippet, strlen(h->snippet)));

    return json_array_append_new(s->hits, j) == 0;
}

static void search_job_run(struct job *j, void *ctx)
{
    struct search_job *s = (struct search_job *)j;
    const struct search_query q = {.text = s->text,
                                   .session = s->session ? s->session->id : NULL,
                                   .limit = (uint32_t)s->limit};

    j->rc = search_run(ctx, &q, add_hit, s, &s->more, &j->error);
}

static void search_job_done(struct job *j)
{
    struct search_job *s = (struct search_job *)j;

    if (j->rc == ERR_INVAL)
        request_fail_params(s->request, &j->error);
    else if (j->rc)
        request_fail(s->request, j->rc, &j->error);
    else
        request_reply(s->request, json_pack("{s:O, s:b}", "hits", s->hits, "more", s->more));
    search_free(s);
}

static void search_in(struct request *r, struct live *in)
{
    struct search_job *s = calloc(1, sizeof(*s));
    const char *text = NULL;
    struct error e;
    enum err rc = OK;

    if (!s || !(s->hits = json_array())) {
        free(s);
        request_fail(r, err_set(&e, ERR_NOMEM, "search"), &e);
        return;
    }
    s->request = r;
    if (in) {
        s->session = in;
        live_pin(in);
    }
    if ((rc = json_need_str(r->params, "query", &text, NULL, &e)) ||
        (rc = json_opt_int(r->params, "limit", 1, SEARCH_MAX_HITS, &s->limit, &e)) ||
        !(s->text = strdup(text))) {
        if (!rc)
            err_set(&e, ERR_NOMEM, "search");
        request_fail_params(r, &e);
        search_free(s);
        return;
    }
    s->job = (struct job){.run = search_job_run, .done = search_job_done};
    store_thread_submit(r->daemon->store, &s->job);
}

void method_search(struct request *r)
{
    if (json_object_get(r->params, "id"))
        live_resolve(r, search_in);
    else
        search_in(r, NULL);
}

/* ---- diff ------------------------------------------------------------------------- */

#define AROUND 24 /* tokens before the first difference, and of each side from there on */

/* One of the two sessions that are compared. */
struct side {
    struct session_info info;
    struct tape tape;
    json_t *items; /* newest version of each, in order */
    json_t *seqs;  /* of these */
};

struct diff_job {
    struct job job;
    struct request *request;
    struct live *session; /* pinned; the other is found by its key */
    char other[SESSION_NAME_CAP];
    struct side sides[2];
    uint64_t shared; /* ids that are equal, from the first on */
};

static void side_fini(struct side *s)
{
    session_info_fini(&s->info);
    tape_fini(&s->tape);
    json_decref(s->items);
    json_decref(s->seqs);
}

static void diff_free(struct diff_job *d)
{
    side_fini(&d->sides[0]);
    side_fini(&d->sides[1]);
    live_unpin(d->session);
    free(d);
}

/* What an item says: two sessions that were told the same have other ids. */
static bool add_item(void *user, const struct tape_event *ev)
{
    struct side *s = user;
    json_t *j = json_loads(ev->json ? ev->json : "{}", 0, NULL);
    json_t *item = json_incref(json_object_get(j, "item"));

    json_decref(j);
    json_object_del(item, "id");
    json_object_del(item, "callId");
    json_object_del(item, "kept");
    json_array_append_new(s->items, item ? item : json_object());
    json_array_append_new(s->seqs, json_integer((json_int_t)ev->seq));
    return true;
}

static enum err load_side(struct store *st, const char *key, struct side *s, struct error *e)
{
    enum err rc = session_find(st, key, &s->info, e);

    s->items = json_array();
    s->seqs = json_array();
    if (rc || (rc = tape_load(st, s->info.id, &s->tape, e)))
        return rc;
    if (s->tape.damaged)
        return err_set(e, ERR_CORRUPT, "session %s is damaged", s->info.name);
    return tape_items(st, s->info.id, add_item, s, e);
}

static void diff_run(struct job *j, void *ctx)
{
    struct diff_job *d = (struct diff_job *)j;
    const struct tape_view *a = &d->sides[0].tape.view, *b = &d->sides[1].tape.view;

    if ((j->rc = load_side(ctx, d->session->id, &d->sides[0], &j->error)) ||
        (j->rc = load_side(ctx, d->other, &d->sides[1], &j->error)))
        return;
    while (d->shared < a->n_ids && d->shared < b->n_ids &&
           a->ids[d->shared] == b->ids[d->shared])
        d->shared++;
}

/* Text of the ids [from, to); an id without a token is U+FFFD. */
static json_t *text_of(const struct daemon *d, const struct tape_view *t, uint64_t from,
                       uint64_t to)
{
    AUTO(buf) struct buf b = BUF_INIT(1 << 20);
    enum err rc = OK;

    for (uint64_t i = from; i < to && i < t->n_ids && !rc; i++) {
        size_t n = 0;
        const uint8_t *bytes = tokenizer_bytes(d->model->tokenizer, t->ids[i], &n);
        rc = bytes ? buf_add(&b, bytes, n, NULL) : buf_add_str(&b, "\xef\xbf\xbd", NULL);
    }
    return events_text(buf_str(&b), b.len);
}

/* The first item that differs: null where a side has no more. */
static json_t *item_json(const struct diff_job *d)
{
    const json_t *a = d->sides[0].items, *b = d->sides[1].items;
    size_t i = 0;

    while (i < json_array_size(a) && json_equal(json_array_get(a, i), json_array_get(b, i)))
        i++;
    if (i == json_array_size(a) && i == json_array_size(b))
        return NULL;
    json_t *out = json_pack("{s:I}", "index", (json_int_t)i);
    for (int k = 0; k < 2; k++) {
        const struct side *s = &d->sides[k];
        json_t *item = json_deep_copy(json_array_get(s->items, i));
        if (item)
            json_object_set(item, "seq", json_array_get(s->seqs, i));
        json_object_set_new(out, k ? "b" : "a", item ? item : json_null());
    }
    return out;
}

static json_t *side_json(const struct diff_job *d, int k)
{
    const struct tape_view *t = &d->sides[k].tape.view;
    bool more = d->shared < t->n_ids;
    json_t *j = json_pack("{s:s, s:s, s:I, s:I, s:o}", "id", d->sides[k].info.id, "name",
                          d->sides[k].info.name, "tokens", (json_int_t)t->n_ids, "recompute",
                          (json_int_t)(t->n_ids - d->shared), "text",
                          text_of(d->request->daemon, t, d->shared, d->shared + AROUND));

    json_object_set_new(j, "token",
                        more ? json_integer((json_int_t)t->ids[d->shared]) : json_null());
    return j;
}

static void diff_done(struct job *j)
{
    struct diff_job *d = (struct diff_job *)j;
    uint64_t from = d->shared > AROUND ? d->shared - AROUND : 0;

    if (j->rc) {
        request_fail(d->request, j->rc, &j->error);
    } else {
        bool equal = d->shared == d->sides[0].tape.view.n_ids &&
                     d->shared == d->sides[1].tape.view.n_ids;
        json_t *answer = json_pack(
            "{s:b, s:I, s:o, s:o, s:o}", "equal", equal, "shared", (json_int_t)d->shared,
            "before", text_of(d->request->daemon, &d->sides[0].tape.view, from, d->shared), "a",
            side_json(d, 0), "b", side_json(d, 1));
        json_t *item = item_json(d);
        if (item)
            json_object_set_new(answer, "item", item);
        request_reply(d->request, answer);
    }
    diff_free(d);
}

static void diff_session(struct request *r, struct live *s)
{
    struct diff_job *d = calloc(1, sizeof(*d));
    const char *other = NULL;
    struct error e;
    enum err rc = d ? OK : err_set(&e, ERR_NOMEM, "session/diff");

    if (!rc)
        rc = json_need_str(r->params, "other", &other, NULL, &e);
    if (!rc && strlen(other) >= sizeof(d->other))
        rc = err_set(&e, ERR_NOTFOUND, "no session is called %.80s", other);
    if (rc) {
        free(d);
        request_fail_params(r, &e);
        return;
    }
    memcpy(d->other, other, strlen(other) + 1);
    d->request = r;
    d->session = s;
    live_pin(s);
    d->job = (struct job){.run = diff_run, .done = diff_done};
    store_thread_submit(r->daemon->store, &d->job);
}

void method_session_diff(struct request *r)
{
    live_resolve(r, diff_session);
}
