/* agentd-evals report RUN; diff A B; gate RUN thresholds.json. */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "evals/cli.h"
#include "evals/report.h"
#include "evals/stats.h"
#include "evals/suite.h"

const struct command evals_report_command = {"report",
                                             "RUN",
                                             "write report.html and summary.md of a scored run",
                                             OPTION_TABLE_EMPTY,
                                             OPTION_TABLE_EMPTY,
                                             1,
                                             1};
const struct command evals_diff_command = {
    "diff",
    "RUN_A RUN_B",
    "two runs of the same samples, paired: means, McNemar, interval",
    OPTION_TABLE_EMPTY,
    OPTION_TABLE_EMPTY,
    2,
    2};
const struct command evals_gate_command = {
    "gate",
    "RUN thresholds.json",
    "exit 1 unless a run's cells reach what the file asks for",
    OPTION_TABLE_EMPTY,
    OPTION_TABLE_EMPTY,
    2,
    2};

static double number(const json_t *o, const char *field)
{
    return json_number_value(json_object_get(o, field));
}

static const char *text_of(const json_t *o, const char *field)
{
    const char *text = json_string_value(json_object_get(o, field));
    return text ? text : "";
}

int evals_report(int argc, char **argv)
{
    struct options o;
    struct error e = {0};
    int none, code = evals_parse(&evals_report_command, argc, argv, &none, &o);
    if (code != EVALS_GO_ON)
        return code;
    enum err rc = report_run(o.args[0], &e);
    if (rc)
        return evals_fail(&evals_report_command, rc, &e);
    printf("%s/report.html\n%s/summary.md\n", o.args[0], o.args[0]);
    return EVALS_DONE;
}

/* ---- diff ------------------------------------------------------------------------------- */

#define MAX_CELLS 4096

/* The pairs of one cell. */
struct pairs {
    char name[SUITE_ID_BYTES];
    double sum_a, sum_b, *differences;
    size_t n, cap;
    uint64_t only_a, only_b;
    bool shares; /* all scores are 0 or 1 */
};

struct comparison {
    json_t *a; /* id -> score */
    struct pairs *cells;
    size_t n_cells;
};

static void comparison_fini(struct comparison *c)
{
    for (size_t i = 0; i < c->n_cells; i++)
        free(c->cells[i].differences);
    free(c->cells);
    json_decref(c->a);
}

static enum err keep_a(void *user, json_t *line, struct error *e)
{
    struct comparison *c = user;
    return json_object_set(c->a, text_of(line, "id"), json_object_get(line, "score"))
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
    return OK;
}

static bool is_share(double v)
{
    return v <= 0 || v >= 1;
}

static enum err pair_b(void *user, json_t *line, struct error *e)
{
    struct comparison *c = user;
    struct pairs *p = NULL;
    const char *id = text_of(line, "id");
    const json_t *first = json_object_get(c->a, id);
    if (!first)
        return err_set(e, ERR_CONFLICT, "%.100s is not in the first run", id);
    const double a = json_number_value(first), b = number(line, "score");
    enum err rc = find_pairs(c, id, &p, e);
    if (rc)
        return rc;
    if (p->n == p->cap) {
        const size_t cap = p->cap ? 2 * p->cap : 64;
        double *v = realloc(p->differences, cap * sizeof *v);
        if (!v)
            return err_set(e, ERR_NOMEM, "no memory for %zu pairs", cap);
        p->differences = v;
        p->cap = cap;
    }
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
    struct stats_interval i = {0, 0, 0};
    enum err rc = p->n > 1 ? stats_mean(p->differences, p->n, 0.95, &i, e) : OK;
    if (rc)
        return rc;
    printf("%-36s  n %-6zu  A %.4f  B %.4f  B-A %+.4f", p->name, p->n, p->sum_a / n,
           p->sum_b / n, (p->sum_b - p->sum_a) / n);
    if (p->n > 1)
        printf(" [%+.4f, %+.4f]", i.low, i.high);
    printf("  only A %llu, only B %llu", (unsigned long long)p->only_a,
           (unsigned long long)p->only_b);
    if (p->shares)
        printf("  McNemar p %.4f", stats_mcnemar(p->only_a, p->only_b));
    printf("\n");
    return OK;
}

static enum err scores(const char *dir, suite_line_fn *fn, void *user, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/scores.jsonl", dir);
    return rc ? rc : suite_read_lines(path, fn, user, e);
}

static enum err compare_runs(const char *a, const char *b, struct error *e)
{
    AUTO(comparison) struct comparison c = {.a = json_object()};
    json_auto_t *x = NULL, *y = NULL;
    if (!c.a || !(c.cells = calloc(MAX_CELLS, sizeof *c.cells)))
        return err_set(e, ERR_NOMEM, "no memory for a comparison");
    enum err rc = suite_load(a, &x, e);
    if (!rc)
        rc = suite_load(b, &y, e);
    if (!rc && strcmp(text_of(x, "samples"), text_of(y, "samples")))
        rc = err_set(e, ERR_CONFLICT, "%s and %s have other samples", a, b);
    if (!rc)
        rc = scores(a, keep_a, &c, e);
    if (!rc)
        rc = scores(b, pair_b, &c, e);
    if (!rc && json_object_size(c.a))
        rc = err_set(e, ERR_CONFLICT, "%zu samples are not in the second run",
                     json_object_size(c.a));
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
    if (!rc)
        return EVALS_DONE;
    code = evals_fail(&evals_diff_command, rc, &e);
    return rc == ERR_CONFLICT ? EVALS_PROVENANCE : code;
}

