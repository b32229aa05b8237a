#include "evals/dialogue.h"

#include <stdlib.h>
#include <string.h>

#include "base/spawn.h"
#include "engine/chat_parser.h"
#include "engine/constrain.h"

#define MAX_TEXT ((size_t)64 << 20)
#define MAX_SEGMENTS 4096
#define MAX_ANSWER 4096
#define MAX_ROW_BYTES ((size_t)64 << 20)

void dialogue_answer_init(struct dialogue_answer *a)
{
    *a = (struct dialogue_answer){.ids = IDS_INIT(MAX_ANSWER),
                                  .text = BUF_INIT(1 << 20),
                                  .name = BUF_INIT(1 << 12),
                                  .arguments = BUF_INIT(1 << 20),
                                  .rows = BUF_INIT(MAX_ROW_BYTES)};
}

void dialogue_answer_fini(struct dialogue_answer *a)
{
    ids_fini(&a->ids);
    buf_fini(&a->text);
    buf_fini(&a->name);
    buf_fini(&a->arguments);
    buf_fini(&a->rows);
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

enum err dialogue_reset(struct dialogue *d, struct error *e)
{
    arm_state_fini(&d->state);
    d->view.n_ids = d->view.n_segments = 0;
    enum err rc = arm_reset(&d->c, e);
    return rc ? rc : arm_reset(&d->a, e);
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

/* ---- many questions at one point -------------------------------------------------------- */

enum err dialogue_tell(struct dialogue *d, const struct buf *text, const char *answer,
                       struct error *e)
{
    AUTO(ids) struct ids given = IDS_INIT(MAX_ANSWER);
    arm_state_fini(&d->state);
    enum err rc = build_input(d, false, text, e);
    if (!rc)
        rc = append(d, &d->input, SEGMENT_INPUT, e);
    if (!rc)
        rc = tokenizer_encode(d->tokenizer, answer, strlen(answer), &given, e);
    if (!rc)
        rc = ids_add(&given, d->chat.eos, e);
    if (!rc)
        rc = append(d, &given, SEGMENT_GENERATED, e);
    if (!rc)
        rc = arm_run(&d->c, UINT64_MAX, e);
    return rc ? rc : arm_export(&d->c, &d->state, e);
}

enum err dialogue_resume(struct dialogue *d, enum resume_mode mode, uint64_t *n_replayed,
                         struct error *e)
{
    return arm_resume(&d->a, &d->state, mode, n_replayed, e);
}

/* What a fork does and reports: rows of input and answer, then the answer's ids. */
struct question {
    struct dialogue *d;
    struct arm *a;
};

static enum err ask_in_copy(void *user, struct buf *out, struct error *e)
{
    const struct question *q = user;
    const uint64_t from = seq_position(q->a->s);
    AUTO(dialogue_answer) struct dialogue_answer said;
    dialogue_answer_init(&said);
    enum err rc = exchange(q->d, q->a, &said, e);
    if (!rc)
        rc = buf_add(out, q->a->rows + from, (q->d->input.n + said.ids.n) * sizeof *q->a->rows,
                     e);
    return rc ? rc : buf_add(out, said.ids.v, said.ids.n * sizeof *said.ids.v, e);
}

enum err dialogue_ask(struct dialogue *d, struct arm *a, const struct buf *text,
                      uint32_t max_tokens, struct dialogue_answer *out, struct error *e)
{
    AUTO(buf) struct buf all = BUF_INIT(MAX_ROW_BYTES);
    struct question q = {d, a};
    d->max_tokens = max_tokens < MAX_ANSWER ? max_tokens : MAX_ANSWER;
    enum err rc = build_input(d, false, text, e);
    if (!rc && d->input.n + d->max_tokens > d->ids_cap - d->view.n_ids)
        rc = err_set(e, ERR_LIMIT, "a tape of %llu tokens is full",
                     (unsigned long long)d->ids_cap);
    if (!rc)
        rc = spawn_copy(ask_in_copy, &q, &all, e);
    if (rc)
        return rc;
    /* n ids and input.n + n rows */
    const size_t n_input = d->input.n * sizeof *a->rows,
                 one = sizeof *a->rows + sizeof(uint32_t);
    const size_t n = all.len < n_input ? 0 : (all.len - n_input) / one;
    const size_t n_rows = n_input + n * sizeof *a->rows;
    if (all.len != n_rows + n * sizeof(uint32_t))
        return err_set(e, ERR_CORRUPT, "fork: %zu bytes of rows and ids", all.len);
    out->ids.n = 0;
    buf_clear(&out->rows);
    rc = buf_add(&out->rows, all.data, n_rows, e);
    for (size_t i = 0; i < n && !rc; i++) {
        uint32_t id;
        memcpy(&id, all.data + n_rows + i * sizeof id, sizeof id);
        rc = ids_add(&out->ids, id, e);
    }
    return rc ? rc : read_answer(d, out, e);
}

struct arm_difference dialogue_compare(const struct dialogue_answer *a,
                                       const struct dialogue_answer *reference)
{
    struct arm_difference d = {.first = UINT64_MAX};
    const size_t n_mine = a->rows.len / sizeof(struct arm_row);
    for (size_t i = 0; i < reference->rows.len / sizeof(struct arm_row); i++) {
        struct arm_row x, y = {.seen = false};
        memcpy(&x, reference->rows.data + i * sizeof x, sizeof x);
        if (i < n_mine)
            memcpy(&y, a->rows.data + i * sizeof y, sizeof y);
        d.n_rows += x.seen;
        d.n_missing += x.seen && !y.seen;
        if (y.seen && (!x.seen || memcmp(x.digest, y.digest, HASH_TAG_BYTES))) {
            d.first = d.n_different ? d.first : i;
            d.n_different++;
        }
    }
    return d;
}

static bool same_bytes(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (!a->len || !memcmp(a->data, b->data, a->len));
}

bool dialogue_same_action(const struct dialogue_answer *a, const struct dialogue_answer *b)
{
    return same_bytes(&a->name, &b->name) && same_bytes(&a->arguments, &b->arguments) &&
           (a->name.len || same_bytes(&a->text, &b->text));
}

bool dialogue_same_ids(const struct dialogue_answer *a, const struct dialogue_answer *b)
{
    return a->ids.n == b->ids.n &&
           (!a->ids.n || !memcmp(a->ids.v, b->ids.v, a->ids.n * sizeof *a->ids.v));
}
