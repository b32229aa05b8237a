/* What readers of a session see: durable events in order without gaps, and ephemeral news.
 *
 * A subscription has one cursor, the seq of the last event it was sent. It is live while the
 * cursor is the newest event and new ones go straight out; else it catches up: batches are read
 * from the store until it is there. Attaching with fromSeq and a reader that is too slow are
 * the same thing to it. Ephemeral news (deltas, states, progress) goes to live readers only and
 * is dropped where there is no room; the reader is then told `gap`. Loop thread. */
#ifndef AGENTD_EVENTS_H
#define AGENTD_EVENTS_H

#include <stdint.h>

#include <jansson.h>

#include "agentd/live.h"

struct peer;

/* ---- readers ---------------------------------------------------------------------- */

/* Attaches p to s, or moves the cursor of an attachment that is there. Call after the answer to
 * session/attach was sent. ERR_NOMEM. */
NODISCARD enum err events_attach(struct live *s, struct peer *p, uint64_t from_seq,
                                 struct error *e);
void events_detach(struct live *s, struct peer *p);
void events_peer_gone(struct peer *p);
/* The peer's connection has room again. */
void events_peer_drained(struct peer *p);

/* ---- news ------------------------------------------------------------------------- */

/* One durable event as it goes over the wire. `json` of a tape event holds everything but
 * sessionId and seq (events_payload). NULL when out of memory or not JSON. */
json_t *events_notification(const char *session_id, uint64_t seq, const char *json);
/* The payload {tMs, turnId, type, ...fields} to be stored; takes fields (an object). */
json_t *events_payload(const struct daemon *d, const char *turn, const char *type,
                       json_t *fields);
/* {id, kind, text, bytesB64?}: bytes that are not UTF-8, and NUL, are U+FFFD in text and exact
 * in bytesB64. */
json_t *events_item(const char *id, const char *kind, const void *bytes, size_t n);
/* bytes as a JSON string, with U+FFFD for NUL and for what is not UTF-8. */
json_t *events_text(const void *bytes, size_t n);

/* The session goes on from s->last_seq: readers that are ahead are set back and told
 * `session/cut` {sessionId, seq, kept}. kept is taken. */
void events_cut(struct live *s, json_t *kept);
/* s->last_seq has moved to `seq` by this event. */
void events_publish(struct live *s, uint64_t seq, const char *json);
/* text is taken: a JSON string. */
void events_delta(struct live *s, const char *item, const char *kind, uint64_t offset,
                  json_t *text);
/* The same for a reader that has just become live: what there is of the item, from offset 0. */
void events_delta_to(struct subscription *sub, const char *item, const char *kind,
                     json_t *text);
void events_state(struct live *s);
/* params is taken and gets sessionId. Ephemeral. */
void events_ephemeral(struct live *s, const char *method, json_t *params);
void events_ephemeral_to(struct subscription *sub, const char *method, json_t *params);

#endif
