/* Reports: one static HTML file with inline SVG each, and a summary in Markdown. */
#ifndef EVALS_REPORT_H
#define EVALS_REPORT_H

#include <jansson.h>

#include "base/buf.h"

/* verify-resume.json, or replay.json, and report.html in folder dir, which is made. */
NODISCARD enum err report_resume(const char *dir, const json_t *results, struct error *e);
NODISCARD enum err report_replay(const char *dir, const json_t *results, struct error *e);

/* The section of a length in report_resume() on what the model answered; nothing without. */
NODISCARD enum err report_answers(struct buf *out, const json_t *length, struct error *e);

/* report.html and summary.md of a run that is scored (scores.jsonl, results.json; timings.jsonl
 * if it is there). ERR_NOTFOUND without. */
NODISCARD enum err report_run(const char *dir, struct error *e);
/* results.json of a run, to be decref'd. */
NODISCARD enum err report_results(const char *dir, json_t **out, struct error *e);

/* Writes results as DIR/name and the page made of them as DIR/report.html. */
typedef enum err report_page_fn(struct buf *out, const json_t *results, struct error *e);
NODISCARD enum err report_write(const char *dir, const char *name, const json_t *results,
                                report_page_fn *page, struct error *e);

#endif
