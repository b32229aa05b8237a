/* Bodies of the built-in tools, run in the confined child: output goes to descriptor 1, and the
 * return value is the exit status (0, or 1 with the reason as output, for the model). */
#ifndef TOOLS_BODY_H
#define TOOLS_BODY_H

#include "tools/launch.h"

/* What a body may use. Arguments fit the tool's schema (checked by the daemon before). */
struct body {
    const struct launch *launch;
    const char *tmp;   /* HOME and TMPDIR of commands */
    const char *notes; /* a folder of this run, where the shell leaves where it was; NULL: none
                        */
};

/* Runs the body of launch->tool in this process; bash replaces the process. */
int body_main(const struct body *b);

int body_read_file(const struct body *b);
int body_list_dir(const struct body *b);
int body_grep(const struct body *b);
int body_write_file(const struct body *b);
int body_edit(const struct body *b);
int body_run(const struct body *b);
int body_http_fetch(const struct body *b);

/* Of body.notes: the file that a shell leaves its working folder in. */
#define BODY_CWD_FILE ".agentd-cwd"

/* Prints "error: " and the message; returns 1. */
int body_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Arguments by name, or what is given instead. */
const char *body_string(const struct body *b, const char *name, const char *otherwise);
long long body_integer(const struct body *b, const char *name, long long otherwise);
bool body_flag(const struct body *b, const char *name);

#endif
