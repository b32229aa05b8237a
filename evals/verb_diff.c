/* agentd-evals diff A B: two runs of the same samples, pair by pair.
 *
 * The interval is that of the mean difference: Student's where every sample has its own
 * context, a bootstrap over contexts where several share one, none where there is just one.
 * McNemar's test takes pairs as independent: it is printed where each has its own context. */
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "evals/cli.h"
#include "evals/fields.h"
#include "evals/report.h"
#include "evals/score.h"
#include "evals/stats.h"
#include "evals/suite.h"

#define MAX_CELLS 4096

const struct command evals_diff_command = {
    "diff",
    "RUN_A RUN_B",
    "two runs of the same samples, paired: means, McNemar, interval",
    OPTION_TABLE_EMPTY,
    OPTION_TABLE_EMPTY,
    2,
    2};

/* The pairs of one cell. */
struct pairs {
    char name[SUITE_ID_BYTES];
    double sum_a, sum_b, *differences; /* [cap] */
    uint32_t *contexts;                /* [cap], ordinals of context_ids */
    json_t *context_ids;               /* name -> ordinal */
    size_t n, cap;
    uint64_t only_a, only_b;
    bool shares; /* all scores are 0 or 1 */
};

struct comparison {
    json_t *a;        /* id -> score */
    json_t *contexts; /* id -> name */
    struct pairs *cells;
    size_t n_cells;
};

static void comparison_fini(struct comparison *c)
{
    for (size_t i = 0; i < c->n_cells; i++) {
        free(c->cells[i].differences);
        free(c->cells[i].contexts);
        json_decref(c->cells[i].context_ids);
    }
    free(c->cells);
    json_decref(c->contexts);
    json_decref(c->a);
}

static enum err keep_context(void *user, json_t *sample, struct error *e)
{
    struct comparison *c = user;
    return json_object_set(c->contexts, field_text(sample, "id"),
                           json_object_get(sample, "context"))
               ? err_set(e, ERR_FORMAT, "want {\"id\", \"context\"}")
               : OK;
}

static enum err keep_a(void *user, json_t *line, struct error *e)
{
    struct comparison *c = user;
    return json_object_set(c->a, field_text(line, "id"), json_object_get(line, "score"))
               ? err_set(e, ERR_FORMAT, "want {\"id\", \"score\"}")
               : OK;
}

static enum err find_pairs(struct comparison *c, const char *id, struct pairs **out,
                           struct error *e)
{
    const char *slash = strrchr(id, '/');
    const size_t n = slash ? (size_t)(slash - id) : 0;
    for (size_t i = c->n_cells; i-- > 0;)
        if (strlen(c->cells[i].name) == n && !memcmp(c->cells[i].name, id, n)) {
            *out = &c->cells[i];
            return OK;
        }
    if (!n || n >= SUITE_ID_BYTES || c->n_cells == MAX_CELLS)
        return err_set(e, ERR_FORMAT, "\"id\": \"%.60s\", or over %d cells", id, MAX_CELLS);
    *out = &c->cells[c->n_cells++];
    memcpy((*out)->name, id, n);
    (*out)->shares = true;
    return ((*out)->context_ids = json_object())
               ? OK
               : err_set(e, ERR_NOMEM, "no memory for contexts");
}

static bool is_share(double v)
{
    return v <= 0 || v >= 1;
}

static enum err reserve_pair(struct pairs *p, struct error *e)
{
    if (p->n < p->cap)
        return OK;
    const size_t cap = p->cap ? 2 * p->cap : 64;
    double *v = realloc(p->differences, cap * sizeof *v);
    p->differences = v ? v : p->differences;
    uint32_t *k = realloc(p->contexts, cap * sizeof *k);
    p->contexts = k ? k : p->contexts;
    if (!v || !k)
        return err_set(e, ERR_NOMEM, "no memory for %zu pairs", cap);
    p->cap = cap;
    return OK;
}

/* Ordinal of a context among those of the cell. */
static enum err context_of(struct pairs *p, const char *name, uint32_t *out, struct error *e)
{
    const json_t *known = json_object_get(p->context_ids, name);
    *out = known ? (uint32_t)json_integer_value(known)
                 : (uint32_t)json_object_size(p->context_ids);
    return !known && json_object_set_new(p->context_ids, name, json_integer(*out))
               ? err_set(e, ERR_NOMEM, "no memory for contexts")
               : OK;
}