/* ---- gate ------------------------------------------------------------------------------- */

/* {"PATTERN of cells": {"min_score"?, "min_low"?, "min_n"?, "max_errors"?, "max_missing"?}};
 * the last is 0 where it is not said. A pattern that matches no cell fails. */
static enum err load_thresholds(const char *path, json_t **out, struct error *e)
{
    static const struct json_limits limits = {.max_bytes = 1 << 20, .max_depth = 4};
    static const char *const known[] = {"min_score", "min_low", "min_n", "max_errors",
                                        "max_missing"};
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    json_auto_t *all = NULL;
    const char *pattern, *field;
    json_t *t, *v;
    enum err rc = fs_read_file(path, &text, e);
    if (!rc)
        rc = json_parse(buf_str(&text), text.len, &limits, &all, e);
    if (rc)
        return err_wrap(e, rc, "%s", path);
    if (!json_is_object(all) || !json_object_size(all))
        return err_set(e, ERR_FORMAT, "%s: want an object of patterns", path);
    json_object_foreach(all, pattern, t)
    {
        if (!json_is_object(t) || !json_object_size(t))
            return err_set(e, ERR_FORMAT, "%s: \"%.60s\": want thresholds", path, pattern);
        json_object_foreach(t, field, v)
        {
            size_t k = 0;
            while (k < sizeof known / sizeof *known && strcmp(field, known[k]))
                k++;
            if (k == sizeof known / sizeof *known || !json_is_number(v))
                return err_set(e, ERR_FORMAT, "%s: \"%.60s\": \"%.40s\" is no threshold", path,
                               pattern, field);
        }
    }
    *out = json_incref(all);
    return OK;
}

static bool judge(const json_t *cell, const json_t *t, const char *field, double value,
                  bool at_least)
{
    const json_t *want = json_object_get(t, field);
    const double limit = json_number_value(want);
    const bool good = !json_is_number(want) || (at_least ? value >= limit : value <= limit);
    if (!good)
        printf("FAIL  %s: %s %g, is %.4f\n", text_of(cell, "cell"), field, limit, value);
    return good;
}

static bool judge_cell(const json_t *cell, const json_t *t)
{
    const json_t *score = json_object_get(cell, "score"), *low = json_object_get(score, "low");
    const double errors = number(cell, "error") + number(cell, "timeout");
    bool good = judge(cell, t, "min_score", number(score, "mean"), true);
    good = judge(cell, t, "min_low",
                 json_is_number(low) ? json_number_value(low) : -(double)INFINITY, true) &&
           good;
    good = judge(cell, t, "min_n", number(cell, "n"), true) && good;
    good = judge(cell, t, "max_errors", errors, false) && good;
    return judge(cell, t, "max_missing", number(cell, "missing"), false) && good;
}

/* Cells that match; *missing counts samples without an answer where that is not allowed. */
static bool judge_all(const json_t *results, const json_t *thresholds, double *missing)
{
    const char *pattern;
    json_t *t, *cell;
    size_t i, n_cells = 0;
    bool good = true;
    json_object_foreach((json_t *)(uintptr_t)thresholds, pattern, t)
    {
        size_t n = 0;
        json_array_foreach(json_object_get(results, "cells"), i, cell)
        {
            if (fnmatch(pattern, text_of(cell, "cell"), 0))
                continue;
            n++;
            good = judge_cell(cell, t) && good;
            if (!json_object_get(t, "max_missing"))
                *missing += number(cell, "missing");
        }
        if (!n)
            printf("FAIL  no cell is like %s\n", pattern);
        good = good && n > 0;
        n_cells += n;
    }
    if (good)
        printf("pass  %zu cells\n", n_cells);
    return good;
}

int evals_gate(int argc, char **argv)
{
    struct options o;
    struct error e = {0};
    int none, code = evals_parse(&evals_gate_command, argc, argv, &none, &o);
    if (code != EVALS_GO_ON)
        return code;
    json_auto_t *results = NULL, *thresholds = NULL;
    double missing = 0;
    enum err rc = load_thresholds(o.args[1], &thresholds, &e);
    if (!rc)
        rc = report_results(o.args[0], &results, &e);
    if (rc) {
        code = evals_fail(&evals_gate_command, rc, &e);
        return rc == ERR_NOTFOUND && thresholds ? EVALS_INCOMPLETE : code;
    }
    const bool good = judge_all(results, thresholds, &missing);
    if (missing > 0)
        fprintf(stderr, "agentd-evals gate: %.0f samples have no answer\n", missing);
    return missing > 0 ? EVALS_INCOMPLETE : good ? EVALS_DONE : EVALS_FAILED;
}
