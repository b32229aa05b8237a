#include "evals/svg.h"

#include <math.h>
#include <string.h>

#define WIDTH 720.0
#define HEIGHT 300.0
#define LEFT 70.0
#define RIGHT 150.0 /* the legend's */
#define TOP 30.0
#define BOTTOM 46.0

enum err svg_text(struct buf *out, const char *text, struct error *e)
{
    enum err rc = OK;
    for (; *text && !rc; text++) {
        const char *name = *text == '&'   ? "&amp;"
                           : *text == '<' ? "&lt;"
                           : *text == '>' ? "&gt;"
                           : *text == '"' ? "&quot;"
                                          : NULL;
        rc = name ? buf_add_str(out, name, e) : buf_add_byte(out, (uint8_t)*text, e);
    }
    return rc;
}

enum err svg_page(struct buf *out, const char *title, struct error *e)
{
    enum err rc = buf_add_str(out,
                              "<!doctype html>\n<html lang=\"en\"><head><meta "
                              "charset=\"utf-8\"><title>",
                              e);
    if (!rc)
        rc = svg_text(out, title, e);
    if (!rc)
        rc = buf_add_str(
            out,
            "</title>\n<style>\nbody{font:14px/1.5 system-ui,sans-serif;max-width:1400px;"
            "margin:2em auto;padding:0 1em;color:#1b1f24;background:#fff}\n"
            "h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}\n"
            "table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
            "th,td{padding:.2em .7em;border-bottom:1px solid #d8dee4;text-align:right;"
            "white-space:nowrap}\nth:first-child,td:first-child{text-align:left}\n"
            ".wide{overflow-x:auto}.bad{color:#b3261e;font-weight:600}\n"
            "svg{display:block;margin:1em 0}svg text{font:11px system-ui,sans-serif;"
            "fill:#1b1f24}svg .title{font-size:13px;font-weight:600}\n"
            ".grid{stroke:#e4e8ec}.axis{stroke:#8a939c}.s{fill:none;stroke-width:1.8}"
            ".band{stroke:none;opacity:.18}\n"
            ".c0{stroke:#0b62c4}.f0{fill:#0b62c4}.c1{stroke:#c2410c}.f1{fill:#c2410c}"
            ".c2{stroke:#15803d}.f2{fill:#15803d}.c3{stroke:#7e22ce}.f3{fill:#7e22ce}"
            ".c4{stroke:#a16207}.f4{fill:#a16207}.c5{stroke:#0e7490}.f5{fill:#0e7490}"
            ".c6{stroke:#be185d}.f6{fill:#be185d}.c7{stroke:#52525b}.f7{fill:#52525b}\n"
            "</style></head><body>\n<h1>",
            e);
    if (!rc)
        rc = svg_text(out, title, e);
    return rc ? rc : buf_add_str(out, "</h1>\n", e);
}

enum err svg_page_end(struct buf *out, struct error *e)
{
    return buf_add_str(out, "</body></html>\n", e);
}

/* ---- line charts ------------------------------------------------------------------------ */

struct axis {
    double low, high; /* of values, or of their logarithms */
    double from, to;  /* where those two are drawn */
    bool log;
    double base; /* of the logarithms and their ticks: x doubles, y has decades */
};

static double scaled(const struct axis *a, double v)
{
    return a->log ? log(v) / log(a->base) : v;
}

static bool usable(double v, bool log)
{
    return isfinite(v) && (!log || v > 0);
}

static double place(const struct axis *a, double v)
{
    const double t = (scaled(a, v) - a->low) / (a->high - a->low);
    return a->from + t * (a->to - a->from);
}

static void include(struct axis *a, double v)
{
    if (!usable(v, a->log))
        return;
    v = scaled(a, v);
    a->low = v < a->low ? v : a->low;
    a->high = v > a->high ? v : a->high;
}

