/* The protocol, written down: agentd/protocol.h says what it means, this says its shapes. */
#include "agentd/rpc.h"
#include "agentd/schema.h"

#define SESSION_KEY "id" /* id, name, or a unique prefix of the id */
#define CONTENT "content: [Text]"
#define GC_FIGURES                                                                             \
    "blocks: uint, tails: uint, tips: uint, evicted: uint, extents: uint, bytes: uint, "       \
    "packsRewritten: uint, packsRemoved: uint, bytesMoved: uint"
#define MODEL_FIGURES                                                                          \
    "name, fingerprint, numerics, vocabSize: uint, maxTokens: uint, storable: boolean, "       \
    "tipBytes: uint, planes: uint"
#define APPROVAL_FIELDS                                                                        \
    "approvalId, sessionId, callId, name, arguments, deadlineMs: uint, reason?"
/* What session/new takes and a session's config keeps. */
#define SAMPLING_FIELDS                                                                        \
    "seed?: uint, temperature?: number, topP?: number, topK?: uint, minP?: number, "           \
    "stop?: [string], logitBias?: <number>, topLogprobs?: uint"
#define EVENT_FIELDS "sessionId, seq: uint, tMs: uint, turnId?"
#define BYTES "text, bytesB64?"

const struct schema_type schema_types[] = {
    {"Id", "string|integer|null"},
    {"Text", "{type: text, text}"},
    {"Function", "{name, description, parameters: object}"},
    {"Forced", "{ids: [uint]}|{text}"},
    {"State", "queued|prefill|generating|tool|requires_action|idle"},
    {"Named", "{id, name}"},
    {"Receipt", "{turnId, seq: uint, queued?: uint}"},
    {"Steered", "{turnId, seq: uint, itemId, steered: boolean}"},
    {"Model", "{" MODEL_FIGURES "}"},
    {"Ledger",
     "{prompt_tokens: uint, resident: uint, restored: uint, recomputed: uint, "
     "relost: uint, prefilled: uint, ahead: uint, decoded: uint, reasoning: uint, "
     "drafts_proposed: uint, drafts_accepted: uint, drafts_cut: uint, "
     "drafts_failed: uint, "
     "replayed: uint, bytes_read: uint, bytes_written: uint, steps: uint, ms: {queue: number, "
     "store_read: number, import: number, replay: number, prefill: number, "
     "first_decode: number, decode: number, tool: number}}"},
    {"Resume", "{mode, tape: uint, restored: uint, recomputed: uint, relost: uint, "
               "replayed: uint, late: uint, bytes_read: uint, extents_damaged: uint, "
               "same_numerics: boolean, ms: {find: number, read: number, index: number, "
               "import: number, replay: number, recompute: number}}"},
    {"Config", "{approve: ask|never|auto, thinkingMode: chat|thinking, effort: uint, mode, "
               "system?, maxSteps: uint, maxTokens: uint, rules?: [string], "
               "functions?: [Function], clientTools: [string], summary?: {text, seq: "
               "uint}, " SAMPLING_FIELDS "}"},
    {"Session", "{id, name, origin, parent?, forkedAt?: uint, cwd, state, reason, "
                "damaged: boolean, createdMs: uint, updatedMs: uint, tokens: uint, "
                "lastSeq: uint, statePosition: uint, resident: boolean, config: Config, "
                "queued?: uint, resume?: Resume}"},
    {"Approval", "{" APPROVAL_FIELDS "}"},
    {"Side", "{id, name, tokens: uint, token: uint|null, text, recompute: uint}"},
    {"Likely", "{id: uint, token, logprob: number}"},
    {"Logprob", "{id: uint, token, logprob: number, top: [Likely]}"},
    {"CallStatus",
     "waiting|started|done|failed|rejected|cancelled|interrupted|invalid|not_run"},
    {"Item", "{id, kind: user, " BYTES ", clientMessageId?, "
             "status?: pending|delivered|undelivered}"
             "|{id, kind: assistant, " BYTES ", stop?, logprobs?: [Logprob], "
             "logprobsCut?: boolean}"
             "|{id, kind: reasoning, " BYTES ", logprobs?: [Logprob], logprobsCut?: boolean}"
             "|{id, kind: tool_call, callId?, name, arguments, status: CallStatus, "
             "client?: boolean}"
             "|{id, kind: tool_result, " BYTES ", callId, name, status: CallStatus, "
             "isError: boolean, spill?, cwd?, todo?: [{text, status: open|active|done}]}"
             "|{id, kind: note, " BYTES ", status?: queued|withdrawn, kept?: Named}"},
    {"Error", "{code: integer, message, data: {kind: ErrorKind, retryable: boolean, hint, "
              "retryAfterMs?: uint}}"},
    {"ErrorKind", "nomem|io|invalid|format|corrupt|limit|not_found|conflict|busy|denied|"
                  "unsupported|cancelled|timeout|closed|gpu|already_resolved"},
    {NULL, NULL},
};

