/* The report of verify-resume. */
#include <stdlib.h>
#include <string.h>

#include "evals/fields.h"
#include "evals/report.h"
#include "evals/svg.h"

static long long figure(const json_t *o, const char *field)
{
    return (long long)json_integer_value(json_object_get(o, field));
}

static enum err check_row(struct buf *out, const json_t *c, struct error *e)
{
    static const char *const parts[] = {"resident", "restored", "recomputed", "relost",
                                        "prefilled"};
    const bool equal = json_is_true(json_object_get(c, "equal"));
    const json_t *ledger = json_object_get(c, "ledger");
    enum err rc = buf_printf(out, e, "<tr><td>%s</td><td style=\"text-align:left\">",
                             field_text(c, "arm"));
    if (!rc)
        rc = svg_text(out, field_text(c, "what"), e);
    if (!rc)
        rc = buf_printf(out, e,
                        "</td><td>%lld</td><td>%lld</td><td%s</td><td>%lld</td><td>%.1f</td>",
                        figure(c, "position"), figure(c, "rows"),
                        equal ? ">equal" : " class=\"bad\">different", figure(c, "replayed"),
                        field_number(c, "ms"));
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !rc; i++)
        rc = ledger ? buf_printf(out, e, "<td>%lld</td>", figure(ledger, parts[i]))
                    : buf_add_str(out, "<td></td>", e);
    return rc ? rc : buf_add_str(out, "</tr>\n", e);
}

static enum err checks(struct buf *out, const json_t *length, struct error *e)
{
    size_t i;
    json_t *c;
    enum err rc = buf_add_str(
        out,
        "<div class=\"wide\"><table><tr><th>arm</th><th style=\"text-align:left\">what</th>"
        "<th>position</th><th>rows</th><th>bits</th><th>replayed</th><th>ms</th>"
        "<th>resident</th><th>restored</th><th>recomputed</th><th>relost</th>"
        "<th>prefilled</th></tr>\n",
        e);
    json_array_foreach(json_object_get(length, "checks"), i, c) {
        if (rc)
            return rc;
        rc = check_row(out, c, e);
    }
    return rc ? rc : buf_add_str(out, "</table></div>\n", e);
}

static enum err curve_table(struct buf *out, const json_t *length, struct error *e)
{
    size_t i;
    json_t *c;
    const json_t *nll = json_object_get(length, "nll"), *b = json_object_get(nll, "bounded"),
                 *x = json_object_get(nll, "exact");
    enum err rc = buf_add_str(out,
                              "<table><tr><th>tokens since resume</th><th>rows</th><th>KL, "
                              "mean</th><th>KL, max</th><th>logit, max</th><th>top-1</th>"
                              "<th>top-20</th><th>near ties</th><th>real</th></tr>\n",
                              e);
    json_array_foreach(json_object_get(length, "curve"), i, c) {
        if (rc)
            return rc;
        rc = buf_printf(out, e,
                        "<tr><td>%lld to %lld</td><td>%lld</td><td>%.3e</td><td>%.3e</td>"
                        "<td>%.3e</td><td>%.3f</td><td>%.3f</td><td>%lld</td><td>%lld</td>"
                        "</tr>\n",
                        figure(c, "from"), figure(c, "to"), figure(c, "n"),
                        field_number(c, "kl"), field_number(c, "kl_max"),
                        field_number(c, "max_diff"), field_number(c, "top1"),
                        field_number(c, "top20"), figure(c, "near_ties"), figure(c, "real"));
    }
    if (!rc)
        rc = buf_add_str(out, "</table>\n", e);
    if (!rc && b)
        rc = buf_printf(out, e,
                        "<p>NLL of the forced continuation, %lld tokens: %.5f; bounded replay "
                        "%+.2e [%.2e, %.2e] (95 %%)",
                        figure(b, "n"), field_number(b, "reference"),
                        field_number(b, "difference"), field_number(b, "low"),
                        field_number(b, "high"));
    if (!rc && b && x)
        rc = buf_printf(out, e, "; exact resume %s",
                        json_is_true(json_object_get(x, "zero")) ? "0, at every token"
                                                                 : "NOT 0");
    return rc || !b ? rc : buf_add_str(out, ".</p>\n", e);
}

