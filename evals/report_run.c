/* The report of a run: scores by depth and length, by length with intervals, cost. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/json.h"
#include "evals/fields.h"
#include "evals/report.h"
#include "evals/suite.h"
#include "evals/svg.h"

#define MAX_BYTES ((size_t)256 << 20)
#define MAX_TASKS 64
#define MAX_LENGTHS 64
#define MAX_DEPTHS 35

struct cell_sum {
    double sum;
    size_t n;
};

/* SUITE/TASK, with the scores of its samples by depth and length. */
struct task {
    char name[SUITE_ID_BYTES];
    bool has_depth;
    struct cell_sum cells[MAX_DEPTHS][MAX_LENGTHS];
};

struct report {
    const char *dir;
    json_t *results, *depths; /* id -> depth */
    uint64_t lengths[MAX_LENGTHS];
    size_t n_lengths;
    double known[MAX_DEPTHS]; /* distinct depths while there are few; else bins */
    size_t n_depths;
    bool binned;
    struct task *tasks;
    size_t n_tasks;
    json_t *timings; /* array */
};

static void report_fini(struct report *r)
{
    json_decref(r->results);
    json_decref(r->depths);
    json_decref(r->timings);
    free(r->tasks);
}

/* ---- reading ---------------------------------------------------------------------------- */

/* "SUITE/TASK/LENGTH..." in its parts; false: it is no such name. */
static bool split(const char *name, char task[SUITE_ID_BYTES], uint64_t *length)
{
    const char *slash = strchr(name, '/');
    slash = slash ? strchr(slash + 1, '/') : NULL;
    if (!slash || (size_t)(slash - name) >= SUITE_ID_BYTES)
        return false;
    memcpy(task, name, (size_t)(slash - name));
    task[slash - name] = 0;
    *length = strtoull(slash + 1, NULL, 10);
    return true;
}

static size_t length_index(struct report *r, uint64_t length)
{
    for (size_t i = 0; i < r->n_lengths; i++)
        if (r->lengths[i] == length)
            return i;
    return MAX_LENGTHS;
}

