/* needle-session: a long report with K access codes, spread evenly; each question asks for one.
 */
#include <stdlib.h>
#include <string.h>

#include "evals/gen.h"
#include "evals/prose.h"

#define SUITE "needle-session"
#define TASK "code"
#define N_ANSWER 32   /* tokens for an answer */
#define N_RESERVED 96 /* tokens for question and answer */
#define BEFORE_NAME "The access code of the "
#define BEHIND_NAME " depot is "

static const char heading[] =
    "Read the following report with care. Questions about it come at its end.\n\n";

struct needles {
    uint32_t n;
    uint32_t *names, *codes; /* [n], all different */
    double *depths;          /* [n] share of the text's tokens in front */
};

static void needles_fini(struct needles *t)
{
    free(t->names);
    free(t->codes);
    free(t->depths);
}

static enum err draw_needles(struct needles *t, struct pyrandom *r, uint32_t n, struct error *e)
{
    t->n = n;
    t->names = calloc(n, sizeof *t->names);
    t->codes = calloc(n, sizeof *t->codes);
    t->depths = calloc(n, sizeof *t->depths);
    if (!t->names || !t->codes || !t->depths)
        return err_set(e, ERR_NOMEM, "no memory for %u needles", n);
    enum err rc = pyrandom_sample(r, PROSE_N_NAMES, n, t->names, e);
    return rc ? rc : pyrandom_sample(r, 9000000, n, t->codes, e);
}

static enum err needle_line(const struct needles *t, uint32_t i, struct buf *out,
                            struct error *e)
{
    char name[PROSE_NAME_BYTES];
    prose_name(t->names[i], name);
    buf_clear(out);
    return buf_printf(out, e, BEFORE_NAME "%s" BEHIND_NAME "%u.\n\n", name,
                      1000000 + t->codes[i]);
}

/* Paragraphs until the text is full, a needle whenever its place has come. */
static enum err write_report(struct gen_text *g, struct needles *t, struct pyrandom *r,
                             struct error *e)
{
    AUTO(buf) struct buf piece = BUF_INIT(1 << 20);
    uint64_t n_needles = 0, n;
    enum err rc = buf_add_str(&piece, heading, e);
    if (!rc)
        rc = gen_text_add(g, &piece, NULL, e);
    for (uint32_t i = 0; i < t->n && !rc; i++) {
        if (!(rc = needle_line(t, i, &piece, e)) &&
            !(rc = gen_count(g, piece.data, piece.len, &n, e)))
            n_needles += n;
    }
    if (!rc && g->n_tokens + n_needles > g->max_tokens)
        return err_set(e, ERR_LIMIT, "%llu tokens are too few for %u needles",
                       (unsigned long long)g->max_tokens, t->n);
    const double filler = (double)(g->max_tokens - g->n_tokens - n_needles);
    double written = 0;
    bool fits = true;
    uint32_t next = 0;
    g->max_tokens -= n_needles; /* kept back for the needles */
    while (!rc && (fits || next < t->n)) {
        if (next < t->n && (!fits || written >= filler * (next + 0.5) / t->n)) {
            t->depths[next] = (double)g->n_tokens;
            uint64_t before = g->n_tokens;
            g->max_tokens += n_needles;
            if (!(rc = needle_line(t, next++, &piece, e)))
                rc = gen_text_add(g, &piece, NULL, e);
            n_needles -= g->n_tokens - before;
            g->max_tokens -= n_needles;
            continue;
        }
        uint64_t before = g->n_tokens;
        buf_clear(&piece);
        if (!(rc = prose_sentences(r, 3 + pyrandom_below(r, 4), &piece, e)) &&
            !(rc = buf_add_str(&piece, "\n\n", e)))
            rc = gen_text_add(g, &piece, &fits, e);
        written += (double)(g->n_tokens - before);
    }
    for (uint32_t i = 0; i < t->n; i++)
        t->depths[i] /= (double)g->n_tokens;
    return rc;
}

static enum err ask(void *task, struct gen_context *x, uint32_t i, struct gen_question *q,
                    struct error *e)
{
    const struct needles *t = task;
    char name[PROSE_NAME_BYTES];
    (void)x;
    prose_name(t->names[i], name);
    q->depth = t->depths[i];
    enum err rc = gen_add_number(&q->answers, 1000000 + t->codes[i], e);
    return rc ? rc
              : buf_printf(
                    &q->text, e,
                    "What is the access code of the %s depot? Answer with the code alone.",
                    name);
}

enum err needle_generate(const struct suite_options *o, uint32_t context,
                         struct suite_writer *w, struct error *e)
{
    AUTO(needles) struct needles t = {.n = 0};
    AUTO(gen_context) struct gen_context x;
    enum err rc = gen_context_begin(&x, SUITE, TASK, o, context, N_RESERVED, e);
    if (!rc)
        rc = draw_needles(&t, &x.random, o->n_questions, e);
    if (!rc)
        rc = write_report(&x.g, &t, &x.random, e);
    if (!rc)
        rc = gen_context_end(&x, w, e);
    return rc ? rc : gen_context_ask(&x, w, SUITE_ALL_MATCH, N_ANSWER, ask, &t, e);
}

/* ---- the other way ------------------------------------------------------------------------
 */

/* The name is the question's word in front of "depot"; the code stands behind it in the text.
 */
enum err needle_solve(const char *context, size_t n_context, const char *question,
                      size_t n_question, struct wordlist *answers, struct error *e)
{
    const char *depot = memmem(question, n_question, " depot?", 7);
    const char *name = depot;
    while (name && name > question && name[-1] != ' ')
        name--;
    char line[128];
    if (!depot || (size_t)(depot - name) > 60)
        return err_set(e, ERR_FORMAT, "question: want the name of a depot");
    int n = snprintf(line, sizeof line, " of the %.*s depot is ", (int)(depot - name), name);
    const char *found = memmem(context, n_context, line, (size_t)n);
    if (!found)
        return err_set(e, ERR_FORMAT, "text: no depot %.*s", (int)(depot - name), name);
    const char *code = found + n, *end = code;
    while (end < context + n_context && *end >= '0' && *end <= '9')
        end++;
    return wordlist_add(answers, code, (size_t)(end - code), e);
}
