#include "evals/gen.h"

#include <string.h>

#define MAX_TEXT_BYTES ((size_t)128 << 20)
#define MAX_TOKENS ((size_t)1 << 26)

const struct suite_kind suite_kinds[] = {
    {"needle-session", "one text, many codes hidden in it, one question for each", 1, 25,
     needle_generate, needle_solve},
    {"graphwalks-synth", "a list of edges: breadth-first search to a depth, parents", 1, 8,
     graphwalks_generate, graphwalks_solve},
    {"latent-list", "a long log of changes to lists: their state after a line", 1, 8,
     latent_generate, latent_solve},
    {"records-qa", "many records: counts, sums and selections over them", 1, 8,
     records_generate, records_solve},
    {"mrcr-synth", "a long chat with repeated requests: give back the i-th answer", 1, 8,
     mrcr_generate, mrcr_solve},
};
const size_t suite_n_kinds = sizeof suite_kinds / sizeof *suite_kinds;

void gen_text_init(struct gen_text *g, const struct tokenizer *t, uint64_t max_tokens)
{
    *g = (struct gen_text){.tokenizer = t,
                           .text = BUF_INIT(MAX_TEXT_BYTES),
                           .ids = IDS_INIT(MAX_TOKENS),
                           .max_tokens = max_tokens};
}

void gen_text_fini(struct gen_text *g)
{
    buf_fini(&g->text);
    ids_fini(&g->ids);
}

enum err gen_count(struct gen_text *g, const void *text, size_t n, uint64_t *out,
                   struct error *e)
{
    g->ids.n = 0;
    enum err rc = tokenizer_encode(g->tokenizer, text, n, &g->ids, e);
    if (!rc)
        *out = g->ids.n;
    return rc;
}

enum err gen_text_add(struct gen_text *g, const struct buf *piece, bool *fits, struct error *e)
{
    uint64_t n = 0;
    enum err rc = gen_count(g, piece->data, piece->len, &n, e);
    if (rc)
        return rc;
    bool fit = g->n_tokens + n <= g->max_tokens;
    if (fits)
        *fits = fit;
    else if (!fit)
        return err_set(e, ERR_LIMIT, "%llu tokens are too few for the questions",
                       (unsigned long long)g->max_tokens);
    if (!fit)
        return OK;
    g->n_tokens += n;
    return buf_add(&g->text, piece->data, piece->len, e);
}

/* ---- one context and what is asked about it ----------------------------------------------
 */

static void seed(struct gen_context *x)
{
    struct hash h;
    uint8_t digest[HASH_BYTES];
    uint64_t v = 0;
    hash_init(&h, NULL, HASH_BYTES);
    hash_field(&h, x->suite, strlen(x->suite));
    hash_u64le(&h, x->o->seed);
    hash_u32le(&h, x->o->n_tokens);
    hash_u32le(&h, x->number);
    hash_final(&h, digest);
    for (int i = 0; i < 8; i++)
        v = v << 8 | digest[i];
    pyrandom_init(&x->random, v);
}

enum err gen_context_begin(struct gen_context *x, const char *suite, const char *task,
                           const struct suite_options *o, uint32_t number, uint32_t n_reserved,
                           struct error *e)
{
    *x = (struct gen_context){.suite = suite, .task = task, .o = o, .number = number};
    if (o->n_tokens < 2 * n_reserved)
        return err_set(e, ERR_LIMIT, "%s: %u tokens, want %u at least", suite, o->n_tokens,
                       2 * n_reserved);
    gen_text_init(&x->g, o->tokenizer, o->n_tokens - n_reserved);
    seed(x);
    return OK;
}

void gen_context_fini(struct gen_context *x)
{
    gen_text_fini(&x->g);
}

/* SUITE/TASK/LENGTH/ORDINAL, ordinals counted over all contexts. */
static void name(const struct gen_context *x, uint32_t question, struct suite_sample *s)
{
    const uint64_t ordinal = (uint64_t)x->number * x->o->n_questions + question;
    snprintf(s->id, sizeof s->id, "%s/%s/%u/%llu", x->suite, x->task, x->o->n_tokens,
             (unsigned long long)ordinal);
    snprintf(s->context, sizeof s->context, "%s/%s/%u/c%u", x->suite, x->task, x->o->n_tokens,
             x->number);
}

enum err gen_context_end(const struct gen_context *x, struct suite_writer *w, struct error *e)
{
    struct suite_sample s = {.depth = -1};
    name(x, 0, &s);
    return suite_add_context(w, s.context, x->g.n_tokens, x->g.text.data, x->g.text.len, e);
}

enum err gen_context_ask(struct gen_context *x, struct suite_writer *w,
                         enum suite_metric metric, uint32_t max_tokens, gen_ask_fn *ask,
                         void *task, struct error *e)
{
    enum err rc = OK;
    for (uint32_t i = 0; i < x->o->n_questions && !rc; i++) {
        struct gen_question q = {.text = BUF_INIT(4096), .answers = WORDLIST_INIT, .depth = -1};
        struct suite_sample s = {
            .answer_prefix = "", .metric = metric, .max_tokens = max_tokens};
        name(x, i, &s);
        rc = ask(task, x, i, &q, e);
        s.question = buf_str(&q.text);
        s.n_question = q.text.len;
        s.answers = &q.answers;
        s.depth = q.depth;
        if (!rc)
            rc = suite_add_sample(w, &s, e);
        buf_fini(&q.text);
        wordlist_fini(&q.answers);
    }
    return rc;
}

enum err gen_add_number(struct wordlist *answers, int64_t v, struct error *e)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%lld", (long long)v);
    return wordlist_add(answers, text, (size_t)n, e);
}
