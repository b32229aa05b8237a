/* agentd-evals as a child process, for tests, and the JSON files that it leaves. */
#ifndef TESTS_SUPPORT_EVALS_RUN_H
#define TESTS_SUPPORT_EVALS_RUN_H

#include <jansson.h>

/* Runs it with these arguments (NULL ends, at most 22) to its end, output and errors to the
 * file `log`. The exit code; -SIGNAL if it died of one. The test fails after limit_ms. */
int evals_run(const char *const *args, const char *log, int limit_ms);
/* dir/name, parsed; the test fails if it is no JSON. To be decref'd. */
json_t *evals_read_json(const char *dir, const char *name);

#endif
