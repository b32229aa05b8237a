/* agentd-evals report RUN; gate RUN thresholds.json. */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "evals/cli.h"
#include "evals/fields.h"
#include "evals/report.h"

const struct command evals_report_command = {"report",
                                             "RUN",
                                             "write report.html and summary.md of a scored run",
                                             OPTION_TABLE_EMPTY,
                                             OPTION_TABLE_EMPTY,
                                             1,
                                             1};
const struct command evals_gate_command = {
    "gate",
    "RUN thresholds.json",
    "exit 1 unless a run's cells reach what the file asks for",
    OPTION_TABLE_EMPTY,
    OPTION_TABLE_EMPTY,
    2,
    2};

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
    json_object_foreach(all, pattern, t) {
        if (!json_is_object(t) || !json_object_size(t))
            return err_set(e, ERR_FORMAT, "%s: \"%.60s\": want thresholds", path, pattern);
        json_object_foreach(t, field, v) {
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
        printf("FAIL  %s: %s %g, is %.4f\n", field_text(cell, "cell"), field, limit, value);
    return good;
}

static bool judge_cell(const json_t *cell, const json_t *t)
{
    const json_t *score = json_object_get(cell, "score"), *low = json_object_get(score, "low");
    const double errors = field_number(cell, "error") + field_number(cell, "timeout");
    bool good = judge(cell, t, "min_score", field_number(score, "mean"), true);
    good = judge(cell, t, "min_low",
                 json_is_number(low) ? json_number_value(low) : -(double)INFINITY, true) &&
           good;
    good = judge(cell, t, "min_n", field_number(cell, "n"), true) && good;
    good = judge(cell, t, "max_errors", errors, false) && good;
    return judge(cell, t, "max_missing", field_number(cell, "missing"), false) && good;
}

/* Cells that match; *missing counts samples without an answer where that is not allowed. */
static bool judge_all(const json_t *results, const json_t *thresholds, double *missing)
{
    const char *pattern;
    json_t *t, *cell;
    size_t i, n_cells = 0;
    bool good = true;
    json_object_foreach((json_t *)(uintptr_t)thresholds, pattern, t) {
        size_t n = 0;
        json_array_foreach(json_object_get(results, "cells"), i, cell) {
            if (fnmatch(pattern, field_text(cell, "cell"), 0))
                continue;
            n++;
            good = judge_cell(cell, t) && good;
            if (!json_object_get(t, "max_missing"))
                *missing += field_number(cell, "missing");
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
