#include "evals/dialogue.h"

#include <stdlib.h>
#include <string.h>

#include "engine/chat_parser.h"
#include "engine/constrain.h"

#define MAX_TEXT ((size_t)64 << 20)
#define MAX_SEGMENTS 4096
#define MAX_ANSWER 4096

void dialogue_answer_init(struct dialogue_answer *a)
{
    *a = (struct dialogue_answer){.ids = IDS_INIT(MAX_ANSWER),
                                  .text = BUF_INIT(1 << 20),
                                  .name = BUF_INIT(1 << 12),
                                  .arguments = BUF_INIT(1 << 20)};
}

void dialogue_answer_fini(struct dialogue_answer *a)
{
    ids_fini(&a->ids);
    buf_fini(&a->text);
    buf_fini(&a->name);
    buf_fini(&a->arguments);
}

/* ---- life ------------------------------------------------------------------------------- */

static enum err open_arms(struct dialogue *d, const struct dialogue_options *o, struct error *e)
{
    const struct arm_keep none = {.stride = 1};
    d->view.n_ids = d->ids_cap; /* how many rows an arm has room for */
    enum err rc = arm_open(&d->c, o->model, &o->engine, &d->view, &none, e);
    if (!rc)
        rc = arm_open(&d->a, o->model, &o->engine, &d->view, &none, e);
    d->view.n_ids = 0;
    return rc;
}

enum err dialogue_open(struct dialogue *d, const struct dialogue_options *o, struct error *e)
{
    *d = (struct dialogue){.tools = o->tools,
                           .ids_cap = o->max_tokens,
                           .segments_cap = MAX_SEGMENTS,
                           .input = IDS_INIT(o->max_tokens)};
    d->ids = calloc(d->ids_cap, sizeof *d->ids);
    d->segments = calloc(d->segments_cap, sizeof *d->segments);
    if (!d->ids || !d->segments)
        return err_set(e, ERR_NOMEM, "no memory for a tape of %llu tokens",
                       (unsigned long long)d->ids_cap);
    d->view.ids = d->ids;
    d->view.segments = d->segments;
    enum err rc = open_arms(d, o, e);
    if (rc)
        return rc;
    d->tokenizer = engine_describe(d->c.m)->tokenizer;
    if (!(rc = chat_ids_find(&d->chat, d->tokenizer, e)))
        rc = call_rules_new(&d->rules, d->tools, d->tokenizer, e);
    return rc;
}

void dialogue_fini(struct dialogue *d)
{
    arm_fini(&d->c);
    arm_fini(&d->a);
    arm_state_fini(&d->state);
    call_rules_free(d->rules);
    ids_fini(&d->input);
    free(d->ids);
    free(d->segments);
    *d = (struct dialogue){.tokenizer = NULL};
}

/* ---- the tape --------------------------------------------------------------------------- */

static enum err append(struct dialogue *d, const struct ids *ids, enum segment_kind kind,
                       struct error *e)
{
    struct tape_view *t = &d->view;
    if (ids->n > d->ids_cap - t->n_ids || t->n_segments == d->segments_cap)
        return err_set(e, ERR_LIMIT, "a tape of %llu tokens is full",
                       (unsigned long long)d->ids_cap);
    if (ids->n)
        memcpy(d->ids + t->n_ids, ids->v, ids->n * sizeof *ids->v);
    d->segments[t->n_segments++] = (struct segment){t->n_ids, ids->n, kind, PREFILL_CED};
    t->n_ids += ids->n;
    return OK;
}

static enum err build_input(struct dialogue *d, bool is_result, const struct buf *text,
                            struct error *e)
{
    AUTO(chat_segment)
    struct chat_segment seg = CHAT_SEGMENT_INIT(&d->chat, false, MAX_TEXT);
    const struct chat_setup setup = {.effort = CHAT_EFFORT_DEFAULT, .tools = d->tools};
    const uint64_t n = d->view.n_ids;
    enum err rc = OK;
    if (!n)
        rc = chat_segment_open(&seg, &setup, e);
    else if (d->ids[n - 1] != d->chat.eos)
        rc = chat_segment_close_run(&seg, false, e);
    if (!rc)
        rc = is_result ? chat_segment_tool_result(&seg, text->data, text->len, e)
                       : chat_segment_user(&seg, text->data, text->len, e);
    d->input.n = 0;
    return rc ? rc : chat_segment_finish(&seg, d->tokenizer, &d->input, e);
}