static void close_axis(struct axis *a)
{
    if (!(a->low <= a->high)) {
        a->low = 0;
        a->high = 1;
    }
    if (!a->log && a->low > 0 && a->low < 0.5 * a->high)
        a->low = 0;
    if (a->log) {
        a->low = floor(a->low + 1e-9);
        a->high = ceil(a->high - 1e-9);
    }
    if (a->high - a->low < 1e-12 * fabs(a->high) || a->high <= a->low)
        a->high = a->low + (a->log || fabs(a->low) < 1 ? 1 : fabs(a->low));
}

/* 1, 2 or 5 times a power of ten, about five of them in the range. */
static double tick_step(const struct axis *a)
{
    const double range = a->high - a->low;
    if (a->log)
        return ceil(range / 6);
    const double power = pow(10, floor(log10(range / 5)));
    const double m = range / 5 / power;
    return power * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
}

static enum err draw_ticks(struct buf *out, const struct axis *a, bool is_x, struct error *e)
{
    const double step = tick_step(a);
    enum err rc = OK;
    for (int k = 0; k < 40 && !rc; k++) {
        const double v = ceil(a->low / step - 1e-9) * step + k * step;
        if (v > a->high + 1e-9 * step)
            break;
        const double at = place(&(struct axis){a->low, a->high, a->from, a->to, false, 0}, v);
        const double shown = a->log ? pow(a->base, v) : fabs(v) < 1e-9 * step ? 0 : v;
        rc = is_x ? buf_printf(out, e,
                               "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                               "y2=\"%.1f\"/><text x=\"%.1f\" y=\"%.1f\" "
                               "text-anchor=\"middle\">%.7g</text>\n",
                               at, TOP, at, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 15, shown)
                  : buf_printf(out, e,
                               "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                               "y2=\"%.1f\"/><text x=\"%.1f\" y=\"%.1f\" "
                               "text-anchor=\"end\">%.3g</text>\n",
                               LEFT, at, WIDTH - RIGHT, at, LEFT - 6, at + 4, shown);
    }
    return rc;
}

static enum err draw_band(struct buf *out, const struct svg_line *l, size_t number,
                          const struct axis *x, const struct axis *y, struct error *e)
{
    enum err rc = buf_printf(out, e, "<polygon class=\"band f%zu\" points=\"", number);
    for (size_t i = 0; i < 2 * l->n && !rc; i++) {
        const size_t k = i < l->n ? i : 2 * l->n - 1 - i;
        const double v = i < l->n ? l->low[k] : l->high[k];
        if (usable(v, y->log) && usable(l->x[k], x->log))
            rc = buf_printf(out, e, "%.1f,%.1f ", place(x, l->x[k]), place(y, v));
    }
    return rc ? rc : buf_add_str(out, "\"/>\n", e);
}

static enum err draw_line(struct buf *out, const struct svg_line *l, size_t number,
                          const struct axis *x, const struct axis *y, struct error *e)
{
    bool down = false;
    enum err rc = l->low ? draw_band(out, l, number, x, y, e) : OK;
    if (!rc)
        rc = buf_printf(out, e, "<path class=\"s c%zu\" d=\"", number);
    for (size_t i = 0; i < l->n && !rc; i++) {
        if (!usable(l->x[i], x->log) || !usable(l->y[i], y->log)) {
            down = false;
            continue;
        }
        rc = buf_printf(out, e, "%c%.1f %.1f", down ? 'L' : 'M', place(x, l->x[i]),
                        place(y, l->y[i]));
        down = true;
    }
    if (!rc)
        rc = buf_add_str(out, "\"/>\n", e);
    for (size_t i = 0; i < l->n && l->n <= 40 && !rc; i++)
        if (usable(l->x[i], x->log) && usable(l->y[i], y->log))
            rc =
                buf_printf(out, e, "<circle class=\"f%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>",
                           number, place(x, l->x[i]), place(y, l->y[i]));
    const double row = TOP + 10 + 18 * (double)number;
    if (!rc)
        rc = buf_printf(out, e,
                        "<rect class=\"f%zu\" x=\"%.1f\" y=\"%.1f\" width=\"12\" "
                        "height=\"4\"/><text x=\"%.1f\" y=\"%.1f\">",
                        number, WIDTH - RIGHT + 12, row - 6, WIDTH - RIGHT + 30, row);
    if (!rc)
        rc = svg_text(out, l->name, e);
    return rc ? rc : buf_add_str(out, "</text>\n", e);
}

