/* records-qa: many records in sentences, with remarks between; questions ask for counts, sums
 * and selections over all of them. */
#include <stdlib.h>
#include <string.h>

#include "evals/gen.h"
#include "evals/prose.h"

#define SUITE "records-qa"
#define TASK "aggregate"
#define N_JOBS 8
#define N_TOWNS 10
#define N_ANSWER 512
#define N_RESERVED 768 /* tokens for question and answer */
#define MAX_ANSWERS 20
#define MAX_TRIES 2000

static const char *const jobs[N_JOBS] = {"cooper",  "glazier", "weaver",  "potter",
                                         "saddler", "miller",  "printer", "brewer"};
static const char *const towns[N_TOWNS] = {"Aldmere",  "Brackley", "Cawdor", "Dunhollow",
                                           "Eskwater", "Fennick",  "Garth",  "Holmby",
                                           "Inverley", "Jarrow"};

static const char heading[] =
    "The following register lists what people paid. Questions about it come at its end.\n\n";
static const char ending[] =
    " Your last line must be of this form and hold nothing else: Final Answer: [...]";

struct record {
    uint32_t name; /* of prose_name; none twice */
    uint32_t amount;
    uint16_t year;
    uint8_t job, town;
};

struct ledger_book {
    struct record *v;
    uint32_t n;
};

static void ledger_book_fini(struct ledger_book *t)
{
    free(t->v);
}

static enum err write_record(const struct record *x, struct buf *out, struct error *e)
{
    char name[PROSE_NAME_BYTES];
    prose_name(x->name, name);
    return buf_printf(out, e, "%s, %s in %s, born in %u, paid %u crowns.\n", name, jobs[x->job],
                      towns[x->town], x->year, x->amount);
}

/* A remark stands behind every fourth record on average. */
static enum err write_register(struct gen_text *g, struct ledger_book *t, struct pyrandom *r,
                               struct error *e)
{
    AUTO(buf) struct buf line = BUF_INIT(1 << 16);
    const uint32_t cap =
        (uint32_t)(g->max_tokens / 8 < PROSE_N_NAMES ? g->max_tokens / 8 : PROSE_N_NAMES);
    AUTO_FREE uint32_t *names = calloc(cap + 1, sizeof *names);
    t->v = calloc(cap + 1, sizeof *t->v);
    if (!t->v || !names)
        return err_set(e, ERR_NOMEM, "no memory for %u records", cap);
    bool fits = true;
    enum err rc = pyrandom_sample(r, PROSE_N_NAMES, cap, names, e);
    if (!rc)
        rc = buf_add_str(&line, heading, e);
    if (!rc)
        rc = gen_text_add(g, &line, NULL, e);
    while (!rc && t->n < cap) {
        struct record x = {.name = names[t->n],
                           .amount = 10 + pyrandom_below(r, 4990),
                           .year = (uint16_t)(1900 + pyrandom_below(r, 60)),
                           .job = (uint8_t)pyrandom_below(r, N_JOBS),
                           .town = (uint8_t)pyrandom_below(r, N_TOWNS)};
        buf_clear(&line);
        rc = write_record(&x, &line, e);
        if (!rc && !pyrandom_below(r, 4) && !(rc = prose_sentence(r, &line, e)))
            rc = buf_add_byte(&line, '\n', e);
        if (!rc)
            rc = gen_text_add(g, &line, &fits, e);
        if (!fits)
            break;
        t->v[t->n++] = x;
    }
    return rc;
}

struct question {
    uint32_t kind, job, town, year;
};

static bool selects(const struct question *q, const struct record *x)
{
    switch (q->kind) {
    case 0:
        return x->job == q->job && x->town == q->town;
    case 1:
        return x->town == q->town;
    case 2:
        return x->job == q->job;
    default:
        return x->job == q->job && x->town == q->town && x->year == q->year;
    }
}

/* The answers, or nothing where the question is no good: no record, a tie, too many names. */
static enum err answer(const struct ledger_book *t, const struct question *q,
                       struct wordlist *answers, struct error *e)
{
    uint64_t n = 0, sum = 0, best = 0, n_best = 0;
    char name[PROSE_NAME_BYTES], best_name[PROSE_NAME_BYTES] = "";
    enum err rc = OK;
    wordlist_clear(answers);
    for (uint32_t i = 0; i < t->n && !rc; i++) {
        const struct record *x = &t->v[i];
        if (!selects(q, x))
            continue;
        prose_name(x->name, name);
        n++;
        sum += x->amount;
        if (x->amount > best) {
            best = x->amount;
            n_best = 0;
            memcpy(best_name, name, sizeof name);
        }
        n_best += x->amount == best;
        if (q->kind == 3 && n <= MAX_ANSWERS)
            rc = wordlist_add(answers, name, strlen(name), e);
    }
    if (rc || !n)
        return rc;
    if (q->kind == 3 && n > MAX_ANSWERS)
        wordlist_clear(answers);
    if (q->kind == 2 && n_best == 1)
        rc = wordlist_add(answers, best_name, strlen(best_name), e);
    if (q->kind < 2)
        rc = gen_add_number(answers, (int64_t)(q->kind ? sum : n), e);
    return rc;
}

