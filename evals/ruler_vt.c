/* RULER, variable tracking. Texts: NVIDIA/RULER, Apache-2.0 (see ruler.h). */
#include <stdlib.h>
#include <string.h>

#include "evals/ruler_internal.h"

#define N_HOPS 4
#define N_VARS (N_HOPS + 1)
#define MAX_NAME 5
#define N_GENERATE 30
#define STEP 10
#define STEP_SHORT 5          /* below 4,096 tokens, and for the example */
#define EXAMPLE_TOKENS 500    /* length of the example in front of the question */
#define EXAMPLE_VALUE "12345" /* which every sample replaces by its own */
#define PREFIX_MARK " Answer: A"

static const char noise[] =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. "
    "There and back again.";

struct vt {
    bool is_example;        /* short names and a fixed value */
    struct buf example;     /* the solved example; empty while it is being made */
    struct buf own_example; /* the one of this sample: other names, other value */
    char names[N_VARS][MAX_NAME + 1];
};

static void vt_fini(struct vt *t)
{
    buf_fini(&t->example);
    buf_fini(&t->own_example);
}

static void draw_name(struct pyrandom *py, char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        name[i] = (char)('A' + pyrandom_choice_real(py, 26));
    name[n] = 0;
}

static bool has_twins(char (*names)[MAX_NAME + 1])
{
    for (int i = 0; i < N_VARS; i++)
        for (int k = 0; k < i; k++)
            if (!strcmp(names[i], names[k]))
                return true;
    return false;
}

/* Names and the first value. With two equal names the original draws one more, makes of it a
 * second chain that is too short, draws that one's value, too, and raises an exception. */
