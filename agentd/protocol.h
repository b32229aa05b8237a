/* The methods of the control socket: one table, and what goes over the wire.
 *
 * Newline-delimited JSON-RPC 2.0 (agentd/rpc.h), named parameters, unknown fields ignored. A
 * session is named by its id, its name, or a unique prefix of its id; answers carry the id.
 *
 *   initialize       {protocolVersion:1, clientInfo?} -> {protocolVersion, info:{name,
 * version}, capabilities:{methods:[...]}, limits, model, pid} session/new      {cwd, name?,
 * system?, tools?, clientTools?, thinkingMode?, effort?, approve?, maxSteps?, maxTokens?,
 * seed?, temperature?, topP?, mode?} -> {id, name} session/prompt   {id, clientMessageId?,
 * content:[{type:"text", text}], forced?} -> {turnId, seq}; durable when it is answered. Busy
 * sessions: ERR_BUSY session/wait     {id, timeoutMs?} -> {state, reason, text, ledger,
 * resume?}; when idle, or when somebody has to act (state and reason requires_action). A
 * deadline that passes is an error of kind timeout session/cancel   {id} -> {cancelled: bool}
 *   session/attach   {id, fromSeq?, mode?} -> {seq, state, reason}: durable events after
 * fromSeq (absent: after the newest, so none), then `session/live`, then live session/detach
 * {id} -> {} session/list     {} -> {sessions:[SESSION...]}, last used first session/get {id}
 * -> SESSION session/fork     {id, atSeq?, name?} -> {id, name} session/rename   {id, name} ->
 * {id, name};   session/delete {id} -> {id} session/usage    {id} -> {turns:[{turnId,
 * ledger}...], total:LEDGER} session/verify   {id} -> {equal, segments, rows, tokens, ms,
 * firstMismatch?} approval/list    {} -> {approvals:[{approvalId, sessionId, callId, name,
 * arguments}...]} approval/resolve {approvalId, outcome: once|session|reject} -> {outcome};
 * conflict (kind already_resolved) when somebody was first tool/result      {id, callId,
 * content, isError?} -> {} tool/list        {} -> {tools:[{name, description, parameters}...]}
 *   model/status, daemon/status {} -> figures;  daemon/shutdown {} -> {}
 *   $/cancel_request {id}: a notification; the request with that id is answered -32800
 *
 *   SESSION {id, name, parent?, cwd, state, reason, damaged, createdMs, updatedMs, tokens,
 * lastSeq, statePosition, resident, config, ledger?, resume?} LEDGER  agentd/ledger.h
 *
 * Notifications:
 *
 *   session/event    {sessionId, seq, tMs, turnId?, type, ...}: durable, per-session seq
 * without gaps. type item: item:{id, kind, text?, bytesB64?, callId?, name?, arguments?,
 *                    status?, isError?}; type state: state, reason?; type usage: ledger;
 *                    type error: error:{kind, message}
 *   session/live     {sessionId, seq}: everything up to seq was sent, what follows is live
 *   session/delta    {sessionId, itemId, kind, offset, text}: text of an item to come, `offset`
 * in bytes of its UTF-8; the item event that follows holds the whole session/state {sessionId,
 * state, reason?}: also states too short-lived for the tape session/progress {sessionId, phase,
 * done, total, resident, restored, recomputed, replayed, tokPerSec, etaMs} gap {sessionId}:
 * deltas, states or progress were dropped for this reader approval/requested {approvalId,
 * sessionId, callId, name, arguments, deadlineMs}; approval/resolved  {approvalId, sessionId,
 * outcome}
 *
 * Errors carry data {kind, retryable, hint}. Belongs to the loop thread. */
#ifndef AGENTD_PROTOCOL_H
#define AGENTD_PROTOCOL_H

#include <stddef.h>

struct conn;
struct daemon;

#define PROTOCOL_VERSION 1

/* One line from a client: parsed, looked up, handled; every request is answered once. */
void protocol_line(struct daemon *d, struct conn *c, const char *line, size_t len);
/* A line that was too long to be taken. */
void protocol_overlong(struct daemon *d, struct conn *c);

#endif
