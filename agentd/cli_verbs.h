/* The verbs of agentctl: one function each, and the table of all of them.
 *
 * A verb stands beside its options in one of cli_run.c (run, send, steer), cli_read.c (attach,
 * wait, logs, show), cli_sessions.c, cli_bundle.c, cli_history.c (rewind, compact, log),
 * cli_search.c (search, diff), cli_kv.c, cli_daemon.c, cli_schema.c and cli_eval.c. */
#ifndef AGENTD_CLI_VERBS_H
#define AGENTD_CLI_VERBS_H

#include "agentd/cli.h"

extern const struct command cli_run_command, cli_send_command, cli_steer_command;
extern const struct command cli_attach_command, cli_wait_command, cli_logs_command,
    cli_show_command;
extern const struct command cli_ps_command, cli_fork_command, cli_rename_command,
    cli_rm_command, cli_cancel_command, cli_usage_command, cli_verify_command;
extern const struct command cli_eval_command, cli_doctor_command;
extern const struct command cli_rewind_command, cli_compact_command, cli_log_command;
extern const struct command cli_export_command, cli_import_command;
extern const struct command cli_search_command, cli_diff_command;
extern const struct command cli_config_command, cli_schema_command;
extern const struct command cli_kv_command, cli_fsck_command, cli_namespace_command;
extern const struct command cli_gc_command, cli_status_command, cli_tools_command,
    cli_approvals_command, cli_approve_command, cli_deny_command;

int cli_run(int argc, char **argv);
int cli_send(int argc, char **argv);
int cli_steer(int argc, char **argv);
int cli_attach(int argc, char **argv);
int cli_wait(int argc, char **argv);
int cli_logs(int argc, char **argv);
int cli_show(int argc, char **argv);
int cli_ps(int argc, char **argv);
int cli_fork(int argc, char **argv);
int cli_rename(int argc, char **argv);
int cli_rm(int argc, char **argv);
int cli_cancel(int argc, char **argv);
int cli_usage_of(int argc, char **argv);
int cli_verify(int argc, char **argv);
int cli_rewind(int argc, char **argv);
int cli_compact(int argc, char **argv);
int cli_log(int argc, char **argv);
int cli_export(int argc, char **argv);
int cli_import(int argc, char **argv);
int cli_search(int argc, char **argv);
int cli_diff(int argc, char **argv);
int cli_config(int argc, char **argv);
int cli_schema(int argc, char **argv);
int cli_gc(int argc, char **argv);
int cli_kv(int argc, char **argv);
int cli_fsck(int argc, char **argv);
int cli_namespace(int argc, char **argv);
int cli_status(int argc, char **argv);
int cli_eval(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_tools(int argc, char **argv);
int cli_approvals(int argc, char **argv);
int cli_approve(int argc, char **argv);
int cli_deny(int argc, char **argv);

#endif
