/* Reports: one static HTML file with inline SVG each, and a summary in Markdown. */
#ifndef EVALS_REPORT_H
#define EVALS_REPORT_H

#include <jansson.h>

#include "base/err.h"

/* verify-resume.json and report.html in folder dir, which is made. */
NODISCARD enum err report_resume(const char *dir, const json_t *results, struct error *e);
#endif