static enum err ask(void *task, struct gen_context *x, uint32_t i, struct gen_question *out,
                    struct error *e)
{
    const struct ledger_book *t = task;
    struct pyrandom *r = &x->random;
    struct question q = {.kind = 0};
    enum err rc = OK;
    for (int k = 0; k < MAX_TRIES && !out->answers.n && !rc; k++) {
        q = (struct question){i % 4, pyrandom_below(r, N_JOBS), pyrandom_below(r, N_TOWNS),
                              1900 + pyrandom_below(r, 60)};
        rc = answer(t, &q, &out->answers, e);
    }
    if (rc)
        return rc;
    if (!out->answers.n)
        return err_set(e, ERR_LIMIT, SUITE ": no question about %u records", t->n);
    switch (q.kind) {
    case 0:
        rc = buf_printf(&out->text, e, "How many people are %s in %s?%s", jobs[q.job],
                        towns[q.town], ending);
        break;
    case 1:
        rc = buf_printf(&out->text, e, "How many crowns did the people in %s pay in all?%s",
                        towns[q.town], ending);
        break;
    case 2:
        rc = buf_printf(&out->text, e, "Who paid most among those who are %s?%s", jobs[q.job],
                        ending);
        break;
    default:
        rc = buf_printf(&out->text, e, "Which people born in %u are %s in %s?%s", q.year,
                        jobs[q.job], towns[q.town], ending);
    }
    return rc;
}

enum err records_generate(const struct suite_options *o, uint32_t context,
                          struct suite_writer *w, struct error *e)
{
    AUTO(ledger_book) struct ledger_book t = {.n = 0};
    AUTO(gen_context) struct gen_context x;
    enum err rc = gen_context_begin(&x, SUITE, TASK, o, context, N_RESERVED, e);
    if (!rc)
        rc = write_register(&x.g, &t, &x.random, e);
    if (!rc)
        rc = gen_context_end(&x, w, e);
    return rc ? rc : gen_context_ask(&x, w, SUITE_SET_F1, N_ANSWER, ask, &t, e);
}

/* ---- the other way ------------------------------------------------------------------------
 */

struct asked {
    char job[32], town[32]; /* "" matches all */
    int year;               /* 0 matches all */
    enum { COUNT, TOTAL, MOST, NAMES } what;
};

static bool read_question(const char *text, struct asked *q)
{
    *q = (struct asked){.year = 0};
    if (sscanf(text, "How many people are %31[a-z] in %31[A-Za-z]?", q->job, q->town) == 2)
        q->what = COUNT;
    else if (sscanf(text, "How many crowns did the people in %31[A-Za-z] pay", q->town) == 1)
        q->what = TOTAL;
    else if (sscanf(text, "Who paid most among those who are %31[a-z]?", q->job) == 1)
        q->what = MOST;
    else if (sscanf(text, "Which people born in %d are %31[a-z] in %31[A-Za-z]?", &q->year,
                    q->job, q->town) == 3)
        q->what = NAMES;
    else
        return false;
    return true;
}

enum err records_solve(const char *context, size_t n_context, const char *question,
                       size_t n_question, struct wordlist *answers, struct error *e)
{
    char text[512], most[32] = "";
    struct asked q;
    long count = 0, total = 0, highest = -1;
    enum err rc = OK;
    snprintf(text, sizeof text, "%.*s", (int)n_question, question);
    if (!read_question(text, &q))
        return err_set(e, ERR_FORMAT, "question: not of this suite");
    for (const char *p = context, *end = context + n_context; p < end && !rc;) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        char line[256], name[32], job[32], town[32];
        int year;
        long amount;
        snprintf(line, sizeof line, "%.*s", (int)((eol ? eol : end) - p), p);
        p = eol ? eol + 1 : end;
        if (sscanf(line, "%31[A-Za-z], %31[a-z] in %31[A-Za-z], born in %d, paid %ld crowns.",
                   name, job, town, &year, &amount) != 5)
            continue;
        if ((*q.job && strcmp(q.job, job)) || (*q.town && strcmp(q.town, town)) ||
            (q.year && q.year != year))
            continue;
        count++;
        total += amount;
        if (amount > highest) {
            highest = amount;
            memcpy(most, name, sizeof most);
        }
        if (q.what == NAMES)
            rc = wordlist_add(answers, name, strlen(name), e);
    }
    if (rc || q.what == NAMES)
        return rc;
    if (q.what == MOST)
        return wordlist_add(answers, most, strlen(most), e);
    return gen_add_number(answers, q.what == COUNT ? count : total, e);
}