enum err dialogue_find(const struct dialogue *d, uint64_t from, const char *text, uint64_t *out,
                       struct error *e)
{
    AUTO(buf) struct buf all = BUF_INIT(MAX_TEXT);
    const size_t n_text = strlen(text);
    *out = UINT64_MAX;
    for (uint64_t p = from; p < d->view.n_ids; p++) {
        enum err rc = tokenizer_decode(d->tokenizer, d->ids + p, 1, &all, e);
        if (rc)
            return rc;
        /* The newest token ends it, or stands behind the end. */
        const size_t back = all.len < n_text + 256 ? all.len : n_text + 256;
        if (memmem(all.data + all.len - back, back, text, n_text)) {
            *out = p + 1;
            return OK;
        }
    }
    return OK;
}

/* ---- answers ---------------------------------------------------------------------------- */

static enum err feed(struct chat_parser *p, const struct dialogue *d, const struct ids *ids,
                     struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < ids->n && !rc; i++) {
        size_t n = 0;
        const uint8_t *bytes = tokenizer_bytes(d->tokenizer, ids->v[i], &n);
        if (bytes)
            rc = chat_parser_feed(p, bytes, n, tokenizer_is_added(d->tokenizer, ids->v[i]), e);
    }
    return rc ? rc : chat_parser_finish(p, e);
}

static enum err read_answer(const struct dialogue *d, struct dialogue_answer *a,
                            struct error *e)
{
    const struct chat_parser_options o = {.thinking = false};
    struct chat_parser *p = NULL;
    enum err rc = chat_parser_new(&p, &o, e);
    if (rc)
        return rc;
    buf_clear(&a->text);
    buf_clear(&a->name);
    buf_clear(&a->arguments);
    rc = feed(p, d, &a->ids, e);
    if (!rc)
        rc = buf_add(&a->text, chat_parser_text(p)->data, chat_parser_text(p)->len, e);
    const struct chat_call *call =
        !rc && chat_parser_n_calls(p) ? chat_parser_call(p, 0) : NULL;
    if (call && call->is_complete) {
        rc = buf_add_str(&a->name, call->name, e);
        if (!rc)
            rc = buf_add(&a->arguments, call->arguments, call->arguments_len, e);
    }
    chat_parser_free(p);
    return rc;
}

/* The input and the answer, on one of the arms. */
static enum err exchange(struct dialogue *d, struct arm *a, struct dialogue_answer *out,
                         struct error *e)
{
    const struct generate_options o = {.sampling = {.top_p = 1, .rules = d->rules},
                                       .max_tokens = d->max_tokens};
    out->ids.n = 0;
    enum err rc = arm_input(a, d->input.v, d->input.n, PREFILL_CED, e);
    if (!rc)
        rc = arm_generate(a, &o, &out->ids, e);
    return rc ? rc : read_answer(d, out, e);
}

enum err dialogue_say(struct dialogue *d, bool is_result, const struct buf *text,
                      uint32_t max_tokens, struct dialogue_answer *out, struct error *e)
{
    arm_state_fini(&d->state);
    d->max_tokens = max_tokens < MAX_ANSWER ? max_tokens : MAX_ANSWER;
    enum err rc = build_input(d, is_result, text, e);
    if (!rc && d->input.n + d->max_tokens > d->ids_cap - d->view.n_ids)
        rc = err_set(e, ERR_LIMIT, "a tape of %llu tokens is full",
                     (unsigned long long)d->ids_cap);
    if (!rc)
        rc = arm_export(&d->c, &d->state, e);
    if (!rc)
        rc = exchange(d, &d->c, out, e);
    if (!rc)
        rc = append(d, &d->input, SEGMENT_INPUT, e);
    return rc ? rc : append(d, &out->ids, SEGMENT_GENERATED, e);
}

enum err dialogue_again(struct dialogue *d, enum resume_mode mode, struct dialogue_answer *out,
                        struct arm_difference *rows, uint64_t *n_replayed, struct error *e)
{
    enum err rc = arm_resume(&d->a, &d->state, mode, n_replayed, e);
    if (!rc)
        rc = exchange(d, &d->a, out, e);
    if (!rc)
        *rows = arm_compare(&d->a, &d->c, d->state.n_tokens, d->view.n_ids);
    return rc;
}
