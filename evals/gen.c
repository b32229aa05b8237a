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

void gen_seed(struct pyrandom *r, const char *suite, const struct suite_options *o,
              uint32_t context)
{
    struct hash h;
    uint8_t digest[HASH_BYTES];
    uint64_t seed = 0;
    hash_init(&h, NULL, HASH_BYTES);
    hash_field(&h, suite, strlen(suite));
    hash_u64le(&h, o->seed);
    hash_u32le(&h, o->n_tokens);
    hash_u32le(&h, context);
    hash_final(&h, digest);
    for (int i = 0; i < 8; i++)
        seed = seed << 8 | digest[i];
    pyrandom_init(r, seed);
}

void gen_ids(struct suite_sample *s, const char *suite, const char *task,
             const struct suite_options *o, uint32_t context, uint64_t ordinal)
{
    snprintf(s->id, sizeof s->id, "%s/%s/%u/%llu", suite, task, o->n_tokens,
             (unsigned long long)ordinal);
    snprintf(s->context, sizeof s->context, "%s/%s/%u/c%u", suite, task, o->n_tokens, context);
}

enum err gen_add_number(struct wordlist *answers, int64_t v, struct error *e)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%lld", (long long)v);
    return wordlist_add(answers, text, (size_t)n, e);
}
