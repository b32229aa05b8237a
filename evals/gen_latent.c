/* latent-list: a numbered log of changes to three lists, with remarks between; questions ask
 * about the state of a list after a line. */
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "evals/gen.h"
#include "evals/prose.h"

#define SUITE "latent-list"
#define TASK "state"
#define N_LISTS 3
#define MAX_LIST 12
#define N_ANSWER 64
#define N_RESERVED 256 /* tokens for question and answer */

static const char *const lists[N_LISTS] = {"amber", "cobalt", "ivory"};

static const char heading[] = "The lists amber, cobalt and ivory are empty at first. The "
                              "following log changes them, line "
                              "by line. Positions count from one.\n\n";
static const char ending[] =
    " Your last line must be of this form and hold nothing else: Final Answer: [number]";

enum op_kind { APPEND, INSERT, REMOVE, SWAP, REVERSE, SORT, REMARK };

struct op {
    uint8_t kind, list, at, other; /* positions from 0 */
    uint16_t value;
};

struct state {
    int v[N_LISTS][MAX_LIST];
    int n[N_LISTS];
};

static int compare_int(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static void apply(struct state *s, const struct op *op)
{
    int *v = s->v[op->list], *n = &s->n[op->list], swap;
    switch ((enum op_kind)op->kind) {
    case APPEND:
        v[(*n)++] = op->value;
        break;
    case INSERT:
        memmove(v + op->at + 1, v + op->at, (size_t)(*n - op->at) * sizeof *v);
        v[op->at] = op->value;
        ++*n;
        break;
    case REMOVE:
        --*n;
        memmove(v + op->at, v + op->at + 1, (size_t)(*n - op->at) * sizeof *v);
        break;
    case SWAP:
        swap = v[op->at];
        v[op->at] = v[op->other];
        v[op->other] = swap;
        break;
    case REVERSE:
        for (int i = 0, k = *n - 1; i < k; i++, k--) {
            swap = v[i];
            v[i] = v[k];
            v[k] = swap;
        }
        break;
    case SORT:
        qsort(v, (size_t)*n, sizeof *v, compare_int);
        break;
    case REMARK:
        break;
    }
}

/* A change that the list allows: it grows while short and shrinks while long. */
static struct op draw_op(struct pyrandom *r, const struct state *s)
{
    struct op op = {.list = (uint8_t)pyrandom_below(r, N_LISTS)};
    const uint32_t n = (uint32_t)s->n[op.list];
    static const uint8_t kinds[] = {APPEND, APPEND,  INSERT, REMOVE, REMOVE, REMOVE,
                                    SWAP,   REVERSE, SORT,   REMARK, REMARK, REMARK};
    op.kind = kinds[pyrandom_below(r, sizeof kinds)];
    if (n < 3 && op.kind != REMARK)
        op.kind = APPEND;
    if (n == MAX_LIST && (op.kind == APPEND || op.kind == INSERT))
        op.kind = REMOVE;
    op.value = (uint16_t)(10 + pyrandom_below(r, 990));
    op.at = n ? (uint8_t)pyrandom_below(r, n) : 0;
    op.other = n ? (uint8_t)pyrandom_below(r, n) : 0;
    return op;
}

static enum err write_op(const struct op *op, uint32_t line, struct pyrandom *r,
                         struct buf *out, struct error *e)
{
    const char *list = lists[op->list];
    enum err rc = buf_printf(out, e, "%u. ", line);
    if (rc)
        return rc;
    switch ((enum op_kind)op->kind) {
    case APPEND:
        rc = buf_printf(out, e, "Append %u to %s.", op->value, list);
        break;
    case INSERT:
        rc = buf_printf(out, e, "Insert %u into %s at position %d.", op->value, list,
                        op->at + 1);
        break;
    case REMOVE:
        rc = buf_printf(out, e, "Remove the element at position %d from %s.", op->at + 1, list);
        break;
    case SWAP:
        rc = buf_printf(out, e, "Swap positions %d and %d of %s.", op->at + 1, op->other + 1,
                        list);
        break;
    case REVERSE:
        rc = buf_printf(out, e, "Reverse %s.", list);
        break;
    case SORT:
        rc = buf_printf(out, e, "Sort %s in ascending order.", list);
        break;
    case REMARK:
        rc = prose_sentence(r, out, e);
        break;
    }
    return rc ? rc : buf_add_byte(out, '\n', e);
}

struct log {
    struct op *ops;
    uint32_t n;
};

static void log_fini(struct log *t)
{
    free(t->ops);
}

static enum err write_log(struct gen_text *g, struct log *t, struct pyrandom *r,
                          struct error *e)
{
    AUTO(buf) struct buf line = BUF_INIT(1 << 16);
    struct state s = {.n = {0}};
    const uint32_t cap = (uint32_t)g->max_tokens / 2;
    bool fits = true;
    enum err rc = buf_add_str(&line, heading, e);
    if (!rc)
        rc = gen_text_add(g, &line, NULL, e);
    t->ops = calloc(cap, sizeof *t->ops);
    if (!t->ops)
        return err_set(e, ERR_NOMEM, "no memory for %u lines", cap);
    while (!rc && t->n < cap) {
        struct op op = draw_op(r, &s);
        buf_clear(&line);
        if (!(rc = write_op(&op, t->n + 1, r, &line, e)))
            rc = gen_text_add(g, &line, &fits, e);
        if (!fits)
            break;
        apply(&s, &op);
        t->ops[t->n++] = op;
    }
    return rc;
}

static enum err ask(void *task, struct gen_context *x, uint32_t i, struct gen_question *q,
                    struct error *e)
{
    const struct log *t = task;
    struct pyrandom *r = &x->random;
    (void)i;
    if (t->n < 20)
        return err_set(e, ERR_LIMIT, SUITE ": room for %u lines, want 20", t->n);
    const uint32_t line = 20 + pyrandom_below(r, t->n - 19), list = pyrandom_below(r, N_LISTS);
    struct state s = {.n = {0}};
    for (uint32_t k = 0; k < line; k++)
        apply(&s, &t->ops[k]);
    const int *v = s.v[list], n = s.n[list];
    int64_t answer = n;
    uint32_t kind = n ? pyrandom_below(r, 4) : 0;
    static const char *const what[] = {"What is the number of elements", "What is the sum",
                                       "What is the largest element"};
    enum err rc;
    if (kind == 3) {
        uint32_t at = pyrandom_below(r, (uint32_t)n);
        answer = v[at];
        rc = buf_printf(&q->text, e, "What is the element at position %u", at + 1);
    } else {
        for (int k = 0; k < n && kind == 1; k++)
            answer = (k ? answer : 0) + v[k];
        for (int k = 0; k < n && kind == 2; k++)
            answer = k && answer > v[k] ? answer : v[k];
        rc = buf_add_str(&q->text, what[kind], e);
    }
    if (!rc)
        rc = buf_printf(&q->text, e, " of the list %s after line %u?%s", lists[list], line,
                        ending);
    return rc ? rc : gen_add_number(&q->answers, answer, e);
}

enum err latent_generate(const struct suite_options *o, uint32_t context,
                         struct suite_writer *w, struct error *e)
{
    AUTO(log) struct log t = {.n = 0};
    AUTO(gen_context) struct gen_context x;
    enum err rc = gen_context_begin(&x, SUITE, TASK, o, context, N_RESERVED, e);
    if (!rc)
        rc = write_log(&x.g, &t, &x.random, e);
    if (!rc)
        rc = gen_context_end(&x, w, e);
    return rc ? rc : gen_context_ask(&x, w, SUITE_SET_F1, N_ANSWER, ask, &t, e);
}

/* ---- the other way ------------------------------------------------------------------------
 */

/* The list asked for as a chain of words: a linked list, and only that one. */
struct cell {
    int64_t value;
    struct cell *next;
};

static struct cell **cell_at(struct cell **head, long position)
{
    while (position-- > 1 && *head)
        head = &(*head)->next;
    return head;
}

static void sort_cells(struct cell *head)
{
    for (struct cell *a = head; a; a = a->next)
        for (struct cell *b = a->next; b; b = b->next)
            if (b->value < a->value) {
                int64_t swap = a->value;
                a->value = b->value;
                b->value = swap;
            }
}

static void reverse_cells(struct cell **head)
{
    struct cell *done = NULL;
    while (*head) {
        struct cell *next = (*head)->next;
        (*head)->next = done;
        done = *head;
        *head = next;
    }
    *head = done;
}

static enum err put_cell(struct cell **where, long value, struct error *e)
{
    struct cell *c = malloc(sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory for a list");
    *c = (struct cell){value, *where};
    *where = c;
    return OK;
}

/* One log line, without its number, on the list called `name`. */
static enum err obey(const char *line, const char *name, struct cell **head, struct error *e)
{
    long a = 0, b = 0;
    char list[32] = "";
    if (sscanf(line, "Append %ld to %31[a-z].", &a, list) == 2)
        return strcmp(list, name) ? OK : put_cell(cell_at(head, 1L << 30), a, e);
    if (sscanf(line, "Insert %ld into %31[a-z] at position %ld.", &a, list, &b) == 3)
        return strcmp(list, name) ? OK : put_cell(cell_at(head, b), a, e);
    if (sscanf(line, "Remove the element at position %ld from %31[a-z].", &a, list) == 2 &&
        !strcmp(list, name)) {
        struct cell **where = cell_at(head, a), *gone = *where;
        if (!gone)
            return err_set(e, ERR_FORMAT, "log: nothing at position %ld", a);
        *where = gone->next;
        free(gone);
    } else if (sscanf(line, "Swap positions %ld and %ld of %31[a-z].", &a, &b, list) == 3 &&
               !strcmp(list, name)) {
        struct cell *x = *cell_at(head, a), *y = *cell_at(head, b);
        if (!x || !y)
            return err_set(e, ERR_FORMAT, "log: nothing to swap");
        int64_t swap = x->value;
        x->value = y->value;
        y->value = swap;
    } else if (sscanf(line, "Reverse %31[a-z].", list) == 1 && !strcmp(list, name)) {
        reverse_cells(head);
    } else if (sscanf(line, "Sort %31[a-z] in", list) == 1 && !strcmp(list, name)) {
        sort_cells(*head);
    }
    return OK;
}

static int64_t evaluate(const char *question, struct cell *head)
{
    int64_t n = 0, sum = 0, largest = INT64_MIN, position = 0;
    for (struct cell *c = head; c; c = c->next, n++) {
        sum += c->value;
        largest = c->value > largest ? c->value : largest;
    }
    if (strstr(question, "the number of elements"))
        return n;
    if (strstr(question, "the sum"))
        return sum;
    if (strstr(question, "the largest"))
        return largest;
    const char *at = strstr(question, "at position ");
    if (at)
        position = strtol(at + 12, NULL, 10);
    struct cell *c = *cell_at(&head, position);
    return c ? c->value : INT64_MIN;
}

enum err latent_solve(const char *context, size_t n_context, const char *question,
                      size_t n_question, struct wordlist *answers, struct error *e)
{
    char asked[512], name[32];
    long last = 0;
    snprintf(asked, sizeof asked, "%.*s", (int)n_question, question);
    const char *of = strstr(asked, " of the list ");
    if (!of || sscanf(of, " of the list %31[a-z] after line %ld?", name, &last) != 2)
        return err_set(e, ERR_FORMAT, "question: want a list and a line");
    struct cell *head = NULL;
    enum err rc = OK;
    for (const char *p = context, *end = context + n_context; p < end && !rc;) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        char line[512];
        int number = 0, skip = 0;
        snprintf(line, sizeof line, "%.*s", (int)((eol ? eol : end) - p), p);
        if (sscanf(line, "%d. %n", &number, &skip) == 1 && skip) {
            if (number > last)
                break;
            rc = obey(line + skip, name, &head, e);
        }
        p = eol ? eol + 1 : end;
    }
    if (!rc)
        rc = gen_add_number(answers, evaluate(asked, head), e);
    while (head) {
        struct cell *next = head->next;
        free(head);
        head = next;
    }
    return rc;
}