const struct schema_method schema_methods[] = {
    {"initialize", "{protocolVersion: uint, clientInfo?: object}",
     "{protocolVersion: uint, info: {name, version}, capabilities: {methods: [string]}, "
     "limits: {lineBytes: uint, depth: uint, requests: uint, contextTokens: uint}, "
     "model: Model, pid: uint}",
     "Says who speaks and what this daemon can do."},
    {"session/new",
     "{cwd, name?, system?, tools?: [string], clientTools?: [{name, description?, "
     "parameters: object}], thinkingMode?: chat|thinking, effort?: any, "
     "approve?: ask|never|auto, rules?: [string], maxSteps?: uint, maxTokens?: uint, "
     "mode?: ced|ced-report|full, " SAMPLING_FIELDS "}",
     "Named", "Makes a session."},
    {"session/list", "{}", "{sessions: [Session]}", "All sessions, last used first."},
    {"session/get", "{" SESSION_KEY "}", "Session", "One session, with its tools."},
    {"session/attach", "{" SESSION_KEY ", fromSeq?: uint, mode?: observe|control}",
     "{id, seq: uint, state: State, reason}",
     "Durable events after fromSeq, then session/live, then live."},
    {"session/detach", "{" SESSION_KEY "}", "{id}", "No more events."},
    {"session/prompt", "{" SESSION_KEY ", clientMessageId?, " CONTENT ", forced?: [Forced]}",
     "Receipt", "A turn begins, or is queued behind the one in work. Durable when answered."},
    {"session/wait", "{" SESSION_KEY ", turnId?, timeoutMs?: uint}",
     "{id, state: State, reason, text, ledger: Ledger|{}, turnId?, stop?, resume?: Resume}",
     "When the session is idle, the turn has ended, or somebody has to act."},
    {"session/steer", "{" SESSION_KEY ", clientMessageId?, " CONTENT "}", "Steered|Receipt",
     "Text for the turn in work; without one, a prompt."},
    {"session/rewind", "{" SESSION_KEY ", toSeq: uint}",
     "{id, seq: uint, tokens: uint, kept: Named}",
     "Goes on behind an event; what came after is kept as another session."},
    {"session/compact", "{" SESSION_KEY ", forced?: [Forced]}", "Receipt",
     "A turn that writes a summary, with which the tape begins anew."},
    {"session/cancel", "{" SESSION_KEY ", turnId?}", "{id, cancelled: boolean}",
     "Stops the turn in work and what is queued behind it. What is computed is kept."},
    {"session/fork", "{" SESSION_KEY ", atSeq?: uint, name?}", "Named",
     "Another session with the same past."},
    {"session/rename", "{" SESSION_KEY ", name}", "Named", "Another name."},
    {"session/delete", "{" SESSION_KEY ", purge?: boolean}",
     "{id, purged: boolean, bytes: uint}|{id, purged: boolean, " GC_FIGURES "}",
     "Removes it; with purge also the bytes that only it used."},
    {"session/usage", "{" SESSION_KEY "}",
     "{id, turns: [{turnId, ledger: Ledger|null, lastSeq?: uint}], total: Ledger}",
     "What each turn cost."},
    {"session/verify", "{" SESSION_KEY "}",
     "{equal: boolean, segments: uint, segmentsWithoutDigest: uint, rows: uint, tokens: uint, "
     "ms: number, firstMismatch?: {start: uint, len: uint, kind: input|generated, rows: uint, "
     "rowsHere: uint}}",
     "Computes the tape again in a fresh process and compares digests of the logits."},
    {"session/export", "{" SESSION_KEY ", path, withKv?: boolean, redact?: boolean}",
     "{id, path, bytes: uint, tokens: uint, events: uint, blobs: uint, redacted: boolean, "
     "secrets: uint, kvTokens: uint}",
     "Writes the session into one file."},
    {"session/import", "{path, cwd?, name?, trustKv?: boolean, dryRun?: boolean}",
     "{id, name, origin, tokens: uint, events: uint, turns: uint, calls: uint, blobs: uint, "
     "dryRun: boolean, kvTokens: uint, kvNote?}",
     "A session from such a file."},
    {"session/diff", "{" SESSION_KEY ", other}",
     "{equal: boolean, shared: uint, before, a: Side, b: Side, item?: {index: uint, "
     "a: any, b: any}}",
     "Where two sessions part."},
    {"search", "{query, id?, limit?: uint}",
     "{hits: [{id, name, seq: uint, tMs: uint, itemId, kind, turnId?, snippet}], "
     "more: boolean}",
     "Items that have all the words."},
    {"approval/list", "{}", "{approvals: [Approval]}", "Calls that wait for an answer."},
    {"approval/resolve", "{approvalId, outcome: once|session|reject}",
     "{outcome: once|session|reject}", "The first answer wins."},
    {"tool/result", "{" SESSION_KEY ", callId, content: string|[Text], isError?: boolean}",
     "{}", "The result of a client's tool."},
    {"tool/list", "{}", "{tools: [Function]}", "The daemon's tools."},
    {"model/status", "{}",
     "{" MODEL_FIGURES ", tiers: [{name, budgetBytes: uint, minimumBytes: uint, "
     "residentBytes: uint, hits: uint, misses: uint, readBytes: uint, stallMs: number}], "
     "graphs: {recorded: uint, replayed: uint, plain: uint, why?}}",
     "The model, where its weights are, and how many decode steps a device repeated."},
    {"daemon/status", "{}",
     "{version, pid: uint, uptimeMs: uint, connections: uint, sessionsLive: uint, "
     "sessionsResident: uint, turns: uint, stateCommits: uint, stopping: boolean, "
     "model: Model, store: <uint>}",
     "The daemon and its store in figures."},
    {"daemon/shutdown", "{}", "{}", "The clean end: state is saved first."},
    {"kv/gc", "{}", "{" GC_FIGURES "}", "Frees what nothing refers to."},
    {"kv/stats", "{}",
     "{quotaBytes: uint, usedBytes: uint, liveBytes: uint, highPercent: uint, "
     "lowPercent: uint, sessions: [{id, name, pinned: boolean, uses: number, tokens: uint, "
     "heldBytes: uint, ownBytes: uint}]}",
     "The room that model state takes."},
    {"kv/pin", "{" SESSION_KEY ", pinned?: boolean}", "{id, pinned: boolean}",
     "State that is never evicted."},
    {"kv/drop", "{" SESSION_KEY "}", "{id, " GC_FIGURES "}",
     "Drops a session's state: its tape is computed again when it is needed."},
    {"store/fsck", "{repair?: boolean}",
     "{repair: boolean, rows: uint, sessions: uint, tokens: uint, extents: uint, bytes: uint, "
     "packs: uint, unreferenced: uint, found: uint, repaired: uint, findings: [{kind, what, "
     "action, repaired: boolean}]}",
     "Reads everything and says what is damaged."},
    {"namespace/drop", "{name}", "{name, sessions: uint, packs: uint}",
     "Removes all that a namespace holds."},
    {"$/cancel_request", "{id: Id}", "{}",
     "A notification: the request of this id is answered with -32800."},
    {NULL, NULL, NULL, NULL},
};

