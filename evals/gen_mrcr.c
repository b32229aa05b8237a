/* mrcr-synth: a long chat in which requests come back; the question is for the i-th answer to
 * one of them, with a random string in front. The form of the task is that of MRCR; every text
 * is ours. */
#include <stdlib.h>
#include <string.h>

#include "evals/gen.h"
#include "evals/prose.h"

#define SUITE "mrcr-synth"
#define TASK "recall"
#define N_FORMS 6
#define N_SUBJECTS 8
#define N_ANSWER 512
#define N_RESERVED 768 /* tokens for question and answer */
#define PREFIX_CHARS 10

static const char *const forms[N_FORMS] = {"letter", "diary entry", "short report",
                                           "notice", "story",       "speech"};
static const char *const subjects[N_SUBJECTS] = {"bridges", "winter", "orchards", "lanterns",
                                                 "ferries", "clocks", "markets",  "rivers"};

static const char heading[] = "Here is a conversation between a user and an assistant.\n\n";

struct turn {
    uint8_t form, subject;
    uint32_t at, n; /* the answer's bytes in the text */
};

struct chat_log {
    struct turn *v;
    uint32_t n;
};

static void chat_log_fini(struct chat_log *t)
{
    free(t->v);
}

static enum err write_chat(struct gen_text *g, struct chat_log *t, struct pyrandom *r,
                           struct error *e)
{
    AUTO(buf) struct buf piece = BUF_INIT(1 << 16);
    const uint32_t cap = (uint32_t)g->max_tokens / 16 + 1;
    bool fits = true;
    enum err rc = buf_add_str(&piece, heading, e);
    if (!rc)
        rc = gen_text_add(g, &piece, NULL, e);
    t->v = calloc(cap, sizeof *t->v);
    if (!t->v)
        return err_set(e, ERR_NOMEM, "no memory for %u turns", cap);
    while (!rc && t->n < cap) {
        struct turn x = {.form = (uint8_t)pyrandom_below(r, N_FORMS),
                         .subject = (uint8_t)pyrandom_below(r, N_SUBJECTS)};
        buf_clear(&piece);
        rc = buf_printf(&piece, e, "User: Write a %s about %s.\n\nAssistant: ", forms[x.form],
                        subjects[x.subject]);
        x.at = (uint32_t)(g->text.len + piece.len);
        const size_t start = piece.len;
        if (!rc)
            rc = prose_sentences(r, 3 + pyrandom_below(r, 6), &piece, e);
        x.n = (uint32_t)(piece.len - start);
        if (!rc)
            rc = buf_add_str(&piece, "\n\n", e);
        if (!rc)
            rc = gen_text_add(g, &piece, &fits, e);
        if (!fits)
            break;
        t->v[t->n++] = x;
    }
    return rc;
}

static const char *ending_of(uint32_t i)
{
    if (i / 10 % 10 == 1)
        return "th";
    return i % 10 == 1 ? "st" : i % 10 == 2 ? "nd" : i % 10 == 3 ? "rd" : "th";
}

static void draw_prefix(struct pyrandom *r, char out[PREFIX_CHARS + 1])
{
    static const char signs[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    for (int i = 0; i < PREFIX_CHARS; i++)
        out[i] = signs[pyrandom_below(r, sizeof signs - 1)];
    out[PREFIX_CHARS] = 0;
}

static enum err ask(void *task, struct gen_context *context, uint32_t i, struct gen_question *q,
                    struct error *e)
{
    const struct chat_log *t = task;
    const struct gen_text *g = &context->g;
    struct pyrandom *r = &context->random;
    AUTO(buf) struct buf answer = BUF_INIT(1 << 16);
    (void)i;
    if (!t->n)
        return err_set(e, ERR_LIMIT, SUITE ": no room for a turn");
    const uint32_t which = pyrandom_below(r, t->n);
    const struct turn *x = &t->v[which];
    uint32_t ordinal = 0;
    char prefix[PREFIX_CHARS + 1];
    for (uint32_t k = 0; k <= which; k++)
        ordinal += t->v[k].form == x->form && t->v[k].subject == x->subject;
    draw_prefix(r, prefix);
    q->depth = (double)x->at / (double)g->text.len;
    enum err rc =
        buf_printf(&q->text, e,
                   "Prepend %s to the assistant's %u%s answer to the request for a %s "
                   "about %s, and give nothing else.",
                   prefix, ordinal, ending_of(ordinal), forms[x->form], subjects[x->subject]);
    if (!rc)
        rc = buf_add_str(&answer, prefix, e);
    if (!rc)
        rc = buf_add(&answer, g->text.data + x->at, x->n, e);
    return rc ? rc : wordlist_add(&q->answers, buf_str(&answer), answer.len, e);
}

enum err mrcr_generate(const struct suite_options *o, uint32_t context, struct suite_writer *w,
                       struct error *e)
{
    AUTO(chat_log) struct chat_log t = {.n = 0};
    AUTO(gen_context) struct gen_context x;
    enum err rc = gen_context_begin(&x, SUITE, TASK, o, context, N_RESERVED, e);
    if (!rc)
        rc = write_chat(&x.g, &t, &x.random, e);
    if (!rc)
        rc = gen_context_end(&x, w, e);
    return rc ? rc : gen_context_ask(&x, w, SUITE_RATIO, N_ANSWER, ask, &t, e);
}

/* ---- the other way ------------------------------------------------------------------------
 */

enum err mrcr_solve(const char *context, size_t n_context, const char *question,
                    size_t n_question, struct wordlist *answers, struct error *e)
{
    char text[512], prefix[32], what[64], about[64], request[256];
    unsigned ordinal;
    snprintf(text, sizeof text, "%.*s", (int)n_question, question);
    if (sscanf(text,
               "Prepend %31s to the assistant's %u%*2[a-z] answer to the request for a %63[a-z "
               "]",
               prefix, &ordinal, what) != 3 ||
        !strstr(what, " about "))
        return err_set(e, ERR_FORMAT, "question: not of this suite");
    char *split = strstr(what, " about ");
    snprintf(about, sizeof about, "%s", split + 7);
    *split = 0;
    int n = snprintf(request, sizeof request, "User: Write a %s about %s.\n\nAssistant: ", what,
                     about);
    const char *p = context, *end = context + n_context;
    for (unsigned i = 0; i < ordinal; i++) {
        p = memmem(p, (size_t)(end - p), request, (size_t)n);
        if (!p)
            return err_set(e, ERR_FORMAT, "text: request %u is not there", i + 1);
        p += n;
    }
    const char *stop = memmem(p, (size_t)(end - p), "\n\n", 2);
    AUTO(buf) struct buf answer = BUF_INIT(1 << 20);
    enum err rc = buf_add_str(&answer, prefix, e);
    if (!rc)
        rc = buf_add(&answer, p, (size_t)((stop ? stop : end) - p), e);
    return rc ? rc : wordlist_add(answers, buf_str(&answer), answer.len, e);
}