static enum err label(struct buf *out, const char *attributes, const char *text,
                      struct error *e)
{
    enum err rc = buf_printf(out, e, "<text %s>", attributes);
    if (!rc)
        rc = svg_text(out, text, e);
    return rc ? rc : buf_add_str(out, "</text>\n", e);
}

static enum err frame(struct buf *out, const struct svg_chart *c, struct error *e)
{
    char at[128];
    enum err rc = label(out, "class=\"title\" x=\"0\" y=\"14\"", c->title, e);
    snprintf(at, sizeof at, "x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\"",
             (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
    if (!rc)
        rc = label(out, at, c->x_name, e);
    snprintf(at, sizeof at,
             "transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\"",
             (TOP + HEIGHT - BOTTOM) / 2);
    if (!rc)
        rc = label(out, at, c->y_name, e);
    return rc ? rc
              : buf_printf(out, e,
                           "<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                           "y2=\"%.1f\"/>\n",
                           LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM);
}

enum err svg_lines(struct buf *out, const struct svg_chart *c, struct error *e)
{
    struct axis x = {INFINITY, -INFINITY, LEFT, WIDTH - RIGHT, c->log_x, 2};
    struct axis y = {INFINITY, -INFINITY, HEIGHT - BOTTOM, TOP, c->log_y, 10};
    if (c->n_lines > SVG_MAX_LINES)
        return err_set(e, ERR_LIMIT, "a chart has at most %d lines", SVG_MAX_LINES);
    for (size_t k = 0; k < c->n_lines; k++)
        for (size_t i = 0; i < c->lines[k].n; i++) {
            const struct svg_line *l = &c->lines[k];
            include(&x, l->x[i]);
            include(&y, l->y[i]);
            if (l->low) {
                include(&y, l->low[i]);
                include(&y, l->high[i]);
            }
        }
    close_axis(&x);
    close_axis(&y);
    if (c->unit_y) {
        y.low = 0;
        y.high = 1;
    }
    enum err rc = buf_printf(out, e,
                             "<svg width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
                             "role=\"img\">\n",
                             WIDTH, HEIGHT, WIDTH, HEIGHT);
    if (!rc)
        rc = draw_ticks(out, &x, true, e);
    if (!rc)
        rc = draw_ticks(out, &y, false, e);
    if (!rc)
        rc = frame(out, c, e);
    for (size_t k = 0; k < c->n_lines && !rc; k++)
        rc = draw_line(out, &c->lines[k], k, &x, &y, e);
    return rc ? rc : buf_add_str(out, "</svg>\n", e);
}

/* ---- heatmaps --------------------------------------------------------------------------- */

/* From red over yellow to green, dark enough at neither end to hide black text. */
static void colour(double v, char out[8])
{
    static const double stops[3][3] = {{232, 117, 103}, {247, 220, 136}, {118, 190, 130}};
    const double t = v < 0 ? 0 : v > 1 ? 2 : 2 * v;
    const int k = t < 1 ? 0 : 1;
    int c[3];
    for (int i = 0; i < 3; i++)
        c[i] = (int)(stops[k][i] + (t - k) * (stops[k + 1][i] - stops[k][i]) + 0.5);
    snprintf(out, 8, "#%02x%02x%02x", c[0] & 255, c[1] & 255, c[2] & 255);
}

static enum err draw_cell(struct buf *out, const struct svg_cell *c, double x, double y,
                          double w, double h, struct error *e)
{
    char fill[8] = "#d5d9de";
    if (c->n)
        colour(c->value, fill);
    enum err rc = buf_printf(out, e,
                             "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                             "fill=\"%s\" stroke=\"#fff\"><title>",
                             x, y, w, h, fill);
    if (!rc)
        rc = c->n ? buf_printf(out, e, "%.3f, n = %zu", c->value, c->n)
                  : buf_add_str(out, "missing", e);
    if (!rc)
        rc = buf_add_str(out, "</title></rect>", e);
    if (rc || !c->n)
        return rc;
    return buf_printf(out, e,
                      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" "
                      "style=\"font-size:10px\">%.2f</text><text x=\"%.1f\" y=\"%.1f\" "
                      "text-anchor=\"middle\" style=\"font-size:7px\">n=%zu</text>\n",
                      x + w / 2, y + h / 2 + 1, c->value, x + w / 2, y + h / 2 + 10, c->n);
}

static size_t longest(const char *const *names, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = strlen(names[i]) > most ? strlen(names[i]) : most;
    return most;
}

enum err svg_heat(struct buf *out, const struct svg_heatmap *h, struct error *e)
{
    /* 35 columns are to fit on the page. */
    const double w = h->n_columns > 28 ? 28 : 34, high = 28, char_width = 6.2;
    const double left = 34 + char_width * (double)longest(h->rows, h->n_rows);
    const double below = 14 + char_width * (double)longest(h->columns, h->n_columns);
    const double names = 7 * (double)(strlen(h->title) + 1);
    const double grid = left + w * (double)h->n_columns;
    const double width = (grid > names ? grid : names) + 10;
    const double bottom = TOP + high * (double)h->n_rows, height = bottom + below + 22;
    enum err rc = buf_printf(out, e,
                             "<div class=\"wide\"><svg width=\"%.0f\" height=\"%.0f\" "
                             "viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n",
                             width, height, width, height);
    char at[160];
    if (!rc)
        rc = label(out, "class=\"title\" x=\"0\" y=\"14\"", h->title, e);
    for (size_t r = 0; r < h->n_rows && !rc; r++) {
        const double y = TOP + high * (double)r;
        snprintf(at, sizeof at, "x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\"", left - 6,
                 y + high / 2 + 4);
        rc = label(out, at, h->rows[r], e);
        for (size_t c = 0; c < h->n_columns && !rc; c++)
            rc = draw_cell(out, &h->cells[r * h->n_columns + c], left + w * (double)c, y, w,
                           high, e);
    }
    for (size_t c = 0; c < h->n_columns && !rc; c++) {
        snprintf(at, sizeof at,
                 "transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"end\"",
                 left + w * ((double)c + 0.5) + 4, bottom + 6);
        rc = label(out, at, h->columns[c], e);
    }
    snprintf(at, sizeof at, "x=\"%.1f\" y=\"%.1f\"", left, height - 6);
    if (!rc)
        rc = label(out, at, h->column_name, e);
    snprintf(at, sizeof at, "transform=\"translate(12 %.1f) rotate(-90)\" text-anchor=\"end\"",
             TOP);
    if (!rc)
        rc = label(out, at, h->row_name, e);
    return rc ? rc : buf_add_str(out, "</svg></div>\n", e);
}

/* ---- stages ----------------------------------------------------------------------------- */

enum err svg_waterfall(struct buf *out, const char *title, const struct svg_bar *bars, size_t n,
                       struct error *e)
{
    const double row = 22, left = 100, width = 460, end = n ? bars[n - 1].to : 0;
    const double unit = end > 0 ? width / end : 0, height = TOP + row * (double)n + 6;
    char at[96];
    enum err rc = buf_printf(out, e,
                             "<svg width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
                             "role=\"img\">\n",
                             WIDTH, height, WIDTH, height);
    if (!rc)
        rc = label(out, "class=\"title\" x=\"0\" y=\"14\"", title, e);
    for (size_t i = 0; i < n && !rc; i++) {
        const double y = TOP + row * (double)i, x = left + unit * bars[i].from;
        const double w = unit * (bars[i].to - bars[i].from);
        snprintf(at, sizeof at, "x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\"", left - 8, y + 12);
        rc = label(out, at, bars[i].name, e);
        if (!rc)
            rc = buf_printf(out, e,
                            "<rect class=\"f%zu\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                            "height=\"14\"/><text x=\"%.1f\" y=\"%.1f\">%.2f</text>\n",
                            i % SVG_MAX_LINES, x, y, w > 1 ? w : 1, x + w + 6, y + 12,
                            bars[i].to - bars[i].from);
    }
    return rc ? rc : buf_add_str(out, "</svg>\n", e);
}