const struct schema_notification schema_notifications[] = {
    {"session/event",
     "{" EVENT_FIELDS ", type: item, item: Item}"
     "|{" EVENT_FIELDS ", type: state, state: State, reason?}"
     "|{" EVENT_FIELDS ", type: usage, ledger: Ledger}"
     "|{" EVENT_FIELDS ", type: error, error: {kind, message}}",
     "Durable: seq goes up by one."},
    {"session/live", "{sessionId, seq: uint}", "All up to seq was sent."},
    {"session/delta", "{sessionId, itemId, kind: assistant|reasoning, offset: uint, text}",
     "Text of an item to come; offset in bytes of its UTF-8."},
    {"session/state", "{sessionId, state: State, reason?}",
     "What the session does, also for too short a time for an event."},
    {"session/progress",
     "{sessionId, phase, done: uint, total: uint, resident: uint, restored: uint, "
     "recomputed: uint, replayed: uint, tokPerSec: number, etaMs: uint}",
     "How far a long phase has come."},
    {"session/cut", "{sessionId, seq: uint, kept: Named}",
     "The session was rewound or compacted; later events follow seq."},
    {"gap", "{sessionId}", "Deltas, states or progress were dropped for this reader."},
    {"approval/requested", "{" APPROVAL_FIELDS "}", "A call waits for an answer."},
    {"approval/resolved", "{approvalId, sessionId, outcome: once|session|reject}",
     "It was answered, or nobody did in time."},
    {NULL, NULL, NULL},
};

const struct schema_code schema_codes[] = {
    {RPC_PARSE_ERROR, "the line is no JSON, or not as JSON is taken here"},
    {RPC_INVALID_REQUEST, "no request: a batch, a wrong version, too long"},
    {RPC_METHOD_NOT_FOUND, "no such method"},
    {RPC_INVALID_PARAMS, "invalid: the message names the parameter"},
    {RPC_INTERNAL_ERROR, "a fault of the daemon"},
    {RPC_CANCELLED, "cancelled"},
    {RPC_OVERLOADED, "too many requests of one client; retryAfterMs says when to try again"},
    {RPC_OURS, "not_found: no such thing, or its name is ambiguous"},
    {RPC_OURS - 1, "conflict or already_resolved: it exists, or its state does not allow this"},
    {RPC_OURS - 2, "busy: somebody else holds it"},
    {RPC_OURS - 3, "denied"},
    {RPC_OURS - 4, "limit: a cap or budget would be exceeded"},
    {RPC_OURS - 5, "corrupt or format: what is stored or was sent cannot be trusted"},
    {RPC_OURS - 6, "unsupported: this build or machine cannot do it"},
    {RPC_OURS - 7, "io or nomem: the operating system said no"},
    {RPC_OURS - 8, "timeout or closed"},
    {RPC_OURS - 9, "gpu: the device failed"},
    {0, NULL},
};
