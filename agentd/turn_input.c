/* Input segments: text, tool results and notes become ids, on the store's thread, in the same
 * job that commits them. So a long text delays other commits and nothing else, and the tape's
 * end that it was built for is the one it is appended to. */
#include <stdlib.h>
#include <string.h>

#include "agentd/turn_internal.h"
#include "base/fs.h"
#include "base/json.h"
#include "sessions/store.h"

#define MAX_SEGMENT_BYTES ((size_t)64 << 20)
#define MAX_SEGMENT_IDS ((size_t)32 << 20)

/* ---- how the tape ends ------------------------------------------------------------ */

/* Calls of a whole run, from its ids. */
static enum err count_calls(struct input_build *b, const uint32_t *ids, uint64_t n,
                            struct error *e)
{
    const struct tokenizer *tok = b->daemon->model->tokenizer;
    const struct chat_parser_options o = {.thinking = b->config->thinking};
    struct chat_parser *p = NULL;
    enum err rc = chat_parser_new(&p, &o, e);

    for (uint64_t i = 0; i < n && !rc; i++) {
        size_t len = 0;
        const uint8_t *bytes = tokenizer_bytes(tok, ids[i], &len);
        if (bytes)
            rc = chat_parser_feed(p, bytes, len, tokenizer_is_added(tok, ids[i]), e);
    }
    if (!rc && !(rc = chat_parser_finish(p, e)))
        b->n_calls = chat_parser_n_calls(p);
    chat_parser_free(p);
    return rc;
}

static enum err look_at_end(struct input_build *b, struct store *st, const char *session,
                            struct error *e)
{
    AUTO(tape) struct tape t = {0};
    enum err rc = tape_load(st, session, &t, e);
    const struct chat_ids *ids = &b->daemon->chat;

    if (rc)
        return rc;
    if (t.damaged)
        return err_set(e, ERR_CORRUPT, "session %s is damaged: it can only be read", session);
    b->length = t.view.n_ids;
    b->end = (struct tape_end){.is_known = true};
    if (t.view.n_ids == 0)
        return OK;
    const struct segment *last = &t.view.segments[t.view.n_segments - 1];
    if (last->kind == SEGMENT_INPUT) { /* the run never began */
        b->end.run_cut = true;
        b->end.thinking_open = b->config->thinking;
        return OK;
    }
    b->end.run_cut = t.ids[t.view.n_ids - 1] != ids->eos;
    b->end.thinking_open = b->config->thinking;
    for (uint64_t i = last->start; i < t.view.n_ids; i++)
        if (t.ids[i] == ids->think_end)
            b->end.thinking_open = false;
    return b->end.run_cut ? OK
                          : count_calls(b, t.ids + last->start, t.view.n_ids - last->start, e);
}

/* ---- a turn that was left unfinished ---------------------------------------------- */

/* Only after a tape commit that failed: the row says unfinished, and no turn is live. */
struct leftover {
    bool found;
    char id[TAPE_ID_CAP];
    uint32_t step;
    uint64_t forced_next;
};

static bool take_leftover(void *user, const char *session, const struct tape_turn *t)
{
    struct leftover *l = user;

    (void)session;
    if (strcmp(t->state, QUEUED_STATE) == 0)
        return true; /* it has not begun */
    l->found = true;
    snprintf(l->id, sizeof(l->id), "%s", t->id);
    l->step = t->step;
    l->forced_next = t->forced_next;
    return false;
}

static enum err close_leftover(struct commit *c, struct store *st, struct error *e)
{
    struct leftover l = {0};
    AUTO(tape) struct tape t = {0};
    struct tape_segment seg = {0};
    enum err rc = tape_unfinished(st, c->session->id, take_leftover, &l, e);

