/* The section of verify-resume's report on what the model answered after a resume. */
#include <stdlib.h>
#include <string.h>

#include "evals/fields.h"
#include "evals/report.h"
#include "evals/svg.h"

#define MAX_BINS 128

static const char *const arms[] = {"X", "D", "B"};
#define N_ARMS (sizeof arms / sizeof *arms)

static bool is(const json_t *o, const char *field)
{
    return json_is_true(json_object_get(o, field));
}

/* Probes that one row is about: of a kind, and of a range of distances unless it is empty. */
struct group {
    const char *kind, *name;
    double from, to;
};

struct tally {
    unsigned n, right;
    struct {
        unsigned n, right, same_ids, same_action;
    } arm[N_ARMS];
};

static struct tally count(const json_t *probes, const struct group *g)
{
    struct tally t = {0};
    size_t i;
    json_t *p;
    json_array_foreach(probes, i, p) {
        const char *kind = json_string_value(json_object_get(p, "kind"));
        if (!kind || strcmp(kind, g->kind) != 0 ||
            (g->to > 0 &&
             (field_number(p, "from") < g->from || field_number(p, "from") > g->to)))
            continue;
        t.n++;
        t.right += is(p, "right");
        for (size_t k = 0; k < N_ARMS; k++) {
            const json_t *a = json_object_get(json_object_get(p, "arms"), arms[k]);
            t.arm[k].n += a != NULL;
            t.arm[k].right += is(a, "right");
            t.arm[k].same_ids += is(a, "same_ids");
            t.arm[k].same_action += is(a, "same_action");
        }
    }
    return t;
}

static enum err row(struct buf *out, const json_t *probes, const struct group *g,
                    struct error *e)
{
    const struct tally t = count(probes, g);
    if (!t.n)
        return OK;
    enum err rc =
        buf_printf(out, e, "<tr><td style=\"text-align:left\">%s</td><td>%u</td><td>%u</td>",
                   g->name, t.n, t.right);
    for (size_t k = 0; k < N_ARMS && !rc; k++) {
        if (!t.arm[k].n) {
            rc = buf_add_str(out, "<td></td><td></td><td></td>", e);
            continue;
        }
        const bool bad = k < 2 && t.arm[k].same_ids < t.arm[k].n;
        rc = buf_printf(out, e, "<td>%u</td><td%s>%u</td><td>%u</td>", t.arm[k].right,
                        bad ? " class=\"bad\"" : "", t.arm[k].same_ids, t.arm[k].same_action);
    }
    return rc ? rc : buf_add_str(out, "</tr>\n", e);
}

/* The ranges of distances that occur, in order; their number. */
static size_t find_bins(const json_t *probes, struct group bins[MAX_BINS])
{
    size_t n = 0, i;
    json_t *p;
    json_array_foreach(probes, i, p) {
        const struct group g = {
            .kind = "distance", .from = field_number(p, "from"), .to = field_number(p, "to")};
        size_t at = n;
        if (!json_object_get(p, "distance") || n == MAX_BINS)
            continue;
        while (at > 0 && bins[at - 1].from >= g.from)
            at--;
        if (at < n && bins[at].from <= g.from)
            continue;
        memmove(bins + at + 1, bins + at, (n - at) * sizeof *bins);
        bins[at] = g;
        n++;
    }
    return n;
}

static enum err table(struct buf *out, const json_t *probes, const struct group *bins,
                      size_t n_bins, struct error *e)
{
    static const struct group kinds[] = {{.kind = "needle", .name = "codes by depth"},
                                         {.kind = "distance", .name = "codes by distance"},
                                         {.kind = "turn", .name = "agent's turns"},
                                         {.kind = "sample", .name = "samples"}};
    enum err rc = buf_add_str(
        out,
        "<div class=\"wide\"><table><tr><th style=\"text-align:left\">asked</th><th>n</th>"
        "<th>C right</th>"
        "<th>X right</th><th>same ids</th><th>same action</th>"
        "<th>D right</th><th>same ids</th><th>same action</th>"
        "<th>B right</th><th>same ids</th><th>same action</th></tr>\n",
        e);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !rc; i++)
        rc = row(out, probes, &kinds[i], e);
    for (size_t i = 0; i < n_bins && !rc; i++) {
        char name[64];
        struct group g = bins[i];
        snprintf(name, sizeof name, "%.0f to %.0f tokens before", g.from, g.to);
        g.name = name;
        rc = row(out, probes, &g, e);
    }
    return rc ? rc : buf_add_str(out, "</table></div>\n", e);
}

static enum err chart(struct buf *out, const json_t *probes, const struct group *bins,
                      size_t n_bins, struct error *e)
{
    double x[MAX_BINS], y[3][MAX_BINS];
    for (size_t i = 0; i < n_bins; i++) {
        const struct tally t = count(probes, &bins[i]);
        x[i] = (bins[i].from + bins[i].to) / 2;
        y[0][i] = t.arm[0].n ? (double)t.arm[0].same_ids / t.arm[0].n : 0;
        y[1][i] = t.arm[2].n ? (double)t.arm[2].same_ids / t.arm[2].n : 0;
        y[2][i] = (double)t.right / t.n;
    }
    const struct svg_line lines[] = {
        {.name = "X: same answer as C", .x = x, .y = y[0], .n = n_bins},
        {.name = "B: same answer as C", .x = x, .y = y[1], .n = n_bins},
        {.name = "C: right", .x = x, .y = y[2], .n = n_bins}};
    const struct svg_chart c = {.title = "Answers by distance to the resume point",
                                .x_name = "tokens from what is asked to the resume",
                                .y_name = "share of answers",
                                .unit_y = true,
                                .lines = lines,
                                .n_lines = sizeof lines / sizeof *lines};
    return svg_lines(out, &c, e);
}

enum err report_answers(struct buf *out, const json_t *length, struct error *e)
{
    const json_t *probes = json_object_get(length, "answers");
    struct group bins[MAX_BINS];
    const size_t n_bins = find_bins(probes, bins);
    if (!json_array_size(probes))
        return OK;
    enum err rc = buf_add_str(
        out,
        "<p>What the model says, greedily, when it is asked after a resume, against the "
        "session "
        "that never stopped. Action: the tool and its arguments, or the text where none is "
        "called. Right is the model's quality, same is the resume's.</p>\n",
        e);
    if (!rc)
        rc = table(out, probes, bins, n_bins, e);
    return rc || n_bins < 2 ? rc : chart(out, probes, bins, n_bins, e);
}
