/* The handlers behind protocol.c's table. Each owns the request it is called with: it answers
 * it now, or hands it to a job that does. Loop thread. */
#ifndef AGENTD_METHODS_H
#define AGENTD_METHODS_H

#include "agentd/peer.h"

/* methods_session.c: what the store alone can answer, and what makes or ends sessions */
void method_session_new(struct request *r);
void method_session_list(struct request *r);
void method_session_get(struct request *r);
void method_session_fork(struct request *r);
void method_session_rename(struct request *r);
void method_session_delete(struct request *r);
/* A state commit has ended: deletions that waited for it go on. */
void session_delete_on_saver(struct live *s);
void method_session_usage(struct request *r);

/* methods_bundle.c: sessions as files */
void method_session_export(struct request *r);
void method_session_import(struct request *r);

/* methods_search.c: what was said, and where two sessions part */
void method_search(struct request *r);
void method_session_diff(struct request *r);

/* methods_turn.c: driving and watching turns */
void method_session_prompt(struct request *r);
void method_session_steer(struct request *r);
void method_session_rewind(struct request *r);
void method_session_compact(struct request *r);
void method_session_wait(struct request *r);
void method_session_cancel(struct request *r);
void method_session_attach(struct request *r);
void method_session_detach(struct request *r);
void method_session_verify(struct request *r);
void method_approval_list(struct request *r);
void method_approval_resolve(struct request *r);
void method_tool_result(struct request *r);

/* methods_kv.c: the room that model state takes */
void method_kv_gc(struct request *r);
void method_kv_stats(struct request *r);
void method_kv_pin(struct request *r);
void method_kv_drop(struct request *r);

/* methods_fsck.c */
void method_store_fsck(struct request *r);
void method_namespace_drop(struct request *r);

/* methods_daemon.c: the daemon itself */
void method_initialize(struct request *r);
void method_tool_list(struct request *r);
void method_model_status(struct request *r);
void method_daemon_status(struct request *r);
void method_daemon_shutdown(struct request *r);
void method_cancel_request(struct request *r);

/* Names of all methods, for `initialize`. */
json_t *protocol_methods(void);

#endif
