/* Bundles: a session as one file, for another machine or for keeping.
 *
 * zstd of a ustar archive (archive.h) with exactly these members, in this order:
 *
 *     manifest.json   format, version, whose session, size and BLAKE2b-256 of each other member
 *     session.json    configuration, segments, replay marks, turns, tool calls, and behind
 *                     which events the tape began anew (compaction)
 *     items.jsonl     every durable event, one JSON object a line, in order of seq
 *     tape.u32        token ids, little endian
 *     blobs/HEX       exact bytes of events and call results, named by their BLAKE2b-256
 *     kv/HEX          model state, if it was asked for: bundle_kv.h
 *
 * What a session holds decides every byte but the manifest's session and time: exports of a
 * running session, of the same one after a restart, and of its import elsewhere are equal in
 * all other members. So nothing is in them that an import would change: no name, no folder, no
 * paths of spill files; approval is always "ask", a turn that is not finished is written as
 * cancelled, a call without an outcome as interrupted.
 *
 * Import is for hostile input. No path in a bundle is used. Sizes are capped, in the manifest,
 * before anything is inflated; members are hashed before they are parsed; then one transaction
 * makes a new session with a new id, or nothing. Nothing runs: turns are finished, permissions
 * are "ask", the folder is the importer's.
 *
 * Model state is taken after that, and only if it belongs to this model, to these tokens, and
 * was written under this store's master key (or the importer trusts it); else it is left out
 * and computed again, and the result says why. State that contradicts itself is refused with
 * the whole bundle.
 *
 * A redacted bundle (base/redact.h) has an empty tape, because token ids say what the text
 * says. It is for reading; import refuses it. Store's thread. */
#ifndef SESSIONS_BUNDLE_H
#define SESSIONS_BUNDLE_H

#include "base/state.h"
#include "sessions/session.h"

#define BUNDLE_VERSION 1
#define BUNDLE_MAX_MANIFEST (16u << 20)
#define BUNDLE_MAX_SESSION (128u << 20)
#define BUNDLE_MAX_ITEMS (1u << 30)
#define BUNDLE_MAX_BLOB (16u << 20)
#define BUNDLE_MAX_BLOBS 65536u
#define BUNDLE_MAX_TOTAL (16ull << 30) /* inflated, without kv */
#define BUNDLE_MAX_KV_PART (256u << 20)
#define BUNDLE_MAX_KV_PARTS 32768u
#define BUNDLE_MAX_KV (256ull << 30) /* inflated */

struct bundle_export {
    const char *session; /* id */
    const char *path;    /* of the file, replaced when it is there */
    bool redact;
    /* Model state of this layout goes along; NULL: none. Not with redact. */
    const struct state_layout *layout;
};

struct bundle_exported {
    uint64_t tokens, events, blobs;
    uint64_t bytes;     /* of the file */
    uint64_t redacted;  /* secrets taken out */
    uint64_t kv_tokens; /* tokens whose state goes along */
};

/* Writes the session at this moment, also one that is running. The file is whole and durable,
 * or as it was before. ERR_NOTFOUND: session. ERR_CORRUPT: it is damaged. ERR_LIMIT: more than
 * a bundle may hold, disk full. ERR_IO, ERR_DENIED: the file. */
NODISCARD enum err bundle_export(struct store *st, const struct bundle_export *x,
                                 struct bundle_exported *out, struct error *e);

/* The same in steps of some MiB or some hundred events, between which the store may do other
 * work: what is exported is the session as it was at the beginning. After an error, only end.
 * b is borrowed for begin alone, its layout until the end. */
struct bundle_exporter;
NODISCARD enum err bundle_export_begin(struct store *st, const struct bundle_export *b,
                                       struct bundle_exporter **out, struct error *e);
NODISCARD enum err bundle_export_step(struct bundle_exporter *x, bool *done, struct error *e);
/* out (may be NULL) only after the last step. x NULL is fine. */
void bundle_export_end(struct bundle_exporter *x, struct bundle_exported *out);

struct bundle_import {
    const char *path;
    const char *name; /* NULL: the bundle's, with a number behind if that is taken */
    const char *cwd;  /* of the new session: the importer's choice, never the bundle's */
    bool dry_run;     /* everything but the last step: nothing is changed */
    /* Of the model that is served: state of another one is left out. NULL: all of it is. */
    const struct state_layout *layout;
    bool trust_kv; /* take state also when it was not written under this master key */
    /* Says whether the caller could work with this configuration; may be NULL. */
    enum err (*check_config)(const char *config, struct error *e);
};

struct bundle_imported {
    char id[SESSION_ID_CAP]; /* "" after a dry run */
    char name[SESSION_NAME_CAP];
    char origin[SESSION_ID_CAP]; /* the session it was exported from */
    uint64_t tokens, events, turns, calls, blobs;
    uint64_t kv_tokens; /* whose state was taken */
    char kv_note[160];  /* why it was not, if there was any: it will be computed again */
};

/* ERR_FORMAT: refused, with the reason; the store is unchanged. ERR_CONFLICT: the name is
 * taken. ERR_INVAL: malformed name. ERR_NOTFOUND, ERR_IO: the file. ERR_LIMIT: disk full. */
NODISCARD enum err bundle_import(struct store *st, const struct bundle_import *m,
                                 struct bundle_imported *out, struct error *e);

#endif