    if (rc || !l.found || (rc = tape_load(st, c->session->id, &t, e)))
        return rc;
    struct tape_turn row = {.id = l.id,
                            .step = l.step,
                            .forced_next = l.forced_next,
                            .state = "idle",
                            .reason = "failed",
                            .finished = true};
    struct tape_commit close = {.session = c->session->id, .turn = &row};
    if (t.view.n_segments && t.tape_segments[t.view.n_segments - 1].open) {
        seg = t.tape_segments[t.view.n_segments - 1];
        seg.open = false;
        seg.seg.len = t.view.n_ids - seg.seg.start;
        close.segments = &seg;
        close.n_segments = 1;
    }
    return tape_commit(st, &close, NULL, e);
}

/* ---- results ---------------------------------------------------------------------- */

/* Back, or forward, to where a character of UTF-8 begins. */
static size_t border(const char *s, size_t n, size_t at, bool forward)
{
    for (int i = 0; i < 3 && at > 0 && at < n && ((uint8_t)s[at] & 0xc0) == 0x80; i++)
        at += forward ? 1 : (size_t)-1;
    return at;
}

/* One result: all of it, or, past the cap, head and tail with a line that says what is not. */
static enum err add_result(struct chat_segment *seg, struct input_build *b, const char *text,
                           size_t n, const char *spill, struct error *e)
{
    AUTO(buf) struct buf cut = BUF_INIT(b->result_cap + FS_PATH_BYTES + 256);
    size_t half = b->result_cap / 2;
    enum err rc;

    if (n > b->n_longest)
        b->n_longest = n;
    if (!b->result_cap || n <= b->result_cap)
        return chat_segment_tool_result(seg, text, n, e);
    size_t head = border(text, n, half, false), tail = border(text, n, n - half, true);
    if ((rc = buf_add(&cut, text, head, e)) ||
        (rc = buf_printf(&cut, e,
                         "\n[... %zu of %zu bytes left out: the context has no room for "
                         "them%s%s ...]\n",
                         tail - head, n, spill ? "; the whole output is in " : "",
                         spill ? spill : "")) ||
        (rc = buf_add(&cut, text + tail, n - tail, e)))
        return rc;
    return chat_segment_tool_result(seg, cut.data, cut.len, e);
}

/* Adds results of the last turn's calls that are not on the tape: it was cancelled, or this is
 * a fork that left before they were put there. */
struct open_results {
    struct chat_segment *segment;
    struct input_build *build;
    struct commit *commit; /* NULL: they are in it already */
    enum err rc;
    struct error *error;
};

static bool add_open_result(void *user, const struct tape_call *call)
{
    struct open_results *o = user;

    if (call->ingested)
        return true;
    struct tape_call row = *call;
    bool has = !call_is_open(call->status) && call->result;
    const void *text = has ? call->result : INTERRUPTED_TEXT;
    size_t n = has ? call->n_result : sizeof(INTERRUPTED_TEXT) - 1;
    if ((o->rc = add_result(o->segment, o->build, text, n, has ? call->spill : NULL, o->error)))
        return false;
    if (!o->commit)
        return true;
    row.ingested = true;
    if (!has) {
        row.status = CALL_INTERRUPTED;
        row.is_error = true;
        row.result = text;
        row.n_result = n;
    }
    commit_call(o->commit, &row);
    return true;
}

/* The newest one that has begun. */
static bool take_id(void *user, const char *session, const struct tape_turn *t)
{
    (void)session;
    if (strcmp(t->state, QUEUED_STATE) == 0)
        return true;
    snprintf(user, TAPE_ID_CAP, "%s", t->id);
    return false;
}

/* A fork has no calls of its own: it may have left before its parent's had their results. */
static enum err add_forked_results(struct chat_segment *seg, const struct input_build *b,
                                   struct error *e)
{
    static const char text[] =
        "[unknown: this session is a fork from before the result of this "
        "call; it was not run here.]";
    enum err rc = OK;

