/* The report of a replay: a table of the arms, and the sweep as charts. */
#include <math.h>

#include "base/fs.h"
#include "base/json.h"
#include "evals/fields.h"
#include "evals/report.h"
#include "evals/svg.h"

#define MAX_ARMS 16
#define NEVER_S 1e6 /* where "never" stands on the axis */

static bool forgets(const json_t *arm)
{
    const char *store = json_string_value(json_object_get(arm, "store"));
    return store && store[0] == 'f';
}

static enum err table(struct buf *out, const json_t *arms, struct error *e)
{
    size_t i;
    json_t *a;
    enum err rc = buf_add_str(
        out,
        "<div class=\"wide\"><table><tr><th>store</th><th>idle timeout</th><th>rounds</th>"
        "<th>suspended</th><th>hit rate</th><th>amplification</th><th>TTFT P50, ms</th>"
        "<th>P90, ms</th><th>restored</th><th>recomputed</th><th>relost</th><th>prefilled</th>"
        "<th>kills</th><th>turns lost</th></tr>\n",
        e);
    json_array_foreach(arms, i, a) {
        char timeout[32] = "never";
        if (rc)
            return rc;
        if (field_number(a, "timeout_ms") >= 0)
            snprintf(timeout, sizeof timeout, "%.0f s", field_number(a, "timeout_ms") / 1e3);
        rc = buf_printf(out, e,
                        "<tr><td>%s</td><td>%s</td><td>%.0f</td><td>%.0f</td><td>%.2f %%</td>"
                        "<td>%.2f</td><td>%.1f</td><td>%.1f</td><td>%.0f</td><td>%.0f</td>"
                        "<td>%.0f</td><td>%.0f</td><td>%.0f</td><td>%.0f</td></tr>\n",
                        forgets(a) ? "forgets" : "keeps", timeout, field_number(a, "rounds"),
                        field_number(a, "suspended"), 100 * field_number(a, "hit_rate"),
                        field_number(a, "amplification"), field_number(a, "ttft_p50_ms"),
                        field_number(a, "ttft_p90_ms"), field_number(a, "restored"),
                        field_number(a, "recomputed"), field_number(a, "relost"),
                        field_number(a, "prefilled"), field_number(a, "kills"),
                        field_number(a, "lost"));
    }
    return rc ? rc : buf_add_str(out, "</table></div>\n", e);
}

/* What TraceLab publishes for a cache that forgets, over 4,265 sessions. */
static const struct {
    double timeout_ms, hit_rate, amplification;
} published[] = {{60e3, 0.854, 18.9}, {300e3, 0.94, 7.4}, {3600e3, 0.986, 1.8}, {-1, 1, 1.0}};

static enum err counted_row(struct buf *out, const json_t *a, struct error *e)
{
    char timeout[32] = "never";
    const double ms = field_number(a, "timeout_ms");
    if (ms >= 0)
        snprintf(timeout, sizeof timeout, "%.0f s", ms / 1e3);
    enum err rc = buf_printf(
        out, e,
        "<tr><td>%s</td><td>%s</td><td>%.0f</td><td>%.2f %%</td><td>%.2f</td><td>%.1f M</td>"
        "<td>%.1f M</td>",
        forgets(a) ? "forgets" : "keeps", timeout, field_number(a, "suspended"),
        100 * field_number(a, "hit_rate"), field_number(a, "amplification"),
        field_number(a, "relost") / 1e6, field_number(a, "restored") / 1e6);
    for (size_t i = 0; i < sizeof published / sizeof *published && !rc; i++)
        if (forgets(a) && fabs(published[i].timeout_ms - ms) < 1)
            return buf_printf(out, e, "<td>%.1f %%, %.1f</td></tr>\n",
                              100 * published[i].hit_rate, published[i].amplification);
    return rc ? rc : buf_add_str(out, "<td></td></tr>\n", e);
}