/* x and y [n] of an array of n objects; n >= 1. The caller frees both, after an error too. */
static enum err take(const json_t *list, const char *x_field, double **x, double **y,
                     struct error *e)
{
    const size_t n = json_array_size(list);
    *x = calloc(n, sizeof **x);
    *y = calloc(n, sizeof **y);
    if (!*x || !*y)
        return err_set(e, ERR_NOMEM, "no memory for a line of %zu points", n);
    for (size_t i = 0; i < n; i++) {
        (*x)[i] = field_number(json_array_get(list, i), x_field);
        (*y)[i] = field_number(json_array_get(list, i), "kl");
    }
    return OK;
}

/* One chart with a line for each length. */
static enum err chart(struct buf *out, const json_t *lengths, const char *list,
                      const char *x_field, struct svg_chart *c, struct error *e)
{
    struct svg_line lines[SVG_MAX_LINES] = {{.n = 0}};
    double *x[SVG_MAX_LINES] = {NULL}, *y[SVG_MAX_LINES] = {NULL};
    char names[SVG_MAX_LINES][32];
    size_t i, n = 0;
    json_t *l;
    enum err rc = OK;
    json_array_foreach(lengths, i, l) {
        const json_t *points = json_object_get(l, list);
        if (n == SVG_MAX_LINES || !json_array_size(points) || rc)
            continue;
        snprintf(names[n], sizeof names[n], "%lld tokens", figure(l, "length"));
        rc = take(points, x_field, &x[n], &y[n], e);
        lines[n].n = json_array_size(points);
        lines[n].name = names[n];
        lines[n].x = x[n];
        lines[n].y = y[n];
        n++;
    }
    c->lines = lines;
    c->n_lines = n;
    if (!rc && n)
        rc = svg_lines(out, c, e);
    for (i = 0; i < n; i++) {
        free(x[i]);
        free(y[i]);
    }
    return rc;
}

static enum err write_page(struct buf *out, const json_t *results, struct error *e)
{
    const json_t *lengths = json_object_get(results, "lengths");
    size_t i;
    json_t *l;
    struct svg_chart by_tokens = {.title = "Bounded replay: KL by tokens since resume",
                                  .x_name = "tokens since resume",
                                  .y_name = "KL, nats",
                                  .log_x = true,
                                  .log_y = true};
    struct svg_chart by_cycles = {.title = "Bounded replay: KL by stop/resume cycles",
                                  .x_name = "cycles",
                                  .y_name = "KL, nats",
                                  .log_y = true};
    enum err rc = svg_page(out, "Resumed sessions against one that never stopped", e);
    if (!rc)
        rc = buf_add_str(out, "<p>Model ", e);
    if (!rc)
        rc = svg_text(out, field_text(results, "model"), e);
    if (!rc)
        rc = buf_printf(out, e, " (fingerprint %.16s)", field_text(results, "fingerprint"));
    if (!rc)
        rc = buf_add_str(out,
                         ". C never stopped; C' the same again; S other chunks, threads and "
                         "company; P cold; X exact; D deep; F fork; K killed; I damaged on "
                         "disk. Rows are logits over the whole vocabulary, compared bit for "
                         "bit.</p>\n",
                         e);
    if (!rc)
        rc = chart(out, lengths, "curve", "from", &by_tokens, e);
    if (!rc)
        rc = chart(out, lengths, "cycles", "cycle", &by_cycles, e);
    json_array_foreach(lengths, i, l) {
        if (rc)
            return rc;
        rc = buf_printf(out, e, "<h2>%lld tokens: %s%s</h2>\n", figure(l, "length"),
                        json_is_true(json_object_get(l, "equal")) ? "all equal" : "DIFFERENT",
                        json_object_get(l, "unfinished") ? ", so far" : "");
        if (!rc)
            rc = checks(out, l, e);
        if (!rc && json_array_size(json_object_get(l, "curve")))
            rc = curve_table(out, l, e);
        if (!rc)
            rc = report_answers(out, l, e);
    }
    return rc ? rc : svg_page_end(out, e);
}

enum err report_resume(const char *dir, const json_t *results, struct error *e)
{
    return report_write(dir, "verify-resume.json", results, write_page, e);
}