static enum err pair_b(void *user, json_t *line, struct error *e)
{
    struct comparison *c = user;
    struct pairs *p = NULL;
    const char *id = field_text(line, "id");
    const json_t *first = json_object_get(c->a, id);
    const char *context = json_string_value(json_object_get(c->contexts, id));
    if (!first || !context)
        return err_set(e, ERR_CONFLICT, "%.100s is not in the first run", id);
    const double a = json_number_value(first), b = field_number(line, "score");
    enum err rc = find_pairs(c, id, &p, e);
    if (!rc)
        rc = reserve_pair(p, e);
    if (!rc)
        rc = context_of(p, context, &p->contexts[p->n], e);
    if (rc)
        return rc;
    p->differences[p->n++] = b - a;
    p->sum_a += a;
    p->sum_b += b;
    p->only_a += a > b;
    p->only_b += b > a;
    p->shares = p->shares && is_share(a) && is_share(b);
    json_object_del(c->a, id);
    return OK;
}

static enum err print_pairs(const struct pairs *p, struct error *e)
{
    const double n = (double)p->n;
    const uint32_t n_contexts = (uint32_t)json_object_size(p->context_ids);
    const bool alone = n_contexts == p->n;
    struct stats_interval i = {0, 0, 0};
    enum err rc = OK;
    if (n_contexts > 1)
        rc = alone ? stats_mean(p->differences, p->n, SCORE_CONFIDENCE, &i, e)
                   : stats_bootstrap(p->differences, p->contexts, p->n, n_contexts,
                                     SCORE_RESAMPLES, SCORE_SEED, SCORE_CONFIDENCE, &i, e);
    if (rc)
        return rc;
    printf("%-36s  n %-6zu  A %.4f  B %.4f  B-A %+.4f", p->name, p->n, p->sum_a / n,
           p->sum_b / n, (p->sum_b - p->sum_a) / n);
    if (n_contexts > 1)
        printf(" [%+.4f, %+.4f]", i.low, i.high);
    if (!alone)
        printf("  of %u context%s", n_contexts, n_contexts > 1 ? "s" : "");
    printf("  only A %llu, only B %llu", (unsigned long long)p->only_a,
           (unsigned long long)p->only_b);
    if (p->shares && alone)
        printf("  McNemar p %.4f", stats_mcnemar(p->only_a, p->only_b));
    printf("\n");
    return OK;
}

static enum err lines(const char *dir, const char *name, suite_line_fn *fn, void *user,
                      struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/%s", dir, name);
    return rc ? rc : suite_read_lines(path, fn, user, e);
}

/* Whose answers a run has, where that is known. */
static enum err print_model(const char *name, const char *dir, struct error *e)
{
    json_auto_t *results = NULL;
    enum err rc = report_results(dir, &results, e);
    const json_t *model = json_object_get(results, "model");
    if (!rc && model)
        printf("%s  fingerprint %.16s  %s\n", name, field_text(model, "fingerprint"),
               field_text(model, "numerics"));
    return rc;
}

static enum err compare_runs(const char *a, const char *b, struct error *e)
{
    AUTO(comparison)
    struct comparison c = {.a = json_object(), .contexts = json_object()};
    json_auto_t *x = NULL, *y = NULL;
    if (!c.a || !c.contexts || !(c.cells = calloc(MAX_CELLS, sizeof *c.cells)))
        return err_set(e, ERR_NOMEM, "no memory for a comparison");
    enum err rc = suite_load(a, &x, e);
    if (!rc)
        rc = suite_load(b, &y, e);
    if (!rc && strcmp(field_text(x, "samples"), field_text(y, "samples")))
        rc = err_set(e, ERR_CONFLICT, "%s and %s have other samples", a, b);
    if (!rc)
        rc = lines(a, "samples.jsonl", keep_context, &c, e);
    if (!rc)
        rc = lines(a, "scores.jsonl", keep_a, &c, e);
    if (!rc)
        rc = lines(b, "scores.jsonl", pair_b, &c, e);
    if (!rc && json_object_size(c.a))
        rc = err_set(e, ERR_CONFLICT, "%zu samples are not in the second run",
                     json_object_size(c.a));
    if (!rc)
        rc = print_model("A", a, e);
    if (!rc)
        rc = print_model("B", b, e);
    for (size_t i = 0; i < c.n_cells && !rc; i++)
        rc = print_pairs(&c.cells[i], e);
    return rc;
}

int evals_diff(int argc, char **argv)
{
    struct options o;
    struct error e = {0};
    int none, code = evals_parse(&evals_diff_command, argc, argv, &none, &o);
    if (code != EVALS_GO_ON)
        return code;
    enum err rc = compare_runs(o.args[0], o.args[1], &e);
    return rc ? evals_fail_files(&evals_diff_command, rc, &e) : EVALS_DONE;
}