static enum err counted_table(struct buf *out, const json_t *counted, struct error *e)
{
    size_t i;
    json_t *a;
    enum err rc = buf_printf(
        out, e,
        "<h2>Counted from the trace</h2>\n<p>%.0f sessions, %.0f steps at their own lengths "
        "and waits; medians: prefix %.0f, input %.0f, output %.0f tokens. <b>Nothing was "
        "computed</b>: a step whose wait is over the timeout finds no prefix in a cache that "
        "forgets, and all of it in this store.</p>\n"
        "<div class=\"wide\"><table><tr><th>store</th><th>idle timeout</th><th>suspended</th>"
        "<th>hit rate</th><th>amplification</th><th>tokens again</th><th>tokens read</th>"
        "<th>published</th></tr>\n",
        field_number(counted, "sessions"), field_number(counted, "steps"),
        field_number(counted, "prefix_p50"), field_number(counted, "input_p50"),
        field_number(counted, "output_p50"));
    json_array_foreach(json_object_get(counted, "arms"), i, a) {
        if (rc)
            return rc;
        rc = counted_row(out, a, e);
    }
    return rc ? rc : buf_add_str(out, "</table></div>\n", e);
}

static enum err chart(struct buf *out, const json_t *arms, const char *field, const char *title,
                      bool log_y, struct error *e)
{
    double x[2][MAX_ARMS], y[2][MAX_ARMS];
    size_t n[2] = {0, 0}, i;
    json_t *a;
    json_array_foreach(arms, i, a) {
        const int k = forgets(a);
        const double t = field_number(a, "timeout_ms") / 1e3;
        if (n[k] == MAX_ARMS)
            continue;
        x[k][n[k]] = t < 0 ? NEVER_S : t;
        y[k][n[k]++] = field_number(a, field);
    }
    const struct svg_line lines[] = {
        {.name = "this store", .x = x[0], .y = y[0], .n = n[0]},
        {.name = "cache that forgets", .x = x[1], .y = y[1], .n = n[1]}};
    const struct svg_chart c = {.title = title,
                                .x_name = "idle timeout, s (never at 1e6)",
                                .y_name = field,
                                .log_x = true,
                                .log_y = log_y,
                                .unit_y = !log_y,
                                .lines = lines,
                                .n_lines = 2};
    return svg_lines(out, &c, e);
}

static enum err counted(struct buf *out, const json_t *counted, struct error *e)
{
    const json_t *arms = json_object_get(counted, "arms");
    enum err rc = counted_table(out, counted, e);
    if (!rc)
        rc = chart(out, arms, "hit_rate", "Counted: hit rate by idle timeout", false, e);
    return rc ? rc
              : chart(out, arms, "amplification",
                      "Counted: prefill amplification by idle timeout", true, e);
}

static enum err computed(struct buf *out, const json_t *results, struct error *e)
{
    const json_t *arms = json_object_get(results, "arms");
    const char *fingerprint =
        json_string_value(json_object_get(json_array_get(arms, 0), "fingerprint"));
    enum err rc = buf_printf(
        out, e,
        "<h2>Computed on a daemon</h2>\n<p>Model: fingerprint %.16s. Lengths divided by %g. "
        "Hits: rounds that computed nothing again. Amplification: computed input tokens over "
        "new ones. Waits are compared with the timeout, not waited for.</p>\n",
        fingerprint ? fingerprint : "not known", field_number(results, "scale"));
    if (!rc)
        rc = table(out, arms, e);
    if (rc || json_array_size(arms) <= 2)
        return rc;
    rc = chart(out, arms, "hit_rate", "Hit rate by idle timeout", false, e);
    if (!rc)
        rc =
            chart(out, arms, "amplification", "Prefill amplification by idle timeout", true, e);
    if (!rc)
        rc = chart(out, arms, "ttft_p50_ms", "Time to first token, P50", true, e);
    return rc ? rc : chart(out, arms, "ttft_p90_ms", "Time to first token, P90", true, e);
}

static enum err write_page(struct buf *out, const json_t *results, struct error *e)
{
    const char *trace = json_string_value(json_object_get(results, "trace"));
    const json_t *from_trace = json_object_get(results, "counted");
    enum err rc = svg_page(out, "Replay by idle timeout", e);
    if (!rc)
        rc = buf_add_str(out, "<p>Trace ", e);
    if (!rc)
        rc = svg_text(out, trace ? trace : "", e);
    if (!rc)
        rc = buf_add_str(out, ".</p>\n", e);
    if (!rc && json_array_size(json_object_get(results, "arms")))
        rc = computed(out, results, e);
    if (!rc && from_trace)
        rc = counted(out, from_trace, e);
    return rc ? rc : svg_page_end(out, e);
}

enum err report_replay(const char *dir, const json_t *results, struct error *e)
{
    return report_write(dir, "replay.json", results, write_page, e);
}
