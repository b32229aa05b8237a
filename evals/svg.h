/* Figures as inline SVG, and text for HTML.
 *
 * Nothing is read from outside and nothing runs: a report is one file. Colours are those of the
 * page's style sheet (report_head). Lengths are in user units, one of which is a CSS pixel. */
#ifndef EVALS_SVG_H
#define EVALS_SVG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* Text with & < > " escaped. */
NODISCARD enum err svg_text(struct buf *out, const char *text, struct error *e);
/* Begins and ends a page: style, title. */
NODISCARD enum err svg_page(struct buf *out, const char *title, struct error *e);
NODISCARD enum err svg_page_end(struct buf *out, struct error *e);

#define SVG_MAX_LINES 8

struct svg_line {
    const char *name;
    const double *x, *y;      /* [n]; a y that is not finite is a gap */
    const double *low, *high; /* [n], a band around y; NULL: none */
    size_t n;
};

struct svg_chart {
    const char *title, *x_name, *y_name;
    bool log_x, log_y; /* then values <= 0 are gaps */
    bool unit_y;       /* from 0 to 1, whatever the values are */
    const struct svg_line *lines;
    size_t n_lines; /* at most SVG_MAX_LINES */
};
NODISCARD enum err svg_lines(struct buf *out, const struct svg_chart *c, struct error *e);

/* A cell of a heatmap; n 0: missing, drawn grey and never interpolated. */
struct svg_cell {
    double value; /* 0..1 */
    size_t n;
};

struct svg_heatmap {
    const char *title, *column_name, *row_name;
    const char *const *columns, *const *rows;
    size_t n_columns, n_rows;
    const struct svg_cell *cells; /* [n_rows][n_columns] */
};
NODISCARD enum err svg_heat(struct buf *out, const struct svg_heatmap *h, struct error *e);

/* Stages one behind the other. */
struct svg_bar {
    const char *name;
    double from, to;
};
NODISCARD enum err svg_waterfall(struct buf *out, const char *title, const struct svg_bar *bars,
                                 size_t n, struct error *e);

#endif
