/* How likely the tokens of a run were, for sessions that ask: topLogprobs of session/new. */
#include "agentd/turn_internal.h"

/* Most numbers of one run; what comes behind is left out, and said. A row of the store holds
 * 16 MiB, and a number with its token takes about 80 bytes. */
#define MAX_LOGPROBS 100000

static json_t *token_json(const struct turn *t, uint32_t id, double logprob)
{
    size_t n = 0;
    const uint8_t *bytes = tokenizer_bytes(t->session->daemon->model->tokenizer, id, &n);

    return json_pack("{s:I, s:o, s:f}", "id", (json_int_t)id, "token", events_text(bytes, n),
                     "logprob", logprob);
}

/* Reasoning and answer have them, calls do not: their syntax is not drawn. */
static int kind_of(const struct chat_parser *p)
{
    if (chat_parser_thinking_open(p))
        return 0;
    return chat_parser_block_open(p) || chat_parser_n_calls(p) ? -1 : 1;
}

void run_note_logprobs(struct turn *t, const struct token_logprobs *p)
{
    struct run *r = t->run;
    int kind = p && !r->unread ? kind_of(r->parser) : -1;

    if (kind < 0 || r->n_logprobs > MAX_LOGPROBS)
        return;
    r->n_logprobs += 1 + p->n_top;
    if (!r->logprobs[kind])
        r->logprobs[kind] = json_array();
    json_t *token = token_json(t, p->id, (double)p->logprob), *top = json_array();
    for (uint32_t i = 0; i < p->n_top; i++)
        json_array_append_new(top, token_json(t, p->top[i].id, (double)p->top[i].logprob));
    json_object_set_new(token, "top", top);
    json_array_append_new(r->logprobs[kind], token);
}

void run_add_logprobs(const struct run *r, int kind, json_t *item)
{
    if (!r->logprobs[kind] || !item)
        return;
    json_object_set(item, "logprobs", r->logprobs[kind]);
    if (r->n_logprobs > MAX_LOGPROBS)
        json_object_set_new(item, "logprobsCut", json_true());
}