static enum err draw_chain(struct ruler *r, struct vt *t, char value[8], struct error *e)
{
    const size_t n_letters = t->is_example ? 3 : MAX_NAME;
    for (int i = 0; i < N_VARS; i++)
        draw_name(&r->py, t->names[i], n_letters);
    const bool twins = has_twins(t->names);
    if (twins) {
        char spare[MAX_NAME + 1];
        draw_name(&r->py, spare, n_letters);
    }
    if (t->is_example)
        snprintf(value, 8, EXAMPLE_VALUE);
    for (int i = 0; i < 1 + twins && !t->is_example; i++)
        snprintf(value, 8, "%d", (int)nprandom_between(&r->np, 10000, 99999));
    return twins ? err_set(e, ERR_CONFLICT, "variable tracking: a name was drawn twice") : OK;
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The noise lines with the assignments between them, in order. */
static enum err add_context(struct ruler *r, const struct vt *t, const char *value,
                            uint32_t size, struct error *e)
{
    uint32_t at[N_VARS], from = 0;
    enum err rc = OK;
    if (size < N_VARS)
        return err_set(e, ERR_CONFLICT, "variable tracking: %u lines of noise are too few",
                       size);
    wordlist_clear(&r->lines);
    for (uint32_t i = 0; i < size && !rc; i++)
        rc = wordlist_add(&r->lines, noise, sizeof noise - 1, e);
    if (!rc)
        rc = pyrandom_sample(&r->py, size, N_VARS, at, e);
    if (rc)
        return rc;
    qsort(at, N_VARS, sizeof *at, compare_u32);
    for (int i = 0; i < N_VARS && !rc; i++) {
        uint32_t to = r->lines.starts[at[i]];
        rc = buf_add(&r->text, r->lines.text.data + from, to - from, e);
        if (!rc)
            rc = i ? buf_printf(&r->text, e, "VAR %s = VAR %s \n", t->names[i], t->names[i - 1])
                   : buf_printf(&r->text, e, "VAR %s = %s\n", t->names[0], value);
        from = to;
    }
    return rc ? rc : buf_add(&r->text, r->lines.text.data + from, r->lines.text.len - from, e);
}

/* Appends a problem to r->text. */
static enum err add_problem(struct ruler *r, struct vt *t, uint32_t size, struct error *e)
{
    char value[8];
    enum err rc = draw_chain(r, t, value, e);
    if (!rc)
        rc = buf_add_str(&r->text,
                         "Memorize and track the chain(s) of variable assignment hidden in the "
                         "following text.\n\n",
                         e);
    if (!rc)
        rc = add_context(r, t, value, size, e);
    if (!rc)
        rc = buf_printf(
            &r->text, e,
            "Question: Find all variables that are assigned the value %s in the text "
            "above. Answer: According to the chain(s) of variable assignment in the "
            "text above, %d variables are assigned the value %s, they are: ",
            value, N_VARS, value);
    wordlist_clear(&r->outputs);
    for (int i = 0; i < N_VARS && !rc; i++)
        rc = wordlist_add(&r->outputs, t->names[i], strlen(t->names[i]), e);
    return rc;
}

static enum err draw_problem(struct ruler *r, void *task, uint32_t size, struct error *e)
{
    buf_clear(&r->text);
    return add_problem(r, task, size, e);
}

/* str.replace of strings of equal length, in place. */
static void replace_all(struct buf *text, const char *old, const char *new)
{
    size_t n = strlen(old);
    uint8_t *p = text->data, *end = text->data + text->len;
    while (p && (p = memmem(p, (size_t)(end - p), old, n))) {
        memcpy(p, new, n);
        p += n;
    }
}

/* The example with names and value of its own. A new name may be one that is replaced later:
 * then the original replaces it again, and so does this. */
static enum err vary_example(struct ruler *r, struct vt *t, struct error *e)
{
    char old[N_VARS][MAX_NAME + 1];
    const char *p = buf_str(&t->example) + t->example.len - 1; /* the newline at its end */
    for (int i = N_VARS; i-- > 0; p -= 4) {
        memcpy(old[i], p - 3, 3);
        old[i][3] = 0;
    }
    buf_clear(&t->own_example);
    enum err rc = buf_add(&t->own_example, t->example.data, t->example.len, e);
    if (rc)
        return rc;
    for (int i = 0; i < N_VARS; i++) {
        char name[MAX_NAME + 1];
        draw_name(&r->py, name, 3);
        replace_all(&t->own_example, old[i], name);
    }
    char value[8];
    snprintf(value, sizeof value, "%d", (int)nprandom_between(&r->np, 10000, 99999));
    replace_all(&t->own_example, EXAMPLE_VALUE, value);
    return OK;
}

/* A problem behind an example, which is drawn after it. */
static enum err draw_with_example(struct ruler *r, void *task, uint32_t size, struct error *e)
{
    struct vt *t = task;
    AUTO(buf) struct buf problem = BUF_INIT(RULER_MAX_TEXT_BYTES);
    enum err rc = draw_problem(r, t, size, e);
    if (!rc)
        rc = vary_example(r, t, e);
    if (rc)
        return rc;
    struct buf swap = problem;
    problem = r->text;
    r->text = swap;
    rc = buf_add(&r->text, t->own_example.data, t->own_example.len, e);
    if (!rc)
        rc = buf_add_byte(&r->text, '\n', e);
    return rc ? rc : buf_add(&r->text, problem.data, problem.len, e);
}

/* A sample of its own, with its answers behind. */
static enum err make_example(struct ruler *r, struct vt *t, struct error *e)
{
    struct ruler_fit fit = {
        .draw = draw_problem, .task = t, .step = STEP_SHORT, .n_tokens = EXAMPLE_TOKENS};
    uint32_t size = 0;
    uint64_t length;
    t->is_example = true;
    enum err rc = ruler_estimate(r, &fit, e);
    if (!rc)
        rc = ruler_search(r, &fit, &size, e);
    if (!rc)
        rc = ruler_draw_fitting(r, &fit, size, &length, e);
    if (!rc)
        rc = buf_add(&t->example, r->text.data, r->text.len, e);
    for (int i = 0; i < N_VARS && !rc; i++)
        rc = buf_printf(&t->example, e, " %s", t->names[i]);
    t->is_example = false;
    return rc ? rc : buf_add_byte(&t->example, '\n', e);
}

enum err ruler_vt(struct ruler *r, struct error *e)
{
    AUTO(vt)
    struct vt t = {.example = BUF_INIT(RULER_MAX_TEXT_BYTES),
                   .own_example = BUF_INIT(RULER_MAX_TEXT_BYTES)};
    uint64_t n_example = 0;
    uint32_t size = 0;
    enum err rc = make_example(r, &t, e);
    if (!rc)
        rc = ruler_count(r, t.example.data, t.example.len, &n_example, e);
    struct ruler_fit fit = {.draw = draw_problem,
                            .task = &t,
                            .step = r->o->n_tokens < 4096 ? STEP_SHORT : STEP,
                            .overhead = n_example + N_GENERATE,
                            .n_tokens = r->o->n_tokens};
    if (!rc)
        rc = ruler_estimate(r, &fit, e);
    if (!rc)
        rc = ruler_search(r, &fit, &size, e);
    fit.draw = draw_with_example;
    fit.overhead = N_GENERATE;
    for (uint32_t i = 0; i < r->o->n_samples && !rc; i++) {
        struct ruler_sample s = {.ordinal = i,
                                 .index = i,
                                 .token_position_answer = -1,
                                 .n_tokens_to_generate = N_GENERATE};
        rc = ruler_draw_fitting(r, &fit, size, &s.length, e);
        if (!rc)
            rc = ruler_emit(r, &s, PREFIX_MARK, e);
    }
    return rc;
}
