/* The methods of the control socket: one table, and what goes over the wire.
 *
 * Newline-delimited JSON-RPC 2.0 (agentd/rpc.h), named parameters, unknown fields ignored. A
 * session is named by its id, its name, or a unique prefix of its id; answers carry the id.
 *
 *   initialize        {protocolVersion:1, clientInfo?} -> {protocolVersion, capabilities,
 *                     info:{name, version}, limits, model, pid}
 *   session/new       {cwd, name?, system?, tools?, clientTools?, thinkingMode?, effort?,
 *                     approve?, rules?:["allow|ask|deny TOOL [PATTERN]"...] (tools/rules.h),
 *                     maxSteps?, maxTokens?, seed?, temperature?, topP?, topK?, minP?,
 *                     stop?, logitBias?, topLogprobs? (agentd/sampling_config.h), mode?}
 *                     -> {id, name}
 *   session/prompt    {id, clientMessageId?, content:[{type:"text", text}], forced?}
 *                     -> {turnId, seq, queued?}: durable when answered. While a turn runs it
 *                     is queued (queued: its place); kind busy when 16 wait already
 *   session/steer     {id, clientMessageId?, content} -> {turnId, seq, itemId, steered:true}:
 *                     the text reaches the model with the next results, or instead of the
 *                     turn's end; durable when answered. Without a turn to take it: as
 *                     session/prompt. A message id that was taken gets its first receipt
 *   session/wait      {id, turnId?, timeoutMs?} -> {id, turnId?, state, reason, text, ledger,
 *                     resume?, stop?}: stop is the string that ended the text. When idle (with
 *                     turnId: when that turn has ended, whatever is queued behind it), or when
 *                     somebody has to act (state and reason requires_action); a deadline that
 *                     passes is an error of kind timeout
 *   session/cancel    {id, turnId?} -> {id, cancelled: bool}: the turn in work, and what is
 *                     queued behind it; with turnId only that one, in work or queued
 *   session/rewind    {id, toSeq} -> {id, seq, tokens, kept:{id, name}}: the session goes on
 *                     behind event toSeq (0: from nothing); all it had is kept as `kept`
 *   session/compact   {id, forced?} -> as session/prompt: a turn that writes a summary; when
 *                     it has ended, the tape begins anew with that, and all there was is kept
 *                     as another session. Events go on without a gap. Happens by itself before
 *                     a prompt that would leave no room for its answer
 *   session/attach    {id, fromSeq?, mode?} -> {id, seq, state, reason}, then durable events
 *                     after fromSeq (absent: none), then `session/live`, then live
 *   session/detach    {id} -> {id}
 *   session/list      {} -> {sessions:[SESSION...]}, last used first
 *   session/get       {id} -> SESSION
 *   session/fork      {id, atSeq?, name?} -> {id, name}
 *   session/rename    {id, name} -> {id, name}
 *   session/delete    {id, purge?} -> {id, purged, bytes}; purged: and the figures of kv/gc
 *   session/usage     {id} -> {id, turns:[{turnId, ledger, lastSeq}...], total:LEDGER}
 *   session/export    {id, path, withKv?, redact?} -> {id, path, bytes, tokens, events, blobs,
 *                     redacted, secrets, kvTokens}
 *   session/import    {path, cwd?, name?, trustKv?, dryRun?} -> {id, name, origin, tokens,
 *                     events, turns, calls, blobs, dryRun, kvTokens, kvNote?}: state of so many
 *                     tokens was taken; kvNote says why that of the bundle was not
 *   session/diff      {id, other} -> {equal, shared, before, a:SIDE, b:SIDE, item?:{index, a,
 *                     b}}: tokens that are the same, text of the last of them; SIDE {id, name,
 *                     tokens, token, text, recompute} goes on from there; the first item that
 *                     says something else, null where there is none
 *   search            {query, id?, limit?} -> {hits:[{id, name, seq, tMs, itemId, kind,
 *                     turnId?, snippet}...], more}: items that have all the words, best first;
 *                     "in quotes" a phrase, wor* a beginning; without secrets
 *   session/verify    {id} -> {equal, segments, segmentsWithoutDigest, rows, tokens, ms,
 *                     firstMismatch?}
 *   approval/list     {} -> {approvals:[APPROVAL...]}
 *   approval/resolve  {approvalId, outcome: once|session|reject} -> {outcome}; kind
 *                     already_resolved when somebody was first
 *   tool/result       {id, callId, content, isError?} -> {}; content: a text, or parts as
 *                     session/prompt has them
 *   tool/list         {} -> {tools:[{name, description, parameters}...]}
 *   model/status      {} -> figures; so do daemon/status and, with {}, daemon/shutdown
 *   kv/gc, kv/stats, kv/pin {id, pinned?}, kv/drop {id}, store/fsck {repair?}, namespace/drop
 *                     {name} -> figures
 *   $/cancel_request  {id}: a notification; the request with that id is answered -32800
 *
 *   SESSION   {id, name, origin, parent?, forkedAt?, cwd, state, reason, damaged, createdMs,
 *             updatedMs, tokens, lastSeq, statePosition, resident, config, queued?, resume?};
 *             session/list leaves the declarations of tools out of config
 *   APPROVAL  {approvalId, sessionId, callId, name, arguments, deadlineMs, reason?: the rule}
 *   LEDGER    and resume: agentd/ledger.h
 *
 * Notifications:
 *
 *   session/event       {sessionId, seq, tMs, turnId?, type, ...}: durable, seq without gaps.
 *                       type item:  item:{id, kind, text?, bytesB64?, callId?, name?,
 *                                   arguments?, status?, isError?, stop?, logprobs?:
 *                                   [{id, token, logprob, top:[{id, token, logprob}...]}...],
 *                                   logprobsCut?: true, cwd?: where a command's
 *                                   shell was at its end, todo?: [{text, status}...]: the
 *                                   list from here on}; a later event of the
 *                                   same item id replaces the earlier one. A queued prompt
 *                                   is a note with status queued (or withdrawn) until its turn
 *                                   begins; text that steers is a user item with status
 *                                   pending, then delivered or undelivered
 *                       type state: state, reason?
 *                       type usage: ledger
 *                       type error: error:{kind, message}
 *   session/live        {sessionId, seq}: all up to seq was sent, what follows is live
 *   session/delta       {sessionId, itemId, kind, offset, text}: text of an item to come;
 *                       offset in bytes of its UTF-8; the item's event holds the whole
 *   session/state       {sessionId, state, reason?}: also those too short for the tape
 *   session/progress    {sessionId, phase, done, total, resident, restored, recomputed,
 *                       replayed, tokPerSec, etaMs}; at the latest after 5 s of a turn again,
 *                       with total 0 and the state as phase where nothing is counted
 *   session/cut         {sessionId, seq, kept:{id, name}}: the session was rewound to seq, or
 *                       compacted (then seq is the newest); later events follow seq
 *   gap                 {sessionId}: deltas, states or progress were dropped for this reader
 *   approval/requested  APPROVAL
 *   approval/resolved   {approvalId, sessionId, outcome}
 *
 * Errors carry data {kind, retryable, hint}. The shape of every field is in schema_tables.c,
 * which a test holds against real traffic. Belongs to the loop thread. */
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