static struct task *task_of(struct report *r, const char *name)
{
    for (size_t i = 0; i < r->n_tasks; i++)
        if (!strcmp(r->tasks[i].name, name))
            return &r->tasks[i];
    if (r->n_tasks == MAX_TASKS)
        return NULL;
    struct task *t = &r->tasks[r->n_tasks++];
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int compare_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum err read_cells(struct report *r, struct error *e)
{
    size_t i;
    json_t *cell;
    char task[SUITE_ID_BYTES];
    uint64_t length;
    json_array_foreach(json_object_get(r->results, "cells"), i, cell) {
        if (!split(field_text(cell, "cell"), task, &length))
            return err_set(e, ERR_FORMAT, "results.json: cell \"%.60s\"",
                           field_text(cell, "cell"));
        const bool is_new = length_index(r, length) == MAX_LENGTHS;
        if (!task_of(r, task) || (is_new && r->n_lengths == MAX_LENGTHS))
            return err_set(e, ERR_LIMIT, "over %d lengths or %d tasks", MAX_LENGTHS, MAX_TASKS);
        if (is_new)
            r->lengths[r->n_lengths++] = length;
    }
    qsort(r->lengths, r->n_lengths, sizeof *r->lengths, compare_u64);
    return OK;
}

/* Depths to the percent; too many of them become equal bins. */
static enum err keep_depth(void *user, json_t *sample, struct error *e)
{
    struct report *r = user;
    const json_t *depth = json_object_get(sample, "depth");
    if (!json_is_number(depth))
        return OK;
    const double d = round(100 * json_number_value(depth)) / 100;
    if (!(d >= 0 && d <= 1))
        return err_set(e, ERR_FORMAT, "\"depth\": want 0..1, is %g", json_number_value(depth));
    if (json_object_set_new(r->depths, field_text(sample, "id"), json_real(d)))
        return err_set(e, ERR_NOMEM, "no memory for depths");
    for (size_t i = 0; i < r->n_depths && !r->binned; i++)
        if (fabs(r->known[i] - d) < 1e-9)
            return OK;
    if (!r->binned && r->n_depths == MAX_DEPTHS)
        r->binned = true;
    if (!r->binned)
        r->known[r->n_depths++] = d;
    return OK;
}

static size_t depth_index(const struct report *r, double d)
{
    if (r->binned)
        return d >= 1 ? MAX_DEPTHS - 1 : (size_t)(d * MAX_DEPTHS);
    for (size_t i = 0; i < r->n_depths; i++)
        if (fabs(r->known[i] - d) < 1e-9)
            return i;
    return 0;
}

static enum err keep_score(void *user, json_t *line, struct error *e)
{
    struct report *r = user;
    char name[SUITE_ID_BYTES];
    uint64_t length;
    const char *id = field_text(line, "id");
    const json_t *depth = json_object_get(r->depths, id);
    if (!split(id, name, &length))
        return err_set(e, ERR_FORMAT, "scores.jsonl: id \"%.60s\"", id);
    struct task *t = task_of(r, name);
    const size_t k = length_index(r, length);
    if (!depth || !t || k == MAX_LENGTHS || !strcmp(field_text(line, "status"), "missing"))
        return OK;
    struct cell_sum *c = &t->cells[depth_index(r, json_number_value(depth))][k];
    t->has_depth = true;
    c->sum += field_number(line, "score");
    c->n++;
    return OK;
}

static enum err keep_timing(void *user, json_t *line, struct error *e)
{
    return json_array_append(user, line) ? err_set(e, ERR_NOMEM, "no memory for timings") : OK;
}

static enum err read_lines(const struct report *r, const char *name, suite_line_fn *fn,
                           void *user, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/%s", r->dir, name);
    return rc ? rc : suite_read_lines(path, fn, user, e);
}

enum err report_results(const char *dir, json_t **out, struct error *e)
{
    static const struct json_limits limits = {.max_bytes = MAX_BYTES, .max_depth = 16};
    char path[FS_PATH_BYTES];
    AUTO(buf) struct buf text = BUF_INIT(MAX_BYTES);
    enum err rc = fs_path(path, sizeof path, e, "%s/results.json", dir);
    if (!rc)
        rc = fs_read_file(path, &text, e);
    return rc ? rc : json_parse(buf_str(&text), text.len, &limits, out, e);
}

/* ---- the page --------------------------------------------------------------------------- */

static enum err draw_heatmap(struct buf *out, const struct report *r, const struct task *t,
                             struct error *e)
{
    char names[2][MAX_LENGTHS][24];
    const char *columns[MAX_LENGTHS], *rows[MAX_DEPTHS];
    const size_t n = r->binned ? MAX_DEPTHS : r->n_depths;
    struct svg_cell cells[MAX_DEPTHS * MAX_LENGTHS];
    for (size_t i = 0; i < r->n_lengths; i++) {
        snprintf(names[0][i], sizeof names[0][i], "%llu", (unsigned long long)r->lengths[i]);
        columns[i] = names[0][i];
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(names[1][i], sizeof names[1][i], "%.0f %%",
                 100 * (r->binned ? (double)i / MAX_DEPTHS : r->known[i]));
        rows[i] = names[1][i];
        for (size_t k = 0; k < r->n_lengths; k++) {
            const struct cell_sum *c = &t->cells[i][k];
            cells[i * r->n_lengths + k] =
                (struct svg_cell){c->n ? c->sum / (double)c->n : 0, c->n};
        }
    }
    const struct svg_heatmap h = {.title = t->name,
                                  .column_name = "tokens",
                                  .row_name = "depth",
                                  .columns = columns,
                                  .rows = rows,
                                  .n_columns = r->n_lengths,
                                  .n_rows = n,
                                  .cells = cells};
    return svg_heat(out, &h, e);
}

/* Score by length, with its interval where there is one. */
static enum err draw_curve(struct buf *out, const struct report *r, struct error *e)
{
    double x[SVG_MAX_LINES][MAX_LENGTHS], y[SVG_MAX_LINES][MAX_LENGTHS];
    double low[SVG_MAX_LINES][MAX_LENGTHS], high[SVG_MAX_LINES][MAX_LENGTHS];
    struct svg_line lines[SVG_MAX_LINES] = {{.n = 0}};
    size_t n_lines = r->n_tasks < SVG_MAX_LINES ? r->n_tasks : SVG_MAX_LINES, i;
    json_t *cell;
    for (size_t k = 0; k < n_lines; k++) {
        lines[k] = (struct svg_line){
            .name = r->tasks[k].name, .x = x[k], .y = y[k], .low = low[k], .high = high[k]};
        for (i = 0; i < r->n_lengths; i++, lines[k].n++) {
            x[k][i] = (double)r->lengths[i];
            y[k][i] = low[k][i] = high[k][i] = NAN;
        }
    }
    json_array_foreach(json_object_get(r->results, "cells"), i, cell) {
        char name[SUITE_ID_BYTES];
        uint64_t length = 0;
        const json_t *score = json_object_get(cell, "score");
        const bool known = json_is_number(json_object_get(score, "low"));
        if (!split(field_text(cell, "cell"), name, &length))
            continue;
        for (size_t k = 0; k < n_lines; k++) {
            if (strcmp(r->tasks[k].name, name))
                continue;
            for (size_t l = 0; l < r->n_lengths; l++)
                if (r->lengths[l] == length) {
                    y[k][l] = field_number(score, "mean");
                    low[k][l] = known ? field_number(score, "low") : y[k][l];
                    high[k][l] = known ? field_number(score, "high") : y[k][l];
                }
        }
    }
    const struct svg_chart c = {.title = "Score by length, errors counted as 0, 95 %",
                                .x_name = "tokens",
                                .y_name = "score",
                                .log_x = true,
                                .unit_y = true,
                                .lines = lines,
                                .n_lines = n_lines};
    return svg_lines(out, &c, e);
}

static enum err mean_text(struct buf *out, const json_t *m, struct error *e)
{
    if (!json_is_number(json_object_get(m, "mean")))
        return buf_add_str(out, "-", e);
    if (!json_is_number(json_object_get(m, "low")))
        return buf_printf(out, e, "%.4f", field_number(m, "mean"));
    return buf_printf(out, e, "%.4f [%.4f, %.4f]", field_number(m, "mean"),
                      field_number(m, "low"), field_number(m, "high"));
}

static const char *const counts[] = {"n", "empty", "unparsable", "error", "timeout", "missing"};
#define N_COUNTS (sizeof counts / sizeof *counts)

/* The cells as rows: cell_begin, sep and cell_end are those of HTML or of Markdown. */
static enum err score_rows(struct buf *out, const struct report *r, const char *begin,
                           const char *sep, const char *end, struct error *e)
{
    size_t i;
    json_t *cell;
    enum err rc = OK;
    json_array_foreach(json_object_get(r->results, "cells"), i, cell) {
        if (!rc)
            rc = buf_add_str(out, begin, e);
        if (!rc)
            rc = svg_text(out, field_text(cell, "cell"), e);
        if (!rc)
            rc = buf_add_str(out, sep, e);
        if (!rc)
            rc = mean_text(out, json_object_get(cell, "score"), e);
        if (!rc)
            rc = buf_add_str(out, sep, e);
        if (!rc)
            rc = mean_text(out, json_object_get(cell, "answered"), e);
        for (size_t k = 0; k < N_COUNTS && !rc; k++)
            rc = buf_printf(out, e, "%s%.0f", sep, field_number(cell, counts[k]));
        if (!rc)
            rc = buf_add_str(out, end, e);
    }
    return rc;
}

/* Means of the stages up to the first token, each from where the last one ended. */
static enum err draw_waterfall(struct buf *out, const struct report *r, struct error *e)
{
    static const char *const stages[] = {"queue",  "store_read", "import",
                                         "replay", "prefill",    "first_decode"};
    enum { N = sizeof stages / sizeof *stages };
    struct svg_bar bars[N];
    double at = 0;
    size_t i;
    json_t *t;
    for (size_t k = 0; k < N; k++) {
        double sum = 0;
        json_array_foreach(r->timings, i, t)
            sum += field_number(json_object_get(json_object_get(t, "ledger"), "ms"), stages[k]);
        sum /= (double)json_array_size(r->timings);
        bars[k] = (struct svg_bar){stages[k], at, at + sum};
        at += sum;
    }
    return svg_waterfall(out, "Time to first token: means of its stages, ms", bars, N, e);
}

static enum err cost(struct buf *out, const struct report *r, struct error *e)
{
    static const char *const fields[] = {
        "prompt_tokens", "resident",  "restored", "recomputed", "relost",       "prefilled",
        "decoded",       "reasoning", "replayed", "bytes_read", "bytes_written"};
    const size_t n = json_array_size(r->timings);
    AUTO_FREE double *ms = calloc(n + 1, sizeof *ms);
    size_t i;
    json_t *t;
    if (!ms)
        return err_set(e, ERR_NOMEM, "no memory for timings");
    json_array_foreach(r->timings, i, t)
        ms[i] = field_number(t, "ms");
    qsort(ms, n, sizeof *ms, compare_double);
    enum err rc = buf_printf(out, e,
                             "<h2>Cost</h2>\n<p>%zu timed samples; P50 %.1f ms, P90 %.1f "
                             "ms.</p>\n<table><tr><th>of all samples</th><th>sum</th></tr>\n",
                             n, ms[(n - 1) / 2], ms[(n - 1) * 9 / 10]);
    for (size_t k = 0; k < sizeof fields / sizeof *fields && !rc; k++) {
        double sum = 0;
        json_array_foreach(r->timings, i, t)
            sum += field_number(json_object_get(t, "ledger"), fields[k]);
        rc = buf_printf(out, e, "<tr><td>%s</td><td>%.0f</td></tr>\n", fields[k], sum);
    }
    if (!rc)
        rc = buf_add_str(out, "</table>\n", e);
    return rc ? rc : draw_waterfall(out, r, e);
}

/* "Model NUMERICS, fingerprint ...", where it is known. */
static enum err model_line(struct buf *out, const struct report *r, const char *before,
                           const char *after, struct error *e)
{
    const json_t *model = json_object_get(r->results, "model");
    if (!model)
        return OK;
    enum err rc = buf_printf(out, e, "%sModel: fingerprint %.16s, ", before,
                             field_text(model, "fingerprint"));
    if (!rc)
        rc = svg_text(out, field_text(model, "numerics"), e);
    return rc ? rc : buf_add_str(out, after, e);
}

static enum err write_page(struct buf *out, const struct report *r, struct error *e)
{
    char title[200];
    snprintf(title, sizeof title, "%s, version %.0f", field_text(r->results, "suite"),
             field_number(r->results, "version"));
    enum err rc = svg_page(out, title, e);
    if (!rc)
        rc = model_line(out, r, "<p>", ".</p>\n", e);
    for (size_t i = 0; i < r->n_tasks && !rc; i++)
        if (r->tasks[i].has_depth)
            rc = draw_heatmap(out, r, &r->tasks[i], e);
    if (!rc)
        rc = draw_curve(out, r, e);
    if (!rc)
        rc = buf_add_str(out,
                         "<h2>Scores</h2>\n<div class=\"wide\"><table><tr><th>cell</th><th>"
                         "score</th><th>errors left out</th>",
                         e);
    for (size_t k = 0; k < N_COUNTS && !rc; k++)
        rc = buf_printf(out, e, "<th>%s</th>", counts[k]);
    if (!rc)
        rc = buf_add_str(out, "</tr>\n", e);
    if (!rc)
        rc = score_rows(out, r, "<tr><td>", "</td><td>", "</td></tr>\n", e);
    if (!rc)
        rc = buf_add_str(out, "</table></div>\n", e);
    if (!rc && json_array_size(r->timings))
        rc = cost(out, r, e);
    return rc ? rc : svg_page_end(out, e);
}

static enum err write_summary(struct buf *out, const struct report *r, struct error *e)
{
    enum err rc = buf_printf(out, e, "# %s, version %.0f\n\n", field_text(r->results, "suite"),
                             field_number(r->results, "version"));
    if (!rc)
        rc = model_line(out, r, "", ".\n\n", e);
    if (!rc)
        rc = buf_add_str(out,
                         "| cell | score [95 %] | errors left out | n | empty | unparsable | "
                         "error | timeout | missing |\n|---|---|---|---|---|---|---|---|---|\n",
                         e);
    return rc ? rc : score_rows(out, r, "| ", " | ", " |\n", e);
}

static enum err write_file(const char *dir, const char *name, const struct buf *text,
                           struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/%s", dir, name);
    return rc ? rc : fs_write_atomic(path, text->data, text->len, 0644, e);
}

enum err report_run(const char *dir, struct error *e)
{
    AUTO(report)
    struct report r = {.dir = dir, .depths = json_object(), .timings = json_array()};
    AUTO(buf) struct buf page = BUF_INIT(MAX_BYTES);
    AUTO(buf) struct buf summary = BUF_INIT(MAX_BYTES);
    char timings[FS_PATH_BYTES];
    r.tasks = calloc(MAX_TASKS, sizeof *r.tasks);
    if (!r.tasks || !r.depths || !r.timings)
        return err_set(e, ERR_NOMEM, "no memory for a report");
    enum err rc = report_results(dir, &r.results, e);
    if (!rc)
        rc = read_cells(&r, e);
    if (!rc)
        rc = read_lines(&r, "samples.jsonl", keep_depth, &r, e);
    qsort(r.known, r.n_depths, sizeof *r.known, compare_double);
    if (!rc)
        rc = read_lines(&r, "scores.jsonl", keep_score, &r, e);
    if (!rc)
        rc = fs_path(timings, sizeof timings, e, "%s/timings.jsonl", dir);
    if (!rc && access(timings, F_OK) == 0)
        rc = suite_read_lines(timings, keep_timing, r.timings, e);
    if (!rc)
        rc = write_page(&page, &r, e);
    if (!rc)
        rc = write_summary(&summary, &r, e);
    if (!rc)
        rc = write_file(dir, "report.html", &page, e);
    return rc ? rc : write_file(dir, "summary.md", &summary, e);
}