    for (uint32_t i = 0; i < b->n_calls && !rc; i++)
        rc = chat_segment_tool_result(seg, text, sizeof(text) - 1, e);
    return rc;
}

static enum err add_open_results(struct chat_segment *seg, struct input_build *b,
                                 struct commit *c, struct store *st, struct error *e)
{
    char turn[TAPE_ID_CAP] = "";
    const char *session = c->session->id;
    struct open_results o = {
        .segment = seg, .build = b, .commit = b->result_cap ? NULL : c, .error = e};
    enum err rc = tape_turn(st, session, NULL, take_id, turn, e);

    if (rc == ERR_NOTFOUND || (!rc && !turn[0]))
        return add_forked_results(seg, b, e);
    if (!rc)
        rc = tape_calls(st, session, turn, false, add_open_result, &o, e);
    return rc ? rc : o.rc;
}

static enum err add_results(struct chat_segment *seg, struct input_build *b, struct error *e)
{
    static const char held_back[] =
        "[held back: this result follows when the conversation has become shorter]";
    const struct tool_step *ts = b->results;
    enum err rc = OK;

    for (size_t i = 0; i < ts->n_calls && !rc; i++) {
        const struct step_call *call = &ts->calls[i];
        rc = b->held_back ? chat_segment_tool_result(seg, held_back, sizeof(held_back) - 1, e)
                          : add_result(seg, b, call->result, call->n_result, call->spill, e);
    }
    if (!rc && ts->note && !b->held_back)
        rc = chat_segment_note(seg, ts->note, strlen(ts->note), e);
    return rc;
}

/* ---- the segment ------------------------------------------------------------------ */

static enum err open_tape(struct chat_segment *seg, const struct input_build *b,
                          struct error *e)
{
    const struct json_limits limits = {.max_bytes = SESSION_CONFIG_MAX, .max_depth = 128};
    json_auto_t *config = NULL; /* our own copy: json_t counts are not for two threads */
    enum err rc = json_parse(b->config->text, strlen(b->config->text), &limits, &config, e);

    if (rc)
        return rc;
    struct chat_setup setup = {.effort = b->config->effort,
                               .system = b->config->system,
                               .system_len = b->config->system ? strlen(b->config->system) : 0,
                               .tools = json_object_get(config, "functions")};
    if ((rc = chat_segment_open(seg, &setup, e)) || !b->config->summary)
        return rc;
    return chat_segment_user(seg, b->config->summary, strlen(b->config->summary), e);
}

/* The tape begins anew behind a summary: with the opening, and the run whose results come. */
static enum err add_opening(const struct input_build *b, struct ids *out, struct error *e)
{
    AUTO(chat_segment)
    struct chat_segment seg =
        CHAT_SEGMENT_INIT(&b->daemon->chat, b->config->thinking, MAX_SEGMENT_BYTES);
    const struct ids *run = &b->compaction->run;
    enum err rc = open_tape(&seg, b, e);

    if (!rc)
        rc = chat_segment_finish(&seg, b->daemon->model->tokenizer, out, e);
    return rc ? rc : ids_add_all(out, run->v, run->n, e);
}

/* c and st: for results that are not in b. */
static enum err build(struct input_build *b, struct commit *c, struct store *st,
                      struct ids *out, struct error *e)
{
    AUTO(chat_segment)
    struct chat_segment seg =
        CHAT_SEGMENT_INIT(&b->daemon->chat, b->config->thinking, MAX_SEGMENT_BYTES);
    enum err rc = OK;

    out->n = 0;
    if (b->length == 0)
        rc = b->compaction ? add_opening(b, out, e) : open_tape(&seg, b, e);
    else if (b->end.run_cut)
        rc = chat_segment_close_run(&seg, b->end.thinking_open, e);
    b->n_opening = out->n;
    if (!rc)
        rc = b->results ? add_results(&seg, b, e) : add_open_results(&seg, b, c, st, e);
    for (size_t i = 0; i < b->n_steers && !rc; i++)
        rc = chat_segment_user(&seg, b->steers[i]->text.data, b->steers[i]->text.len, e);
    if (!rc && b->user)
        rc = chat_segment_user(&seg, b->user, b->n_user, e);
    return rc ? rc : chat_segment_finish(&seg, b->daemon->model->tokenizer, out, e);
}

/* Builds again with results that are cut, as little as it takes to fit. If nothing helps they
 * are cut to the line that says so. */
static enum err cut_results(struct input_build *b, struct commit *c, struct store *st,
                            struct ids *ids, struct error *e)
{
    uint64_t room = b->most > b->length ? b->most - b->length : 0, n_all = ids->n;
    size_t cap = b->n_longest;
    enum err rc;

    b->result_cap = 1;
    if ((rc = build(b, c, st, ids, e)) || ids->n >= room)
        return rc;
    uint64_t least = ids->n;
    while (cap > 1) { /* by what fits if all tokens are alike, and a little less */
        double share = (double)(room - least) / (double)(n_all > least ? n_all - least : 1);
        cap = (size_t)((double)cap * (share < 0.95 ? share : 0.95));
        b->result_cap = cap > 1 ? cap : 1;
        if ((rc = build(b, c, st, ids, e)) || ids->n <= room)
            return rc;
        n_all = ids->n;
    }
    return OK;
}

/* For readers: what the model does not see. */
static void note_cut(struct commit *c, const struct input_build *b)
{
    char text[128];
    int n = snprintf(text, sizeof(text),
                     "results were cut to %zu bytes each: the context has no room for more",
                     b->result_cap);

    commit_event(c, b->turn, "item", b->note, "note",
                 json_pack("{s:o}", "item", events_item(b->note, "note", text, (size_t)n)));
}

static enum err build_to_fit(struct input_build *b, struct commit *c, struct store *st,
                             struct ids *ids, struct error *e)
{
    uint64_t context = b->daemon->context;
    enum err rc = build(b, c, st, ids, e);

    if (!rc && b->most && b->n_longest && b->length + ids->n > b->most)
        rc = cut_results(b, c, st, ids, e);
    if (rc)
        return rc;
    if (b->result_cap && b->note)
        note_cut(c, b);
    uint64_t most = b->results && b->most ? b->most : context - 1;
    if (b->length + ids->n <= most)
        return OK;
    b->is_full = true;
    return err_set(e, ERR_LIMIT, "context: %llu tokens and %zu new ones, %llu fit",
                   (unsigned long long)b->length, ids->n, (unsigned long long)most);
}

enum err turn_measure_input(struct input_build *b, struct error *e)
{
    AUTO(ids) struct ids ids = IDS_INIT(MAX_SEGMENT_IDS);
    enum err rc = build(b, NULL, NULL, &ids, e);

    b->n_input = ids.n;
    return rc;
}

enum err turn_prepare_input(struct commit *c, struct store *st, struct error *e)
{
    struct input_build *b = c->user;
    AUTO(ids) struct ids ids = IDS_INIT(MAX_SEGMENT_IDS);
    enum err rc = OK;

    if (!b->results)
        rc = close_leftover(c, st, e);
    if (!rc && !b->end.is_known)
        rc = look_at_end(b, st, c->session->id, e);
    if (rc || (rc = build_to_fit(b, c, st, &ids, e)))
        return rc;
    b->n_input = ids.n;
    c->c.position = b->length;
    commit_ids(c, ids.v, ids.n);
    commit_segment(c, &(struct tape_segment){.seg = {.start = b->length,
                                                     .len = ids.n,
                                                     .kind = SEGMENT_INPUT,
                                                     .mode = b->config->mode}});
    commit_segment(
        c, &(struct tape_segment){
               .seg = {.start = b->length + ids.n, .kind = SEGMENT_GENERATED}, .open = true});
    return OK;
}
